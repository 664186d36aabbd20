"""What must hold of an archive: table + quarantine + repeats = published, and values are equal.

Every message has a number of its own in its body. A message that a node has lost, because retention
or a user deleted it before it was read, may be missing, but not in silence: the pipeline must have
stopped with DataLoss, or must not have begun to read that log.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.kit.sim.pipelines.frames import Row


class Published(NamedTuple):
    number: int
    topic: str
    node: int
    log: str
    offset: int
    body: bytes
    key: str | None
    fits: bool  # it is valid JSON


class Ledger:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self.published: list[Published] = []
        self.gone: set[int] = set()  # no node has them, and they may be unread
        self.is_disturbed = False  # DataLoss may be reported
        self.tolerated: set[int] = set()  # of these, DataLoss was reported

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def lose(self, numbers: Iterable[int], *, begun: bool) -> None:
        """Nodes have lost these messages, whose log the pipeline had `begun` to read."""
        found = set(numbers)
        self.is_disturbed = True
        self.gone |= found
        if not begun:
            self.tolerated |= found

    def reported(self) -> None:
        """The pipeline has stopped with DataLoss, and goes on without what is gone."""
        self.tolerated |= self.gone

    def check(self, table: list[Row], quarantine: list[Row]) -> None:
        """What must hold at any time: nothing is there twice, or in the wrong place."""
        seen: set[int] = set()
        for where, rows in (("the table", table), ("the quarantine", quarantine)):
            for row in rows:
                number = number_in(row["body"])
                message = self.published[number]
                if number in seen:
                    self.fault(f"message {number} is there twice, in {where}")
                seen.add(number)
                if (row["topic"], row["body"]) != (message.topic, message.body):
                    self.fault(f"message {number} has other values in {where}")
                if row["offset"] != message.offset:
                    self.fault(f"message {number} has another offset in {where}")
        for row in table:
            number = number_in(row["body"])
            if not self.published[number].fits:
                self.fault(f"message {number} is in the table, and does not parse")
            elif row.get("event") != json.loads(self.published[number].body):
                self.fault(f"message {number} has another event in the table")

    def check_done(
        self, table: list[Row], quarantine: list[Row], *, until: int, dedupes: bool
    ) -> None:
        """All that was published before `until` is there: in the table, in the quarantine, or a
        repeat of what is in the table."""
        self.check(table, quarantine)
        kept = {number_in(row["body"]) for row in table}
        there = kept | {number_in(row["body"]) for row in quarantine}
        keys: dict[tuple[str, str], list[int]] = {}
        for number in sorted(kept):
            message = self.published[number]
            if message.key is not None:
                keys.setdefault((message.topic, message.key), []).append(number)
        if dedupes:
            for (topic, key), numbers in keys.items():
                if len(numbers) > 1:
                    self.fault(f"key {key} of topic {topic} is there more than once: {numbers}")
        for message in self.published[:until]:
            if message.number in there or message.number in self.tolerated:
                continue
            if dedupes and message.fits and (message.topic, str(message.key)) in keys:
                continue
            how = "lost in silence" if message.number in self.gone else "unread"
            where = f"{message.topic}/{message.offset} of node {message.node}"
            self.fault(f"{how} at 'done': message {message.number}, {where}")
            return


def number_in(body: bytes) -> int:
    text = body.removeprefix(b"not JSON ")
    return int(json.loads(text)["n"])


def body_of(number: int, key: str | None, *, fits: bool, extra: Any) -> bytes:
    value: dict[str, Any] = {"n": number}
    if key is not None:
        value["k"] = key
    if extra is not None:
        value["v"] = extra
    text = json.dumps(value).encode()
    return text if fits else b"not JSON " + text
