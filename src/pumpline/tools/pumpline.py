"""The pumpline command: every tool under one name, as `pumpline <command> [arguments]`.

A command is a module beside this one with a `main(argv) -> int`; it is imported only when called.
"""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from pumpline import NSQ_VERSION, __version__
from pumpline.tools.daemon import EXIT_OK, EXIT_USAGE

COMMANDS = {
    "demo": "see it work: brokers, a kill -9, consumers and a Spark table",
    "pipeline": "archive, query, transform and replay topics on Spark",
    "nsqd": "the broker: takes, keeps and delivers messages",
    "nsqlookupd": "the directory: tells consumers which nsqd has a topic",
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "-help", "--help", "help"):
        print(usage(), end="")
        return EXIT_OK
    if command in ("-version", "--version"):
        print(f"pumpline v{__version__} (speaks NSQ {NSQ_VERSION})")
        return EXIT_OK
    if command not in COMMANDS:
        meant = get_close_matches(command, COMMANDS, 1)
        hint = f" (did you mean {meant[0]}?)" if meant else ""
        print(f"unknown command: {command}{hint}\n{usage()}", end="", file=sys.stderr)
        return EXIT_USAGE
    code: int = import_module(module_of(command)).main(arguments[1:])
    return code


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {command:<{width}}  {text}" for command, text in COMMANDS.items()]
    return "\n".join(
        [
            "pumpline: NSQ rebuilt on a log",
            "",
            "Usage: pumpline <command> [arguments]",
            "",
            "Commands:",
            *lines,
            "",
            "Examples:",
            "  pumpline demo",
            "  pumpline nsqd --data-path=/var/lib/nsqd",
            "  pumpline pipeline archive --nsqd 127.0.0.1:4151 --topic orders --table orders",
            "",
            "Each command but demo and pipeline is also installed under its own name.",
            "`pumpline <command> --help` tells its flags.",
            "",
        ]
    )


def module_of(command: str) -> str:
    return f"pumpline.tools.{command}" + (".command" if command == "demo" else "")


if __name__ == "__main__":
    sys.exit(main())
