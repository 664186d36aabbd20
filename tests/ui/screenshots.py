"""Pictures of nsqadmin's page, for a person to look at, and the one in the docs.

    make screenshots
    python -m tests.ui.screenshots [--seconds 600] [--directory build/screenshots]

A small cluster works for a while, so that lines have something to show. Every page is taken in
light, dark and at the width of a phone; `docs/images/nsqadmin.png` is the overview in light.
"""

import argparse
import asyncio
import json
import random
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from urllib.parse import urlencode

from pumpline.client import Consumer, Message, Producer
from pumpline.testing import LocalNsqadmin, LocalNsqd, LocalNsqlookupd
from tests.kit.browser import Visitor, chromium

DOCS_PICTURE = Path(__file__).parents[2] / "docs" / "images" / "nsqadmin.png"
TOPICS = {"orders": 20, "clicks": 60, "payments": 8, "emails": 3, "audit": 1}  # a second, a node
CONSUMED = {  # seconds of work for a message
    ("orders", "billing"): 0.002,
    ("clicks", "counts"): 0.0,
    ("clicks", "sessions"): 0.001,
    ("payments", "ledger"): 0.03,
    ("emails", "sender"): 0.01,
    ("audit", "trail"): 0.0,
}
CHANNELS = [*CONSUMED, ("orders", "warehouse")]  # nobody consumes the last
WINDOWS = {
    "light": (1280, False),
    "dark": (1280, True),
    "phone": (320, False),
    "phone-dark": (320, True),
}
FAILING = "emails"  # every twentieth of its messages ends as a dead letter
HOLD_OF = urlencode({"description": "Spark query orders-to-lake on etl-1, checkpoint /lake/orders"})
TICK_S = 0.1


async def publish(address: str, topic: str, rate: int) -> None:
    numbers = count(1)
    async with Producer([address]) as producer:
        while True:
            many = max(1, round(rate * TICK_S * random.uniform(0.6, 1.4)))
            bodies = []
            for number in islice(numbers, many):
                order = {"order": number, "total": round(random.uniform(5, 300), 2), "city": "Oslo"}
                bodies.append(json.dumps(order).encode())
            await producer.publish_many(topic, bodies)
            await asyncio.sleep(many / rate)


async def consume(lookupd: str, topic: str, channel: str, work_s: float) -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(work_s)
        if topic == FAILING and json.loads(message.body)["order"] % 20 == 0:
            message.requeue(backoff=False)

    await Consumer(topic, channel, lookupd=lookupd, max_in_flight=100).run(handle)


def take_pictures(address: str, node: str, directory: Path) -> None:
    pages = {
        "overview": "/",
        "topics": "/topics",
        "channels": "/topics?of=channels",
        "topic": "/topics/orders",
        "message": f"/topics/orders?node={node}&offset=1",
        "settings": "/topics/orders?show=settings",
        "holds": "/topics/orders?show=holds",
        "dead-letters": f"/topics/{FAILING}?show=dead",
        "channel": "/topics/payments/ledger",
        "nodes": "/nodes",
        "node": f"/nodes/{node}",
        "lookup": "/lookup",
        "counter": "/counter",
    }
    directory.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for window, (width, dark) in WINDOWS.items():
            context = browser.new_context(
                viewport={"width": width, "height": 800},
                color_scheme="dark" if dark else "light",
                device_scale_factor=2,
            )
            visitor = Visitor(context, address)
            for name, path in pages.items():
                page = visitor.open(path)
                page.locator("main tbody tr, main .empty, .counter").first.wait_for(
                    state="attached"
                )
                page.wait_for_timeout(3000)  # of live figures
                page.screenshot(path=directory / f"{name}-{window}.png")
                page.screenshot(path=directory / f"{name}-{window}-whole.png", full_page=True)
            assert visitor.errors == []
    DOCS_PICTURE.write_bytes((directory / "overview-light.png").read_bytes())


async def work_and_take(seconds: float, directory: Path) -> None:
    with ExitStack() as daemons:
        lookupd = daemons.enter_context(LocalNsqlookupd())
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        nsqds = [daemons.enter_context(LocalNsqd(flag)) for _ in range(3)]
        admin = daemons.enter_context(
            LocalNsqadmin(f"--lookupd-http-address={lookupd.http_address}")
        )
        for nsqd in nsqds:
            for topic, channel in CHANNELS:
                nsqd.post(f"/topic/create?topic={topic}")
                nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
            nsqd.post(f"/topic/settings?topic={FAILING}", b'{"max_attempts":1}')
            nsqd.post(f"/hold/create?topic=orders&hold=lake&to=beginning&{HOLD_OF}")
        async with asyncio.TaskGroup() as tasks:
            works = [
                *(publish(each.tcp_address, *row) for each in nsqds for row in TOPICS.items()),
                *(consume(lookupd.http_address, *key, s) for key, s in CONSUMED.items()),
            ]
            running = [tasks.create_task(work) for work in works]
            await asyncio.sleep(seconds)
            await asyncio.to_thread(
                take_pictures, admin.http_address, nsqds[0].http_address, directory
            )
            for task in running:
                task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.ui.screenshots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="of work before (%(default)s)")
    parser.add_argument("--directory", type=Path, default=Path("build/screenshots"))
    arguments = parser.parse_args()
    asyncio.run(work_and_take(arguments.seconds, arguments.directory))


if __name__ == "__main__":
    main()
