"""docs/command-line.md: its examples print what it says, and it has every verb."""

from pathlib import Path

import pytest

from pumpline.tools.pumpline import COMMANDS, NSQ_NAMES
from tests.kit.pages import DOCS, Reader, steps_of

PAGE = (DOCS / "command-line.md").read_text()
ELSEWHERE = {"demo", "pipeline", "nsqd", "nsqlookupd", "nsqadmin", *NSQ_NAMES.values()}


@pytest.mark.slow
def test_examples_print_what_the_page_says(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {"PUMPLINE_NSQD": "127.0.0.1:4151"})
    assert reader.follow("command-line.md") == len(steps_of("command-line.md")) >= 20


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - ELSEWHERE))
def test_every_command_is_on_the_page(command: str) -> None:
    assert f"pumpline {command}" in PAGE
