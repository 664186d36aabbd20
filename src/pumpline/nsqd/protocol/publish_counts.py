"""How many messages a client has published, by topic."""

from collections import Counter

LINES_MAX = 1000  # of messages, before they are counted


class PublishCounts:
    __slots__ = ("_by_topic", "_lines")

    def __init__(self) -> None:
        self._by_topic: Counter[str] = Counter()
        self._lines: list[bytes] = []  # of PUBs and MPUBs that are not counted yet

    def add(self, topic: str, count: int) -> None:
        self._by_topic[topic] += count

    def add_lines(self, lines: list[bytes]) -> None:
        """The command lines of messages."""
        self._lines += lines  # 0.1 us: a Counter takes 1.5 us for the line of one PUB
        if len(self._lines) >= LINES_MAX:
            self.by_topic()

    def by_topic(self) -> dict[str, int]:
        lines, self._lines = self._lines, []
        for line, count in Counter(lines).items():
            self._by_topic[line[line.index(b" ") + 1 : -1].decode()] += count
        return self._by_topic
