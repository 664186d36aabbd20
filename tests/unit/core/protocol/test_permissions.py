"""Grants: which answers of an auth server are any, and what they allow."""

import json

import pytest

from pumpline.core.protocol.permissions import TTL_S_MAX, Grant, GrantError, parse_grant

BOTH = ["publish", "subscribe"]


def granted(*rows: object, **fields: object) -> Grant:
    return parse_grant(json.dumps({"ttl": 1, "authorizations": rows, **fields}).encode())


@pytest.mark.parametrize(
    ("row", "may_publish", "may_subscribe"),
    [
        ({"topic": ".*", "channels": [".*"], "permissions": BOTH}, True, True),
        ({"topic": "", "channels": [""], "permissions": BOTH}, True, True),
        ({"topic": ".*", "channels": [".*"], "permissions": ["publish"]}, True, False),
        ({"topic": ".*", "channels": [".*"], "permissions": ["subscribe"]}, False, True),
        ({"topic": ".*", "channels": [".*"], "permissions": []}, False, False),
        ({"topic": "opi", "channels": ["h"], "permissions": BOTH}, False, True),
        ({"topic": "^opi", "channels": [".*"], "permissions": BOTH}, False, False),
        # Publishing has no channel, which an expression must match all the same.
        ({"topic": ".*", "channels": [], "permissions": BOTH}, False, False),
        ({"topic": ".*", "channels": ["^ch$"], "permissions": BOTH}, False, True),
        ({"topic": ".*", "channels": ["^$"], "permissions": BOTH}, True, False),
        ({"topic": ".*", "channels": ["^$", "^ch$"], "permissions": BOTH}, True, True),
        ({}, False, False),
        (None, False, False),
    ],
)
def test_what_a_row_allows(row: object, may_publish: bool, may_subscribe: bool) -> None:
    grant = granted(row)
    assert grant.allows("topic") is may_publish
    assert grant.allows("topic", "ch") is may_subscribe


def test_rows_do_not_mix() -> None:
    grant = granted(
        {"topic": "^a$", "channels": [".*"], "permissions": ["publish"]},
        {"topic": "^b$", "channels": [".*"], "permissions": ["subscribe"]},
    )
    assert grant.allows("a") and grant.allows("b", "ch")
    assert not grant.allows("b") and not grant.allows("a", "ch")


def test_fields() -> None:
    grant = granted(ttl=60, identity="somebody", identity_url="http://localhost/")
    assert grant == (60, "somebody", "http://localhost/", ())


def test_time_is_bounded() -> None:
    assert granted(ttl=1 << 62).ttl_s == TTL_S_MAX


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"1",
        b"null",
        b"[]",
        b"{}",
        b'{"ttl":0}',
        b'{"ttl":-1}',
        b'{"ttl":true}',
        b'{"ttl":1.5}',
        b'{"ttl":"1"}',
        b'{"ttl":1,"identity":[]}',
        b'{"ttl":1,"authorizations":{}}',
        b'{"ttl":1,"authorizations":[1]}',
        b'{"ttl":1,"authorizations":[{"topic":1}]}',
        b'{"ttl":1,"authorizations":[{"topic":"("}]}',
        b'{"ttl":1,"authorizations":[{"channels":[1]}]}',
        b'{"ttl":1,"authorizations":[{"channels":["["]}]}',
        b'{"ttl":1,"authorizations":[{"permissions":["administer"]}]}',
    ],
)
def test_answers_that_grant_nothing(body: bytes) -> None:
    with pytest.raises(GrantError):
        parse_grant(body)
