"""Both forms of the kernels against plain models, on input that is right, cut off or wrong."""

import re
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


# -- dpubs ----------------------------------------------------------------------------------------

HEAD = b"DPUB topic "
DELAY_MS_MAX = 3_600_000


def expected_dpubs(data: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    """The delays, as they are written, and the bodies."""
    found = []
    while match := re.match(rb"DPUB topic ([0-9]{1,12})\n", data):
        body = take_sized(data[match.end() :], limit)
        if body is None or int(match[1]) > DELAY_MS_MAX:
            break
        found.append((match[1], body))
        data = data[match.end() + 4 + len(body) :]
    return found


delays = st.one_of(
    st.integers(0, DELAY_MS_MAX).map(lambda each: b"%d" % each),
    st.integers(0, DELAY_MS_MAX).map(lambda each: b"%d" % each),
    st.sampled_from([b"0", b"007", b"3600000", b"3600001", b"000000000001", b"0000000000001"]),
    st.sampled_from([b"", b"-1", b"1 ", b" 1", b"1\r", b"1.5", b"\xd9\xa3", b"9" * 20]),
)
dpub_commands = st.one_of(
    st.builds(lambda delay, body: HEAD + delay + b"\n" + body, delays, sized),
    st.builds(lambda delay, body: HEAD + delay + b"\n" + body, delays, sized),
    st.builds(lambda delay, body: HEAD + delay + b"\n" + body, delays, missized),
    st.sampled_from([b"DPUB other 5\n\0\0\0\1x", b"DPUB topic 5", HEAD, b"NOP\n", b""]),
    st.binary(max_size=20),
)


@pytest.mark.parametrize("form", FORMS)
@given(run=runs(dpub_commands), first_id=first_ids, limit=limits)
@example(
    run=Run(b"", HEAD + b"5\n\0\0\0\1a" + HEAD + b"0\n\0\0\0\1b", b""), first_id=ID_MAX, limit=1
)
def test_a_run_of_dpubs_becomes_frames_and_due_times(
    form: ModuleType, run: Run, first_id: int, limit: int
) -> None:
    timestamp_ns = 1_700_000_000_000_000_000
    frames, ends, dues = bytearray(b"earlier"), bytearray(), bytearray(b"12345678")
    before = bytes(run.buf)
    pos, count = form.dpubs(
        run.buf,
        run.pos,
        run.end,
        HEAD,
        frames,
        ends,
        dues,
        first_id,
        timestamp_ns,
        limit,
        DELAY_MS_MAX,
    )
    messages = expected_dpubs(run.data, limit)
    bodies = [body for _, body in messages]
    assert count == len(messages)
    assert pos == run.pos + sum(len(HEAD) + len(each) + 5 + len(body) for each, body in messages)
    assert (frames, ends) == frames_and_ends(b"earlier", bodies, first_id, timestamp_ns)
    delays_ns = [1_000_000 * int(each) for each, _ in messages]
    expected = [timestamp_ns + delay_ns if delay_ns else 0 for delay_ns in delays_ns]
    assert dues == b"12345678" + pack(f">{count}q", *expected)
    assert run.buf == before


@pytest.mark.parametrize("form", FORMS)
@given(
    dues_ns=st.lists(st.sampled_from([0, 4, 5, 6, (1 << 63) - 1, -1 << 63]), max_size=9),
    ends=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_a_run_of_due_times_is_on_one_side_of_a_time(
    form: ModuleType, dues_ns: list[int], ends: tuple[int, int]
) -> None:
    start, end = sorted(min(each, len(dues_ns)) for each in ends)
    stop = start
    while stop < end and (dues_ns[stop] > 5) == (dues_ns[start] > 5):
        stop += 1
    dues = pack(f">{len(dues_ns)}q", *dues_ns)
    for given_dues in (dues, bytearray(dues), memoryview(dues)):
        assert form.due_run(given_dues, start, end, 5) == stop


# -- publishes_by_line ----------------------------------------------------------------------------

OTHER = b"PUB " + b"o" * 64 + b"#ephemeral\n"  # the longest there is
LINES = (LINE, OTHER, b"M" + LINE, b"M" + OTHER)
FULL = 120
MPUB_BYTES = 60

many_bodies = st.builds(
    lambda count, messages, more: (
        pack(">I", max(len(messages) + count, 0)) + b"".join(messages) + more
    ),
    st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1, 0x7FFFFFFF]),
    st.lists(sized, max_size=5),
    st.sampled_from([b"", b"", b"", b"", b"x", b"\0\0\0\0", b"\0\0\0\1x"]),
)
mpub_commands = st.one_of(
    st.builds(
        lambda line, body: line + pack(">I", len(body)) + body, st.just(LINES[2]), many_bodies
    ),
    st.builds(
        lambda line, body: line + pack(">I", len(body)) + body, st.just(LINES[3]), many_bodies
    ),
    missized.map(lambda each: LINES[2] + each),
    st.sampled_from([b"MPUB other\n\0\0\0\x09\0\0\0\1\0\0\0\1x", b"MPUB topic\r\n", b"M\n", b""]),
    sized.map(lambda each: LINE + each),
    st.binary(max_size=20),
)


def expected_by_line(data: bytes, limit: int, body_limit: int) -> list[tuple[bytes, list[bytes]]]:
    """The line of each command, and its messages."""
    found: list[tuple[bytes, list[bytes]]] = []
    sizes = dict.fromkeys((line.removeprefix(b"M") for line in LINES), 0)
    verb = data[:1]
    while True:
        line = next((line for line in LINES if data[:1] == verb and data.startswith(line)), None)
        if line is None or sizes[line.removeprefix(b"M")] >= FULL:
            return found
        body = take_sized(data[len(line) :], limit if line.startswith(b"P") else body_limit)
        if body is None:
            return found
        bodies = [body] if line.startswith(b"P") else bodies_of_mpub(body, limit)
        if not bodies:
            return found
        found.append((line, bodies))
        sizes[line.removeprefix(b"M")] += sum(34 + len(each) for each in bodies)
        data = data[len(line) + 4 + len(body) :]


def bodies_of_mpub(body: bytes, limit: int) -> list[bytes]:
    """None, if they are not as they should be."""
    count = int.from_bytes(body[:4], "big")
    if len(body) < 4 or count > len(body):
        return []
    index, bodies = expected_mpub(body[4:], count, limit)
    is_whole = index < 0 and 4 + sum(4 + len(each) for each in bodies) == len(body)
    return bodies if is_whole else []


@pytest.mark.parametrize("form", FORMS)
@given(
    run=runs(pub_commands | sized.map(lambda each: OTHER + each)) | runs(mpub_commands),
    first_id=first_ids,
    timestamp_ns=timestamps,
    limit=limits,
    body_limit=limits | st.just(MPUB_BYTES),
)
@example(
    run=Run(b"", (OTHER + b"\0\0\0\1a" + LINE + b"\0\0\0\1b") * 4, b""),
    first_id=7,
    timestamp_ns=1,
    limit=9,
    body_limit=9,
)
@example(
    run=Run(b"", (LINES[3] + b"\0\0\0\x0e\0\0\0\2\0\0\0\1a\0\0\0\1b") * 4, b""),
    first_id=7,
    timestamp_ns=1,
    limit=9,
    body_limit=14,
)
@example(
    run=Run(b"", LINES[2] + b"\0\0\0\x09\0\0\0\1\0\0\0\1a" + LINE + b"\0\0\0\1b", b""),
    first_id=ID_MAX,
    timestamp_ns=1,
    limit=9,
    body_limit=14,
)
def test_a_run_of_publishes_to_many_topics_becomes_frames_of_each_and_of_all(
    form: ModuleType, run: Run, first_id: int, timestamp_ns: int, limit: int, body_limit: int
) -> None:
    batch, other = (bytearray(), bytearray(), first_id), (bytearray(), bytearray(), 3)
    batches = {LINES[0]: batch, LINES[1]: other, LINES[2]: batch, LINES[3]: other}
    frames, ends, lines = bytearray(b"earlier"), bytearray(), [b"before"]
    before = bytes(run.buf)
    arguments = (batches, frames, ends, lines, timestamp_ns, limit, body_limit, FULL)
    pos, count = form.publishes_by_line(run.buf, run.pos, run.end, *arguments)
    found = expected_by_line(run.data, limit, body_limit)
    assert count == len(found)
    sizes = [
        len(line)
        + 4
        + (len(bodies[0]) if line.startswith(b"P") else 4 + sum(4 + len(each) for each in bodies))
        for line, bodies in found
    ]
    assert pos == run.pos + sum(sizes)
    messages = [(line, body) for line, bodies in found for body in bodies]
    assert lines == [b"before", *(line for line, _ in messages)]
    for line in LINES[:2]:
        its_frames, its_ends, its_id = batches[line]
        bodies = [body for each, body in messages if each.endswith(line)]
        assert (its_frames, its_ends) == frames_and_ends(b"", bodies, its_id, timestamp_ns)
    next_ids = {line: batches[line][2] for line in LINES[:2]}
    expected, expected_ends = b"earlier", b""
    for line, body in messages:
        expected += frame(next_ids[line.removeprefix(b"M")], timestamp_ns, body)
        expected_ends += pack(">I", len(expected))
        next_ids[line.removeprefix(b"M")] += 1
    assert (frames, ends) == (expected, expected_ends)
    assert run.buf == before


@pytest.mark.skipif(_compiled is None, reason="the compiled kernels are not built")
@given(
    run=runs(mpub_commands | pub_commands),
    first_id=first_ids,
    timestamp_ns=timestamps,
    limit=limits,
    body_limit=limits | st.just(MPUB_BYTES),
    full=st.sampled_from([0, 1, FULL, 1 << 20]),
)
def test_both_forms_take_the_same_publishes(
    run: Run, first_id: int, timestamp_ns: int, limit: int, body_limit: int, full: int
) -> None:
    outcomes = []
    for form in (_kernels_py, _compiled):
        batch, other = (bytearray(b"old"), bytearray(4), first_id), (bytearray(), bytearray(), 3)
        batches = dict(zip(LINES, (batch, other, batch, other), strict=True))
        record = bytearray(), bytearray(), list[bytes]()
        arguments = (*record, timestamp_ns, limit, body_limit, full)
        after = form.publishes_by_line(run.buf, run.pos, run.end, batches, *arguments)
        outcomes.append((after, batches, record))
    assert outcomes[0] == outcomes[1]


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
