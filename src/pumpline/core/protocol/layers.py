"""TLS, and snappy or deflate inside it, as IDENTIFY switches them on for a connection.

Bytes in, bytes out, no sockets; the same for client and server. `receive` takes bytes from the wire
and `read` returns the decoded ones, not much more at once than asked for: a little input may
decompress to a thousand times its size. `write` takes bytes to be sent and `take` returns them
encoded for the wire.

Snappy is its framing format:

| bytes | meaning                                                                             |
|-------|-------------------------------------------------------------------------------------|
| 0     | kind: 0 compressed, 1 plain, 0xff stream identifier, 0x80-0xfe to be skipped        |
| 1-3   | size of what follows, little-endian                                                 |
| 4-7   | of kinds 0 and 1: masked CRC-32C of the plain bytes                                 |
| 8-    | the data: at most 65536 plain bytes; kind 0 begins with their number, as a varint   |

The stream identifier comes first. Deflate is raw (RFC 1951), flushed after every write, by zlib-ng
where it is installed: at level 6, messages of 200 bytes of JSON cost 2.7 us to deflate and 0.4 to
inflate, and 4.7 and 1.0 with zlib.
"""

import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

from pumpline.core.protocol.frames import split_frames

try:
    from zlib_ng import zlib_ng as zlib
except ImportError:
    import zlib  # type: ignore[no-redef]

_INFLATE_ERROR: Any = zlib.error  # zlib-ng has no type for it

Buffer = bytes | bytearray | memoryview

TLS_READ_BYTES = 256 * 1024
PIECES_MAX = 500  # TLS records or snappy chunks, unpacked at once: however small, each takes 1 us
SMALL_BYTES = 64
_TLS_HANDSHAKE_RECORD = 22

_RAW_DEFLATE_BITS = -15

_SNAPPY_START = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_COMPRESSED = 0
_SNAPPY_PLAIN = 1
_SNAPPY_PLAIN_BYTES_MAX = 65_536
_SNAPPY_CHUNK_BYTES_MAX = 76_494  # 65536 bytes that do not compress, and the checksum
_SNAPPY_HEAD_BYTES = 4


class UpgradeError(Exception):
    """What the peer sent is not what was agreed on."""


class EndOfStream(Exception):
    """The peer has ended the stream, but not yet closed the socket."""


class LayerMissing(Exception):
    """The layer needs a library that is not installed; the text says which."""


class Compression(Protocol):
    name: str
    has_more: bool  # of what was received: `read` gave what it was asked for, and stopped

    def receive(self, data: bytes) -> None: ...

    def read(self, bytes_max: int) -> bytes: ...

    def pack(self, data: bytes) -> bytes: ...


class Tls:
    def __init__(self, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """The server's side; the client's, if it is told the name of the server."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._first_byte = -1
        self._ended = False  # the peer's stream, seen while there was something to give
        self._failed = ""  # why nothing more can be read
        self.has_more = False  # as `Compression` has it
        self.established = False

    @property
    def common_name(self) -> str:
        """The name in the peer's certificate, if it has shown one."""
        certificate: dict[str, Any] = self._object.getpeercert() or {}
        fields = [field for fields in certificate.get("subject", ()) for field in fields]
        names = [str(value) for key, value in fields if key == "commonName"]
        return names[-1] if names else ""

    @property
    def cipher(self) -> str:
        """OpenSSL's name of it."""
        cipher = self._object.cipher()
        return cipher[0] if cipher else ""

    @property
    def version(self) -> str:
        return self._object.version() or ""

    def shake_hands(self) -> None:
        """Go on with the handshake, and set `established` when it is done."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            if self._first_byte != _TLS_HANDSHAKE_RECORD:
                self._outgoing.read()  # to someone who speaks no TLS an alert is noise
                raise UpgradeError("tls: first record does not look like a TLS handshake") from None
            raise UpgradeError(_reason(error)) from None
        self.established = True

    def receive(self, data: Buffer) -> None:
        if self._first_byte < 0:
            self._first_byte = data[0]
        self._incoming.write(data)

    def read(self, bytes_max: int) -> bytes:
        pieces: list[bytes] = []
        self.has_more = False
        while not self._failed and not self._ended:
            if bytes_max <= 0 or len(pieces) == PIECES_MAX:
                self.has_more = True
                break
            try:
                piece = self._object.read(bytes_max)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:
                self._failed = _reason(error)
                break
            if piece:
                pieces.append(piece)
                bytes_max -= len(piece)
            else:
                self._ended = True
        if not pieces:
            # Raised anew each time: an exception that is kept keeps who called, too.
            if self._failed:
                raise UpgradeError(self._failed)
            if self._ended:
                raise EndOfStream
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._object.write(view) :]
        except ssl.SSLError as error:
            raise UpgradeError(_reason(error)) from None

    def say_goodbye(self) -> None:
        """Tell the peer that nothing follows."""
        with suppress(ssl.SSLError):  # it does not have to say so too
            self._object.unwrap()

    def take(self) -> bytes:
        return self._outgoing.read()


class Deflate:
    name = "deflate"

    def __init__(self, level: int) -> None:
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE_BITS)
        self._inflater = zlib.decompressobj(_RAW_DEFLATE_BITS)
        self._input = b""
        self.has_more = False

    def receive(self, data: bytes) -> None:
        self._input += data

    def read(self, bytes_max: int) -> bytes:
        if self._inflater.eof:
            raise EndOfStream
        if not self._input and not self.has_more:
            return b""
        try:
            data = self._inflater.decompress(self._input, bytes_max)
        except _INFLATE_ERROR as error:
            raise UpgradeError(f"deflate: {error}") from None
        self._input = self._inflater.unconsumed_tail
        self.has_more = len(data) == bytes_max
        return data

    def pack(self, data: bytes) -> bytes:
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)


class Snappy:
    name = "snappy"

    def __init__(self) -> None:
        try:
            import cramjam  # here: only who asks for snappy needs it
        except ImportError:
            raise LayerMissing("snappy needs cramjam: pip install 'pumpline[snappy]'") from None
        self._decompress = cramjam.snappy.decompress
        self._failure: type[Exception] = cramjam.DecompressionError
        self._compressor = cramjam.snappy.Compressor()
        self._input = bytearray()
        self._started = False
        self._packed_last = b"", b""  # small data, and what it was packed to
        self.has_more = False

    def receive(self, data: bytes) -> None:
        self._input += data

    def read(self, bytes_max: int) -> bytes:
        """What is in whole chunks, up to the first with which it is enough."""
        end = self._whole_chunks(bytes_max)
        if not end:
            return b""
        chunks = _SNAPPY_START + self._input[:end]
        del self._input[:end]
        try:
            return bytes(self._decompress(chunks))
        except self._failure as error:
            raise UpgradeError(str(error)) from None

    def _whole_chunks(self, bytes_max: int) -> int:
        """Where the chunks to be unpacked now end."""
        data = self._input
        pos = plain = count = 0
        self.has_more = False
        while len(data) - pos >= _SNAPPY_HEAD_BYTES:
            if plain >= bytes_max or count == PIECES_MAX:
                self.has_more = True
                break
            count += 1
            size = int.from_bytes(data[pos + 1 : pos + 4], "little")
            if size > _SNAPPY_CHUNK_BYTES_MAX:
                raise UpgradeError("snappy: unsupported chunk size")
            after = pos + _SNAPPY_HEAD_BYTES + size
            if after > len(data):
                break
            if not self._started:
                if data[pos:after] != _SNAPPY_START:
                    raise UpgradeError("snappy: no stream identifier")
                self._started = True
            plain += _plain_size(data, pos, size)
            pos = after
        if self.has_more and not plain:
            raise UpgradeError("snappy: too many empty chunks")
        return pos

    def pack(self, data: bytes) -> bytes:
        if data == self._packed_last[0]:  # as a run of OKs: chunks do not depend on each other
            return self._packed_last[1]
        self._compressor.compress(data)
        packed = bytes(self._compressor.flush())
        if len(data) <= SMALL_BYTES and not packed.startswith(_SNAPPY_START):
            self._packed_last = data, packed
        return packed


class Layers:
    def __init__(self, *, tls: Tls | None, compression: Compression | None) -> None:
        self.tls = tls
        self.compression = compression
        self._outgoing = b""  # on its way to the wire, without TLS

    @property
    def open(self) -> bool:
        """Whether there may be reading and writing: the handshake, if any, is done."""
        return self.tls is None or self.tls.established

    def shake_hands(self) -> None:
        if self.tls is not None:
            self.tls.shake_hands()

    def receive(self, data: Buffer) -> None:
        if self.tls is not None:
            self.tls.receive(data)
        elif self.compression is not None:
            self.compression.receive(bytes(data))

    def read(self, bytes_max: int) -> bytes:
        """What came; nothing if there is no more for now. UpgradeError, EndOfStream."""
        if self.compression is None:
            return b"" if self.tls is None else self.tls.read(bytes_max)
        while not (data := self.compression.read(bytes_max)) and self.tls is not None:
            packed = self.tls.read(TLS_READ_BYTES)
            if not packed:
                break
            self.compression.receive(packed)
        return data

    @property
    def has_more(self) -> bool:
        """Whether `read` would go on with what was received before."""
        if self.compression is not None and self.compression.has_more:
            return True
        return self.tls is not None and self.tls.has_more

    def greet(self, frame: bytes) -> None:
        """Send the frame once in each layer, as it is put on."""
        if self.tls is not None:
            self.tls.write(frame)
        if self.compression is not None:
            self._send(self.compression.pack(frame))

    def write(self, output: Iterable[Buffer]) -> None:
        data = b"".join(output)
        self._send(data if self.compression is None else self.compression.pack(data))

    def write_frames(self, replies: Iterable[bytes], messages: Iterable[Buffer]) -> None:
        """What a server sends. Compressed, each reply is flushed by itself, and the messages after
        them together, as NSQ does: there are clients that lose what is flushed with a reply."""
        if self.compression is None:
            self.write([*replies, *messages])
            return
        pack = self.compression.pack
        packed = [pack(frame) for reply in replies for frame in split_frames(reply)]
        if data := b"".join(messages):
            packed.append(pack(data))
        self._send(b"".join(packed))

    def _send(self, data: bytes) -> None:
        if self.tls is not None:
            self.tls.write(data)
        else:
            self._outgoing += data

    def take(self) -> bytes:
        """Bytes for the wire; reading can make TLS send something, too."""
        if self.tls is not None:
            return self.tls.take()
        data, self._outgoing = self._outgoing, b""
        return data


def _plain_size(data: bytearray, pos: int, size: int) -> int:
    """How many bytes a chunk will unpack to; what is wrong with it is found then."""
    if data[pos] != _SNAPPY_COMPRESSED:
        return size if data[pos] == _SNAPPY_PLAIN else 0
    plain = shift = 0
    for byte in data[pos + 8 : pos + 11]:
        plain |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return min(plain, _SNAPPY_PLAIN_BYTES_MAX)


def _reason(error: ssl.SSLError) -> str:
    reason = error.reason or error.strerror or "failed"
    return "tls: " + reason.lower().replace("_", " ")
