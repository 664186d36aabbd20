"""An sdist and wheels that install and run in an empty environment, compiled and plain."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumpline import NSQ_VERSION, __version__

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 500
pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# Publishes and consumes with the installed package alone.
ROUND_TRIP = """
import asyncio, sys
from pumpline.client import Consumer, Producer
from pumpline.testing import LocalNsqd

async def main(address):
    async with Producer([address]) as producer:
        await producer.publish("orders", b"hello")
    async for message in Consumer("orders", "billing", nsqd=address):
        message.finish()
        return message.body

with LocalNsqd() as nsqd:
    print(asyncio.run(main(nsqd.tcp_address)).decode())
"""
KERNELS = "from pumpline.core.messages import kernels; print(kernels.compiled)"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is committed or about to be, without what was built here."""
    copy = tmp_path_factory.mktemp("source")
    files = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    for name in files.split("\0"):
        if name and (ROOT / name).is_file() and not name.startswith(("tests/", "docs/", "bench/")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    return copy


@pytest.fixture(scope="module")
def built(source: Path) -> Path:
    run(sys.executable, "-m", "build", cwd=source, PUMPLINE_BUILD_KERNELS="require")
    return source / "dist"


def test_the_sdist_has_what_a_build_needs_and_nothing_built(built: Path) -> None:
    [path] = built.glob("*.tar.gz")
    assert path.name == f"pumpline-{__version__}.tar.gz"
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "setup.py",
        "src/pumpline/core/messages/_kernel_bytes.pxi",
        "src/pumpline/core/messages/_kernels.pyx",
        "src/pumpline/nsqadmin/page/index.html",
        "src/pumpline/py.typed",
    } <= names
    assert not {name for name in names if name.endswith((".so", ".c", ".pyc"))}


def test_the_wheel_has_the_kernels_the_page_and_all_modules(built: Path) -> None:
    [path] = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    source = built.parent / "src"
    wanted = {
        str(each.relative_to(source))
        for pattern in ("**/*.py", "pumpline/nsqadmin/page/*", "pumpline/py.typed")
        for each in source.glob(pattern)
    }
    assert wanted <= names
    assert [name for name in names if name.endswith(".so")]
    assert not {name for name in names if name.endswith((".pyx", ".c"))}


def installed(wheel: Path, directory: Path) -> Iterator[Path]:
    venv.create(directory, with_pip=True)
    run(directory / "bin/python", "-m", "pip", "install", "--quiet", wheel, cwd=directory)
    yield directory / "bin"


@pytest.fixture(scope="module", params=["compiled", "plain"])
def programs(
    request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    directory = tmp_path_factory.mktemp(request.param)
    [wheel] = built.glob("*.whl")
    if request.param == "plain":
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(directory / "dist")]
        run(*command, cwd=built.parent, PUMPLINE_BUILD_KERNELS="no")
        [wheel] = (directory / "dist").glob("*.whl")
        assert "py3-none-any" in wheel.name
    for path in installed(wheel, directory / "environment"):
        yield request.param, path


def test_all_commands_run_in_an_empty_environment(programs: tuple[str, Path]) -> None:
    kind, path = programs
    assert f"pumpline-{__version__}-" in run(path / "nsqd", "--version", cwd=path)
    told = run(path / "python", "-c", KERNELS, cwd=path)
    assert told == f"{kind == 'compiled'}\n"
    for name in ("nsqlookupd", "nsqadmin", "nsq_tail", "nsq_stat", "nsq_to_file", "to_nsq"):
        assert f"{name} v{NSQ_VERSION}" in run(path / name, "--version", cwd=path)
    assert "pumpline up" in run(path / "pumpline", "--help", cwd=path)


def test_a_message_goes_round_in_an_empty_environment(
    programs: tuple[str, Path], tmp_path: Path
) -> None:
    _, path = programs
    assert run(path / "python", "-c", ROUND_TRIP, cwd=tmp_path) == "hello\n"
