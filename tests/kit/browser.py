"""A real browser for the tests of nsqadmin's page: Chromium from PATH, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
AXE = Path(__file__).parents[1] / "ui" / "js" / "node_modules" / "axe-core" / "axe.min.js"
TIMEOUT_MS = 60_000


def chromium_path() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium on PATH: install it (Debian: apt-get install chromium)")
    # Chromium has no sandbox for root, nor in most containers.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Somebody with a browser window. Whatever the browser reports as an error is kept."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        context.set_default_timeout(TIMEOUT_MS)
        self.errors: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self._address = address

    def open(self, path: str) -> Page:
        self.page.goto(f"http://{self._address}{path}")
        return self.page

    def row(self, text: str) -> list[str]:
        """The cells of the first row with that text in its head."""
        line = self.page.locator("tbody tr", has=self.page.locator("th", has_text=text)).first
        return line.locator("td").all_inner_texts()

    def wait_for_text(self, selector: str, text: str) -> None:
        self.page.locator(selector, has_text=text).first.wait_for()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)
