"""A small cluster with nsqadmin, and a browser, for all tests of the page."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.kit.browser import Visitor, chromium
from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.nsqadmin_process import NsqadminProcess

Visit = Callable[..., Visitor]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def nsqlookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqlookupd]:
    with Nsqlookupd(tmp_path_factory.mktemp("ui") / "nsqlookupd.stderr") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def nsqds(
    tmp_path_factory: pytest.TempPathFactory, nsqlookupd: Nsqlookupd
) -> Iterator[tuple[Nsqd, Nsqd]]:
    flags = [
        f"--lookupd-tcp-address={nsqlookupd.tcp_address}",
        "--broadcast-address=127.0.0.1",
        "--max-req-timeout=1h",
    ]
    path = tmp_path_factory.mktemp("ui")
    with Nsqd(path / "one", flags) as one, Nsqd(path / "two", flags) as two:
        wait_until(lambda: nsqlookupd.http("GET", "/nodes")[1].count(b'"tcp_port"') == 2)
        yield one, two


@pytest.fixture(scope="module")
def nsqadmin(
    tmp_path_factory: pytest.TempPathFactory, nsqlookupd: Nsqlookupd, nsqds: tuple[Nsqd, Nsqd]
) -> Iterator[NsqadminProcess]:
    log: Path = tmp_path_factory.mktemp("ui") / "nsqadmin.stderr"
    flag = f"--lookupd-http-address={nsqlookupd.http_address}"
    with NsqadminProcess(log, flag) as process:
        yield process


@pytest.fixture
def visit(browser: Browser, nsqadmin: NsqadminProcess) -> Iterator[Visit]:
    """Opens a window; the test fails if the browser reported an error in one of them."""
    visitors: list[Visitor] = []

    def open_window(
        *, width: int = 1280, dark: bool = False, address: str = "", user: str = ""
    ) -> Visitor:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            extra_http_headers={"X-Forwarded-User": user} if user else {},
        )
        visitor = Visitor(context, address or nsqadmin.http_address)
        visitors.append(visitor)
        return visitor

    yield open_window
    for visitor in visitors:
        errors = visitor.errors
        visitor.page.context.close()
        assert errors == []
