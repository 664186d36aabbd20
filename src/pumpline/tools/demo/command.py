"""`pumpline demo`: a cluster on this machine, a kill -9 in the middle, and a count at the end.

It runs nsqlookupd, nsqadmin, two nsqds in processes of their own, a producer of orders, two
consumers, and Spark, which archives the topic as a table. One nsqd is killed with SIGKILL while
messages flow, and is started again. At the end the books must balance: every acknowledged message
is counted.
"""

import asyncio
import json
import logging
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pumpline.client import Producer
from pumpline.testing import LocalNsqadmin, LocalNsqlookupd
from pumpline.tools.demo.killable_nsqd import KillableNsqd
from pumpline.tools.demo.picture import Outage, Sample, chart
from pumpline.tools.demo.shop import CHANNEL, TOPIC, Ledger, Shop, consume, produce, publish
from pumpline.tools.demo.table import Books, OrdersTable, why_not
from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_OK
from pumpline.tools.standard_streams import StdoutError, run_with_streams

SAMPLE_S = 0.25
DRAIN_S_MAX = 60.0
WARM_UP_BATCHES = 4  # Spark's first ones take seconds: its code is not compiled yet
WARM_UP_MESSAGES = 100  # in each
LINES = ("acknowledged by nsqd", "received by consumers", "in the Spark table")
DRAWN_BY = "Drawn by `pumpline demo --picture FILE`, from counts taken four times a second."


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="pumpline demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of publishing (%(default)s)")
    parser.add_argument("--rate", type=int, default=2000, help="messages a second (%(default)s)")
    parser.add_argument(
        "--picture", default="pumpline-demo.svg", help="where it goes (%(default)s)"
    )
    parser.add_argument("--no-spark", action="store_true", help="the brokers alone")
    given = sys.argv[1:] if argv is None else argv
    return run_with_streams("pumpline demo", lambda: _run(parser.parse_args(given)))


def _run(arguments: Namespace) -> int:
    console = Console(highlight=False)
    unwritten: BaseException | None = None
    logging.getLogger("pumpline.client").setLevel(
        logging.CRITICAL
    )  # the demo reports the kill itself
    with tempfile.TemporaryDirectory(prefix="pumpline-demo-") as directory:
        code = EXIT_FAILED
        try:
            code = asyncio.run(Demo(console, Path(directory), arguments).run())
        except* StdoutError as failures:
            unwritten = failures
        except* (OSError, TimeoutError) as failures:
            for error in failures.exceptions:
                console.print(f"[red]The demo could not finish:[/] {escape(str(error))}")
    while isinstance(unwritten, BaseExceptionGroup):
        unwritten = unwritten.exceptions[0]
    if unwritten is not None:
        raise unwritten
    return code


@dataclass(frozen=True, slots=True)
class Cluster:
    """The daemons: nsqlookupd and nsqadmin in this process, two nsqds in their own."""

    lookupd: LocalNsqlookupd
    admin: LocalNsqadmin
    nsqds: tuple[KillableNsqd, KillableNsqd]

    def messages(self) -> int:
        """How many messages are in the logs of both nsqds."""
        found = [json.loads(nsqd.get(f"/log/offsets?topic={TOPIC}")) for nsqd in self.nsqds]
        return sum(int(log["end"]) for log in found)


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    with (
        LocalNsqlookupd() as lookupd,
        LocalNsqadmin(f"--lookupd-http-address={lookupd.http_address}") as admin,
    ):
        flag = f"--lookupd-tcp-address={lookupd.tcp_address}"
        for name in ("nsqd-1", "nsqd-2"):
            (directory / name).mkdir()
        with (
            KillableNsqd(flag, data_path=directory / "nsqd-1") as first,
            KillableNsqd(flag, data_path=directory / "nsqd-2") as second,
        ):
            for nsqd in (first, second):
                nsqd.post(f"/topic/create?topic={TOPIC}")
                nsqd.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
            yield Cluster(lookupd, admin, (first, second))


class Demo:
    def __init__(self, console: Console, directory: Path, arguments: Namespace) -> None:
        self._console = console
        self._directory = directory
        self._seconds: float = arguments.seconds
        self._rate: int = arguments.rate
        self._picture = Path(arguments.picture)
        self._reason = "--no-spark" if arguments.no_spark else why_not()
        self._table = None if self._reason else OrdersTable(directory / "tables")
        self._ledger = Ledger()
        self._samples: list[Sample] = []
        self._outage: Outage | None = None
        self._began_s = time.monotonic()
        self._flow_began_s = 0.0
        self._step = 0

    async def run(self) -> int:
        with cluster(self._directory) as daemons:
            first, second = daemons.nsqds
            self._tell(
                f"nsqlookupd on {daemons.lookupd.http_address}, "
                f"nsqds on {first.tcp_address} and {second.tcp_address}"
            )
            self._tell(f"nsqadmin shows it live: http://{daemons.admin.http_address}")
            try:
                await self._publish_and_consume(daemons)
                return await self._balance(daemons)
            finally:
                if self._table is not None:
                    await asyncio.to_thread(self._table.close)

    async def _publish_and_consume(self, daemons: Cluster) -> None:
        lookupd = daemons.lookupd.http_address
        addresses = [nsqd.tcp_address for nsqd in daemons.nsqds]
        shop = Shop()
        async with asyncio.TaskGroup() as tasks:
            consumers = [tasks.create_task(consume(lookupd, self._ledger)) for _ in range(2)]
            async with Producer(addresses, spread=True, confirm_timeout_s=2.0) as producer:
                await self._start_archive(lookupd, producer, shop)
                self._flow_began_s = time.monotonic()
                sampler = tasks.create_task(self._sample())
                await self._flow(daemons.nsqds[1], producer, shop)
            await self._drain()
            for task in (*consumers, sampler):
                task.cancel()

    async def _start_archive(self, lookupd: str, producer: Producer, shop: Shop) -> None:
        if self._table is None:
            self._tell(f"No table this time: {self._reason}")
            return
        self._tell("Spark starts, and with it the archive pipeline, which reads the nsqds' logs")
        await asyncio.to_thread(self._table.start, lookupd, TOPIC)
        for _ in range(WARM_UP_BATCHES):
            await publish(producer, shop, self._ledger, WARM_UP_MESSAGES)
            while await asyncio.to_thread(self._table.messages) < self._ledger.published:
                await asyncio.sleep(SAMPLE_S)
        self._tell(f"The first {self._ledger.published:,} messages are in the table: Spark is warm")

    async def _flow(self, victim: KillableNsqd, producer: Producer, shop: Shop) -> None:
        """Publishes at the rate, and kills an nsqd for a third of the time."""
        ledger, stop = self._ledger, asyncio.Event()
        producing = asyncio.create_task(produce(producer, shop, ledger, rate=self._rate, stop=stop))
        try:
            self._tell(
                f"{self._rate:,} messages a second are published to topic {TOPIC}, some twice, "
                f"some broken; two consumers share channel {CHANNEL}"
            )
            await asyncio.sleep(self._seconds / 3)
            victim.kill()
            killed_s = self._flow_s()
            self._tell(
                f"kill -9 of {victim.tcp_address}, {ledger.published:,} messages acknowledged: "
                "the producer goes on with the other one"
            )
            await asyncio.sleep(self._seconds / 3)
            await asyncio.to_thread(victim.start)
            self._outage = Outage(killed_s, self._flow_s(), "kill -9", "back")
            self._tell(f"{victim.tcp_address} is back, with everything it had acknowledged")
            await asyncio.sleep(self._seconds / 3)
        finally:
            stop.set()
            await producing

    async def _drain(self) -> None:
        """Waits until consumers and archive have had everything."""
        self._tell(f"{self._ledger.published:,} messages are acknowledged; the rest drains")
        deadline_s = time.monotonic() + DRAIN_S_MAX
        while self._ledger.unconsumed and time.monotonic() < deadline_s:
            await asyncio.sleep(SAMPLE_S)
        if self._table is not None:
            await asyncio.to_thread(self._table.finish)
        self._samples.append(await self._now())

    async def _sample(self) -> None:
        while True:
            self._samples.append(await self._now())
            await asyncio.sleep(SAMPLE_S)

    async def _now(self) -> Sample:
        archived = 0 if self._table is None else await asyncio.to_thread(self._table.messages)
        ledger = self._ledger
        counts = (ledger.published, sum(ledger.received.values()), archived)
        return Sample(self._flow_s(), counts)

    def _flow_s(self) -> float:
        return time.monotonic() - self._flow_began_s

    async def _balance(self, daemons: Cluster) -> int:
        ledger = self._ledger
        in_logs = daemons.messages()
        self._console.print(_consumed(ledger))
        balanced = not ledger.unconsumed
        if self._table is not None:
            books = await asyncio.to_thread(self._table.books)
            self._tell("The table, asked by Spark SQL:")
            self._console.print(_kept(ledger, books, in_logs))
            self._console.print(_by_city(books))
            self._console.print(_quarantined(books))
            balanced = balanced and books.balances(in_logs, ledger.orders)
        names = LINES[: 3 if self._table else 2]
        title = f"{self._rate:,} messages a second, and one of two nsqds is killed"
        self._picture.write_text(chart(title, DRAWN_BY, names, self._samples, self._outage))
        self._tell(f"A picture of it: {self._picture}")
        if not balanced:
            self._console.print("[red]The books do not balance.[/]")
            return EXIT_FAILED
        self._console.print(
            "[green]The books balance:[/] nothing acknowledged was lost, nothing is in the table "
            "twice."
        )
        return EXIT_OK

    def _tell(self, text: str) -> None:
        self._step += 1
        at_s = time.monotonic() - self._began_s
        self._console.print(f"[bold]{self._step:>2}.[/] [dim]{at_s:5.1f} s[/]  {escape(text)}")


def _consumed(ledger: Ledger) -> Table:
    table = Table("channel", "acknowledged", "received", "again", "lost", title="The consumers")
    received = sum(ledger.received.values())
    again = max(received - ledger.published, 0)
    cells = (ledger.published, received, again, ledger.unconsumed)
    table.add_row(CHANNEL, *(f"{cell:,}" for cell in cells))
    return table


def _kept(ledger: Ledger, books: Books, in_logs: int) -> Table:
    table = Table("", "messages", title="The books")
    missing = len(ledger.orders - books.orders)
    rows = {
        "in the logs of both nsqds": in_logs,
        "in the table, one row an order": books.rows,
        "left out, as the order was there already": books.repeated,
        "in the quarantine": books.quarantined,
        "orders acknowledged": len(ledger.orders),
        "of them not in the table": missing,
        "orders in the table twice": books.rows - len(books.orders),
    }
    for name, count in rows.items():
        table.add_row(name, f"{count:,}")
    return table


def _by_city(books: Books) -> Table:
    table = Table("city", "orders", "sales", title="SELECT event.city, count(*), sum(event.total)")
    for city, count, total in books.cities:
        table.add_row(city, f"{count:,}", f"{total:,.2f}")
    return table


def _quarantined(books: Books) -> Table:
    table = Table("messages", "reason", "as in", title="The quarantine")
    for count, reason, example in books.reasons:
        table.add_row(f"{count:,}", escape(reason), escape(example))
    return table


if __name__ == "__main__":
    sys.exit(main())
