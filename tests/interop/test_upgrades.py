"""TLS, compression and AUTH as pynsq, gnsq, nsqjs and go-nsq do them, producers and consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.auth_server import REFUSED, Answer, Asked, AuthorityServer, grant
from tests.kit.certificates import Authority
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.interop.client_process import ClientProcess, missing_requirement

pytestmark = pytest.mark.interop

WRAPPINGS = [
    ("pynsq", {"tls": True}),
    ("pynsq", {"snappy": True}),
    ("gnsq", {"snappy": True}),
    ("gnsq", {"deflate": True}),
    ("nsqjs", {"tls": True}),
    ("nsqjs", {"deflate": True}),
    ("nsqjs", {"tls": True, "deflate": True}),
    ("go-nsq", {"tls": True}),
    ("go-nsq", {"snappy": True}),
    ("go-nsq", {"deflate": True}),
    ("go-nsq", {"tls": True, "snappy": True}),
]

# gnsq's stumbles over the answers to its own upgrades.
PLAIN_PRODUCERS = ("gnsq",)

Run = Callable[..., ClientProcess]


@pytest.fixture(scope="module")
def authority_server() -> Iterator[AuthorityServer]:
    def answering(asked: Asked) -> Answer:
        known = "secret=open-sesame&" in asked.target
        return grant(identity="somebody") if known else REFUSED

    with AuthorityServer(answering) as running:
        yield running


@pytest.fixture(scope="module")
def tls_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    directory = tmp_path_factory.mktemp("tls_nsqd")
    server = Authority(directory).issue("server")
    flags = [*server.flags(), "--https-address=127.0.0.1:0"]
    with Nsqd(directory / "data", flags) as running:
        yield running


@pytest.fixture(scope="module")
def auth_nsqd(
    authority_server: AuthorityServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nsqd]:
    data_path = tmp_path_factory.mktemp("auth_nsqd") / "data"
    with Nsqd(data_path, [f"--auth-http-address={authority_server.address}"]) as running:
        yield running


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Starts a client of that name; ended after the test."""
    processes: list[ClientProcess] = []

    def start(client_name: str, nsqd: Nsqd, **wrapping: object) -> ClientProcess:
        if reason := missing_requirement(client_name):
            pytest.skip(reason)
        stderr_path = tmp_path / f"{len(processes)}.stderr"
        processes.append(ClientProcess(client_name, nsqd.tcp_address, stderr_path, wrapping))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def there_and_back(nsqd: Nsqd, client: ClientProcess, topic: str) -> dict[str, Any]:
    """Publish and consume this and that; returns what /stats says of the consumer."""
    singles = [b"single %d" % number for number in range(100)]
    unusual = [bytes(range(256)), b"\n", b"\x00" * 5, b"x" * 200_000]
    batch = [b"batch %d" % number * 50 for number in range(100)]
    client.consume("a", topic, "ch", auto_finish=True, max_in_flight=25)
    client.publish(topic, singles + unusual)
    client.multi_publish(topic, batch)
    deliveries = client.wait_for_deliveries(204)
    bodies = [delivery.body for delivery in deliveries]
    assert Counter(bodies) == Counter(singles + unusual + batch)

    def is_drained() -> bool:
        counters = nsqd.channel_stats(topic, "ch")
        return not (counters["depth"] or counters["in_flight_count"])

    wait_until(is_drained)
    (consumer,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert consumer["finish_count"] == 204
    assert client.errors == []
    return dict(consumer)


@pytest.mark.parametrize(("client_name", "wrapping"), WRAPPINGS, ids=str)
def test_everything_goes_through(
    tls_nsqd: Nsqd, run: Run, client_name: str, wrapping: dict[str, bool]
) -> None:
    topic = "-".join([client_name, *wrapping])
    client = run(client_name, tls_nsqd, **wrapping)
    consumer = there_and_back(tls_nsqd, client, topic)
    for name in ("tls", "snappy", "deflate"):
        assert consumer[name] is wrapping.get(name, False)
    (producer,) = [
        producer
        for producer in tls_nsqd.stats(topic)["producers"]
        if [each["topic"] for each in producer.get("pub_counts", [])] == [topic]
    ]
    if client_name not in PLAIN_PRODUCERS:
        for name in ("tls", "snappy", "deflate"):
            assert producer[name] is wrapping.get(name, False)


@pytest.mark.parametrize("client_name", ["pynsq", "gnsq", "nsqjs", "go-nsq"])
def test_client_with_the_right_secret_is_let_in(
    auth_nsqd: Nsqd, run: Run, client_name: str
) -> None:
    client = run(client_name, auth_nsqd, auth_secret="open-sesame")
    consumer = there_and_back(auth_nsqd, client, client_name)
    assert (consumer["authed"], consumer["auth_identity"]) == (True, "somebody")
