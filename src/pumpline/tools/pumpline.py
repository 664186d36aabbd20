"""The pumpline command: every tool under one name, as `pumpline <command> [arguments]`.

A command is a module below this package with a `main(argv) -> int`; it is imported only when
called.
"""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NamedTuple

from pumpline import __version__
from pumpline.core.text.version import version_line
from pumpline.tools.exit_codes import EXIT_OK, EXIT_USAGE
from pumpline.tools.standard_streams import run_with_streams


class Command(NamedTuple):
    module: str  # below pumpline.tools
    summary: str


GROUPS = {
    "Begin": {
        "up": Command("up", "nsqlookupd, nsqd and nsqadmin on this machine, until Ctrl-C"),
        "demo": Command(
            "demo.command", "see it work: brokers, a kill -9, consumers, a Spark table"
        ),
    },
    "Look": {
        "top": Command("top.command", "nodes, topics and channels, live in the terminal"),
        "doctor": Command("doctor.command", "check a cluster, as monitoring does"),
        "topics": Command("verbs.topics", "list topics, with depth and channels"),
        "channels": Command("verbs.channels", "list channels, with depth, lag and consumers"),
        "holds": Command("verbs.holds", "list the places that readers such as Spark keep"),
        "deadletters": Command("verbs.deadletters", "list, show and publish again dead letters"),
        "bench": Command("bench.command", "measure how fast an nsqd is"),
        "tail": Command("nsq_tail.command", "print messages, of a channel or of the log"),
        "stat": Command("nsq_stat.command", "print rates and depths of channels"),
    },
    "Change": {
        "pub": Command("verbs.pub", "publish messages"),
        "create": Command("verbs.create", "make a topic, or a channel of it"),
        "pause": Command("verbs.pause", "stop delivering new messages of a topic or channel"),
        "unpause": Command("verbs.unpause", "deliver again after a pause"),
        "seek": Command("verbs.seek", "move a channel to another place of the log"),
        "kick": Command("verbs.kick", "disconnect consumers of a channel"),
        "settings": Command("verbs.settings", "show or change the settings of a topic"),
        "empty": Command("verbs.empty", "drop what waits in a topic or channel"),
        "delete": Command("verbs.delete", "delete a topic or channel"),
        "export": Command("verbs.export", "print topics, channels, settings and pauses as JSON"),
        "import": Command("verbs.import_", "make topics and channels as `export` printed them"),
        "forget-node": Command(
            "verbs.forget_node", "stop expecting an nsqd that went away for good"
        ),
        "backup": Command("backup.command", "copy the data directory of a running nsqd"),
        "recover": Command("verbs.recover", "publish again what damaged files still hold"),
    },
    "Move": {
        "to-file": Command("nsq_to_file.command", "write topics into files"),
        "from-stdin": Command("to_nsq.command", "publish what comes on stdin"),
        "to-http": Command("nsq_to_http.command", "send topics as HTTP requests"),
        "to-nsq": Command("nsq_to_nsq.command", "publish topics to other nsqds"),
    },
    "Run": {
        "nsqd": Command("nsqd", "the broker: takes, keeps and delivers messages"),
        "nsqlookupd": Command("nsqlookupd", "the directory: which nsqd has a topic"),
        "nsqadmin": Command("nsqadmin", "the web page of a cluster"),
        "context": Command("context", "named clusters, to be chosen by --context"),
        "completion": Command("completion", "complete commands and flags in bash, zsh and fish"),
        "pipeline": Command("pipeline", "archive, query, transform and replay topics on Spark"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
NSQ_NAMES = {
    "nsq_stat": "stat",
    "nsq_tail": "tail",
    "nsq_to_file": "to-file",
    "nsq_to_http": "to-http",
    "nsq_to_nsq": "to-nsq",
    "to_nsq": "from-stdin",
}
"""NSQ's names of tools work as well: `pumpline nsq_to_file`."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_with_streams("pumpline", lambda: _main(arguments))


def _main(arguments: list[str]) -> int:
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "-help", "--help", "help"):
        print(usage(), end="")
        return EXIT_OK
    if command in ("-version", "--version", "version"):
        from pumpline.core.messages import kernels  # here: most commands do not need them

        print(version_line("pumpline", __version__, kernels=kernels.form))
        return EXIT_OK
    command = NSQ_NAMES.get(command, command)
    if command not in COMMANDS:
        meant = get_close_matches(command, COMMANDS, 1)
        hint = f" (did you mean {meant[0]}?)" if meant else ""
        print(f"unknown command: {command}{hint}\n{usage()}", end="", file=sys.stderr)
        return EXIT_USAGE
    code: int = import_module(module_of(command)).main(arguments[1:])
    return code


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = ["pumpline: NSQ rebuilt on a log", "", "Usage: pumpline <command> [arguments]"]
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {name:<{width}}  {each.summary}" for name, each in commands.items()]
    lines += [
        "",
        "Examples:",
        "  pumpline up",
        "  pumpline nsqd --data-path=/var/lib/nsqd",
        "  pumpline channels orders --nsqd 127.0.0.1:4151",
        "  pumpline pipeline archive --nsqd 127.0.0.1:4151 --topic orders --table orders",
        "",
        "`pumpline <command> --help` tells its flags, `pumpline version` the version.",
        "",
    ]
    return "\n".join(lines)


def module_of(command: str) -> str:
    return f"pumpline.tools.{COMMANDS[command].module}"


if __name__ == "__main__":
    sys.exit(main())
