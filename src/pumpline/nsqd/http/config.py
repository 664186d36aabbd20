"""Options over HTTP: GET /config/<name> for each, PUT for the two that can change while we run."""

import logging
from collections.abc import Callable
from typing import Annotated

import msgspec

from pumpline.core.text.flags import parse_log_level
from pumpline.nsqd.options import LOOKUPDS_MAX, Options, config_value
from pumpline.web.replies import HttpError, Reply, json_reply, text_reply
from pumpline.web.request import Request

Addresses = Annotated[list[str], msgspec.Meta(max_length=LOOKUPDS_MAX)]

_ALL_LOGGERS = "pumpline"
_STDLIB_LEVELS_PER_LEVEL = 10  # logging counts DEBUG 10 to CRITICAL 50, NSQ 1 to 5


class ConfigEndpoints:
    def __init__(self, options: Options, *, lookupds_changed: Callable[[], None]) -> None:
        """`lookupds_changed` is called when `options.lookupd_tcp_address` is another list."""
        self._options = options
        self._lookupds_changed = lookupds_changed

    def get(self, request: Request) -> Reply:
        try:
            value = config_value(self._options, request.variable)
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None
        return text_reply(value) if isinstance(value, str) else json_reply(value)

    def put(self, request: Request) -> Reply:
        if not request.body:
            raise HttpError(413, "INVALID_VALUE")
        setters = {
            "log_level": self._set_log_level,
            "nsqlookupd_tcp_addresses": self._set_lookupds,
        }
        setter = setters.get(request.variable)
        if setter is None:
            raise HttpError(400, "INVALID_OPTION")
        try:
            setter(request.body)
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        return self.get(request)

    def _set_log_level(self, body: bytes) -> None:
        level = parse_log_level(body.decode())
        self._options.log_level = level
        logging.getLogger(_ALL_LOGGERS).setLevel(level * _STDLIB_LEVELS_PER_LEVEL)

    def _set_lookupds(self, body: bytes) -> None:
        addresses = msgspec.json.decode(body, type=Addresses | None)
        self._options.lookupd_tcp_address = addresses or []
        self._lookupds_changed()
