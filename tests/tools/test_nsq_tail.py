"""nsq_tail: what is printed, as recorded from NSQ 1.3.0's tool, its faults mended, and the log."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.nsq_tools import RunningTool, command_of, last_line, ours, run_tool


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=c")
    with nsqd.connect() as client:
        client.mpub(topic, bodies)


def tail(nsqd: Nsqd, topic: str, *flags: str) -> subprocess.CompletedProcess[bytes]:
    address = f"--nsqd-tcp-address={nsqd.tcp_address}"
    return run_tool("nsq_tail", f"--topic={topic}", "--channel=c", address, *flags)


def tail_log(nsqd: Nsqd, topic: str, *flags: str) -> list[bytes]:
    address = f"--nsqd-http-address={nsqd.http_address}"
    done = run_tool("nsq_tail", f"--topic={topic}", address, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        ((), b"one\ntwo\n\nlines\n"),
        (("-print-topic",), b"{t} | one\n{t} | two\n\nlines\n"),
    ],
)
def test_messages_are_printed_as_nsqs_tool_prints_them(
    nsqd: Nsqd, topic: str, flags: tuple[str, ...], printed: bytes
) -> None:
    publish(nsqd, topic, b"one", b"two\n\nlines")
    done = tail(nsqd, topic, "-n", "2", *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed.replace(b"{t}", topic.encode())
    assert f"Adding consumer for topic: {topic}\n" in done.stderr.decode()


@pytest.mark.deviation
def test_a_format_has_kcats_escapes(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"one", b"two\n\nlines")
    printed = tail(nsqd, topic, "-n=2", "--format=%t %s %S %a %% %o\\n").stdout
    expected = "{t} one 3 1 % -1\n{t} two\n\nlines 10 1 % -1\n".replace("{t}", topic)
    assert printed.decode() == expected


@pytest.mark.deviation
def test_n_counts_over_all_topics_and_what_was_printed_is_finished(nsqd: Nsqd, topic: str) -> None:
    other = f"{topic}_other"
    publish(nsqd, topic, b"one", b"two", b"three")
    publish(nsqd, other, b"one", b"two", b"three")
    done = tail(nsqd, topic, f"--topic={other}", "-n=4")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4)
    left = [nsqd.channel_stats(each, "c") for each in (topic, other)]
    assert sum(each["depth"] + each["in_flight_count"] for each in left) == 2


def test_the_channel_of_its_own_is_ephemeral(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    address = f"--nsqd-tcp-address={nsqd.tcp_address}"
    with RunningTool("nsq_tail", f"--topic={topic}", address, directory=tmp_path) as tool:

        def channels() -> list[str]:
            topics = nsqd.stats(topic)["topics"] or ()
            return [each["channel_name"] for found in topics for each in found["channels"]]

        (name,) = wait_until(channels)
        assert re.fullmatch(r"tail\d{6}#ephemeral", name)
        with nsqd.connect() as client:
            client.publish(topic, b"one")
        wait_until(lambda: tool.stdout == b"one\n")
        assert tool.stop(signal.SIGINT) == 0
        wait_until(lambda: not channels())


@pytest.mark.deviation
def test_a_message_is_printed_however_often_it_was_delivered(nsqd: Nsqd, topic: str) -> None:
    """go-nsq finishes it unprinted after five times; a slow pipe is enough for that."""
    publish(nsqd, topic, b"one")
    with nsqd.connect() as client:
        client.sub(topic, "c")
        client.rdy(1)
        for _ in range(7):
            client.req(client.read_message().id)
    assert tail(nsqd, topic, "-n=1", "--format=%s %a\\n").stdout.startswith(b"one ")


@pytest.mark.deviation
def test_json_lines_have_all_there_is_to_know(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"one", b"\xff")
    lines = [json.loads(line) for line in tail(nsqd, topic, "-n=2", "--json").stdout.splitlines()]
    assert [line["body"] for line in lines[:1]] == ["one"]
    assert lines[1]["body_base64"] == "/w=="
    assert lines[0].keys() == {"topic", "node", "offset", "id", "timestamp", "attempts", "body"}
    assert (lines[0]["node"], lines[0]["offset"]) == (nsqd.tcp_address, None)


@pytest.mark.deviation
def test_messages_without_the_text_are_left_out(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"one", b"two", b"another one")
    assert tail(nsqd, topic, "-n=2", "--contains=one").stdout == b"one\nanother one\n"
    assert tail_log(nsqd, topic, "--peek", "--contains=wo") == [b"two"]


@pytest.mark.deviation
@pytest.mark.parametrize("count", [1, 50_000], ids=["with nothing to write", "that is full"])
def test_a_closed_pipe_ends_it_quietly(nsqd: Nsqd, topic: str, count: int) -> None:
    publish(nsqd, topic, *(b"%d" % number for number in range(count)))
    flags = f"--topic={topic} --channel=c --nsqd-tcp-address={nsqd.tcp_address}"
    command = " ".join(command_of("nsq_tail"))
    shell = f"set -o pipefail; {command} {flags} | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"0\n")
    assert last_line(done.stderr) == f"Adding consumer for topic: {topic}"


@pytest.mark.deviation
def test_it_waits_for_an_nsqd_that_was_killed(own_nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(own_nsqd, topic, b"one")
    address = f"--nsqd-tcp-address={own_nsqd.tcp_address}"
    with RunningTool(
        "nsq_tail", f"--topic={topic}", "--channel=c", address, directory=tmp_path
    ) as tool:
        wait_until(lambda: tool.stdout == b"one\n")
        own_nsqd.kill()
        own_nsqd.start()
        publish(own_nsqd, topic, b"two")
        wait_until(lambda: tool.stdout.endswith(b"two\n"))
        assert tool.stop() == 0


@pytest.mark.deviation
@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ("--peek", range(5, 15)),
        ("--peek -n=3", range(12, 15)),
        ("--peek --from=beginning", range(15)),
        ("--peek --from=12", range(12, 15)),
        ("--from=3 --to=6", range(3, 6)),
        ("--from=beginning -n=2", range(2)),
        ("--from=2020-01-01T00:00:00Z --to=end", range(15)),
        ("--from=beginning --to=2020-01-01T00:00:00Z", range(0)),
        ("--peek --from=end", range(0)),
    ],
)
def test_the_log_is_read_without_a_channel(
    nsqd: Nsqd, topic: str, flags: str, shown: range
) -> None:
    with nsqd.connect() as client:
        client.mpub(topic, [b"%d" % number for number in range(15)])
    assert tail_log(nsqd, topic, *flags.split()) == [b"%d" % number for number in shown]
    assert nsqd.stats(topic)["topics"][0]["channels"] == []


@pytest.mark.deviation
def test_the_end_of_the_log_is_followed(own_nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(own_nsqd, topic, b"one")
    address = f"--nsqd-http-address={own_nsqd.http_address}"
    flags = (f"--topic={topic}", address, "--from=beginning", "--format=%o:%s\\n")
    with RunningTool("nsq_tail", *flags, directory=tmp_path) as tool:
        wait_until(lambda: tool.stdout == b"0:one\n")
        own_nsqd.kill()
        own_nsqd.start()
        publish(own_nsqd, topic, b"two")
        wait_until(lambda: tool.stdout == b"0:one\n1:two\n")
        assert tool.stop() == 0


@pytest.mark.deviation
def test_thousands_are_read_by_pages(nsqd: Nsqd, topic: str) -> None:
    bodies = [b"%d" % number for number in range(3_333)]
    with nsqd.connect() as client:
        client.mpub(topic, bodies)
    assert tail_log(nsqd, topic, "--peek", "--from=beginning") == bodies


@pytest.mark.deviation
def test_an_nsqd_without_the_topic_does_not_matter(
    nsqd: Nsqd, own_nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, b"one")
    both = [f"--nsqd-http-address={each.http_address}" for each in (own_nsqd, nsqd)]
    assert run_tool("nsq_tail", f"--topic={topic}", "--peek", *both).stdout == b"one\n"
    done = run_tool("nsq_tail", "--topic=nowhere", "--peek", *both)
    assert (done.returncode, last_line(done.stderr)) == (1, "no nsqd has a topic nowhere")
    flags = (f"--topic={topic}", "--from=beginning", *both)
    with RunningTool("nsq_tail", *flags, directory=tmp_path) as tool:  # it waits for the topic
        wait_until(lambda: tool.stdout == b"one\n")
        publish(own_nsqd, topic, b"two")
        wait_until(lambda: tool.stdout == b"one\ntwo\n")
        assert tool.stop() == 0


NSQD = "--nsqd-tcp-address=127.0.0.1:1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "--nsqd-tcp-address or --lookupd-http-address required"),
        ("--topic=t", "--nsqd-tcp-address or --lookupd-http-address required"),
        (NSQD, "--topic required"),
        (
            f"--topic=t {NSQD} --lookupd-http-address=127.0.0.1:1",
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (f"--topic=t {NSQD}", "dial tcp 127.0.0.1:1: connect: connection refused"),
        (f"--topic=t! {NSQD}", "invalid topic name"),
        (f"--topic=t --channel=! {NSQD}", "invalid channel name"),
        ours(
            "--topic=t --peek",
            "--from, --to and --peek need --nsqd-http-address or --lookupd-http-address",
        ),
        ours(
            "--topic=t --from=yesterday --nsqd-http-address=127.0.0.1:1",
            "--from should be beginning, end, an offset or a time in RFC 3339",
        ),
        ours(
            "--topic=t --from=² --nsqd-http-address=127.0.0.1:1",
            "--from should be beginning, end, an offset or a time in RFC 3339",
        ),
        ours(
            "--topic=t --peek --nsqd-http-address=here",
            "'here' is no address: expected <host>:<port>",
        ),
        ours(f"--topic=t {NSQD} --format=%s%", "--format ends in %"),
    ],
)
def test_flags_that_cannot_work_are_told(flags: str, said: str) -> None:
    done = run_tool("nsq_tail", *flags.split())
    assert (done.returncode, last_line(done.stderr)) == (1, said)


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ("foo", "invalid option foo"),
        (
            "heartbeat_interval,5",
            'failed to coerce option heartbeat_interval (5) - time: missing unit in duration "5"',
        ),
        (
            "snappy,maybe",
            "failed to coerce option snappy (maybe) - "
            'strconv.ParseBool: parsing "maybe": invalid syntax',
        ),
        ("sample_rate,100", "invalid sample_rate ! 100 > 99"),
        ("tls_min_version,ssl9", "ERROR: ssl9 is not a tls version"),
        (
            "tls_root_ca_file,/nope",
            "ERROR: failed to read custom Certificate Authority file "
            "open /nope: no such file or directory",
        ),
    ],
)
def test_options_of_the_consumer_are_checked_in_go_nsqs_words(option: str, fault: str) -> None:
    done = run_tool("nsq_tail", f"--consumer-opt={option}")
    first = done.stderr.decode().splitlines()[0]
    assert done.returncode == 2
    assert first == f'invalid value "{option}" for flag -consumer-opt: {fault}'


@pytest.mark.deviation
def test_options_of_the_consumer_reach_nsqd(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    opts = ("client_id,me", "user-agent,tail/1", "deflate", "msg_timeout,7s", "sample_rate,99")
    flags = [f"--consumer-opt={each}" for each in opts]
    address = f"--nsqd-tcp-address={nsqd.tcp_address}"
    with RunningTool(
        "nsq_tail", f"--topic={topic}", "--channel=c", address, *flags, directory=tmp_path
    ) as tool:
        wait_until(lambda: nsqd.channel_stats(topic, "c").get("clients"))
        (client,) = nsqd.channel_stats(topic, "c")["clients"]
        assert tool.stop() == 0
    seen = {key: client[key] for key in ("client_id", "user_agent", "deflate", "sample_rate")}
    assert seen == {
        "client_id": "me",
        "user_agent": "tail/1",
        "deflate": True,
        "sample_rate": 99,
    }
