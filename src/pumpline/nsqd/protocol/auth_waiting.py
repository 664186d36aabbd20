"""A client that waits for the auth servers: the question under way, and when its answer expires."""

import asyncio
from collections.abc import Callable

from pumpline.core.protocol.layers import Tls
from pumpline.core.protocol.permissions import Grant
from pumpline.nsqd.security.access import Answered, Authorities, AuthQuestion


class AuthWaiting:
    __slots__ = ("_authorities", "_call_off", "_expiry", "_loop")

    def __init__(self, authorities: Authorities | None, loop: asyncio.AbstractEventLoop) -> None:
        self._authorities = authorities
        self._loop = loop
        self._call_off: Callable[[], object] | None = None  # ends the question
        self._expiry: asyncio.TimerHandle | None = None

    def ask(
        self, secret: bytes, *, host: str, peer: str, tls: Tls | None, answered: Answered
    ) -> None:
        """Ask what a client may do; `answered` is called once, unless `stop` is before."""
        question = AuthQuestion(
            secret=secret,
            remote_ip=host,
            tls=tls is not None,
            common_name="" if tls is None else tls.common_name,
        )
        assert self._authorities is not None

        def on_answer(grant: Grant | None) -> None:
            self._call_off = None
            answered(grant)

        self._call_off = self._authorities.ask(question, peer, on_answer)

    def expire_in(self, ttl_s: float, expire: Callable[[], None]) -> None:
        """Call `expire` after that time; an earlier one is called off."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = self._loop.call_later(ttl_s, expire)

    def stop(self) -> None:
        """The client is gone."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self._call_off is not None:
            self._call_off()
            self._call_off = None  # it knows who asked
