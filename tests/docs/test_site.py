"""The site of the documentation: built strictly, with every page, and nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.pages import DOCS

TIMEOUT_S = 300


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory],
        cwd=DOCS.parent,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.mark.slow
def test_every_page_is_on_the_site(site: Path) -> None:
    pages = {f"{path.stem}.html" for path in DOCS.glob("*.md")}
    assert pages <= {path.name for path in site.glob("*.html")}
    assert (site / "project/ARCHITECTURE.html").is_file()


@pytest.mark.slow
def test_links_out_of_docs_lead_to_pages_of_the_site(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert 'href="project/CONTRIBUTING.html"' in text
    for page in site.rglob("*.html"):
        for link in re.findall(r'href="([^":#?]+)(?:#[^"]*)?"', page.read_text()):
            if page.name != "404.html":
                assert (page.parent / link).exists(), f"{page.relative_to(site)}: {link}"


@pytest.mark.slow
def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text()
        )
        assert not fetched, page
