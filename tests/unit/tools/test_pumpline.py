"""The pumpline command: it names the commands there are, and no others."""

from importlib.util import find_spec

import pytest

from pumpline import NSQ_VERSION
from pumpline.tools import pumpline


@pytest.mark.parametrize("command", pumpline.COMMANDS)
def test_every_command_that_the_help_names_is_there(command: str) -> None:
    assert find_spec(pumpline.module_of(command)) is not None
    assert f"\n  {command} " in pumpline.usage()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nsqlookup", "unknown command: nsqlookup (did you mean nsqlookupd?)"),
        ("kafka", "unknown command: kafka"),
    ],
)
def test_an_unknown_command_is_a_usage_error(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pumpline.main([given]) == pumpline.EXIT_USAGE
    shown = capsys.readouterr()
    assert shown.err.startswith(said + "\n" if "(" in said else said)
    assert "Usage:" in shown.err
    assert shown.out == ""


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert pumpline.main([]) == pumpline.EXIT_OK
    assert capsys.readouterr().out == pumpline.usage()


@pytest.mark.parametrize("tool", pumpline.NSQ_NAMES)
def test_tools_have_nsqs_names_as_well(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pumpline.main([tool, "--version"]) == pumpline.EXIT_OK
    assert capsys.readouterr().out == f"{tool} v{NSQ_VERSION}\n"
