"""Publishers that repeat whatever they are not sure of, with the token of the first time.

Each publishes chunks of messages, one after another, over HTTP, and is never sure of the last ones,
answered or not: after every crash it begins with some chunks before the one it was at. What the
topic has in the end must be each message of each chunk, once.
"""

import http.client
import json
import random
import threading
from urllib.parse import quote

from tests.kit.crash.killable_nsqd import mpub_body
from tests.kit.daemons import IO_TIMEOUT_S, Nsqd
from tests.kit.logs import batches_in

STEP_BACK_MAX = 30  # chunks that are repeated though they were answered
PAD = b"." * 60


class Repeater:
    """One publisher; `run` until the daemon is gone, then `run` again."""

    def __init__(self, name: str, topic: str, seed: int) -> None:
        self._name = name
        self._topic = topic
        self._rng = random.Random(f"{seed}-{name}")
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.chunks: list[list[bytes]] = []
        self.answered = 0  # chunks, all before them too
        self.repeats = 0
        self.faults: list[str] = []

    def start(self, nsqd: Nsqd) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(nsqd.http_port,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publishes up to the last chunk it began, and ends."""
        self._stop.set()
        self.join()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(IO_TIMEOUT_S)
            assert not self._thread.is_alive(), self._name

    def _run(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=IO_TIMEOUT_S)
        number = max(self.answered - self._rng.randrange(STEP_BACK_MAX), 0)
        try:
            while number < len(self.chunks) or not self._stop.is_set():
                if number == len(self.chunks):
                    self.chunks.append(self._chunk(number))
                self.repeats += number < self.answered
                if not self._publish(connection, number):
                    return
                number += 1
                self.answered = max(self.answered, number)
        except (OSError, http.client.HTTPException):
            return  # the daemon is gone, with the answer to that chunk
        finally:
            connection.close()

    def _publish(self, connection: http.client.HTTPConnection, number: int) -> bool:
        messages = self.chunks[number]
        token = f"{self._name}:{number}"
        if len(messages) == 1:
            path = f"/pub?topic={quote(self._topic)}&token={token}"
            connection.request("POST", path, messages[0])
        else:
            path = f"/mpub?topic={quote(self._topic)}&binary=true&token={token}"
            connection.request("POST", path, mpub_body(messages))
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            self.faults.append(f"{token}: {response.status} {body!r}")
        return response.status == 200

    def _chunk(self, number: int) -> list[bytes]:
        count = self._rng.choice((1, 2, 5, 40))
        return [b"%s:%d:%d %s" % (self._name.encode(), number, n, PAD) for n in range(count)]


def everything_in(nsqd: Nsqd, topic: str) -> list[bytes]:
    """The bodies of all messages of a topic that has lost none to retention."""
    end = json.loads(get(nsqd, f"/log/offsets?topic={topic}").read())["end"]
    bodies: list[bytes] = []
    at = 0
    while at < end:
        answer = get(nsqd, f"/log/raw?topic={topic}&from={at}&to={end}")
        for batch in batches_in(answer.read()):
            bodies += [bytes(batch.cut(o, o + 1))[34:] for o in range(batch.first, batch.end)]
        at = int(answer.headers["X-Pumpline-To"])
    return bodies


def get(nsqd: Nsqd, path: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", nsqd.http_port, timeout=IO_TIMEOUT_S)
    connection.request("GET", path, headers={"Connection": "close"})
    response = connection.getresponse()
    assert response.status == 200, (path, response.read())
    return response


def check_once(nsqd: Nsqd, topic: str, repeaters: list[Repeater]) -> None:
    faults = [fault for repeater in repeaters for fault in repeater.faults]
    assert not faults, faults[:10]
    sent = sorted(body for each in repeaters for chunk in each.chunks for body in chunk)
    found = sorted(everything_in(nsqd, topic))
    assert found == sent, (
        f"{len(found)} messages instead of {len(sent)}: {differences(found, sent)}"
    )
    assert sum(each.repeats for each in repeaters), "nothing was repeated: nothing was tested"


def differences(found: list[bytes], sent: list[bytes]) -> dict[bytes, int]:
    """How often too often a message is there, of the first few."""
    counts = dict.fromkeys(sent, -1)
    for body in found:
        counts[body] = counts.get(body, 0) + 1
    return {body: count for body, count in list(counts.items()) if count}
