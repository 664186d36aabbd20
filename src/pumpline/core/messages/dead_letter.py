"""A dead letter in the form `json`: a message that was given up, and where it came from.

nsqd and the client's consumers write it, nsqadmin and `pumpline deadletters` read it.

| field         | value                                                                       |
|---------------|-----------------------------------------------------------------------------|
| topic         | the topic it was published to                                               |
| channel       | the channel that gave up on it                                              |
| id            | of the message                                                              |
| offset        | of the message in the topic's log; only nsqd knows it                       |
| attempts      | how often it was delivered                                                  |
| timestamp     | when it was published, ns since 1970                                        |
| reason        | why it was given up, if not for its attempts: the body was not valid        |
| body          | the body, if it is UTF-8                                                    |
| body_base64   | the body, if it is not                                                      |
"""

import json
from base64 import b64encode


def dead_letter(
    *,
    topic: str,
    channel: str,
    message_id: str,
    attempts: int,
    timestamp_ns: int,
    body: bytes,
    offset: int | None = None,
    reason: str = "",
) -> bytes:
    letter: dict[str, str | int] = {"topic": topic, "channel": channel, "id": message_id}
    if offset is not None:
        letter["offset"] = offset
    letter["attempts"] = attempts
    letter["timestamp"] = timestamp_ns
    if reason:
        letter["reason"] = reason
    try:
        letter["body"] = body.decode()
    except UnicodeDecodeError:
        letter["body_base64"] = b64encode(body).decode()
    return json.dumps(letter, ensure_ascii=False, separators=(",", ":")).encode()
