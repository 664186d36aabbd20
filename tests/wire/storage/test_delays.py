"""Messages with many delays, and without, in one write: each has its own, before and after a kill.

NSQ forgets delays on a restart, and has no log to look into, so every test here is a deviation.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest

from pyspark_nsq.reading.decode import COLUMN_TYPES, Decoder
from tests.kit.daemons import Nsqd, RawClient
from tests.kit.wire.admin import act, await_channel
from tests.kit.wire.commands import dpub, mpub, pub
from tests.kit.wire.session import OK, Session, bodies
from tests.kit.wire.web import ask

pytestmark = pytest.mark.deviation

HOUR_MS = 3_600_000
LATE = {b"%d" % number: HOUR_MS - 1000 * number for number in range(0, 40, 4)}
SOON = {b"%d" % number: 1 + number for number in range(1, 40, 4)}
NOW = [b"%d" % number for number in range(2, 40, 4)]
MANY = [[b"%d" % number, b"%d and more" % number] for number in range(3, 40, 4)]


def commands() -> list[bytes]:
    late, soon = list(LATE.items()), list(SOON.items())
    found = []
    for number in range(10):
        found += [dpub("t", each[number][1], each[number][0]) for each in (late, soon)]
        found += [pub("t", NOW[number]), mpub("t", MANY[number])]
    return found


def test_each_message_keeps_its_delay_through_a_kill(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        act(nsqd, "/topic/create", topic="t")
        act(nsqd, "/channel/create", topic="t", channel="ch")
        producer = Session(RawClient(nsqd.tcp_port))
        producer.send(b"".join(commands()))
        assert producer.frames(40) == [OK] * 40
        before = peeked(nsqd)
        nsqd.kill()
        producer.close()
        nsqd.start()
        assert peeked(nsqd) == before
        delays_ms = {
            message["body"].encode(): message.get("deferred_until", 0) - message["timestamp"]
            for message in before
            if message.get("deferred_until")
        }
        assert delays_ms == {body: delay_ms * 1_000_000 for body, delay_ms in (LATE | SOON).items()}
        consumer = Session(RawClient(nsqd.tcp_port))
        consumer.subscribe("t", "ch", ready=100)
        due = [*SOON, *NOW, *(body for pair in MANY for body in pair)]
        assert sorted(bodies(consumer.messages(len(due)))) == sorted(due)
        await_channel(nsqd, "t", "ch", deferred_count=len(LATE), in_flight_count=len(due))
        assert rows(nsqd) == [message["body"].encode() for message in before]
        consumer.close()


def peeked(nsqd: Nsqd) -> list[dict[str, Any]]:
    query = urlencode({"topic": "t", "limit": 100})
    return list(ask(nsqd, "GET", f"/log/peek?{query}").json()["messages"])


def rows(nsqd: Nsqd) -> list[bytes]:
    """The bodies, as Spark reads them."""
    raw = ask(nsqd, "GET", f"/log/raw?{urlencode({'topic': 't', 'from': 0, 'to': 50})}").body
    schema = pa.schema([("body", COLUMN_TYPES["body"])])
    decoder = Decoder(schema, topic="t", node="n")
    view = memoryview(bytearray(raw))
    batches = decoder.record_batches(view, decoder.rows(view))
    return [body for batch in batches for body in batch.column(0).to_pylist()]
