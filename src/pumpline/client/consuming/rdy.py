"""How many messages each connection may have in flight: max_in_flight shared among connections.

RDY is a ceiling in nsqd, not a credit that is used up: a connection is sent messages while it has
fewer in flight than its RDY, and a finished message makes room for the next one. So RDY is sent
only when it changes, and all the work is in deciding who gets how much.

| connections      | shares                                                                    |
|------------------|---------------------------------------------------------------------------|
| at most M        | even, until one runs low (1 or 25 % of its RDY left): it is refilled with |
|                  | what the others do not use, and gives it back as soon as they want it     |
| more than M      | busy ones keep four fifths of M, and the rest goes round the quiet ones,  |
|                  | a turn each; with nobody busy all of it goes round                        |
| while backing off| none; then room for one message, which goes round until one comes         |

(M is max_in_flight.) A turn is `interval_s`, also the time over which use is measured. A share is
raised only when those that lost it have answered what they hold, so RDY never adds up to more than
M, and neither do messages in flight, but for those already under way when a RDY is lowered.

Sans-IO: connections are `Credit`s, time is an argument, and `changes` says which RDYs to send.
"""

from collections.abc import Iterable
from math import inf

INTERVAL_S = 0.05
RDY_MAX = 2500  # nsqd's default of --max-rdy-count
PROBE_SLOTS = 5  # of so many slots one goes to quiet connections while others are busy

_OPEN, _PROBING, _BLOCKED = range(3)


class Credit:
    """One connection's share: its RDY in force, and what it has in flight."""

    __slots__ = (
        "granted_at",
        "in_flight",
        "is_hungry",
        "peak",
        "rdy",
        "rdy_max",
        "served_at",
        "target",
    )

    def __init__(self, rdy_max: int) -> None:
        self.rdy = 0
        self.rdy_max = rdy_max
        self.in_flight = 0
        self.target = 0  # what rdy becomes when there is room for it
        self.peak = 0  # most in flight since the last turn
        self.is_hungry = False
        self.served_at = -inf  # the end of its last turn
        self.granted_at = -inf  # when its RDY last rose from 0

    def runs_low(self) -> bool:
        """Only one message, or a quarter of its RDY, is still to come."""
        return self.peak > 0 and self.rdy - self.peak <= max(1, self.rdy // 4)


class RdyPool:
    """All connections of a consumer. After any event, ask `changes` once `due_at` has come."""

    def __init__(self, max_in_flight: int, *, interval_s: float = INTERVAL_S) -> None:
        self.max_in_flight = max_in_flight
        self.interval_s = interval_s
        self.credits: list[Credit] = []
        self.due_at = inf
        self.is_waiting = False  # some share waits for messages to be answered
        self._mode = _OPEN
        self._turn = 0
        self._turn_at = -inf
        self._must_share = False
        self._probed: Credit | None = None

    @property
    def rdy(self) -> int:
        return sum(credit.rdy for credit in self.credits)

    @property
    def in_flight(self) -> int:
        return sum(credit.in_flight for credit in self.credits)

    @property
    def fair_share(self) -> int:
        return self.max_in_flight // len(self.credits) if self.credits else self.max_in_flight

    def add(self, credit: Credit, now: float) -> None:
        self.credits.append(credit)
        self._share_at(now)

    def remove(self, credit: Credit, now: float) -> None:
        """The connection is lost: what it had in flight will time out at nsqd."""
        self.credits.remove(credit)
        if self._probed is credit:
            self._probed = None
        self._share_at(now)

    def set_max_in_flight(self, max_in_flight: int, now: float) -> None:
        self.max_in_flight = max_in_flight
        self._share_at(now)

    def block(self, now: float) -> None:
        """No messages until `probe` or `open`."""
        self._set_mode(_BLOCKED, now)

    def probe(self, now: float) -> None:
        """Room for one message, on one connection at a time."""
        self._probed = None
        self._set_mode(_PROBING, now)

    def open(self, now: float) -> None:
        self._set_mode(_OPEN, now)

    def received(self, credit: Credit, count: int, now: float) -> None:
        credit.in_flight += count
        if credit.in_flight <= credit.peak:
            return
        credit.peak = credit.in_flight
        if self._mode != _OPEN or len(self.credits) == 1 or not credit.runs_low():
            return
        if not credit.is_hungry:
            credit.is_hungry = True
            if credit.rdy < self.fair_share:  # it had lent what it now needs
                self._share_at(now)
        self.due_at = min(self.due_at, self._turn_at + self.interval_s)

    def answered(self, credit: Credit, count: int, now: float) -> None:
        """Finished, requeued, or given up by nsqd, which makes room."""
        credit.in_flight -= count
        if self._mode == _PROBING:  # its RDY made room for one beside those just answered
            self._share_at(now)
        elif self.is_waiting:
            self.due_at = now

    def changes(self, now: float) -> list[Credit]:
        """The connections whose RDY has changed: send each its `rdy`."""
        if now < self.due_at:
            return []
        if self._must_share or now >= self._turn_at + self.interval_s:
            self._share(now)
        changed = self._apply(now)
        self.due_at = self._next_turn(now)
        return changed

    def _set_mode(self, mode: int, now: float) -> None:
        self._mode = mode
        self._share_at(now)

    def _share_at(self, now: float) -> None:
        self._must_share = True
        self.due_at = now

    def _next_turn(self, now: float) -> float:
        """When shares should be thought over again, if nothing is said before."""
        if not self.credits or self._mode == _BLOCKED or self.max_in_flight == 0:
            return inf
        if self.is_waiting and self.in_flight >= self.max_in_flight:
            return inf  # until something is answered
        if self._mode == _PROBING:
            probed = self._probed
            has_come = probed is not None and probed.in_flight >= probed.rdy > 0
            is_alone = len(self.credits) == 1 and not self.is_waiting
            return inf if has_come or is_alone else self._turn_at + self.interval_s
        must_rotate = len(self.credits) > self.max_in_flight
        is_uneven = any(credit.is_hungry for credit in self.credits)
        if must_rotate or (is_uneven and len(self.credits) > 1):
            return self._turn_at + self.interval_s
        return inf

    def _share(self, now: float) -> None:
        """Sets every target. The end of a turn, unless it is cut short by an event."""
        is_turn = now >= self._turn_at + self.interval_s
        self._must_share = False
        if is_turn and not self.is_waiting:  # those chosen last have their turn first
            self._turn += 1
        if self._mode == _BLOCKED or self.max_in_flight == 0:
            self._give((), ())
        elif self._mode == _PROBING:
            self._share_probe(now)
        else:
            if is_turn:
                self._end_turn(now)
            if len(self.credits) <= self.max_in_flight:
                self._share_all()
            else:
                self._share_slots()
        if is_turn:
            self._turn_at = now

    def _end_turn(self, now: float) -> None:
        for credit in self.credits:
            if credit.rdy and credit.granted_at <= self._turn_at:  # it had a whole turn
                credit.served_at = now
                credit.is_hungry = credit.runs_low()
            credit.peak = credit.in_flight

    def _share_all(self) -> None:
        """Everyone has at least 1, and the hungry have what the others do not use."""
        if any(credit.is_hungry for credit in self.credits):
            wanted = [
                credit.rdy_max
                if credit.is_hungry
                # A power of two above its use, so that small changes of use change nothing.
                else min(1 << credit.peak.bit_length(), credit.rdy_max)
                for credit in self.credits
            ]
            shares = fill(self.max_in_flight, wanted)
            left = self.max_in_flight - sum(shares)
        else:
            shares = [0] * len(self.credits)
            left = self.max_in_flight
        if left:  # more than the hungry can take, or nobody is
            rooms = [c.rdy_max - share for c, share in zip(self.credits, shares, strict=True)]
            more = fill(left, rooms)
            shares = [share + extra for share, extra in zip(shares, more, strict=True)]
        self._give(self.credits, shares)

    def _share_slots(self) -> None:
        """Slots for fewer connections than there are: those served longest ago come first."""
        by_age = sorted(self.credits, key=lambda credit: credit.served_at)
        hungry = [credit for credit in by_age if credit.is_hungry]
        quiet = [credit for credit in by_age if not credit.is_hungry]
        slots = self.max_in_flight
        probes = slots
        if hungry:
            # One fifth of the slots; of a few slots, all of them for one fifth of the turns.
            probes = slots * (self._turn + 1) // PROBE_SLOTS - slots * self._turn // PROBE_SLOTS
        chosen = quiet[:probes]
        left = slots - len(chosen)
        eaters = hungry[:left]
        shares = fill(left, [credit.rdy_max for credit in eaters])
        self._give([*chosen, *eaters], [1] * len(chosen) + shares)

    def _share_probe(self, now: float) -> None:
        probed = self._probed
        if probed is not None and probed.in_flight >= probed.rdy > 0:
            return  # its message has come: wait for the outcome
        if probed is None or now >= probed.granted_at + self.interval_s:
            if probed is not None:
                probed.served_at = now
            probed = min(self.credits, key=lambda credit: credit.served_at, default=None)
            self._probed = probed
        if probed is None:
            self._give((), ())
        else:
            # One more than it still has in flight from before: RDY counts those as well.
            share = min(probed.in_flight + 1, probed.rdy_max, self.max_in_flight)
            self._give([probed], [share])

    def _give(self, chosen: Iterable[Credit], shares: Iterable[int]) -> None:
        for credit in self.credits:
            credit.target = 0
        for credit, share in zip(chosen, shares, strict=True):
            credit.target = share

    def _apply(self, now: float) -> list[Credit]:
        """Lowers at once, and raises as far as there is room."""
        changed = []
        taken = 0
        for credit in self.credits:
            if credit.rdy > credit.target:
                credit.rdy = credit.target
                changed.append(credit)
            taken += max(credit.rdy, credit.in_flight)
        room = max(0, self.max_in_flight - taken)
        self.is_waiting = False
        for credit in self.credits:
            if credit.rdy == credit.target:
                continue
            held = max(credit.rdy, credit.in_flight)
            rdy = min(credit.target, held + room)
            room -= max(0, rdy - held)
            if rdy > credit.rdy:
                if credit.rdy == 0:
                    credit.granted_at = now
                credit.rdy = rdy
                changed.append(credit)
            self.is_waiting |= credit.rdy < credit.target
        return changed


def fill(total: int, ceilings: list[int]) -> list[int]:
    """Share `total` as evenly as the ceilings allow; the rest is not given to anybody."""
    shares = [0] * len(ceilings)
    left = len(ceilings)
    for index in sorted(range(left), key=ceilings.__getitem__):
        shares[index] = min(ceilings[index], total // left)
        total -= shares[index]
        left -= 1
    return shares
