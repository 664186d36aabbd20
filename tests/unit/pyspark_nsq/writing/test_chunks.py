"""Arrow columns become MPUB bodies; rows that cannot be published are told."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.errors import BadColumns
from pyspark_nsq.writing.chunks import Chunk, chunks
from pyspark_nsq.writing.publish import token_of

bodies_of_any_kind = st.lists(st.binary(min_size=1, max_size=60), max_size=50)


def batch_of(bodies: list[bytes | None], topics: list[str | None] | None = None) -> pa.RecordBatch:
    columns = {"body": pa.array(bodies, pa.binary())}
    if topics is not None:
        columns["topic"] = pa.array(topics, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def decoded(chunk: Chunk) -> list[bytes]:
    (count,) = struct.unpack_from(">I", chunk.body)
    bodies = []
    at = 4
    for _ in range(count):
        (size,) = struct.unpack_from(">I", chunk.body, at)
        bodies.append(bytes(chunk.body[at + 4 : at + 4 + size]))
        at += 4 + size
    assert at == len(chunk.body)
    assert count == chunk.rows
    return bodies


@given(bodies_of_any_kind, st.integers(1, 200), st.integers(1, 20), st.integers(0, 5))
def test_chunks_hold_all_bodies_in_order_within_their_limits(
    bodies: list[bytes], bytes_max: int, rows_max: int, skip: int
) -> None:
    batch = batch_of([*bodies]).slice(skip)
    made = list(chunks(batch, topic="t", bytes_max=bytes_max, rows_max=rows_max))
    assert [body for chunk in made for body in decoded(chunk)] == bodies[skip:]
    for chunk in made:
        assert chunk.rows <= rows_max
        assert chunk.rows == 1 or len(chunk.body) - 4 <= bytes_max


def test_a_column_of_topics_sends_each_row_where_it_says() -> None:
    batch = batch_of([b"1", b"2", b"3"], ["a", "b", "a"])
    made = list(chunks(batch, topic=None, bytes_max=1000, rows_max=100))
    assert [(chunk.topic, decoded(chunk)) for chunk in made] == [
        ("a", [b"1", b"3"]),
        ("b", [b"2"]),
    ]


def test_text_is_published_as_utf8() -> None:
    batch = pa.RecordBatch.from_pydict({"body": pa.array(["grün"], pa.large_string())})
    (chunk,) = chunks(batch, topic="t", bytes_max=1000, rows_max=100)
    assert decoded(chunk) == ["grün".encode()]


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (batch_of([b"1", None], ["a", "a"]), "body is null in 1 rows"),
        (batch_of([b"1", b""], ["a", "a"]), "body is empty in 1 rows for topic a"),
        (batch_of([b"1", b"2"], ["a", None]), "topic is null in 1 rows"),
        (batch_of([b"1"], ["no good"]), "'no good', which is not a valid topic name"),
    ],
)
def test_rows_that_cannot_be_published_are_told(batch: pa.RecordBatch, text: str) -> None:
    with pytest.raises(BadColumns, match=text):
        list(chunks(batch, topic=None, bytes_max=1000, rows_max=100))


def test_a_token_is_the_same_for_the_same_chunk_and_for_no_other() -> None:
    chunk = Chunk("t", 1, b"abc")
    token = token_of("query/7", 3, 0, chunk)
    assert token == token_of("query/7", 3, 0, Chunk("t", 1, b"abc"))
    others = {
        token_of("query/8", 3, 0, chunk),
        token_of("query/7", 4, 0, chunk),
        token_of("query/7", 3, 1, chunk),
        token_of("query/7", 3, 0, Chunk("u", 1, b"abc")),
        token_of("query/7", 3, 0, Chunk("t", 1, b"abd")),
    }
    assert len(others) == 5 and token not in others
