"""Small texts from outside: what an auth server grants, settings of a topic, files of tokens.

Each is taken, or refused with the one error that is documented for it.
"""

import json
import random
from pathlib import Path

from pumpline.core.protocol.permissions import GrantError, parse_grant
from pumpline.core.text.settings import NO_SETTINGS, SettingsError, TopicSettings
from pumpline.nsqd.http.settings import _decoded
from pumpline.nsqd.security.http_tokens import AccessTokenError, read_access_tokens
from tests.fuzz.conftest import Play, Rounds
from tests.kit.fuzz.deadline import within
from tests.kit.fuzz.mutation import mutated

SEEDS = range(1, 301)
LIMIT_S = 20.0
VALUES: tuple[object, ...] = (
    None,
    True,
    0,
    -1,
    1,
    5,
    1 << 63,
    1 << 70,
    1.5,
    "",
    "1h",
    "-1s",
    "9" * 400 + "s",
    "a b",
    "t.dlq",
    "reject",
    "drop-oldest",
    "body",
    "json",
    ".*",
    "(",
    "(?i)^a{1,5}$",
    "a{1000}{1000}",
    "\ud800",
    [],
    ["publish"],
    ["subscribe", 1],
    {},
    [[]],
)
GRANT = {
    "ttl": 60,
    "identity": "i",
    "identity_url": "u",
    "authorizations": [
        {"topic": "^t$", "channels": [".*", "^c"], "permissions": ["publish", "subscribe"]}
    ],
}
TOKENS = b"# comment\n0123456789abcdef\nfedcba9876543210 read\n\n"


def value(rng: random.Random) -> object:
    return rng.choice(VALUES)


def text_of(rng: random.Random, decoded: object) -> bytes:
    """As JSON, or nearly."""
    data = json.dumps(decoded).encode()
    kind = rng.random()
    if kind < 0.3:
        return mutated(rng, data)
    if kind < 0.35:
        return rng.choice((b"[" * 20_000, b'{"a":' * 20_000, b"\xff", b"", b"null", b"1e999"))
    return data


def damaged_grant(rng: random.Random) -> object:
    grant = json.loads(json.dumps(GRANT))
    for _ in range(rng.randint(0, 3)):
        target = rng.choice((grant, *(grant["authorizations"] or [grant])))
        target[rng.choice((*GRANT, "topic", "channels", "permissions"))] = value(rng)
        if not isinstance(grant["authorizations"], list) or not all(
            isinstance(row, dict) for row in grant["authorizations"]
        ):
            break
    return grant


def timed(play: Play, rng: random.Random) -> None:
    with within(LIMIT_S):
        play(rng)


def test_anything_is_a_grant_or_none(rounds: Rounds) -> None:
    def play(rng: random.Random) -> None:
        text = text_of(rng, damaged_grant(rng))
        try:
            grant = parse_grant(text)
        except GrantError:
            return
        for topic in ("t", "", "x" * 64):
            assert grant.allows(topic, "c") in (True, False)

    rounds(lambda rng: timed(play, rng))


def test_anything_is_settings_or_an_error(rounds: Rounds) -> None:
    names = [name.removesuffix("_ns") for name in TopicSettings.__struct_fields__]

    def play(rng: random.Random) -> None:
        fields = {rng.choice((*names, "other")): value(rng) for _ in range(rng.randint(0, 4))}
        try:
            settings = NO_SETTINGS.changed(_decoded(text_of(rng, fields)))
            settings.check("t")
        except SettingsError as error:
            assert 0 < len(str(error)) < 300
            return
        assert NO_SETTINGS.changed(settings.shown()) == settings

    rounds(lambda rng: timed(play, rng))


def test_anything_is_tokens_or_an_error(rounds: Rounds, tmp_path: Path) -> None:
    path = tmp_path / "tokens"

    def play(rng: random.Random) -> None:
        path.write_bytes(mutated(rng, TOKENS * rng.choice((1, 1, 60))))
        path.chmod(0o600)
        try:
            tokens = read_access_tokens(str(path))
        except AccessTokenError as error:
            assert "0123456789abcdef" not in str(error)
            return
        assert 1 <= len(tokens) <= 100

    rounds(lambda rng: timed(play, rng))
