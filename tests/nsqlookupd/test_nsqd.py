"""nsqd's side of discovery, between real processes."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.nsqlookupd.fleet import (
    Impostor,
    channels_of,
    get,
    new_nsqd,
    new_nsqlookupd,
    post,
    registrations,
)
from tests.kit.v1_recording import OK, identity

WAIT_FLAG = "--http-client-request-timeout=700ms"


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqlookupd]:
    with new_nsqlookupd(tmp_path_factory.mktemp("nsqlookupd") / "stderr") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, lookupd: Nsqlookupd) -> Iterator[Nsqd]:
    with new_nsqd(tmp_path_factory.mktemp("nsqd") / "data", lookupd.tcp_address) as daemon:
        wait_until(lambda: get(lookupd, "/nodes")["producers"])
        yield daemon


def wait_for(lookupd: Nsqlookupd, nsqd: Nsqd, *keys: str, absent: tuple[str, ...] = ()) -> None:
    def as_expected() -> bool:
        found = registrations(lookupd)
        return all(nsqd.tcp_port in found.get(key, ()) for key in keys) and not any(
            nsqd.tcp_port in found.get(key, ()) for key in absent
        )

    wait_until(as_expected)


def test_a_node_tells_how_to_reach_it(nsqd: Nsqd, lookupd: Nsqlookupd) -> None:
    (node,) = get(lookupd, "/nodes")["producers"]
    assert node["broadcast_address"] == "127.0.0.1"
    assert (node["tcp_port"], node["http_port"]) == (nsqd.tcp_port, nsqd.http_port)
    assert (node["hostname"], node["version"]) == (socket.gethostname(), "1.3.0")


def test_topics_and_channels_are_registered_as_they_come_and_go(
    nsqd: Nsqd, lookupd: Nsqlookupd, topic: str
) -> None:
    post(nsqd, f"/topic/create?topic={topic}")
    wait_for(lookupd, nsqd, f"topic:{topic}:")
    post(nsqd, f"/channel/create?topic={topic}&channel=c")
    wait_for(lookupd, nsqd, f"channel:{topic}:c")
    with nsqd.connect() as client:
        client.sub(topic, "d#ephemeral")
        wait_for(lookupd, nsqd, f"channel:{topic}:d#ephemeral")
    wait_until(lambda: get(lookupd, f"/channels?topic={topic}")["channels"] == ["c"])
    post(nsqd, f"/channel/delete?topic={topic}&channel=c")
    wait_for(lookupd, nsqd, f"topic:{topic}:", absent=(f"channel:{topic}:c",))
    post(nsqd, f"/topic/delete?topic={topic}")
    wait_for(lookupd, nsqd, absent=(f"topic:{topic}:",))


def test_heartbeats_keep_a_node_from_being_taken_for_dead(nsqd: Nsqd, lookupd: Nsqlookupd) -> None:
    def last_update() -> int:
        (node,) = get(lookupd, "/debug")["client::"]
        return int(node["last_update"])

    before = last_update()
    wait_until(lambda: last_update() > before)


def test_the_first_message_reaches_a_channel_that_only_another_node_has(
    tmp_path: Path, nsqd: Nsqd, lookupd: Nsqlookupd, topic: str
) -> None:
    with new_nsqd(tmp_path / "other", lookupd.tcp_address) as other:
        post(other, f"/topic/create?topic={topic}")
        post(other, f"/channel/create?topic={topic}&channel=c")
        with other.connect() as client:
            client.sub(topic, "e#ephemeral")
            wait_for(lookupd, other, f"channel:{topic}:c", f"channel:{topic}:e#ephemeral")
            with nsqd.connect() as publisher:
                publisher.publish(topic, b"first")
                publisher.publish(topic, b"second")
            wait_until(lambda: channels_of(nsqd, topic))
            with nsqd.connect() as consumer:
                consumer.sub(topic, "c")
                consumer.rdy(2)
                assert [consumer.read_message().body for _ in range(2)] == [b"first", b"second"]
    assert channels_of(nsqd, topic) == {"c"}


def test_a_topic_made_over_http_has_its_channels_when_that_is_answered(
    nsqd: Nsqd, lookupd: Nsqlookupd, topic: str
) -> None:
    for channel in ("a", "b", "c%23ephemeral"):
        post(lookupd, f"/channel/create?topic={topic}&channel={channel}")
    post(nsqd, f"/topic/create?topic={topic}")
    assert channels_of(nsqd, topic) == {"a", "b"}


def test_a_consumer_that_makes_the_topic_shares_it_with_the_channels_from_elsewhere(
    nsqd: Nsqd, lookupd: Nsqlookupd, topic: str
) -> None:
    post(lookupd, f"/channel/create?topic={topic}&channel=other")
    with nsqd.connect() as consumer, nsqd.connect() as publisher:
        consumer.sub(topic, "own")
        consumer.rdy(1)
        publisher.publish(topic, b"m")
        assert consumer.read_message().body == b"m"
    assert nsqd.channel_stats(topic, "other")["depth"] == 1


def test_a_clean_exit_takes_the_node_away_and_ephemeral_names_with_it(
    tmp_path: Path, lookupd: Nsqlookupd, topic: str
) -> None:
    leaving = new_nsqd(tmp_path / "data", lookupd.tcp_address).start()
    with leaving.connect() as client:
        client.sub(topic, "c#ephemeral")
        wait_for(lookupd, leaving, f"channel:{topic}:c#ephemeral")
        assert leaving.stop() == 0
    assert get(lookupd, f"/lookup?topic={topic}") == {"channels": [], "producers": []}
    assert "ERROR" not in leaving.log_text()


def test_an_nsqlookupd_that_comes_back_is_told_everything_again(tmp_path: Path) -> None:
    with (
        new_nsqlookupd(tmp_path / "stderr") as lookupd,
        new_nsqd(tmp_path / "data", lookupd.tcp_address) as nsqd,
    ):
        post(nsqd, "/topic/create?topic=kept")
        post(nsqd, "/channel/create?topic=kept&channel=c")
        post(nsqd, "/topic/create?topic=gone")
        wait_for(lookupd, nsqd, "topic:gone:", "channel:kept:c")
        lookupd.kill()
        post(nsqd, "/topic/delete?topic=gone")
        post(nsqd, "/topic/create?topic=new")
        lookupd.restart()
        wait_for(lookupd, nsqd, "topic:kept:", "channel:kept:c", "topic:new:")
        assert set(registrations(lookupd)) == {"topic:kept:", "channel:kept:c", "topic:new:"}


def test_lookupds_can_be_changed_while_it_runs(tmp_path: Path, lookupd: Nsqlookupd) -> None:
    def told(daemon: Nsqlookupd, nsqd: Nsqd) -> bool:
        nodes = get(daemon, "/nodes")["producers"]
        return any(node["tcp_port"] == nsqd.tcp_port for node in nodes)

    with (
        new_nsqlookupd(tmp_path / "stderr") as second,
        new_nsqd(tmp_path / "data") as nsqd,
    ):

        def put(*addresses: str) -> None:
            body = json.dumps(addresses).encode()
            assert nsqd.http("PUT", "/config/nsqlookupd_tcp_addresses", body)[0] == 200

        post(nsqd, "/topic/create?topic=t")
        put(lookupd.tcp_address)
        wait_until(lambda: told(lookupd, nsqd))
        put(second.tcp_address, second.tcp_address)
        wait_until(lambda: told(second, nsqd) and not told(lookupd, nsqd))
        assert len(get(second, "/nodes")["producers"]) == 1
        wait_for(second, nsqd, "topic:t:")
        put()
        wait_until(lambda: not told(second, nsqd))


# -- nsqlookupds that are slow, silent or worse ------------------------------------------------


def introduced(accepted: socket.socket, http_port: int) -> None:
    """Up to the end of IDENTIFY."""
    received = b""
    while not received.endswith(b"}"):
        received += accepted.recv(4096)
    accepted.sendall(identity(tcp_port=1, http_port=http_port, hostname="impostor"))


def answer_all(accepted: socket.socket) -> None:
    while data := accepted.recv(4096):
        accepted.sendall(OK * data.count(b"\n"))


def drain(accepted: socket.socket) -> None:
    while accepted.recv(4096):
        pass


def endless(accepted: socket.socket) -> None:
    """An HTTP answer that never ends."""
    accepted.recv(4096)
    accepted.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        accepted.sendall(b" " * 65536)


def answering(text: bytes) -> Callable[[socket.socket], None]:
    def serve(accepted: socket.socket) -> None:
        accepted.recv(4096)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text)
        accepted.sendall(head + text)

    return serve


@pytest.mark.parametrize(
    "query",
    [
        drain,
        endless,
        lambda accepted: accepted.close(),
        answering(b"{"),
        answering(b'{"channels":[1]}'),
        answering(b'{"channels":["b@d","","x y","e#ephemeral"]}'),
        answering(b'{"channels":null}'),
    ],
    ids=["silent", "endless", "closed", "no json", "no names", "bad names", "null"],
)
def test_a_topic_does_not_wait_long_for_channels_that_it_is_not_told(
    tmp_path: Path, query: Callable[[socket.socket], None]
) -> None:
    def serve(accepted: socket.socket) -> None:
        introduced(accepted, http.port)
        answer_all(accepted)

    with (
        Impostor(query) as http,
        Impostor(serve) as lookupd,
        new_nsqd(tmp_path / "data", lookupd.address, flags=[WAIT_FLAG]) as nsqd,
        nsqd.connect() as consumer,
        nsqd.connect() as publisher,
    ):
        consumer.sub("t", "c")
        consumer.rdy(1)
        publisher.publish("t", b"m")
        assert consumer.read_message().body == b"m"
        http.wait_for_connections(1)
        assert channels_of(nsqd, "t") == {"c"}


def test_messages_wait_for_the_answer_and_publishers_do_not(tmp_path: Path) -> None:
    asked: list[socket.socket] = []

    def serve(accepted: socket.socket) -> None:
        introduced(accepted, http.port)
        answer_all(accepted)

    with (
        Impostor(asked.append) as http,
        Impostor(serve) as lookupd,
        new_nsqd(tmp_path / "data", lookupd.address) as nsqd,
        nsqd.connect() as consumer,
        nsqd.connect() as publisher,
    ):
        consumer.sub("t", "c")
        consumer.rdy(1)
        publisher.publish("t", b"m")
        http.wait_for_connections(1)
        (topic,) = nsqd.stats("t")["topics"]
        assert (topic["depth"], topic["channels"][0]["depth"]) == (1, 0)
        answering(b'{"channels":["other"]}')(wait_until(lambda: asked)[0])
        assert consumer.read_message().body == b"m"
        wait_until(lambda: nsqd.channel_stats("t", "other").get("depth") == 1)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_topic_that_ends_before_the_answer_asks_again(tmp_path: Path, end: str) -> None:
    asked: list[socket.socket] = []

    def serve(accepted: socket.socket) -> None:
        introduced(accepted, http.port)
        answer_all(accepted)

    with (
        Impostor(asked.append) as http,
        Impostor(serve) as lookupd,
        new_nsqd(tmp_path / "data", lookupd.address) as nsqd,
    ):
        with nsqd.connect() as client:
            client.sub("t", "c")
            client.publish("t", b"m")
            http.wait_for_connections(1)
            getattr(nsqd, end)()
        nsqd.start()
        http.wait_for_connections(2)
        answering(b'{"channels":["other"]}')(wait_until(lambda: asked[1:])[0])
        wait_until(lambda: nsqd.channel_stats("t", "other").get("depth") == 1)
        assert nsqd.channel_stats("t", "c")["depth"] == 1


def test_no_more_channels_are_made_than_the_limit(tmp_path: Path) -> None:
    names = json.dumps({"channels": [f"c{number}" for number in range(1500)]}).encode()

    def serve(accepted: socket.socket) -> None:
        introduced(accepted, http.port)
        answer_all(accepted)

    with (
        Impostor(answering(names)) as http,
        Impostor(serve) as lookupd,
        new_nsqd(tmp_path / "data", lookupd.address) as nsqd,
    ):
        post(nsqd, "/topic/create?topic=t")
        assert len(channels_of(nsqd, "t")) == 1000


def misbehave_at_once(accepted: socket.socket) -> None:
    accepted.sendall(b"\x7f\xff\xff\xff" + b"x" * 100)
    drain(accepted)


def talk_without_end(accepted: socket.socket) -> None:
    introduced(accepted, 1)
    while True:
        accepted.sendall(OK * 1000)


def refuse(accepted: socket.socket) -> None:
    drain_one = accepted.recv(4096)
    assert drain_one.startswith(b"  V1IDENTIFY\n")
    accepted.sendall(b"\x00\x00\x00\x09E_INVALID")
    drain(accepted)


def refuse_to_register(accepted: socket.socket) -> None:
    introduced(accepted, 1)
    accepted.recv(4096)
    accepted.sendall(b"\x00\x00\x00\x0bE_BAD_TOPIC")
    drain(accepted)


@pytest.mark.parametrize(
    "serve",
    [
        lambda accepted: accepted.close(),
        misbehave_at_once,
        talk_without_end,
        refuse,
        refuse_to_register,
    ],
    ids=["closes", "huge reply", "talks without end", "refuses", "refuses to register"],
)
def test_one_that_misbehaves_is_tried_again_and_harms_nobody(
    tmp_path: Path, lookupd: Nsqlookupd, topic: str, serve: Callable[[socket.socket], None]
) -> None:
    with (
        Impostor(serve) as bad,
        new_nsqd(tmp_path / "data", bad.address, lookupd.tcp_address) as nsqd,
        nsqd.connect() as client,
    ):
        client.sub(topic, "c")
        client.rdy(1)
        client.publish(topic, b"m")
        assert client.read_message().body == b"m"
        bad.wait_for_connections(3)
        wait_for(lookupd, nsqd, f"channel:{topic}:c")
        assert f"LOOKUPD({bad.address}): " in nsqd.log_text()
        assert "Traceback" not in nsqd.log_text()


@pytest.mark.slow
def test_one_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with Impostor(drain) as silent, new_nsqd(tmp_path / "data", silent.address) as nsqd:
        silent.wait_for_connections(2)
        assert f"LOOKUPD({silent.address}): no answer for 5 s" in nsqd.log_text()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", ""])
def test_an_address_that_leads_nowhere_is_a_log_line(tmp_path: Path, address: str) -> None:
    with new_nsqd(tmp_path / "data", address) as nsqd:
        wait_until(lambda: f"ERROR: LOOKUPD({address}): " in nsqd.log_text())
        with nsqd.connect() as client:
            client.publish("t", b"m")
        wait_until(lambda: "no available nsqlookupd to query" in nsqd.log_text())
        assert nsqd.stop() == 0
    assert "Traceback" not in nsqd.log_text()
