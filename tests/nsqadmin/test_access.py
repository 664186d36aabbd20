"""Who may do what: users, other people's web pages, /config, base paths, and the page's headers."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from pumpline.nsqadmin.pages import PAGE_DIRECTORY
from tests.kit.nsqadmin.process import Nsqadmin, lookupd_flags, running_nsqadmin
from tests.kit.nsqadmin.upstreams import FakeDaemon, lookupd_of

WRITES = [
    ("POST", "/api/topics"),
    ("POST", "/api/topics/orders"),
    ("POST", "/api/topics/orders/billing"),
    ("DELETE", "/api/topics/orders"),
    ("DELETE", "/api/topics/orders/billing"),
    ("DELETE", "/api/nodes/127.0.0.1:4151"),
    ("POST", "/api/v1/actions"),
    ("POST", "/api/v1/rewind"),
    ("POST", "/api/v1/settings"),
    ("POST", "/api/v1/dead-letters"),
]
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
PAGES = ("", "/topics", "/topics/a", "/topics/a/b", "/nodes", "/nodes/a", "/counter", "/lookup")


@pytest.fixture(scope="module")
def lookupd() -> Iterator[FakeDaemon]:
    with FakeDaemon(lookupd_of()) as fake:
        yield fake


@pytest.fixture(scope="module")
def guarded(lookupd: FakeDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqadmin]:
    """Only ann and bob may change things; it is at /nsq/admin."""
    with running_nsqadmin(
        Path(tmp_path_factory.mktemp("guarded")) / "log",
        *lookupd_flags([lookupd.address]),
        "--admin-user=ann",
        "--admin-user=bob",
        "--acl-http-header=X-User",
        "--base-path=nsq//admin/",
        "--allow-config-from-cidr=10.0.0.0/8",
    ) as admin:
        yield admin


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize("headers", [{}, {"X-User": "eve"}, {"X-Forwarded-User": "ann"}])
def test_strangers_change_nothing(
    guarded: Nsqadmin, lookupd: FakeDaemon, method: str, path: str, headers: dict[str, str]
) -> None:
    body = {"topic": "orders", "action": "pause", "targets": [{"topic": "orders"}]}
    answer = guarded.ask(f"/nsq/admin{path}", body, method=method, headers=headers)
    assert (answer.status, answer.message) == (403, "FORBIDDEN")
    assert [each for each in lookupd.asked if each.method == "POST"] == []


def test_admins_may(guarded: Nsqadmin) -> None:
    for user in ("ann", "bob"):
        answer = guarded.ask("/nsq/admin/api/topics", {"topic": "t"}, headers={"X-User": user})
        assert (answer.status, answer.message) == (200, "")


@pytest.mark.parametrize(("user", "is_admin"), [("ann", True), ("eve", False), ("", False)])
def test_the_page_is_told_who_asks(guarded: Nsqadmin, user: str, is_admin: bool) -> None:
    told = guarded.ask("/nsq/admin/api/v1/session", headers={"X-User": user}).json()
    assert (told["user"], told["is_admin"], told["admin_users"]) == (user, is_admin, True)
    assert told["base_path"] == "/nsq/admin"


class Metas(HTMLParser):
    """What a page says in its <meta> elements, and the attributes of its <html>."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.by_name: dict[str, str] = {}
        self.html: dict[str, str | None] = {}
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "meta" and (name := told.get("name")):
            self.by_name[name] = told.get("content") or ""
        if tag == "html":
            self.html = told


@pytest.mark.parametrize("user", ["ann", "", '"><script>alert(1)</script>', "{{base}}", "\xe9\xff"])
def test_the_page_itself_says_who_asks(guarded: Nsqadmin, user: str) -> None:
    headers = {"X-User": user}
    answer = guarded.ask("/nsq/admin/topics", headers=headers)
    told = guarded.ask("/nsq/admin/api/v1/session", headers=headers).json()
    assert json.loads(Metas(answer.body).by_name["session"]) == told
    assert b"<script>" not in answer.body
    assert answer.headers["cache-control"] == "private, no-cache"
    again = {"If-None-Match": answer.headers["etag"]}
    assert guarded.ask("/nsq/admin/topics", headers={**headers, **again}).status == 304
    other = guarded.ask("/nsq/admin/topics", headers={"X-User": "bob", **again})
    assert other.status == 200


@pytest.mark.parametrize(
    ("cookie", "theme"),
    [
        ("nsqadmin-theme=dark", "dark"),
        ("a=b; nsqadmin-theme=light; c=d", "light"),
        ('nsqadmin-theme="><script>', None),
        ("theme=dark", None),
        ("", None),
    ],
)
def test_the_page_is_as_light_as_was_chosen(
    guarded: Nsqadmin, cookie: str, theme: str | None
) -> None:
    answer = guarded.ask("/nsq/admin", headers={"Cookie": cookie})
    assert Metas(answer.body).html.get("data-theme") == theme
    assert b"<script>" not in answer.body


def test_config_is_for_its_network_alone(guarded: Nsqadmin) -> None:
    for method, body in (("GET", None), ("PUT", b"debug")):
        answer = guarded.ask("/nsq/admin/config/log_level", body, method=method)
        assert (answer.status, answer.message) == (403, "FORBIDDEN")


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_below_the_base_path(guarded: Nsqadmin, page: str) -> None:
    answer = guarded.ask(f"/nsq/admin{page}")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == CSP
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"{{" not in answer.body
    assert b'content="/nsq/admin"' in answer.body
    assert guarded.ask(page or "/").status == 404


def test_files_of_the_page(guarded: Nsqadmin) -> None:
    page = guarded.ask("/nsq/admin/topics").body.decode()
    named = re.findall(r'(?:href|src)="(/nsq/admin/static/[^"]*)"', page)
    assert "/nsq/admin/static/app.js" in named
    for path in named:
        assert guarded.ask(path).status == 200
    script = guarded.ask("/nsq/admin/static/app.js").body.decode()
    modules = {path.name for path in PAGE_DIRECTORY.glob("*.js")} - {"app.js"}
    assert set(re.findall(r'^import .*"\./(.*)";$', script, re.M)) == modules  # none is found late
    for name in ("nope.js", "index.html", "", "..", quote("../server.py", safe="")):
        for folder in ("static", "fonts"):
            answer = guarded.ask(f"/nsq/admin/{folder}/{name}")
            assert answer.status == 404
            assert b"NOT_FOUND" in answer.body


def test_files_from_another_directory(lookupd: FakeDaemon, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "index.html").write_text("<title>{{base}}/static/app.js</title>")
    (files / "app.js").write_text("let a = 1;\n" * 500)
    (files / ".secret").write_text("x")
    with running_nsqadmin(
        tmp_path / "log", *lookupd_flags([lookupd.address]), f"--dev-static-dir={files}"
    ) as admin:
        assert admin.ask("/lookup").body == b"<title>/static/app.js</title>"
        plain = admin.ask("/static/app.js")
        assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
        assert plain.headers["content-security-policy"] == CSP
        packed = admin.ask("/static/app.js", headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert len(packed.body) < len(plain.body) / 10
        again = admin.ask("/static/app.js", headers={"If-None-Match": plain.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert admin.ask("/static/.secret").status == 404
        (files / "app.js").write_text("let b = 2;")
        assert admin.ask("/static/app.js").body == b"let b = 2;"


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"},
    ],
)
def test_web_pages_of_others_change_nothing(
    guarded: Nsqadmin, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = guarded.ask(
        f"/nsq/admin{path}", {"topic": "t"}, method=method, headers={"X-User": "ann", **headers}
    )
    assert (answer.status, answer.message) == (403, "FOREIGN_ORIGIN")


def test_our_own_page_may(guarded: Nsqadmin) -> None:
    origin = f"http://127.0.0.1:{guarded.http_port}"
    for headers in ({"Sec-Fetch-Site": "same-origin", "Origin": origin}, {"Origin": origin}, {}):
        answer = guarded.ask(
            "/nsq/admin/api/topics", {"topic": "t"}, headers={"X-User": "ann", **headers}
        )
        assert answer.status == 200


def test_a_directory_that_is_not_there(lookupd: FakeDaemon, tmp_path: Path) -> None:
    with running_nsqadmin(
        tmp_path / "log", *lookupd_flags([lookupd.address]), f"--dev-static-dir={tmp_path / 'no'}"
    ) as admin:
        assert admin.ask("/").status == 404
        assert admin.ask("/static/app.js").status == 404
        assert "panic" not in admin.log_text()
