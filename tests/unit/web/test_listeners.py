"""Listeners: unix sockets that were left behind are replaced, those in use are not; a connection
waits from the moment its address is bound."""

import asyncio
import socket
from pathlib import Path

import pytest

from pumpline.web.listeners import Listeners
from pumpline.web.sockets import UNIX_SOCKET, ListeningSockets, StartupError


async def listen(path: Path) -> Listeners:
    listeners = Listeners(ListeningSockets("test", {"TEST": str(path)}, unix_allowed=True))
    bound = await listeners.prepare("TEST", asyncio.Protocol)
    assert (bound.host, bound.port) == (str(path), UNIX_SOCKET)
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


async def test_who_connects_before_anything_is_served_is_served_later() -> None:
    sockets = ListeningSockets("test", {"TEST": "127.0.0.1:0"})
    listeners = Listeners(sockets)
    with socket.create_connection(("127.0.0.1", sockets.by_name["TEST"].port)) as early:
        served = asyncio.Event()

        class Protocol(asyncio.Protocol):
            def connection_made(self, _: asyncio.BaseTransport) -> None:
                served.set()

        await listeners.prepare("TEST", Protocol)
        await listeners.start()
        await served.wait()
        early.sendall(b"x")
    listeners.close()


def test_a_name_with_several_addresses_has_one_port() -> None:
    sockets = ListeningSockets("test", {"TEST": ":0"})
    ports = {each.getsockname()[1] for each in sockets.by_name["TEST"].sockets}
    assert ports == {sockets.by_name["TEST"].port}
    sockets.close()


def test_all_addresses_are_taken_or_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        probe.close()
        addresses = {"A": f"127.0.0.1:{free}", "B": f"127.0.0.1:{taken.getsockname()[1]}"}
        with pytest.raises(StartupError, match=r"listen \(127.0.0.1:\d+\) failed - .*in use"):
            ListeningSockets("test", addresses)
        socket.create_server(("127.0.0.1", free)).close()


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(StartupError, match="failed to instantiate test"):
        ListeningSockets("test", {"TEST": address})
