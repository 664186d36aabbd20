"""`pumpline backup`: make, list and restore copies of an nsqd's data directory (`backup.store`)."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumpline.core.text import flags
from pumpline.core.text.flags import BOOL, INT, STRING, option
from pumpline.log.directory import DirectoryError
from pumpline.tools.arguments import CommandLine, UsageError, run_command
from pumpline.tools.backup.copying import Copied, CopyError
from pumpline.tools.backup.store import Store, restore
from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_OK
from pumpline.tools.verbs.output import Column, Output, note, shown_bytes, shown_number

ACTIONS = ("list", "restore")
COLUMNS = (
    Column("backup", "backup"),
    Column("topics", "topics", shown_number, is_number=True),
    Column("copied_bytes", "copied", shown_bytes, is_number=True),
    Column("linked_bytes", "unchanged", shown_bytes, is_number=True),
)


@dataclass(slots=True, kw_only=True)
class BackupOptions:
    data_path: str = option(STRING, "", "path of the data directory of an nsqd, which may run")
    to: str = option(STRING, "", "path of the directory that has the backups")
    keep: int = option(INT, 0, "keep only so many backups, the newest ones (0 for all)")
    json: bool = option(BOOL, False, "print JSON, on a terminal, too")
    table: bool = option(BOOL, False, "print a table, in a pipe, too")


FLAGS = flags.table(BackupOptions)
COMMAND = CommandLine(
    name="backup",
    summary="copy the data directory of a running nsqd; list and restore such copies",
    places="[action] [backup]",
    flags=FLAGS,
    examples="""
        pumpline backup --data-path /var/lib/nsqd --to /backups/nsqd --keep 7
        pumpline backup list --to /backups/nsqd
        pumpline backup restore /backups/nsqd/2026-11-18T08-00-00.000000Z --data-path /var/lib/new
    """,
)


def run(given: dict[str, Any], arguments: list[str]) -> int:
    options: BackupOptions = flags.build(BackupOptions, given, {})
    action, backup = [*arguments, "", ""][:2]
    if action and action not in ACTIONS:
        raise UsageError(f"{action}: it is one of {', '.join(ACTIONS)}, or nothing")
    if bool(backup) != (action == "restore"):
        raise UsageError("restore needs a backup" if not backup else f"{action} takes no backup")
    if not options.data_path and action != "list":
        raise UsageError("--data-path is missing")
    if not options.to and action != "restore":
        raise UsageError("--to is missing")
    if options.keep < 0:
        raise UsageError("--keep is 0 or more")
    out = Output(as_json=options.json, as_table=options.table)
    try:
        out.rows(COLUMNS, _done(action, backup, options), empty="no backups")
    except (CopyError, DirectoryError) as error:
        note(f"pumpline backup: {error}")
        return EXIT_FAILED
    return EXIT_OK


def _done(action: str, backup: str, options: BackupOptions) -> list[dict[str, object]]:
    if action == "restore":
        return [_row(options.data_path, restore(Path(backup), Path(options.data_path)))]
    store = Store(Path(options.to))
    if action == "list":
        return [_row(str(Path(options.to) / name), store.read(name)) for name in store.names()]
    began_s = time.monotonic()
    path, copied = store.add(Path(options.data_path))
    row = _row(str(path), copied)
    row["seconds"] = round(time.monotonic() - began_s, 3)
    if options.keep:
        row["deleted"] = store.keep(options.keep)
    return [row]


def _row(path: str, copied: Copied) -> dict[str, object]:
    return {
        "backup": path,
        "topics": copied.topics,
        "copied_bytes": copied.copied_bytes,
        "linked_bytes": copied.linked_bytes,
    }


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(COMMAND, argv, run)


if __name__ == "__main__":
    sys.exit(main())
