"""Named clusters in a file: addresses, files for access, and a label of the environment.

The file is TOML, with a table for each context:

    [production]
    lookupd = ["lookup-1:4161", "lookup-2:4161"]
    token_file = "/etc/pumpline/token"
    environment = "production"

It is `contexts.toml` below `~/.config/pumpline`, or the file that PUMPLINE_CONTEXTS names. It has
no secrets: access tokens are in files of their own.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pumpline.core.text.flags import OptionsError

CONTEXT_VARIABLE = "PUMPLINE_CONTEXT"
FILE_VARIABLE = "PUMPLINE_CONTEXTS"
FILE_BYTES_MAX = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Context(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    nsqd: list[str] = []
    lookupd: list[str] = []
    token_file: str = ""
    tls_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure_skip_verify: bool = False
    environment: str = ""


def contexts_path(environment: Mapping[str, str] = os.environ) -> Path:
    if path := environment.get(FILE_VARIABLE):
        return Path(path)
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(Path.home(), ".config")
    return Path(home) / "pumpline" / "contexts.toml"


def read_contexts(path: Path) -> dict[str, Context]:
    """None of them if there is no file; OptionsError if it makes no sense."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OptionsError(f"{path}: {error.strerror}") from None
    if len(text) > FILE_BYTES_MAX:
        raise OptionsError(f"{path}: more than {FILE_BYTES_MAX} bytes")
    try:
        found = msgspec.convert(tomllib.loads(text.decode()), dict[str, Context])
    except (ValueError, msgspec.ValidationError) as error:
        raise OptionsError(f"{path}: {error}") from None
    try:
        for name, context in found.items():
            check_context(name, context)
    except OptionsError as error:
        raise OptionsError(f"{path}: {error}") from None
    return found


def chosen_context(name: str, environment: Mapping[str, str] = os.environ) -> Context:
    path = contexts_path(environment)
    contexts = read_contexts(path)
    if name not in contexts:
        known = f"it has {', '.join(sorted(contexts))}" if contexts else "there is none"
        raise OptionsError(f"no context {name} in {path}: {known}")
    return contexts[name]


def write_contexts(path: Path, contexts: Mapping[str, Context]) -> None:
    """All of the file, or nothing."""
    lines = []
    for name in sorted(contexts):
        lines.append(f"[{json.dumps(name)}]")
        fields = msgspec.to_builtins(contexts[name])
        # Strings, lists of strings and booleans are the same in JSON and TOML.
        lines += [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
        lines.append("")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        new.write_text("\n".join(lines))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def check_context(name: str, context: Context) -> None:
    """OptionsError if nobody could use it."""
    if not _NAME.fullmatch(name):
        raise OptionsError(f"context {name!r}: a name has 1 to 64 characters of A-Z a-z 0-9 . _ -")
    if bool(context.nsqd) == bool(context.lookupd):
        raise OptionsError(f"context {name}: give it nsqd or lookupd addresses, and not both")
