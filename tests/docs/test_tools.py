"""docs/tools.md: its examples print what it says, and it has every tool and every flag of ours."""

import shlex
import shutil
from pathlib import Path

import pytest

from pumpline.core.text import flags
from pumpline.tools.nsq_stat.command import NSQ_STAT
from pumpline.tools.nsq_tail.command import NSQ_TAIL
from pumpline.tools.nsq_to_file.command import NSQ_TO_FILE
from pumpline.tools.nsq_to_http.command import NSQ_TO_HTTP
from pumpline.tools.nsq_to_nsq.command import NSQ_TO_NSQ
from pumpline.tools.pumpline import NSQ_NAMES
from pumpline.tools.to_nsq.command import TO_NSQ
from pumpline.tools.tool import Tool
from tests.kit.pages import DOCS, Reader, steps_of

PAGE = (DOCS / "tools.md").read_text()
TOOLS = (NSQ_STAT, NSQ_TAIL, NSQ_TO_FILE, NSQ_TO_HTTP, NSQ_TO_NSQ, TO_NSQ)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_examples_print_what_the_page_says(tmp_path: Path) -> None:
    assert Reader(tmp_path).follow("tools.md") == len(steps_of("tools.md")) >= 18


@pytest.mark.parametrize(("tool", "command"), NSQ_NAMES.items())
def test_every_tool_is_on_the_page(tool: str, command: str) -> None:
    assert f"`{tool}` | `pumpline {command}`" in PAGE


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.options.program)
def test_flags_of_ours_are_on_the_page(tool: Tool) -> None:  # type: ignore[type-arg]
    ours = [flag.name for flag in tool.flags if "(not in NSQ)" in flag.help]
    known = {"token-file", "zstd-level"}  # as everywhere; as --gzip-level
    assert {name for name in ours if f"--{name}" not in PAGE} <= known


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.options.program)
def test_examples_of_the_help_are_flags_that_work(tool: Tool) -> None:  # type: ignore[type-arg]
    program = tool.options.program
    commands = tool.examples.replace("\\\n", " ").strip().splitlines()
    assert len(commands) >= 3
    for command in commands:
        arguments = shell_words(command.partition(program)[2])
        given = flags.parse(tool.flags, arguments)
        assert flags.build(tool.options, given.values, {}).fault() == ""
        assert given.rest == []


def shell_words(text: str) -> list[str]:
    return shlex.split(text.partition("<")[0])
