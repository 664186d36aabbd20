"""The kernels for FIN, REQ and TOUCH, and for what is sent: see `test_kernels`."""

from struct import pack
from types import ModuleType

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pumpline.core.messages.batches import HEADER, HEADER_BYTES
from tests.property.test_kernels import (
    FORMS,
    ID_MAX,
    LIMIT,
    TIMESTAMP_NS,
    Run,
    bodies,
    first_ids,
    frame,
    frames_and_ends,
    limits,
    odd_sizes,
    runs,
    timestamps,
)

# -- answers and touches --------------------------------------------------------------------------

VERBS = [(b"FIN ", b"\n"), (b"REQ ", b" 0\n"), (b"REQ ", b" 3000\n"), (b"TOUCH ", b"\n")]
verbs = st.sampled_from(VERBS)


def expected_offsets(
    data: bytes, verb: tuple[bytes, bytes], base_id: int, leased: set[int], *, removes: bool
) -> tuple[int, list[int]]:
    """Bytes used, and the offsets in order."""
    head, tail = verb
    id_at, size = len(head), len(head) + 16 + len(tail)
    used, found = 0, []
    while len(data) - used >= size:
        command = data[used : used + size]
        digits = command[id_at : id_at + 16]
        if not command.startswith(head) or command[id_at + 16 :] != tail:
            break
        if digits.strip(b"0123456789abcdef"):
            break
        offset = int(digits, 16) - base_id
        if offset not in leased:
            break
        if removes:
            leased = leased - {offset}
        found.append(offset)
        used += size
    return used, found


def expected_spans(offsets: list[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for offset in offsets:
        if spans and spans[-1][1] == offset:
            spans[-1] = (spans[-1][0], offset + 1)
        else:
            spans.append((offset, offset + 1))
    return spans


@st.composite
def answer_runs(
    draw: st.DrawFn, chosen: st.SearchStrategy[tuple[bytes, bytes]] = verbs
) -> tuple[Run, tuple[bytes, bytes], int, dict[int, int]]:
    base_id = draw(st.sampled_from([0, 5, 0x0123456789ABCDEF, ID_MAX - 40]))
    verb = head, tail = draw(chosen)
    offsets = st.integers(0, 12)
    ids = st.one_of(
        offsets.map(lambda offset: base_id + offset),
        offsets.map(lambda offset: base_id + offset),
        offsets.map(lambda offset: max(base_id - offset, 0)),
        st.sampled_from([0, ID_MAX - 1]),
    )
    in_order = st.tuples(offsets, st.integers(1, 6)).map(
        lambda span: b"".join(
            b"%b%016x%b" % (head, base_id + span[0] + i, tail) for i in range(span[1])
        )
    )
    digits = st.sampled_from(
        [
            b"000000000000000g",
            b"0x00000000000001",
            b"+000000000000001",
            b"0_00000000000001",
            b"000000000000001 ",
        ]
    )
    commands = st.one_of(
        in_order,
        ids.map(lambda each: b"%b%016x%b" % (head, each, tail)),
        ids.map(lambda each: b"%b%016X%b" % (head, each, tail)),
        digits.map(lambda each: head + each + tail),
        st.tuples(verbs, ids).map(lambda two: b"%b%016x%b" % (two[0][0], two[1], two[0][1])),
        st.sampled_from([b"FIN 0000000000000001\r\n", b"REQ 0000000000000001 00\n", b"NOP\n"]),
    )
    leased = draw(st.sets(st.integers(0, 18)) | st.just(set(range(19))))
    return draw(runs(commands)), verb, base_id, dict.fromkeys(sorted(leased), 7)


@pytest.mark.parametrize("form", FORMS)
@given(case=answer_runs())
def test_a_run_of_answers_becomes_spans(
    form: ModuleType, case: tuple[Run, tuple[bytes, bytes], int, dict[int, int]]
) -> None:
    run, verb, base_id, leases = case
    leased = dict(leases)
    spans: list[tuple[int, int]] = [(90, 91)]
    pos = form.answers(run.buf, run.pos, run.end, *verb, base_id, leased, spans)
    used, answered = expected_offsets(run.data, verb, base_id, set(leases), removes=True)
    assert pos == run.pos + used
    assert spans == [(90, 91), *expected_spans(answered)]
    assert list(leased) == [offset for offset in leases if offset not in answered]


@pytest.mark.parametrize("form", FORMS)
def test_answers_of_the_highest_offsets_are_spans_like_any(form: ModuleType) -> None:
    top = ID_MAX - 2
    buf = bytearray(b"".join(b"FIN %016x\n" % each for each in (top, top + 1, 0, 1)))
    spans: list[tuple[int, int]] = []
    leases = dict.fromkeys((0, 1, top, top + 1), 7)
    assert form.answers(buf, 0, len(buf), b"FIN ", b"\n", 0, leases, spans) == len(buf)
    assert spans == [(top, top + 2), (0, 2)]


@pytest.mark.parametrize("form", FORMS)
@given(
    case=answer_runs(st.just((b"TOUCH ", b"\n"))),
    deadline_ns=st.integers(1, 40),
    slack_ns=st.integers(-20, 20),
    caps=st.dictionaries(st.integers(0, 12), st.integers(1, 40)),
)
def test_a_run_of_touches_moves_deadlines_but_not_beyond_their_caps(
    form: ModuleType,
    case: tuple[Run, tuple[bytes, bytes], int, dict[int, int]],
    deadline_ns: int,
    slack_ns: int,
    caps: dict[int, int],
) -> None:
    run, verb, base_id, leases = case
    deadlines, new_caps = dict(leases), dict(caps)
    pos, lowest_ns = form.touches(
        run.buf, run.pos, run.end, base_id, deadlines, new_caps, deadline_ns, slack_ns
    )
    used, touched = expected_offsets(run.data, verb, base_id, set(leases), removes=False)
    assert pos == run.pos + used
    expected_caps = {**{offset: leases[offset] + slack_ns for offset in touched}, **caps}
    expected = {o: min(deadline_ns, expected_caps[o]) for o in touched}
    assert new_caps == expected_caps
    assert list(deadlines.items()) == list({**leases, **expected}.items())
    assert lowest_ns == min(expected.values(), default=deadline_ns)


# -- redeliveries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@given(
    messages=st.lists(bodies, min_size=1, max_size=6),
    first=st.sampled_from([0, 7, 1 << 40]),
    which=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 70_000)), max_size=8),
    room=st.integers(0, 300),
)
def test_frames_are_copied_with_their_attempts_until_there_is_no_room(
    form: ModuleType, messages: list[bytes], first: int, which: list[tuple[int, int]], room: int
) -> None:
    frames, ends = frames_and_ends(b"", messages, 5, TIMESTAMP_NS)
    indexes = [index % len(messages) for index, _ in which]
    attempts = [attempt for _, attempt in which]
    out = bytearray(b"earlier")
    expected = b"earlier"
    count = 0
    for index, attempt in zip(indexes, attempts, strict=True):
        if len(expected) >= room:
            break
        again = frame(5 + index, TIMESTAMP_NS, messages[index])
        expected += again[:16] + pack(">H", attempt & 0xFFFF) + again[18:]
        count += 1
    offsets = [first + index for index in indexes]
    views = memoryview(ends), memoryview(bytearray(frames))
    assert form.redeliveries(offsets, attempts, first, *views, out, room) == count
    assert out == expected


# -- locate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    first=st.sampled_from([0, 7, 1 << 40]),
    skipped=st.integers(0, 3),
    cut=st.integers(0, 60),
    damaged=st.none() | st.integers(0, 5),
    offset=st.integers(-2, 30),
)
def test_the_batch_with_an_offset_is_found_if_its_header_is_there(
    form: ModuleType,
    counts: list[int],
    first: int,
    skipped: int,
    cut: int,
    damaged: int | None,
    offset: int,
) -> None:
    data = bytearray(b"?" * skipped)
    places: list[tuple[int, int, int]] = []  # position, first offset, end
    at = first
    for index, count in enumerate(counts):
        places.append((len(data), at, at + count))
        size = HEADER_BYTES - 4 + 38 * count
        shown = at + 1 if index == damaged else at
        data += HEADER.pack(size, 0, shown, 5, count, 0) + bytes(38 * count)
        at += count
    end = len(data) - cut
    expected = -1
    for index, (position, start, stop) in enumerate(places):
        if end - position < HEADER_BYTES or index == damaged:
            break
        if start <= max(first + offset, 0) < stop:
            expected = position
            break
    assert form.locate(data, skipped, end, first, max(first + offset, 0)) == expected


# -- fin_commands ---------------------------------------------------------------------------------


def expected_fin_commands(data: bytes) -> tuple[int, bytes]:
    used, out = 0, b""
    while len(data) - used >= 34:
        size = int.from_bytes(data[used : used + 4], "big", signed=True)
        kind = int.from_bytes(data[used + 4 : used + 8], "big")
        if kind != 2 or size < 30 or len(data) - used - 4 < size:
            break
        out += b"FIN " + data[used + 18 : used + 34] + b"\n"
        used += 4 + size
    return used, out


message_frames = st.builds(frame, first_ids, timestamps, st.binary(max_size=LIMIT))
reply_frames = st.builds(
    lambda kind, size, data: pack(">II", size if size is not None else 4 + len(data), kind) + data,
    st.integers(0, 3),
    st.none() | odd_sizes | st.integers(28, 31),
    st.binary(max_size=40),
)


@pytest.mark.parametrize("form", FORMS)
@given(run=runs(st.one_of(message_frames, message_frames, message_frames, reply_frames)))
def test_a_run_of_message_frames_becomes_fins(form: ModuleType, run: Run) -> None:
    out = bytearray(b"out")
    pos, count = form.fin_commands(run.buf, run.pos, run.end, out)
    used, commands = expected_fin_commands(run.data)
    assert pos == run.pos + used
    assert out == b"out" + commands
    assert count * 21 == len(commands)


# -- body_bytes and mpub_command ------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@given(given_bodies=st.lists(st.binary(max_size=LIMIT + 2) | st.just(bytes(3000)), max_size=8))
def test_bodies_become_an_mpub(form: ModuleType, given_bodies: list[bytes]) -> None:
    messages = b"".join(pack(">I", len(body)) + body for body in given_bodies)
    body = pack(">I", len(given_bodies)) + messages
    command = b"MPUB t\n" + pack(">I", len(body)) + body
    assert form.mpub_command(b"MPUB t\n", given_bodies) == command


@pytest.mark.parametrize("form", FORMS)
@given(given_bodies=st.lists(st.binary(max_size=LIMIT + 2)), limit=limits)
def test_bodies_are_added_up_if_all_may_be_messages(
    form: ModuleType, given_bodies: list[bytes], limit: int
) -> None:
    sizes = list(map(len, given_bodies))
    valid = all(0 < size <= limit for size in sizes)
    assert form.body_bytes(given_bodies, limit) == (sum(sizes) if valid else -1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("other", ["text", bytearray(b"x"), memoryview(b"x"), None, 1])
def test_what_is_not_bytes_is_no_message(form: ModuleType, other: object) -> None:
    assert form.body_bytes([b"a", other], LIMIT) == -1
    if not isinstance(other, bytearray | memoryview):
        with pytest.raises(TypeError):
            form.mpub_command(b"MPUB t\n", [b"a", other])


# -- whatever the bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(max_size=80))
def test_any_bytes_are_taken_or_left(form: ModuleType, data: bytes) -> None:
    buf = bytearray(data)
    frames, ends = bytearray(), bytearray()
    pos, count = form.pubs(buf, 0, len(buf), b"", frames, ends, 1, 1, LIMIT)
    assert 0 <= pos <= len(buf)
    assert len(ends) == 4 * count
    assert form.mpub(buf, 0, len(buf), 2, frames, ends, 1, 1, LIMIT) in (-1, 0, 1)
    assert form.answers(buf, 0, len(buf), b"FIN ", b"\n", 0, {}, []) == 0
    assert form.touches(buf, 0, len(buf), 0, {}, {}, 9, 9) == (0, 9)
    assert 0 <= form.fin_commands(buf, 0, len(buf), bytearray())[0] <= len(buf)
