"""One topic of nsq_to_file: a consumer, the messages not safe on the disk yet, and the files.

Uncompressed records are written when messages come, so that whoever follows the file sees them.
Compressed ones are written when they are synced, as one member. A sync writes, fsyncs, then
finishes. Messages whose connection was lost meanwhile will be delivered again: they are taken out
of the file before the fsync. Messages are touched while they wait for a sync.

| a sync happens at                                                                |
|----------------------------------------------------------------------------------|
| every --sync-interval, a new file, SIGHUP, the end                               |
| --max-in-flight messages, or 85 % of a connection's RDY: no more would come      |
| four fifths of nsqd's --max-msg-timeout, since touching does not help beyond it  |
"""

import asyncio
import logging

from pumpline.client import Batch, Consumer, Message
from pumpline.core.text.durations import NS_PER_S
from pumpline.tools.nsq_to_file.options import ToFileOptions
from pumpline.tools.nsq_to_file.topic_files import TopicFiles

TOUCH_PART = 0.8  # of the time that touching can give

log = logging.getLogger("pumpline.tools.nsq_to_file")


class TopicWriter:
    def __init__(
        self, topic: str, options: ToFileOptions, files: TopicFiles, *, may_create: bool = True
    ) -> None:
        """`may_create`: if the topic is deleted while it is written, it is to come back."""
        self.topic = topic
        # A message that was delivered often is no worse than others here, so none is given up.
        self.consumer: Consumer = options.new_consumer(
            topic,
            options.channel,
            auto_touch=True,
            default_attempts_max=0,
            reconnect_if_named=not may_create,
        )
        self._label = f"[{topic}/{options.channel}]"
        self._files = files
        self._encoding = files.encoding
        self._pending: list[Message] = []
        self._pending_max = options.max_in_flight
        self._sync_interval_s = options.sync_interval_ns / NS_PER_S
        self._skips_empty = options.skip_empty_files
        self._rotates_by_size = options.rotate_size > 0
        self._is_busy = asyncio.Lock()  # one change of the file at a time
        self._sync_by = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._is_stopped = False

    async def run(self) -> None:
        """Write until `stop`."""
        await asyncio.to_thread(self._files.mend)
        if self._is_stopped:
            return
        self.consumer.start()
        ticker = asyncio.create_task(self._tick())
        wait_s = 0.0  # after a failure: messages in hand will be delivered again
        try:
            async for batch in self.consumer.batches(self._pending_max):
                async with self._is_busy:
                    await self._take(batch)
                if ticker.done():
                    break
            async with self._is_busy:
                await self._sync()
                await asyncio.to_thread(self._files.close)
            wait_s = self.consumer.settings.stop_timeout_s
        finally:
            ticker.cancel()
            done = await asyncio.gather(ticker, return_exceptions=True)
            self._files.abandon()
            if self._deadline is not None:
                self._deadline.cancel()
            await self.consumer.stop(timeout_s=wait_s)
        if isinstance(done[0], OSError):
            raise done[0]

    def stop(self) -> None:
        """Take no more messages; `run` syncs those at hand, and ends."""
        self._is_stopped = True
        self.consumer.stop_soon()

    async def reopen(self) -> None:
        """SIGHUP: complete the open file; the next message opens another."""
        async with self._is_busy:
            await self._sync()
            await asyncio.to_thread(self._files.close)

    async def _tick(self) -> None:
        """Syncs every interval, and when messages cannot wait longer."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._sync_interval_s):
                        await self._sync_by.wait()
                except TimeoutError:
                    pass
                async with self._is_busy:
                    await self._sync()
                    await self._rotate_idle()
        except OSError:
            self.consumer.stop_soon()  # `run` ends, and raises it
            raise

    async def _rotate_idle(self) -> None:
        """A file that is over is completed without waiting for a message."""
        if self._files.file is not None and self._files.must_rotate():
            await asyncio.to_thread(self._files.close)
            if not self._skips_empty:
                await asyncio.to_thread(self._files.open)

    async def _take(self, batch: Batch) -> None:
        if self._files.file is None or self._files.must_rotate():
            await self._next_file()
        if self._rotates_by_size:
            await self._take_by_size(batch)
        else:
            self._append(batch)
        if len(self._pending) >= self._pending_max or self.consumer.is_starved:
            await self._sync()

    async def _take_by_size(self, batch: Batch) -> None:
        part = Batch()
        for message in batch:
            if self._files.is_full():
                self._append(part)
                part = Batch()
                await self._next_file()
            self._files.count_raw(self._encoding.record_bytes(message.body))
            part.append(message)
        self._append(part)

    async def _next_file(self) -> None:
        await self._sync()
        await asyncio.to_thread(self._files.close)
        await asyncio.to_thread(self._files.open)

    def _append(self, batch: Batch) -> None:
        if not batch:
            return
        if not self._pending:
            self._sync_before(batch[0].ends_at)
        self._pending += batch
        if not self._encoding.is_compressed:
            assert self._files.file is not None
            self._files.file.write(self._encoding.records([each.body for each in batch]))

    async def _sync(self) -> None:
        """Bring what is pending to the disk, then finish it."""
        self._sync_by.clear()
        if self._deadline is not None:
            self._deadline.cancel()
        if not self._pending:
            return
        log.info("%s syncing %d records to disk", self._label, len(self._pending))
        living = [message for message in self._pending if not message.is_over]
        await asyncio.to_thread(self._write, living)
        self._pending.clear()
        for message in living:
            message.finish()

    def _write(self, living: list[Message]) -> None:
        file = self._files.file
        assert file is not None
        has_gone = len(living) < len(self._pending)
        if self._encoding.is_compressed or (has_gone and file.rewind()):
            file.write(self._encoding.encode([each.body for each in living]) if living else b"")
        file.sync()

    def _sync_before(self, ends_at: float) -> None:
        """nsqd takes these messages back at `ends_at`, however often they are touched."""
        loop = asyncio.get_running_loop()
        wait_s = TOUCH_PART * (ends_at - loop.time())
        self._deadline = loop.call_later(wait_s, self._sync_by.set)
