"""Handlers of any speed, on a virtual clock: every message is handled once, none is given up."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import hypothesis.strategies as st
from hypothesis import example, given, settings

from pumpline.client import Batch, Consumer, Message, TopicGroup
from tests.kit.client.virtual_nsqd import ADDRESS, NS_PER_S, VirtualNsqd, virtual_nsqd

TOPIC, CHANNEL = "orders", "billing"
HANDLER_S_MAX = 600.0
FORMS = ["run", "iteration", "batches", "run_batches", "group"]


Handle = Callable[[Message], Awaitable[None]]


async def consume(
    worker: Consumer | TopicGroup, form: str, handle: Handle, concurrency: int
) -> None:
    async def handle_batch(batch: Batch) -> None:
        for message in batch:
            await handle(message)

    if form in ("run", "group"):
        await worker.run(handle, concurrency=concurrency)
    elif form == "iteration":
        async for message in worker:
            await handle(message)
            message.finish()
    elif form == "run_batches":
        await worker.run_batches(handle_batch, size_max=1, concurrency=concurrency)
    else:
        async for batch in worker.batches(1):
            await handle_batch(batch)
            batch.finish()


def handle_all(
    nsqd: VirtualNsqd,
    *,
    times_s: list[float],
    max_in_flight: int,
    concurrency: int,
    form: str,
    consumers: int,
) -> tuple[Counter[bytes], list[Consumer]]:
    """Each message takes the time of its number; returns how often each was handled."""
    bodies = [b"%d" % number for number in range(len(times_s))]
    nsqd.publish(TOPIC, CHANNEL, bodies)
    handled = Counter[bytes]()
    all_handled = asyncio.Event()

    async def handle(message: Message) -> None:
        await asyncio.sleep(times_s[int(message.body)])
        handled[message.body] += 1
        if len(handled) == len(bodies):
            all_handled.set()

    made: list[Consumer] = []

    async def main() -> None:
        workers: list[Consumer | TopicGroup] = []
        for _ in range(consumers):
            if form == "group":
                group = TopicGroup([TOPIC], CHANNEL, nsqd=ADDRESS, max_in_flight=max_in_flight)
                workers.append(group)
                made.append(group.consumers[TOPIC])
            else:
                made.append(Consumer(TOPIC, CHANNEL, nsqd=ADDRESS, max_in_flight=max_in_flight))
                workers.append(made[-1])
            workers[-1].start()
        tasks = [asyncio.create_task(consume(each, form, handle, concurrency)) for each in workers]
        await all_handled.wait()
        await asyncio.sleep(1000)  # longer than nsqd waits for any message
        for each in workers:
            await each.stop()
        await asyncio.gather(*tasks)

    nsqd.run(main())
    return handled, made


@settings(max_examples=25, deadline=None)
@given(
    times_s=st.lists(
        st.one_of(st.floats(0, HANDLER_S_MAX), st.sampled_from([0.0, 2.4, HANDLER_S_MAX])),
        min_size=1,
        max_size=12,
    ),
    max_in_flight=st.one_of(st.integers(1, 30), st.integers(1, 2500)),
    concurrency=st.integers(1, 3),
    form=st.sampled_from(FORMS),
    msg_timeout_s=st.sampled_from([2, 60, 900]),
    consumers=st.integers(1, 2),
    seed=st.integers(0, 1000),
)
@example([0.4] * 30, 25, 1, "run", 2, 1, 0)
@example([HANDLER_S_MAX] * 30, 25, 1, "run", 60, 1, 0)
@example([HANDLER_S_MAX] * 30, 25, 1, "iteration", 60, 2, 0)
@example([HANDLER_S_MAX] * 30, 25, 1, "run_batches", 60, 1, 0)
@example([HANDLER_S_MAX] * 30, 25, 1, "group", 60, 1, 0)
def test_every_message_is_handled_once(
    times_s: list[float],
    max_in_flight: int,
    concurrency: int,
    form: str,
    msg_timeout_s: int,
    consumers: int,
    seed: int,
) -> None:
    with virtual_nsqd(seed, msg_timeout_ns=msg_timeout_s * NS_PER_S) as nsqd:
        handled, made = handle_all(
            nsqd,
            times_s=times_s,
            max_in_flight=max_in_flight,
            concurrency=concurrency,
            form=form,
            consumers=consumers,
        )
        assert handled == {b"%d" % number: 1 for number in range(len(times_s))}
        stats = nsqd.stats(TOPIC, CHANNEL)
        left = (stats["depth"], stats["in_flight_count"], stats["deferred_count"])
        assert (left, stats["timeout_count"]) == ((0, 0, 0), 0)
        assert not nsqd.has_topic(f"{TOPIC}.dlq")
        assert sum(each.counters.given_up + each.counters.expired for each in made) == 0
