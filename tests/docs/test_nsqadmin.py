"""docs/nsqadmin.md: its examples print what it says, and it has every flag and route."""

import re
import shutil
from pathlib import Path

import pytest

from pumpline.nsqadmin.http import PAGE_API
from pumpline.nsqadmin.options import FLAGS
from tests.kit.pages import DOCS, Reader

PAGE = (DOCS / "nsqadmin.md").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_examples_print_what_the_page_says(tmp_path: Path) -> None:
    assert Reader(tmp_path).follow("nsqadmin.md") == 10


@pytest.mark.parametrize("name", sorted(flag.name for flag in FLAGS if flag.name != "verbose"))
def test_every_flag_is_there(name: str) -> None:
    if name.startswith("http-client-tls-"):
        name = name.removeprefix("http-client-tls")
        name = "http-client-tls-insecure-skip-verify" if "insecure" in name else name
    assert f"`{name}`" in PAGE


def test_every_route_of_the_page_is_there() -> None:
    source = Path(__file__).parents[2] / "src" / "pumpline" / "nsqadmin" / "http.py"
    routes = re.findall(r'\{PAGE_API\}/([a-z-]+)"', source.read_text())
    assert len(routes) > 10
    for route in routes:
        assert f"{PAGE_API}/{route}" in PAGE or f"`/{route}`" in PAGE
