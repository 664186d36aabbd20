"""A client's connection: bytes from a socket to the protocol, replies and messages back.

All connections receive into one buffer, which is parsed before anybody else can be served; only an
unfinished command is copied and kept, and no more of it than the protocol's limits allow. Output
is collected during a tick and written once, at its end. A client that does not read is noticed by
the transport's water marks: a consumer loses its credit until the socket drains, a publisher is
not read from until then, and either is dropped when that lasts a heartbeat interval.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from pumpline.broker.consumer import Buffer, Consumer
from pumpline.broker.identify import Settings
from pumpline.broker.protocol import Dropped, Protocol
from pumpline.broker.ticket import Ticket
from pumpline.core import frames
from pumpline.core.errors import ProtocolError

if TYPE_CHECKING:
    from pumpline.broker.broker import Broker
    from pumpline.broker.topic import Topic

RECEIVE_BYTES = 256 * 1024
OUTPUT_BYTES_MAX = 512 * 1024  # messages a consumer is given in one tick
WATER_MARK_BYTES = 512 * 1024  # unsent output at which a client counts as slow

_LOG = logging.getLogger(__name__)
_received = bytearray(RECEIVE_BYTES)
_received_view = memoryview(_received)


class Connection(asyncio.BufferedProtocol):
    def __init__(self, broker: "Broker") -> None:
        self.broker = broker
        self.peer = ""
        self.connected_at_s = 0
        self.consumer: Consumer | None = None
        self.pub_counts: dict[str, int] = {}
        self.output_room_bytes = OUTPUT_BYTES_MAX
        self._tick = broker.services.tick
        self._loop = broker.loop
        self._transport: asyncio.Transport
        self.protocol: Protocol
        self._pending = bytearray()  # an unfinished command
        self._need = 0  # bytes of it before it is worth looking at
        self._replies: list[bytes | tuple[Ticket, int, str]] = []
        self._output: list[Buffer] = []
        self._blocked = False  # the transport's buffer is full
        self._blocked_beats = False  # it was at the last heartbeat already
        self._closing = False
        self._waits_for_ticket = False
        self._heard_s = 0.0
        self._beat_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # -- the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WATER_MARK_BYTES)
        self.peer, host = _peer_name(self._transport)
        self.protocol = Protocol(self, host)
        self.connected_at_s = self._tick.wall_ns // 1_000_000_000
        _LOG.info("TCP: new client(%s)", self.peer)
        if not self.broker.admit(self):
            self._closing = True
            self._transport.abort()
            return
        self._heard_s = self._beat_s = self._loop.time()
        self._set_timer()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _received_view

    def buffer_updated(self, count: int) -> None:
        if self._closing:
            return
        pending = self._pending
        if pending:
            pending += _received_view[:count]
            if len(pending) < self._need:
                return
            self._consume(pending, len(pending))
        else:
            self._consume(_received, count)

    def _consume(self, buf: bytearray, end: int) -> None:
        try:
            used, self._need = self.protocol.feed(buf, end)
        except ProtocolError as error:
            self.fail(error)
            return
        except Dropped:
            self.close()
            return
        if used:
            self._heard_s = self._loop.time()
        if buf is self._pending:
            if used == end:
                self._pending = bytearray()
            else:
                del buf[:used]
        elif used < end:
            self._pending += _received_view[used:end]

    def eof_received(self) -> bool:
        if self._closing or not self._pending:
            return False
        try:
            incomplete = self.protocol.cut_short(self._pending)
        except (ProtocolError, Dropped):
            return False
        if incomplete:
            self.fail(ProtocolError(*incomplete.split(" ", 1)))
        return bool(incomplete)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._output.clear()
        self._replies.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self.consumer is not None:
            self.consumer.channel.remove(self.consumer)
        self.broker.dismiss(self)

    def pause_writing(self) -> None:
        self._blocked = True
        self.output_room_bytes = 0
        if self.consumer is None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = False
        self.output_room_bytes = OUTPUT_BYTES_MAX
        self._transport.resume_reading()
        if self.consumer is not None:
            self.consumer.channel.offer(self.consumer)
        if self._output or self._replies:
            self._tick.write(self)

    # -- what the protocol and the channel say ------------------------------------------------

    def reply(self, frame: bytes) -> None:
        self._replies.append(frame)
        self._tick.write(self)

    def reply_published(self, topic: "Topic", count: int, verb: str) -> None:
        """`count` messages were published: answer when the topic knows the outcome.

        An MPUB gets one answer, a run of PUBs one each.
        """
        self._replies.append((topic.ticket(), 1 if verb == "MPUB" else count, verb))
        self.pub_counts[topic.name] = self.pub_counts.get(topic.name, 0) + count
        self._tick.write(self)

    def send_messages(self, data: Buffer) -> None:
        self._output.append(data)
        self.output_room_bytes -= len(data)
        self._tick.write(self)

    def identified(self, settings: Settings) -> None:
        self._beat_s = self._loop.time()
        self._set_timer()

    def fail(self, error: ProtocolError) -> None:
        """Send the error, after the replies that are due before it, and close."""
        _LOG.error("[%s] - %s", self.peer, error)
        self._replies.append(frames.encode_frame(frames.ERROR, error.data))
        self._closing = True
        self._tick.write(self)

    def close(self) -> None:
        """Close without a word."""
        self._closing = True
        if not self._transport.is_closing():
            self._transport.abort()

    # -- output -------------------------------------------------------------------------------

    def flush(self) -> None:
        """The connection's part of a tick: one write of all there is."""
        output = self._output
        if self._replies:
            # Commands were parsed before anything was shared: their replies come first.
            output = self._settle_replies() + output
        if output and not self._transport.is_closing():
            self._output = []
            if len(output) == 1:
                self._transport.write(output[0])
            else:
                self._transport.writelines(output)
        if self._closing and not self._replies:
            self._transport.close()
        elif self.output_room_bytes < OUTPUT_BYTES_MAX and not self._blocked:
            self.output_room_bytes = OUTPUT_BYTES_MAX
            consumer = self.consumer
            if consumer is not None and not consumer.queued:
                consumer.channel.offer(consumer)

    def _settle_replies(self) -> list[Buffer]:
        """Take the replies, in order, up to the first whose outcome is not known."""
        output: list[Buffer] = []
        settled = 0
        for reply in self._replies:
            if isinstance(reply, bytes):
                output.append(reply)
            else:
                ticket, count, verb = reply
                if not ticket.done:
                    self._wait_for(ticket)
                    break
                if ticket.error is not None:
                    self._replies.clear()
                    self._closing = True
                    output.append(_refusal(verb, ticket.error))
                    return output
                output.append(frames.OK * count)
            settled += 1
        del self._replies[:settled]
        return output

    def _wait_for(self, ticket: Ticket) -> None:
        if not self._waits_for_ticket:
            self._waits_for_ticket = True
            ticket.wait(self._ticket_done)

    def _ticket_done(self) -> None:
        self._waits_for_ticket = False
        self._tick.write(self)

    # -- heartbeats ---------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        interval_s = self.protocol.settings.heartbeat_ms / 1000
        if interval_s > 0:
            at_s = min(self._beat_s + interval_s, self._heard_s + 2 * interval_s)
            self._timer = self._loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        """Send a heartbeat if one is due; drop a client that is silent or does not read."""
        interval_s = self.protocol.settings.heartbeat_ms / 1000
        now_s = self._loop.time()
        if now_s >= self._heard_s + 2 * interval_s:
            _LOG.error("[%s] - heartbeat timed out", self.peer)
            self.close()
            return
        if now_s >= self._beat_s + interval_s:
            if self._blocked and self._blocked_beats:
                _LOG.error("[%s] - does not read, dropped", self.peer)
                self.close()
                return
            self._blocked_beats = self._blocked
            self._beat_s = now_s
            if not self._blocked:
                self.reply(frames.HEARTBEAT)
        self._set_timer()


def _refusal(verb: str, reason: str) -> bytes:
    error = ProtocolError(f"E_{verb}_FAILED", f"{verb} failed {reason}")
    return frames.encode_frame(frames.ERROR, error.data)


def _peer_name(transport: asyncio.Transport) -> tuple[str, str]:
    """The peer as shown in logs and stats, and its host alone."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return "", ""
    host, port = name[0], name[1]
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), host
