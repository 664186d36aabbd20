"""The few loops over messages that are worth compiling, in whichever form is installed.

| kernel              | turns                                  | into                              |
|---------------------|----------------------------------------|-----------------------------------|
| `unfilled`          | a size                                 | a bytearray of whatever bytes     |
| `pubs`              | a run of `PUB <topic>` commands        | message frames and their ends     |
| `dpubs`             | a run of `DPUB <topic> <delay>`        | the same, and their due times     |
| `publishes_by_line` | a run of PUBs or MPUBs to known topics | the same, of each topic and all   |
| `message`           | one message body                       | a message frame and its end       |
| `skip_messages`     | messages of an MPUB body               | their number, and where they end  |
| `mpub`              | the messages of one MPUB body          | message frames and their ends     |
| `answers`           | a run of FIN, or of REQ with one delay | spans of offsets, no more leased  |
| `touches`           | a run of `TOUCH <id>` commands         | later deadlines of leases         |
| `redeliveries`      | offsets of a batch and their attempts  | message frames with these         |
| `due_run`           | due times of a batch, and a time       | how far they are like the first   |
| `locate`            | whole batches of a log, and an offset  | where the batch with it begins    |
| `fin_commands`      | a run of message frames (client side)  | the FIN commands that answer them |
| `body_bytes`        | a list of bodies (client side)         | how many bytes they have together |
| `mpub_command`      | a list of bodies (client side)         | an MPUB                           |

Both forms live side by side (`_kernels` compiled, `_kernels_py` plain) and are tested against each
other. The environment variable PUMPLINE_KERNELS chooses: `auto` (default), `require` (fail when
the compiled form is missing) or `python` (use the plain form).

* `unfilled(size) -> bytearray` is one to be filled by its caller: to clear 500 kB takes as long as
  to copy them.
* `pubs(buf, pos, end, line, frames, ends, first_id, timestamp, limit) -> (pos, count)`
  takes commands that begin with exactly `line` (`b"PUB topic\\n"`), whole and of 1..limit bytes;
  stops before the first that is not.
* `dpubs(buf, pos, end, head, frames, ends, dues, first_id, timestamp, limit, delay_limit) ->
  (pos, count)` takes commands that begin with exactly `head` (`b"DPUB topic "`), 1 to 12 digits and
  a newline, and are as `pubs` takes them otherwise. The delay is in ms, at most `delay_limit`. Each
  adds a due time to `dues`: `timestamp` and the delay in ns, or 0 without a delay.
* `publishes_by_line(buf, pos, end, batches, frames, ends, lines, timestamp, limit, body_limit,
  full) -> (pos, count)` takes commands of one verb, PUB or MPUB, that begin with any line of
  `batches`: a dict of lines to (frames, ends, first id). Each message goes there and to `frames`
  and `ends` as well, and its line to `lines`. Stops as `pubs` does; before an MPUB whose body is
  over `body_limit` or does not end with its last message; and before a command whose batch has
  `full` bytes of frames or more. `count` is the number of commands.
* `skip_messages(buf, pos, end, count, limit) -> (number, pos)` goes over at most `count` messages,
  whole and of 1..limit bytes, each with its size before it; stops before the first that is not.
* `message(buf, pos, end, frames, ends, message_id, timestamp)` takes buf[pos:end], bytes or
  bytearray; ValueError if that is empty or beyond the buffer.
* `mpub(buf, pos, end, count, frames, ends, first_id, timestamp, limit) -> index`
  takes all `count` messages and returns -1, or takes none and returns the index of the first
  message that is too short, empty or over `limit`.
* `answers(buf, pos, end, head, tail, base_id, leases, spans) -> pos` takes commands that are
  exactly `head`, an id and `tail` (`b"FIN "`, `b"\\n"`), removes each offset from `leases` and
  appends `(start, end)` spans; stops before the first whose offset is not leased.
* `touches(buf, pos, end, base_id, leases, caps, deadline, slack) -> (pos, lowest)` sets each
  lease's deadline to `deadline`, but not beyond its cap, which is its first deadline and `slack`.
  `lowest` is the lowest of `deadline` and what was set. Stops before the first whose offset is not
  leased.
* `redeliveries(offsets, attempts, first, ends, frames, out, limit) -> count` appends the frame of
  each offset, with its attempts, to `out`, until that has `limit` bytes or more. `first`, `ends`
  and `frames` are those of a batch that has all the offsets.
* `due_run(dues, start, end, time) -> end` compares the due times of the messages from index `start`
  to `end` with `time`. Returns where the first run of them ends: all above it, or none.
* `locate(buf, pos, end, first, offset) -> pos` hops from header to header of the batches in
  buf[pos:end], the first of which begins with offset `first`, to the one with `offset`. -1 if its
  header is not there, or offsets do not follow on each other. No crc is checked.
* `fin_commands(buf, pos, end, out) -> (pos, count)` appends `FIN <id>\\n` for each whole frame.
* `body_bytes(bodies, limit) -> size` takes `bytes` of 1..limit bytes each; -1 if one of them is
  anything else.
* `mpub_command(line, bodies) -> bytes` is `line` (`b"MPUB topic\\n"`) and the body of the MPUB.
  Each body is `bytes`; TypeError if one is text.

`frames`, `ends` and `dues` grow in place; `ends` holds big-endian u32 and `dues` big-endian i64, as
the log's batches do.
"""

import os as _os
from collections.abc import Callable
from typing import Any

from pumpline.core.messages import _kernels_py

_CHOICES = ("auto", "require", "python")
_NAMES = (
    "unfilled",
    "pubs",
    "dpubs",
    "publishes_by_line",
    "message",
    "skip_messages",
    "mpub",
    "answers",
    "touches",
    "redeliveries",
    "due_run",
    "locate",
    "fin_commands",
    "body_bytes",
    "mpub_command",
)


def _load(choice: str) -> tuple[Any, bool]:
    if choice not in _CHOICES:
        raise ImportError(f"PUMPLINE_KERNELS={choice!r}: expected one of {', '.join(_CHOICES)}")
    if choice == "python":
        return _kernels_py, False
    try:
        from pumpline.core.messages import _kernels  # type: ignore[attr-defined, unused-ignore]

        if not all(hasattr(_kernels, name) for name in _NAMES):
            raise ImportError("the compiled kernels were built from an older version")
    except ImportError as error:
        if choice == "require":
            raise ImportError(
                "PUMPLINE_KERNELS=require, but the compiled kernels are not installed: "
                "install a C compiler and reinstall pumpline"
            ) from error
        return _kernels_py, False
    return _kernels, True


_form, compiled = _load(_os.environ.get("PUMPLINE_KERNELS") or "auto")
form = "compiled" if compiled else "python"
unfilled: Callable[[int], bytearray] = _form.unfilled
pubs: Callable[
    [bytearray, int, int, bytes, bytearray, bytearray, int, int, int], tuple[int, int]
] = _form.pubs
dpubs: Callable[
    [bytearray, int, int, bytes, bytearray, bytearray, bytearray, int, int, int, int],
    tuple[int, int],
] = _form.dpubs
publishes_by_line: Callable[
    [
        bytearray,
        int,
        int,
        dict[bytes, tuple[bytearray, bytearray, int]],
        bytearray,
        bytearray,
        list[bytes],
        int,
        int,
        int,
        int,
    ],
    tuple[int, int],
] = _form.publishes_by_line
skip_messages: Callable[[bytearray, int, int, int, int], tuple[int, int]] = _form.skip_messages
message: Callable[[bytes | bytearray, int, int, bytearray, bytearray, int, int], None] = (
    _form.message
)
mpub: Callable[[bytearray, int, int, int, bytearray, bytearray, int, int, int], int] = _form.mpub
answers: Callable[
    [bytearray, int, int, bytes, bytes, int, dict[int, int], list[tuple[int, int]]], int
] = _form.answers
touches: Callable[
    [bytearray, int, int, int, dict[int, int], dict[int, int], int, int], tuple[int, int]
] = _form.touches
redeliveries: Callable[
    [list[int], list[int], int, bytearray | memoryview, bytearray | memoryview, bytearray, int], int
] = _form.redeliveries
due_run: Callable[[bytes | bytearray | memoryview, int, int, int], int] = _form.due_run
locate: Callable[[bytearray, int, int, int, int], int] = _form.locate
fin_commands: Callable[[bytearray, int, int, bytearray], tuple[int, int]] = _form.fin_commands
body_bytes: Callable[[list[Any], int], int] = _form.body_bytes
mpub_command: Callable[[bytes, list[bytes]], bytes] = _form.mpub_command
