"""Every case that fuzzing found, by name and with its bytes."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pumpline.log import cursor
from pumpline.log.cursor import Clocks
from pumpline.log.directory import Directory, DirectoryError, Manifest
from tests.kit.daemons import Nsqd, wait_until
from tests.kit.fuzz import replies
from tests.kit.fuzz.deadline import within
from tests.kit.fuzz.directories import FLAGS, Template, drain, make_template, still_owed
from tests.kit.fuzz.grammar import MAGIC, sized
from tests.kit.fuzz.hostile import Ending, converse
from tests.kit.fuzz.inprocess import InProcess, Wire
from tests.kit.fuzz.watch import Watch
from tests.kit.logs import Disk, batch_of, bytes_of

LIMIT_S = 60.0
MANY_DIGITS = b"9" * 4301  # one more than int() takes
DEEP = b"[" * 100_000


# -- clients ----------------------------------------------------------------------------------


@pytest.fixture
def in_process(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(tmp_path) as nsqd:
        yield nsqd


async def replies_to(nsqd: InProcess, data: bytes) -> list[replies.Frame]:
    wire = Wire(nsqd.broker)
    await wire.send([MAGIC + data])
    await wire.end()
    frames, rest = replies.whole_frames(bytes(wire.received))
    assert not rest
    return frames


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (b"RDY " + MANY_DIGITS + b"\n", "E_INVALID"),
        (b"REQ 0000000000000000 " + MANY_DIGITS + b"\n", "E_REQ_FAILED"),
        (b"DPUB t " + MANY_DIGITS + b"\n" + sized(b"x"), "E_INVALID"),
    ],
    ids=["RDY", "REQ", "DPUB"],
)
def test_number_with_thousands_of_digits_is_answered(
    in_process: InProcess, command: bytes, code: str
) -> None:
    ok, error = in_process.run(replies_to(in_process, b"SUB t c\n" + command))
    assert ok == (replies.RESPONSE, b"OK")
    assert (error.type, error.code) == (replies.ERROR, code)


def test_publishes_before_a_line_that_is_too_long_are_answered(in_process: InProcess) -> None:
    data = b"PUB t\n" + sized(b"x") + b"RDY " + b"9" * 20_000
    assert in_process.run(replies_to(in_process, data)) == [(replies.RESPONSE, b"OK")]


@pytest.mark.soak
def test_client_that_errs_and_does_not_read_is_dropped_all_the_same(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        watch = Watch(nsqd)
        with nsqd.connect() as producer:
            for _ in range(40):
                producer.mpub("t", [bytes(500_000)] * 2)
        with nsqd.connect() as deaf:
            deaf.identify({"heartbeat_interval": 1000})
            deaf.sub("t", "c")
            deaf.rdy(100)
            wait_until(lambda: nsqd.channel_stats("t", "c")["in_flight_count"])
            deaf.send(b"BAD\n")
            wait_until(watch.is_calm, LIMIT_S)


@pytest.mark.slow
def test_http_client_that_closes_its_side_early_is_answered(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        request = b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
        received, _ = converse(nsqd.http_port, [request], Ending.HALF_CLOSE)
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")


# -- small files ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b'{"version":"\xff"}', b'{"x":' + DEEP], ids=["bytes", "depth"])
def test_metadata_that_is_no_text_or_too_deep_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "nsqd.dat").write_bytes(data)
    with pytest.raises(DirectoryError, match=r"^failed to parse metadata in "):
        Directory(str(tmp_path)).read_metadata()


@pytest.mark.parametrize(
    "data",
    [b'{"base_id":1,"importing":{"mark":null,"files":{"\xff":[1,2]}}}', b'{"x":' + DEEP],
    ids=["bytes", "depth"],
)
def test_manifest_that_is_no_text_or_too_deep_is_none(tmp_path: Path, data: bytes) -> None:
    directory = Directory(str(tmp_path))
    directory.create_topic("t", Manifest(base_id=1))
    (Path(directory.topic_path("t")) / "topic.json").write_bytes(data)
    assert directory.read_manifest("t") is None


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\4\0\0\0\0" + bytes(40),  # the crc of nothing is 0
        b"\0\0\0\x1c" + b"\x9e\xa1\xe3\x90" + b"\0" * 16 + b"\0\0\0\1\0\0\0\0",
    ],
    ids=["empty", "span missing"],
)
def test_cursor_record_shorter_than_it_says_is_no_record(data: bytes) -> None:
    assert cursor.decode(data, Clocks(0, 0)) == ([], 0)


# -- segments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2, 0), (0, 1, 2, 0, 3)])
def test_batch_that_is_there_twice_hides_no_other(tmp_path: Path, order: tuple[int, ...]) -> None:
    disk = Disk(tmp_path)
    batches = [batch_of(first, [b"%d" % first, b""]) for first in range(0, 8, 2)]
    (tmp_path / f"{0:020d}.log").write_bytes(b"".join(bytes_of(batches[at]) for at in order))
    with within(LIMIT_S):
        log = disk.open()
        found = disk.read(log)
    assert sorted(found) == list(range(2 * len(set(order))))


def test_batch_of_the_next_segment_hides_nothing_there(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    batches = [batch_of(first, [b"%d" % first, b""]) for first in range(0, 8, 2)]
    disk.write(f"{0:020d}.log", batches[0], batches[3])
    disk.write(f"{2:020d}.log", *batches[1:])
    with within(LIMIT_S):
        found = disk.read(disk.open())
    assert sorted(found) == list(range(8))


@pytest.mark.parametrize("first", [(1 << 64) - 1, 1 << 64, 10**20 - 1])
@pytest.mark.parametrize("data", [b"", b"x" * 100], ids=["empty", "garbage"])
def test_segment_with_an_impossible_name_is_left_alone(
    tmp_path: Path, first: int, data: bytes
) -> None:
    disk = Disk(tmp_path)
    disk.write(f"{0:020d}.log", batch_of(0, [b"0"]))
    (tmp_path / f"{first}.log").write_bytes(data)
    log = disk.open()
    log.append([batch_of(log.end, [b"1"])])
    assert disk.read(log) == {0: b"0", 1: b"1"}


# -- directories ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(tmp_path_factory.mktemp("template") / "data", crashed=False)


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    """A change to one file of a directory."""

    def change(path: Path) -> None:
        text = (path / name).read_text()
        changed, count = re.subn(old, new, text)
        assert count == 1, text
        (path / name).write_text(changed)

    return change


def assert_nothing_is_lost(template: Template, path: Path, change: Callable[[Path], None]) -> None:
    """After a change everybody gets everything that is still whole."""
    template.copy_to(path)
    change(path)
    owed = still_owed(template, path)
    with within(LIMIT_S), InProcess(path, FLAGS) as nsqd:
        for (topic, channel), bodies in owed.items():
            assert bodies <= set(nsqd.run(drain(nsqd.broker, topic, channel))), (topic, channel)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"base_id":[0-9]+', '"base_id":3'),  # what is delivered can never be finished
        ('("base_id":[0-9]+)', r"\g<1>9999"),  # no 64 bits
        ('"base_id":', '"base_id":-'),
        ('"pumped":0', '"pumped":9'),
        ('"pumped":0', '"pumped":-9'),
        (",60\\]", ",30]"),  # the end of the log
        ('"importing":null', '"importing":{"mark":[0,10,5],"files":{},"filled":false}'),
    ],
)
def test_manifest_with_other_numbers_costs_nothing(
    template: Template, tmp_path: Path, old: str, new: str
) -> None:
    change = replaced("topics/u/topic.json", old, new)
    assert_nothing_is_lost(template, tmp_path / "data", change)


@pytest.mark.parametrize("name", ["c", "d"])
def test_missing_cursor_brings_everything_again(
    template: Template, tmp_path: Path, name: str
) -> None:
    cursor_name = f"topics/t/{name}.cursor"
    assert_nothing_is_lost(template, tmp_path / "data", lambda path: (path / cursor_name).unlink())


def test_lost_manifest_and_damaged_first_batches_leave_the_rest(
    template: Template, tmp_path: Path
) -> None:
    def change(path: Path) -> None:
        (path / "topics/u/topic.json").unlink()
        for segment in (path / "topics/u").glob("*.log"):
            data = bytearray(segment.read_bytes())
            data[50] ^= 1
            segment.write_bytes(data)

    assert_nothing_is_lost(template, tmp_path / "data", change)
