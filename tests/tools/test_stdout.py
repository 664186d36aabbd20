"""stdout of every command: what is printed arrives whole or is an error, and what was not printed
is not finished. Nobody's pipe or terminal is made non-blocking."""

import os
import pty
import re
import select
import signal
import socket
import subprocess
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import last_line
from tests.kit.tools.stdout import (
    TIMEOUT_S,
    SmallPipe,
    read_slowly,
    run_into,
    run_into_file,
    running,
    stderr_of,
    wait_until_asleep,
    words_of,
)

pytestmark = pytest.mark.deviation

BODIES = [b"%06d " % number + b"x" * 33 for number in range(2_000)]
LARGE_BODIES = [b"%06d " % number + b"y" * 20_000 for number in range(20)]
CHANNELS, TOPICS = 150, 60
CROWDED = "crowded"  # a topic with many channels

TAIL = "nsq_tail --topic={topic} --channel=c -n={count} --nsqd-tcp-address={tcp}"
PEEK = "nsq_tail --topic={topic} --peek --from=beginning --nsqd-http-address={http}"
STAT = (
    f"nsq_stat --topic={CROWDED} --all-channels --json --interval=10ms --nsqd-http-address={{http}}"
)
VERBS = [
    "pumpline topics --nsqd={http}",
    f"pumpline channels {CROWDED} --nsqd={{http}}",
    f"pumpline channels {CROWDED} --table --nsqd={{http}}",
    "pumpline top --once --interval=100ms --nsqd={http}",
    "pumpline completion bash",
]
SMALL_VERBS = [
    "pumpline deadletters --nsqd={http}",
    "pumpline recover --data-path={data}",
    f"pumpline settings {CROWDED} --nsqd={{http}}",
    "pumpline doctor --nsqd={http}",
    "pumpline doctor --table --nsqd={http}",
]
SINGLE = [
    "pumpline --help",
    "pumpline --version",
    "pumpline up --help",
    "pumpline demo --help",
    "pumpline pipeline --help",
    "pumpline topics --help",
    "nsq_tail --help",
    "to_nsq --version",
    "nsqd --help",
    "nsqd --version",
    "nsqlookupd --version",
    "nsqadmin --version",
]
FINITE = [TAIL, PEEK, f"{STAT} --count=3", *VERBS]
NO_TRACE = ("Traceback", "Exception", "Error", "Broken")


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("crowded") / "data") as nsqd:
        create(nsqd, CROWDED, *(f"channel-{number}" for number in range(CHANNELS)))
        for number in range(TOPICS):
            create(nsqd, f"topic-{number}")
        yield nsqd


def create(nsqd: Nsqd, topic: str, *channels: str) -> None:
    assert nsqd.http("POST", f"/topic/create?topic={topic}")[0] == 200
    for channel in channels:
        assert nsqd.http("POST", f"/channel/create?topic={topic}&channel={channel}")[0] == 200


def filled(nsqd: Nsqd, command: str, topic: str, bodies: list[bytes] = BODIES) -> str:
    """The command, after its topic has got its messages, for a channel c."""
    if "{topic}" in command:
        create(nsqd, topic, "c", "late")
        with nsqd.connect() as client:
            client.mpub(topic, bodies)
    return command.format(
        topic=topic,
        count=len(bodies),
        tcp=nsqd.tcp_address,
        http=nsqd.http_address,
        data=nsqd.data_path,
    )


def without_figures(output: bytes) -> bytes:
    """The same in two runs: without times, rates, and topics of other tests."""
    lines = [line for line in output.splitlines() if b"tools_" not in line]
    return re.sub(rb"\d+(\.\d+)?", b"0", b"\n".join(lines))


def printed_by(command: str, output: bytes) -> bytes:
    return output if "nsq_tail" in command else without_figures(output)


def unfinished(nsqd: Nsqd, topic: str) -> int:
    """Messages that the next consumer gets."""
    wait_until(lambda: nsqd.channel_stats(topic, "c")["in_flight_count"] == 0)
    return int(nsqd.channel_stats(topic, "c")["depth"])


@pytest.mark.parametrize("bodies", [BODIES, LARGE_BODIES], ids=["small", "large"])
@pytest.mark.parametrize("is_blocking", [True, False], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("command", [TAIL, PEEK])
def test_messages_arrive_whole_in_a_pipe_that_is_read_late_and_slowly(
    crowded: Nsqd, topic: str, tmp_path: Path, command: str, is_blocking: bool, bodies: list[bytes]
) -> None:
    line = filled(crowded, command, topic, bodies)
    with SmallPipe(is_blocking=is_blocking) as pipe, running(line, pipe.writer, tmp_path) as tool:
        wait_until(lambda: pipe.waiting_bytes or tool.poll() is not None)
        output = read_slowly(pipe.reader, tool)
        assert (tool.wait(TIMEOUT_S), os.get_blocking(pipe.writer)) == (0, is_blocking)
    assert output == b"".join(body + b"\n" for body in bodies), stderr_of(tmp_path)
    if command == TAIL:
        assert unfinished(crowded, topic) == 0


@pytest.mark.parametrize("is_blocking", [True, False], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("command", [f"{STAT} --count=3", *VERBS])
def test_tables_and_json_arrive_whole_in_a_pipe_that_is_read_late_and_slowly(
    crowded: Nsqd, topic: str, tmp_path: Path, command: str, is_blocking: bool
) -> None:
    line = filled(crowded, command, topic)
    expected = run_into_file(line, tmp_path)
    assert len(expected.out) > 4096, "it would fit into the pipe"
    with SmallPipe(is_blocking=is_blocking) as pipe, running(line, pipe.writer, tmp_path) as tool:
        wait_until(lambda: pipe.waiting_bytes or tool.poll() is not None)
        output = read_slowly(pipe.reader, tool)
        assert (tool.wait(TIMEOUT_S), os.get_blocking(pipe.writer)) == (0, is_blocking)
    assert without_figures(output) == without_figures(expected.out), stderr_of(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", [TAIL, PEEK, STAT, *VERBS])
def test_a_full_pipe_is_waited_for_and_a_signal_ends_the_wait(
    crowded: Nsqd, topic: str, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    line = filled(crowded, command, topic)
    with SmallPipe() as pipe, running(line, pipe.writer, tmp_path) as tool:
        wait_until(lambda: pipe.waiting_bytes)
        wait_until_asleep(tool)
        tool.send_signal(number)
        code = tool.wait(TIMEOUT_S)
        assert os.get_blocking(pipe.writer)
    ends = {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 130}  # of what has nothing to finish
    assert code == (ends[number] if line.startswith("pumpline") else 0)
    assert not any(word in stderr_of(tmp_path) for word in NO_TRACE), stderr_of(tmp_path)


@pytest.mark.parametrize("bodies", [BODIES, LARGE_BODIES], ids=["small", "large"])
def test_what_did_not_fit_into_a_full_pipe_goes_to_the_next_consumer(
    crowded: Nsqd, topic: str, tmp_path: Path, bodies: list[bytes]
) -> None:
    line = filled(crowded, TAIL, topic, bodies)
    with SmallPipe() as pipe, running(line, pipe.writer, tmp_path) as tool:
        wait_until(lambda: pipe.waiting_bytes)
        wait_until_asleep(tool)
        tool.terminate()
        assert tool.wait(TIMEOUT_S) == 0
        first = os.read(pipe.reader, pipe.waiting_bytes)
    if bodies is BODIES:
        assert first.endswith(b"x\n"), "a small message is printed whole or not at all"
    left = unfinished(crowded, topic)
    next_one = TAIL.format(topic=topic, count=left, tcp=crowded.tcp_address)
    second = run_into_file(next_one, tmp_path).out
    assert len(second.splitlines()) == left
    whole = first[: first.rfind(b"\n") + 1] + second
    assert sorted(set(whole.splitlines())) == bodies
    assert left > 0


def test_a_reader_that_goes_on_reading_gets_all_and_each_message_once(
    crowded: Nsqd, topic: str, tmp_path: Path
) -> None:
    """Messages stay in flight while the pipe is full, for longer than their timeout."""
    line = filled(crowded, TAIL + " --consumer-opt=msg_timeout,1s", topic)
    with SmallPipe() as pipe, running(line, pipe.writer, tmp_path) as tool:
        wait_until(lambda: pipe.waiting_bytes)
        # A message that is not touched times out after this one, which came later.
        with crowded.connect() as other:
            other.identify({"msg_timeout": 1500})
            other.sub(topic, "late")
            other.rdy(1)
            other.read_message()
            wait_until(lambda: crowded.channel_stats(topic, "late")["timeout_count"])
        output = read_slowly(pipe.reader, tool)
        assert tool.wait(TIMEOUT_S) == 0
    assert output.splitlines() == BODIES
    assert crowded.channel_stats(topic, "c")["timeout_count"] == 0


@pytest.mark.parametrize("command", [*FINITE, *SMALL_VERBS, *SINGLE])
def test_a_pipe_without_a_reader_ends_it_quietly(
    crowded: Nsqd, topic: str, tmp_path: Path, command: str
) -> None:
    """With the exit code that it has otherwise; that of doctor says how the cluster is."""
    line = filled(crowded, command, topic)
    with SmallPipe() as pipe:
        pipe.close_reader()
        ended = run_into(line, pipe.writer, tmp_path)
    assert not any(word in ended.err for word in NO_TRACE), ended.err
    if command == TAIL:
        assert (ended.code, unfinished(crowded, topic)) == (0, len(BODIES))
    else:
        assert ended.code == run_into_file(line, tmp_path).code


@pytest.mark.parametrize("command", [TAIL.replace(" -n={count}", ""), STAT])
def test_a_reader_that_leaves_while_nothing_is_written_ends_it(
    crowded: Nsqd, topic: str, tmp_path: Path, command: str
) -> None:
    """As with `| head -n 1`: the rest of what was written is in the pipe, and no write fails."""
    line = filled(crowded, command, topic, [b"only one"]).replace("interval=10ms", "interval=1h")
    with SmallPipe() as pipe, running(line, pipe.writer, tmp_path) as tool:
        if command != STAT:
            wait_until(lambda: pipe.waiting_bytes)
        wait_until_asleep(tool)
        pipe.close_reader()
        assert tool.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("command", [*FINITE, *SMALL_VERBS, *SINGLE])
def test_a_full_disk_is_told_and_nothing_is_finished(
    crowded: Nsqd, topic: str, tmp_path: Path, command: str
) -> None:
    line = filled(crowded, command, topic)
    with open("/dev/full", "wb") as full:
        ended = run_into(line, full, tmp_path)
    assert ended.code == 1, ended.err
    assert last_line(ended.err.encode()).endswith("no space left on device"), ended.err
    assert not any(word in ended.err for word in NO_TRACE), ended.err
    if command == TAIL:
        assert unfinished(crowded, topic) == len(BODIES)


@pytest.mark.parametrize("command", FINITE)
def test_a_socket_and_a_file_get_every_byte(
    crowded: Nsqd, topic: str, tmp_path: Path, command: str
) -> None:
    ours, theirs = socket.socketpair()
    line = filled(crowded, command, topic)
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        with running(line, theirs.fileno(), tmp_path) as tool:
            output = read_slowly(ours.fileno(), tool)
            assert (tool.wait(TIMEOUT_S), os.get_blocking(theirs.fileno())) == (0, True)
    if command == TAIL:
        assert output.splitlines() == BODIES
    else:
        into_file = run_into_file(line, tmp_path)
        assert printed_by(command, output) == printed_by(command, into_file.out)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Ours and theirs; newlines stay as they are."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("command", [TAIL, PEEK])
def test_a_terminal_gets_every_byte(
    crowded: Nsqd, topic: str, tmp_path: Path, terminal: tuple[int, int], command: str
) -> None:
    line = filled(crowded, command, topic)
    with running(line, terminal[1], tmp_path) as tool:
        output = read_slowly(terminal[0], tool)
        assert tool.wait(TIMEOUT_S) == 0
    assert output.splitlines() == BODIES


@pytest.mark.parametrize(
    "command",
    [
        TAIL.replace(" -n={count}", ""),
        "nsq_tail --topic={topic} --from=beginning --nsqd-http-address={http}",
        STAT,
        "nsq_to_file --topic={topic} --output-dir=. --nsqd-tcp-address={tcp}",
        "nsq_to_http --topic={topic} --post=http://127.0.0.1:1 --nsqd-tcp-address={tcp}",
        "nsq_to_nsq --topic={topic} --destination-topic=tools_copy "
        "--destination-nsqd-tcp-address={tcp} --nsqd-tcp-address={tcp}",
        "to_nsq --topic={topic} --nsqd-tcp-address={tcp}",
        "pumpline top --nsqd={http}",
        "nsqlookupd --tcp-address=127.0.0.1:0 --http-address=127.0.0.1:0",
        "pumpline up --nsqd-tcp-address=127.0.0.1:0 --nsqd-http-address=127.0.0.1:0 "
        "--lookupd-tcp-address=127.0.0.1:0 --lookupd-http-address=127.0.0.1:0 "
        "--admin-http-address=127.0.0.1:0",
    ],
)
def test_the_terminal_stays_blocking_for_the_shell(
    crowded: Nsqd, topic: str, tmp_path: Path, terminal: tuple[int, int], command: str
) -> None:
    """stdin, stdout and stderr of a shell are one open file: a flag of one is a flag of all."""
    ours, theirs = terminal
    line = filled(crowded, command, topic, [b"one"])
    with subprocess.Popen(
        words_of(line),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
    ) as tool:
        wait_until_asleep(tool)  # also what writes without end, as nobody reads
        is_blocking_meanwhile = os.get_blocking(theirs)
        tool.terminate()
        read_slowly(ours, tool)
        tool.wait(TIMEOUT_S)
    assert (is_blocking_meanwhile, os.get_blocking(theirs)) == (True, True)


def test_up_says_that_it_cannot_print_and_serves_nobody(tmp_path: Path) -> None:
    line = "pumpline up --data-path=data " + " ".join(
        f"--{name}-address=127.0.0.1:0"
        for name in ("nsqd-tcp", "nsqd-http", "lookupd-tcp", "lookupd-http", "admin-http")
    )
    with open("/dev/full", "wb") as full:
        ended = run_into(line, full, tmp_path)
    assert ended.code == 1
    assert "pumpline up: failed to write to stdout: no space left on device" in ended.err
    assert not any(word in ended.err for word in NO_TRACE), ended.err
    with SmallPipe() as pipe:
        pipe.close_reader()
        ended = run_into(line, pipe.writer, tmp_path)
    assert ended.code == 0
    assert not any(word in ended.err for word in NO_TRACE), ended.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("command", [STAT, "pumpline top --nsqd={http}"])
def test_a_terminal_that_stands_still_does_not_keep_it(
    crowded: Nsqd, topic: str, tmp_path: Path, terminal: tuple[int, int], command: str, number: int
) -> None:
    """As after Ctrl-S."""
    _, theirs = terminal
    before = termios.tcgetattr(theirs)
    with subprocess.Popen(
        words_of(filled(crowded, command, topic)),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
    ) as tool:
        wait_until(lambda: not select.select([], [theirs], [], 0)[1])
        wait_until_asleep(tool)
        tool.send_signal(number)
        try:
            assert tool.wait(TIMEOUT_S) == 0
        finally:
            tool.kill()
    assert termios.tcgetattr(theirs) == before
