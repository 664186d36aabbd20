"""The nsq_to_nsq command: consumes topics and publishes what passes the filters."""

import asyncio
import sys
from collections.abc import Sequence

from pumpline.client import Batch, Consumer
from pumpline.cluster.options import ClusterOptions
from pumpline.tools.go_nsq_options import client_settings
from pumpline.tools.nsq_to_nsq.destinations import NsqdDestinations, Outgoing, TokenDestinations
from pumpline.tools.nsq_to_nsq.json_filter import JsonFilter, MissingField, NotAnObject
from pumpline.tools.nsq_to_nsq.options import ToNsqOptions
from pumpline.tools.sources import GO_NSQ_MAX_ATTEMPTS, user_agent
from pumpline.tools.status_lines import StatusLines
from pumpline.tools.tool import Signals, Tool, ToolFailure, log

EXAMPLES = """
nsq_to_nsq --topic=orders --lookupd-http-address=127.0.0.1:4161 \\
    --destination-nsqd-tcp-address=127.0.0.1:4250
nsq_to_nsq --topic=orders --nsqd-tcp-address=127.0.0.1:4150 \\
    --destination-topic=paid --require-json-field=status --require-json-value=paid \\
    --destination-nsqd-tcp-address=127.0.0.1:4250
nsq_to_nsq --topic=orders --nsqd-tcp-address=127.0.0.1:4150 \\
    --tokens --destination-nsqd-http-address=127.0.0.1:4251
"""


class TopicForwarder:
    """One topic; batches are on their way side by side, as far as max-in-flight allows."""

    def __init__(
        self,
        topic: str,
        options: ToNsqOptions,
        destinations: NsqdDestinations | TokenDestinations,
    ) -> None:
        # Touched, since a destination may be down for longer than nsqd waits. With tokens nothing
        # is given up: the point is that each message arrives.
        self.consumer: Consumer = options.new_consumer(
            topic,
            options.channel,
            auto_touch=True,
            default_attempts_max=0 if options.tokens else GO_NSQ_MAX_ATTEMPTS,
        )
        self._destinations = destinations
        self._destination_topic = options.destination_topic or topic
        self._batch_max = options.max_in_flight or 1
        self._filter = (
            JsonFilter(
                whitelist=options.whitelist_json_field,
                required_field=options.require_json_field,
                required_value=options.require_json_value,
            )
            if options.filters
            else None
        )

    async def run(self) -> None:
        """Until the consumer, which was started, is stopped, and what is under way is answered or
        out of time."""
        under_way: set[asyncio.Task[None]] = set()
        async for batch in self.consumer.batches(self._batch_max):
            if outgoing := self._outgoing(batch):
                task = asyncio.create_task(self._publish(outgoing))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        await self.consumer.stop()
        for task in under_way:  # not answered within the time of a stop: nsqd delivers them again
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _publish(self, outgoing: list[Outgoing]) -> None:
        try:
            await self._destinations.publish(self._destination_topic, outgoing)
        except Exception:  # the root of a task: nothing may wait for a timeout because of it
            log.exception("ERROR: publishing failed")
            for message, _ in outgoing:
                message.requeue()

    def _outgoing(self, batch: Batch) -> list[Outgoing]:
        if self._filter is None:
            return [(message, message.body) for message in batch]
        outgoing = []
        for message in batch:
            body = None
            try:
                body = self._filter.apply(message.body)
            except NotAnObject:
                text = message.body.decode("utf-8", "backslashreplace")
                log.error("ERROR: Unable to decode json: %s", text)
            except MissingField:
                log.error("ERROR: missing field to check required value")
            if body is None:
                message.finish()
            else:
                outgoing.append((message, body))
        return outgoing


async def work(options: ToNsqOptions, signals: Signals) -> None:
    destinations = await _new_destinations(options)
    forwarders = [TopicForwarder(topic, options, destinations) for topic in options.topic]
    await options.check_nsqds()
    try:
        async with asyncio.TaskGroup() as tasks:
            for forwarder in forwarders:
                forwarder.consumer.start()  # here: a stop that came already must find it running
                tasks.create_task(forwarder.run())
            await signals.stop.wait()
            for forwarder in forwarders:
                forwarder.consumer.stop_soon()
    finally:
        await destinations.close()


async def _new_destinations(options: ToNsqOptions) -> NsqdDestinations | TokenDestinations:
    if options.tokens:
        addresses = options.destination_nsqd_http_address
        status = StatusLines(addresses, options.status_every)
        access_token = ClusterOptions(token_file=options.token_file).access_token()
        found = TokenDestinations(addresses, access_token=access_token, status=status)
        await found.check()
        return found
    addresses = options.destination_nsqd_tcp_address
    try:
        settings = client_settings(options.producer_opt, user_agent=user_agent(options.program))
    except ValueError as error:
        raise ToolFailure(str(error)) from None
    status = StatusLines(addresses, options.status_every)
    return NsqdDestinations(addresses, settings, mode=options.mode, status=status)


NSQ_TO_NSQ = Tool(options=ToNsqOptions, examples=EXAMPLES, work=work)


def main(argv: Sequence[str] | None = None) -> int:
    return NSQ_TO_NSQ.main(argv)


if __name__ == "__main__":
    sys.exit(main())
