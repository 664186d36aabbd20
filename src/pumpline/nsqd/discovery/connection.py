"""A connection to an nsqlookupd, from its socket's side: it moves bytes, and watches the time.

`discovery.session` knows what the bytes mean, `discovery.lookupds` when to connect.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from pumpline.core.text.lines import one_line
from pumpline.nsqd.discovery.session import PING, About, Identity, Session, SessionError

REPLY_S = 5.0  # without one; a whole fleet may be registering with an nsqlookupd that came back
FLUSH_S = 1.0  # for the other side to take the last bytes

_LOG = logging.getLogger(__name__)


class Link(asyncio.Protocol):
    """A connection to one nsqlookupd; `ended` has the reason once it is closed."""

    def __init__(
        self,
        address: str,
        identity: Identity,
        new_session: Callable[[], Session],
        *,
        ping_s: float,
        identified: Callable[[], object],
    ) -> None:
        """`new_session` is called when the connection is there: then is what to register.
        `identified` is called when the other side has introduced itself, too."""
        self._address = address
        self._identity = identity
        self._new_session = new_session
        self._ping_s = ping_s
        self._identified = identified
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._pinging: asyncio.TimerHandle | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._reply_by_s = 0.0
        self._registering = True  # for the first time on this connection
        self._speaking = False  # at the next opportunity
        self._retired: asyncio.Future[None] | None = None
        self._has_ended_output = False
        self.ended: asyncio.Future[str] = self._loop.create_future()

    @property
    def about(self) -> About | None:
        """What the other side says of itself."""
        return None if self._session is None else self._session.about

    # -- the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not subclass it
        self._session = self._new_session()
        self._transport.write(self._session.begin(self._identity))
        self._reply_by_s = self._loop.time() + REPLY_S
        self._watch(self._session)
        self._pinging = self._loop.call_later(self._ping_s, self._ping)

    def data_received(self, data: bytes) -> None:
        session = self._session
        assert session is not None
        if self.ended.done():
            return
        was_identified = session.about is not None
        try:
            answered_count = session.receive(data)
        except SessionError as error:
            self._end(str(error))
            return
        if answered_count:
            self._reply_by_s = self._loop.time() + REPLY_S
        if not was_identified and session.about is not None:
            _LOG.info("LOOKUPD(%s): peer info %s", self._address, one_line(repr(session.about)))
            self._identified()
        self._speak()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "the connection was closed")

    def close(self) -> None:
        """Close after sending what was written, or after a second."""
        self._stop()
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(FLUSH_S, self._transport.abort)

    def _end(self, cause: str) -> None:
        self._stop()
        if not self.ended.done():
            self.ended.set_result(cause)
        if self._transport is not None:
            self._transport.abort()

    def _stop(self) -> None:
        for timer in (self._pinging, self._watching):
            if timer is not None:
                timer.cancel()
        if self._retired is not None and not self._retired.done():
            self._retired.set_result(None)

    # -- what to say --------------------------------------------------------------------------

    def changed(self, topic: str) -> None:
        """The topic, or a channel of it, came or went."""
        if self._session is None:
            return
        self._session.changed(topic)
        if not self._speaking:
            self._speaking = True
            self._loop.call_soon(self._speak)

    def retire(self) -> Awaitable[None]:
        """Take everything back and end the connection; to be awaited until the other side has ended
        it, too, which says that it lists this node no more, or until that cannot be."""
        self._retired = self._loop.create_future()
        if self._session is None or self._session.about is None or self.ended.done():
            self._retired.set_result(None)
        else:
            self._session.retire()
            self._speak()
        return self._retired

    def _ping(self) -> None:
        assert self._session is not None
        _LOG.debug("LOOKUPD(%s): sending heartbeat", self._address)
        self._session.ping()
        self._speak()
        self._pinging = self._loop.call_later(self._ping_s, self._ping)

    def _speak(self) -> None:
        self._speaking = False
        session = self._session
        if session is None or self._transport is None or self._transport.is_closing():
            return
        if self._has_ended_output:
            return
        if not session.unanswered:
            self._reply_by_s = self._loop.time() + REPLY_S
        lines = session.commands()
        if lines:
            self._transport.write("".join(f"{line}\n" for line in lines).encode())
            self._log(lines)
            self._watch(session)
        elif session.about is not None and session.settled:
            self._on_settled(session)

    def _on_settled(self, session: Session) -> None:
        if self._registering:
            self._registering = False
            _LOG.info("LOOKUPD(%s): registered %d topics", self._address, session.registered_count)
        if self._retired is not None and self._transport is not None:
            self._has_ended_output = True
            self._transport.write_eof()

    def _log(self, lines: list[str]) -> None:
        """Changes one by one; but not thousands of lines when it begins and ends."""
        level = logging.DEBUG if self._registering or self._retired is not None else logging.INFO
        if _LOG.isEnabledFor(level):
            for line in lines:
                if line != PING:
                    _LOG.log(level, "LOOKUPD(%s): %s", self._address, line)

    # -- time ---------------------------------------------------------------------------------

    def _watch(self, session: Session) -> None:
        if self._watching is None and session.unanswered:
            delay_s = max(self._reply_by_s - self._loop.time(), 0)
            self._watching = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        """Close the connection if the nsqlookupd has not answered in time."""
        assert self._session is not None
        self._watching = None
        if self._session.unanswered and self._loop.time() >= self._reply_by_s:
            self._end(f"no answer for {REPLY_S:g} s")
        else:
            self._watch(self._session)
