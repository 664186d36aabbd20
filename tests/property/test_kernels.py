"""Both forms of the kernels against plain models, on input that is right, cut off or wrong."""

from struct import pack
from types import ModuleType

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from pumpline.core.messages import _kernels_py

try:
    from pumpline.core.messages import _kernels as _compiled
except ImportError:
    _compiled = None

FORMS = [
    pytest.param(_kernels_py, id="python"),
    pytest.param(
        _compiled,
        id="compiled",
        marks=pytest.mark.skipif(_compiled is None, reason="the compiled kernels are not built"),
    ),
]
LINE = b"PUB topic\n"
LIMIT = 20
ID_MAX = (1 << 64) - 1
TIMESTAMP_NS = 1_700_000_000_123_456_789

first_ids = st.sampled_from([0, 1, 0x0123456789ABCDEF, ID_MAX - 3, ID_MAX])
timestamps = st.sampled_from([0, TIMESTAMP_NS, (1 << 63) - 1])
limits = st.sampled_from([-1, 0, 1, LIMIT, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40])
bodies = st.binary(min_size=1, max_size=LIMIT + 2)
odd_sizes = st.sampled_from([0, 1, LIMIT, LIMIT + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
sized = st.builds(lambda body: pack(">I", len(body)) + body, bodies)
missized = st.builds(lambda size, body: pack(">I", size) + body, odd_sizes, st.binary(max_size=5))


class Run:
    """Bytes in the middle of a buffer: before and after lies what must not be looked at."""

    def __init__(self, before: bytes, data: bytes, after: bytes) -> None:
        self.buf = bytearray(before + data + after)
        self.pos = len(before)
        self.end = len(before) + len(data)
        self.data = data

    def __repr__(self) -> str:
        return f"Run({bytes(self.buf)!r}, {self.pos}, {self.end})"


@st.composite
def runs(draw: st.DrawFn, commands: st.SearchStrategy[bytes]) -> Run:
    """A run of commands, cut off anywhere; what was cut off still follows in the buffer."""
    whole = b"".join(draw(st.lists(commands, max_size=8)))
    cut = draw(st.integers(0, len(whole)) | st.just(len(whole)))
    return Run(draw(st.binary(max_size=3)), whole[:cut], whole[cut:])


def frame(message_id: int, timestamp_ns: int, body: bytes) -> bytes:
    return (
        pack(">IIQH", 30 + len(body), 2, timestamp_ns, 1)
        + f"{message_id & ID_MAX:016x}".encode()
        + body
    )


def frames_and_ends(
    earlier: bytes, messages: list[bytes], first_id: int, timestamp_ns: int
) -> tuple[bytes, bytes]:
    frames, ends = earlier, b""
    for index, body in enumerate(messages):
        frames += frame(first_id + index, timestamp_ns, body)
        ends += pack(">I", len(frames))
    return frames, ends


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [bytes, bytearray])
@given(
    data=st.binary(max_size=30),
    data_pos=st.integers(-2, 32),
    size=st.integers(-2, 32),
    message_id=first_ids,
    timestamp_ns=timestamps,
    earlier=st.binary(max_size=5),
)
def test_message(
    form: ModuleType,
    kind: type[bytes | bytearray],
    data: bytes,
    data_pos: int,
    size: int,
    message_id: int,
    timestamp_ns: int,
    earlier: bytes,
) -> None:
    frames, ends = bytearray(earlier), bytearray()
    whole = kind(data)
    end = data_pos + size
    if 0 <= data_pos < end <= len(data):
        form.message(whole, data_pos, end, frames, ends, message_id, timestamp_ns)
        expected = frames_and_ends(earlier, [data[data_pos:end]], message_id, timestamp_ns)
        assert (frames, ends) == expected
    else:
        with pytest.raises(ValueError, match="no message"):
            form.message(whole, data_pos, end, frames, ends, message_id, timestamp_ns)
        assert (frames, ends) == (earlier, b"")
    assert whole == data


def take_sized(data: bytes, limit: int) -> bytes | None:
    """The body after a size, if it is whole and its size allowed."""
    if len(data) < 4:
        return None
    size = int.from_bytes(data[:4], "big", signed=True)
    return data[4 : 4 + size] if 0 < size <= limit and len(data) - 4 >= size else None


# -- pubs -----------------------------------------------------------------------------------------


def expected_pubs(data: bytes, limit: int) -> list[bytes]:
    found = []
    while data.startswith(LINE) and (body := take_sized(data[len(LINE) :], limit)) is not None:
        found.append(body)
        data = data[len(LINE) + 4 + len(body) :]
    return found


pub_commands = st.one_of(
    sized.map(lambda each: LINE + each),
    sized.map(lambda each: LINE + each),
    sized.map(lambda each: LINE + each),
    missized.map(lambda each: LINE + each),
    st.sampled_from([b"PUB other\n\0\0\0\1x", b"PUB topic\r\n\0\0\0\1x", b"NOP\n", b""]),
    st.binary(max_size=20),
)


@pytest.mark.parametrize("form", FORMS)
@given(run=runs(pub_commands), first_id=first_ids, timestamp_ns=timestamps, limit=limits)
@example(
    run=Run(b"", LINE + b"\0\0\0\1a" + LINE + b"\0\0\0\1b", b""),
    first_id=ID_MAX,
    timestamp_ns=0,
    limit=1,
)
@example(run=Run(b"", LINE + b"\0\0\0\1a", b""), first_id=0, timestamp_ns=0, limit=5_000_000_000)
def test_a_run_of_pubs_becomes_frames(
    form: ModuleType, run: Run, first_id: int, timestamp_ns: int, limit: int
) -> None:
    frames, ends = bytearray(b"earlier"), bytearray()
    before = bytes(run.buf)
    pos, count = form.pubs(
        run.buf, run.pos, run.end, LINE, frames, ends, first_id, timestamp_ns, limit
    )
    messages = expected_pubs(run.data, limit)
    assert count == len(messages)
    assert pos == run.pos + sum(len(LINE) + 4 + len(body) for body in messages)
    assert (frames, ends) == frames_and_ends(b"earlier", messages, first_id, timestamp_ns)
    assert run.buf == before


# -- pubs_by_line ---------------------------------------------------------------------------------

OTHER = b"PUB " + b"o" * 64 + b"#ephemeral\n"  # the longest there is
FULL = 120


def expected_by_line(data: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    """Lines and bodies."""
    found: list[tuple[bytes, bytes]] = []
    sizes = {LINE: 0, OTHER: 0}
    while True:
        line = next((line for line in sizes if data.startswith(line)), None)
        body = None if line is None else take_sized(data[len(line) :], limit)
        if line is None or body is None or sizes[line] >= FULL:
            return found
        found.append((line, body))
        sizes[line] += 34 + len(body)
        data = data[len(line) + 4 + len(body) :]


@pytest.mark.parametrize("form", FORMS)
@given(
    run=runs(pub_commands | sized.map(lambda each: OTHER + each)),
    first_id=first_ids,
    timestamp_ns=timestamps,
    limit=limits,
)
@example(
    run=Run(b"", (OTHER + b"\0\0\0\1a" + LINE + b"\0\0\0\1b") * 4, b""),
    first_id=7,
    timestamp_ns=1,
    limit=9,
)
def test_a_run_of_pubs_to_many_topics_becomes_frames_of_each_and_of_all(
    form: ModuleType, run: Run, first_id: int, timestamp_ns: int, limit: int
) -> None:
    batches = {LINE: (bytearray(), bytearray(), first_id), OTHER: (bytearray(), bytearray(), 3)}
    frames, ends, lines = bytearray(b"earlier"), bytearray(), [b"before"]
    before = bytes(run.buf)
    arguments = (batches, frames, ends, lines, timestamp_ns, limit, FULL)
    pos = form.pubs_by_line(run.buf, run.pos, run.end, *arguments)
    found = expected_by_line(run.data, limit)
    assert pos == run.pos + sum(len(line) + 4 + len(body) for line, body in found)
    assert lines == [b"before", *(line for line, _ in found)]
    for line, (its_frames, its_ends, its_id) in batches.items():
        messages = [body for each, body in found if each == line]
        assert (its_frames, its_ends) == frames_and_ends(b"", messages, its_id, timestamp_ns)
    next_ids = {line: first for line, (_, _, first) in batches.items()}
    expected, expected_ends = b"earlier", b""
    for line, body in found:
        expected += frame(next_ids[line], timestamp_ns, body)
        expected_ends += pack(">I", len(expected))
        next_ids[line] += 1
    assert (frames, ends) == (expected, expected_ends)
    assert run.buf == before


# -- mpub -----------------------------------------------------------------------------------------


def expected_mpub(data: bytes, count: int, limit: int) -> tuple[int, list[bytes]]:
    found = []
    for index in range(count):
        body = take_sized(data, limit)
        if body is None:
            return index, []
        found.append(body)
        data = data[4 + len(body) :]
    return -1, found


@pytest.mark.parametrize("form", FORMS)
@given(
    run=runs(st.one_of(sized, sized, sized, sized, missized)),
    count=st.integers(0, 9),
    first_id=first_ids,
    timestamp_ns=timestamps,
    limit=limits,
)
@example(
    run=Run(b"", b"\0\0\0\1a\0\0\0\1b", b""), count=2, first_id=ID_MAX, timestamp_ns=0, limit=1
)
def test_an_mpub_becomes_frames_whole_or_not_at_all(
    form: ModuleType, run: Run, count: int, first_id: int, timestamp_ns: int, limit: int
) -> None:
    frames, ends = bytearray(b"earlier"), bytearray(b"ends")
    bad = form.mpub(run.buf, run.pos, run.end, count, frames, ends, first_id, timestamp_ns, limit)
    expected, messages = expected_mpub(run.data, count, limit)
    assert bad == expected
    new_frames, new_ends = frames_and_ends(b"earlier", messages, first_id, timestamp_ns)
    assert (frames, ends) == (new_frames, b"ends" + new_ends)


@pytest.mark.parametrize("form", FORMS)
@given(
    run=runs(st.one_of(sized, sized, sized, sized, missized)),
    count=st.integers(0, 9),
    limit=limits,
)
def test_messages_are_skipped_up_to_the_first_that_an_mpub_would_not_take(
    form: ModuleType, run: Run, count: int, limit: int
) -> None:
    found, pos = form.skip_messages(run.buf, run.pos, run.end, count, limit)
    bad, _ = expected_mpub(run.data, count, limit)
    assert found == (count if bad < 0 else bad)
    _, messages = expected_mpub(run.data, found, limit)
    assert pos == run.pos + sum(4 + len(body) for body in messages)


@pytest.mark.parametrize("form", FORMS)
def test_an_mpub_that_claims_too_many_messages_stops_at_the_end(form: ModuleType) -> None:
    buf = bytearray(b"\0\0\0\1a" * 3)
    frames, ends = bytearray(), bytearray()
    assert form.mpub(buf, 0, len(buf), 0xFFFFFFFF, frames, ends, 0, 0, 9) == 3
    assert (frames, ends) == (b"", b"")


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
