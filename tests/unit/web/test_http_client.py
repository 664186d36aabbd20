"""Who asks nobody does not pay for what asks: aiohttp is not imported by a plain start."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("server", ["pumpline.nsqd.server", "pumpline.nsqlookupd.server"])
def test_a_daemon_is_imported_without_what_it_may_never_need(server: str) -> None:
    program = f"import sys, {server}; print(*sorted(sys.modules))"
    modules = subprocess.check_output([sys.executable, "-c", program], text=True)
    tops = {name.partition(".")[0] for name in modules.split()}
    assert tops & {"aiohttp", "yarl", "email", "rich", "tomllib", "difflib"} == set()
