"""`pumpline completion`: what the shells make of the scripts, and that no flag is forgotten."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from pumpline.testing import LocalNsqd
from pumpline.tools import completion
from pumpline.tools.pumpline import COMMANDS
from tests.kit.tools.verbs import Pumpline, examples_of, in_shell

BASH = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={index}
_pumpline
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
LINES = {
    "pumpline se": ["seek", "settings"],
    "pumpline seek orders --to": ["--to", "--token-file"],
    "pumpline deadletters show --li": ["--limit"],
    "pumpline deadletters l": ["list"],
    "pumpline recover --data": ["--data-path"],
    "pumpline completion z": ["zsh"],
    "/usr/bin/nsqd --max-msg-s": ["--max-msg-size"],
    "nsq_to_file --gzip-": ["--gzip-level"],
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By shell; each is made once, as it takes a second to read all tables of flags."""
    directory = tmp_path_factory.mktemp("completion")
    commands = completion.completed_commands()
    for shell, script in completion.SHELLS.items():
        (directory / shell).write_text(script(commands))
    return {shell: directory / shell for shell in completion.SHELLS}


@pytest.mark.parametrize("line", LINES)
def test_bash(scripts: dict[str, Path], line: str) -> None:
    words = line.split()
    said = in_shell(BASH.format(script=scripts["bash"], words=line, index=len(words) - 1))
    assert (said.err, said.out.split()) == ("", LINES[line])


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith("/")])
def test_fish(scripts: dict[str, Path], line: str) -> None:
    said = in_shell(f"fish -c 'source {scripts['fish']}; complete -C \"{line}\"'")
    assert [each.split("\t")[0] for each in said.out.splitlines()] == LINES[line]


NAMES = {
    "pumpline pause o": ["orders"],
    "pumpline seek orders b": ["billing"],
    "pumpline delete orders ": ["archive", "billing"],
}


@pytest.mark.slow
@pytest.mark.parametrize("line", NAMES)
def test_topics_and_channels(
    nsqd: LocalNsqd, scripts: dict[str, Path], tmp_path: Path, line: str
) -> None:
    nsqd.post("/topic/create?topic=orders")
    for channel in ("billing", "archive"):
        nsqd.post(f"/channel/create?topic=orders&channel={channel}")
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    said = in_shell(BASH.format(script=scripts["bash"], words=quoted, index=len(words) - 1))
    names = [each for each in said.out.split() if not each.startswith("-")]
    assert names == NAMES[line]
    if shutil.which("fish"):
        program = tmp_path / "pumpline"
        main = f'exec {sys.executable} -m pumpline.tools.pumpline "$@"'
        program.write_text(f"#!/bin/sh\n{main}\n")
        program.chmod(0o755)
        script = f"fish -c 'source {scripts['fish']}; complete -C \"{line}\"'"
        said = in_shell(script, PATH=f"{tmp_path}:{os.environ['PATH']}")
        assert [each.split("\t")[0] for each in said.out.splitlines()] == NAMES[line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_sound(pumpline: Pumpline, scripts: dict[str, Path], shell: str) -> None:
    said = pumpline("completion", shell)
    assert (said.code, said.out) == (0, scripts[shell].read_text())
    for name, each in completion.completed_commands().items():
        assert name in said.out
        assert all(flag.name in said.out for flag in each.flags)
    if shutil.which(shell):
        assert in_shell(f"{shell} -n {scripts[shell]}") == (0, "", "")


def test_every_command_with_a_table_has_flags() -> None:
    without = {name for name, each in completion.completed_commands().items() if not each.flags}
    assert without <= {"demo", "pipeline", "completion"}
    assert set(completion.OWN_NAMES.values()) <= COMMANDS.keys()


def test_examples_run(tmp_path: Path) -> None:
    for example in examples_of(completion.COMMAND.usage):
        assert in_shell(example, tmp_path).code == 0
    assert (tmp_path / "_pumpline").read_text().startswith("#compdef pumpline ")


def test_another_shell(pumpline: Pumpline) -> None:
    said = pumpline("completion", "tcsh")
    assert (said.code, "tcsh: it is one of bash, zsh, fish" in said.err) == (2, True)
