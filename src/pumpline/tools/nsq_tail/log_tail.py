"""Prints messages of a topic's log at one nsqd, by offset: no channel, nothing consumed.

    --from, --to        an offset, a time, the beginning or the end of the log as it is now
    --peek              ends at the end of the log; alone, it shows the last messages

Reads pages by /log/peek and, at the end of the log, asks again a little later. An nsqd that does
not answer is waited for, and so is a topic that an nsqd does not have yet; what begins then is new.
"""

import asyncio
from dataclasses import dataclass

from pumpline.cluster.log import PAGE_MESSAGES_MAX, LogMessage, LogOffsets, LogPage
from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.core.messages.spans import back_from
from pumpline.core.text.dates import parse_time
from pumpline.tools.nsq_tail.display import Display
from pumpline.tools.nsq_tail.formats import TailedMessage
from pumpline.tools.nsq_tail.options import BEGINNING, END, is_offset
from pumpline.tools.tool import ToolFailure, log

POLL_S = 0.2
RETRY_S = 1.0
PEEK_MESSAGES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRange:
    """What to print of a log."""

    start: str
    to: str
    is_peek: bool
    count: int  # of the last messages, for a peek without a start


class LogTail:
    def __init__(self, topic: str, node: ClusterNode, wanted: TailRange, display: Display) -> None:
        self._topic = topic
        self._node = node
        self._wanted = wanted
        self._display = display

    async def run(self) -> bool:
        """False if this nsqd does not have the topic, and only what is there is wanted."""
        bounds = await self._bounds("")
        while bounds is None:
            if self._wanted.is_peek or self._wanted.to:
                return False
            await asyncio.sleep(RETRY_S)
            bounds = await self._bounds("")
            if bounds is not None:  # all of it came after the start
                bounds.end = bounds.first
        to = await self._place(self._wanted.to, bounds) if self._wanted.to else None
        if self._wanted.is_peek:
            to = bounds.end if to is None else min(to, bounds.end)
        at = await self._start(bounds)
        while (to is None or at < to) and not self._display.is_full:
            page = await self._page(at)
            if page is None:
                await asyncio.sleep(RETRY_S)
                continue
            if page.first > at:
                log.warning("%d messages of %s are gone", page.first - at, self._topic)
            messages = [each for each in page.messages if to is None or each.offset < to]
            await self._display.show(self._tailed(each) for each in messages)
            if page.next == at:
                await asyncio.sleep(POLL_S)
            at = page.next
        return True

    async def _start(self, bounds: LogOffsets) -> int:
        if self._wanted.start:
            return await self._place(self._wanted.start, bounds)
        if self._wanted.is_peek:
            return max(bounds.first, back_from(bounds.gaps, bounds.end, self._wanted.count))
        return bounds.first

    async def _place(self, text: str, bounds: LogOffsets) -> int:
        """The offset that --from or --to means."""
        if text == BEGINNING:
            return bounds.first
        if text == END:
            return bounds.end
        if is_offset(text):
            return int(text)
        found = await self._bounds(str(parse_time(text)))
        if found is None or found.offset is None:
            return bounds.end
        return found.offset

    async def _bounds(self, time_ns: str) -> LogOffsets | None:
        """None if there is no such topic."""
        try:
            query = {"topic": self._topic, "time": time_ns or None}
            return await asyncio.to_thread(self._node.get_as, LogOffsets, "/log/offsets", query)
        except NodeFailure as failure:
            if failure.code == "TOPIC_NOT_FOUND":
                return None
            if failure.status == 404 and failure.code == "NOT_FOUND":
                text = "has no log to read: it is no pumpline nsqd; leave out --from, --to, --peek"
                raise ToolFailure(f"{self._node.address} {text}") from None
            raise ToolFailure(f"{self._node.address}: {failure}") from None

    async def _page(self, at: int) -> LogPage | None:
        """None if there is no answer, which may come later."""
        query = {"topic": self._topic, "from": at, "limit": PAGE_MESSAGES_MAX}
        try:
            return await asyncio.to_thread(self._node.get_as, LogPage, "/log/peek", query)
        except NodeFailure as failure:
            if failure.status == 416:  # the end of the log, or beyond it
                return LogPage(messages=[], next=at, first=at, end=at)
            if 400 <= failure.status < 500:
                raise ToolFailure(f"{self._node.address}: {failure}") from None
            log.warning("%s: %s; trying again", self._node.address, failure)
            return None

    def _tailed(self, message: LogMessage) -> TailedMessage:
        return TailedMessage(
            topic=self._topic,
            node=self._node.address,
            id=message.id,
            timestamp_ns=message.timestamp,
            attempts=message.attempts,
            body=message.raw(),
            offset=message.offset,
        )
