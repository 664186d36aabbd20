"""docs/http.md: it has every route of both daemons and no other, each with an example that runs."""

import ast
import re
import shutil
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest

from pumpline.nsqd.http import routes as nsqd_routes
from pumpline.nsqlookupd import http as nsqlookupd_routes
from pumpline.testing import LocalNsqd, LocalNsqlookupd
from tests.kit.pages import DOCS, Reader, steps_of

PAGE = (DOCS / "http.md").read_text()
NSQD_PART, _, NSQLOOKUPD_PART = PAGE.partition("\n## nsqlookupd\n")
ROUTE = re.compile(r"^\| `(GET|POST|PUT) (/[^`?]*)`", re.M)
PATH = re.compile(r"/[a-z/]+(?::[a-z]+)?")


def routes_on(part: str) -> dict[str, set[str]]:
    """Methods by path, as the tables of the page have them."""
    methods: dict[str, set[str]] = {}
    for method, path in ROUTE.findall(part):
        methods.setdefault(path, set()).add(method)
    return methods


def paths_in(module_path: str) -> set[str]:
    """The paths in a module with a route table: its strings that look like one."""
    tree = ast.parse(Path(module_path).read_text())
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    found = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
    }
    return {text for text in found if PATH.fullmatch(text)}


def allowed(address: str, path: str) -> set[str]:
    """The methods that a daemon takes for a path."""
    url = f"http://{address}{path.replace(':opt', 'log_level')}"
    with urllib.request.urlopen(urllib.request.Request(url, method="OPTIONS")) as reply:
        return set(reply.headers["Allow"].split(", ")) - {"OPTIONS"}


@pytest.mark.parametrize(
    ("module", "part"),
    [(nsqd_routes, NSQD_PART), (nsqlookupd_routes, NSQLOOKUPD_PART)],
    ids=["nsqd", "nsqlookupd"],
)
def test_the_page_has_every_path_and_no_other(module: ModuleType, part: str) -> None:
    assert set(routes_on(part)) == paths_in(str(module.__file__))


def test_the_methods_on_the_page_are_those_of_the_daemons() -> None:
    with LocalNsqd() as nsqd, LocalNsqlookupd() as nsqlookupd:
        for daemon, part in ((nsqd, NSQD_PART), (nsqlookupd, NSQLOOKUPD_PART)):
            told = routes_on(part)
            assert len(told) >= 15
            assert {path: allowed(daemon.http_address, path) for path in told} == told


@pytest.mark.parametrize(
    ("port", "part"), [(4151, NSQD_PART), (4161, NSQLOOKUPD_PART)], ids=["nsqd", "nsqlookupd"]
)
def test_every_route_has_an_example(port: int, part: str) -> None:
    shown = set()
    for command, _ in steps_of("http.md"):
        if found := re.search(rf":{port}(/[^?'\" ]*)", command):
            method = re.search(r"-X (\w+)", command)
            body = re.search(r" -(?:d|-data-binary) ", command)
            path = re.sub(r"^/config/\w+", "/config/:opt", found[1])
            shown.add((method[1] if method else "POST" if body else "GET", path))
    assert shown == {(method, path) for path, told in routes_on(part).items() for method in told}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_examples_print_what_the_page_says(tmp_path: Path) -> None:
    assert Reader(tmp_path).follow("http.md") == len(steps_of("http.md")) >= 50
