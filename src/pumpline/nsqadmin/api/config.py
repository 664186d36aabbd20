"""Options over HTTP: GET /config/<name> for each, PUT for the two that can change while we run."""

import logging
from typing import Annotated

import msgspec

from pumpline.core.text import flags
from pumpline.core.text.flags import parse_log_level
from pumpline.nsqadmin.options import NsqadminOptions
from pumpline.web.endpoint import BodyLimit
from pumpline.web.replies import HttpError, Reply, json_reply, text_reply
from pumpline.web.request import Request

LOOKUPDS_MAX = 1000
VALUE_BODY = BodyLimit(1 << 20, "INVALID_VALUE")

Addresses = Annotated[list[str], msgspec.Meta(max_length=LOOKUPDS_MAX)]

_ALL_LOGGERS = "pumpline"
_STDLIB_LEVELS_PER_LEVEL = 10  # logging counts DEBUG 10 to CRITICAL 50, NSQ 1 to 5


class AdminConfigEndpoints:
    def __init__(self, options: NsqadminOptions) -> None:
        self._options = options

    def get(self, request: Request) -> Reply:
        try:
            attribute, _ = flags.attribute_of(NsqadminOptions, request.variable)
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None
        value = getattr(self._options, attribute)
        return text_reply(value) if isinstance(value, str) else json_reply(value)

    def put(self, request: Request) -> Reply:
        if not request.body:
            raise HttpError(413, "INVALID_VALUE")
        setters = {
            "log_level": self._set_log_level,
            "nsqlookupd_http_addresses": self._set_lookupds,
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
        self._options.lookupd_http_address = msgspec.json.decode(body, type=Addresses)
