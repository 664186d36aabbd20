"""What one consumer has in flight, and until when.

There is no heap of deadlines: a lower bound of them is only ever too early, and a scan (bounded by
the consumer's RDY) happens when it passes. Knows no clock: callers pass the time, in nanoseconds of
one steady clock.
"""

from pumpline.core.messages.kernels import touches

NEVER_NS = 1 << 63


class Leases:
    """Offset -> deadline, with a lower bound of the deadlines."""

    __slots__ = ("_caps", "deadlines", "floor_ns")

    def __init__(self) -> None:
        self.deadlines: dict[int, int] = {}
        self.floor_ns = NEVER_NS
        self._caps: dict[int, int] = {}  # of touched messages only: latest deadline allowed

    def __len__(self) -> int:
        return len(self.deadlines)

    def add(self, start: int, end: int, deadline_ns: int) -> None:
        if end - start == 1:
            self.deadlines[start] = deadline_ns
        else:
            self.deadlines.update(dict.fromkeys(range(start, end), deadline_ns))
        if self._caps:  # a message finished in bulk leaves its cap behind until now
            for offset in range(start, end):
                self._caps.pop(offset, None)
        if deadline_ns < self.floor_ns:
            self.floor_ns = deadline_ns

    def add_each(self, offsets: list[int], deadline_ns: int) -> None:
        self.deadlines.update(dict.fromkeys(offsets, deadline_ns))
        if self._caps:
            for offset in offsets:
                self._caps.pop(offset, None)
        if deadline_ns < self.floor_ns:
            self.floor_ns = deadline_ns

    def touch(self, offset: int, *, now_ns: int, timeout_ns: int, timeout_max_ns: int) -> None:
        """Move the deadline, never past first delivery + `timeout_max_ns`."""
        cap_ns = self._caps.get(offset)
        if cap_ns is None:
            cap_ns = self.deadlines[offset] - timeout_ns + timeout_max_ns
            self._caps[offset] = cap_ns
        deadline_ns = min(now_ns + timeout_ns, cap_ns)
        self.deadlines[offset] = deadline_ns
        if deadline_ns < self.floor_ns:  # a cap shorter than the timeout
            self.floor_ns = deadline_ns

    def touch_run(
        self,
        buf: bytearray,
        pos: int,
        end: int,
        base_id: int,
        *,
        now_ns: int,
        timeout_ns: int,
        timeout_max_ns: int,
    ) -> int:
        """Carry out the run of `TOUCH` commands in buf[pos:end], up to the first that is not one of
        a leased message; returns the position after the run."""
        after, lowest_ns = touches(
            buf,
            pos,
            end,
            base_id,
            self.deadlines,
            self._caps,
            now_ns + timeout_ns,
            timeout_max_ns - timeout_ns,
        )
        if lowest_ns < self.floor_ns:  # a cap shorter than the timeout
            self.floor_ns = lowest_ns
        return after

    def longest(self, *, timeout_ns: int, timeout_max_ns: int) -> tuple[int, int] | None:
        """What is in flight the longest: its offset, and when it was delivered. `deadlines` are in
        the order of deliveries, as a touch leaves a message in its place."""
        offset = next(iter(self.deadlines), None)
        if offset is None:
            return None
        cap_ns = self._caps.get(offset)
        if cap_ns is not None:
            return offset, cap_ns - timeout_max_ns
        return offset, self.deadlines[offset] - timeout_ns

    def remove(self, offset: int) -> None:
        del self.deadlines[offset]
        if self._caps:
            self._caps.pop(offset, None)

    def expire(self, now_ns: int) -> list[int]:
        """Remove and return what is overdue; make the bound exact again."""
        expired = [offset for offset, due_ns in self.deadlines.items() if due_ns <= now_ns]
        for offset in expired:
            self.remove(offset)
        if self._caps:
            self._caps = {o: cap for o, cap in self._caps.items() if o in self.deadlines}
        self.floor_ns = min(self.deadlines.values(), default=NEVER_NS)
        return expired

    def clear(self) -> list[int]:
        """Give everything up, oldest delivery first."""
        offsets = list(self.deadlines)
        self.deadlines.clear()
        self._caps.clear()
        self.floor_ns = NEVER_NS
        return offsets
