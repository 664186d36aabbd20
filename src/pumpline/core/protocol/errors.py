"""The one table of protocol errors: a wire code, and whether it ends the connection.

`ProtocolError` carries the exact text a client sees. All codes are fatal (the frame is sent, then
the connection closes) but the three about a single in-flight message.
"""

E_BAD_PROTOCOL = "E_BAD_PROTOCOL"
E_INVALID = "E_INVALID"
E_BAD_TOPIC = "E_BAD_TOPIC"
E_BAD_CHANNEL = "E_BAD_CHANNEL"
E_BAD_BODY = "E_BAD_BODY"
E_BAD_MESSAGE = "E_BAD_MESSAGE"
E_PUB_FAILED = "E_PUB_FAILED"
E_MPUB_FAILED = "E_MPUB_FAILED"
E_DPUB_FAILED = "E_DPUB_FAILED"
E_SUB_FAILED = "E_SUB_FAILED"
E_FIN_FAILED = "E_FIN_FAILED"
E_REQ_FAILED = "E_REQ_FAILED"
E_TOUCH_FAILED = "E_TOUCH_FAILED"
E_IDENTIFY_FAILED = "E_IDENTIFY_FAILED"
E_AUTH_FIRST = "E_AUTH_FIRST"
E_AUTH_DISABLED = "E_AUTH_DISABLED"
E_AUTH_FAILED = "E_AUTH_FAILED"
E_AUTH_ERROR = "E_AUTH_ERROR"
E_UNAUTHORIZED = "E_UNAUTHORIZED"

SOFT_CODES = frozenset({E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED})


class ProtocolError(Exception):
    """An error frame to be: `<code> <text>`, or the bare code."""

    def __init__(self, code: str, text: str | None = None) -> None:
        super().__init__(code if text is None else f"{code} {text}")
        self.code = code

    @property
    def fatal(self) -> bool:
        return self.code not in SOFT_CODES

    @property
    def data(self) -> bytes:
        # Names and parameters came in as bytes and go back as the same bytes.
        return str(self).encode("utf-8", "surrogateescape")
