"""Parts of pages that a person comes to for one purpose: bodies, what waits where, retention,
holds, nsqlookupds, tombstones; and what the page says of nodes that lack something or fail."""

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from pumpline.core.messages.dead_letter import dead_letter
from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.nsqadmin.upstreams import Asked, FakeDaemon, a_node, lookupd_of
from tests.kit.nsqadmin_process import NsqadminProcess
from tests.nsqadmin.test_failures import healthy
from tests.ui.conftest import Visit


def test_a_large_body_is_cut_and_can_be_downloaded(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    body = b"begins " + b"x" * 100_000 + b" ends"
    nsqds[0].http("POST", "/pub?topic=large", body)
    visitor = visit()
    page = visitor.open("/topics/large")
    page.locator(".message summary").click()
    visitor.wait_for_text(".opened", "only the beginning is shown")
    shown = page.locator(".message pre").inner_text()
    assert shown.startswith("begins") and "ends" not in shown
    with page.expect_download() as download:
        page.get_by_role("link", name="download").click()
    assert download.value.path().read_bytes() == body
    page.get_by_role("button", name="hex").click()
    assert page.locator(".message pre").inner_text().startswith("000000  62 65 67 69 6e 73 20 78")


def test_json_as_text_and_as_bytes(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    exact = b'{"id":12345678901234567890,"b":[1.0]}'  # JavaScript would change both numbers
    for body in (b'{"a":1}', exact, b"\x00\xff"):
        nsqds[0].http("POST", "/pub?topic=forms", body)
    visitor = visit()
    page = visitor.open("/topics/forms")
    visitor.wait_for_text(".message", '{"a":1}')
    binary, odd, plain = (page.locator(".message").nth(place) for place in range(3))
    for each in (binary, odd, plain):
        each.locator("summary").click()
    assert plain.locator("pre").inner_text() == '{\n  "a": 1\n}'
    plain.get_by_role("button", name="text").click()
    assert plain.locator("pre").inner_text() == '{"a":1}'
    assert odd.locator("pre").inner_text() == exact.decode()
    assert binary.locator("pre").inner_text().startswith("000000  00 ff")
    expect(binary.get_by_role("button", name="JSON")).to_have_count(0)


def test_what_is_in_flight_and_what_is_deferred(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqd = nsqds[0]
    nsqd.http("POST", "/topic/create?topic=states")
    nsqd.http("POST", "/channel/create?topic=states&channel=ch")
    nsqd.http("POST", "/pub?topic=states", b"first")
    nsqd.http("POST", "/pub?topic=states&defer=3000000", b"later")
    nsqd.http("POST", "/pub?topic=states", b"second")
    with nsqd.connect() as client:
        client.sub("states", "ch")
        client.rdy(1)
        client.read_message()
        visitor = visit()
        page = visitor.open("/topics/states/ch")
        visitor.wait_for_text(".message .body", "second")
        for state, body in (("in flight", "first"), ("deferred", "later"), ("waiting", "second")):
            page.locator("form.tools").get_by_role("button", name=state).click()
            wait_until(lambda body=body: page.locator(".message .body").all_inner_texts() == [body])
        page.locator("form.tools").get_by_role("button", name="requeued").click()
        visitor.wait_for_text("main p", "No message was requeued and waits again.")


def test_retention_says_what_it_deletes_next(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqd = nsqds[0]
    nsqd.http("POST", "/topic/create?topic=aging")
    nsqd.http("POST", "/channel/create?topic=aging&channel=slow")
    nsqd.http("POST", "/topic/settings?topic=aging", b'{"retention_time":"2h"}')
    nsqd.http("POST", "/pub?topic=aging", b"x")
    visitor = visit()
    page = visitor.open("/topics/aging?show=settings")
    line = page.locator("li", has_text=f"127.0.0.1:{nsqd.http_port}")
    line.wait_for()
    told = line.inner_text()
    assert re.search(r"1 message, \d+ B; consumed ones stay 2h0m0s, and up to 2\d\d MB", told)
    assert "may be deleted at" in told and "It is kept by slow." in told


def test_a_hold_says_what_it_pins_and_can_be_deleted(
    visit: Visit, nsqds: tuple[Nsqd, Nsqd]
) -> None:
    nsqd = nsqds[0]
    nsqd.http("POST", "/mpub?topic=pinned", b"a\nb\nc")
    nsqd.http("POST", "/hold/create?topic=pinned&hold=lake&to=beginning&description=Query+7")
    visitor = visit()
    page = visitor.open("/topics/pinned?show=holds")
    visitor.wait_for_text("tbody th .about", "Query 7")
    row = page.get_by_role("table", name="Holds").locator("tbody tr")
    _, offset, behind, pins, *_ = row.locator("td").all_inner_texts()
    assert (offset, behind) == ("0", "3")
    assert re.fullmatch(r"\d+ B of 11 GB", pins)
    row.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    assert "Its reader loses its place." in dialog.inner_text()
    dialog.get_by_role("textbox").fill("lake")
    dialog.get_by_role("button", name="Delete").click()
    wait_until(lambda: b"lake" not in nsqd.http("GET", "/hold/list?topic=pinned")[1])


def test_an_address_of_a_part_leads_to_it(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqds[0].http("POST", "/pub?topic=sought", b"x")
    visitor = visit()
    page = visitor.open("/topics/sought?show=holds")
    expect(page.get_by_role("tab", name="Holds")).to_be_in_viewport()
    top = "document.querySelector('.tabs[role=tablist]').getBoundingClientRect().top"
    wait_until(lambda: page.evaluate(top) < 100)
    page = visitor.open("/topics/sought")
    visitor.wait_for_text(".message", "x")
    assert page.evaluate("scrollY") == 0


def test_a_new_topic_and_one_that_no_nsqd_has(visit: Visit, nsqlookupd: Nsqlookupd) -> None:
    def topics() -> Any:
        return json.loads(nsqlookupd.http("GET", "/topics")[1])["topics"]

    visitor = visit()
    page = visitor.open("/lookup")
    page.get_by_role("button", name="New topic…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("planned")
    dialog.get_by_role("button", name="Create").click()
    wait_until(lambda: "planned" in topics())
    visitor.wait_for_text("tbody th", "planned")
    page.locator("tr", has_text="planned").get_by_role("button", name="Delete…").click()
    act = dialog.get_by_role("button", name="Delete")
    assert act.is_disabled()  # NSQ's page deletes it without asking
    dialog.get_by_role("textbox").fill("planned")
    act.click()
    wait_until(lambda: "planned" not in topics())


def test_a_tombstone_is_of_one_node(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    for nsqd in nsqds:
        nsqd.http("POST", "/pub?topic=moved", b"x")
    visitor = visit()
    page = visitor.open(f"/nodes/127.0.0.1:{nsqds[0].http_port}?t_search=moved")
    page.get_by_label("select moved").first.check()
    page.get_by_role("button", name="Tombstone…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("moved")
    dialog.get_by_role("button", name="Tombstone").click()
    wait_until(lambda: not nsqds[0].stats("moved")["topics"])
    assert nsqds[1].stats("moved")["topics"]


def test_who_may_only_look_can_change_nothing_anywhere(
    visit: Visit, nsqds: tuple[Nsqd, Nsqd], nsqlookupd: Nsqlookupd, tmp_path: Path
) -> None:
    nsqd = nsqds[0]
    nsqd.http("POST", "/pub?topic=looked", b"x")
    nsqd.http("POST", "/channel/create?topic=looked&channel=ch")
    nsqd.http("POST", "/hold/create?topic=looked&hold=h&to=beginning")
    flags = [f"--lookupd-http-address={nsqlookupd.http_address}", "--admin-user=ann"]
    node = f"/nodes/127.0.0.1:{nsqd.http_port}"
    parts = [f"/topics/looked?show={part}" for part in ("messages", "dead", "settings", "holds")]
    with NsqadminProcess(tmp_path / "stderr", *flags) as guarded:
        visitor = visit(address=guarded.http_address, user="bob")
        for path in (
            "/topics",
            "/topics?of=channels",
            *parts,
            "/topics/looked/ch",
            node,
            "/lookup",
        ):
            page = visitor.open(path)
            page.locator("#main tbody tr").first.wait_for()
            visitor.wait_for_text("#who", "bob, may only look")
            expect(page.locator("#main input[type=checkbox]")).to_have_count(0)
            expect(page.locator("#main button:visible", has_text="…")).to_have_count(0)
            expect(page.locator("#main button:visible", has_text="Change")).to_have_count(0)
        page.goto("about:blank")  # its streams end before nsqadmin does


def test_a_dead_letter_says_why_it_was_given_up(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqd = nsqds[0]
    nsqd.http("POST", "/topic/create?topic=typed")
    letter = dead_letter(
        topic="typed",
        channel="billing",
        message_id="0123456789abcdef",
        attempts=1,
        timestamp_ns=1,
        body=b'"seven"',
        reason="Expected `int`, got `str`",
    )
    nsqd.http("POST", "/pub?topic=typed.dlq", letter)
    visitor = visit()
    page = visitor.open("/topics/typed?show=dead")
    visitor.wait_for_text(".letter summary", "not valid")
    page.locator(".letter summary").first.click()
    visitor.wait_for_text(".letter .reason", "Given up because: Expected `int`, got `str`")


def test_a_go_nsqd_shows_what_it_has_and_says_what_it_lacks(visit: Visit, tmp_path: Path) -> None:
    with FakeDaemon(healthy) as nsqd:
        lookupd = FakeDaemon(lookupd_of(a_node(nsqd.port, "orders")))
        flag = f"--lookupd-http-address={lookupd.address}"
        with lookupd, NsqadminProcess(tmp_path / "stderr", flag) as admin:
            visitor = visit(address=admin.http_address)
            page = visitor.open("/topics/orders")
            visitor.wait_for_text("tbody td", "no log: a Go nsqd")
            visitor.wait_for_text("main p", f"{nsqd.address}: a Go nsqd cannot do this.")
            page.get_by_role("tab", name="Settings").click()
            visitor.wait_for_text("main p", "No node here has settings: they are pumpline's.")
            page.get_by_role("tab", name="Dead letters").click()
            visitor.wait_for_text("main p", f"{nsqd.address}: a Go nsqd cannot do this.")
            page.get_by_role("tab", name="Holds").click()
            visitor.wait_for_text("main p", f"{nsqd.address}: a Go nsqd cannot do this.")
            page = visitor.open("/topics/orders/billing")
            visitor.wait_for_text(".gauges", "waiting")
            page.get_by_role("button", name="Empty…").wait_for()
            expect(page.get_by_role("button", name="Rewind…")).to_have_count(0)
            page.goto("about:blank")


def test_many_consumers_can_be_searched(visit: Visit, tmp_path: Path) -> None:
    many = [{"client_id": f"c{n}", "remote_address": f"10.0.0.{n}:1"} for n in range(120)]

    def crowded(asked: Asked) -> tuple[int, str]:
        status, text = healthy(asked)
        clients = f'"clients": {json.dumps(many)}, "channel_name"'
        return status, text.replace('"channel_name"', clients)

    with FakeDaemon(crowded) as nsqd:
        lookupd = FakeDaemon(lookupd_of(a_node(nsqd.port, "orders")))
        flag = f"--lookupd-http-address={lookupd.address}"
        with lookupd, NsqadminProcess(tmp_path / "stderr", flag) as admin:
            visitor = visit(address=admin.http_address)
            page = visitor.open("/topics/orders/billing")
            visitor.wait_for_text(".range", "1–50 of 120")
            page.get_by_label("Search Consumers").fill("c7")
            visitor.wait_for_text(".range", "1–11 of 11")
            del many[2:]
            page.reload()
            visitor.wait_for_text(".empty", "Nothing matches.")
            page.get_by_label("Search Consumers").fill("")
            visitor.wait_for_text(".range", "1–2 of 2")
            page = visitor.open("/topics/orders/billing")
            visitor.wait_for_text(".range", "1–2 of 2")
            assert not page.get_by_label("Search Consumers").is_visible()
            page.goto("about:blank")


def test_what_failed_is_told_node_by_node(visit: Visit, tmp_path: Path) -> None:
    def failing(asked: Asked) -> tuple[int, str]:
        if asked.method == "POST":
            return 500, '{"message":"INTERNAL_ERROR","detail":"the disk is full"}'
        return healthy(asked)

    with FakeDaemon(healthy) as good, FakeDaemon(failing) as bad:
        lookupd = FakeDaemon(lookupd_of(a_node(good.port, "orders"), a_node(bad.port, "orders")))
        flag = f"--lookupd-http-address={lookupd.address}"
        with lookupd, NsqadminProcess(tmp_path / "stderr", flag) as admin:
            visitor = visit(address=admin.http_address)
            page = visitor.open("/topics/orders")
            page.get_by_role("button", name="Pause", exact=True).click()
            dialog = page.get_by_role("dialog")
            dialog.wait_for()
            assert "Paused: 1 failure" in dialog.inner_text()
            assert (
                f"{bad.address} orders: 500 INTERNAL_ERROR: the disk is full" in dialog.inner_text()
            )
            page.goto("about:blank")


def test_a_link_of_a_row_keeps_its_focus_while_figures_change(
    visit: Visit, nsqds: tuple[Nsqd, Nsqd]
) -> None:
    node = f"127.0.0.1:{nsqds[0].http_port}"
    nsqds[0].http("POST", "/pub?topic=focused", b"x")
    visitor = visit()
    page = visitor.open("/topics/focused")
    link = page.locator("tbody th").get_by_role("link", name=node)
    link.focus()
    nsqds[0].http("POST", "/mpub?topic=focused", b"a\nb")
    wait_until(lambda: visitor.row(node)[6] == "3")  # messages
    expect(link).to_be_focused()
