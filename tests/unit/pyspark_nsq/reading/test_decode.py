"""Raw batches become the right rows, and damaged ones one clear error."""

import struct
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumpline.core.messages.batches import Builder
from pumpline.core.messages.frame import encode_message
from pyspark_nsq.errors import Damaged
from pyspark_nsq.reading.decode import BODY_BYTES_MAX, COLUMN_TYPES, ROWS_MAX, Decoder, locate
from tests.kit.logs import BASE_ID, TIMESTAMP_NS, batch_of, bytes_of

SCHEMA = pa.schema([pa.field(name, kind, False) for name, kind in COLUMN_TYPES.items()])


def decoded(data: bytes, start: int, end: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    decoder = Decoder(schema, topic="orders", node="10.0.0.5:4150")
    view = memoryview(bytearray(data))
    rows = decoder.rows(view).within(start, end)
    return pa.Table.from_batches(decoder.record_batches(view, rows), schema)


def raw(*batches: list[bytes], first: int = 0) -> bytes:
    data = b""
    for bodies in batches:
        data += bytes_of(batch_of(first, bodies))
        first += len(bodies)
    return data


def test_every_column_is_what_was_published() -> None:
    rows = decoded(raw([b"one", b""], [b"\x00three"], first=7), 7, 10).to_pylist()
    assert [row["body"] for row in rows] == [b"one", b"", b"\x00three"]
    assert [row["offset"] for row in rows] == [7, 8, 9]
    assert [row["id"] for row in rows] == [f"{BASE_ID + offset:016x}" for offset in (7, 8, 9)]
    assert {(row["topic"], row["node"], row["attempts"]) for row in rows} == {
        ("orders", "10.0.0.5:4150", 1)
    }
    assert {int(row["timestamp"].timestamp() * 1e9) for row in rows} == {TIMESTAMP_NS}


def test_messages_with_due_times_are_rows_as_others() -> None:
    plain = bytes_of(batch_of(0, [b"a", b"b"]))
    deferred = bytes_of(batch_of(2, [b"c", b"", b"d"], dues_ns=[0, 7, TIMESTAMP_NS]))
    both = bytes_of(batch_of(5, [b"e"], due_ns=9, tokens=[bytes(16)]))
    rows = decoded(plain + deferred + both, 1, 6).to_pylist()
    assert [row["body"] for row in rows] == [b"b", b"c", b"", b"d", b"e"]
    assert [row["offset"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[4]["id"] == f"{BASE_ID + 5:016x}"


def test_a_flag_of_due_times_that_are_not_there_is_damage() -> None:
    data = bytearray(raw([b"a" * 40]))
    struct.pack_into(">I", data, 28, 2)
    struct.pack_into(">I", data, 4, zlib.crc32(data[8:]))
    with pytest.raises(Damaged, match="lengths do not fit in the batch at offset 0"):
        locate(memoryview(data))


def test_attempts_and_publish_times_are_those_of_each_message() -> None:
    builder = Builder(first=0, timestamp_ns=TIMESTAMP_NS)
    for number in (1, 7, 65535):
        frame = encode_message(
            timestamp_ns=number * 1_000_999, attempts=number, message_id=number, body=b"x"
        )
        builder.add(frame)
    table = decoded(bytes_of(builder.seal()), 0, 3)
    assert table["attempts"].to_pylist() == [1, 7, 65535]
    expected_us = [number * 1_000_999 // 1000 for number in (1, 7, 65535)]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == expected_us


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=9), min_size=1, max_size=9),
    st.integers(0, 1 << 60),
    st.integers(0, 90),
    st.integers(0, 90),
)
def test_any_cut_of_any_batches_gives_the_bodies_in_it(
    batches: list[list[bytes]], first: int, skip: int, count: int
) -> None:
    bodies = [body for batch in batches for body in batch]
    table = decoded(raw(*batches, first=first), first + skip, first + skip + count)
    assert table["body"].to_pylist() == bodies[skip : skip + count]
    assert table["offset"].to_pylist() == list(
        range(first + skip, first + min(skip + count, len(bodies)))
    )


def test_publish_tokens_between_batches_are_passed_over() -> None:
    tokens = [b"\xff" * 16, bytes(16)]
    data = bytes_of(batch_of(5, [b"a", b"bc"], tokens=tokens[:1])) + raw([b"d"], first=7)
    data += bytes_of(batch_of(8, [b"", b"e"], tokens=tokens))
    table = decoded(data, 0, 100)
    assert table["body"].to_pylist() == [b"a", b"bc", b"d", b"", b"e"]
    assert table["offset"].to_pylist() == [5, 6, 7, 8, 9]


def test_a_gap_between_batches_keeps_the_offsets_true() -> None:
    data = raw([b"a"], first=5) + raw([b"b", b"c"], first=100)
    assert decoded(data, 0, 1000)["offset"].to_pylist() == [5, 100, 101]


def test_columns_left_out_of_the_schema_are_not_there() -> None:
    schema = pa.schema([pa.field("body", pa.binary()), pa.field("offset", pa.int64())])
    table = decoded(raw([b"a", b"b"]), 0, 2, schema)
    assert table.schema.equals(schema)
    assert table.to_pylist() == [{"body": b"a", "offset": 0}, {"body": b"b", "offset": 1}]


def test_record_batches_are_bounded_in_rows() -> None:
    view = memoryview(bytearray(raw([b"x"] * (ROWS_MAX + 5))))
    decoder = Decoder(SCHEMA, topic="t", node="n")
    batches = list(decoder.record_batches(view, decoder.rows(view)))
    assert [batch.num_rows for batch in batches] == [ROWS_MAX, 5]


def test_record_batches_are_bounded_in_bytes_but_hold_a_row_each() -> None:
    large = b"x" * (BODY_BYTES_MAX // 2 - 100)
    view = memoryview(bytearray(raw([large, large, b"y" * (BODY_BYTES_MAX + 1), b"z"])))
    decoder = Decoder(SCHEMA, topic="t", node="n")
    batches = list(decoder.record_batches(view, decoder.rows(view)))
    assert [batch.num_rows for batch in batches] == [2, 1, 1]


def test_rows_outlive_the_buffer_they_came_from() -> None:
    buffer = bytearray(raw([b"first", b"second"]))
    decoder = Decoder(SCHEMA, topic="t", node="n")
    view = memoryview(buffer)
    batches = list(decoder.record_batches(view, decoder.rows(view)))
    buffer[:] = b"\xff" * len(buffer)
    assert batches[0]["body"].to_pylist() == [b"first", b"second"]
    assert batches[0]["id"][0].as_py() == f"{BASE_ID:016x}"


def test_no_batches_are_no_rows() -> None:
    assert decoded(b"", 0, 10).num_rows == 0


def test_every_flipped_bit_is_noticed() -> None:
    good = raw([b"one", b"two"], [b"three"])
    good += bytes_of(batch_of(3, [b"four", b"five"], dues_ns=[0, 7]))
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        with pytest.raises(Damaged):
            locate(memoryview(bad))


def test_every_cut_but_those_between_batches_is_noticed() -> None:
    first, second = raw([b"one", b"two"]), raw([b"three"], first=2)
    for size in range(1, len(first) + len(second)):
        if size == len(first):
            continue
        with pytest.raises(Damaged):
            locate(memoryview(bytearray((first + second)[:size])))


def test_damage_is_told_with_its_topic_node_and_offset() -> None:
    bad = bytearray(raw([b"one"], [b"two"]))
    bad[-1] ^= 1
    with pytest.raises(Damaged, match=r"topic orders on 10\.0\.0\.5:4150: checksum.* offset 1"):
        decoded(bad, 0, 2)


def test_a_message_shorter_than_its_header_is_damage_even_with_a_good_checksum() -> None:
    builder = Builder(first=0, timestamp_ns=TIMESTAMP_NS)
    builder.add(b"\0" * 33)
    builder.add(b"\0" * 40)
    with pytest.raises(Damaged, match="shorter than its header"):
        locate(memoryview(bytearray(bytes_of(builder.seal()))))


def test_batches_that_go_back_are_damage() -> None:
    data = raw([b"b"], first=9) + raw([b"a"], first=3)
    with pytest.raises(Damaged, match="offset 3 comes after 9"):
        locate(memoryview(bytearray(data)))


def test_a_count_that_does_not_fit_is_an_impossible_header() -> None:
    data = bytearray(raw([b"a"]))
    struct.pack_into(">I", data, 24, 0xFFFFFFFF)
    with pytest.raises(Damaged, match="impossible batch header"):
        locate(memoryview(data))
