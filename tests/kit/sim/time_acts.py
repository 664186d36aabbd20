"""Verbs that look for a time in a log, while messages come: `/log/offsets?time=` and
`/channel/seek?time=`. The offset must be that of the first message published then or later, to the
message, wherever publish times are in order (docs/reading.md)."""

from itertools import pairwise

from tests.kit.sim.acts import Acts
from tests.kit.sim.machine import Reply

PEEK_MAX = 1000


class TimeActs(Acts):
    def do_find_time(self, topic: str, client: int, count: int, place: float, by_ns: int) -> None:
        """Publish, and look for a time before the tick of that, or in between."""
        times = self._times(topic)
        if times is None:
            return
        time_ns = self._time(times, place, by_ns)
        if count:
            self.do_publish(client, topic, count, False, 0, 0)
        reply = self.request("GET", f"/log/offsets?topic={topic}&time={time_ns}")
        if reply.is_ok:
            self._check_time(topic, times, time_ns, reply)

    def do_seek_time(
        self, topic: str, channel: str, client: int, count: int, place: float, by_ns: int
    ) -> None:
        book = self.ledger.topics.get(topic)
        since = self.ledger.now
        there, times = self.peek(topic), self._times(topic)
        if book is None or channel not in book.channels or not there or times is None:
            return
        time_ns = self._time(times, place, by_ns)
        if count:
            self.do_publish(client, topic, count, False, 0, 0)
        query = f"topic={topic}&channel={channel.replace('#', '%23')}&time={time_ns}"
        self.ledger.seeking(topic, channel)
        reply = self.request("POST", f"/channel/seek?{query}")
        if channel not in book.channels:
            return
        if not reply.was_read or reply.status in (400, 404, 416):
            book.channels[channel].moved = None
            return
        offset = reply.json()["offset"] if reply.is_ok else 0
        skipped = {body for at, body in there.items() if at < offset}
        kept = set(there.values()) - skipped
        # What came meanwhile may lie before the offset or after it.
        certain = reply.is_ok and offset <= max(there)
        self.ledger.sought(topic, channel, kept, skipped, since, certain=certain)
        if reply.is_ok:
            found = self.request("GET", f"/log/offsets?topic={topic}&time={time_ns}")
            if found.is_ok:
                self._check_time(topic, times, time_ns, found, offset)

    def _times(self, topic: str) -> dict[int, int] | None:
        """Publish times by offset, as the log has them."""
        reply = self.request("GET", f"/log/peek?topic={topic}&limit={PEEK_MAX}")
        if not reply.is_ok:
            return None
        return {each["offset"]: each["timestamp"] for each in reply.json()["messages"]}

    def _time(self, times: dict[int, int], place: float, by_ns: int) -> int:
        """That of a message, or a little before or after it; now if there is none."""
        if not times:
            return self.machine.clock.wall_ns()
        return list(times.values())[int(place * len(times))] + by_ns

    def _check_time(
        self,
        topic: str,
        times: dict[int, int],
        time_ns: int,
        reply: Reply,
        found: int | None = None,
    ) -> None:
        """`times` are those of before the request."""
        fields = reply.json()
        found = fields["offset"] if found is None else found
        first, ordered_from = fields["first"], fields["ordered_from"]
        ordered = [(at, ns) for at, ns in times.items() if at >= max(first, ordered_from)]
        for (_, before_ns), (at, ns) in pairwise(ordered):
            if ns < before_ns:
                self.ledger.fault(f"{topic}: offset {at} is older than the one before it")
        exact = next((at for at, ns in ordered if ns >= time_ns), None)
        # Before `ordered_from` there may be others: nsqd looks there if this is the first.
        is_all = ordered_from <= first
        if exact is None:
            if is_all and times and len(times) < PEEK_MAX and found <= max(times):
                self.ledger.fault(f"{topic}: {found} is no offset of {time_ns} or later")
        elif not self._leads_to(found, exact, times) and (is_all or exact > ordered[0][0]):
            self.ledger.fault(f"{topic}: {found} is the offset of {time_ns}, instead of {exact}")

    def _leads_to(self, found: int, exact: int, times: dict[int, int]) -> bool:
        """Whether `exact` is the first message from `found` on: damage may lie before it."""
        return found <= exact and not any(found <= at < exact for at in times)
