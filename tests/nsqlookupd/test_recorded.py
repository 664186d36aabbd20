"""Mixed fleets: each of our daemons against the recorded bytes of the other one of NSQ's."""

import socket
from pathlib import Path

from tests.kit.daemons import wait_until
from tests.kit.nsqlookupd.fleet import Impostor, get, new_nsqd, new_nsqlookupd, post, registrations
from tests.kit.nsqlookupd.peer import Peer
from tests.kit.v1_recording import EXCHANGES, beginning, identity


def test_nsqlookupd_answers_an_nsqd_of_nsq_byte_for_byte(tmp_path: Path) -> None:
    with new_nsqlookupd(tmp_path / "stderr") as daemon, Peer(daemon.tcp_port, b"") as peer:
        ours = identity(
            tcp_port=daemon.tcp_port, http_port=daemon.http_port, hostname=socket.gethostname()
        )
        theirs = identity(tcp_port=14150, http_port=14151, hostname="host")
        for said, answered in (beginning(theirs, ours), *EXCHANGES):
            peer.send(said)
            assert receive(peer.socket, len(answered)) == answered
        assert set(registrations(daemon)) == {"topic:fresh:", "channel:fresh:known"}
        (producer,) = get(daemon, "/lookup?topic=fresh")["producers"]
        assert producer == {
            "remote_address": peer.address,
            "hostname": "host",
            "broadcast_address": "127.0.0.1",
            "tcp_port": 14150,
            "http_port": 14151,
            "version": "1.3.0",
        }


def test_nsqd_says_to_an_nsqlookupd_of_nsq_what_nsqs_nsqd_says(tmp_path: Path) -> None:
    """But for the order in which a deleted topic and its channels are taken back."""
    heard: list[bytes] = []
    channels = b'{"channels":["known"]}'

    def serve(accepted: socket.socket) -> None:
        theirs = identity(tcp_port=1, http_port=http.port, hostname="host")
        buffer = b""
        while data := accepted.recv(4096):
            buffer += data
            if not heard and buffer.endswith(b"}"):
                heard.append(buffer)
                accepted.sendall(theirs)
                buffer = b""
            while heard and b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                heard.append(line + b"\n")
                accepted.sendall(EXCHANGES[0].answered)

    def serve_http(accepted: socket.socket) -> None:
        request = accepted.recv(4096)
        body = channels if b"topic=fresh" in request else b'{"channels":[]}'
        accepted.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
            b"X-Nsq-Content-Type: nsq; version=1.0\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )

    with Impostor(serve_http) as http, Impostor(serve) as lookupd:
        nsqd = new_nsqd(tmp_path / "data", lookupd.address)
        with nsqd:
            ours = identity(
                tcp_port=nsqd.tcp_port, http_port=nsqd.http_port, hostname=socket.gethostname()
            )
            wait_until(lambda: heard)
            recorded = [exchange.said for exchange in EXCHANGES]

            def lines_heard() -> list[bytes]:
                return [line for line in heard[1:] if line != b"PING\n"]

            post(nsqd, "/topic/create?topic=orders")
            wait_until(lambda: lines_heard() == recorded[:1])
            post(nsqd, "/channel/create?topic=orders&channel=audit")
            wait_until(lambda: lines_heard() == recorded[:2])
            with nsqd.connect() as client:
                client.sub("orders", "tail#ephemeral")
                wait_until(lambda: lines_heard() == recorded[:3])
                post(nsqd, "/channel/delete?topic=orders&channel=audit")
                wait_until(lambda: lines_heard() == recorded[:4])
                client.publish("fresh", b"hi")
                wait_until(lambda: len(lines_heard()) >= 5 and lines_heard()[-1] == recorded[5])
                post(nsqd, "/topic/delete?topic=orders")
                wait_until(lambda: lines_heard()[-2:] == [recorded[7], recorded[6]])
            wait_until(lambda: recorded[8] in heard)
            assert heard[0] == beginning(ours, b"").said
            assert lookupd.errors == []


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        assert chunk, data
        data += chunk
    return data
