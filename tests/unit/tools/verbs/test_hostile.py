"""Verbs against servers that answer what no nsqd answers: told by node, never a traceback."""

from collections.abc import Iterator

import pytest

from tests.kit.tools.fake_nsqd import FakeNsqd, fake_nsqd
from tests.kit.tools.verbs import Pumpline

ORDERS = b'{"topics":[{"topic_name":"orders","channels":[{"channel_name":"billing"}]}]}'
HOLD = b'{"topics":[{"topic_name":"orders","channels":[{"channel_name":"h","hold":true}]}]}'
BODIES = [
    b"",
    b"OK",
    b"null",
    b"1",
    b"[]",
    b"{}",
    b"\xff\x00",
    b'{"topics":{}}',
    b'{"topics":[{"topic_name":7}]}',
    b'{"topics":[{"topic_name":"orders","channels":null}]}',
    b'{"producers":[{}],"holds":[7],"settings":[],"messages":{}}',
    ORDERS,
    HOLD,
]
COMMANDS = [
    "topics",
    "channels",
    "channels orders",
    "holds",
    "deadletters",
    "deadletters show orders",
    "deadletters publish orders --all --yes",
    "settings orders",
    "seek orders billing --to end --yes",
    "pause orders",
    "delete orders billing --yes",
    "doctor",
    "top --once --interval 100ms",
]


@pytest.fixture(scope="module")
def liar() -> Iterator[FakeNsqd]:
    with fake_nsqd() as server:
        yield server


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("kind", ["nsqd", "lookupd"])
def test_no_answer_makes_a_verb_fall_over(
    liar: FakeNsqd, pumpline: Pumpline, kind: str, status: int
) -> None:
    liar.status = status
    flag = f"--{kind}=127.0.0.1:{liar.server_port}"
    for liar.body in BODIES:
        for command in COMMANDS:
            said = pumpline(*command.split(), flag)
            assert said.code in (0, 1, 2), (command, liar.body)
            assert status == 200 or said.code, (command, liar.body)


def test_an_answer_does_not_steer_the_terminal(liar: FakeNsqd, pumpline: Pumpline) -> None:
    liar.status, liar.body = 500, b"\x1b[2Joops\n"
    said = pumpline("topics", f"--nsqd=127.0.0.1:{liar.server_port}")
    assert said.err == f"nsqd 127.0.0.1:{liar.server_port}: 500 \\x1b[2Joops\n"
