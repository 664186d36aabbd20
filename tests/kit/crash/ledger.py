"""The books of a crash test: what was published, acknowledged, delivered and settled, and when.

Every delivery is checked against the promises as it is entered; a broken promise is kept in
`faults`, so that the threads that drive the load go on and the test fails with all of them.

The promises, for a kill at time K (a channel's state is written every 100 ms, so what happened
less than SETTLED_S before K may be forgotten, and nothing else):
- what was acknowledged is delivered, on every channel that existed when it was sent;
- a finished message does not come again;
- attempts of a message grow with every delivery;
- a deferred message, published or requeued so, does not come before its time.

Knows no sockets and no processes. Safe to use from several threads.
"""

import threading
import time
from dataclasses import dataclass, field

SETTLED_S = 2.0
EARLY_S = 0.05  # how much too early a deferred message may come, by two readings of one clock

NEVER_S = float("inf")


@dataclass(slots=True)
class Publication:
    sent_s: float
    due_s: float  # wall clock; 0: at once
    acknowledged: bool = False


@dataclass(slots=True)
class Settlement:
    """A FIN or REQ: not certain to have been seen before `confirmed_s`."""

    due_s: float | None  # None: finished
    confirmed_s: float = NEVER_S


@dataclass(slots=True)
class Delivered:
    """What a channel's consumers know about one message, the last delivery first."""

    run: int
    received_s: float
    attempts: int
    before: "Delivered | None" = None
    settlement: Settlement | None = None
    finished: bool = False


@dataclass(slots=True)
class Books:
    """One channel's deliveries."""

    topic: str
    channel: str
    since_s: float  # the channel is known to have existed from here on
    seen: dict[bytes, Delivered] = field(default_factory=dict)
    deliveries: int = 0
    redeliveries: int = 0


class Ledger:
    def __init__(self, *, checks_deliveries: bool = True) -> None:
        """Without checks, what comes again is not looked at, only what never comes."""
        self.faults: list[str] = []
        self._checks_deliveries = checks_deliveries
        self.acknowledged_count = 0
        self._published: dict[str, dict[bytes, Publication]] = {}
        self._books: dict[tuple[str, str], Books] = {}
        self._kills_s: list[float] = []
        self._changed = threading.Condition()

    @property
    def run(self) -> int:
        return len(self._kills_s)

    def killed(self, at_s: float) -> None:
        """A run has ended; say so when its consumers have entered all they received."""
        self._kills_s.append(at_s)

    def open_books(self, topic: str, channel: str, *, since_s: float | None = None) -> None:
        """The channel exists; from `since_s` on, or from now."""
        opened = Books(topic, channel, time.time() if since_s is None else since_s)
        self._books[topic, channel] = opened

    # -- publishing ---------------------------------------------------------------------------

    def sending(self, topic: str, body: bytes, *, delay_ms: int = 0) -> None:
        now_s = time.time()
        due_s = now_s + delay_ms / 1000 if delay_ms else 0.0
        with self._changed:
            self._published.setdefault(topic, {})[body] = Publication(now_s, due_s)

    def acknowledge(self, topic: str, bodies: list[bytes]) -> None:
        with self._changed:
            for body in bodies:
                self._published[topic][body].acknowledged = True
            self.acknowledged_count += len(bodies)
            self._changed.notify_all()

    # -- consuming ----------------------------------------------------------------------------

    def receive(self, topic: str, channel: str, body: bytes, attempts: int) -> None:
        now_s = time.time()
        with self._changed:
            books = self._books[topic, channel]
            books.deliveries += 1
            fault = self._check(books, body, attempts, now_s)
            if fault:
                self.faults.append(f"{topic}/{channel} {body.decode()} attempt {attempts}: {fault}")
            before = books.seen.get(body)
            if before is not None:
                books.redeliveries += 1
            finished = before is not None and before.finished
            books.seen[body] = Delivered(self.run, now_s, attempts, before, finished=finished)

    def settle(self, topic: str, channel: str, body: bytes, *, delay_ms: int | None) -> Settlement:
        """A FIN (no delay) or REQ is about to be sent; confirm it when it was seen to be done."""
        due_s = None if delay_ms is None else time.time() + delay_ms / 1000
        settlement = Settlement(due_s)
        with self._changed:
            self._books[topic, channel].seen[body].settlement = settlement
        return settlement

    def confirm(self, topic: str, channel: str, settled: list[tuple[bytes, Settlement]]) -> None:
        now_s = time.time()
        with self._changed:
            books = self._books[topic, channel]
            for body, settlement in settled:
                settlement.confirmed_s = now_s
                if settlement.due_s is None:
                    books.seen[body].finished = True
            self._changed.notify_all()

    # -- the reckoning ------------------------------------------------------------------------

    def outstanding(self) -> dict[tuple[str, str], list[bytes]]:
        """Per channel, what was acknowledged and cannot have been finished."""
        with self._changed:
            return {
                key: missing
                for key, books in self._books.items()
                if (missing := self._missing(books))
            }

    def history(self, topic: str, channel: str, body: bytes) -> str:
        """What is known of a message, the last delivery first; times from the last kill on."""
        zero_s = self._kills_s[-1] if self._kills_s else 0.0
        published = self._published[topic][body]
        told = []
        delivered = self._books[topic, channel].seen.get(body)
        while delivered is not None:
            settled = delivered.settlement
            told.append(
                f"run {delivered.run} attempt {delivered.attempts}"
                f" at {delivered.received_s - zero_s:+.3f}"
            )
            if settled is not None:
                due_s = settled.due_s
                told[-1] += ", FIN" if due_s is None else f", REQ until {due_s - zero_s:+.3f}"
                told[-1] += f" confirmed at {settled.confirmed_s - zero_s:+.3f}"
            delivered = delivered.before
        due = f" for {published.due_s - zero_s:+.3f}" if published.due_s else ""
        told.append(f"sent at {published.sent_s - zero_s:+.3f}{due}")
        return f"{topic}/{channel} {body.decode()}: " + "; ".join(told)

    def await_acknowledged(self, count: int, timeout_s: float) -> None:
        with self._changed:
            reached = self._changed.wait_for(
                lambda: self.acknowledged_count >= count or self.faults, timeout_s
            )
        assert reached, f"{self.acknowledged_count} of {count} acknowledged in {timeout_s} s"

    def await_nothing_outstanding(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            for books in self._books.values():
                missing = set(self._missing(books))

                def done(missing: set[bytes] = missing, books: Books = books) -> bool:
                    seen = books.seen
                    missing -= {b for b in missing if b in seen and seen[b].finished}
                    return not missing

                self._changed.wait_for(done, max(0.0, deadline_s - time.monotonic()))

    def summary(self) -> str:
        books = self._books.values()
        return (
            f"{self.acknowledged_count} acknowledged, {self.run} kills, "
            f"{sum(b.deliveries for b in books)} delivered, {self.redeliveries} of them again"
        )

    def deliveries(self, topic: str, channel: str) -> int:
        return self._books[topic, channel].deliveries

    @property
    def redeliveries(self) -> int:
        return sum(books.redeliveries for books in self._books.values())

    def _missing(self, books: Books) -> list[bytes]:
        seen = books.seen
        return [
            body
            for body, publication in self._published.get(books.topic, {}).items()
            if publication.acknowledged
            and publication.sent_s >= books.since_s
            and not (body in seen and self._may_be_finished(seen[body]))
        ]

    def _may_be_finished(self, delivered: Delivered) -> bool:
        """Whether its last delivery was finished; one that was under way when the daemon was killed
        may have been written before, and then rightly does not come again."""
        settled = delivered.settlement
        under_way = settled is not None and settled.due_s is None and delivered.run < self.run
        return delivered.finished or under_way

    def _check(self, books: Books, body: bytes, attempts: int, now_s: float) -> str:
        publication = self._published.get(books.topic, {}).get(body)
        if publication is None:
            return "was never published there"
        if publication.due_s - now_s > EARLY_S:
            return f"published with a delay, came {publication.due_s - now_s:.3f} s early"
        before = books.seen.get(body)
        if before is None or not self._checks_deliveries:
            return ""
        floor = self._floor(before)
        if attempts <= floor:
            return (
                f"was attempt {floor} before ({now_s - before.received_s:.3f} s ago, "
                f"{self.run - before.run} kills ago)"
            )
        settlement = before.settlement
        if settlement is None:
            if before.run == self.run:
                return "was still in flight"
        elif self._was_durable(before.run, settlement.confirmed_s):
            if settlement.due_s is None:
                return f"was finished {now_s - settlement.confirmed_s:.3f} s ago"
            if settlement.due_s - now_s > EARLY_S:
                return f"requeued with a delay, came {settlement.due_s - now_s:.3f} s early"
        return ""

    def _floor(self, last: Delivered | None) -> int:
        """The attempts that a next delivery must exceed: the most that cannot be forgotten."""
        while last is not None and not self._was_durable(last.run, last.received_s):
            last = last.before
        return 0 if last is None else last.attempts

    def _was_durable(self, run: int, at_s: float) -> bool:
        """Whether something done at `at_s` in that run must be known now."""
        if run == self.run:
            return at_s != NEVER_S
        return self._kills_s[run] - at_s >= SETTLED_S
