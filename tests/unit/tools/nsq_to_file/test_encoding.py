"""Records in files: every place where a file can be cut leaves what was whole before it."""

import gzip
import io

import cramjam
import pytest

from pumpline.tools.nsq_to_file.encoding import Encoding, GzipEncoding, ZstdEncoding

BODIES = [[b"one", b"two\n\nlines"], [b"\0\1\2" * 50], [b"x" * 300, b"last"]]
ENCODINGS = [
    Encoding(framing="line"),
    Encoding(framing="length"),
    GzipEncoding(framing="line", level=6),
    ZstdEncoding(framing="length", level=3),
]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_cut_file_is_whole_up_to_the_last_record_or_member(encoding: Encoding) -> None:
    parts = [encoding.encode(bodies) for bodies in BODIES]
    whole = b"".join(parts)
    for size in range(len(whole) + 1):
        found = encoding.whole_bytes(io.BytesIO(whole[:size]))
        assert found <= size
        assert found >= max(n for n in (0, *_ends(parts)) if n <= size)
        assert encoding.whole_bytes(io.BytesIO(whole[:found])) == found


def _ends(parts: list[bytes]) -> list[int]:
    return [sum(map(len, parts[: count + 1])) for count in range(len(parts))]


@pytest.mark.parametrize("encoding", ENCODINGS[2:])
def test_what_follows_a_member_and_is_none_is_not_whole(encoding: Encoding) -> None:
    member = encoding.encode([b"body"])
    assert encoding.whole_bytes(io.BytesIO(member + b"\0" * 100)) == len(member)
    assert encoding.whole_bytes(io.BytesIO(b"no member")) == 0


def test_members_one_after_another_are_one_file() -> None:
    gz = GzipEncoding(framing="line", level=1)
    assert gzip.decompress(gz.encode([b"a"]) + gz.encode([]) + gz.encode([b"b"])) == b"a\nb\n"
    zst = ZstdEncoding(framing="line", level=1)
    joined = zst.encode([b"a"]) + zst.encode([b"b"])
    assert bytes(cramjam.zstd.decompress(joined)) == b"a\nb\n"
