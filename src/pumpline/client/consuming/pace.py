"""How many messages a consumer asks for when its handlers are slow: as many as it begins in time.

A message that waits too long for a handler is given back, and nsqd counts that delivery as an
attempt. Asking for as many again would only repeat this. So from the first such message on there is
a limit below max_in_flight: the messages that are in hand at that moment. The limit at most doubles
whenever that many messages were answered, up to what the pace of these answers handles in half of
the time that a message may wait. It ends when it reaches max_in_flight.

Sans-IO: time is an argument.
"""

from math import inf


class PaceLimit:
    def __init__(self) -> None:
        self.limit: int | None = None  # None: there is none
        self._wait_max_s = 0.0
        self._since = 0.0
        self._answered = 0

    def slow_down(self, in_hand: int, *, wait_max_s: float, now: float) -> None:
        """Messages have waited for wait_max_s and are given back; so many others are in hand."""
        self.limit = max(1, in_hand)
        self._wait_max_s = wait_max_s
        # The next answer may come at once, from a handler that began long ago. It must not look
        # like a fast handler, so the measured time begins when the messages came.
        self._since = now - wait_max_s
        self._answered = 0

    def answered(self, count: int, now: float, *, limit_max: int) -> bool:
        """Handlers have answered so many messages; returns whether the limit has changed."""
        if self.limit is None:
            return False
        self._answered += count
        if self._answered < self.limit:
            return False
        before, elapsed_s = self.limit, now - self._since
        in_time = inf
        if elapsed_s > 0:
            in_time = self._answered / elapsed_s * self._wait_max_s / 2
        limit = max(before, int(min(in_time, 2 * before)))
        self._since = now
        self._answered = 0
        self.limit = None if limit >= limit_max else limit
        return self.limit != before
