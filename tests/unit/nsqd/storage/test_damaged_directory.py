"""Every kind of file of a data directory, damaged or replaced by something else while nsqd is down.

nsqd starts, says what it cannot read and delivers the rest; or it refuses to start, with one
sentence that names the file, where starting could lose messages. It never waits for the other end
of a pipe.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pumpline.nsqd.claim import Claim
from pumpline.nsqd.options import Options
from pumpline.nsqd.server import Server
from pumpline.web.sockets import StartupError
from tests.kit.fake_broker import log_of

PATIENCE_S = 60.0
OTHER = {b"other %d" % number for number in range(3)}
HIT = {b"hit %d" % number for number in range(8)}
LAST = {b"other last", b"hit last"}  # only the write-ahead log has them

PATTERNS = {
    "format": "format",
    "running": "running",
    "metadata": "nsqd.dat",
    "wal": "wal-*",
    "manifest": "topics/hit/topic.json",
    "oldest segment": "topics/hit/00000000000000000000.log",
    "newest segment": "topics/hit/*.log",
    "cursor": "topics/hit/c.cursor",
    "tokens": "topics/hit/tokens",
    "holds": "topics/hit/holds.json",
    "gap": "topics/hit/*.gap",
}
NEEDED = ("format", "metadata", "wal", "oldest segment", "newest segment")
REPLACED = ("named pipe", "directory", "link to nothing")
CHANGED = ("empty", "half", "flipped")
REFUSED_IF_CHANGED = {("format", "empty"), ("format", "flipped")} | {
    ("metadata", way) for way in CHANGED
}
SILENT = {  # a kill leaves such files, or they are as good as before
    ("format", "half"),
    ("wal", "empty"),
    ("oldest segment", "empty"),
    ("newest segment", "empty"),
    ("tokens", "empty"),
}


class Outcome(NamedTuple):
    refusal: str  # empty: it started
    said: str
    received: set[bytes]


def options_for(path: Path) -> Options:
    local = "127.0.0.1:0"
    return Options(
        data_path=str(path), tcp_address=local, http_address=local, max_bytes_per_file=300
    )


async def request(port: int, path: str, body: bytes = b"") -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    writer.write(b"%bContent-Length: %d\r\n\r\n%b" % (head.encode(), len(body), body))
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer


async def fill(path: Path, killed: Path) -> None:
    """Make a data directory, and copy it to `killed` as a kill leaves it."""
    options = options_for(path)
    server = Server(options, Claim(options))
    await server.start()
    try:
        assert server.broker is not None
        port = server.ports.http
        for topic in ("hit", "other"):
            await request(port, f"/topic/create?topic={topic}")
            await request(port, f"/channel/create?topic={topic}&channel=c")
        log = log_of(server.broker.topics["hit"])
        for number, body in enumerate(sorted(HIT)):
            if number == len(HIT) - 1:
                log.offsets_to_skip = 5  # as after a loss of power
            await request(port, f"/pub?topic=hit&token=t{number}", body)
            log.flush()
        for body in sorted(OTHER):
            await request(port, "/pub?topic=other", body)
        await request(port, "/hold/create?topic=hit&hold=h&offset=1")
        log_of(server.broker.topics["other"]).flush()
        await server.broker.metadata.persist()
        server.broker.disk.wal.remove(all_files=True)
        for body in LAST:
            await request(port, f"/pub?topic={body.split()[0].decode()}", body)
        shutil.copytree(path, killed)  # before the loop runs again, and flushes
    finally:
        await server.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damaged")
    (path / "data").mkdir()
    asyncio.run(fill(path / "data", path / "killed"))
    return path / "killed"


async def receive(port: int, topic: str, count: int) -> set[bytes]:
    """The first `count` messages that a consumer gets."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"  V2SUB %b c\nRDY 100\n" % topic.encode())
    received: set[bytes] = set()
    while len(received) < count:
        size = int.from_bytes(await reader.readexactly(4))
        frame = await reader.readexactly(size)
        if frame[:4] == b"\0\0\0\2":
            received.add(frame[30:])
    writer.close()
    return received


async def outcome(path: Path, wanted: dict[str, int], said: Callable[[], str]) -> Outcome:
    options = options_for(path)
    server = Server(options, Claim(options))
    received: set[bytes] = set()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await server.start()
            for topic, count in wanted.items():
                received |= await receive(server.ports.tcp, topic, count)
    except StartupError as error:
        return Outcome(str(error), said(), received)
    finally:
        await server.close()
    return Outcome("", said(), received)


@pytest.fixture
def start(
    tmp_path: Path, killed: Path, caplog: pytest.LogCaptureFixture
) -> Callable[[str, str, dict[str, int]], tuple[Path, Outcome]]:
    def said() -> str:
        assert not any(record.exc_info for record in caplog.records)
        records = [each for each in caplog.records if each.levelno >= logging.WARNING]
        return "\n".join(each.getMessage() for each in records)

    def do(kind: str, way: str, wanted: dict[str, int]) -> tuple[Path, Outcome]:
        path = tmp_path / "data"
        shutil.copytree(killed, path)
        target = sorted(path.glob(PATTERNS.get(kind, kind)))[-1]
        damage(target, way, tmp_path / "elsewhere")
        return target, asyncio.run(outcome(path, wanted, said))

    return do


Start = Callable[[str, str, dict[str, int]], tuple[Path, Outcome]]


def damage(path: Path, way: str, elsewhere: Path) -> None:
    if way in CHANGED:
        data = bytearray(path.read_bytes())
        if way == "flipped":
            data[len(data) // 2] ^= 0x80
        path.write_bytes(data if way == "flipped" else data[: len(data) // 2 * (way == "half")])
        return
    path.rename(elsewhere)
    if way == "named pipe":
        os.mkfifo(path)
    elif way == "directory":
        path.mkdir()
    else:
        path.symlink_to(elsewhere if way == "link" else "nothing")


ALL = {"hit": len(HIT) + 1, "other": len(OTHER) + 1}


def test_the_directory_has_every_kind(killed: Path) -> None:
    for pattern in PATTERNS.values():
        assert [*killed.glob(pattern)], pattern
    assert len([*killed.glob("topics/hit/*.log")]) >= 3
    assert any(b"hit last" in path.read_bytes() for path in killed.glob("wal-*"))


@pytest.mark.parametrize("kind", [*PATTERNS, "topics", "topics/hit"])
def test_link_to_the_file_is_as_good_as_the_file(start: Start, kind: str) -> None:
    _, found = start(kind, "link", ALL)
    assert not found.refusal
    assert found.received == HIT | OTHER | LAST


@pytest.mark.parametrize("way", REPLACED)
@pytest.mark.parametrize("kind", NEEDED)
def test_nothing_starts_without_what_it_needs(start: Start, kind: str, way: str) -> None:
    path, found = start(kind, way, {})
    assert f"{path} is a" in found.refusal
    assert "put the file back, or move this away" in found.refusal
    assert "\n" not in found.refusal


@pytest.mark.parametrize("way", ["named pipe", "link to nothing"])
@pytest.mark.parametrize("kind", ["topics", "topics/hit"])
def test_nothing_starts_without_its_topics(start: Start, kind: str, way: str) -> None:
    path, found = start(kind, way, {})
    assert str(path) in found.refusal
    assert "\n" not in found.refusal


@pytest.mark.parametrize("way", REPLACED)
@pytest.mark.parametrize("kind", [kind for kind in PATTERNS if kind not in NEEDED])
def test_other_things_are_set_aside(start: Start, kind: str, way: str) -> None:
    path, found = start(kind, way, ALL)
    assert not found.refusal
    assert found.received == HIT | OTHER | LAST
    if kind != "gap":  # its name is all that counts
        assert str(path) in found.said
        assert os.path.lexists(f"{path}.bad")
        assert kind in ("running", "holds") or path.is_file()  # made anew


@pytest.mark.parametrize("way", ["named pipe", "link to nothing", "link"])
def test_trash_is_made_anew(start: Start, way: str) -> None:
    path, found = start("trash", way, ALL)
    assert not found.refusal
    assert found.received == HIT | OTHER | LAST
    assert path.is_dir()
    assert not path.is_symlink()


@pytest.mark.parametrize("way", CHANGED)
@pytest.mark.parametrize("kind", [kind for kind in PATTERNS if kind != "gap"])
def test_damage_costs_nothing_else(start: Start, kind: str, way: str) -> None:
    is_refused = (kind, way) in REFUSED_IF_CHANGED
    has_less = kind == "wal" or kind.endswith("segment")
    wanted = {"other": len(OTHER)} if has_less else ALL
    path, found = start(kind, way, {} if is_refused else wanted)
    if is_refused:
        assert str(path) in found.refusal
        assert "remove the file" in found.refusal
        assert "\n" not in found.refusal
        return
    assert not found.refusal
    assert found.received >= OTHER if has_less else found.received == HIT | OTHER | LAST
    if (kind, way) not in SILENT and kind != "oldest segment":  # said when it is read
        assert kind in found.said or path.name in found.said


LEFTOVERS = (
    "nsqd.dat.tmp",
    "running.tmp",
    ".probe",
    "topics/hit/topic.json.tmp",
    "topics/hit/c.cursor.tmp",
    "topics/hit/holds.json.tmp",
    "topics/hit/tokens.tmp",
    "topics/hit/tokens.old",
    "topics/hit/gone.cursor.deleted",
)


@pytest.mark.parametrize("name", LEFTOVERS)
def test_a_directory_in_the_place_of_a_leftover_is_set_aside(
    name: str, tmp_path: Path, killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be in the way of the file: nothing could be written in its place."""
    path = tmp_path / "data"
    shutil.copytree(killed, path)
    (path / name).mkdir()
    (path / name / "something").touch()
    found = asyncio.run(outcome(path, ALL, lambda: caplog.text))
    assert (found.refusal, found.received) == ("", HIT | OTHER | LAST)
    assert name in found.said or name.endswith(".deleted")  # said when nsqd.dat is written
    assert (path / f"{name}.bad" / "something").exists()
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("way", ["named pipe", "link to nothing"])
@pytest.mark.parametrize("name", LEFTOVERS)
def test_other_leftovers_are_removed(
    name: str, way: str, tmp_path: Path, killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"
    shutil.copytree(killed, path)
    (path / name).touch()
    damage(path / name, way, tmp_path / "elsewhere")
    found = asyncio.run(outcome(path, ALL, lambda: caplog.text))
    assert (found.refusal, found.received) == ("", HIT | OTHER | LAST)
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("way", REPLACED)
@pytest.mark.parametrize("name", ["topics/hit/00000000000000000003.unordered", "imported"])
def test_of_some_names_only_the_name_counts(
    name: str, way: str, tmp_path: Path, killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"
    shutil.copytree(killed, path)
    (path / name).touch()
    damage(path / name, way, tmp_path / "elsewhere")
    found = asyncio.run(outcome(path, ALL, lambda: caplog.text))
    assert (found.refusal, found.received) == ("", HIT | OTHER | LAST)
    assert os.path.lexists(path / name)
    assert not any(record.exc_info for record in caplog.records)
