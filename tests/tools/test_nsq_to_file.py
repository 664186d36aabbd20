"""nsq_to_file: file names, contents, rotation and signals, as NSQ's tool does it, and its faults.

Names and contents are those of NSQ 1.3.0's tool for the same flags, but where a test is marked
`deviation`.
"""

import gzip
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname

import cramjam
import pytest

from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.nsq_tools import RunningTool, last_line, run_tool

HOST = gethostname().partition(".")[0]
FIXED = "--datetime-format=fixed"


def publish(nsqd: Nsqd, topic: str, *bodies: str) -> None:
    # The channel first: what was published before it exists would reach it as well, but not all
    # at once.
    nsqd.http("POST", f"/topic/create?topic={topic}")
    nsqd.http("POST", f"/channel/create?topic={topic}&channel=nsq_to_file")
    with nsqd.connect() as client:
        client.mpub(topic, [body.encode() for body in bodies])


def is_all_finished(nsqd: Nsqd, topic: str) -> bool:
    channel = nsqd.channel_stats(topic, "nsq_to_file")
    return bool(channel) and channel["depth"] == channel["in_flight_count"] == 0


def plain(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    return bytes(cramjam.zstd.decompress(data)) if path.suffix == ".zst" else data


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): plain(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@contextmanager
def running(nsqd: Nsqd, topic: str, directory: Path, *flags: str) -> Iterator[RunningTool]:
    with RunningTool(
        "nsq_to_file",
        f"--topic={topic}",
        f"--nsqd-tcp-address={nsqd.tcp_address}",
        f"--output-dir={directory / 'out'}",
        FIXED,
        *flags,
        directory=directory,
    ) as tool:
        yield tool


def written(nsqd: Nsqd, topic: str, directory: Path, *flags: str) -> dict[str, bytes]:
    """The files after all messages were finished and the tool was told to stop."""
    with running(nsqd, topic, directory, "--sync-interval=50ms", *flags) as tool:
        wait_until(lambda: is_all_finished(nsqd, topic))
        assert tool.stop() == 0, tool.stderr
    return contents(directory / "out")


@pytest.mark.parametrize(
    ("flags", "files"),
    [
        ((), {"{t}.{h}.fixed.log": b"1111\n2222\n3333\n4444\n"}),
        (("--gzip",), {"{t}.{h}-000000.fixed.log.gz": b"1111\n2222\n3333\n4444\n"}),
        (
            ("--gzip", "--gzip-level=9", "--filename-format=<TOPIC><REV>.gz"),
            {"{t}-000000.gz": b"1111\n2222\n3333\n4444\n"},
        ),
        (
            ("--rotate-size=6", "--skip-empty-files"),
            {
                "{t}.{h}-000000.fixed.log": b"1111\n2222\n",
                "{t}.{h}-000001.fixed.log": b"3333\n4444\n",
            },
        ),
        (
            ("--host-identifier=x-<SHORT_HOST>-<HOSTNAME>", "--filename-format=<HOST>/<TOPIC>"),
            {"x-{h}-{full}/{t}": b"1111\n2222\n3333\n4444\n"},
        ),
        (
            ("--datetime-format=%Q-%%-%j", "--filename-format=<DATETIME>"),
            {"%Q-%-%j": b"1111\n2222\n3333\n4444\n"},
        ),
    ],
)
def test_files_have_the_names_and_contents_of_nsqs_tool(
    nsqd: Nsqd, topic: str, tmp_path: Path, flags: tuple[str, ...], files: dict[str, bytes]
) -> None:
    publish(nsqd, topic, "1111", "2222", "3333", "4444")
    expected = {
        name.format(t=topic, h=HOST, full=gethostname()): body for name, body in files.items()
    }
    assert written(nsqd, topic, tmp_path, *flags) == expected


def test_a_file_that_is_there_is_appended_to_and_a_new_one_has_the_next_revision(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    for body in ("first", "second"):
        publish(nsqd, topic, body)
        written(nsqd, topic, tmp_path)
        publish(nsqd, topic, body)
        written(nsqd, topic, tmp_path, "--gzip")
    assert contents(tmp_path / "out") == {
        f"{topic}.{HOST}.fixed.log": b"first\nsecond\n",
        f"{topic}.{HOST}-000000.fixed.log.gz": b"first\n",
        f"{topic}.{HOST}-000001.fixed.log.gz": b"second\n",
    }


def test_a_file_that_is_open_for_the_interval_is_followed_by_another(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, "one")
    flags = ("--rotate-interval=10ms", "--sync-interval=20ms", "--skip-empty-files")
    with running(nsqd, topic, tmp_path, *flags) as tool:
        tool.wait_for("since last open, rotating")
        publish(nsqd, topic, "two")
        wait_until(lambda: len(contents(tmp_path / "out")) == 2)
        assert tool.stop() == 0
    assert contents(tmp_path / "out") == {
        f"{topic}.{HOST}-000000.fixed.log": b"one\n",
        f"{topic}.{HOST}-000001.fixed.log": b"two\n",
    }


@pytest.mark.deviation
def test_records_are_seen_before_they_are_synced(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, "one", "two")
    with running(nsqd, topic, tmp_path, "--sync-interval=1h") as tool:
        path = tmp_path / "out" / f"{topic}.{HOST}.fixed.log"
        wait_until(lambda: path.exists() and path.read_bytes() == b"one\ntwo\n")
        assert nsqd.channel_stats(topic, "nsq_to_file")["in_flight_count"] == 2
        assert tool.stop() == 0
    assert is_all_finished(nsqd, topic)


@pytest.mark.deviation
def test_a_full_window_is_synced_at_once(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, *map(str, range(10)))
    with running(nsqd, topic, tmp_path, "--sync-interval=1h", "--max-in-flight=5") as tool:
        wait_until(lambda: is_all_finished(nsqd, topic))
        assert tool.stop(signal.SIGINT) == 0


@pytest.mark.deviation
def test_there_is_no_file_before_there_is_a_message(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    with running(nsqd, topic, tmp_path, "--sync-interval=5ms", "--gzip") as tool:
        wait_until(lambda: nsqd.channel_stats(topic, "nsq_to_file").get("client_count"))
        tool.hang_up()  # and then there would be one, at the latest
        assert tool.stop() == 0
    assert contents(tmp_path).keys() == {"nsq_to_file.stdout", "nsq_to_file.stderr"}


@pytest.mark.deviation
@pytest.mark.parametrize("compression", [(), ("--gzip",), ("--zstd",)])
def test_a_hangup_completes_the_file_in_the_working_directory(
    nsqd: Nsqd, topic: str, tmp_path: Path, compression: tuple[str, ...]
) -> None:
    publish(nsqd, topic, "one")
    work = tmp_path / "work"
    with running(nsqd, topic, tmp_path, f"--work-dir={work}", *compression) as tool:
        wait_until(lambda: work.exists() and os.listdir(work))
        tool.hang_up()
        wait_until(lambda: list((tmp_path / "out").glob("*")))
        assert list(contents(tmp_path / "out").values()) == [b"one\n"]
        publish(nsqd, topic, "two")
        tool.wait_for("-000001.fixed")
        assert tool.stop() == 0
    assert list(contents(tmp_path / "out").values()) == [b"one\n", b"two\n"]
    assert contents(work) == {}


@pytest.mark.deviation
def test_the_working_directory_may_be_on_another_file_system(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is only one file system to write to")
    publish(nsqd, topic, "one")
    work = memory / f"pumpline-{os.getpid()}-{topic}"
    (tmp_path / "out").mkdir()
    taken = tmp_path / "out" / f"{topic}.{HOST}-000000.fixed.log"
    taken.write_bytes(b"not ours\n")
    try:
        assert written(nsqd, topic, tmp_path, f"--work-dir={work}") == {
            f"{topic}.{HOST}-000000.fixed.log": b"not ours\n",
            f"{topic}.{HOST}-000001.fixed.log": b"one\n",
        }
        assert contents(work) == {}
    finally:
        work.rmdir()


@pytest.mark.deviation
def test_messages_are_touched_until_they_are_synced(topic: str, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--msg-timeout=200ms"]) as nsqd:
        publish(nsqd, topic, "one", "two")
        with running(nsqd, topic, tmp_path, "--sync-interval=1200ms") as tool:
            wait_until(lambda: is_all_finished(nsqd, topic))
            assert nsqd.channel_stats(topic, "nsq_to_file")["timeout_count"] == 0
            assert tool.stop() == 0
    assert list(contents(tmp_path / "out").values()) == [b"one\ntwo\n"]


@pytest.mark.deviation
def test_a_sync_does_not_wait_longer_than_nsqd_does(topic: str, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", ["--msg-timeout=1s", "--max-msg-timeout=2s"]) as nsqd:
        publish(nsqd, topic, "one", "two")
        with running(nsqd, topic, tmp_path, "--sync-interval=1h"):
            wait_until(lambda: is_all_finished(nsqd, topic))
            assert nsqd.channel_stats(topic, "nsq_to_file")["timeout_count"] == 0


@pytest.mark.deviation
@pytest.mark.parametrize("compression", [(), ("--gzip",)])
def test_what_a_lost_nsqd_delivers_again_is_in_the_files_once(
    own_nsqd: Nsqd, topic: str, tmp_path: Path, compression: tuple[str, ...]
) -> None:
    bodies = [f"message {number}" for number in range(20)]
    publish(own_nsqd, topic, *bodies)
    with running(own_nsqd, topic, tmp_path, "--sync-interval=1h", *compression) as tool:

        def is_held() -> bool:
            return own_nsqd.channel_stats(topic, "nsq_to_file")["in_flight_count"] == 20

        wait_until(is_held)
        own_nsqd.kill()
        tool.wait_for("will be delivered again")
        own_nsqd.start()
        wait_until(is_held)
        assert tool.stop() == 0
    (body,) = contents(tmp_path / "out").values()
    assert sorted(body.decode().splitlines()) == sorted(bodies)


@pytest.mark.deviation
def test_topics_of_a_pattern_are_found_at_once_and_given_up_when_deleted(tmp_path: Path) -> None:
    with Nsqlookupd(tmp_path / "nsqlookupd.stderr") as lookupd:
        flags = [
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
        ]
        with Nsqd(tmp_path / "data", flags) as nsqd:
            for topic in ("orders_a", "orders_b", "other"):
                publish(nsqd, topic, topic)
            wait_until(lambda: b"orders_b" in lookupd.http("GET", "/topics")[1])
            with RunningTool(
                "nsq_to_file",
                "--topic-pattern=ders_",
                f"--lookupd-http-address={lookupd.http_address}",
                f"--output-dir={tmp_path / 'out'}",
                "--topic-refresh=300ms",
                "--sync-interval=10ms",
                "--datetime-format=fixed",
                directory=tmp_path,
            ) as tool:
                wait_until(lambda: len(contents(tmp_path / "out")) == 2)
                publish(nsqd, "orders_c", "orders_c")
                wait_until(lambda: len(contents(tmp_path / "out")) == 3)
                wait_until(lambda: is_all_finished(nsqd, "orders_c"))
                nsqd.stop()  # it would make the topic again for the consumer
                lookupd.http("POST", "/topic/delete?topic=orders_a")
                tool.wait_for("topic orders_a is gone")
                assert tool.stop() == 0
    found = contents(tmp_path / "out")
    assert found == {f"orders_{x}.{HOST}.fixed.log": f"orders_{x}\n".encode() for x in "abc"}


@pytest.mark.deviation
def test_a_topic_of_a_pattern_that_is_deleted_while_its_nsqd_runs_does_not_come_back(
    tmp_path: Path,
) -> None:
    with Nsqlookupd(tmp_path / "nsqlookupd.stderr") as lookupd:
        flags = [
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
        ]
        with Nsqd(tmp_path / "data", flags) as nsqd:
            for topic in ("orders_a", "orders_b"):
                publish(nsqd, topic, "before")
            wait_until(lambda: b"orders_b" in lookupd.http("GET", "/topics")[1])
            with RunningTool(
                "nsq_to_file",
                "--topic-pattern=^orders_",
                f"--lookupd-http-address={lookupd.http_address}",
                f"--output-dir={tmp_path / 'out'}",
                "--topic-refresh=300ms",
                "--sync-interval=10ms",
                FIXED,
                directory=tmp_path,
            ) as tool:
                for topic in ("orders_a", "orders_b"):
                    wait_until(lambda topic=topic: is_all_finished(nsqd, topic))
                nsqd.http("POST", "/topic/delete?topic=orders_a")
                tool.wait_for("topic orders_a is gone")
                assert [each["topic_name"] for each in nsqd.stats()["topics"]] == ["orders_b"]
                for topic in ("orders_a", "orders_b"):  # one is made again, by whoever publishes
                    publish(nsqd, topic, "after")
                    wait_until(lambda topic=topic: is_all_finished(nsqd, topic))
                assert tool.stop() == 0
    found = contents(tmp_path / "out")
    assert found == {f"orders_{x}.{HOST}.fixed.log": b"before\nafter\n" for x in "ab"}


@pytest.mark.deviation
def test_binary_bodies_can_be_framed_by_their_length(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, "a\nb", "c")
    files = written(nsqd, topic, tmp_path, "--framing=length", "--zstd")
    assert files == {f"{topic}.{HOST}-000000.fixed.log.zst": b"\0\0\0\3a\nb\0\0\0\1c"}


@pytest.mark.deviation
def test_a_full_disk_ends_the_tool_and_nothing_is_finished(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    publish(nsqd, topic, "one")
    (tmp_path / "out").write_text("a file, where a directory should be")
    with running(nsqd, topic, tmp_path) as tool:
        assert tool.wait() == 1
        assert "Not a directory" in tool.stderr
    assert nsqd.channel_stats(topic, "nsq_to_file")["depth"] == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "--nsqd-tcp-address or --lookupd-http-address required."),
        ("--nsqd-tcp-address=127.0.0.1:1", "--topic or --topic-pattern required"),
        (
            "--nsqd-tcp-address=127.0.0.1:1 --lookupd-http-address=127.0.0.1:1 --topic=t",
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_told_as_nsqs_tool_does(flags: str, said: str) -> None:
    done = run_tool("nsq_to_file", *flags.split())
    assert (done.returncode, last_line(done.stderr)) == (1, said)


def test_the_log_has_the_prefix_and_the_level_that_were_asked_for(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    for level, is_told in (("info", True), ("error", False)):
        publish(nsqd, topic, "one")
        with running(
            nsqd,
            topic,
            tmp_path,
            f"--log-level={level}",
            "--log-prefix=<x> ",
            "--sync-interval=5ms",
        ) as tool:
            before = len(tool.stderr)
            wait_until(lambda: nsqd.channel_stats(topic, "nsq_to_file")["client_count"])
            wait_until(lambda: is_all_finished(nsqd, topic))
            assert tool.stop() == 0
            told = tool.stderr[before:]
        line = (
            r"^<x> \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: \[[^]]+\] syncing 1 records to disk$"
        )
        assert bool(re.search(line, told, re.MULTILINE)) == is_told, told


def test_the_version_begins_as_that_of_nsqs_tool() -> None:
    done = run_tool("nsq_to_file", "-version")
    assert re.match(rb"nsq_to_file v1\.3\.0\b", done.stdout)
