"""The log of an ephemeral topic holds so many messages, and drops what is published beyond."""

from pumpline.core.messages.batches import LogBatch
from pumpline.log.ring import Ring
from tests.kit.logs import BASE_ID, batch_of, bodies_of


def ring_of(messages_max: int) -> Ring:
    return Ring(base_id=BASE_ID, messages_max=messages_max)


def bodies_in(ring: Ring) -> list[bytes]:
    return [body for batch in ring.tail for body in bodies_of(batch)]


def append(ring: Ring, batches: list[LogBatch]) -> list[LogBatch]:
    """As a commit does; returns what was accepted."""
    kept = ring.append(batches)
    ring.advance(ring.accepted)
    return kept


def test_what_fits_is_kept() -> None:
    ring = ring_of(5)
    append(ring, [batch_of(0, [b"a", b"b"]), batch_of(2, [b"c"])])
    assert (ring.first, ring.end, ring.dropped) == (0, 3, 0)
    assert bodies_in(ring) == [b"a", b"b", b"c"]


def test_the_newest_are_dropped_within_a_batch_too() -> None:
    ring = ring_of(3)
    append(ring, [batch_of(0, [b"a", b"b"]), batch_of(2, [b"c", b"d", b"e"]), batch_of(5, [b"f"])])
    assert (ring.end, ring.dropped) == (3, 3)
    assert bodies_in(ring) == [b"a", b"b", b"c"]


def test_offsets_go_on_where_the_last_message_kept_ended() -> None:
    ring = ring_of(2)
    append(ring, [batch_of(0, [b"a", b"b", b"c"])])
    append(ring, [batch_of(ring.end, [b"d"])])
    assert (ring.end, ring.dropped) == (2, 2)
    ring.trim(2, messages_max=0, bytes_max=0)
    append(ring, [batch_of(ring.end, [b"e"])])
    assert (ring.first, ring.end, ring.dropped) == (2, 3, 2)
    assert bodies_in(ring) == [b"e"]


def test_room_is_made_by_whole_batches_that_everybody_is_done_with() -> None:
    ring = ring_of(4)
    append(ring, [batch_of(0, [b"a", b"b"]), batch_of(2, [b"c", b"d"])])
    ring.trim(1, messages_max=0, bytes_max=0)
    append(ring, [batch_of(4, [b"e"])])
    assert ring.dropped == 1
    ring.trim(3, messages_max=0, bytes_max=0)
    assert ring.first == 2
    append(ring, [batch_of(4, [b"f", b"g", b"h"])])
    assert (ring.end, ring.dropped) == (6, 2)
    assert bodies_in(ring) == [b"c", b"d", b"f", b"g"]


def test_what_was_kept_is_returned_with_its_due_times() -> None:
    ring = ring_of(3)
    kept = append(ring, [batch_of(0, [b"a"]), batch_of(1, [b"b", b"c", b"d"], dues_ns=[7, 8, 9])])
    assert [(batch.first, batch.end) for batch in kept] == [(0, 1), (1, 3)]
    assert (kept[0].due_ns(0), kept[1].due_ns(1), kept[1].due_ns(2)) == (0, 7, 8)
    assert append(ring, [batch_of(3, [b"e"], due_ns=9)]) == []


def test_a_ring_of_no_messages_drops_everything() -> None:
    ring = ring_of(0)
    append(ring, [batch_of(0, [b"a"])])
    assert (ring.first, ring.end, ring.dropped, ring.tail) == (0, 0, 1, [])


def test_a_reader_gets_the_batch_or_the_next() -> None:
    ring = ring_of(9)
    append(ring, [batch_of(0, [b"a", b"b"]), batch_of(2, [b"c"])])
    ring.trim(2, messages_max=0, bytes_max=0)
    reader = ring.reader(lambda: None)
    for offset in (0, 1, 2):
        batch = reader.batch(offset)
        assert batch is not None
        assert batch.first == 2
    assert reader.batch(3) is None


def test_its_size_is_that_of_what_it_holds() -> None:
    ring = ring_of(9)
    batch = batch_of(0, [b"a", b"b"])
    append(ring, [batch])
    assert ring.size_bytes == batch.size_bytes
    ring.close()
    assert (ring.size_bytes, ring.tail) == (0, [])
