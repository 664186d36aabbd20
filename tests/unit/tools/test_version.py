"""`--version` of every command, as programs parse it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pumpline import NSQ_VERSION, __version__

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
SCRIPTS: dict[str, str] = PROJECT["scripts"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_version_tells_what_it_is_built_with(name: str) -> None:
    """The build is one word, as `go1.21.5` in NSQ's."""
    module, _, function = SCRIPTS[name].partition(":")
    program = f"import sys; from {module} import {function}; sys.exit({function}())"
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"], capture_output=True, text=True, check=True
    )
    version = __version__ if name == "pumpline" else NSQ_VERSION
    assert re.fullmatch(rf"{name} v{re.escape(version)} \(built w/[^\s(),]+\)\n", done.stdout)
