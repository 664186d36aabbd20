"""A consumer is sent away from its channel, by a click."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.kit.daemons import Nsqd, Nsqlookupd, RawClient, wait_until
from tests.kit.nsqadmin.upstreams import Asked, FakeDaemon, a_node, lookupd_of
from tests.kit.nsqadmin_process import NsqadminProcess
from tests.nsqadmin.test_failures import healthy
from tests.ui.conftest import Visit

PAGE = "/topics/stuck/ch"


def address(client: RawClient) -> str:
    return "{}:{}".format(*client.socket.getsockname())


@pytest.fixture
def consumer(nsqds: tuple[Nsqd, Nsqd]) -> Iterator[RawClient]:
    """Holds two messages of a topic."""
    nsqds[0].http("POST", "/topic/create?topic=stuck")
    nsqds[0].http("POST", "/channel/create?topic=stuck&channel=ch")
    nsqds[0].http("POST", "/channel/empty?topic=stuck&channel=ch")
    nsqds[0].http("POST", "/mpub?topic=stuck", b"a\nb")
    with nsqds[0].connect() as client:
        client.identify({"client_id": "worker", "hostname": "somewhere"})
        client.sub("stuck", "ch")
        client.rdy(2)
        for _ in range(2):
            client.read_message()
        yield client


def test_it_is_asked_first_and_told_after(
    visit: Visit, nsqds: tuple[Nsqd, Nsqd], consumer: RawClient
) -> None:
    visitor = visit()
    page = visitor.open(PAGE)
    button = page.get_by_role("button", name=f"Disconnect {address(consumer)}")
    button.wait_for()
    wait_until(lambda: visitor.row(address(consumer))[4] == "2")  # in flight
    button.click()
    dialog = page.get_by_role("dialog")
    for text in (address(consumer), "worker @ somewhere", "2 messages", "may connect again"):
        assert text in dialog.inner_text()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert nsqds[0].channel_stats("stuck", "ch")["client_count"] == 1

    button.click()
    dialog.get_by_role("button", name="Disconnect").click()
    told = f"Disconnected {address(consumer)}. 2 messages went back to ch."
    visitor.wait_for_text(".toast", told)
    with pytest.raises((EOFError, ConnectionError)):
        consumer.read_frame(60)
    with nsqds[0].connect() as other:
        other.sub("stuck", "ch")
        other.rdy(2)
        assert {other.read_message().body for _ in range(2)} == {b"a", b"b"}
        page.get_by_role("heading", name="Consumers").click()
        page.mouse.move(0, 0)  # not where the table may come to be
        visitor.wait_for_text("tbody th", address(other))


def test_one_that_has_gone_meanwhile_is_told(
    visit: Visit, nsqds: tuple[Nsqd, Nsqd], consumer: RawClient
) -> None:
    visitor = visit()
    page = visitor.open(PAGE)
    client = address(consumer)
    page.get_by_role("button", name=f"Disconnect {client}").click()
    dialog = page.get_by_role("dialog")
    consumer.close()
    wait_until(lambda: nsqds[0].channel_stats("stuck", "ch")["client_count"] == 0)
    dialog.get_by_role("button", name="Disconnect").click()
    visitor.wait_for_text(".toast", f"{client} is not connected any more.")
    visitor.errors.clear()  # the browser tells of every answer that is no 200


def test_who_may_only_look_has_no_button(
    visit: Visit, nsqlookupd: Nsqlookupd, consumer: RawClient, tmp_path: Path
) -> None:
    flags = [f"--lookupd-http-address={nsqlookupd.http_address}", "--admin-user=ann"]
    with NsqadminProcess(tmp_path / "stderr", *flags) as guarded:
        for user, buttons in (("bob", 0), ("ann", 1)):
            visitor = visit(address=guarded.http_address, user=user)
            page = visitor.open(PAGE)
            visitor.wait_for_text("tbody th", address(consumer))
            expect(page.get_by_role("button", name="Disconnect")).to_have_count(buttons)
            page.goto("about:blank")  # its streams end before nsqadmin does


def test_a_go_nsqd_says_why_it_cannot(visit: Visit, tmp_path: Path) -> None:
    def go_nsqd(asked: Asked) -> tuple[int, str]:
        status, text = healthy(asked)
        client = '"clients": [{"client_id": "c", "remote_address": "10.0.0.9:1"}], "channel_name"'
        return status, text.replace('"channel_name"', client)

    with FakeDaemon(go_nsqd) as nsqd:
        node = a_node(nsqd.port, "orders")
        with FakeDaemon(lookupd_of(node)) as lookupd:
            flag = f"--lookupd-http-address={lookupd.address}"
            with NsqadminProcess(tmp_path / "stderr", flag) as admin:
                visitor = visit(address=admin.http_address)
                page = visitor.open("/topics/orders/billing")
                page.get_by_role("button", name="Disconnect 10.0.0.9:1").click()
                why = f"{nsqd.address} is a Go nsqd, which cannot disconnect a consumer."
                visitor.wait_for_text(".toast.error", why)
                page.goto("about:blank")
    assert [asked for asked in nsqd.asked if asked.method == "POST"] == []


def test_the_first_to_come_is_shown_to_somebody_who_points_at_the_empty_table(
    visit: Visit, nsqds: tuple[Nsqd, Nsqd]
) -> None:
    nsqds[0].http("POST", "/topic/create?topic=lonely")
    nsqds[0].http("POST", "/channel/create?topic=lonely&channel=ch")
    visitor = visit()
    page = visitor.open("/topics/lonely/ch")
    page.get_by_text("Nobody consumes it.").hover()
    with nsqds[0].connect() as consumer:
        consumer.sub("lonely", "ch")
        visitor.wait_for_text("tbody th", address(consumer))
