"""Unix sockets of daemons: those that were left behind are replaced, those in use are not."""

import asyncio
import socket
from pathlib import Path

import pytest

from pumpline.web.listeners import UNIX_SOCKET, Listeners, StartupError


async def listen(path: Path) -> Listeners:
    listeners = Listeners("test")
    bound = await listeners.bind("TEST", str(path), asyncio.Protocol, unix_allowed=True)
    assert bound == (str(path), UNIX_SOCKET)
    await listeners.start()
    return listeners


async def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = await listen(path)
    with pytest.raises(StartupError, match="in use"):
        await listen(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))  # of the first, still
    first.close()


async def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        gone.bind(str(path))
        gone.listen()
    (await listen(path)).close()


async def test_any_other_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(StartupError, match="in use"):
        await listen(path)
    assert path.read_text() == "precious"
