"""One HTTP connection: plain or TLS, guarded or open, it is the same.

| phase   | what comes is                     | until                                           |
|---------|-----------------------------------|-------------------------------------------------|
| READING | cut into requests, which are begun| one of them needs a task, or is the last        |
| WORKING | kept, up to a limit               | the task that makes or sends its reply is done  |
| LAST    | dropped                           | the last reply is sent, and the client leaves   |
| CLOSED  | nothing                           |                                                 |

Requests stand in line with their answers (`Exchange`) until their replies can be sent, in order;
only the last in line can need a task. A client may close its side before it has its replies: they
are sent all the same. Not with TLS, which has no half of a connection.

Only this module and `web.stream_sink` touch transports. `web.request_reader` says what a request
is, and `web.site` what to answer.
"""

import asyncio
import logging
from collections import deque
from enum import Enum, auto
from math import inf
from typing import cast

from pumpline.core.text.addresses import is_loopback, join_address
from pumpline.web.endpoint import Settling, Work
from pumpline.web.exchange import Exchange, Shared
from pumpline.web.replies import Reply, Stream
from pumpline.web.request import HttpClient, printable
from pumpline.web.request_reader import RequestReader
from pumpline.web.stream_sink import StreamSink

DUE_MAX = 100  # requests in line
UNREAD_BYTES_MAX = 64 << 10  # kept of what comes while nothing can be begun
LARGE_REPLY_BYTES = 64 << 10  # sent before the next request is begun, which may have to wait
TURN_NS = 3_000_000  # for requests that are there at once, until others get their turn
LARGE_READ_BYTES = 32 << 10  # after which others get their turn, too

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_LOG = logging.getLogger(__name__)


class HttpPhase(Enum):
    READING = auto()
    WORKING = auto()
    LAST = auto()
    CLOSED = auto()


# A member is found ten times faster here than on its class (0.03 us for 0.3, in Python 3.11), and
# a small publish needs eight.
READING, WORKING, LAST, CLOSED = HttpPhase


class HttpConnection(asyncio.BufferedProtocol):
    def __init__(self, shared: "Shared[HttpConnection]") -> None:
        self.patience = shared.patience
        self._shared = shared
        self._site = shared.site
        self._loop = asyncio.get_running_loop()
        self._phase = READING
        self._due: deque[Exchange] = deque()
        self._unread = bytearray()  # what came, and could not be begun
        self._held = False  # `_unread` has more than the beginning of a request
        self._reads_soon = False  # it has a turn to come
        self._invites = False  # a client waits to be told to send its body
        self._task: asyncio.Task[None] | None = None  # at work for the first in line
        self._stream: Stream | None = None  # that it sends
        self._ended = False  # nothing more is read: the client closed its side, or the server ends
        self._paused = False  # nothing is read for now
        self._full = False  # the client does not take what is sent
        self._room: asyncio.Future[None] | None = None  # who sends a stream waits for that
        self._linger: asyncio.TimerHandle | None = None
        self._body_by_s = inf  # all of a body must be there
        self._sent_s = 0.0  # when replies were last sent
        self._sent_bytes = 0.0  # of these, for the client to take

    # -- the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport does not subclass asyncio.Transport, hence the cast.
        self._transport = cast(asyncio.Transport, transport)
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        name = transport.get_extra_info("peername")
        client = HttpClient(
            address=join_address(name),
            is_local=is_loopback(name[0]) if isinstance(name, tuple) else True,
            has_certificate=self._is_tls and bool(transport.get_extra_info("peercert")),
        )
        self.address = client.address
        self._reader = RequestReader(
            self._site, self._shared.buffers, client, on_body=self._on_body
        )
        self._sent_s = self._loop.time()
        self._shared.join(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._reader.sized_body
        return self._shared.received_view if body is None else body.free

    def buffer_updated(self, count: int) -> None:
        if self._reader.sized_body is not None:
            exchange = self._reader.filled(count)
            if exchange is not None:
                self._begin(exchange)
                self.flush()
                if count > LARGE_READ_BYTES:
                    self._rest()
            return
        if self._unread:
            self._unread += self._shared.received_view[:count]
            if self._held:
                self._regulate()  # `_read_on` is called in its time
            else:
                self._read_on()
        else:
            at = self._read(self._shared.received, count)
            if at < count:
                self._unread += self._shared.received_view[at:count]
            if self._unread or not self._is_settling():
                self.flush()
        if count > LARGE_READ_BYTES:
            self._rest()

    def eof_received(self) -> bool:
        """The client sends no more. Whether the connection stays, for replies."""
        self._end_input()
        if self._is_tls or (self._stream is not None and self._stream.endless):
            return False
        return bool(self._due) or self._held

    def pause_writing(self) -> None:
        self._full = True
        self._note_unsent()
        self._regulate()

    def resume_writing(self) -> None:
        self._full = False
        self._shared.unsent.note(self, 0)
        self._make_room()
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_input()
        self._phase = CLOSED
        self._shared.unsent.note(self, 0)
        self._make_room()
        if self._linger is not None:
            self._linger.cancel()
        if self._task is None:
            for exchange in self._due:
                exchange.discard()
        elif self._stream is not None:
            self._task.cancel()
        self._due.clear()
        self._unread.clear()
        # They refer back. Without them the connection's memory is free at once, not at some
        # collection.
        del self._reader, self._transport
        self._shared.leave(self)

    # -- what the server wants ----------------------------------------------------------------

    def close(self) -> None:
        """Nothing more is read; replies that are due are sent."""
        self._end_input()
        self._unread.clear()
        self._held = False
        self._regulate()
        if not self._due:
            self._transport.close()

    def abort(self) -> None:
        if self._phase is not CLOSED:
            self._transport.abort()

    def is_late(self, now_s: float) -> bool:
        """Whether the client takes too long over a body or a reply."""
        untaken = self._stream is not None or self._transport.get_write_buffer_size()
        if untaken and now_s >= self._sent_s + self.patience.to_send_s(self._sent_bytes):
            return True
        return self._reader.is_in_body and now_s >= self._body_by_s

    def is_idle(self, now_s: float) -> bool:
        """Whether the client has sent no request for too long, and has taken all replies."""
        if self._phase is not READING or self._due or self._reader.is_in_body:
            return False
        owes = self._transport.get_write_buffer_size()
        return not owes and now_s >= self._sent_s + self.patience.keepalive_s

    # -- requests -----------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Go on with what was kept, as more of it is there or more can be done."""
        if self._unread:
            data, self._unread = self._unread, bytearray()
            at = self._read(data, len(data))
            self._unread = data[at:] if at else data
        self.flush()

    def _read_soon(self) -> None:
        """Go on when others have had their turn."""
        if not self._reads_soon:
            self._reads_soon = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._reads_soon = False
        self._read_on()

    def _read(self, data: bytearray, end: int) -> int:
        """Begin the requests in data[:end] that can be begun now; returns the position after."""
        at = begun_ns = 0
        self._held = False
        while at < end:
            if self._phase is not READING or self._full or len(self._due) >= DUE_MAX:
                if self._phase is LAST:
                    return end
                self._held = True
                return at
            at, exchange = self._reader.read(data, at, end)
            if exchange is None:
                self._held = at < end and self._reader.is_in_chunks
                return at
            self._begin(exchange)
            if at < end:
                begun_ns = begun_ns or exchange.started_ns
                if exchange.started_ns - begun_ns > TURN_NS:
                    self._held = True
                    self._read_soon()
                    return at
        return at

    def _on_body(self, exchange: Exchange) -> None:
        """The client has its time to send a body, once it is told to if it waits for that."""
        time_s = self.patience.to_receive_s(exchange.body_bytes_max)
        self._body_by_s = self._loop.time() + time_s
        self._invites = exchange.head.waits_to_go_on

    def _end_input(self) -> None:
        """Nothing more is read."""
        self._ended = True
        self._invites = False
        if self._phase is READING and self._reader.is_in_body:
            self._reader.stop()
            self._phase = LAST

    def _begin(self, exchange: Exchange) -> None:
        """Put a request in line, with its answer."""
        answer = exchange.answer
        if answer is None:
            answer = exchange.answer = self._site.answer(exchange.plan, exchange)
        self._due.append(exchange)
        if exchange.close:
            self._phase = LAST
        if isinstance(answer, Settling):
            if exchange.sized_body is not None:
                exchange.release()
            answer.wait(self)
        elif isinstance(answer, Reply) and answer.stream is None:
            exchange.release()
            if len(answer.body) > LARGE_REPLY_BYTES:
                self.flush()
        else:
            self._phase = WORKING
            if exchange.buffer is self._shared.received:
                exchange.keep_body()

    # -- replies ------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the replies that are there, in order, and begin the work that is next in line."""
        due = self._due
        if self._task is not None or self._phase is CLOSED or self._transport.is_closing():
            self._regulate()
            return
        output: list[bytes] = []
        while due:
            exchange = due[0]
            answer = exchange.answer
            if isinstance(answer, Settling):
                answer = answer.reply
                if answer is None:
                    break
            if not isinstance(answer, Reply):
                assert answer is not None
                self._task = self._shared.spawn(self._work(exchange, answer))
                break
            if answer.stream is not None:
                self._begin_stream(exchange, answer, answer.stream, output)
                return
            self._site.note(exchange.plan, exchange, answer, exchange.started_ns)
            if exchange.head.is_ordinary and not exchange.close:
                output.append(self._shared.encoder.encode(answer))
            else:
                output.append(exchange.encode(answer, self._shared.encoder))
            due.popleft()
            if exchange.close:
                self._write(b"".join(output))
                self._finish(exchange)
                self._regulate()
                return
        if output:
            self._write(b"".join(output))
        if not due:
            is_special = self._unread or self._invites or self._ended or self._paused
            if self._phase is READING and not is_special:
                return
            self._on_all_sent()
        self._regulate()

    def _is_settling(self) -> bool:
        """Whether the first in line waits for its outcome, after which `flush` is called."""
        first = self._due[0].answer if self._due else None
        return isinstance(first, Settling) and first.reply is None

    def _write(self, data: bytes) -> None:
        self.expect_taken(len(data))
        self._transport.write(data)
        if self._full:
            self._note_unsent()

    def _note_unsent(self) -> None:
        self._shared.unsent.note(self, self._transport.get_write_buffer_size())

    def _on_all_sent(self) -> None:
        """Nobody is in line: go on to the next request, or end if there will be none."""
        if self._phase is WORKING:
            self._phase = READING
        if self._invites:
            self._invites = False
            self._transport.write(_CONTINUE)
        if self._held:
            if not self._full:
                self._read_soon()
        elif self._ended:
            self._transport.close()

    def _finish(self, last: Exchange) -> None:
        """The last reply was sent. A client that still sends is listened to for a moment: closing
        on it would reset the connection, and it might never see the reply."""
        self._phase = LAST
        self._unread.clear()
        self._held = self._invites = False
        if self._ended or not last.unread:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._linger = self._loop.call_later(self.patience.linger_s, self._transport.abort)

    def _regulate(self) -> None:
        """Read while there is a use for it. While a task is at work some is read, to see whether
        the client leaves."""
        pause = self._full or self._ended or len(self._unread) > UNREAD_BYTES_MAX
        if self._held and self._phase is READING and self._reader.is_in_chunks:
            pause = True  # all chunks that came are read before the client's end is
        if pause == self._paused or self._phase is CLOSED or self._transport.is_closing():
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _rest(self) -> None:
        """Let others have their turn. uvloop would read 32 times as much before."""
        if not self._paused and self._phase is not CLOSED and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()
            self._loop.call_soon(self._regulate)

    # -- what takes a task --------------------------------------------------------------------

    async def _work(self, exchange: Exchange, answer: Work) -> None:
        """Make a reply."""
        try:
            result = await self._site.work(exchange, answer)
            exchange.answer = result
        finally:
            self._task = None
            exchange.release()
        if self._phase is CLOSED:
            exchange.discard()
            return
        if isinstance(result, Settling) and result.reply is None:
            result.wait(self)
        self.flush()

    def _begin_stream(
        self, exchange: Exchange, reply: Reply, stream: Stream, before: list[bytes]
    ) -> None:
        """Send the replies before it, and its head; the rest is the affair of a task."""
        if self._ended and stream.endless:
            stream.close()
            self._write(b"".join(before))
            self._due.clear()
            self._transport.close()
            return
        self._site.note(exchange.plan, exchange, reply, exchange.started_ns)
        self._write(b"".join((*before, exchange.encode(reply, self._shared.encoder))))
        self._stream = stream
        sink = StreamSink(self, self._transport, in_chunks=exchange.sends_chunks(reply))
        self._task = self._shared.spawn(self._send_stream(exchange, stream, sink))

    async def _send_stream(self, exchange: Exchange, stream: Stream, sink: StreamSink) -> None:
        try:
            sink.expect(stream.length_bytes or 0)
            await stream.send(sink)
            sink.end()
        except ConnectionError:
            self.abort()  # nobody is there any more
        except OSError as error:
            # What was announced cannot be sent: the client must not take the next reply for it.
            shown = printable(exchange.head.target)
            _LOG.error("HTTP: failed to send %s - %s", shown, error)
            self.abort()
        except Exception:
            _LOG.exception("HTTP: failed to send %s", printable(exchange.head.target))
            self.abort()
        finally:
            self._task = self._stream = None
            stream.close()
        if self._phase is CLOSED or self._transport.is_closing():
            return
        self._due.popleft()
        self.expect_taken(self._transport.get_write_buffer_size())
        if exchange.close:
            self._finish(exchange)
        else:
            self._on_all_sent()
        self._regulate()

    def expect_taken(self, length_bytes: float) -> None:
        """The client has its time to take so much; without end if that is `inf`."""
        self._sent_s = self._loop.time()
        self._sent_bytes = length_bytes

    async def room(self) -> None:
        """Wait until the client takes more."""
        if self._full:
            self._room = self._loop.create_future()
            await self._room

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
