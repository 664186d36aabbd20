"""`pumpline top`: polls all nodes, and draws them until it is told to end.

A thread polls, so that a node that does not answer holds up no key.
"""

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pumpline.cluster.client import unique
from pumpline.cluster.stats import read_stats
from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import BOOL, DURATION, STRING, option
from pumpline.tools.arguments import UsageError
from pumpline.tools.top.rates import Measured, Reading, measure
from pumpline.tools.verbs.verb import Call, Verb, VerbOptions, run_verb

if TYPE_CHECKING:  # rich takes 60 ms, which --help need not wait for
    from pumpline.tools.top.screen import TopScreen

INTERVAL_NS = 2 * NS_PER_S
INTERVAL_NS_MIN = NS_PER_S // 10


@dataclass(slots=True, kw_only=True)
class TopOptions(VerbOptions):
    interval_ns: int = option(DURATION, INTERVAL_NS, "time between two readings")
    view: str = option(STRING, "channels", "what to begin with: nodes, topics or channels")
    sort: str = option(STRING, "", "column to sort by, as its title or JSON name has it")
    filter: str = option(STRING, "", "only rows with these words in their names")
    once: bool = option(BOOL, False, "print once, after one interval, and end")


class Poller:
    """Asks all nodes, again and again, in a thread of its own."""

    def __init__(self, call: Call[TopOptions]) -> None:
        self._call = call
        self._before: Reading | None = None
        self.measured: Measured | None = None
        self.is_paused = False
        self._stop = threading.Event()
        self._interval_s = call.options.interval_ns / NS_PER_S

    def start(self) -> None:
        threading.Thread(target=self._run, name="top", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self.is_paused:
                self.poll()
            self._stop.wait(self._interval_s)

    def poll(self) -> Measured:
        """One reading, compared with the one before."""
        cluster = self._call.cluster
        found = cluster.discover()
        failures = {f"nsqlookupd {address}": why for address, why in found.failures.items()}
        answers = cluster.each(unique(found), read_stats)
        now = Reading(
            time.monotonic(), time.time_ns(), answers.answers, {**failures, **answers.failures}
        )
        self.measured = measure(self._before, now)
        self._before = now
        return self.measured


def run(call: Call[TopOptions]) -> int:
    from pumpline.tools.top.screen import VIEWS, TopScreen

    options = call.options
    if options.view not in VIEWS:
        raise UsageError(f"--view is one of {', '.join(VIEWS)}")
    if options.interval_ns < INTERVAL_NS_MIN:
        raise UsageError("--interval is 100ms or more")
    screen = TopScreen(view=options.view, filter=options.filter)
    if options.sort:
        keys = [each.key for each in screen.columns if options.sort in (each.key, each.title)]
        if not keys:
            titles = ", ".join(each.title for each in screen.columns)
            raise UsageError(f"--sort is one of {titles}")
        screen.sort_key[screen.view] = keys[0]
    if options.once:
        return _once(call, screen)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("this is no terminal: say --once")
    return _live(call, screen)


def _once(call: Call[TopOptions], screen: "TopScreen") -> int:
    poller = Poller(call)
    poller.poll()
    time.sleep(call.options.interval_ns / NS_PER_S)
    measured = poller.poll()
    if call.out.is_table:
        call.out.rows(screen.columns, screen.rows(measured), empty=f"no {screen.view}")
        for node, why in measured.failures.items():
            print(f"{node}: {why}", file=sys.stderr)
    else:
        views = ("nodes", "topics", "channels")
        rows = {}
        for screen.view in views:
            rows[screen.view] = screen.rows(measured)
        call.out.document({**rows, "failures": measured.failures})
    return 1 if measured.failures else 0


def _live(call: Call[TopOptions], screen: "TopScreen") -> int:
    from pumpline.tools.top.live import LiveTerminal

    poller = Poller(call)

    def pause(is_paused: bool) -> None:
        poller.is_paused = is_paused

    poller.start()
    LiveTerminal(screen).run(lambda: poller.measured, pause)
    poller.stop()
    return 0


VERB = Verb(
    name="top",
    summary="nodes, topics and channels, live in the terminal",
    places="",
    options=TopOptions,
    examples="""
        pumpline top
        pumpline top --lookupd 127.0.0.1:4161 --view nodes --interval 1s
        pumpline top --once --json
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
