"""A client's connection: bytes from a socket to the commands, and the ways that it may end.

All connections receive into one buffer, which is parsed before the next connection is served. Only
an unfinished command is copied and kept, within the protocol's limits; the rest of a large body is
received where it will stay (`body_buffer`). Output is in the `outbox`. A client that sends many
commands at once waits for its next turn (`turns`). A consumer that does not read loses its credit
until the socket drains; another client that does not read is not read from until then. Both are
dropped after a heartbeat interval. When a connection is lost, its input is still carried out.

Most connections are in phase PLAIN, for which `buffer_updated` is a straight line. Before an
`upgrade`, or an answer of the auth server (`auth_waiting`), input is held back to keep its order.
"""

import asyncio
import logging
import ssl
from contextlib import suppress
from functools import partial
from typing import cast

from pumpline.core.protocol import frames
from pumpline.core.protocol.errors import E_IDENTIFY_FAILED, ProtocolError
from pumpline.core.protocol.layers import Layers
from pumpline.core.protocol.permissions import Grant
from pumpline.core.text.addresses import join_address
from pumpline.core.text.lines import one_line
from pumpline.nsqd.protocol.arguments import Suspended
from pumpline.nsqd.protocol.auth_waiting import AuthWaiting
from pumpline.nsqd.protocol.body_buffer import COMMAND_AT, BodyBuffer, is_large
from pumpline.nsqd.protocol.connections import RECEIVE_BYTES, Connections
from pumpline.nsqd.protocol.heartbeat import Heartbeat
from pumpline.nsqd.protocol.identify import ClientOptions
from pumpline.nsqd.protocol.outbox import Outbox
from pumpline.nsqd.protocol.parser import TURN_OVER, Dropped, Protocol
from pumpline.nsqd.protocol.phase import (
    ASKING,
    CLOSING,
    GONE,
    HANDSHAKE,
    HOLDING,
    KEPT_WAITING,
    LAYERED,
    LOSABLE,
    LOST,
    PLAIN,
    UPGRADING,
    WAITING,
    Phase,
)
from pumpline.nsqd.protocol.publish_counts import PublishCounts
from pumpline.nsqd.protocol.upgrade import Upgraded, new_layers
from pumpline.nsqd.queue.consumer import ChannelConsumer
from pumpline.nsqd.security.access import Answered, Authorities
from pumpline.unread import read_unread
from pumpline.web.loopback import unpace

WATER_MARK_BYTES = 512 * 1024  # unsent output at which a client counts as slow
FLOOD_BYTES = 4 * WATER_MARK_BYTES  # and at which even a consumer is not read from
LARGE_BYTES = 128 * 1024  # of a command, such as an MPUB, that is carried out in a turn only
HEAD_BYTES = 512  # to receive after a large body: of the next one, little more than its size
LINGER_S = 30.0  # for a client to take what is left when its connection ends

_LOG = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        connections: Connections,
        *,
        tls: ssl.SSLContext | None = None,
        auth_servers: Authorities | None = None,
    ) -> None:
        self.phase: Phase = PLAIN
        self.peer = ""
        self.connected_at_s = 0
        self.heard_s = 0.0  # when the client last said something
        self.consumer: ChannelConsumer | None = None
        self.published = PublishCounts()
        self.protocol: Protocol
        self.outbox: Outbox
        self.packing: Upgraded | None = None  # what its bytes are wrapped in
        self._connections = connections
        self._loop = connections.loop
        self._received = connections.received
        self._received_view = memoryview(connections.received)
        self._input_view = self._received_view  # what the next bytes are received into
        self._transport: asyncio.Transport
        self._host = ""
        self._pending = bytearray()  # an unfinished command
        self._need = 1  # bytes of it before it is worth looking at
        self._body: BodyBuffer | None = None  # or this is the unfinished command
        self._waits_turn = False  # it has more commands than one turn is for
        self._unanswered_bytes = 0  # of commands, since the last publish that was answered
        self._awaits_answers = False  # there are so many that it has to wait
        self._at_end = False  # the client says no more, after these
        self._unread: memoryview | None = None  # the connection is lost: the last of its input
        self._tls = tls
        self._auth = AuthWaiting(auth_servers, connections.loop)
        self._heartbeat = Heartbeat(self, connections.loop, connections.dropped)
        self._linger: asyncio.TimerHandle | None = None  # when it is closing

    @property
    def layers(self) -> Layers | None:
        return None if self.packing is None else self.packing.layers

    @property
    def blocked(self) -> bool:
        return self.outbox.blocked

    @property
    def is_kept_waiting(self) -> bool:
        return self.phase in KEPT_WAITING

    @property
    def is_gone(self) -> bool:
        return self.phase is GONE

    @property
    def holds_input(self) -> bool:
        """Whether input stays where it is."""
        if self._waits_turn or self._awaits_answers or self.phase in HOLDING:
            return True
        return self.outbox.blocked and self.consumer is None and self.phase is not LOST

    # -- the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport does not subclass asyncio.Transport, hence the cast.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WATER_MARK_BYTES)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):  # a unix socket has no name
            self.peer, self._host = join_address(name), name[0]
        socket = transport.get_extra_info("socket")
        if socket is not None:
            unpace(socket.fileno(), self._host)
        tick = self._connections.tick
        self.outbox = Outbox(self, tick, self._transport)
        self.protocol = Protocol(self, self._connections, self._host)
        self.connected_at_s = tick.wall_ns // 1_000_000_000
        _LOG.info("TCP: new client(%s)", self.peer)
        if not self._connections.admit(self):
            self.close()
            return
        self.heard_s = self._loop.time()
        self._heartbeat.start(self.protocol.client_options.heartbeat_ms)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._input_view

    def buffer_updated(self, count: int) -> None:
        if self._input_view is not self._received_view and self._fill_body(count):
            return
        if self.phase is not PLAIN:
            self._receive(self._received_view[:count])
        elif self._pending:
            has_large = len(self._pending) > LARGE_BYTES  # before: of one command
            self._pending += self._received_view[:count]
            if len(self._pending) >= self._need:
                if has_large:
                    self.wait_turn()
                else:
                    self._consume_pending()
        else:
            try:
                used, self._need = self.protocol.feed(self._received, 0, count)
            except (Suspended, ProtocolError, Dropped) as stop:
                used = self._stop(stop, count)
            if used:
                self._used(used)
            if used < count:
                self._keep(self._received_view[used:count])
        if count == RECEIVE_BYTES and self.phase is not CLOSING:
            # There is more, and uvloop would read 32 times before it looks at others.
            self.wait_turn()

    def eof_received(self) -> bool:
        """The client says no more; what is due to it is still sent."""
        if self.phase is HANDSHAKE and self.packing is not None:
            self.packing.abandon("EOF")
        elif self._waits_turn:
            self._at_end = True
        elif self.phase is not CLOSING:
            self.end_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Commands that were received count, unless it was nsqd that ended the connection."""
        if not isinstance(exc, OSError) or self.phase not in LOSABLE:
            self._leave()
            return
        self._unread = read_unread(self._transport)
        self._at_end = True
        if self.phase is not ASKING:
            self.phase = LOST
        if self._body is not None:
            self._pending, self._body = self._body.so_far(), None
        self.outbox.block()  # no messages; replies go nowhere
        self._heartbeat.stop()
        self.wait_turn()

    def _leave(self) -> None:
        if self.phase is GONE:
            return
        self.phase = GONE
        self.outbox.clear()
        self._heartbeat.stop()
        self._auth.stop()
        if self._linger is not None:
            self._linger.cancel()
        if self.packing is not None:
            self.packing.stop()
        if self.consumer is not None:
            self.consumer.channel.remove(self.consumer)
        self._connections.dismiss(self)
        # These refer back to the connection. Without them nothing does, and its memory is free at
        # once, not at some collection: what is left of an IDENTIFY can have 5 MB.
        self.consumer = self.packing = None
        del self.outbox, self.protocol, self._heartbeat

    def pause_writing(self) -> None:
        self.outbox.block()
        self.set_reading()

    def resume_writing(self) -> None:
        self.outbox.unblock()
        if self.phase is not CLOSING:
            self.outbox.resume()
            self._resume_input()

    def set_reading(self) -> None:
        """Read from the socket, unless input is held back."""
        if self._unread is not None:
            return
        flooded = self.blocked and self._transport.get_write_buffer_size() > FLOOD_BYTES
        if self.holds_input or flooded:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # -- input --------------------------------------------------------------------------------

    def _stop(self, stop: Suspended | ProtocolError | Dropped, end: int) -> int:
        """Commands cannot be carried out any further; returns up to where the input is used."""
        if isinstance(stop, Suspended):
            self._need = 1
            self.set_reading()
            return stop.used
        if isinstance(stop, ProtocolError):
            self.fail(stop)
        else:
            self.end()
        return end

    def _keep(self, begun: memoryview) -> None:
        """Keep what came of a command that is not whole, or has to wait."""
        if self._awaits_large_body:
            self._begin_body(begun)
            return
        self._pending += begun
        if self._need == TURN_OVER:
            self.wait_turn()

    def _consume_pending(self) -> None:
        pending = self._pending
        try:
            used, self._need = self.protocol.feed(pending, 0, len(pending))
        except (Suspended, ProtocolError, Dropped) as stop:
            used = self._stop(stop, len(pending))
        if used:
            self._used(used)
        if used == len(pending):
            self._pending = bytearray()
        elif self._awaits_large_body:
            self._pending = bytearray()
            self._begin_body(memoryview(pending)[used:])
        else:
            del pending[:used]
            if self._need == TURN_OVER:
                self.wait_turn()

    def _used(self, size_bytes: int) -> None:
        """So much input was carried out."""
        self.heard_s = self._loop.time()
        if self.outbox.awaits_outcome:
            self._unanswered_bytes += size_bytes
            if self._unanswered_bytes > self._connections.unanswered_bytes_max:
                self._awaits_answers = True
                self.set_reading()

    def answered(self) -> None:
        """The outcome of a publish is known."""
        self._unanswered_bytes = 0
        if self._awaits_answers:
            self._awaits_answers = False
            if self.phase is not CLOSING:
                self.wait_turn()

    @property
    def _awaits_large_body(self) -> bool:
        return is_large(self._need) and self.protocol.awaits_body and self.phase is PLAIN

    def _begin_body(self, begun: memoryview) -> None:
        self._body = BodyBuffer(begun, self._need)
        self._input_view = self._body.rest

    def _fill_body(self, count: int) -> bool:
        """Bytes came for a large body, or for what follows one; returns whether that is all."""
        body = self._body
        if body is None:
            self._input_view = self._received_view
            return False
        if self.phase is not PLAIN:
            return True
        if not body.received(count):
            self._input_view = body.rest
            return True
        self._body = None
        self._input_view = self._received_view[:HEAD_BYTES]
        try:
            used = self.protocol.feed_owned(body.buf, COMMAND_AT)
        except (Suspended, ProtocolError, Dropped) as stop:
            used = self._stop(stop, len(body.buf))
        self._need = 1
        self._used(used)
        self._pending += memoryview(body.buf)[used:]  # nothing, unless it has to wait
        if self.phase is not CLOSING:
            self.wait_turn()
        return True

    def wait_turn(self) -> None:
        """There is more to carry out, when the others have had their turn."""
        if not self._waits_turn:
            self._waits_turn = True
            self._connections.turns.wait(self)
            self.set_reading()

    def take_turn(self) -> None:
        self._waits_turn = False
        try:
            if not self.holds_input:
                self._resume_input()
        except Exception:
            _LOG.exception("[%s] - failed", self.peer)
            self.close()

    def take_commands(self, piece: bytes) -> None:
        """Carry out the commands in `piece`, which follows on what came before."""
        self._pending += piece
        if len(self._pending) >= self._need:
            self._consume_pending()

    def _receive(self, piece: memoryview) -> None:
        """Bytes came in another phase than PLAIN."""
        if self.phase is CLOSING:
            return
        if self.packing is None:
            self._pending += piece
        else:
            self.packing.receive(piece)

    def _resume_input(self) -> None:
        """Parse the input that was held."""
        if self._pending and len(self._pending) >= self._need and not self.holds_input:
            self._consume_pending()
        if self.packing is not None:
            self.packing.resume_input()
        else:
            self.set_reading()
        if self._unread and not self.holds_input:
            piece, self._unread = self._unread[:RECEIVE_BYTES], self._unread[RECEIVE_BYTES:]
            self._receive(piece)
            self.wait_turn()
        if self._at_end and not self.holds_input:
            self.end_input()

    # -- upgrades -----------------------------------------------------------------------------

    def identified(self, client: ClientOptions) -> None:
        self._heartbeat.start(client.heartbeat_ms)

    def upgrade(self) -> None:
        """Put on the layers that were granted, as soon as the replies so far are sent."""
        self.phase = UPGRADING if self._unread is None else CLOSING

    def _start_upgrade(self) -> None:
        layers = new_layers(self.protocol.client_options, self._tls, self.peer)
        self.phase = LAYERED if layers.open else HANDSHAKE
        self.packing = Upgraded(self, layers, self._transport, self._loop, turn_bytes=RECEIVE_BYTES)
        held, self._pending = self._pending, bytearray()
        self.packing.begin(held)

    def upgraded(self) -> None:
        """The layers are in use, and the client was told."""
        self.phase = LAYERED
        self.heard_s = self._loop.time()
        if self.layers is not None and self.layers.tls is not None:
            self.protocol.needs_tls = False
        self.outbox.send_waiting()

    def fail_upgrade(self, cause: str) -> None:
        """The handshake failed: tell why, without layers."""
        self.packing = None
        self.outbox.drop_replies()
        self.fail(ProtocolError(E_IDENTIFY_FAILED, f"IDENTIFY failed {cause}"))

    # -- the auth server ----------------------------------------------------------------------

    def ask(self, secret: bytes, answered: Answered) -> None:
        """Ask what the client may do; the protocol must wait for the answer."""
        self.phase = ASKING
        tls = None if self.layers is None else self.layers.tls
        on_answer = partial(self._answered, answered)
        self._auth.ask(secret, host=self._host, peer=self.peer, tls=tls, answered=on_answer)

    def _answered(self, answered: Answered, grant: Grant | None) -> None:
        if self.phase is not ASKING:
            return
        is_lost = self._unread is not None
        self.phase = LOST if is_lost else PLAIN if self.packing is None else LAYERED
        try:
            answered(grant)
        except ProtocolError as error:
            self.fail(error)
            return
        self.heard_s = self._loop.time()
        self._resume_input()

    def expire_in(self, ttl_s: float) -> None:
        """What the client was granted is valid so long."""
        self._auth.expire_in(ttl_s, self.protocol.expire)

    # -- output -------------------------------------------------------------------------------

    def beat(self) -> None:
        if self.phase is not UPGRADING:  # its response must be the last before the upgrade
            self.outbox.reply(frames.HEARTBEAT)

    def offer(self) -> None:
        """There is room for messages again."""
        if self.consumer is not None:
            self.consumer.channel.offer(self.consumer)

    # -- the end ------------------------------------------------------------------------------

    def end_input(self) -> None:
        """The client says no more."""
        incomplete = ""
        if self._body is not None:
            self._pending, self._body = self._body.so_far(), None
        if self._pending and self.phase not in WAITING:
            with suppress(ProtocolError, Dropped, Suspended):
                incomplete = self.protocol.cut_short(self._pending)
        if incomplete:
            self.fail(ProtocolError(*incomplete.split(" ", 1)))
        else:
            self.end()

    def fail(self, error: ProtocolError) -> None:
        """Send the error, after the replies that are due before it, and close."""
        _LOG.error("[%s] - %s", self.peer, one_line(str(error)))
        self._connections.errors[error.code] += 1
        self.phase = CLOSING
        self.outbox.reply_last(frames.encode_frame(frames.ERROR, error.data))

    def refuse(self) -> None:
        """A publish failed; its error is the last that the client gets."""
        self.phase = CLOSING

    def end(self) -> None:
        """Close when the replies that are due are sent."""
        self.phase = CLOSING
        self.outbox.finish()

    def close(self) -> None:
        """Close without a word."""
        self.phase = CLOSING
        if self._unread is not None:
            self._loop.call_soon(self._leave)
        self._transport.abort()  # even if it is closing: the client may not read the rest

    def sent(self) -> bool:
        """The outbox has sent what it can: close, or put on layers, if that was waited for."""
        if not self.outbox.owes_replies:
            if self.phase is CLOSING:
                self._finish()
            elif self.phase is UPGRADING:
                self._start_upgrade()
        return self.phase is CLOSING

    def _finish(self) -> None:
        if self.packing is not None:
            self.packing.say_goodbye()
        self._transport.close()
        self._heartbeat.stop()
        if self._unread is not None:
            self._loop.call_soon(self._leave)
        elif self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._transport.abort)
