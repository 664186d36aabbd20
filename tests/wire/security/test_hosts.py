"""Host names in requests: the name of an attacker that resolves to 127.0.0.1 (DNS rebinding) is not
answered, where nothing else can need it. Names behind proxies work as ever."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import Daemon, Nsqd, Nsqlookupd
from tests.kit.nsqadmin.process import Nsqadmin
from tests.kit.wire.open_nsqd import OpenNsqd
from tests.kit.wire.web import Answer, UnixConnection, ask_on, open_connection

pytestmark = pytest.mark.deviation

READING = [
    "/ping",
    "/info",
    "/stats",
    "/stats?format=json",
    "/metrics",
    "/config/nsqlookupd_tcp_addresses",
    "/log/offsets",
    "/log/peek?topic=t",
    "/log/raw?topic=t&from=0&to=1",
    "/log/tail?topic=t",
    "/hold/list?topic=t",
    "/nothing/here",
]
STRANGERS = [
    "evil.example",
    "evil.example:4151",
    "127.0.0.1.evil.example",
    "localhost.evil.example:4151",
    "notlocalhost",
    "evil.example.",
    "[evil.example]:4151",
    "x" * 300 + ".example",
    "ž.example",
]
OURS = [
    "localhost",
    "LOCALHOST:1",
    "nsqd.localhost:4151",
    "127.0.0.1",
    "127.0.0.1:9",
    "[::1]:4151",
    "10.2.3.4:4151",
    socket.gethostname(),
    f"{socket.gethostname()}:4151",
    "told.example:4151",
]


def get(daemon: Daemon, target: str, *hosts: str, method: str = "GET") -> Answer:
    connection = open_connection(daemon)
    try:
        connection.putrequest(method, target, skip_host=True)
        for host in hosts:
            connection.putheader("Host", host.encode())
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def check_refused(answer: Answer, host: str = "evil.example") -> None:
    assert answer.status == 403
    said = json.loads(answer.body)
    assert said["message"] == "UNKNOWN_HOST"
    assert host in said["detail"]
    assert "--http-host" in said["detail"]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    path = tmp_path_factory.mktemp("nsqd") / "data"
    with Nsqd(path, ["--broadcast-address=told.example"]) as daemon:
        assert daemon.http("POST", "/topic/create?topic=t")[0] == 200
        yield daemon


@pytest.mark.parametrize("target", READING)
def test_a_page_under_a_name_of_its_own_reads_nothing(nsqd: Nsqd, target: str) -> None:
    check_refused(get(nsqd, target, "evil.example:4151"))


@pytest.mark.parametrize("host", STRANGERS)
def test_strangers(nsqd: Nsqd, host: str) -> None:
    assert get(nsqd, "/ping", host).status == 403
    assert get(nsqd, "/pub?topic=t", host, method="POST").status == 403


def test_one_strange_name_of_two_is_enough(nsqd: Nsqd) -> None:
    check_refused(get(nsqd, "/ping", "localhost", "evil.example"))
    check_refused(get(nsqd, "/ping", "evil.example", "localhost"))


@pytest.mark.parametrize("host", OURS)
def test_names_and_addresses_of_this_machine(nsqd: Nsqd, host: str) -> None:
    assert get(nsqd, "/ping", host).body == b"OK"


def test_no_name_at_all_is_no_browser(nsqd: Nsqd) -> None:
    assert get(nsqd, "/ping").body == b"OK"
    assert get(nsqd, "/ping", "").body == b"OK"


def test_a_refusal_is_for_one_request(nsqd: Nsqd) -> None:
    connection = open_connection(nsqd)
    statuses = [
        ask_on(connection, "GET", "/ping", headers={"Host": host}).status
        for host in ("localhost", "evil.example", "localhost")
    ]
    connection.close()
    assert statuses == [200, 403, 200]
    assert " 403 GET /ping " in nsqd.log_text()


def test_names_that_are_given_are_answered(tmp_path: Path) -> None:
    flags = ["--http-host=a.example,B.example:4151", "--http-host=c.example."]
    with Nsqd(tmp_path / "data", flags) as nsqd:
        for host in ("a.example", "A.EXAMPLE:80", "b.example", "c.example", "localhost"):
            assert get(nsqd, "/ping", host).body == b"OK"
        check_refused(get(nsqd, "/ping", "evil.example"))
        page = {"Host": "a.example", "Origin": "http://a.example"}
        connection = open_connection(nsqd)
        assert ask_on(connection, "POST", "/topic/create?topic=t", headers=page).status == 200
        connection.close()


def test_names_in_a_config_file(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.cfg"
    config.write_text('http_host = ["a.example"]\n', encoding="ascii")
    with Nsqd(tmp_path / "data", [f"--config={config}"]) as nsqd:
        assert get(nsqd, "/ping", "a.example").body == b"OK"
        check_refused(get(nsqd, "/ping", "evil.example"))


@pytest.mark.parametrize("value", ["http://a.example", "a.example/x", "a b", ""])
def test_what_is_no_name_is_refused_at_start(tmp_path: Path, value: str) -> None:
    nsqd = Nsqd(tmp_path / "data", [f"--http-host={value}"])
    with pytest.raises(AssertionError):
        nsqd.start()
    assert "http-host" in nsqd.log_text()


class UnixNsqd(Nsqd):
    def __init__(self, data_path: Path, *flags: str) -> None:
        self.socket_path = data_path.with_name("http.sock")
        super().__init__(data_path, [f"--http-address={self.socket_path}", *flags])

    def listening_port(self, service: str) -> int:
        return 0 if service == "HTTP" else super().listening_port(service)


def test_where_other_machines_ask_any_name_may_be_ours(tmp_path: Path) -> None:
    """A proxy, a service mesh or a DNS name."""
    with OpenNsqd(tmp_path / "data") as nsqd:
        for host in ("nsqd.queues.svc.cluster.local:4151", "evil.example", "localhost"):
            assert get(nsqd, "/ping", host).body == b"OK"


def test_where_other_machines_ask_names_can_be_given_too(tmp_path: Path) -> None:
    with OpenNsqd(tmp_path / "data", "--http-host=nsqd.example") as nsqd:
        assert get(nsqd, "/ping", "nsqd.example:4151").body == b"OK"
        assert get(nsqd, "/ping", "127.0.0.1").body == b"OK"
        check_refused(get(nsqd, "/ping", "evil.example"))


def test_no_browser_asks_on_a_unix_socket(tmp_path: Path) -> None:
    with UnixNsqd(tmp_path / "data", "--http-host=nsqd.example") as nsqd:
        connection = UnixConnection(nsqd.socket_path)
        assert ask_on(connection, "GET", "/ping", headers={"Host": "any"}).body == b"OK"
        connection.close()


@pytest.mark.parametrize(
    ("daemon", "flags"), [(Nsqlookupd, []), (Nsqadmin, ["--nsqd-http-address=127.0.0.1:1"])]
)
def test_all_daemons_have_the_same_rule(
    tmp_path: Path, daemon: Callable[[Path, list[str]], Daemon], flags: list[str]
) -> None:
    with daemon(tmp_path / "log", ["--http-host=a.example", *flags]) as started:
        assert get(started, "/ping", "a.example").body == b"OK"
        assert get(started, "/ping", socket.gethostname()).body == b"OK"
        for target in ("/ping", "/", "/topics", "/metrics"):
            check_refused(get(started, target, "evil.example"))
