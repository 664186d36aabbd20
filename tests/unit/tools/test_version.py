"""`--version` of every command, as programs parse it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pumpline import NSQ_VERSION, __version__
from pumpline.core.messages import kernels

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
SCRIPTS: dict[str, str] = PROJECT["scripts"]


DAEMONS = ("nsqd", "nsqlookupd", "nsqadmin")


def shown(name: str, **environment: str) -> str:
    module, _, function = SCRIPTS[name].partition(":")
    program = f"import sys; from {module} import {function}; sys.exit({function}())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return done.stdout


@pytest.mark.parametrize("name", [*DAEMONS, "pumpline"])
def test_version_tells_what_it_is_built_with(name: str) -> None:
    """The build is one word, as `go1.21.5` in NSQ's."""
    version = __version__ if name == "pumpline" else NSQ_VERSION
    assert re.fullmatch(rf"{name} v{re.escape(version)} \(built w/[^\s(),]+\)\n", shown(name))


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - {*DAEMONS, "pumpline"}))
def test_version_of_nsqs_tools_is_all_they_print(name: str) -> None:
    assert shown(name) == f"{name} v{NSQ_VERSION}\n"


@pytest.mark.parametrize("name", ["nsqd", "pumpline"])
def test_version_tells_the_form_of_the_kernels(name: str) -> None:
    assert shown(name, PUMPLINE_KERNELS="python").endswith("-kernels-python)\n")
    if kernels.compiled:
        assert shown(name, PUMPLINE_KERNELS="auto").endswith("-kernels-compiled)\n")


def test_python_m_pumpline_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pumpline", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("pumpline v")
