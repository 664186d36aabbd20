"""The to_nsq command: reads stdin and publishes it, at a limited rate if one is given."""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from pumpline.cluster.options import ClusterOptions
from pumpline.tools.go_nsq_options import client_settings
from pumpline.tools.sources import user_agent
from pumpline.tools.to_nsq.lines import MessageTooLong, read_messages
from pumpline.tools.to_nsq.options import FromStdinOptions
from pumpline.tools.to_nsq.publishing import ProducerSink, Sink, TokenSink
from pumpline.tools.tool import Signals, Tool, ToolFailure, log

PROGRESS_S = 0.2
RATE_STEPS = 20  # groups of messages a second, with a rate

EXAMPLES = """
printf 'one\\ntwo\\n' | to_nsq --topic=orders --nsqd-tcp-address=127.0.0.1:4150
tail -F /var/log/app.log | to_nsq --topic=logs --rate=1000 --nsqd-tcp-address=127.0.0.1:4150
to_nsq --topic=orders --token=import-2026-11 --nsqd-http-address=127.0.0.1:4151 < orders.jsonl
"""


class ProgressLine:
    """Messages, bytes and rate, on a terminal; nothing elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream if stream.isatty() else None
        self._since_s = time.monotonic()
        self._shown_s = 0.0
        self._messages = 0
        self._bytes = 0

    def add(self, messages: list[bytes]) -> None:
        if self._stream is None:
            return
        self._messages += len(messages)
        self._bytes += sum(map(len, messages))
        if time.monotonic() - self._shown_s > PROGRESS_S:
            self.show()

    def show(self, end: str = "") -> None:
        if self._stream is None:
            return
        now_s = time.monotonic()
        rate = self._messages / max(now_s - self._since_s, 1e-9)
        text = f"{self._messages:,} messages, {self._bytes / 1e6:,.1f} MB, {rate:,.0f}/s"
        self._stream.write(f"\r{text:<60}{end}")
        self._stream.flush()
        self._shown_s = now_s


class RateLimit:
    """Lets messages through in groups, so that there are never more than `rate` in a second."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._group = max(1, rate // RATE_STEPS)
        self._sent = 0
        self._since_s = time.monotonic()

    def groups(self, messages: list[bytes]) -> list[list[bytes]]:
        if self._rate <= 0:
            return [messages]
        return [messages[at : at + self._group] for at in range(0, len(messages), self._group)]

    async def wait_for(self, count: int) -> None:
        if self._rate <= 0:
            return
        now_s = time.monotonic()
        due_s = self._since_s + self._sent / self._rate
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)
        else:  # the input was slower than the rate: that is no credit
            self._since_s, self._sent = now_s, 0
        self._sent += count


async def work(options: FromStdinOptions, signals: Signals) -> None:
    sink = _new_sink(options)
    if options.rate > 0:
        log.info("Throttling messages rate to max:%d/second", options.rate)
    limit = RateLimit(options.rate)
    progress = ProgressLine(sys.stderr)
    await sink.start()
    try:
        fd = sys.stdin.fileno()
        async for messages in read_messages(fd, options.separator, signals.stop):
            for group in limit.groups(messages):
                await limit.wait_for(len(group))
                await sink.put(group)
                progress.add(group)
                if signals.stop.is_set():
                    break
        await sink.end()
        progress.show("\n")
    except MessageTooLong:
        raise ToolFailure("the input has no delimiter") from None
    except OSError as error:
        raise ToolFailure(f"stdin: {error}") from None
    finally:
        await sink.close()


def _new_sink(options: FromStdinOptions) -> Sink:
    if options.token:
        return TokenSink(
            options.topic,
            options.nsqd_http_address,
            options.token,
            access_token=ClusterOptions(token_file=options.token_file).access_token(),
            spread=options.spread,
        )
    try:
        settings = client_settings(options.producer_opt, user_agent=user_agent(options.program))
    except ValueError as error:
        raise ToolFailure(str(error)) from None
    return ProducerSink(options.topic, options.nsqd_tcp_address, settings, spread=options.spread)


TO_NSQ = Tool(options=FromStdinOptions, examples=EXAMPLES, work=work)


def main(argv: Sequence[str] | None = None) -> int:
    return TO_NSQ.main(argv)


if __name__ == "__main__":
    sys.exit(main())
