"""The client stands on the standard library alone, and says what to install for the rest."""

import subprocess
import sys

THIRD_PARTY = ("aiohttp", "cramjam", "msgspec", "rich", "uvloop", "pumpline.nsqd")


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_client_imports_nothing_else() -> None:
    program = (
        "import sys, pumpline.client, pumpline.sync\n"
        f"print([name for name in {THIRD_PARTY!r} if name in sys.modules])"
    )
    assert run(program) == "[]"


def test_the_client_works_where_nothing_else_is_installed() -> None:
    program = f"""
import sys
sys.modules.update(dict.fromkeys({(*THIRD_PARTY, "zlib_ng")!r}))  # importing them fails
import pumpline.client, pumpline.sync
from pumpline.core.protocol.layers import Deflate
print(pumpline.client.Producer("127.0.0.1:4150").addresses, Deflate(6).name)
"""
    assert run(program) == "['127.0.0.1:4150'] deflate"


def test_snappy_without_its_library_says_what_to_install() -> None:
    program = """
import asyncio, sys
sys.modules["cramjam"] = None  # as if it were not installed
from pumpline.client import MissingExtraError, Producer, Settings
async def main():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with Producer(f"127.0.0.1:{port}", settings=Settings(snappy=True)):
            pass
    except MissingExtraError as error:
        print(error)
asyncio.run(main())
"""
    assert run(program) == "snappy needs cramjam: pip install 'pumpline[snappy]'"
