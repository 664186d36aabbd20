"""The nsqd command: what it prints, where, and how it exits, run as a real process."""

import json
import logging
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pumpline import __version__
from pumpline.core.text.lines import Lines
from pumpline.tools.log_lines import JsonFormatter, LineFormatter

TIMEOUT_S = 60
LINE = re.compile(r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} ([A-Z]+): (.*)")

# Serves nothing: stands where the broker does, so that only the daemon's own part is seen.
DAEMON = """
    import sys
    from pumpline.core.text.flags import LogLevel
    from pumpline.tools.daemon import log_to_stderr
    from pumpline.tools.log_lines import LineFormatter
    from pumpline.tools.serving import run_server
    from pumpline.web.sockets import StartupError

    class Server:
        async def start(self) -> None:
            {body}

        async def close(self) -> None:
            print("closed", file=sys.stderr)

        def reload(self) -> bool:
            return False

    log_to_stderr(LineFormatter("[nsqd] "), LogLevel.INFO)
    sys.exit(run_server("nsqd", Server))
"""


def run_nsqd(*argv: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pumpline.tools.nsqd", *argv],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def start_daemon(body: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DAEMON).format(body=body)],
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_of(text: str) -> list[tuple[str, str]]:
    """Level and text of each log line; any other line fails."""
    matches = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(matches), text
    return [(match[1], match[2]) for match in matches if match]


@pytest.mark.parametrize("flag", ["-version", "--version", "--version=true"])
def test_version_begins_as_nsqds_does(tmp_path: Path, flag: str) -> None:
    done = run_nsqd(flag, cwd=tmp_path, PUMPLINE_KERNELS="python")
    build = f"pumpline-{__version__}-python{platform.python_version()}-kernels-python"
    assert done.stdout == f"nsqd v1.3.0 (built w/{build})\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_the_log_begins_with_the_version_and_the_kernels(tmp_path: Path) -> None:
    done = run_nsqd("--data-path=/nowhere", cwd=tmp_path, PUMPLINE_KERNELS="python")
    (_, version), *_ = lines_of(done.stderr)
    assert version.startswith("nsqd v1.3.0 (built w/pumpline-")
    assert version.endswith("-kernels-python)")


def test_help_goes_to_stdout_with_every_flag_and_examples(tmp_path: Path) -> None:
    done = run_nsqd("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage of nsqd:\n")
    assert "--tcp-address string\n" in done.stdout
    assert "(default 24h0m0s)" in done.stdout
    assert "\nExamples:\n  nsqd " in done.stdout


def test_a_wrong_flag_is_named_before_the_usage_on_stderr(tmp_path: Path) -> None:
    done = run_nsqd("--no-such-flag", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("flag provided but not defined: -no-such-flag\nUsage of nsqd:\n")
    assert done.stderr.endswith("\nflag provided but not defined: -no-such-flag\n")


@pytest.mark.parametrize("wrong", ["--data-pth=x", "-data_path", "--Data-Path=x"])
def test_the_flag_that_was_probably_meant_is_named_last(tmp_path: Path, wrong: str) -> None:
    done = run_nsqd(wrong, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(": did you mean --data-path?\n")


def test_what_comes_after_the_flags_is_said_to_be_ignored(tmp_path: Path) -> None:
    done = run_nsqd("--config=missing.cfg", "--snappy", "false", "--data-path=x", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("nsqd: ignored, as NSQ does: false --data-path=x ")


def test_a_missing_config_file_is_one_fatal_line(tmp_path: Path) -> None:
    done = run_nsqd("--config=missing.cfg", cwd=tmp_path)
    assert done.returncode == 1
    assert lines_of(done.stderr) == [
        (
            "FATAL",
            "failed to load config file missing.cfg - open missing.cfg: no such file or directory",
        )
    ]


@pytest.mark.parametrize("content", [b"x = ", b"\xff"])
def test_a_broken_config_file_is_one_fatal_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.cfg").write_bytes(content)
    done = run_nsqd("--config=broken.cfg", cwd=tmp_path)
    assert done.returncode == 1
    ((level, text),) = lines_of(done.stderr)
    assert level == "FATAL"
    assert text.startswith("failed to load config file broken.cfg - toml: ")


def test_options_that_cannot_work_are_one_fatal_line(tmp_path: Path) -> None:
    (tmp_path / "nsqd.cfg").write_text("id = 2000\n")
    done = run_nsqd("--config=nsqd.cfg", cwd=tmp_path)
    assert done.returncode == 1
    assert lines_of(done.stderr) == [
        ("FATAL", "failed to instantiate nsqd - --node-id must be [0,1024)")
    ]


def test_a_data_path_that_cannot_be_is_one_fatal_line(tmp_path: Path) -> None:
    (tmp_path / "nsqd.cfg").write_text('data_path = "\\u0000"\n')
    done = run_nsqd("--config=nsqd.cfg", cwd=tmp_path)
    assert done.returncode == 1
    fault = "failed to instantiate nsqd - --data-path must not have a zero byte in it"
    assert lines_of(done.stderr) == [("FATAL", fault)]


def test_misspelt_keys_of_the_config_file_are_told_with_the_one_that_was_meant(
    tmp_path: Path,
) -> None:
    (tmp_path / "nsqd.cfg").write_text(
        "id = 2000\n"
        "max_mgs_size = 1\n"
        "max-body-size = 1\n"
        "Snappy = true\n"
        "node_id = 1\n"
        "lookupd_tcp_address = []\n"
        "verbose = true\n"
        "mem_queue_size = 10\n"
        '"x\\nFATAL: y" = 1\n'
        "[nsqd]\nmem_queue_size = 1\n"
    )
    done = run_nsqd("--config=nsqd.cfg", cwd=tmp_path)
    said = "config file: unknown key {} is ignored"
    meant = {
        "max_mgs_size": "max_msg_size",
        "max-body-size": "max_body_size",
        "Snappy": "snappy",
        "node_id": "id",
        "lookupd_tcp_address": "nsqlookupd_tcp_addresses",
    }
    assert lines_of(done.stderr) == [
        *(
            ("WARNING", f"{said.format(key)}: did you mean {better}?")
            for key, better in meant.items()
        ),
        ("WARNING", said.format("x\\nFATAL: y")),
        ("WARNING", said.format("nsqd")),
        ("FATAL", "failed to instantiate nsqd - --node-id must be [0,1024)"),
    ]


def test_what_clients_say_cannot_forge_a_log_line() -> None:
    formatter = LineFormatter("[nsqd] ")
    evil = "x\n[nsqd] FATAL: bye\r\x1b[31m\u2028\x00 ü"
    shown = r"x\n[nsqd] FATAL: bye\r\x1b[31m\u2028\x00 ü"
    for message in (evil, Lines([evil])):
        record = logging.makeLogRecord({"msg": message, "levelno": logging.INFO})
        assert formatter.format(record).endswith(": " + shown)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_stop_ends_the_daemon_with_exit_code_0(number: signal.Signals) -> None:
    with start_daemon("print('up', file=sys.stderr, flush=True)") as daemon:
        assert daemon.stderr
        assert "event loop: " in daemon.stderr.readline()
        assert daemon.stderr.readline() == "up\n"
        daemon.send_signal(number)
        _, rest = daemon.communicate(timeout=TIMEOUT_S)
    assert daemon.returncode == 0
    *lines, last = rest.splitlines()
    assert lines_of("\n".join(lines)) == [("INFO", f"{number.name} received, stopping")]
    assert last == "closed"


def test_a_hangup_is_logged_and_ignored() -> None:
    with start_daemon("print('up', file=sys.stderr, flush=True)") as daemon:
        assert daemon.stderr
        daemon.stderr.readline()
        assert daemon.stderr.readline() == "up\n"
        daemon.send_signal(signal.SIGHUP)
        assert lines_of(daemon.stderr.readline()) == [("INFO", "SIGHUP received, ignored")]
        daemon.send_signal(signal.SIGTERM)
        daemon.communicate(timeout=TIMEOUT_S)
    assert daemon.returncode == 0


def test_a_daemon_that_cannot_start_says_why_and_exits_with_1() -> None:
    with start_daemon("raise StartupError('failed to listen')") as daemon:
        _, text = daemon.communicate(timeout=TIMEOUT_S)
    assert daemon.returncode == 1
    *_, closed, last = text.splitlines()
    assert (closed, lines_of(last)) == ("closed", [("FATAL", "failed to listen")])


def test_an_unforeseen_error_is_fatal_and_shows_where() -> None:
    with start_daemon("raise ZeroDivisionError('seven')") as daemon:
        _, text = daemon.communicate(timeout=TIMEOUT_S)
    assert daemon.returncode == 1
    assert "FATAL: nsqd stopped by an unexpected error\nTraceback" in text
    assert "ZeroDivisionError: seven" in text


@pytest.mark.parametrize(
    ("level", "word"),
    [
        (logging.DEBUG, "DEBUG"),
        (logging.INFO, "INFO"),
        (logging.WARNING, "WARNING"),
        (logging.ERROR, "ERROR"),
        (logging.CRITICAL, "FATAL"),
    ],
)
def test_a_log_line_has_prefix_local_time_and_nsqs_word_for_the_level(
    level: int, word: str
) -> None:
    record = logging.LogRecord("pumpline", level, "", 0, "%d topics", (3,), None)
    record.created = 1_700_000_000.25
    line = LineFormatter("<p> ").format(record)
    assert re.fullmatch(rf"<p> 2023/11/1[45] \d\d:\d\d:20\.250000 {word}: 3 topics", line)


def test_lines_that_come_together_are_lines_of_their_own() -> None:
    record = logging.LogRecord("pumpline", logging.INFO, "", 0, Lines(("a", "b")), None, None)
    record.created = 1_700_000_000.999999
    first, second = LineFormatter("<p> ").format(record).splitlines()
    assert re.fullmatch(r"<p> 2023/11/1[45] \d\d:\d\d:20\.99999\d INFO: a", first)
    assert second == first[:-1] + "b"


def test_a_json_line_has_time_in_utc_level_program_and_message() -> None:
    record = logging.LogRecord("pumpline", logging.CRITICAL, "", 0, "%d topics", (3,), None)
    record.created = 1_700_000_000.25
    assert json.loads(JsonFormatter("nsqd").format(record)) == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "fatal",
        "program": "nsqd",
        "message": "3 topics",
    }


def test_json_lines_are_one_object_each_whatever_clients_say() -> None:
    evil = 'x"}\n{"level":"fatal"}\x1b[31m\udc80'
    record = logging.makeLogRecord({"msg": Lines([evil, "b"]), "levelno": logging.INFO})
    first, second = JsonFormatter("nsqd").format(record).split("\n")
    assert json.loads(first)["message"] == r'x"}\n{"level":"fatal"}\x1b[31m\x80'
    assert json.loads(second)["message"] == "b"


def test_a_json_line_has_the_traceback_in_it() -> None:
    try:
        raise ZeroDivisionError("seven")
    except ZeroDivisionError:
        record = logging.LogRecord("pumpline", logging.ERROR, "", 0, "bad", None, sys.exc_info())
    [line] = JsonFormatter("nsqd").format(record).splitlines()
    assert json.loads(line)["error"].endswith("ZeroDivisionError: seven")


@pytest.mark.parametrize("way", ["flag", "config"])
def test_the_log_is_json_when_asked_for(way: str, tmp_path: Path) -> None:
    config = tmp_path / "nsqd.cfg"
    config.write_text('log_format = "JSON"\n' if way == "config" else "")
    chosen = ["--log-format=json"] if way == "flag" else []
    done = run_nsqd(*chosen, f"--config={config}", "--data-path=/nowhere", cwd=tmp_path)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["program"] for line in lines} == {"nsqd"}
    assert lines[-1]["level"] == "fatal"


def test_an_unknown_log_format_is_a_usage_error(tmp_path: Path) -> None:
    done = run_nsqd("--log-format=xml", cwd=tmp_path)
    assert done.returncode == 2
    assert "invalid log format 'xml' (text, json)" in done.stderr.splitlines()[-1]
