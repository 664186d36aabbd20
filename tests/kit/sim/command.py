"""`make sim`: plays one seed after the other, and prints each that fails, cut short.

python -m tests.kit.sim.command 1000:2000     seeds 1000 to 1999
python -m tests.kit.sim.command 1234          one seed
python -m tests.kit.sim.command               new seeds until it is interrupted
"""

import itertools
import random
import sys
import time
from collections.abc import Iterable

from tests.kit.sim.actions import History, generate
from tests.kit.sim.shrink import shrink
from tests.kit.sim.simulation import Played, play

TELL_S = 60.0


def report(history: History, played: Played) -> str:
    """What a failing seed prints."""
    before = len(history.actions)
    history, played = shrink(history, played, run=play)
    return "\n".join(
        [
            f"seed {history.seed}: {before} actions, of which {len(history.actions)} are enough:",
            history.show(),
            *(f"FAULT at {fault}" for fault in played.faults[:5]),
        ]
    )


def seeds_of(arguments: list[str]) -> Iterable[int]:
    if not arguments:
        first = random.SystemRandom().randrange(1 << 40)
        print(f"seeds from {first} on")
        return itertools.count(first)
    first, _, end = arguments[0].partition(":")
    return range(int(first), int(end) if end else int(first) + 1)


def main(arguments: list[str]) -> int:
    began_s = told_s = time.monotonic()
    seeds = kills = power_losses = deliveries = repeats = failed = 0
    try:
        for seed in seeds_of(arguments):
            history = generate(seed)
            played = play(history)
            seeds, kills = seeds + 1, kills + played.kills
            power_losses += played.power_losses
            deliveries += played.deliveries
            repeats += played.repeats
            if played.faults:
                failed += 1
                print(report(history, played), "\n", flush=True)
            if time.monotonic() - told_s > TELL_S:
                told_s = time.monotonic()
                counts = f"{seeds} seeds, {kills} kills, {power_losses} losses of power"
                print(f"{counts}, {failed} failed", flush=True)
    except KeyboardInterrupt:
        pass
    spent_s = time.monotonic() - began_s
    print(
        f"{seeds} seeds, {kills} kills, {power_losses} of them losses of power, "
        f"{deliveries} deliveries, {repeats} messages certain by a repeated publish in "
        f"{spent_s:.0f} s; {failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
