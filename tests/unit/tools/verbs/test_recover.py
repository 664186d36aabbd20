"""`pumpline recover`: odd files and nodes get a sentence each, and no message is lost by them."""

import os
from pathlib import Path

import pytest

from pumpline.core.messages.batches import Builder
from pumpline.core.messages.frame import encode_message
from pumpline.log.bad_files import BYTES_MAX
from pumpline.log.missing import token_of
from pumpline.testing import LocalNsqd
from tests.kit.tools.verbs import Fleet, Pumpline, Said

NAME = f"{5:020d}.log.0.bad"
FIRST_ID, NOW_NS = 1 << 50, 1_700_000_000_000_000_000
BODIES = [b"one", b"two", b"three"]


def damaged(
    bodies: list[bytes] = BODIES, *, is_beyond_repair: bool = False, first_id: int = FIRST_ID
) -> bytes:
    builder = Builder(first=5, timestamp_ns=NOW_NS)
    for number, body in enumerate(bodies):
        builder.add(
            encode_message(
                timestamp_ns=NOW_NS + number, attempts=1, message_id=first_id + number, body=body
            )
        )
    data = bytearray(b"".join(builder.seal().parts()))
    data[-1] ^= 1
    if is_beyond_repair:
        data[-2] ^= 1
        data[-3] ^= 1
    return bytes(data)


@pytest.fixture
def topic_path(nsqd: LocalNsqd) -> Path:
    nsqd.post("/topic/create?topic=orders")
    return nsqd.data_path / "topics" / "orders"


def recover(pumpline: Pumpline, nsqd: LocalNsqd, *flags: str) -> Said:
    return pumpline("recover", f"--data-path={nsqd.data_path}", *flags)


def sentences(said: Said) -> list[str]:
    lines = said.err.splitlines()
    assert all(line.startswith("pumpline recover: ") for line in lines), said.err
    return lines


def test_missing_messages_are_shown_then_published_once(
    nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline
) -> None:
    bad = topic_path / NAME
    bad.write_bytes(damaged())
    (row,) = recover(pumpline, nsqd).json()
    assert row == {
        "topic": "orders",
        "found": 3,
        "held": 0,
        "republished": 0,
        "missing": 3,
        "doubtful": 0,
        "first_timestamp": NOW_NS,
        "last_timestamp": NOW_NS + 2,
    }
    assert nsqd.messages("orders") == []
    for _ in range(2):
        (row,) = recover(pumpline, nsqd, "--publish").json()
        assert (row["republished"], row["missing"], row["first_timestamp"]) == (3, 0, 0)
        assert nsqd.messages("orders") == BODIES
    assert bad.read_bytes() == damaged()


def test_a_table_for_people(nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline) -> None:
    (topic_path / NAME).write_bytes(damaged())
    said = recover(pumpline, nsqd, "--table")
    assert said.out.splitlines()[0].split("  ")[0] == "topic"
    assert said.words[0][:6] == ["orders", "3", "0", "0", "3", "0"]


def test_doubtful_messages_are_published_on_demand(
    nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline
) -> None:
    (topic_path / NAME).write_bytes(damaged(is_beyond_repair=True))
    (row,) = recover(pumpline, nsqd, "--publish", "--rename").json()
    assert (row["missing"], row["doubtful"], row["republished"]) == (0, 3, 0)
    assert nsqd.messages("orders") == []
    assert (topic_path / NAME).exists()
    (row,) = recover(pumpline, nsqd, "--publish", "--doubtful", "--rename").json()
    assert (row["doubtful"], row["republished"]) == (0, 3)
    assert nsqd.messages("orders")[:2] == BODIES[:2]
    assert [path.name for path in topic_path.glob("*.bad*")] == [NAME + ".recovered"]


def test_a_certain_copy_wins_over_a_doubtful_one(
    nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline
) -> None:
    (topic_path / NAME).write_bytes(damaged(is_beyond_repair=True))
    (topic_path / f"{5:020d}.log.7.bad").write_bytes(damaged())
    assert recover(pumpline, nsqd, "--publish", "--doubtful").code == 0
    assert nsqd.messages("orders") == BODIES


def test_what_is_no_file_is_left_alone(
    nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline, tmp_path: Path
) -> None:
    (topic_path / NAME).write_bytes(damaged())
    os.mkfifo(topic_path / f"{5:020d}.log.1.bad")
    (topic_path / f"{5:020d}.log.2.bad").mkdir()
    (topic_path / f"{5:020d}.log.3.bad").symlink_to(tmp_path / "elsewhere")
    (topic_path / "c.cursor.bad").write_bytes(b"x")
    os.mkfifo(nsqd.data_path / f"wal-{0:020d}.0.bad")
    said = recover(pumpline, nsqd, "--publish", "--rename")
    assert said.code == 0
    for part in (
        "log.1.bad is a named",
        "2.bad is a directory",
        "3.bad is a symbolic link",
        "c.cursor.bad is not of a log",
        "wal-00000000000000000000.0.bad is a named",
    ):
        assert sum(part in line for line in sentences(said)) == 1, said.err
    assert nsqd.messages("orders") == BODIES


def test_a_file_that_is_too_large(nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline) -> None:
    (topic_path / NAME).write_bytes(damaged())
    other = topic_path / f"{5:020d}.log.9.bad"
    with other.open("wb") as file:
        file.truncate(BYTES_MAX + 1)
    said = recover(pumpline, nsqd, "--publish", "--rename")
    assert said.code == 1
    assert f"cannot read {other}" in said.err
    assert other.exists()
    assert nsqd.messages("orders") == BODIES


def test_hostile_bytes(nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline) -> None:
    (topic_path / NAME).write_bytes(b"\xff" * 5000)
    (nsqd.data_path / f"wal-{0:020d}.0.bad").write_bytes(damaged())  # of no topic that is here
    said = recover(pumpline, nsqd, "--publish", "--rename")
    assert (said.code, said.json()) == (0, [])
    assert "5,000 bytes belong to no message" in said.err
    assert "3 messages are of topics that" in said.err
    assert (nsqd.data_path / f"wal-{0:020d}.0.bad").exists()


def test_a_node_that_is_absent(nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline) -> None:
    (topic_path / NAME).write_bytes(damaged())
    said = recover(pumpline, nsqd, "--publish", "--nsqd=127.0.0.1:1")
    assert (said.code, said.json()[0]["missing"]) == (1, 3)
    (line,) = sentences(said)
    assert "nsqd 127.0.0.1:1: " in line
    assert line.endswith("after 0 messages; run the same command again: none is stored twice")


def test_a_topic_that_was_deleted_is_not_made_again(
    nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline
) -> None:
    (topic_path / NAME).write_bytes(damaged())
    with LocalNsqd() as other:
        said = recover(pumpline, nsqd, "--publish", f"--nsqd={other.http_address}")
        assert (said.code, said.json()[0]["missing"]) == (1, 3)
        assert "has no topic orders: make it there" in sentences(said)[0]
        assert other.stats()["topics"] == []


def test_a_message_that_nsqd_refuses_does_not_stop_the_others(
    nsqd: LocalNsqd, topic_path: Path, pumpline: Pumpline
) -> None:
    (topic_path / NAME).write_bytes(
        damaged([b"one"]) + damaged([b"x" * 2_000_000], is_beyond_repair=True, first_id=9)
    )
    said = recover(pumpline, nsqd, "--publish", "--doubtful", "--rename")
    assert said.code == 1
    assert "MSG_TOO_BIG" in said.err
    assert nsqd.messages("orders") == [b"one"]
    assert (topic_path / NAME).exists()


def test_usage(fleet: Fleet, pumpline: Pumpline, tmp_path: Path) -> None:
    for flags, text in (
        ((), "--data-path says which"),
        ((f"--data-path={tmp_path}", "--rename"), "go with --publish"),
        ((f"--data-path={fleet.one.data_path}", "--publish"), "needs one nsqd"),
    ):
        said = pumpline("recover", *flags)
        assert (said.code, text in said.err) == (2, True), said
    said = pumpline("recover", f"--data-path={tmp_path}")
    assert (said.code, "is no data directory of nsqd" in said.err) == (1, True)


def test_a_token_has_the_id_and_the_time() -> None:
    assert token_of(255, NOW_NS) == f"recover:00000000000000ff:{NOW_NS}"
