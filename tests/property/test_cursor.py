"""Cursor files: what is written is read back, whole records at a time."""

import hypothesis.strategies as st
from hypothesis import given, settings

from pumpline.core.messages.deferred import Pending, Pendings
from pumpline.core.messages.delivery import DeliveryDelta
from pumpline.log import cursor
from pumpline.log.cursor import Clocks

AHEAD_NS = 1_700_000_000_000_000_000
OFFSET_MAX = (1 << 63) - 1

offsets = st.integers(0, OFFSET_MAX)
spans = st.lists(st.tuples(offsets, offsets), max_size=5)
pending = st.lists(
    st.builds(Pending, offsets, st.integers(0, 0xFFFF), st.just(0) | st.integers(1, 1 << 62)),
    max_size=5,
).map(Pendings.of)
deltas = st.lists(st.builds(DeliveryDelta, offsets, offsets, spans, pending), max_size=4)


def encoded(records: list[DeliveryDelta]) -> bytes:
    return b"".join(cursor.encode(each, Clocks(0, AHEAD_NS)) for each in records)


@given(records=deltas)
def test_records_are_read_back_as_they_were_written(records: list[DeliveryDelta]) -> None:
    data = encoded(records)
    assert cursor.decode(data, Clocks(0, AHEAD_NS)) == (records, len(data))


@settings(max_examples=30)
@given(records=deltas)
def test_a_file_cut_at_any_byte_gives_its_whole_records(records: list[DeliveryDelta]) -> None:
    data = encoded(records)
    ends = [len(encoded(records[:count])) for count in range(len(records) + 1)]
    for cut in range(len(data)):
        whole = max(index for index, end in enumerate(ends) if end <= cut)
        assert cursor.decode(data[:cut], Clocks(0, AHEAD_NS)) == (
            records[:whole],
            ends[whole],
        )


@settings(max_examples=50)
@given(records=deltas.filter(bool), data=st.data())
def test_a_damaged_record_ends_what_is_read(
    records: list[DeliveryDelta], data: st.DataObject
) -> None:
    raw = bytearray(encoded(records))
    ends = [len(encoded(records[:count])) for count in range(len(records) + 1)]
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    whole = max(index for index, end in enumerate(ends) if end <= at)
    assert cursor.decode(bytes(raw), Clocks(0, AHEAD_NS)) == (
        records[:whole],
        ends[whole],
    )


@given(data=st.binary(max_size=100))
def test_random_bytes_are_no_cursor(data: bytes) -> None:
    assert cursor.decode(data, Clocks(0, AHEAD_NS)) == ([], 0)


@given(due_ns=st.integers(1, 1 << 61), step_ns=st.integers(-(1 << 60), 1 << 60))
def test_a_due_time_is_a_date_whatever_the_steady_clock_says_after_a_restart(
    due_ns: int, step_ns: int
) -> None:
    data = encoded([DeliveryDelta(0, 1, [], Pendings.of([Pending(0, 1, due_ns)]))])
    [read], _ = cursor.decode(data, Clocks(0, AHEAD_NS + step_ns))
    [item] = read.pending
    assert item.due_ns == max(min(due_ns - step_ns, due_ns), 1)
