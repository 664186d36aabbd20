"""The reference pages of the documentation, from the tables of flags and of metrics."""

import re

from deploy.monitoring.known_metrics import FAMILIES
from pumpline.core.text.flags import Flag
from pumpline.tools.completion import OWN_NAMES, completed_commands
from pumpline.web.prometheus_text import Family

HEAD = "<!-- Made by `make generated` from the tables of the programs: change them there. -->\n\n"
FLAGS_INTRO = """# Flags

All programs take `--flag=value`, `--flag value` and the same with one dash, as NSQ's do. The
daemons also read a TOML file (`--config`): a flag goes before the file, the file before the
default. In the file, a flag's dashes are underscores; where its key has another name, the table
says so.
"""
METRICS_INTRO = """# All metrics

What `/metrics` of each daemon gives. [metrics.md](metrics.md) says how to collect them and what to
watch.
"""
PER_MACHINE = {"broadcast-address": "the host name", "node-id": "from the host name"}


def flags_page() -> str:
    commands = completed_commands()
    own = {command: name for name, command in OWN_NAMES.items()}
    parts = [HEAD + FLAGS_INTRO]
    for name, command in commands.items():
        if command.flags:
            title = f"pumpline {name}"
            if name in own:
                title = own[name] if own[name] == name else f"{own[name]}, pumpline {name}"
            rows = [flag_row(flag) for flag in command.flags]
            head = ["| flag | default | meaning |", "|---|---|---|"]
            parts.append("\n".join([f"## {title}", "", *head, *rows, ""]))
    return "\n".join(parts)


def flag_row(flag: Flag) -> str:
    default = "" if flag.default in (0, "", [], ()) else f"`{flag.kind.show(flag.default)}`"
    default = PER_MACHINE.get(flag.name, default)
    key = flag.key.replace("_", "-") if flag.key else ""
    other = f" (in the file: `{flag.key}`)" if key and key != flag.name else ""
    return f"| `--{flag.name}` | {cell(default)} | {cell(flag.help + other)} |"


def metrics_page() -> str:
    parts = [HEAD + METRICS_INTRO]
    for daemon, families in FAMILIES.items():
        head = [f"## {daemon}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([*head, *map(metric_row, families), ""]))
    return "\n".join(parts)


def metric_row(family: Family) -> str:
    labels = ", ".join(family.labels)
    return f"| `{family.shown_name}` | {family.kind} | {labels} | {cell(family.meaning)} |"


def cell(text: str) -> str:
    """`text` in a table: no column of its own, and no tag."""
    return re.sub(r"<([^>]*)>", r"&lt;\1&gt;", text.replace("|", "\\|"))
