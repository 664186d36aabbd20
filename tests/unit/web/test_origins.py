"""Whose page asks: what browsers of all kinds send, and what others send."""

import pytest

from pumpline.web.head import Head
from pumpline.web.hosts import OwnHosts
from pumpline.web.origins import is_foreign

OWN = OwnHosts(["node-7", "nsqd.example"])


def head(host: str | None, origin: str | None, site: str | None) -> Head:
    fields = {"host": host, "origin": origin, "sec-fetch-site": site}
    return Head(
        "POST", "/pub", {key: [value] for key, value in fields.items() if value is not None}
    )


@pytest.mark.parametrize(
    ("host", "origin", "site"),
    [
        (None, None, None),  # HTTP/1.0
        ("127.0.0.1:4151", None, None),  # curl, clients
        ("any.name.at.all", None, None),
        ("127.0.0.1:4151", "http://127.0.0.1:4151", None),
        ("[::1]:4151", "http://[::1]:4151", None),
        ("LOCALHOST:4151", "http://localhost:4151", "none"),
        ("nsqd.localhost:4151", "http://nsqd.localhost:4151", None),
        ("localhost.:4151", "http://localhost.:4151", None),
        ("node-7:4151", "http://node-7:4151", None),
        ("nsqd.example", "https://nsqd.example", None),
        ("10.0.0.7", "http://10.0.0.7", None),
        ("127.0.0.1:4151", "https://tools.example", "same-origin"),  # a proxy that set the Host
        ("127.0.0.1:4151", None, "none"),
    ],
)
def test_requests_that_pass(host: str | None, origin: str | None, site: str | None) -> None:
    assert not is_foreign(head(host, origin, site), OWN)


@pytest.mark.parametrize(
    ("host", "origin", "site"),
    [
        ("127.0.0.1:4151", "http://evil.example", None),
        ("127.0.0.1:4151", "null", None),  # a sandboxed frame, a file, a redirect
        ("127.0.0.1:4151", "http://127.0.0.1:4151", "cross-site"),
        ("127.0.0.1:4151", None, "cross-site"),
        ("localhost:4151", "http://localhost:3000", "same-site"),
        ("localhost:4151", "http://localhost:3000", None),
        ("localhost:4151", "http://localhost", None),
        ("localhost:4151", None, "same-site"),
        ("127.0.0.1:4151", None, "nonsense"),
        ("127.0.0.1:4151", "http://evil.example", "none"),
        ("evil.example:4151", "http://evil.example:4151", None),  # DNS rebinding
        ("127.0.0.1.evil.example", "http://127.0.0.1.evil.example", None),
        ("localhost.evil.example", "http://localhost.evil.example", None),
        ("notlocalhost", "http://notlocalhost", None),
        ("[::1]:4151", "http://[::1]:3000", None),
        ("[evil.example]:4151", "http://[evil.example]:4151", None),
        ("127.0.0.1:4151", "127.0.0.1:4151", None),
        ("127.0.0.1:4151", "chrome-extension://abcdef", None),
        ("127.0.0.1:4151", "http://user@127.0.0.1:4151", None),
        (None, "http://127.0.0.1:4151", None),
        ("", "http://", None),
    ],
)
def test_requests_of_other_peoples_pages(
    host: str | None, origin: str | None, site: str | None
) -> None:
    assert is_foreign(head(host, origin, site), OWN)


def test_every_value_counts() -> None:
    host = "127.0.0.1:4151"
    ours, evil = f"http://{host}", "http://evil.example"
    assert is_foreign(Head("POST", "/", {"host": [host], "origin": [ours, evil]}), OWN)
    assert is_foreign(Head("POST", "/", {"host": [host, "evil.example"], "origin": [ours]}), OWN)
    sites = {"host": [host], "sec-fetch-site": ["same-origin", "cross-site"]}
    assert is_foreign(Head("POST", "/", sites), OWN)


def test_a_server_with_pages_of_its_own_may_have_any_name() -> None:
    assert not is_foreign(head("admin.example", "http://admin.example", None), None)
    assert is_foreign(head("admin.example", "http://evil.example", None), None)
