"""Single keys of a terminal, without waiting for Enter. POSIX.

Bytes become names (`up`, `enter`, `escape`) or the characters that they type; `split_keys` is the
pure part. A context manager: the terminal is as it was before, whatever happens.
"""

import codecs
import os
import select
import termios
import tty
from types import TracebackType

SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b[Z": "tab",
}
SINGLE = {
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\t": "tab",
}
READ_BYTES = 1024


class Keyboard:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._saved = termios.tcgetattr(fd)

    def __enter__(self) -> "Keyboard":
        tty.setcbreak(self._fd)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # At once: TCSADRAIN would wait for a terminal that stands still.
        termios.tcsetattr(self._fd, termios.TCSANOW, self._saved)

    def keys(self, timeout_s: float) -> list[str] | None:
        """What was pressed, after at most that time; None when the terminal is gone."""
        readable, _, _ = select.select([self._fd], [], [], max(timeout_s, 0))
        if not readable:
            return []
        data = os.read(self._fd, READ_BYTES)
        return split_keys(data) if data else None


def split_keys(data: bytes) -> list[str]:
    """The keys that were pressed, by name or character; unknown sequences are dropped."""
    keys: list[str] = []
    text = b""
    while data:
        if data[:1] == b"\x1b" and len(data) > 1 and data[1:2] in b"[O":
            keys += _characters(text)
            text = b""
            end = next((i for i in range(2, len(data)) if 0x40 <= data[i] <= 0x7E), len(data) - 1)
            name = SEQUENCES.get(data[: end + 1])
            keys += [name] if name else []
            data = data[end + 1 :]
        else:
            text += data[:1]
            data = data[1:]
    return keys + _characters(text)


def _characters(data: bytes) -> list[str]:
    text, _ = codecs.utf_8_decode(data, "ignore", True)
    return [SINGLE.get(each, each) for each in text]
