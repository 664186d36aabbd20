"""The nsq_to_file command: writers of topics, started, told of signals, and stopped."""

import asyncio
import os
import socket
import sys
from collections.abc import Coroutine, Sequence
from datetime import datetime

from pumpline.core.text.durations import NS_PER_S
from pumpline.core.text.flags import parse_log_level
from pumpline.tools.daemon import log_to_stderr
from pumpline.tools.log_lines import LineFormatter
from pumpline.tools.nsq_to_file.encoding import Encoding, GzipEncoding, ZstdEncoding
from pumpline.tools.nsq_to_file.filenames import Filenames, Host
from pumpline.tools.nsq_to_file.options import ToFileOptions
from pumpline.tools.nsq_to_file.topic_files import TopicFiles
from pumpline.tools.nsq_to_file.topic_writer import TopicWriter
from pumpline.tools.nsq_to_file.topics import TopicPattern, log
from pumpline.tools.tool import Signals, Tool, ToolFailure

EXAMPLES = """
nsq_to_file --topic=orders --output-dir=/var/log/orders --lookupd-http-address=127.0.0.1:4161
nsq_to_file --topic=orders --output-dir=archive --gzip --rotate-interval=1h \\
    --nsqd-tcp-address=127.0.0.1:4150
nsq_to_file --topic-pattern='^orders_' --work-dir=incoming --output-dir=archive --zstd \\
    --rotate-size=100000000 --lookupd-http-address=127.0.0.1:4161
"""


class TopicWriters:
    """The writers of all topics, each in a task of its own. One that fails stops the tool."""

    def __init__(self, options: ToFileOptions, stop: asyncio.Event) -> None:
        self.failure: OSError | ToolFailure | None = None
        self._options = options
        self._stop = stop
        self._writers: dict[str, TopicWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def topics(self) -> list[str]:
        return list(self._writers)

    def start(self, topic: str, *, may_create: bool = True) -> None:
        files = new_topic_files(topic, self._options)
        writer = TopicWriter(topic, self._options, files, may_create=may_create)
        self._writers[topic] = writer
        self._spawn(self._write(writer))

    def stop(self, topic: str) -> None:
        self._writers.pop(topic).stop()

    def hang_up(self) -> None:
        for writer in self._writers.values():
            self._spawn(self._reopen(writer))

    async def close(self) -> None:
        for topic in self.topics:
            self.stop(topic)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, writer: TopicWriter) -> None:
        try:
            await writer.run()
        except (OSError, ToolFailure) as failure:
            self._fail(failure)

    async def _reopen(self, writer: TopicWriter) -> None:
        try:
            await writer.reopen()
        except OSError as failure:
            self._fail(failure)

    def _fail(self, failure: OSError | ToolFailure) -> None:
        self.failure = self.failure or failure
        self._stop.set()


async def work(options: ToFileOptions, signals: Signals) -> None:
    writers = TopicWriters(options, signals.stop)
    signals.on_hangup = writers.hang_up
    pattern = TopicPattern(options)
    named = [topic for topic in options.topic if pattern.matches(topic)]
    for topic in options.topic:
        if topic in named:
            writers.start(topic)
        else:
            text = "skipping topic %s (doesn't match pattern %s)"
            log.warning(text, topic, options.topic_pattern)
    refreshing = None
    if options.topic_pattern and options.lookupd_http_address:
        refreshing = asyncio.create_task(_refresh(options, writers, pattern, frozenset(named)))
    await signals.stop.wait()
    if refreshing is not None:
        refreshing.cancel()
        await asyncio.gather(refreshing, return_exceptions=True)
    await writers.close()
    if isinstance(writers.failure, OSError):
        raise ToolFailure(f"ERROR: {writers.failure}")
    if writers.failure is not None:
        raise writers.failure


async def _refresh(
    options: ToFileOptions, writers: TopicWriters, pattern: TopicPattern, named: frozenset[str]
) -> None:
    """Keep to the topics of the pattern."""
    while True:
        topics = await pattern.found(writers.topics) | named
        for topic in topics - set(writers.topics):
            log.info("found topic %s", topic)
            writers.start(topic, may_create=False)
        for topic in set(writers.topics) - topics:
            log.info("topic %s is gone", topic)
            writers.stop(topic)
        await asyncio.sleep(options.topic_refresh_ns / NS_PER_S)


def new_topic_files(topic: str, options: ToFileOptions) -> TopicFiles:
    encoding = new_encoding(options)
    names = Filenames(
        topic,
        format=options.filename_format,
        datetime_format=options.datetime_format,
        host_identifier=options.host_identifier,
        host=Host(name=socket.gethostname(), process_id=os.getpid()),
        has_revisions=options.has_revisions,
        suffix=encoding.suffix,
    )
    return TopicFiles(topic, options, names, encoding, now=lambda: datetime.now().astimezone())


def new_encoding(options: ToFileOptions) -> Encoding:
    if options.gzip:
        return GzipEncoding(framing=options.framing, level=options.gzip_level)
    if options.zstd:
        return ZstdEncoding(framing=options.framing, level=options.zstd_level)
    return Encoding(framing=options.framing)


NSQ_TO_FILE = Tool(
    options=ToFileOptions,
    examples=EXAMPLES,
    work=work,
    configure_log=lambda options: log_to_stderr(
        LineFormatter(options.log_prefix), parse_log_level(options.log_level)
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    return NSQ_TO_FILE.main(argv)


if __name__ == "__main__":
    sys.exit(main())
