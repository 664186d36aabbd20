"""nsqadmin's page as a person sees it, in a real browser."""

import json
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from tests.kit.browser import AXE
from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.nsqadmin_process import NsqadminProcess
from tests.ui.conftest import Visit

HOSTILE = "<img src=x onerror=alert(1)>"
PAGES = [
    "/",
    "/topics",
    "/topics?of=channels",
    "/topics/orders",
    "/topics/orders/billing",
    "/nodes",
]
PAGES += ["/lookup", "/counter", "/topics/none"]
PAGES += [f"/topics/orders?show={part}" for part in ("dead", "settings", "holds")]


def every_page(nsqds: tuple[Nsqd, Nsqd]) -> list[str]:
    node = f"127.0.0.1:{nsqds[0].http_port}"
    return [*PAGES, f"/nodes/{node}", f"/topics/orders?node={node}&offset=5"]


@pytest.fixture(scope="module", autouse=True)
def orders(nsqds: tuple[Nsqd, Nsqd]) -> None:
    """A topic on both nodes, with a channel that has messages, some with odd bodies."""
    for nsqd in nsqds:
        nsqd.http("POST", "/topic/create?topic=orders")
        nsqd.http("POST", "/channel/create?topic=orders&channel=billing")
        bodies = [json.dumps({"order": number, "total": 12.5}).encode() for number in range(5)]
        for body in [*bodies, HOSTILE.encode(), b"\x00\xff\xfe"]:
            nsqd.http("POST", "/pub?topic=orders", body)


# -- every page -------------------------------------------------------------------------------


Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
# Between the two only colours differ, so the rules about colours are enough for the second.
AXE_RULES: dict[Scheme, dict[str, object]] = {"light": {}, "dark": {"runOnly": ["cat.color"]}}
AXE_RUN = "(only) => axe.run(document, {resultTypes: ['violations'], ...only})"


@pytest.mark.parametrize("width", [1280, 320])
def test_every_page_renders_and_nothing_scrolls_sideways(
    visit: Visit, nsqds: tuple[Nsqd, Nsqd], width: int
) -> None:
    visitor = visit(width=width)
    for path in every_page(nsqds):
        page = visitor.open(path)
        page.locator("main h1, main p").first.wait_for(state="attached")
        page.wait_for_load_state("load")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, scheme)


def test_an_accessibility_check_finds_nothing(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: `make ui-js` installs it, where npm exists")
    with nsqds[0].connect() as client:  # so that the table of consumers has a row
        client.sub("orders", "billing")
        visitor = visit()
        for path in every_page(nsqds):
            page = visitor.open(path)
            page.locator("#main tbody tr:visible, #main p.bad:visible").first.wait_for()
            check_accessibility(page, path)
        for path, button in DIALOGS.items():
            page = visitor.open(path)
            page.get_by_role("button", name=button).first.click()
            page.get_by_role("dialog").wait_for()
            check_accessibility(page, path)


DIALOGS = {
    "/topics/orders": "Delete…",
    "/topics/orders?show=x": "New channel…",
    "/topics/orders/billing": "Rewind…",
    "/topics/orders/billing?show=x": "Disconnect",
    "/lookup": "New topic…",
}


def check_accessibility(page: Page, path: str) -> None:
    page.evaluate(AXE.read_text())
    for scheme, only in AXE_RULES.items():
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(AXE_RUN, only)
        faults = [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]]
        assert faults == [], (path, scheme)


def test_it_needs_nothing_from_elsewhere(visit: Visit, nsqadmin: NsqadminProcess) -> None:
    visitor = visit()
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    visitor.open("/topics/orders")
    visitor.wait_for_text("tbody th", "billing")
    assert {url.split("/")[2] for url in asked} == {nsqadmin.http_address}


# -- what it shows ----------------------------------------------------------------------------


def test_numbers_move_without_a_reload(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqds[0].http("POST", "/pub?topic=moving", b"x")
    visitor = visit()
    visitor.open("/topics?search=moving")
    visitor.wait_for_text("tbody th", "moving")
    before = visitor.row("moving")
    for _ in range(30):
        nsqds[0].http("POST", "/pub?topic=moving", b"x")
    wait_until(lambda: "31" in visitor.row("moving"))
    assert visitor.row("moving") != before


def test_trouble_comes_first_and_in_words(visit: Visit) -> None:
    visitor = visit()
    visitor.open("/")
    visitor.wait_for_text(".troubles li", "orders › billing")
    assert "no consumer" in visitor.page.locator(".troubles li", has_text="billing").inner_text()


def test_search_sort_and_page_are_in_the_address(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    visitor = visit()
    page = visitor.open("/topics")
    page.get_by_label("Search Topics").fill("ORD")
    page.wait_for_url("**search=ORD")
    visitor.wait_for_text(".range", "1–1 of 1")
    page.get_by_role("columnheader", name="waiting").get_by_role("button").click()
    page.get_by_role("columnheader", name="messages").get_by_role("button").click()
    page.wait_for_url("**sort=-message_count**")
    address = page.url
    page.reload()
    visitor.wait_for_text(".range", "1–1 of 1")
    assert page.url == address
    head = page.get_by_role("columnheader", name="messages")
    assert head.get_attribute("aria-sort") == "descending"
    page.locator("tbody a", has_text="orders").click()
    page.wait_for_url("**/topics/orders")
    page.go_back()
    visitor.wait_for_text(".range", "1–1 of 1")
    page.go_back()  # to the order before
    page.wait_for_url("**sort=-waiting")
    assert page.get_by_role("columnheader", name="waiting").get_attribute("aria-sort")


def test_the_counter_counts_what_channels_take(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqds[0].http("POST", "/topic/create?topic=counted")
    nsqds[0].http("POST", "/channel/create?topic=counted&channel=ch")
    visitor = visit()
    page = visitor.open("/counter")
    visitor.wait_for_text("tbody th", "counted")
    nsqds[0].http("POST", "/mpub?topic=counted", b"a\nb\nc")
    wait_until(lambda: page.locator(".counter").inner_text() == "3")


def test_what_clients_say_is_text(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqd = nsqds[1]
    with nsqd.connect() as client:
        client.identify({"client_id": HOSTILE, "user_agent": HOSTILE, "hostname": HOSTILE})
        client.sub("orders", "billing")
        visitor = visit()
        page = visitor.open("/topics/orders/billing")
        visitor.wait_for_text("td", HOSTILE)
        visitor.wait_for_text(".message .body", HOSTILE)
        assert page.locator("main img").count() == 0


def test_messages_by_offset_and_text_and_where_one_stands(
    visit: Visit, nsqds: tuple[Nsqd, Nsqd]
) -> None:
    visitor = visit()
    page = visitor.open("/topics/orders")
    visitor.wait_for_text(".message", "order")
    page.get_by_label("Contains").fill('"order": 3')
    page.get_by_role("button", name="Look").click()
    wait_until(lambda: page.locator(".message").count() == 2)  # one on each node
    page.reload()  # what is looked for is in the address
    wait_until(lambda: page.locator(".message").count() == 2)
    page.locator(".message summary").first.click()
    assert page.locator(".message pre").first.inner_text() == '{\n  "order": 3,\n  "total": 12.5\n}'
    page.get_by_role("link", name="where it stands").first.click()
    visitor.wait_for_text("tbody th", "billing")
    assert visitor.row("billing")[0] == "waits"
    with page.expect_download() as download:
        page.get_by_role("link", name="download").click()
    assert download.value.path().read_bytes() == b'{"order": 3, "total": 12.5}'


def test_more_messages_are_older_ones(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqds[0].http("POST", "/mpub?topic=many", b"\n".join(b"%d" % n for n in range(25)))
    visitor = visit()
    page = visitor.open("/topics/many")
    wait_until(lambda: page.locator(".message").count() == 20)
    page.get_by_role("button", name="More").click()
    wait_until(lambda: page.locator(".message").count() == 25)
    assert page.locator(".message .body").all_inner_texts() == [str(n) for n in range(24, -1, -1)]


def test_a_live_tail_shows_what_is_published(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    visitor = visit()
    page = visitor.open("/topics/orders")
    tail = page.get_by_role("button", name="Live tail")
    tail.click()
    visitor.wait_for_text("main p", "as they are published")

    def published() -> bool:
        nsqds[0].http("POST", "/pub?topic=orders", b"fresh")
        return page.locator(".message", has_text="fresh").count() > 0

    wait_until(published)
    page.locator("form.tools").get_by_role("button", name="Pause", exact=True).click()
    shown = page.locator(".message").count()
    nsqds[0].http("POST", "/pub?topic=orders", b"fresher")
    visitor.wait_for_text("button", "Go on (1)")
    assert page.locator(".message").count() == shown
    page.get_by_role("button", name="Go on").click()
    visitor.wait_for_text(".message", "fresher")


def test_an_empty_cluster_says_what_to_do(visit: Visit, tmp_path: Path) -> None:
    with Nsqlookupd(tmp_path / "nsqlookupd") as nsqlookupd:
        flag = f"--lookupd-http-address={nsqlookupd.http_address}"
        with NsqadminProcess(tmp_path / "nsqadmin", flag) as empty:
            visitor = visit(address=empty.http_address)
            page = visitor.open("/")
            visitor.wait_for_text(".calm", "No nsqd is known yet. Start one with")
            visitor.wait_for_text(".empty", "There are no topics yet.")
            page.goto("about:blank")  # its streams end before nsqadmin does


def test_a_node_that_is_not_there_is_told_and_nothing_else(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("/nodes/127.0.0.1:1")
    visitor.wait_for_text("main .bad", "No nsqd of this cluster has this address.")
    assert not page.locator("#banner").is_visible()  # nsqadmin answers
    assert page.locator("main table:visible").count() == 0
    visitor.errors.clear()  # the browser tells of every answer that is no 200


def test_a_hold_says_whose_it_is(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqds[0].http("POST", "/pub?topic=kept", b"x")
    whose = "description=%3Cb%3ESpark+on+a+machine"
    nsqds[0].http("POST", f"/hold/create?topic=kept&hold=archive&to=beginning&{whose}")
    visitor = visit()
    visitor.open("/topics/kept?show=holds")
    visitor.wait_for_text("tbody th .about", "<b>Spark on a machine")


NUMBERS = """async () => {
  const { plainTable } = await import("/static/table.js");
  const columns = [{ label: "n", number: true, show: (row) => row.n.toLocaleString("en-US") }];
  const table = plainTable("Numbers", [{ label: "name", head: true, show: () => "x" }, ...columns]);
  document.getElementById("main").replaceChildren(table);
  const shown = [9_999_999, 20_042_123, 12_345_678_901, 98_765_432_109_876];
  table.update(shown.map((n) => ({ key: n, n })));
  const cells = [...table.querySelectorAll("tbody td")];
  return cells.map((cell) => [cell.textContent, cell.title, cell.scrollWidth <= cell.clientWidth]);
}"""


def test_numbers_are_not_cut(visit: Visit) -> None:
    assert visit().open("/nodes").evaluate(NUMBERS) == [
        ["9,999,999", "", True],
        ["20.0 M", "20,042,123", True],
        ["12.3 G", "12,345,678,901", True],
        ["98.8 T", "98,765,432,109,876", True],
    ]


# -- what it does -----------------------------------------------------------------------------


def test_a_pause_acts_at_once_and_can_be_undone(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    visitor = visit()
    page = visitor.open("/topics/orders/billing")
    page.get_by_role("button", name="Pause", exact=True).click()
    for nsqd in nsqds:
        wait_until(lambda: nsqd.channel_stats("orders", "billing")["paused"])  # noqa: B023
    page.get_by_role("button", name="Undo").click()
    wait_until(lambda: not nsqds[0].channel_stats("orders", "billing")["paused"])


def test_a_delete_wants_the_name(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    for nsqd in nsqds:
        nsqd.http("POST", "/pub?topic=doomed", b"x")
    visitor = visit()
    page = visitor.open("/topics/doomed")
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    assert "1 message waiting" in dialog.inner_text() or "2 messages waiting" in dialog.inner_text()
    act = dialog.get_by_role("button", name="Delete")
    assert act.is_disabled()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert nsqds[0].stats("doomed")["topics"]
    page.get_by_role("button", name="Delete…").click()
    dialog.get_by_role("textbox").fill("Doomed")
    assert act.is_disabled()
    dialog.get_by_role("textbox").fill("doomed")
    act.click()
    wait_until(lambda: not any(nsqd.stats("doomed")["topics"] for nsqd in nsqds))


def test_a_rewind_tells_the_count_and_delivers_again(
    visit: Visit, nsqds: tuple[Nsqd, Nsqd]
) -> None:
    nsqd = nsqds[0]
    nsqd.http("POST", "/topic/create?topic=again")
    nsqd.http("POST", "/channel/create?topic=again&channel=ch")
    for _ in range(10):
        nsqd.http("POST", "/pub?topic=again", b"x")
    with nsqd.connect() as client:
        client.sub("again", "ch")
        client.rdy(10)
        for _ in range(10):
            client.fin(client.read_message().id)
    wait_until(lambda: nsqd.channel_stats("again", "ch")["depth"] == 0)
    visitor = visit()
    page = visitor.open("/topics/again/ch")
    page.get_by_role("button", name="Rewind…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Beginning").click()
    visitor.wait_for_text(".effect", "10 messages will be delivered again, from the beginning")
    dialog.get_by_label("Offset").fill("4")
    visitor.wait_for_text(".effect", "6 messages will be delivered again, from offset 4")
    assert nsqd.channel_stats("again", "ch")["depth"] == 0
    dialog.get_by_role("button", name="Rewind").click()
    wait_until(lambda: nsqd.channel_stats("again", "ch")["depth"] == 6)


def test_many_rows_at_once(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    for name in ("bulk1", "bulk2"):
        nsqds[0].http("POST", f"/topic/create?topic={name}")
    visitor = visit()
    page = visitor.open("/topics?search=bulk")
    visitor.wait_for_text(".range", "1–2 of 2")
    page.get_by_label("select bulk1").check()
    page.get_by_label("select all rows").check()
    page.get_by_role("button", name="Pause", exact=True).click()
    wait_until(
        lambda: all(
            each["paused"] for each in nsqds[0].stats()["topics"] if "bulk" in each["topic_name"]
        )
    )
    page.get_by_role("button", name="Delete…").click()
    visitor.wait_for_text("dialog p", "bulk1, bulk2")
    page.get_by_role("dialog").get_by_role("textbox").fill("delete 2")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    wait_until(lambda: not any("bulk" in t["topic_name"] for t in nsqds[0].stats()["topics"]))


def test_one_node_alone(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    for nsqd in nsqds:
        nsqd.http("POST", "/topic/create?topic=alone")
    visitor = visit()
    page = visitor.open("/topics/alone")
    page.get_by_label("Act on").select_option(f"127.0.0.1:{nsqds[1].http_port}")
    page.get_by_role("button", name="Pause", exact=True).click()
    wait_until(lambda: nsqds[1].stats("alone")["topics"][0]["paused"])
    assert not nsqds[0].stats("alone")["topics"][0]["paused"]


def test_dead_letters_are_published_again(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqd = nsqds[0]
    nsqd.http("POST", "/topic/create?topic=fails")
    nsqd.http("POST", "/topic/settings?topic=fails", b'{"max_attempts":1}')
    nsqd.http("POST", "/channel/create?topic=fails&channel=ch")
    for number in range(3):
        nsqd.http("POST", "/pub?topic=fails", b"letter %d" % number)
    with nsqd.connect() as client:
        client.sub("fails", "ch")
        client.rdy(1)
        for _ in range(3):
            client.req(client.read_message().id)
    visitor = visit()
    page = visitor.open("/topics/fails/ch?show=dead")
    visitor.wait_for_text(".letter", "letter 2")
    page.locator(".letter", has_text="letter 1").get_by_role("checkbox").check()
    page.get_by_role("button", name="Publish 1 again").click()
    wait_until(lambda: nsqd.stats("fails")["topics"][0]["message_count"] == 4)
    page.get_by_role("button", name="Publish all again…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("fails")
    dialog.get_by_role("button", name="Publish").click()
    # the one that was published before is not published twice
    wait_until(lambda: nsqd.stats("fails")["topics"][0]["message_count"] == 6)


def test_settings_are_changed_and_taken_back(visit: Visit, nsqds: tuple[Nsqd, Nsqd]) -> None:
    nsqds[0].http("POST", "/topic/create?topic=tuned")

    def attempts() -> object:
        told = json.loads(nsqds[0].http("GET", "/topic/settings?topic=tuned")[1])
        return told["settings"]["max_attempts"]

    visitor = visit()
    page = visitor.open("/topics/tuned?show=settings")
    field = page.get_by_label("max_attempts")
    change = page.get_by_role("button", name="Change")
    field.fill("many")
    change.click()
    visitor.wait_for_text(".toast.error", "max_attempts must be a whole number")
    assert field.input_value() == "many"  # to be mended
    visitor.errors.clear()  # the browser tells of every answer that is no 200
    field.fill("7")
    change.click()
    wait_until(lambda: attempts() == 7)
    page.get_by_role("button", name="Undo").click()
    wait_until(lambda: attempts() is None)


def test_who_may_only_look_has_no_buttons(
    visit: Visit, nsqlookupd: Nsqlookupd, tmp_path: Path
) -> None:
    flags = [f"--lookupd-http-address={nsqlookupd.http_address}", "--admin-user=ann"]
    with NsqadminProcess(tmp_path / "stderr", *flags) as guarded:
        for user, buttons in (("bob", 0), ("ann", 1)):
            visitor = visit(address=guarded.http_address, user=user)
            page = visitor.open("/topics/orders/billing")
            page.locator(".gauges", has_text="waiting").wait_for()
            expect(page.get_by_role("button", name="Delete…")).to_have_count(buttons)
            page.goto("about:blank")  # its streams end before nsqadmin does


def test_light_or_dark_stays_as_it_was_chosen(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("/")
    html = page.locator("html")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Light or dark").click()
    expect(html).to_have_attribute("data-theme", "dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.goto(page.url + "topics/orders")
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Light or dark").click()
    page.reload()
    assert page.evaluate(ground) == light


def test_the_keyboard_is_enough(visit: Visit) -> None:
    visitor = visit()
    page = visitor.open("/")
    visitor.wait_for_text("tbody th", "orders")
    page.keyboard.press("/")
    page.keyboard.type("orders")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics?search=orders")
    visitor.wait_for_text(".range", "1–1 of 1")
    page.locator("body").press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders")
