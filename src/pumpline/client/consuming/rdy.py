"""How many messages each connection may have in flight: max_in_flight shared among connections.

RDY is a ceiling in nsqd, not a credit that is used up: a connection is sent messages while it has
fewer in flight than its RDY, and a finished message makes room for the next one. So RDY is sent
only when it changes, and all the work is in deciding who gets how much.

| what connections do | shares                                                                 |
|---------------------|------------------------------------------------------------------------|
| nobody runs low     | even; if there are more than M, M of them have 1, and it goes round    |
| some run low (1 or  | an idle one keeps 1, all idle ones together a fifth of M, which then   |
| 25 % of RDY left)   | goes round; those in use have twice what they use; the rest is shared  |
|                     | by those that run low                                                  |
| backing off         | none; then room for one message, which goes round until one comes      |

(M is max_in_flight.) So what a busy connection has among idle ones grows with M, and shrinks with
nothing else. A turn is `interval_s`, also the time over which use is measured; while nothing at all
comes, turns become longer, until a round of all connections takes IDLE_ROUND_S. A share is raised
only when those that lost it have answered what they hold, so RDY never adds up to more than M, and
neither do messages in flight, but for those already under way when a RDY is lowered.

Sans-IO: connections are `Credit`s, time is an argument, and `changes` says which RDYs to send.
"""

from collections.abc import Iterable
from math import ceil, inf

from pumpline.client.settings import REDISTRIBUTE_INTERVAL_S

RDY_MAX = 2500  # nsqd's default of --max-rdy-count
PROBE_SLOTS = 5  # of so many slots one goes to idle connections while others are busy
IDLE_ROUND_S = 1.0  # for RDY to go round all connections when no message comes


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

    def is_low_with(self, in_flight: int) -> bool:
        """Only one message, or a quarter of its RDY, would be still to come."""
        return in_flight > 0 and self.rdy - in_flight <= max(1, self.rdy // 4)

    @property
    def wanted(self) -> int:
        """All it can get if it runs low. Otherwise a power of two above its use, so that small
        changes of use change nothing."""
        return self.rdy_max if self.is_hungry else min(1 << self.peak.bit_length(), self.rdy_max)


class RdyPool:
    """All connections of a consumer. After any event, ask `changes` once `due_at` has come."""

    def __init__(self, max_in_flight: int, *, interval_s: float = REDISTRIBUTE_INTERVAL_S) -> None:
        self.max_in_flight = max_in_flight
        self.interval_s = interval_s
        self.credits: list[Credit] = []
        self.due_at = inf
        self.is_waiting = False  # some share waits for messages to be answered
        self._mode = _OPEN
        self._turn = 0
        self._turn_at = -inf
        self._turn_s = interval_s  # of this turn, if nothing comes
        self._must_share = False
        self._is_uneven = False  # shares follow use, and so must be thought over again
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
        if credit.in_flight > credit.peak:
            credit.peak = credit.in_flight
        # By what it holds now, not by the peak, which may be from before its RDY was lowered.
        if credit.is_hungry or not credit.is_low_with(credit.in_flight):
            return
        credit.is_hungry = True  # also of the only connection: others may join at any time
        if self._mode == _OPEN and len(self.credits) > 1:
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
        was_waiting = self.is_waiting
        changed = self._apply(now)
        if was_waiting and not self.is_waiting and self._mode == _OPEN:
            # The turn begins anew when everyone has its share. Otherwise one that had to wait would
            # never have a whole turn: it would be chosen again and again, and no other one ever.
            self._turn_at = now
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
            return inf if has_come or is_alone else self._turn_end()
        must_rotate = len(self.credits) > self.max_in_flight
        if must_rotate or (self._is_uneven and len(self.credits) > 1):
            return self._turn_end()
        return inf

    def _turn_end(self) -> float:
        """A longer turn ends at a multiple of its length, so that all idle consumers of an event
        loop end theirs together: waking the loop costs more than a turn."""
        end = self._turn_at + self.interval_s
        if self._turn_s > self.interval_s:
            return ceil(end / self._turn_s) * self._turn_s
        return end

    def _share(self, now: float) -> None:
        """Sets every target. The end of a turn, unless it is cut short by an event."""
        is_turn = now >= self._turn_at + self.interval_s
        self._must_share = False
        if is_turn and not self.is_waiting:  # those chosen last have their turn first
            self._turn += 1
        if is_turn:
            self._turn_s = self._next_turn_s()
        if self._mode == _BLOCKED or self.max_in_flight == 0:
            self._give((), ())
        elif self._mode == _PROBING:
            self._share_probe(now)
        else:
            if is_turn:
                self._end_turn(now)
            self._share_open()
        if is_turn:
            self._turn_at = now

    def _next_turn_s(self) -> float:
        """Twice the last one if nothing has come, as long as a round does not take too long."""
        if any(credit.peak or credit.in_flight for credit in self.credits):
            return self.interval_s
        slots = self.max_in_flight if self._mode == _OPEN else 1
        turns_per_round = -(-len(self.credits) // max(1, slots))
        longest_s = max(self.interval_s, IDLE_ROUND_S / max(1, turns_per_round))
        return min(2 * self._turn_s, longest_s)

    def _end_turn(self, now: float) -> None:
        for credit in self.credits:
            if credit.rdy and credit.granted_at <= self._turn_at:  # it had a whole turn
                credit.served_at = now
                credit.is_hungry = credit.is_low_with(credit.peak)
            credit.peak = credit.in_flight

    def _share_open(self) -> None:
        """Idle connections first, up to their fifth; then those in use, then the hungry."""
        fair = self.fair_share
        if fair and all(not c.is_hungry and c.wanted <= fair for c in self.credits):
            self._is_uneven = False
            self._give(self.credits, fill(self.max_in_flight, [c.rdy_max for c in self.credits]))
            return
        self._is_uneven = True
        by_age = sorted(self.credits, key=lambda credit: credit.served_at)
        used = [credit for credit in by_age if credit.is_hungry or credit.peak]
        idle = [credit for credit in by_age if not (credit.is_hungry or credit.peak)]
        slots = self.max_in_flight
        probes = slots
        if used:
            # One fifth of the slots; of a few slots, all of them for one fifth of the turns.
            probes = slots * (self._turn + 1) // PROBE_SLOTS - slots * self._turn // PROBE_SLOTS
        probes = min(probes, len(idle))
        eaters = used[: slots - probes]
        shares = fill(slots - probes, [credit.wanted for credit in eaters])
        left = slots - probes - sum(shares)
        probes += min(left, len(idle) - probes)  # nobody else can use it
        chosen = [*idle[:probes], *eaters]
        shares = [1] * probes + shares
        if left := slots - sum(shares):
            rooms = [c.rdy_max - share for c, share in zip(chosen, shares, strict=True)]
            more = fill(left, rooms)
            shares = [share + extra for share, extra in zip(shares, more, strict=True)]
        self._give(chosen, shares)

    def _share_probe(self, now: float) -> None:
        probed = self._probed
        if probed is not None and probed.in_flight >= probed.rdy > 0:
            return  # its message has come: wait for the outcome
        if probed is None or now >= self._turn_at + self.interval_s:
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
