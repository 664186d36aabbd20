"""How many messages a client has published, by topic."""

from collections import Counter
from collections.abc import Iterable


class PublishCounts:
    __slots__ = ("_by_line", "_by_topic")

    def __init__(self) -> None:
        self._by_topic: Counter[str] = Counter()
        self._by_line: Counter[bytes] = Counter()  # of PUBs and MPUBs: counted without their names

    def add(self, topic: str, count: int) -> None:
        self._by_topic[topic] += count

    def add_lines(self, lines: Iterable[bytes]) -> None:
        """The command lines of messages."""
        self._by_line.update(lines)

    def by_topic(self) -> dict[str, int]:
        for line, count in self._by_line.items():
            self._by_topic[line[line.index(b" ") + 1 : -1].decode()] += count
        self._by_line.clear()
        return self._by_topic
