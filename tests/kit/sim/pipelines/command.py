"""`make sim-pipelines`: plays one seed after the other, and prints each that fails, cut short.

python -m tests.kit.sim.pipelines.command 1000:2000     seeds 1000 to 1999
python -m tests.kit.sim.pipelines.command 1234          one seed
python -m tests.kit.sim.pipelines.command               new seeds until it is interrupted
"""

import sys
import time

from tests.kit.sim.actions import History
from tests.kit.sim.command import TELL_S, seeds_of
from tests.kit.sim.pipelines.actions import generate
from tests.kit.sim.pipelines.simulation import Played, play
from tests.kit.sim.shrink import shrink


def report(history: History, played: Played) -> str:
    """What a failing seed prints."""
    before = len(history.actions)
    history, played = shrink(history, played, run=play)
    options = " ".join(f"{name}={value}" for name, value in history.options.items())
    return "\n".join(
        [
            f"seed {history.seed}: {before} actions, of which {len(history.actions)} are enough:",
            f"archive {options}",
            *(f"{number:4} {action}" for number, action in enumerate(history.actions)),
            *(f"FAULT: {fault}" for fault in played.faults[:5]),
        ]
    )


def main(arguments: list[str]) -> int:
    began_s = told_s = time.monotonic()
    seeds = runs = batches = kills = messages = failed = 0

    def counts() -> str:
        return (
            f"{seeds} seeds, {runs} runs of the archive, {batches} batches, {kills} kills, "
            f"{messages} messages; {failed} failed"
        )

    try:
        for seed in seeds_of(arguments):
            history = generate(seed)
            played = play(history)
            seeds, runs, batches = seeds + 1, runs + played.runs, batches + played.batches
            kills, messages = kills + played.kills, messages + played.messages
            if played.faults:
                failed += 1
                print(report(history, played), "\n", flush=True)
            if time.monotonic() - told_s > TELL_S:
                told_s = time.monotonic()
                print(counts(), flush=True)
    except KeyboardInterrupt:
        pass
    print(f"{counts()}, in {time.monotonic() - began_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
