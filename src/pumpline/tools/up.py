"""`pumpline up`: nsqlookupd, nsqd and nsqadmin for a developer's machine.

All of them run in this one process, so that whatever ends it ends them all, and a second start on
the same directory works. They listen on this machine alone.

| below the data directory | contents                        |
|--------------------------|---------------------------------|
| nsqd/                    | nsqd's data                     |
| pumpline.log             | the log of all daemons          |
"""

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TextIO

from pumpline.core.text import flags
from pumpline.core.text.addresses import split_address
from pumpline.core.text.flags import BOOL, STRING, LogLevel, option
from pumpline.nsqadmin.options import NsqadminOptions
from pumpline.nsqd.claim import Claim
from pumpline.nsqd.options import FLAGS as NSQD_FLAGS
from pumpline.nsqd.options import Options as NsqdOptions
from pumpline.nsqlookupd.options import NsqlookupdOptions
from pumpline.tools.arguments import CommandLine, UsageError, run_command
from pumpline.tools.daemon import (
    STDLIB_LEVELS_PER_LEVEL,
    DaemonServer,
    log_to_stderr,
)
from pumpline.tools.exit_codes import EXIT_FAILED
from pumpline.tools.log_lines import LineFormatter
from pumpline.web.sockets import ListeningSockets, StartupError

HOST = "127.0.0.1"
LOG_FILE = "pumpline.log"


@dataclass(slots=True, kw_only=True)
class UpOptions:
    data_path: str = option(STRING, "pumpline-data", "directory for data and log; made if need be")
    nsqd_tcp_address: str = option(STRING, f"{HOST}:4150", "of nsqd, for clients")
    nsqd_http_address: str = option(STRING, f"{HOST}:4151", "of nsqd, for HTTP")
    lookupd_tcp_address: str = option(STRING, f"{HOST}:4160", "of nsqlookupd, for nsqds")
    lookupd_http_address: str = option(STRING, f"{HOST}:4161", "of nsqlookupd, for consumers")
    admin_http_address: str = option(STRING, f"{HOST}:4171", "of nsqadmin")
    verbose: bool = option(BOOL, False, "show the log here, too, not only warnings")


class DaemonLines(logging.Formatter):
    """NSQ's log lines, each with the daemon it is from."""

    def __init__(self) -> None:
        super().__init__()
        self._others = LineFormatter("[pumpline] ")
        self._by_package = {
            f"pumpline.{name}": LineFormatter(f"[{name}] ")
            for name in ("nsqd", "nsqlookupd", "nsqadmin")
        }

    def format(self, record: logging.LogRecord) -> str:
        package = ".".join(record.name.split(".", 2)[:2])
        return self._by_package.get(package, self._others).format(record)


class Machine:
    """All daemons as one server. The addresses are taken at once, the rest is loaded by `start`."""

    def __init__(self, options: UpOptions, nsqd_flags: Sequence[str]) -> None:
        """StartupError if an address or the data is in use, OptionsError for flags of nsqd."""
        self.drain_wanted = asyncio.Event()
        self._data_path = options.data_path
        self._servers: list[DaemonServer] = []
        for flag in flags.table(UpOptions):
            address = str(getattr(options, flag.key))
            if flag.name.endswith("-address") and not _is_listen_address(address):
                raise UsageError(f"--{flag.name} {address}: expected <host>:<port>")
        parsed = flags.parse(NSQD_FLAGS, nsqd_flags)
        if parsed.rest:
            raise UsageError(f"these are no flags of nsqd: {' '.join(parsed.rest)}")
        with ExitStack() as claims:  # given back if one of them cannot be had
            self._nsqlookupd = NsqlookupdOptions.from_sources(
                {
                    "tcp-address": options.lookupd_tcp_address,
                    "http-address": options.lookupd_http_address,
                    "broadcast-address": HOST,
                },
                {},
            )
            self._sockets = ListeningSockets("nsqlookupd", self._nsqlookupd.addresses())
            claims.callback(self._sockets.close)
            ports = {name: each.port for name, each in self._sockets.by_name.items()}
            self._nsqd = NsqdOptions.from_sources(
                {
                    "data-path": os.path.join(options.data_path, "nsqd"),
                    "tcp-address": options.nsqd_tcp_address,
                    "http-address": options.nsqd_http_address,
                    "broadcast-address": HOST,
                    "lookupd-tcp-address": [f"{HOST}:{ports['TCP']}"],
                    **parsed.values,
                },
                {},
            )
            self._claim = Claim(self._nsqd)
            claims.callback(self._claim.release)
            self._nsqadmin = NsqadminOptions.from_sources(
                {
                    "http-address": options.admin_http_address,
                    "lookupd-http-address": [f"{HOST}:{ports['HTTP']}"],
                },
                {},
            )
            self._admin_sockets = ListeningSockets("nsqadmin", self._nsqadmin.addresses())
            claims.callback(self._admin_sockets.close)
            self._claims = claims.pop_all()

    async def start(self) -> None:
        from pumpline.nsqadmin.server import Nsqadmin
        from pumpline.nsqd.server import Server as Nsqd
        from pumpline.nsqlookupd.server import Nsqlookupd

        lookupd = Nsqlookupd(self._nsqlookupd, self._sockets)
        nsqd = Nsqd(self._nsqd, self._claim)
        admin = Nsqadmin(self._nsqadmin, self._admin_sockets)
        self._servers += (lookupd, nsqd, admin)
        for server in self._servers:
            await server.start()
        self.drain_wanted = nsqd.drain_wanted
        data = os.path.abspath(self._data_path)
        rows = {
            "nsqadmin": f"http://{HOST}:{admin.http_port}",
            "nsqd": f"{HOST}:{nsqd.ports.tcp} for clients, http://{HOST}:{nsqd.ports.http}",
            "nsqlookupd": f"http://{HOST}:{lookupd.http_port}",
            "data": data,
            "log": os.path.join(data, LOG_FILE),
        }
        lines = [f"  {name:<10}  {text}" for name, text in rows.items()]
        print("\n".join(["pumpline is up.", "", *lines, "", "Ctrl-C ends all."]), flush=True)

    async def drain(self, hurry: asyncio.Event) -> None:
        from pumpline.tools.serving import Drains

        for server in self._servers:
            if isinstance(server, Drains):
                await server.drain(hurry)

    def reload(self) -> bool:
        reloaded = [server.reload() for server in self._servers]
        return any(reloaded)

    async def close(self) -> None:
        """nsqd before the nsqlookupd that it tells so."""
        for server in reversed(self._servers):
            await server.close()
        if not self._servers:
            self._claims.close()


def _is_listen_address(text: str) -> bool:
    try:
        split_address(text)
    except ValueError:  # nsqd would take it for the path of a unix socket
        return False
    return True


def run(given: dict[str, Any], nsqd_flags: list[str]) -> int:
    options = flags.build(UpOptions, given, {})
    with ExitStack() as files:
        try:
            os.makedirs(os.path.join(options.data_path, "nsqd"), exist_ok=True)
            path = os.path.join(options.data_path, LOG_FILE)
            log_file = files.enter_context(open(path, "a", encoding="utf-8"))
        except OSError as error:
            print(f"pumpline up: {options.data_path}: {error.strerror}", file=sys.stderr)
            return EXIT_FAILED
        _log_to(log_file, verbose=options.verbose)
        files.callback(logging.getLogger().handlers.clear)  # before the file is closed
        try:
            machine = Machine(options, nsqd_flags)
        except StartupError as error:
            print(f"pumpline up: {sentence(error, options)}", file=sys.stderr)
            return EXIT_FAILED
        from pumpline.tools.serving import run_server

        status = run_server("pumpline up", lambda: machine)
    print("pumpline is down." if not status else "pumpline up failed.", file=sys.stderr)
    return status


def _log_to(log_file: TextIO, *, verbose: bool) -> None:
    formatter = DaemonLines()
    log_to_stderr(formatter, LogLevel.INFO, stream=log_file)
    terminal = logging.StreamHandler()
    terminal.setLevel((LogLevel.INFO if verbose else LogLevel.WARN) * STDLIB_LEVELS_PER_LEVEL)
    terminal.setFormatter(formatter)
    logging.getLogger().addHandler(terminal)


def sentence(error: StartupError, options: UpOptions) -> str:
    """Why it cannot start, and what to do about it."""
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return str(error)
    for name in flags.table(UpOptions):
        address = getattr(options, name.key)
        if name.name.endswith("-address") and f"({address})" in str(error):
            return (
                f"{address} is in use. Another nsqd, or `pumpline up`, may be running: "
                f"end it, or say --{name.name}."
            )
    return str(error)


COMMAND = CommandLine(
    name="up",
    summary="nsqlookupd, nsqd and nsqadmin on this machine, until Ctrl-C",
    places="[-- flags of nsqd]...",
    flags=flags.table(UpOptions),
    examples="""
        pumpline up
        pumpline up --data-path=/tmp/pumpline --verbose
        pumpline up -- --max-msg-size=10485760
    """,
)
FLAGS = COMMAND.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(COMMAND, argv, run)


if __name__ == "__main__":
    sys.exit(main())
