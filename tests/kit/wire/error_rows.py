"""The table of protocol errors: what is sent, what must come back, whether the connection lives.

Data only. `{t}` stands for a topic of the row's own. The limits are those of LIMIT_FLAGS, not the
defaults, so that a text with a limit in it proves that the configured one is used.
"""

from typing import NamedTuple

from tests.kit.wire.commands import auth, identify, sized, u32
from tests.kit.wire.session import FRAME_ERROR, FRAME_RESPONSE

LIMIT_FLAGS = (
    "--max-msg-size=1000",
    "--max-body-size=5000",
    "--max-rdy-count=50",
    "--max-req-timeout=10s",
)

CLOSES, STAYS = "closes", "stays"

SUBSCRIBED = b"SUB {t} ch\n"
CLOSING = SUBSCRIBED + b"CLS\n"
UNKNOWN_ID = b"0123456789abcdef"


class Row(NamedTuple):
    name: str
    send: bytes
    frames: tuple[tuple[int, bytes], ...]
    after: str = CLOSES
    half_close: bool = False


def fatal(name: str, send: bytes, text: bytes) -> Row:
    return Row(name, send, ((FRAME_ERROR, text),))


def subscribed(name: str, send: bytes, text: bytes) -> Row:
    return Row(name, SUBSCRIBED + send, ((FRAME_RESPONSE, b"OK"), (FRAME_ERROR, text)))


def closing(name: str, send: bytes, text: bytes) -> Row:
    frames = ((FRAME_RESPONSE, b"OK"), (FRAME_RESPONSE, b"CLOSE_WAIT"), (FRAME_ERROR, text))
    return Row(name, CLOSING + send, frames)


def soft(name: str, send: bytes, text: bytes) -> Row:
    return subscribed(name, send, text)._replace(after=STAYS)


def cut(name: str, send: bytes, text: bytes) -> Row:
    """The client half-closes after `send`, in the middle of a command."""
    return fatal(name, send, text)._replace(half_close=True)


LINE_ROWS = (
    fatal("unknown verb", b"HELLO\n", b"E_INVALID invalid command HELLO"),
    fatal("unknown verb echoes no parameters", b"PING a b\n", b"E_INVALID invalid command PING"),
    fatal("lower case verb", b"nop\n", b"E_INVALID invalid command nop"),
    fatal("empty line", b"\n", b"E_INVALID invalid command "),
    fatal("line of a lone carriage return", b"\r\n", b"E_INVALID invalid command "),
    fatal("leading space makes the verb empty", b" NOP\n", b"E_INVALID invalid command "),
    fatal("tab is no separator", b"NOP\tx\n", b"E_INVALID invalid command NOP\tx"),
    fatal("only one carriage return is cut", b"NOP\r\r\n", b"E_INVALID invalid command NOP\r"),
    fatal("verb that is not text", b"\xff\xfe\n", b"E_INVALID invalid command \xff\xfe"),
    fatal("verb with a suffix", b"PUBX {t}\n", b"E_INVALID invalid command PUBX"),
)

PUB_ROWS = (
    fatal("PUB no topic", b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
    fatal("PUB empty topic", b"PUB \n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    fatal("PUB double space", b"PUB  a\n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
    fatal("PUB bad topic", b"PUB a#b\n", b'E_BAD_TOPIC PUB topic name "a#b" is not valid'),
    fatal("PUB size 0", b"PUB {t}\n" + u32(0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
    fatal("PUB size -1", b"PUB {t}\n" + u32(-1), b"E_BAD_MESSAGE PUB invalid message body size -1"),
    fatal(
        "PUB smallest size",
        b"PUB {t}\n" + u32(-(2**31)),
        b"E_BAD_MESSAGE PUB invalid message body size -2147483648",
    ),
    fatal(
        "PUB too big", b"PUB {t}\n" + u32(1001), b"E_BAD_MESSAGE PUB message too big 1001 > 1000"
    ),
    fatal(
        "PUB largest size",
        b"PUB {t}\n" + u32(2**31 - 1),
        b"E_BAD_MESSAGE PUB message too big 2147483647 > 1000",
    ),
    cut("PUB cut before size", b"PUB {t}\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
    cut(
        "PUB cut in size",
        b"PUB {t}\n\0\0\0",
        b"E_BAD_MESSAGE PUB failed to read message body size",
    ),
    cut(
        "PUB cut before body",
        b"PUB {t}\n" + u32(5),
        b"E_BAD_MESSAGE PUB failed to read message body",
    ),
    cut(
        "PUB cut in body",
        b"PUB {t}\n" + u32(5) + b"abcd",
        b"E_BAD_MESSAGE PUB failed to read message body",
    ),
)

DPUB_ROWS = (
    fatal("DPUB no topic", b"DPUB\n", b"E_INVALID DPUB insufficient number of parameters"),
    fatal("DPUB no delay", b"DPUB {t}\n", b"E_INVALID DPUB insufficient number of parameters"),
    fatal("DPUB bad topic", b"DPUB a#b x\n", b'E_BAD_TOPIC DPUB topic name "a#b" is not valid'),
    fatal("DPUB delay word", b"DPUB {t} x\n", b"E_INVALID DPUB could not parse timeout x"),
    fatal("DPUB delay -1", b"DPUB {t} -1\n", b"E_INVALID DPUB could not parse timeout -1"),
    fatal("DPUB delay +1", b"DPUB {t} +1\n", b"E_INVALID DPUB could not parse timeout +1"),
    fatal("DPUB delay 1.5", b"DPUB {t} 1.5\n", b"E_INVALID DPUB could not parse timeout 1.5"),
    fatal("DPUB delay 1_0", b"DPUB {t} 1_0\n", b"E_INVALID DPUB could not parse timeout 1_0"),
    fatal(
        "DPUB delay in other digits",
        "DPUB {t} ١\n".encode(),
        "E_INVALID DPUB could not parse timeout ١".encode(),
    ),
    fatal(
        "DPUB delay over the limit",
        b"DPUB {t} 10001\n",
        b"E_INVALID DPUB timeout 10001 out of range 0-10000",
    ),
    fatal(
        "DPUB delay of all ones",
        b"DPUB {t} 18446744073709551615\n",
        b"E_INVALID DPUB timeout 18446744073709551615 out of range 0-10000",
    ),
    fatal(
        "DPUB size 0", b"DPUB {t} 1\n" + u32(0), b"E_BAD_MESSAGE DPUB invalid message body size 0"
    ),
    fatal(
        "DPUB size -1",
        b"DPUB {t} 1\n" + u32(-1),
        b"E_BAD_MESSAGE DPUB invalid message body size -1",
    ),
    fatal(
        "DPUB too big",
        b"DPUB {t} 1\n" + u32(1001),
        b"E_BAD_MESSAGE DPUB message too big 1001 > 1000",
    ),
    cut(
        "DPUB cut before size",
        b"DPUB {t} 1\n",
        b"E_BAD_MESSAGE DPUB failed to read message body size",
    ),
    cut(
        "DPUB cut in body",
        b"DPUB {t} 1\n" + u32(5) + b"abcd",
        b"E_BAD_MESSAGE DPUB failed to read message body",
    ),
)


def mpub_row(name: str, body: bytes, text: bytes) -> Row:
    return fatal(name, b"MPUB {t}\n" + sized(body), text)


MPUB_ROWS = (
    fatal("MPUB no topic", b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    fatal(
        "MPUB bad topic doubles the code",
        b"MPUB a#b\n",
        b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a#b" is not valid',
    ),
    fatal("MPUB size 0", b"MPUB {t}\n" + u32(0), b"E_BAD_BODY MPUB invalid body size 0"),
    fatal("MPUB size -1", b"MPUB {t}\n" + u32(-1), b"E_BAD_BODY MPUB invalid body size -1"),
    fatal(
        "MPUB body too big",
        b"MPUB {t}\n" + u32(5001),
        b"E_BAD_BODY MPUB body too big 5001 > 5000",
    ),
    mpub_row("MPUB count 0", u32(0), b"E_BAD_BODY MPUB invalid message count 0"),
    mpub_row("MPUB count -1", u32(-1), b"E_BAD_BODY MPUB invalid message count -1"),
    mpub_row(
        "MPUB count beyond what a body can hold",
        u32(1000) + sized(b"x") * 999,
        b"E_BAD_BODY MPUB invalid message count 1000",
    ),
    mpub_row(
        "MPUB first message empty",
        u32(2) + u32(0) + sized(b"x"),
        b"E_BAD_MESSAGE MPUB invalid message(0) body size 0",
    ),
    mpub_row(
        "MPUB second message negative",
        u32(2) + sized(b"x") + u32(-5),
        b"E_BAD_MESSAGE MPUB invalid message(1) body size -5",
    ),
    mpub_row(
        "MPUB second message too big",
        u32(2) + sized(b"x") + sized(b"y" * 1001),
        b"E_BAD_MESSAGE MPUB message too big 1001 > 1000",
    ),
    cut("MPUB cut before size", b"MPUB {t}\n", b"E_BAD_BODY MPUB failed to read body size"),
    cut(
        "MPUB cut before count",
        b"MPUB {t}\n" + u32(9),
        b"E_BAD_BODY MPUB failed to read message count",
    ),
    cut(
        "MPUB cut before the second size",
        b"MPUB {t}\n" + u32(14) + u32(2) + sized(b"x") + b"\0\0",
        b"E_BAD_MESSAGE MPUB failed to read message(1) body size",
    ),
    cut(
        "MPUB cut in a message",
        b"MPUB {t}\n" + u32(14) + u32(2) + sized(b"x") + u32(5) + b"ab",
        b"E_BAD_MESSAGE MPUB failed to read message body",
    ),
)

SUB_ROWS = (
    fatal("SUB no parameters", b"SUB\n", b"E_INVALID SUB insufficient number of parameters"),
    fatal("SUB no channel", b"SUB {t}\n", b"E_INVALID SUB insufficient number of parameters"),
    fatal("SUB bad topic", b"SUB a#b a#b\n", b'E_BAD_TOPIC SUB topic name "a#b" is not valid'),
    fatal(
        "SUB bad channel",
        b"SUB {t} a#b\n",
        b'E_BAD_CHANNEL SUB channel name "a#b" is not valid',
    ),
    fatal("SUB double space", b"SUB  {t} ch\n", b'E_BAD_TOPIC SUB topic name "" is not valid'),
    Row(
        "SUB without heartbeats",
        identify({"heartbeat_interval": -1}) + b"SUB\n",
        (
            (FRAME_RESPONSE, b"OK"),
            (FRAME_ERROR, b"E_INVALID cannot SUB with heartbeats disabled"),
        ),
    ),
    subscribed("SUB twice", b"SUB {t} ch\n", b"E_INVALID cannot SUB in current state"),
    closing("SUB after CLS", b"SUB {t} ch\n", b"E_INVALID cannot SUB in current state"),
)

RDY_ROWS = (
    fatal("RDY before SUB", b"RDY x\n", b"E_INVALID cannot RDY in current state"),
    subscribed("RDY word", b"RDY x\n", b"E_INVALID RDY could not parse count x"),
    subscribed("RDY -1", b"RDY -1\n", b"E_INVALID RDY could not parse count -1"),
    subscribed("RDY 1.0", b"RDY 1.0\n", b"E_INVALID RDY could not parse count 1.0"),
    subscribed("RDY over the limit", b"RDY 51\n", b"E_INVALID RDY count 51 out of range 0-50"),
    subscribed(
        "RDY of all ones is -1",
        b"RDY 18446744073709551615\n",
        b"E_INVALID RDY count -1 out of range 0-50",
    ),
)

ACK_STATE_ROWS = tuple(
    fatal(
        f"{verb} before SUB",
        verb.encode() + b"\n",
        f"E_INVALID cannot {verb} in current state".encode(),
    )
    for verb in ("FIN", "REQ", "TOUCH", "CLS")
)

ACK_ROWS = (
    subscribed("FIN no id", b"FIN\n", b"E_INVALID FIN insufficient number of params"),
    subscribed("TOUCH no id", b"TOUCH\n", b"E_INVALID TOUCH insufficient number of params"),
    subscribed("REQ no id", b"REQ\n", b"E_INVALID REQ insufficient number of params"),
    subscribed(
        "REQ no delay",
        b"REQ " + UNKNOWN_ID + b"\n",
        b"E_INVALID REQ insufficient number of params",
    ),
    subscribed("FIN short id", b"FIN abc\n", b"E_INVALID invalid message ID"),
    subscribed("FIN long id", b"FIN " + UNKNOWN_ID + b"0\n", b"E_INVALID invalid message ID"),
    subscribed("FIN empty id", b"FIN \n", b"E_INVALID invalid message ID"),
    subscribed("REQ short id", b"REQ abc x\n", b"E_INVALID invalid message ID"),
    subscribed("TOUCH short id", b"TOUCH abc\n", b"E_INVALID invalid message ID"),
    subscribed(
        "REQ delay word",
        b"REQ " + UNKNOWN_ID + b" x\n",
        b"E_INVALID REQ could not parse timeout x",
    ),
    subscribed(
        "REQ delay -1",
        b"REQ " + UNKNOWN_ID + b" -1\n",
        b"E_INVALID REQ could not parse timeout -1",
    ),
    soft(
        "FIN unknown id",
        b"FIN " + UNKNOWN_ID + b"\n",
        b"E_FIN_FAILED FIN " + UNKNOWN_ID + b" failed ID not in flight",
    ),
    soft(
        "FIN id that is not hexadecimal",
        b"FIN zzzzzzzzzzzzzzzz\n",
        b"E_FIN_FAILED FIN zzzzzzzzzzzzzzzz failed ID not in flight",
    ),
    soft(
        "FIN id in upper case",
        b"FIN 0123456789ABCDEF\n",
        b"E_FIN_FAILED FIN 0123456789ABCDEF failed ID not in flight",
    ),
    soft(
        "REQ unknown id",
        b"REQ " + UNKNOWN_ID + b" 0\n",
        b"E_REQ_FAILED REQ " + UNKNOWN_ID + b" failed ID not in flight",
    ),
    soft(
        "TOUCH unknown id",
        b"TOUCH " + UNKNOWN_ID + b"\n",
        b"E_TOUCH_FAILED TOUCH " + UNKNOWN_ID + b" failed ID not in flight",
    ),
    closing("CLS twice", b"CLS\n", b"E_INVALID cannot CLS in current state"),
)

IDENTIFY_ROWS = (
    subscribed("IDENTIFY after SUB", b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY in current state"),
    closing("IDENTIFY after CLS", b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY in current state"),
    fatal("IDENTIFY size 0", b"IDENTIFY\n" + u32(0), b"E_BAD_BODY IDENTIFY invalid body size 0"),
    fatal("IDENTIFY size -1", b"IDENTIFY\n" + u32(-1), b"E_BAD_BODY IDENTIFY invalid body size -1"),
    fatal(
        "IDENTIFY too big",
        b"IDENTIFY\n" + u32(5001),
        b"E_BAD_BODY IDENTIFY body too big 5001 > 5000",
    ),
    cut("IDENTIFY cut before size", b"IDENTIFY\n", b"E_BAD_BODY IDENTIFY failed to read body size"),
    cut(
        "IDENTIFY cut in body",
        b"IDENTIFY\n" + u32(2) + b"{",
        b"E_BAD_BODY IDENTIFY failed to read body",
    ),
    fatal(
        "IDENTIFY both compressions",
        identify({"feature_negotiation": True, "deflate": True, "snappy": True}),
        b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
    ),
)

AUTH_ROWS = (
    fatal("AUTH parameter", b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
    fatal("AUTH empty parameter", b"AUTH \n", b"E_INVALID AUTH invalid number of parameters"),
    fatal("AUTH size 0", b"AUTH\n" + u32(0), b"E_BAD_BODY AUTH invalid body size 0"),
    fatal("AUTH size -1", b"AUTH\n" + u32(-1), b"E_BAD_BODY AUTH invalid body size -1"),
    fatal("AUTH too big", b"AUTH\n" + u32(5001), b"E_BAD_BODY AUTH body too big 5001 > 5000"),
    cut("AUTH cut before size", b"AUTH\n", b"E_BAD_BODY AUTH failed to read body size"),
    cut("AUTH cut in body", b"AUTH\n" + u32(3) + b"ab", b"E_BAD_BODY AUTH failed to read body"),
    fatal("AUTH not configured", auth(b"secret"), b"E_AUTH_DISABLED AUTH disabled"),
    subscribed("AUTH after SUB", b"AUTH\n", b"E_INVALID cannot AUTH in current state"),
    closing("AUTH after CLS", b"AUTH\n", b"E_INVALID cannot AUTH in current state"),
)

# A name as the server quotes it: control characters and bytes that are no text are escaped,
# printable characters are not.
QUOTED_NAMES = (
    ("quote and backslash", b'a"\\', rb'"a\"\\"'),
    ("tab", b"a\tb", rb'"a\tb"'),
    ("bell to return", b"a\a\b\f\v\rb", rb'"a\a\b\f\v\rb"'),
    ("other control characters", b"a\x00\x1b\x7f", rb'"a\x00\x1b\x7f"'),
    ("printable text", "aé漢😀".encode(), '"aé漢😀"'.encode()),
    (
        "text that is not printable",
        "a\u200b\u00a0\U000e0001".encode(),
        rb'"a\u200b\u00a0\U000e0001"',
    ),
    ("not text", b"a\xff\xc3", rb'"a\xff\xc3"'),
)
QUOTE_ROWS = tuple(
    fatal(
        f"quoted name: {name}",
        b"PUB " + raw + b"\n",
        b"E_BAD_TOPIC PUB topic name " + quoted + b" is not valid",
    )
    for name, raw, quoted in QUOTED_NAMES
)

ROWS = (
    *LINE_ROWS,
    *PUB_ROWS,
    *DPUB_ROWS,
    *MPUB_ROWS,
    *SUB_ROWS,
    *RDY_ROWS,
    *ACK_STATE_ROWS,
    *ACK_ROWS,
    *IDENTIFY_ROWS,
    *AUTH_ROWS,
    *QUOTE_ROWS,
)
