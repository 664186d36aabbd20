"""Protocol V2, server side: bytes in, commands carried out.

`feed` takes what a connection received and carries out every whole command in it. Runs of FIN, REQ,
TOUCH, PUB and DPUB, and MPUBs, take the short way through compiled kernels. All other commands, and
those with anything unusual about them, take the long way, which knows every error text. The verbs
are in `publish` and `consume`; this module knows lines, states and their order.

Nothing here writes to a socket: replies go to the connection's outbox, in order.
"""

from collections.abc import Callable
from struct import Struct
from time import monotonic
from typing import Protocol as Interface

from pumpline.core.messages.kernels import answers, skip_messages
from pumpline.core.messages.spans import Span
from pumpline.core.protocol import frames
from pumpline.core.protocol.commands import SIZE
from pumpline.core.protocol.errors import (
    E_AUTH_DISABLED,
    E_AUTH_FAILED,
    E_AUTH_FIRST,
    E_BAD_BODY,
    E_BAD_PROTOCOL,
    E_IDENTIFY_FAILED,
    E_INVALID,
    E_UNAUTHORIZED,
    ProtocolError,
)
from pumpline.core.protocol.layers import Layers
from pumpline.core.protocol.permissions import Grant
from pumpline.core.text.names import go_quote
from pumpline.nsqd.options import TlsRequired
from pumpline.nsqd.protocol import consume, identify, publish
from pumpline.nsqd.protocol.arguments import STATE_INIT, Incomplete, Suspended
from pumpline.nsqd.protocol.connections import Connections
from pumpline.nsqd.protocol.identify import ClientOptions
from pumpline.nsqd.protocol.outbox import Outbox
from pumpline.nsqd.protocol.turns import TURN_COMMANDS, TURN_S
from pumpline.nsqd.queue.consumer import ChannelConsumer
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.nsqd.security.access import Answered, ClientAccess, auth_response

LINE_BYTES_MAX = 16_384  # with the newline
FIN_BYTES = 21  # `FIN <id>` and a newline
REQ_BYTES = 20  # `REQ <id>`: a space, the delay and a newline follow
DELAY_BYTES_MAX = 16  # with the space and the newline: a longer one takes the long way
PUB_LINE_BYTES_MAX = 80  # with the longest name of a topic
PUB_LINES_MAX = 256  # that a client who needs permission is known to have it for
TURN_OVER = 0  # more commands are there, but it is the others' turn
CLOCK_PASSES = 4  # between looks at the clock: a command takes 1 us, a new topic over 1 ms

_SIZE_COUNT = Struct(">ii")
_F, _P, _M, _R, _T, _D = b"FPMRTD"
_NS_PER_MS = 1_000_000
_NO_LINE = b"\n\n"  # no command line looks like this


class Dropped(Exception):
    """The connection is to be closed without a word."""


class ParsedConnection(Interface):
    """A connection, as seen from here."""

    consumer: ChannelConsumer | None
    outbox: Outbox

    @property
    def layers(self) -> Layers | None: ...

    def identified(self, client: ClientOptions) -> None: ...

    def upgrade(self) -> None:
        """Put on the layers that were granted, as soon as the replies so far are sent."""

    def ask(self, secret: bytes, answered: Answered) -> None:
        """Ask what the client may do; the protocol must wait for the answer."""

    def expire_in(self, ttl_s: float) -> None:
        """What the client was granted is valid so long."""


Handler = Callable[["Protocol", list[bytes], bytearray, int, int], int]


class Protocol:
    __slots__ = (
        "_dpub_head",
        "_dpub_topic",
        "_mpub_line",
        "_mpub_topic",
        "_open_batches",
        "_pub_line",
        "_pub_topic",
        "_pub_topics",
        "_turn_ends_s",
        "access",
        "awaits_body",
        "client_options",
        "connection",
        "connections",
        "greeted",
        "incomplete",
        "mpub_progress",
        "needs_tls",
        "options",
        "owned",
        "state",
        "topics",
    )

    def __init__(self, connection: ParsedConnection, connections: Connections, peer: str) -> None:
        self.connection = connection
        self.connections = connections
        self.topics = connections.topics
        self.options = connections.options
        self.client_options = identify.default_client_options(self.options, peer)
        self.state = STATE_INIT
        self.greeted = False
        self.needs_tls = self.options.tls_required is not TlsRequired.NO
        self.access = ClientAccess() if self.options.auth_http_address else None
        self.incomplete = ""
        self.awaits_body = False  # the last that was incomplete lacks a message's body only
        self.owned: bytearray | None = None  # of one command alone, not to be used again
        self.mpub_progress = publish.MpubProgress(self.options)
        self._pub_line = self._mpub_line = _NO_LINE
        self._pub_topic: Topic | None = None
        self._mpub_topic: Topic | None = None
        # Lines of PUBs that were allowed and valid: what any client may do, all have learnt.
        self._pub_topics = connections.pub_topics if self.access is None else {}
        self._open_batches = self.topics.group_commit.shared.by_line
        self._dpub_head = _NO_LINE  # of the line of the last DPUB, before the delay
        self._dpub_topic: Topic | None = None
        self._turn_ends_s = 0.0

    def feed(self, buf: bytearray, pos: int, end: int) -> tuple[int, int]:
        """Carry out the whole commands in buf[pos:end].

        Returns where the rest begins, and how many bytes there must be from there on before it is
        worth calling again: 0 if the turn is over, and others come first. ProtocolError and Dropped
        end the connection; Suspended means that there will be more to do with the rest, but not
        before the connection calls again.
        """
        try:
            if not self.greeted:
                pos = self._greet(buf, end)
            passes = 0
            while pos < end:
                # The short way for runs of the usual commands, else the long way.
                first = buf[pos]
                after = pos
                if first == _F:
                    if buf.startswith(b"FIN ", pos):
                        after = self._fin_run(buf, pos, end)
                elif first == _P:
                    if self._open_batches:
                        after = self._publish_run(buf, pos, end)
                    if after == pos and (
                        buf.startswith(self._pub_line, pos) or self._recall_pub(buf, pos, end)
                    ):
                        after = self._pub_run(buf, pos, end)
                elif first == _M:
                    if self._open_batches:
                        after = self._publish_run(buf, pos, end)
                    if after == pos and buf.startswith(self._mpub_line, pos):
                        after = self._mpub_whole(buf, pos, end)
                elif first == _R:
                    if buf.startswith(b"REQ ", pos):
                        after = self._req_run(buf, pos, end)
                elif first == _T:
                    after = self._touch_run(buf, pos, end)
                elif first == _D and buf.startswith(self._dpub_head, pos):
                    after = self._dpub_run(buf, pos, end)
                pos = after if after > pos else self._command(buf, pos, end)
                passes += 1
                if pos < end and passes % CLOCK_PASSES == 0 and self._turn_is_over(passes):
                    return pos, TURN_OVER
        except Incomplete as more:
            self.incomplete = more.what
            self.awaits_body = more.is_body
            return pos, more.end - pos
        except Suspended as pause:
            pause.used = pos if pause.after is None else pause.after
            raise
        return pos, 1

    def feed_owned(self, buf: bytearray, pos: int) -> int:
        """Carry out the one command that is buf[pos:], and whole; nobody uses `buf` afterwards.

        Returns and raises as `feed` does.
        """
        self.owned = buf
        try:
            return self._command(buf, pos, len(buf))
        except Suspended as pause:
            pause.used = pos if pause.after is None else pause.after
            raise
        finally:
            self.owned = None

    def _turn_is_over(self, passes: int) -> bool:
        now_s = monotonic()
        if passes == CLOCK_PASSES:
            self._turn_ends_s = now_s + TURN_S
        return passes >= TURN_COMMANDS or now_s >= self._turn_ends_s

    def check_auth(self, verb: str, topic: str, channel: str = "") -> None:
        """ProtocolError if the client may not; Suspended if the auth server must be asked."""
        access = self.access
        if access is None:
            return
        if access.grant is None:
            raise ProtocolError(E_AUTH_FIRST, f"AUTH required before {verb}")
        if access.expired:
            self.connection.ask(access.secret, self._asked_again)
            raise Suspended
        if not access.grant.allows(topic, channel):
            names = f"{go_quote(topic.encode())} {go_quote(channel.encode())}"
            raise ProtocolError(E_UNAUTHORIZED, f"AUTH failed for {verb} on {names}")

    def expire(self) -> None:
        """What was granted has had its time: the next command that needs it asks again."""
        if self.access is not None:
            self.access.expired = True
        self.forget_publish()

    def forget_publish(self) -> None:
        """The next publish takes the long way, where all is checked."""
        self._pub_line = self._mpub_line = self._dpub_head = _NO_LINE
        if self.access is not None:
            self._pub_topics.clear()

    def cut_short(self, buf: bytearray) -> str:
        """The error that is due when the client closes after the unfinished command in `buf`."""
        self.incomplete = ""
        self.feed(buf, 0, len(buf))
        return self.incomplete

    def remember_publish(self, line: bytes, topic: Topic) -> None:
        """A publish with this line was allowed and valid: take the short way next time."""
        if line.startswith(b"M"):
            self._mpub_line, self._mpub_topic = line, topic
            return
        self._pub_line, self._pub_topic = line, topic
        if self.access is not None and len(self._pub_topics) >= PUB_LINES_MAX:
            self._pub_topics.clear()
        self._pub_topics[line] = topic

    def remember_delayed(self, head: bytes, topic: Topic) -> None:
        """Likewise of a publish with a delay: `head` is its line up to the delay."""
        self._dpub_head, self._dpub_topic = head, topic

    # -- answers to AUTH ----------------------------------------------------------------------

    def authorized(self, grant: Grant | None) -> None:
        """The auth server's word on an AUTH."""
        if grant is not None and not grant.rows:
            raise ProtocolError(E_UNAUTHORIZED, "AUTH no authorizations found")
        self._asked_again(grant)
        if grant is not None:
            reply = auth_response(grant)
            self.connection.outbox.reply(frames.encode_frame(frames.RESPONSE, reply))

    def _asked_again(self, grant: Grant | None) -> None:
        if grant is None or self.access is None:
            raise ProtocolError(E_AUTH_FAILED, "AUTH failed")
        self.access.grant = grant
        self.access.expired = False
        self.connection.expire_in(grant.ttl_s)

    # -- the short ways -----------------------------------------------------------------------

    def _recall_pub(self, buf: bytearray, pos: int, end: int) -> bool:
        """Whether the topic of the PUB at `pos` is known, though it is not that of the last one."""
        newline = buf.find(b"\n", pos, min(end, pos + PUB_LINE_BYTES_MAX))
        line = bytes(buf[pos : newline + 1])
        topic = self._pub_topics.get(line)
        if topic is None or self.needs_tls:
            return False
        self._pub_line, self._pub_topic = line, topic
        return True

    def _publish_run(self, buf: bytearray, pos: int, end: int) -> int:
        """A run of small PUBs, or MPUBs, to any topics."""
        if self.access is not None or self.needs_tls or self.mpub_progress.begun:
            return pos
        group_commit = self.topics.group_commit
        after, count, lines = group_commit.add_run(buf, pos, end)
        if count:
            self.connection.outbox.reply_run(group_commit.completion(), count, lines)
        return after

    def _pub_run(self, buf: bytearray, pos: int, end: int) -> int:
        topic = self._pub_topic
        if topic is None or topic.state is CLOSED:
            return pos
        after, count, completion = topic.publishing.add_run(buf, pos, end, self._pub_line)
        if count:
            self.connection.outbox.reply_published(topic.name, completion, count, "PUB")
        return after

    def _dpub_run(self, buf: bytearray, pos: int, end: int) -> int:
        topic = self._dpub_topic
        if topic is None or topic.state is CLOSED:
            return pos
        after, count, completion = topic.publishing.add_delayed_run(buf, pos, end, self._dpub_head)
        if count:
            self.connection.outbox.reply_published(topic.name, completion, count, "DPUB")
        return after

    def _mpub_whole(self, buf: bytearray, pos: int, end: int) -> int:
        topic = self._mpub_topic
        body_at = pos + len(self._mpub_line) + 4
        if topic is None or topic.state is CLOSED or end - body_at < 4:
            return pos
        size, count = _SIZE_COUNT.unpack_from(buf, body_at - 4)
        whole = body_at + size <= end and 0 < count <= size // 5  # if the size is what it should be
        if not whole or size > self.options.max_body_size or self.mpub_progress.begun:
            return pos
        start = body_at + 4
        found, after = skip_messages(buf, start, body_at + size, count, self.options.max_msg_size)
        if found < count:
            return pos  # the long way says what is wrong, if anything is
        topic.publishing.add_many(buf, start, after, count)
        self.connection.outbox.reply_published(
            topic.name, topic.publishing.completion(), count, "MPUB"
        )
        return after

    def _fin_run(self, buf: bytearray, pos: int, end: int) -> int:
        consumer = self.connection.consumer
        if consumer is None or consumer.channel.exiting:
            return pos
        channel = consumer.channel
        deadlines = consumer.leases.deadlines
        spans = channel.delivery.answered
        after = answers(buf, pos, end, b"FIN ", b"\n", channel.base_id, deadlines, spans)
        if after > pos:
            channel.answered(consumer, (after - pos) // FIN_BYTES)
        return after

    def _req_run(self, buf: bytearray, pos: int, end: int) -> int:
        """A run of REQs with the same delay."""
        consumer = self.connection.consumer
        delay_at = pos + REQ_BYTES
        newline = buf.find(b"\n", delay_at, min(end, delay_at + DELAY_BYTES_MAX))
        delay = bytes(buf[delay_at : newline + 1])
        if consumer is None or consumer.channel.exiting:
            return pos
        if not delay.startswith(b" ") or not delay[1:-1].isdigit():
            return pos
        channel = consumer.channel
        spans: list[Span] = []
        deadlines = consumer.leases.deadlines
        after = answers(buf, pos, end, b"REQ ", delay, channel.base_id, deadlines, spans)
        if spans:
            delay_ns = min(int(delay) * _NS_PER_MS, self.options.max_req_timeout_ns)
            channel.requeued(consumer, spans, delay_ns)
        return after

    def _touch_run(self, buf: bytearray, pos: int, end: int) -> int:
        consumer = self.connection.consumer
        if consumer is None or consumer.channel.exiting:
            return pos
        return consumer.channel.touch_run(consumer, buf, pos, end)

    # -- the long way -------------------------------------------------------------------------

    def _greet(self, buf: bytearray, end: int) -> int:
        if end < len(frames.MAGIC_V2):
            raise Incomplete(len(frames.MAGIC_V2))
        if buf[:4] != frames.MAGIC_V2:
            raise ProtocolError(E_BAD_PROTOCOL)
        self.greeted = True
        return len(frames.MAGIC_V2)

    def _command(self, buf: bytearray, pos: int, end: int) -> int:
        newline = buf.find(b"\n", pos, min(end, pos + LINE_BYTES_MAX))
        if newline < 0:
            if end - pos >= LINE_BYTES_MAX:
                raise Dropped("command line too long")
            raise Incomplete(end + 1)
        line = bytes(buf[pos:newline])
        params = line.removesuffix(b"\r").split(b" ")
        verb = params[0]
        handler = _HANDLERS.get(verb)
        name = verb.decode("utf-8", "surrogateescape")
        if self.needs_tls and verb != b"IDENTIFY":
            raise ProtocolError(E_INVALID, f"cannot {name} in current state (TLS required)")
        if handler is None:
            raise ProtocolError(E_INVALID, f"invalid command {name}")
        try:
            return handler(self, params, buf, newline + 1, end)
        except ProtocolError as error:
            if error.fatal:
                raise
            self.connection.outbox.reply(frames.encode_frame(frames.ERROR, error.data))
            return newline + 1  # soft errors belong to commands without a body


def _nop(protocol: Protocol, params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    return pos


def _identify(protocol: Protocol, params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    if protocol.state != STATE_INIT:
        raise ProtocolError(E_INVALID, "cannot IDENTIFY in current state")
    options = protocol.options
    body, pos = read_body(buf, pos, end, "IDENTIFY", options.max_body_size)
    client = identify.parse(body, options)
    if client.upgrades and protocol.connection.layers is not None:
        raise ProtocolError(E_IDENTIFY_FAILED, "IDENTIFY failed already upgraded")
    protocol.client_options = client
    protocol.connection.identified(client)
    data = identify.response(client, options) if client.feature_negotiation else b"OK"
    protocol.connection.outbox.reply(frames.encode_frame(frames.RESPONSE, data))
    if client.upgrades:
        protocol.connection.upgrade()
        raise Suspended(pos)
    return pos


def _auth(protocol: Protocol, params: list[bytes], buf: bytearray, pos: int, end: int) -> int:
    if protocol.state != STATE_INIT:
        raise ProtocolError(E_INVALID, "cannot AUTH in current state")
    if len(params) != 1:
        raise ProtocolError(E_INVALID, "AUTH invalid number of parameters")
    secret, after = read_body(buf, pos, end, "AUTH", protocol.options.max_body_size)
    access = protocol.access
    if access is None:
        raise ProtocolError(E_AUTH_DISABLED, "AUTH disabled")
    if access.grant is not None:
        raise ProtocolError(E_INVALID, "AUTH already set")
    access.secret = secret
    protocol.connection.ask(secret, protocol.authorized)
    raise Suspended(after)


def read_body(buf: bytearray, pos: int, end: int, verb: str, size_max: int) -> tuple[bytes, int]:
    """The body of IDENTIFY or AUTH and the position after it."""
    if end - pos < 4:
        raise Incomplete(pos + 4, f"{E_BAD_BODY} {verb} failed to read body size")
    size = SIZE.unpack_from(buf, pos)[0]
    if size > size_max:
        raise ProtocolError(E_BAD_BODY, f"{verb} body too big {size} > {size_max}")
    if size <= 0:
        raise ProtocolError(E_BAD_BODY, f"{verb} invalid body size {size}")
    after = pos + 4 + size
    if after > end:
        raise Incomplete(after, f"{E_BAD_BODY} {verb} failed to read body")
    return bytes(buf[pos + 4 : after]), after


_HANDLERS: dict[bytes, Handler] = {
    b"IDENTIFY": _identify,
    b"AUTH": _auth,
    b"NOP": _nop,
    b"PUB": publish.pub,
    b"MPUB": publish.mpub,
    b"DPUB": publish.dpub,
    b"SUB": consume.sub,
    b"RDY": consume.rdy,
    b"FIN": consume.fin,
    b"REQ": consume.req,
    b"TOUCH": consume.touch,
    b"CLS": consume.cls,
}
