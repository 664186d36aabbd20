"""Permissions: what an auth server grants to a client, and what that allows.

The server's answer is JSON:

| key            | value                                                                  |
|----------------|------------------------------------------------------------------------|
| ttl            | seconds after which it must be asked again, over 0                     |
| identity       | name of the client, shown in /stats                                    |
| identity_url   | where there is more about it                                           |
| authorizations | rows of `topic` (an expression), `channels` (expressions), and          |
|                | `permissions` (`publish`, `subscribe`)                                  |

A row allows something if it has the permission, its topic is found in the topic's name, and one
of its channels is found in the channel's name. Publishing has no channel: an expression must then
match the empty name. As Go does, keys match whatever their case, null counts as absent, and a
value of another type spoils the whole answer.
"""

from typing import Any, NamedTuple

import msgspec

from pumpline.core.protocol.expressions import (
    Expression,
    ExpressionError,
    compile_expression,
)

PUBLISH = "publish"
SUBSCRIBE = "subscribe"
TTL_S_MAX = 10 * 365 * 86_400  # longer is the same, and safe for every clock


class GrantError(Exception):
    """An answer that grants nothing; the text is for the log, not for the client."""


class Row(NamedTuple):
    topic: Expression
    channels: tuple[Expression, ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        wanted = SUBSCRIBE if channel else PUBLISH
        return (
            wanted in self.permissions
            and self.topic.search(topic) is not None
            and any(each.search(channel) is not None for each in self.channels)
        )


class Grant(NamedTuple):
    ttl_s: int
    identity: str
    identity_url: str
    rows: tuple[Row, ...]

    def allows(self, topic: str, channel: str = "") -> bool:
        """Whether a client may subscribe to the channel or, without one, publish to the topic."""
        return any(row.allows(topic, channel) for row in self.rows)


def parse_grant(body: bytes) -> Grant:
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise GrantError("the answer is no JSON") from None
    answer = _object(raw, "the answer")
    rows = tuple(_row(_object(row, "an authorization")) for row in _list(answer, "authorizations"))
    ttl_s = _field(answer, "ttl", int, 0)
    if ttl_s <= 0:
        raise GrantError(f"invalid TTL {ttl_s} (must be >0)")
    return Grant(
        ttl_s=min(ttl_s, TTL_S_MAX),
        identity=_field(answer, "identity", str, ""),
        identity_url=_field(answer, "identity_url", str, ""),
        rows=rows,
    )


def _row(raw: dict[str, Any]) -> Row:
    permissions = _texts(raw, "permissions")
    for permission in permissions:
        if permission not in (PUBLISH, SUBSCRIBE):
            raise GrantError(f"unknown permission {permission!a}")
    return Row(
        topic=_expression(_field(raw, "topic", str, ""), "topic"),
        channels=tuple(_expression(each, "channel") for each in _texts(raw, "channels")),
        permissions=frozenset(permissions),
    )


def _expression(text: str, what: str) -> Expression:
    try:
        return compile_expression(text)
    except ExpressionError as error:
        raise GrantError(f"unable to compile {what} {text!a}: {error}") from None


def _object(raw: object, what: str) -> dict[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise GrantError(f"{what} is no object")
    return {str(key).lower(): value for key, value in raw.items() if value is not None}


def _field(raw: dict[str, Any], name: str, kind: type[Any], default: Any) -> Any:
    value = raw.get(name, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise GrantError(f"{name} has the wrong type")
    return value


def _list(raw: dict[str, Any], name: str) -> list[Any]:
    return list(_field(raw, name, list, []))


def _texts(raw: dict[str, Any], name: str) -> list[str]:
    texts = ["" if each is None else each for each in _list(raw, name)]
    if not all(isinstance(each, str) for each in texts):
        raise GrantError(f"{name} has the wrong type")
    return texts
