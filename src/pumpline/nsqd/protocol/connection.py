"""A client's connection: bytes from a socket to the protocol, replies and messages back.

All connections receive into one buffer, which is parsed before anybody else can be
served; only an unfinished command is copied and kept, and no more of it than the protocol's limits
allow. Output is collected during a tick and written once, at its end, unless it is known before
that no more will come. A client that does not read is noticed by the transport's water marks: a
consumer loses its credit until the socket drains, a publisher is not read from until then, and
either is dropped when that lasts a heartbeat interval.

Most connections are plain. The others take a detour, and so do those that are closing: after
IDENTIFY their bytes may go through layers (`core.layers`), and while the auth server is asked
for them their commands wait. Order is kept by holding back input: nothing that came later is
looked at before the upgrade has begun, the handshake is done, or the answer is there.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from pumpline.core.protocol import frames
from pumpline.core.protocol.errors import E_IDENTIFY_FAILED, ProtocolError
from pumpline.core.protocol.layers import EndOfStream, Layers, UpgradeError
from pumpline.core.protocol.permissions import Grant
from pumpline.nsqd.protocol.arguments import Suspended
from pumpline.nsqd.protocol.connections import Connections
from pumpline.nsqd.protocol.heartbeat import Heartbeat
from pumpline.nsqd.protocol.identify import ClientOptions
from pumpline.nsqd.protocol.parser import Dropped, Protocol
from pumpline.nsqd.protocol.replies import Reply, settle
from pumpline.nsqd.protocol.upgrade import new_layers
from pumpline.nsqd.queue.consumer import Buffer, Consumer
from pumpline.nsqd.queue.outcome import Ticket
from pumpline.nsqd.security.auth_servers import Answered, AuthServers, Question

if TYPE_CHECKING:
    from pumpline.nsqd.queue.topic import Topic

OUTPUT_BYTES_MAX = 512 * 1024  # messages a consumer is given in one tick
WATER_MARK_BYTES = 512 * 1024  # unsent output at which a client counts as slow
FLOOD_BYTES = 4 * WATER_MARK_BYTES  # and at which even a consumer is not read from
HANDSHAKE_S = 5.0
LINGER_S = 30.0  # for a client to take what is left when its connection ends

_LOG = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        connections: Connections,
        *,
        tls: ssl.SSLContext | None = None,
        auth_servers: AuthServers | None = None,
    ) -> None:
        self._connections = connections
        self.layers: Layers | None = None  # what its bytes are wrapped in
        self.peer = ""
        self.connected_at_s = 0
        self.consumer: Consumer | None = None
        self.pub_counts: dict[str, int] = {}
        self.output_room_bytes = OUTPUT_BYTES_MAX
        self._tick = connections.tick
        self._loop = connections.loop
        self._received = connections.received
        self._received_view = memoryview(connections.received)
        self._transport: asyncio.Transport
        self.protocol: Protocol
        self._pending = bytearray()  # an unfinished command
        self._need = 0  # bytes of it before it is worth looking at
        self._replies: list[Reply] = []
        self._output: list[Buffer] = []
        self.blocked = False  # the transport's buffer is full
        self._closing = False
        self._detour = False  # has layers, waits or is closing
        self._waiting = False  # no command is carried out for now
        self._upgrading = False  # layers follow when all replies are sent
        self._handshake: asyncio.TimerHandle | None = None  # its time limit, while it lasts
        self._turn: asyncio.Handle | None = None  # when there is more in the layers
        self._expiry: asyncio.TimerHandle | None = None  # of what the auth server granted
        self._call_off: Callable[[], object] | None = None  # ends the question to it
        self._tls = tls
        self._auth_servers = auth_servers
        self._waits_for_ticket = False
        self.heard_s = 0.0  # when the client last said something
        self._heartbeat = Heartbeat(self, connections.loop, connections.dropped)
        self._linger: asyncio.TimerHandle | None = None  # when it is closing

    # -- the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WATER_MARK_BYTES)
        self.peer, self._host = _peer_name(self._transport)
        self.protocol = Protocol(self, self._connections, self._host)
        self.connected_at_s = self._tick.wall_ns // 1_000_000_000
        _LOG.info("TCP: new client(%s)", self.peer)
        if not self._connections.admit(self):
            self.close()
            return
        self.heard_s = self._loop.time()
        self._heartbeat.start(self.protocol.client_options.heartbeat_ms)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received_view

    def buffer_updated(self, count: int) -> None:
        if self._detour:
            self._receive(count)
        elif self._pending:
            self._pending += self._received_view[:count]
            if len(self._pending) >= self._need:
                self._consume_pending()
        else:
            usual = self.protocol.usual
            used = 0 if usual is None else usual(self._received, 0, count)
            if used:
                self.heard_s = self._loop.time()
            if used < count:
                used = self._feed(self._received, used, count)
                if used < count:
                    self._pending += self._received_view[used:count]

    def _consume_pending(self) -> None:
        pending = self._pending
        used = self._feed(pending, 0, len(pending))
        if used == len(pending):
            self._pending = bytearray()
        else:
            del pending[:used]

    def _feed(self, buf: bytearray, start: int, end: int) -> int:
        """Carry out the commands in buf[start:end]; returns up to where that is done."""
        try:
            used, self._need = self.protocol.feed(buf, start, end)
        except Suspended as pause:
            used, self._need = pause.used, 0
            self._waiting = self._detour = True
            self._set_reading()
        except ProtocolError as error:
            self.fail(error)
            return end
        except Dropped:
            self._end()
            return end
        if used > start:
            self.heard_s = self._loop.time()
        return used

    def eof_received(self) -> bool:
        """The client says no more; what is due to it is still sent."""
        if self._handshake is not None:
            self._abandon_upgrade("EOF")
        elif not self._closing:
            self._end_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = self._detour = True
        self._output.clear()
        self._replies.clear()
        self._heartbeat.stop()
        for handle in (self._handshake, self._turn, self._expiry, self._linger):
            if handle is not None:
                handle.cancel()
        if self._call_off is not None:
            self._call_off()
        if self.consumer is not None:
            self.consumer.channel.remove(self.consumer)
        self._connections.dismiss(self)
        # The connection is in a cycle with its protocol, and stays until it is collected; what is
        # large must not: a deflate stream has 300 kB.
        self.layers = None
        self._pending = bytearray()

    def pause_writing(self) -> None:
        self.blocked = True
        self.output_room_bytes = 0
        self._set_reading()

    def resume_writing(self) -> None:
        self.blocked = False
        if self._closing:
            return
        self.output_room_bytes = OUTPUT_BYTES_MAX
        if self.consumer is not None:
            self.consumer.channel.offer(self.consumer)
        if self._output or self._replies:
            self._tick.write(self)
        self._go_on()

    # -- the detour ---------------------------------------------------------------------------

    @property
    def is_kept_waiting(self) -> bool:
        return self._waiting or self._handshake is not None

    @property
    def _holds(self) -> bool:
        """Whether input stays where it is."""
        return self._closing or self._waiting or (self.blocked and self.consumer is None)

    def _set_reading(self) -> None:
        flooded = self.blocked and self._transport.get_write_buffer_size() > FLOOD_BYTES
        if self._holds or flooded or self._turn is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _receive(self, count: int) -> None:
        if self._closing:
            return
        if self.layers is None:
            self._pending += self._received_view[:count]
            return
        self.layers.receive(self._received_view[:count])
        self._advance(self.layers)

    def _go_on(self) -> None:
        """Carry on with input after it was held."""
        if self.layers is not None and self._turn is None:
            self._advance(self.layers)
        else:
            self._set_reading()

    def _advance(self, layers: Layers) -> None:
        """Carry out what the layers hold, up to a bufferful; the rest after the others' turn."""
        self._turn = None
        if not layers.open and not self._shake_hands(layers):
            return
        room = len(self._received)
        try:
            while room > 0 and not self._holds and (piece := layers.read(room)):
                room -= len(piece)
                self._pending += piece
                if len(self._pending) >= self._need:
                    self._consume_pending()
        except EndOfStream:
            self._end_input()
        except UpgradeError as error:
            _LOG.error("client(%s) - failed to read command - %s", self.peer, error)
            self._end()
        self._send_wire(layers)
        if room <= 0 and not self._holds:
            self._turn = self._loop.call_soon(self._advance, layers)
        self._set_reading()

    def _send_wire(self, layers: Layers) -> None:
        data = layers.take()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _end_input(self) -> None:
        """The client says no more."""
        incomplete = ""
        if self._pending and not self._waiting:
            with suppress(ProtocolError, Dropped, Suspended):
                incomplete = self.protocol.cut_short(self._pending)
        if incomplete:
            self.fail(ProtocolError(*incomplete.split(" ", 1)))
        else:
            self._end()

    # -- upgrades -----------------------------------------------------------------------------

    def upgrade(self) -> None:
        """Put on the layers that were granted, as soon as the replies so far are sent."""
        self._upgrading = True

    def _start_upgrade(self) -> None:
        self._upgrading = self._waiting = False
        self.layers = new_layers(self.protocol.client_options, self._tls, self.peer)
        if self._pending:
            held, self._pending = self._pending, bytearray()
            self.layers.receive(held)
        if self.layers.open:
            self._upgraded(self.layers)
        else:
            late = self._abandon_upgrade
            self._handshake = self._loop.call_later(HANDSHAKE_S, late, "i/o timeout")
        self._go_on()

    def _shake_hands(self, layers: Layers) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            layers.shake_hands()
        except UpgradeError as error:
            self._abandon_upgrade(str(error))
            return False
        self._send_wire(layers)
        if layers.open:
            self._upgraded(layers)
        else:
            self._set_reading()
        return layers.open

    def _upgraded(self, layers: Layers) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        self.heard_s = self._loop.time()
        if layers.tls is not None:
            self.protocol.needs_tls = False
        layers.greet(frames.OK)
        self._send_wire(layers)
        self._tick.write(self)  # what has waited

    def _abandon_upgrade(self, cause: str) -> None:
        """Tell why, with no layer on."""
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        if self.layers is not None:
            self._send_wire(self.layers)
            self.layers = None
        self._replies.clear()
        self.fail(ProtocolError(E_IDENTIFY_FAILED, f"IDENTIFY failed {cause}"))

    # -- the auth server ----------------------------------------------------------------------

    def ask(self, secret: bytes, answered: Answered) -> None:
        """Ask what the client may do; the protocol must wait for the answer."""
        tls = None if self.layers is None else self.layers.tls
        question = Question(
            secret=secret,
            remote_ip=self._host,
            tls=tls is not None,
            common_name="" if tls is None else tls.common_name,
        )
        assert self._auth_servers is not None

        def on_answer(grant: Grant | None) -> None:
            self._call_off = None
            if not self._closing:
                self._answered(answered, grant)

        self._call_off = self._auth_servers.ask(question, self.peer, on_answer)

    def _answered(self, answered: Answered, grant: Grant | None) -> None:
        try:
            answered(grant)
        except ProtocolError as error:
            self.fail(error)
            return
        self._waiting = False
        self._detour = self.layers is not None
        self.heard_s = self._loop.time()
        if self._pending:
            self._consume_pending()
        self._go_on()

    def expire_in(self, ttl_s: float) -> None:
        """What the client was granted is valid so long."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = self._loop.call_later(ttl_s, self.protocol.expire)

    # -- what the protocol and the channel say ------------------------------------------------

    def reply(self, frame: bytes) -> None:
        self._replies.append(frame)
        self._tick.write(self)
        if self.blocked:
            self._set_reading()

    def reply_published(self, topic: "Topic", count: int, verb: str) -> None:
        """`count` messages were published: answer when the topic knows the outcome.

        An MPUB gets one answer, a run of PUBs one each.
        """
        ticket = topic.ticket()
        if not self._replies:
            self._wait_for(ticket)
        self._replies.append((ticket, 1 if verb == "MPUB" else count, verb))
        self.pub_counts[topic.name] = self.pub_counts.get(topic.name, 0) + count

    def send_messages(self, data: Buffer) -> None:
        self._output.append(data)
        self.output_room_bytes -= len(data)
        self._tick.write(self)

    def send_last(self, data: Buffer) -> None:
        """Messages after which this tick has no more: they need not wait for its end, unless
        there is something to go before them."""
        if self._output or self._replies or self._detour:
            self.send_messages(data)
        else:
            self._transport.write(data)

    def identified(self, client: ClientOptions) -> None:
        self._heartbeat.start(client.heartbeat_ms)

    def beat(self) -> None:
        if not self._upgrading:  # nothing may come between the response and the upgrade
            self.reply(frames.HEARTBEAT)

    def fail(self, error: ProtocolError) -> None:
        """Send the error, after the replies that are due before it, and close."""
        _LOG.error("[%s] - %s", self.peer, error)
        self._connections.errors[error.code] += 1
        self._replies.append(frames.encode_frame(frames.ERROR, error.data))
        self._end()

    def _end(self) -> None:
        """Close when the replies that are due are sent."""
        self._closing = self._detour = True
        self.output_room_bytes = 0
        self._tick.write(self)

    def close(self) -> None:
        """Close without a word."""
        self._closing = self._detour = True
        self._transport.abort()  # even if it is closing: that may wait for a client that reads

    # -- output -------------------------------------------------------------------------------

    def flush(self) -> None:
        """The connection's part of a tick: one write of all there is."""
        if self._detour and self._handshake is not None:
            return  # called again when it is done
        output = self._output
        if self._replies:
            # Commands were parsed before anything was shared: their replies come first.
            settled = settle(self._replies)
            output = settled.output + output
            if settled.refused:
                self._closing = self._detour = True
            elif settled.awaited is not None and not self._waits_for_ticket:
                self._wait_for(settled.awaited)
        if output and not self._transport.is_closing():
            self._output = []
            if self.layers is not None:
                self._write_layers(self.layers, output)
            elif len(output) == 1:
                self._transport.write(output[0])
            else:
                self._transport.writelines(output)
        if self._detour and self._moves_on():
            return
        if not self.blocked:
            was_full = self.output_room_bytes <= 0
            self.output_room_bytes = OUTPUT_BYTES_MAX
            if was_full and self.consumer is not None:
                self.consumer.channel.offer(self.consumer)

    def _write_layers(self, layers: Layers, output: list[Buffer]) -> None:
        try:
            layers.write(output)
        except UpgradeError as error:
            _LOG.error("[%s] - %s", self.peer, error)
            self.close()
        self._send_wire(layers)

    def _moves_on(self) -> bool:
        """Close, or put on layers, if all that had to be sent before is."""
        if self._closing and not self._replies:
            self._finish()
        elif self._upgrading and not self._replies:
            self._start_upgrade()
        return self._closing

    def _finish(self) -> None:
        if self.layers is not None and self.layers.tls is not None:
            self.layers.tls.say_goodbye()
            self._send_wire(self.layers)
        self._transport.close()
        self._heartbeat.stop()
        if self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._transport.abort)

    def _wait_for(self, ticket: Ticket) -> None:
        self._waits_for_ticket = True
        ticket.wait(self._ticket_done)

    def _ticket_done(self) -> None:
        """The outcome of the first publish that is not answered is known."""
        self._waits_for_ticket = False
        replies = self._replies
        if len(replies) == 1 and not self._output and not self._detour:
            reply = replies[0]
            if isinstance(reply, tuple) and reply[0].succeeded:
                replies.clear()
                self._transport.write(frames.OK * reply[1])
                return
        if replies:
            self.flush()


def _peer_name(transport: asyncio.Transport) -> tuple[str, str]:
    """The peer as shown in logs and stats, and its host alone."""
    name = transport.get_extra_info("peername")
    if not isinstance(name, tuple):
        return "", ""
    host, port = name[0], name[1]
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), host
