"""What the help says works when typed: every example passes all checks that come before Spark, and
what is wrong is told before Spark starts. Needs no Java."""

import os
import shlex
from pathlib import Path

import pytest

from pumpline.tools.pipeline import usage
from pyspark_nsq.pipelines import archive, metrics, replay, sql, transform
from pyspark_nsq.pipelines.running import command
from tests.kit.daemons import Nsqd, Nsqlookupd

PIPELINES = {
    "archive": archive,
    "metrics": metrics,
    "replay": replay,
    "sql": sql,
    "transform": transform,
}
TEXTS = {"pipeline --help": usage(), **{name: p.EXAMPLES for name, p in PIPELINES.items()}}


def examples() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for whence, text in TEXTS.items():
        for line in text.replace("\\\n", " ").splitlines():
            if line.startswith("  pumpline pipeline "):
                found.append((whence, line.strip()))
    return found


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("whence", "typed"), examples())
def test_every_example_of_the_help_gets_as_far_as_spark(
    whence: str,
    typed: str,
    nsqd: Nsqd,
    nsqlookupd: Nsqlookupd,
    no_java: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = typed.replace("127.0.0.1:4151", nsqd.http_address)
    typed = typed.replace("127.0.0.1:4161", nsqlookupd.http_address)
    name, *arguments = shlex.split(typed)[2:]
    assert command.main(PIPELINES[name], arguments) == command.EXIT_FAILED
    assert "Spark needs Java 17 or newer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pipeline", "flag"),
    [
        (archive, "--every"),
        (archive, "--watermark"),
        (transform, "--every"),
        (metrics, "--window"),
    ],
)
@pytest.mark.parametrize("text", ["10s", "soon", "", "seconds", "5", "-1 seconds"])
def test_a_time_that_spark_does_not_know_is_told_before_spark_starts(
    pipeline: object, flag: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(pipeline, [f"{flag}={text}"])  # type: ignore[arg-type]
    assert ended.value.code == 2
    said = f"argument {flag}: '{text}' is not a time like '10 seconds' or '1 minute'"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["10 seconds", "1 Minute", "0 seconds", "0.5 seconds", "interval 1 hour 30 minutes"]
)
def test_times_as_spark_writes_them_are_taken(text: str) -> None:
    assert command.duration(text) == text


@pytest.mark.parametrize(
    "flags",
    [("--topic=t", "--to=t"), ("--topic=s,t", "--to=t"), ("--topic-pattern=.*", "--to=t")],
)
def test_a_transform_of_a_topic_into_itself_is_refused(
    nsqd: Nsqd, no_java: None, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [f"--nsqd={nsqd.http_address}", *flags, "--checkpoint=c", "--sql=SELECT * FROM input"]
    assert command.main(transform, asked) == command.EXIT_FAILED
    assert "topic t is read and written" in capsys.readouterr().err


def test_tables_are_as_wide_as_they_have_to_be_in_a_pipe() -> None:
    ours, theirs = os.pipe()
    with open(ours) as read, open(theirs, "w") as write:
        command.console(write).print("x" * 1000)
        write.close()
        assert read.read() == "x" * 1000 + "\n"
