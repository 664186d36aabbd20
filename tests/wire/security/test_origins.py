"""Requests of web pages: a page of somebody else changes nothing, whatever it asks for."""

import http.client
from pathlib import Path

import pytest

from tests.kit.daemons import IO_TIMEOUT_S, Nsqd, Nsqlookupd
from tests.kit.wire.open_nsqd import OpenNsqd
from tests.kit.wire.web import Answer, ask, ask_on, open_connection, read_to_end, send_raw

pytestmark = pytest.mark.deviation

FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]
CHANGING = [
    ("POST", "/pub?topic=t"),
    ("POST", "/pub?topic=t&defer=1000"),
    ("POST", "/mpub?topic=t"),
    ("POST", "/mpub?topic=t&binary=true"),
    ("POST", "/topic/create?topic=u"),
    ("POST", "/topic/delete?topic=t"),
    ("POST", "/topic/empty?topic=t"),
    ("POST", "/topic/pause?topic=t"),
    ("POST", "/topic/unpause?topic=t"),
    ("POST", "/topic/settings?topic=t"),
    ("POST", "/channel/create?topic=t&channel=d"),
    ("POST", "/channel/delete?topic=t&channel=c"),
    ("POST", "/channel/empty?topic=t&channel=c"),
    ("POST", "/channel/pause?topic=t&channel=c"),
    ("POST", "/channel/unpause?topic=t&channel=c"),
    ("POST", "/channel/seek?topic=t&channel=c&to=end"),
    ("POST", "/channel/disconnect?topic=t&channel=c&client=127.0.0.1:1"),
    ("POST", "/hold/create?topic=t&hold=h"),
    ("POST", "/hold/commit?topic=t&hold=h&offset=0"),
    ("POST", "/hold/delete?topic=t&hold=h"),
    ("PUT", "/config/log_level"),
    ("POST", "/drain"),
    ("POST", "/debug/freememory"),
    ("GET", "/debug/pprof/cmdline"),
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_somebody_else_changes_nothing(nsqd: Nsqd, headers: dict[str, str]) -> None:
    for made in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        assert ask(nsqd, "POST", made).status == 200
    before = nsqd.stats()["topics"]
    for method, target in CHANGING:
        answer = ask(nsqd, method, target, b"debug", headers=headers)
        assert (answer.status, answer.code) == (403, "FOREIGN_ORIGIN"), target
    assert nsqd.stats()["topics"] == before
    assert ask(nsqd, "GET", "/ready").status == 200


def test_a_page_under_another_name_changes_nothing(tmp_path: Path) -> None:
    """Where any name is answered; else `test_hosts` has it."""
    headers = {"Host": "evil.example:4151", "Origin": "http://evil.example:4151"}
    with OpenNsqd(tmp_path / "data") as nsqd:
        for method, target in CHANGING:
            answer = ask(nsqd, method, target, b"debug", headers=headers)
            assert (answer.status, answer.code) == (403, "FOREIGN_ORIGIN"), target
        assert ask(nsqd, "GET", "/stats", headers=headers).status == 200
        passed = ask(
            nsqd, "POST", "/topic/create?topic=t", headers={"Host": "some.service.internal"}
        )
        assert passed.status == 200


def test_figures_may_be_asked_for_from_anywhere(nsqd: Nsqd) -> None:
    for headers in FOREIGN:
        for target in ("/ping", "/info", "/stats", "/metrics", "/config/log_level"):
            assert ask(nsqd, "GET", target, headers=headers).status == 200


def test_pages_of_ours_and_clients_pass(nsqd: Nsqd, topic: str) -> None:
    own = f"127.0.0.1:{nsqd.http_port}"
    for headers in (
        {},
        {"Origin": f"http://{own}"},
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{own}"},
        {"Sec-Fetch-Site": "none"},
        {"Host": f"localhost:{nsqd.http_port}", "Origin": f"http://localhost:{nsqd.http_port}"},
    ):
        assert ask(nsqd, "POST", f"/pub?topic={topic}", b"x", headers=headers).status == 200


def test_a_refusal_is_for_one_request_and_the_connection_goes_on(nsqd: Nsqd, topic: str) -> None:
    connection = open_connection(nsqd)
    target = f"/pub?topic={topic}"
    statuses = [
        ask_on(connection, "POST", target, b"x", headers=headers).status
        for headers in ({}, FOREIGN[0], {}, FOREIGN[0], FOREIGN[2])
    ]
    connection.close()
    assert statuses == [200, 403, 200, 403, 403]
    assert nsqd.stats(topic)["topics"][0]["message_count"] == 2


def test_a_large_body_of_a_page_is_not_read(nsqd: Nsqd) -> None:
    head = b"POST /mpub?topic=t HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n"
    reply = read_to_end(send_raw(nsqd, head + b"Content-Length: 4000000\r\n\r\n"))
    assert reply.startswith(b"HTTP/1.1 403 ")
    assert b"Connection: close" in reply


def test_nsqlookupd_refuses_them_as_well(tmp_path: Path) -> None:
    with Nsqlookupd(tmp_path / "stderr") as lookupd:

        def post(target: str, headers: dict[str, str]) -> Answer:
            port = lookupd.http_port
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=IO_TIMEOUT_S)
            try:
                return ask_on(connection, "POST", target, headers=headers)
            finally:
                connection.close()

        assert post("/channel/create?topic=t&channel=c", {}).status == 200
        for headers in FOREIGN:
            for target in (
                "/topic/create?topic=u",
                "/topic/delete?topic=t",
                "/topic/tombstone?topic=t&node=n:1",
                "/channel/create?topic=t&channel=d",
                "/channel/delete?topic=t&channel=c",
            ):
                answer = post(target, headers)
                assert (answer.status, answer.code) == (403, "FOREIGN_ORIGIN")
        assert lookupd.http("GET", "/topics") == (200, b'{"topics":["t"]}')
        assert lookupd.http("GET", "/channels?topic=t") == (200, b'{"channels":["c"]}')
