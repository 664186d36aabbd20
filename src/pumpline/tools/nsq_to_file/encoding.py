"""How messages lie in a file: framing, compression, and where the whole part of a file ends.

| framing | a record                                  |
|---------|-------------------------------------------|
| line    | body, newline                             |
| length  | size of the body as u32 big-endian, body  |

| compression | what one sync writes                                  |
|-------------|-------------------------------------------------------|
| none        | records                                               |
| gzip        | one member; members one after another are a gzip file |
| zstd        | one frame; likewise                                   |

So a file that was cut at any byte is whole up to the last sync. `whole_bytes` finds that place.
Knows nothing of messages' origin, nor of when a file is written.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import cramjam

GZIP_WBITS = 31
GZIP_MAGIC = b"\x1f\x8b"
PIECE_BYTES = 1 << 20
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SIZE = struct.Struct(">I")


class Encoding:
    suffix = ""
    magic = b""  # what a file begins with
    is_compressed = False

    def __init__(self, *, framing: str) -> None:
        self._is_lines = framing == "line"

    def records(self, bodies: Sequence[bytes]) -> bytes:
        if self._is_lines:
            return b"\n".join(bodies) + b"\n" if bodies else b""
        return b"".join([part for body in bodies for part in (_SIZE.pack(len(body)), body)])

    def record_bytes(self, body: bytes) -> int:
        return len(body) + (1 if self._is_lines else _SIZE.size)

    def encode(self, bodies: Sequence[bytes]) -> bytes:
        """What one sync writes; of no bodies what makes an empty file readable."""
        return self.records(bodies)

    def whole_bytes(self, file: BinaryIO) -> int:
        """The size of the part of a file that consists of whole records, members or frames."""
        return _whole_lines(file) if self._is_lines else _whole_lengths(file)

    def begins_as_ours(self, file: BinaryIO) -> bool:
        """Whether a file without a whole record may be the beginning of one of ours."""
        file.seek(0)
        if not self.magic:
            return self._is_lines
        return self.magic.startswith(file.read(len(self.magic)))


class GzipEncoding(Encoding):
    suffix = ".gz"
    magic = GZIP_MAGIC
    is_compressed = True

    def __init__(self, *, framing: str, level: int) -> None:
        super().__init__(framing=framing)
        self._level = level

    def encode(self, bodies: Sequence[bytes]) -> bytes:
        member = zlib.compressobj(self._level, zlib.DEFLATED, GZIP_WBITS)
        return member.compress(self.records(bodies)) + member.flush()

    def whole_bytes(self, file: BinaryIO) -> int:
        file.seek(0)
        whole = read = 0
        member = zlib.decompressobj(GZIP_WBITS)
        piece = b""
        while True:
            if not piece:
                piece = file.read(PIECE_BYTES)
                read += len(piece)
                if not piece:
                    return whole
            try:
                member.decompress(piece)
            except zlib.error:
                return whole
            piece = b""
            if member.eof:
                piece = member.unused_data
                whole = read - len(piece)
                member = zlib.decompressobj(GZIP_WBITS)


class ZstdEncoding(Encoding):
    suffix = ".zst"
    magic = ZSTD_MAGIC
    is_compressed = True

    def __init__(self, *, framing: str, level: int) -> None:
        super().__init__(framing=framing)
        self._level = level

    def encode(self, bodies: Sequence[bytes]) -> bytes:
        return bytes(cramjam.zstd.compress(self.records(bodies), self._level))

    def whole_bytes(self, file: BinaryIO) -> int:
        file.seek(0)
        whole = 0
        while (size := _zstd_frame_bytes(file)) is not None:
            whole += size
        return whole


def _whole_lines(file: BinaryIO) -> int:
    """Up to the last newline, which is looked for from the end."""
    end = file.seek(0, 2)
    while end:
        start = max(0, end - PIECE_BYTES)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _whole_lengths(file: BinaryIO) -> int:
    end = file.seek(0, 2)
    whole = 0
    while True:
        file.seek(whole)
        size = file.read(_SIZE.size)
        if len(size) < _SIZE.size or whole + _SIZE.size + _SIZE.unpack(size)[0] > end:
            return whole
        whole += _SIZE.size + _SIZE.unpack(size)[0]


def _zstd_frame_bytes(file: BinaryIO) -> int | None:
    """The size of the frame at the file's place, which then is behind it; None if it is not whole.

    RFC 8878: magic, descriptor, window, dictionary and content sizes, blocks, checksum.
    """
    start = file.tell()
    head = file.read(5)
    if len(head) < 5 or head[:4] != ZSTD_MAGIC:
        return None
    descriptor = head[4]
    is_single_segment = descriptor & 0x20 != 0
    content_size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    file.seek((0 if is_single_segment else 1) + dictionary_bytes + content_size_bytes, 1)
    while True:
        block = file.read(3)
        if len(block) < 3:
            return None
        header = int.from_bytes(block, "little")
        kind, size = header >> 1 & 3, header >> 3
        file.seek(1 if kind == 1 else size, 1)  # a run-length block has one byte
        if header & 1:
            break
    end = file.seek(4 if descriptor & 4 else 0, 1)
    is_whole = file.seek(0, 2) >= end
    file.seek(end)
    return end - start if is_whole else None
