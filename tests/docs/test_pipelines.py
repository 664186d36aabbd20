"""docs/pipelines.md and the help texts: every command there is one that the pipelines take."""

import re
import shlex
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

import pytest

from pumpline.tools.pipeline import PIPELINES, USAGE, main
from pyspark_nsq.pipelines.running.command import unknown_flag

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def commands(text: str) -> list[list[str]]:
    joined = text.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines()]
    return [shlex.split(line)[2:] for line in lines if line.startswith("pumpline pipeline ")]


def page_commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [command for block in blocks for command in commands(block) if command != ["--help"]]


def test_the_page_has_every_pipeline() -> None:
    assert {command[0] for command in page_commands()} == set(PIPELINES)


@pytest.mark.parametrize("name", PIPELINES)
def test_commands_that_are_shown_are_taken(name: str) -> None:
    module = import_module(f"pyspark_nsq.pipelines.{name}")
    parser = ArgumentParser()
    module.arguments(parser)
    usage = [command for command in commands(USAGE) if "[arguments]" not in command]
    shown = [*page_commands(), *commands(module.EXAMPLES), *usage]
    mine = [command for command in shown if command[0] == name]
    assert len(mine) >= 2
    for command in mine:
        parser.parse_args(command[1:])


def test_help_tells_the_pipelines_and_a_wrong_name_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in PIPELINES)
    assert main(["achive"]) == 2
    assert "unknown pipeline: achive (did you mean archive?)\n" in capsys.readouterr().err
    assert main(["zzz"]) == 2
    assert "unknown pipeline: zzz\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["archive", "--tabel", "t"], "unknown flag --tabel: did you mean --table?"),
        (["archive", "--table=t", "--topics=a"], "unknown flag --topics: did you mean --topic?"),
        (["archive", "--table=t", "-once"], "unknown flag -once: did you mean --once?"),
        (["metrics", "--to_nsqd", "a:1"], "unknown flag --to_nsqd: did you mean --to-nsqd?"),
        (["replay", "--zzzzz"], "unknown flag --zzzzz\n"),
        (["replay"], "the following arguments are required: --to"),
        (["sql", "--max-rows", "many"], "argument --max-rows: invalid int value: 'many'"),
    ],
)
def test_a_wrong_flag_is_told_with_the_one_that_was_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 2
    assert f"pumpline pipeline {arguments[0]}: error: {said}" in capsys.readouterr().err


def test_sql_that_begins_with_a_dash_is_no_flag() -> None:
    parser = ArgumentParser()
    import_module("pyspark_nsq.pipelines.sql").arguments(parser)
    for given in (["-- all\nSELECT 1"], ["--", "--x"], ["--table=--x"], ["-"]):
        assert unknown_flag(parser, given) is None


@pytest.mark.parametrize("name", PIPELINES)
def test_each_pipeline_has_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main([name, "--help"])
    assert exited.value.code == 0
    assert f"usage: pumpline pipeline {name}" in capsys.readouterr().out
