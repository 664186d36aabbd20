"""What a load process does that requeues or touches messages.

The frames of these loads are all of one size, so a chunk is answered by slices, not by message:
the load must not be the limit. Knows the wire and its load process; must not know servers, targets
or how a phase is timed.
"""

from __future__ import annotations

from collections import deque

from bench.kit import wire
from bench.kit.load_processes import LoadProcess
from bench.kit.servers import BenchFailure
from bench.nsqd.load import BUFFER_BYTES, keep_rest, receive_into
from pumpline.core.messages.kernels import fin_commands

FRAME_BYTES = wire.BODY_OFFSET + wire.BODY_BYTES
ATTEMPTS_AT = 17  # its low byte
ROUNDS_AHEAD = 4


def requeue_once(
    process: LoadProcess, port: int, topic: str, channel: str, *, rdy: int, delay_ms: int
) -> None:
    """One consumer that answers a first delivery with REQ, and a second one with FIN. Counts what
    it finished."""
    buf = bytearray(BUFFER_BYTES)
    view = memoryview(buf)
    out, fins = bytearray(), bytearray()
    counts, slot, stop = process.counts, process.slot, process.stop
    tail = b" %d\n" % delay_ms
    sock = wire.subscribe(port, topic, channel)
    process.ready()
    sock.sendall(b"RDY %d\n" % rdy)
    finished = end = 0
    while not stop[0]:
        end += receive_into(sock, view[end:])
        pos = 0
        while end - pos >= FRAME_BYTES:
            attempts = bytes(buf[pos + ATTEMPTS_AT : end : FRAME_BYTES])
            attempts = attempts[: (end - pos) // FRAME_BYTES]
            first = attempts[0] == 1
            run = len(attempts) - len(attempts.lstrip(attempts[:1]))
            fins.clear()
            pos, messages = fin_commands(buf, pos, pos + run * FRAME_BYTES, fins)
            if messages != run:
                raise BenchFailure(
                    f"got another frame than a message: {bytes(buf[pos : pos + 60])!r}"
                )
            if first:
                out += fins.replace(b"FIN ", b"REQ ").replace(b"\n", tail)
            else:
                out += fins
                finished += run
        end = keep_rest(buf, pos, end)
        if out:
            sock.sendall(out)
            out.clear()
            counts[slot] = finished


def touch_again(process: LoadProcess, port: int, topic: str, channel: str, *, rdy: int) -> None:
    """One consumer that touches all it has in flight, again and again. Each round ends with a FIN
    of the oldest message: when the next one comes, the round was carried out. Counts touches."""
    buf = bytearray(BUFFER_BYTES)
    view = memoryview(buf)
    counts, slot, stop = process.counts, process.slot, process.stop
    held: deque[bytes] = deque()
    rounds: deque[int] = deque()  # the touches of each that is under way
    sock = wire.subscribe(port, topic, channel)
    process.ready()
    sock.sendall(b"RDY %d\n" % rdy)
    touched = end = 0
    filled = False
    while not stop[0]:
        end += receive_into(sock, view[end:])
        pos = 0
        while end - pos >= FRAME_BYTES:
            held.append(b"TOUCH %s\n" % buf[pos + 18 : pos + wire.BODY_OFFSET])
            pos += FRAME_BYTES
            if filled:
                touched += rounds.popleft()
        end = keep_rest(buf, pos, end)
        counts[slot] = touched
        filled = filled or len(held) == rdy
        while filled and len(rounds) < ROUNDS_AHEAD:
            oldest = held.popleft()
            sock.sendall(b"".join(held) + oldest.replace(b"TOUCH", b"FIN"))
            rounds.append(len(held))
