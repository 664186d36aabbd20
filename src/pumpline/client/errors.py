"""Everything the client raises on purpose.

| type                  | when                                                                   |
|-----------------------|------------------------------------------------------------------------|
| ConnectError          | a connection could not be opened                                       |
| MissingExtraError     | ... because a library for a feature is not installed                   |
| AuthRequiredError     | ... because nsqd wants a secret and there is none in the settings      |
| ConnectionClosedError | a connection that was open has ended                                   |
| StalledError          | ... by us, because nsqd sent or took nothing for too long              |
| ServerError           | nsqd sent an error frame                                               |
| PublishError          | a message was not published, or it is not known whether it was         |
| NotSentError          | ... it was not: it did not reach nsqd, or nsqd did not read it         |
| RefusedError          | ... it was not: nsqd said no                                           |
| UnconfirmedError      | ... unknown: it was sent, and the connection ended before the answer   |

Wrong arguments (a bad topic name, an empty body) are ValueErrors, and those of a wrong type are
TypeErrors, before anything is sent.
"""

from pumpline.core.protocol.errors import SOFT_CODES


class PumplineError(Exception):
    """The base class of the exceptions below."""


class ConnectError(PumplineError, ConnectionError):
    """A connection could not be opened."""


class MissingExtraError(ConnectError):
    """A feature needs a library that is not installed; the text says which."""


class AuthRequiredError(ConnectError):
    """nsqd wants a secret, and the settings have none."""


class ConnectionClosedError(PumplineError, ConnectionError):
    """An open connection has ended."""

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent
        """Of a request: whether any of it may have left before the connection ended."""


class StalledError(ConnectionClosedError):
    """nsqd sent nothing, or took nothing, for too long."""


class ServerError(PumplineError):
    """nsqd sent an error frame: `<code> <text>`."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code} {text}" if text else code)
        self.code = code
        self.text = text

    @classmethod
    def parse(cls, data: bytes) -> "ServerError":
        code, _, text = data.decode("utf-8", "replace").partition(" ")
        return cls(code, text)

    @property
    def fatal(self) -> bool:
        """Whether nsqd closes the connection after it."""
        return self.code not in SOFT_CODES


class PublishError(PumplineError):
    """A message was not published, or it is not known whether it was."""

    confirmed: int = 0
    """Of a `publish_many`: how many of its messages are known to be published."""


class NotSentError(PublishError):
    """The message was not published: it never reached an nsqd."""


class RefusedError(PublishError):
    """The message was not published: nsqd refused it."""

    def __init__(self, error: ServerError) -> None:
        is_delay = error.text.startswith("DPUB timeout ")
        hint = "; in milliseconds, the limit is nsqd's --max-req-timeout" if is_delay else ""
        super().__init__(f"{error}{hint}")
        self.code = error.code


class UnconfirmedError(PublishError):
    """The message was sent, and no answer came: it may have been published or not."""


def less_certain(first: PublishError, another: PublishError) -> PublishError:
    """The one to raise for both: UnconfirmedError, if either is one."""
    is_hidden = isinstance(another, UnconfirmedError) and not isinstance(first, UnconfirmedError)
    return another if is_hidden else first


def wrong_name(kind: str, name: object) -> TypeError:
    """A topic or a channel that is no text."""
    return TypeError(f"a {kind} name is text, not {type(name).__name__}")
