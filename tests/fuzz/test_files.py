"""Damaged files, in process: reading them raises nothing but what is documented, ends, and loses
nothing that is still whole.

Segments are checked against a plain search: a batch whose bytes can still be found in its file, in
order, has to be read back. Cases found earlier are in test_found.py.
"""

import itertools
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pumpline.core.messages.batches import LogBatch
from pumpline.core.messages.crc import crc32
from pumpline.core.messages.deferred import Pending, Pendings
from pumpline.core.messages.delivery import DeliveryDelta, restore
from pumpline.log import cursor
from pumpline.log.cursor import Clocks
from pumpline.log.directory import Directory, DirectoryError, Manifest, Metadata
from pumpline.log.go_diskqueue import Record, find_queues
from pumpline.log.log import Log
from tests.fuzz.conftest import Rounds
from tests.kit.fuzz.deadline import within
from tests.kit.fuzz.mutation import NUMBERS, mutated, spliced
from tests.kit.go_diskqueues import Stored, data_path, meta_path, record, write_meta
from tests.kit.logs import Disk, batch_of, bodies_of, bytes_of

SEEDS = range(1, 61)
LIMIT_S = 20.0  # of one round, which takes milliseconds
WALL_AHEAD_NS = 10**18

_numbers = itertools.count()


@pytest.fixture
def new_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory for each `next`."""

    def paths() -> Iterator[Path]:
        while True:
            path = tmp_path / str(next(_numbers))
            path.mkdir()
            yield path

    return paths()


# -- segments ---------------------------------------------------------------------------------


def bodies(rng: random.Random) -> list[bytes]:
    """Of one batch; some look like parts of a batch themselves."""
    kinds: Sequence[Callable[[], bytes]] = (
        lambda: rng.randbytes(rng.randint(0, 60)),
        lambda: bytes(rng.randint(0, 60)),
        lambda: b"\0\0\0\0" * 5 + b"\0\0\0\1" + bytes(rng.randint(0, 8)),
        lambda: rng.randbytes(rng.choice((1000, 20_000))),
    )
    weights = (8, 2, 2, 1)
    return [kind() for kind in rng.choices(kinds, weights, k=rng.randint(1, 5))]


def write_segments(rng: random.Random, disk: Disk) -> dict[Path, list[LogBatch]]:
    """One to three segments with up to six batches each."""
    segments = {}
    first = rng.choice((0, 0, 7, (1 << 32) - 3))
    for _ in range(rng.randint(1, 3)):
        batches = []
        name = f"{first:020d}.log"
        for _ in range(rng.randint(1, 6)):
            dues_ns = rng.choice(([], [], [99], [0, 99, (1 << 63) - 1]))
            messages = bodies(rng)
            batches.append(batch_of(first, messages, dues_ns=dues_ns[: len(messages)]))
            first = batches[-1].end
        segments[disk.write(name, *batches)] = batches
    return segments


def whole_batches(data: bytes, batches: list[LogBatch]) -> list[LogBatch]:
    """Those that can still be found; none if one is there twice (see test_found), or if a later one
    has come to be before an earlier one: then one of the two is out of place, and nobody can say
    which."""
    found = []
    end = 0
    for batch in batches:
        raw = bytes_of(batch)
        position = data.find(raw)
        if data.count(raw) > 1 or 0 <= position < end:
            return []
        if position >= 0:
            found.append(batch)
            end = position + batch.size_bytes
    return found


def messages_of(batches: list[LogBatch]) -> dict[int, bytes]:
    return {
        offset: body
        for batch in batches
        for offset, body in enumerate(bodies_of(batch), batch.first)
    }


def thinned(rng: random.Random, batches: list[LogBatch]) -> bytes:
    """Whole batches, with some missing."""
    return b"".join(bytes_of(batch) for batch in batches if rng.random() < 0.6)


def damage_segments(
    rng: random.Random, segments: dict[Path, list[LogBatch]]
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Damages some of the files; all messages there were, and those that must still be read."""
    all_of = {path: path.read_bytes() for path in segments}
    for path in rng.sample(sorted(segments), rng.randint(1, len(segments))):
        data = all_of[path]
        kinds = (
            lambda data=data: mutated(rng, data),
            lambda data=data: mutated(rng, data),
            lambda data=data: spliced(rng, data, data),
            lambda batches=segments[path]: thinned(rng, batches),
            lambda: rng.randbytes(rng.choice((0, 10, 39, 40, 41, 5000))),
        )
        path.write_bytes(rng.choices(kinds, (6, 6, 2, 2, 1))[0]())
    ever: dict[int, bytes] = {}
    whole: dict[int, bytes] = {}
    for path, batches in segments.items():
        ever |= messages_of(batches)
        whole |= messages_of(whole_batches(path.read_bytes(), batches))
    return ever, whole


def mark_of(segments: dict[Path, list[LogBatch]]) -> tuple[int, int, int]:
    """What a clean stop would have noted."""
    newest = max(segments)
    return int(newest.stem), newest.stat().st_size, segments[newest][-1].end


def assert_all_read(
    disk: Disk, log: Log, *, ever: dict[int, bytes], whole: dict[int, bytes]
) -> None:
    found = disk.read(log, log.first)
    assert found.items() <= ever.items(), "what is read was once written"
    assert whole.items() <= found.items(), "what is whole is read"


def test_damaged_segments_cost_what_is_damaged(rounds: Rounds, new_path: Iterator[Path]) -> None:
    def play(rng: random.Random) -> None:
        disk = Disk(next(new_path))
        segments = write_segments(rng, disk)
        clean = mark_of(segments) if rng.random() < 0.3 else None
        ever, whole = damage_segments(rng, segments)
        try:
            log = disk.open(clean)
            assert_all_read(disk, log, ever=ever, whole=whole)
            new = batch_of(log.end, [b"new"])
            log.append([new])
            ever |= messages_of([new])
            whole |= messages_of([new])
            assert_all_read(disk, log, ever=ever, whole=whole)
            log.close()
            again = disk.open()
            assert again.end == new.end
            assert_all_read(disk, again, ever=ever, whole=whole)
        finally:
            disk.files.close()

    def limited(rng: random.Random) -> None:
        with within(LIMIT_S):
            play(rng)

    rounds(limited)


# -- cursors ----------------------------------------------------------------------------------


def a_journal(rng: random.Random) -> DeliveryDelta:
    low = rng.randint(0, 100)
    following = low + rng.randint(0, 100)
    starts = sorted(rng.sample(range(low, low + 200, 10), rng.randint(0, 5)))
    spans = [(start, start + rng.randint(1, 9)) for start in starts]
    pending = [
        Pending(rng.randint(low, low + 200), rng.randint(0, 70_000) & 0xFFFF, rng.choice((0, 5)))
        for _ in range(rng.randint(0, 5))
    ]
    return DeliveryDelta(low, following, spans, Pendings.of(pending))


def same_until(first: bytes, second: bytes) -> int:
    """How many bytes at the beginning are the same."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_damaged_cursor_keeps_the_records_before_the_damage(rounds: Rounds) -> None:
    def play(rng: random.Random) -> None:
        deltas = [a_journal(rng) for _ in range(rng.randint(1, 6))]
        records = [cursor.encode(each, Clocks(0, WALL_AHEAD_NS)) for each in deltas]
        data = b"".join(records)
        damaged = mutated(rng, data)
        with within(LIMIT_S):
            decoded, used = cursor.decode(damaged, Clocks(0, WALL_AHEAD_NS))
            restore(decoded)
        assert used <= len(damaged)
        ends = itertools.accumulate(map(len, records))
        kept = sum(end <= same_until(data, damaged) for end in ends)
        assert decoded[:kept] == deltas[:kept]

    rounds(play)


def test_cursor_record_whose_crc_fits_by_chance_is_no_trap(rounds: Rounds) -> None:
    def play(rng: random.Random) -> None:
        payload = mutated(rng, cursor.encode(a_journal(rng), Clocks(0, 0))[8:])
        length = rng.choice((len(payload) + 4, rng.choice(NUMBERS) % (1 << 32)))
        checked = payload[: max(length - 4, 0)]
        data = length.to_bytes(4) + crc32(checked).to_bytes(4) + payload
        with within(LIMIT_S):
            cursor.decode(data + bytes(rng.randint(0, 40)), Clocks(0, WALL_AHEAD_NS))

    rounds(play)


# -- manifest and metadata --------------------------------------------------------------------


def random_json(rng: random.Random, depth: int = 3) -> object:
    kinds = (
        lambda: rng.choice(NUMBERS) << rng.choice((0, 0, 32, 64)),
        lambda: rng.choice(("", "t", "a b", "\udfff", "é", "x" * 100)),
        lambda: rng.choice((None, True, False, 0.5, 1e300)),
        lambda: [random_json(rng, depth - 1) for _ in range(rng.randint(0, 4))],
        lambda: {rng.choice("abc"): random_json(rng, depth - 1) for _ in range(2)},
    )
    return rng.choice(kinds if depth else kinds[:3])()


def damaged_json(rng: random.Random, fields: dict[str, object]) -> bytes:
    """The JSON of `fields` with wrong bytes, or with right ones that mean something else."""
    kind = rng.randrange(4)
    if kind == 0:
        fields = {**fields, rng.choice(sorted(fields)): random_json(rng)}
    elif kind == 1:
        fields = {**fields, "further": "DEEP"}
    text = json.dumps(fields).encode()
    if kind == 1:
        deep = rng.choice((10, 500, 100_000))
        text = text.replace(b'"DEEP"', b"[" * deep + b"]" * deep)
    elif kind == 2:
        text = rng.randbytes(rng.choice((0, 1, 10, 100)))
    return mutated(rng, text) if rng.random() < 0.7 else text


def test_damaged_manifest_is_one_or_none(rounds: Rounds, new_path: Iterator[Path]) -> None:
    directory = Directory(str(next(new_path)))
    directory.create_topic("t", Manifest(base_id=1))
    path = Path(directory.topic_path("t")) / "topic.json"

    def play(rng: random.Random) -> None:
        fields: dict[str, object] = {
            "base_id": rng.getrandbits(64),
            "pumped": rng.randint(0, 1000),
            "clean": rng.choice((None, [0, 500, 20])),
            "importing": rng.choice(
                (None, {"mark": None, "files": {"t.diskqueue.meta.dat": [1, 2]}, "filled": True})
            ),
        }
        path.write_bytes(damaged_json(rng, fields))
        with within(LIMIT_S):
            directory.read_manifest("t")

    rounds(play)


def test_damaged_metadata_is_refused_in_words(rounds: Rounds, new_path: Iterator[Path]) -> None:
    path = next(new_path)
    directory = Directory(str(path))

    def play(rng: random.Random) -> None:
        channels = [{"name": name, "paused": rng.random() < 0.5} for name in ("c", "d")]
        topics = [{"name": "t", "paused": False, "channels": channels}]
        data = damaged_json(rng, {"topics": topics, "version": "1.3.0"})
        (path / "nsqd.dat").write_bytes(data)
        with within(LIMIT_S):
            try:
                assert isinstance(directory.read_metadata(), Metadata)
            except DirectoryError as error:
                assert str(error).startswith("failed to parse metadata in ")

    rounds(play)


# -- disk queues of Go nsqd -------------------------------------------------------------------


def write_disk_queue(rng: random.Random, path: Path) -> dict[int, list[Stored]]:
    """Files of one queue, unread, by number."""
    files = {}
    first = rng.choice((0, 5))
    for number in range(first, first + rng.randint(1, 3)):
        files[number] = [
            Stored(rng.randbytes(rng.choice((0, 1, 30, 3000))), rng.randint(0, 65_535))
            for _ in range(rng.randint(1, 6))
        ]
        data_path(path, "q", number).write_bytes(b"".join(map(record, files[number])))
    size_bytes = data_path(path, "q", max(files)).stat().st_size
    depth = sum(map(len, files.values()))
    write_meta(path, "q", depth=depth, read=(first, 0), write=(max(files), size_bytes))
    return files


def damaged_positions(rng: random.Random, text: bytes) -> bytes:
    kinds = (
        lambda: mutated(rng, text),
        lambda: b"%d\n%d,%d\n%d,%d\n" % tuple(abs(rng.choice(NUMBERS)) for _ in range(5)),
        lambda: b"",
    )
    return rng.choice(kinds)()


def records_before(data: bytes, damaged: bytes, stored: list[Stored]) -> list[bytes]:
    """The bodies of records that lie before the damage."""
    ends = itertools.accumulate(len(record(each)) for each in stored)
    same = same_until(data, damaged)
    return [each.body for each, end in zip(stored, ends, strict=True) if end <= same]


def test_damaged_disk_queue_is_read_up_to_the_damage_in_each_file(
    rounds: Rounds, new_path: Iterator[Path]
) -> None:
    def play(rng: random.Random) -> None:
        path = next(new_path)
        files = write_disk_queue(rng, path)
        whole: list[bytes] = []
        for number, stored in files.items():
            file = data_path(path, "q", number)
            data = damaged = file.read_bytes()
            if rng.random() < 0.6:
                damaged = mutated(rng, data)
                file.write_bytes(damaged)
            whole += records_before(data, damaged, stored)
        told = rng.random() < 0.7  # the metadata is as it should be
        if not told:
            meta = meta_path(path, "q")
            meta.write_bytes(damaged_positions(rng, meta.read_bytes()))
        with within(LIMIT_S):
            (queue,) = find_queues(str(path))
            found = list(queue.records())
            assert list(queue.records()) == found
        if told:
            assert is_part(whole, found)

    rounds(play)


def is_part(bodies: list[bytes], found: list[Record]) -> bool:
    """Whether all of `bodies` are in `found`, in order."""
    rest = iter(found)
    return all(any(each.body == body for each in rest) for body in bodies)


def test_names_of_disk_queue_files_may_be_anything(
    rounds: Rounds, new_path: Iterator[Path]
) -> None:
    def play(rng: random.Random) -> None:
        path = next(new_path)
        write_disk_queue(rng, path)
        for file in sorted(path.iterdir()):
            if rng.random() < 0.5:
                number = rng.choice((0, 7, 10**6, 10**9, 10**19, 10**60))
                name = f"q.diskqueue.{number:06d}.dat"
                raw = name.encode() if rng.random() < 0.5 else mutated(rng, file.name.encode())
                raw = raw.translate(None, b"/\0")[:200]
                if raw not in (b"", b".", b".."):
                    os.rename(os.fsencode(file), os.path.join(os.fsencode(path), raw))
        with within(LIMIT_S):
            for queue in find_queues(str(path)):
                list(queue.records())

    rounds(play)
