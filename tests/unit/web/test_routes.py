"""Routes: who answers, and what becomes of paths that are almost right."""

import pytest

from pumpline.web.routes import Allowed, Found, Redirect, Routes, clean_path

ROUTES = Routes(
    {
        ("GET", "/ping"): "ping",
        ("GET", "/pages/"): "pages",
        ("POST", "/topic/create"): "create",
        ("GET", "/config/:opt"): "get",
        ("PUT", "/config/:opt"): "put",
        ("GET", "/topics"): "topics",
        ("GET", "/topics/:topic"): "topic",
        ("GET", "/topics/:topic/:channel"): "channel",
    }
)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/ping", Found("ping", "")),
        ("POST", "/topic/create", Found("create", "")),
        ("GET", "/config/a", Found("get", "a")),
        ("PUT", "/config/A%2f", Found("put", "A%2f")),
        ("GET", "/ping/", Redirect("/ping")),
        ("GET", "/pages", Redirect("/pages/")),
        ("GET", "/PaGeS", Redirect("/pages/")),
        ("GET", "//ping//", Redirect("/ping")),
        ("GET", "/x/../ping/.", Redirect("/ping")),
        ("GET", "/../../ping", Redirect("/ping")),
        ("GET", "/Config/Aa/", Redirect("/config/Aa")),
        ("PUT", "/config/./Aa", Redirect("/config/Aa")),
        ("POST", "/Topic//Create", Redirect("/topic/create")),
        ("POST", "/ping", Allowed(["GET", "OPTIONS"])),
        ("OPTIONS", "/ping", Allowed(["GET", "OPTIONS"])),
        ("HEAD", "/config/a", Allowed(["GET", "OPTIONS", "PUT"])),
        ("HEAD", "/ping/", None),
        ("OPTIONS", "/PING", None),
        ("GET", "/config/", None),
        ("GET", "/config", None),
        ("GET", "/config/a/b", None),
        ("POST", "/PING", None),
        ("GET", "/", None),
        ("GET", "", None),
        ("GET", "*", None),
        ("GET", "/pong", None),
        ("GET", "/topics/a", Found("topic", "a")),
        ("GET", "/topics/a/b", Found("channel", "a/b")),
        ("GET", "/Topics/A/b/", Redirect("/topics/A/b")),
        ("GET", "/topics/", Redirect("/topics")),
        ("GET", "/topics//a", Redirect("/topics/a")),
        ("PUT", "/topics/a/b", Allowed(["GET", "OPTIONS"])),
        ("GET", "/topics/a/b/c", None),
        ("GET", "/x/a/b", None),
    ],
)
def test_resolve(method: str, path: str, expected: object) -> None:
    assert ROUTES.resolve(method, path) == expected


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("", "/"),
        ("/", "/"),
        ("a", "/a"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b/"),
        ("//a///b", "/a/b"),
        ("/./a/./b/.", "/a/b/"),
        ("/a/../b", "/b"),
        ("/../..", "/"),
        ("/a/b/..", "/a/"),
        ("/...", "/..."),
    ],
)
def test_clean_path(path: str, clean: str) -> None:
    assert clean_path(path) == clean
