"""`pumpline context`: list, show, set and delete named clusters (`cluster.contexts`)."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pumpline.cluster.contexts import (
    CONTEXT_VARIABLE,
    Context,
    check_context,
    contexts_path,
    read_contexts,
    write_contexts,
)
from pumpline.cluster.node import is_address
from pumpline.core.text import flags
from pumpline.core.text.flags import BOOL, STRING, STRINGS, OptionsError, option
from pumpline.tools.arguments import CommandLine, UsageError, run_command
from pumpline.tools.exit_codes import EXIT_FAILED, EXIT_OK
from pumpline.tools.verbs.output import Column, Output, note, shown_list, shown_yes

ACTIONS = ("list", "show", "set", "delete")
COLUMNS = (
    Column("context", "context"),
    Column("current", "current", shown_yes),
    Column("environment", "environment"),
    Column("lookupd", "nsqlookupds", shown_list),
    Column("nsqd", "nsqds", shown_list),
    Column("token_file", "token file", is_rare=True),
)
PATHS = ("token_file", "tls_ca_file", "tls_cert", "tls_key")


@dataclass(slots=True, kw_only=True)
class ContextOptions:
    nsqd: list[str] = option(STRINGS, list, "HTTP address of an nsqd (may be given multiple times)")
    lookupd: list[str] = option(
        STRINGS, list, "HTTP address of an nsqlookupd (may be given multiple times)"
    )
    token_file: str = option(STRING, "", "path of a file with the access token")
    tls_ca_file: str = option(STRING, "", "path of the authorities that nsqds are checked against")
    tls_cert: str = option(STRING, "", "path of a client certificate")
    tls_key: str = option(STRING, "", "path of its key")
    tls_insecure_skip_verify: bool = option(BOOL, False, "take any certificate of an nsqd")
    environment: str = option(
        STRING, "", "a label such as production, shown before anything is changed"
    )
    json: bool = option(BOOL, False, "print JSON, on a terminal, too")
    table: bool = option(BOOL, False, "print a table, in a pipe, too")


FLAGS = flags.table(ContextOptions)
COMMAND = CommandLine(
    name="context",
    summary="list, show, set or delete named clusters, for --context",
    places="[action] [name]",
    flags=FLAGS,
    examples="""
        pumpline context set production --lookupd lookup-1:4161 --environment production
        pumpline context
        pumpline context show production
        pumpline topics --context production
        pumpline context delete production
    """,
)


def run(given: dict[str, Any], arguments: list[str]) -> int:
    options: ContextOptions = flags.build(ContextOptions, given, {})
    action, name = [*arguments, "", ""][:2]
    if (action or "list") not in ACTIONS:
        raise UsageError(f"{action}: it is one of {', '.join(ACTIONS)}")
    if bool(name) == (action in ("", "list")):
        raise UsageError(f"{action} needs a name" if not name else "list takes no name")
    about = {key for key in given if key not in ("json", "table")}
    if about and action != "set":
        raise UsageError("flags that describe a cluster are for `set`")
    path = contexts_path()
    contexts = read_contexts(path)
    out = Output(as_json=options.json, as_table=options.table)
    if action == "set":
        context = _described(name, options)
        write_contexts(path, {**contexts, name: context})
        out.rows(COLUMNS, [_row(name, context)], empty="")
        return EXIT_OK
    if action in ("", "list"):
        rows = [_row(each, contexts[each]) for each in sorted(contexts)]
        out.rows(COLUMNS, rows, empty=f"no contexts in {path}")
        return EXIT_OK
    if name not in contexts:
        note(f"pumpline context: no context {name} in {path}")
        return EXIT_FAILED
    out.rows(COLUMNS, [_row(name, contexts[name])], empty="")
    if action == "delete":
        del contexts[name]
        write_contexts(path, contexts)
    return EXIT_OK


def _described(name: str, options: ContextOptions) -> Context:
    fields = {key: getattr(options, key) for key in Context.__struct_fields__}
    for key in PATHS:  # they mean the same from everywhere
        fields[key] = os.path.abspath(fields[key]) if fields[key] else ""
    context = Context(**fields)
    check_context(name, context)
    for address in (*context.nsqd, *context.lookupd):
        if not is_address(address):
            raise OptionsError(f"{address!r} is no address: expected <host>:<port>")
    return context


def _row(name: str, context: Context) -> dict[str, object]:
    is_current = os.environ.get(CONTEXT_VARIABLE) == name
    fields = msgspec.structs.asdict(context)
    return {"context": name, "current": is_current, **fields}


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(COMMAND, argv, run)


if __name__ == "__main__":
    sys.exit(main())
