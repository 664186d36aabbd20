"""JSON bodies of requests, and what is wrong with them: 400, in NSQ's words where it has any."""

from typing import TypeVar

import msgspec

from pumpline.core.text.names import is_valid_name
from pumpline.web.endpoint import BodyLimit
from pumpline.web.replies import HttpError
from pumpline.web.request import Request

JSON_BODY = BodyLimit(1 << 20, "BODY_TOO_BIG")

T = TypeVar("T")


def json_body(request: Request, kind: type[T]) -> T:
    body = request.body
    if not body.strip():
        raise HttpError(400, "EOF")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = str(error)
        raise HttpError(400, "unexpected EOF" if "truncated" in text else text) from None


def check_topic(topic: str) -> str:
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_TOPIC")
    return topic


def check_channel(channel: str) -> str:
    if not is_valid_name(channel):
        raise HttpError(400, "INVALID_CHANNEL")
    return channel
