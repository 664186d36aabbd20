"""Command-line flags as Go's `flag` package reads them, and the config file that may back them.

Drop-in tools must take what scripts already pass, which argparse cannot: `-flag v`, `--flag v`,
`-flag=v` and `--flag=v` alike, booleans that take a value only after `=`, an end at the first
argument that is not a flag, no abbreviations, and Go's own error texts.

A tool's flags are a dataclass whose fields are made by `option`: the field's name gives the flag's
name (`max_msg_size` is `--max-msg-size`, `from_` is `--from`; a duration's field ends in `_ns`,
which the flag leaves out), and its annotation is checked against the flag's kind. `table` turns
such a class into rows, `parse` reads arguments, and `build` makes the instance: flag, else config
file, else default.

Pure: it prints nothing, opens nothing and exits nowhere.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Generic, Self, TypeVar

from pumpline.core.text.durations import NS_PER_MS, format_duration, parse_duration
from pumpline.core.text.names import go_quote

USAGE_COLUMNS = 100
INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1

_TRUE_WORDS = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE_WORDS = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_INTEGER = re.compile(
    r"[+-]?(0[bB](_?[01])+|0[oO](_?[0-7])+|0[xX](_?[0-9a-fA-F])+|0(_?[0-7])*|[1-9](_?[0-9])*)",
    re.ASCII,
)
_FLOAT_CHARS = re.compile(r"[0-9a-zA-Z.+-]+", re.ASCII)
_NO_HOST = re.compile(r"[\s/@?#]")
_ROW_KEY = "pumpline.flag"

T = TypeVar("T")


class FlagError(Exception):
    """The arguments do not fit the table; the text is Go's."""

    def __init__(self, text: str, *, meant: str = "") -> None:
        super().__init__(text)
        self.meant = meant
        """The name of the flag that was probably meant, if there is one like it."""


class HelpRequested(Exception):
    """`-h` or `-help` was given."""


class OptionsError(Exception):
    """The options cannot be used; the text is that of the FATAL log line."""


class LogLevel(IntEnum):
    """NSQ's numbers for log levels; ten times one is the level of the logging module."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How values of one type are read and shown.

    `parse` takes the text of a flag, `coerce` what TOML gave; both raise ValueError(cause).
    """

    label: str
    parse: Callable[[str], T]
    coerce: Callable[[object], T]
    show: Callable[[T], str] = str
    is_boolean: bool = False  # takes a value only after `=`; alone it means true
    is_repeatable: bool = False  # T is a list, and each further flag extends it


@dataclass(frozen=True, slots=True)
class Flag:
    """One row of a tool's table. Name without dashes; the key is the one in the config file."""

    name: str
    kind: Kind[Any]
    default: Any
    help: str
    config_key: str = ""

    @property
    def key(self) -> str:
        return self.config_key or self.name.replace("-", "_")


@dataclass(frozen=True, slots=True)
class Parsed:
    """What was given: values by flag name, defaults left out, and the arguments after the flags."""

    values: dict[str, Any]
    rest: list[str]


@dataclass(frozen=True, slots=True)
class _Row:
    kind: Kind[Any]
    help: str
    config_key: str


def option(
    kind: Kind[T],
    default: T | Callable[[], T],
    help: str,
    *,
    config_key: str = "",
) -> T:
    """A dataclass field that is also a flag. A callable default is called for each instance."""
    metadata = {_ROW_KEY: _Row(kind, help, config_key)}
    # The declared type is that of the attribute, as with dataclasses.field itself.
    made: Any = (
        field(default_factory=default, metadata=metadata)
        if callable(default)
        else field(default=default, metadata=metadata)
    )
    return made  # type: ignore[no-any-return]


def table(options_class: type[Any]) -> tuple[Flag, ...]:
    """The flags of a dataclass, in the order of its fields."""
    return tuple(_attributes(options_class).values())


def parse(flags: Sequence[Flag], argv: Sequence[str]) -> Parsed:
    """Read `argv` up to the first argument that is no flag, or past `--`."""
    by_name = {flag.name: flag for flag in flags}
    values: dict[str, Any] = {}
    rest = list(argv)
    while rest and len(rest[0]) >= 2 and rest[0].startswith("-"):
        argument = rest.pop(0)
        if argument == "--":
            break
        name, text = _split(argument)
        flag = by_name.get(name)
        if flag is None:
            if name in ("h", "help"):
                raise HelpRequested
            meant = _meant(name.lower().replace("_", "-"), by_name)
            raise FlagError(f"flag provided but not defined: -{name}", meant=meant)
        if text is None:
            text = _text_for(flag, rest)
        value = _parsed(flag, text)
        if flag.kind.is_repeatable:
            value = [*values.get(name, ()), *value]
        values[name] = value
    return Parsed(values, rest)


def build(options_class: type[T], given: Mapping[str, Any], config: Mapping[str, object]) -> T:
    """An instance from the flags given (by flag name) over the config file over the defaults."""
    arguments: dict[str, Any] = {}
    for attribute, flag in _attributes(options_class).items():
        if flag.name in given:
            arguments[attribute] = given[flag.name]
        elif flag.key in config:
            arguments[attribute] = _coerced(flag, config[flag.key])
    return options_class(**arguments)


def unknown_keys(flags: Sequence[Flag], config: Mapping[str, object]) -> dict[str, str]:
    """The keys of a config file that mean nothing, each with the one that was probably meant, or
    with nothing."""
    keys = {flag.name.replace("-", "_"): flag.key for flag in flags}
    keys |= {flag.key: flag.key for flag in flags}
    known = set(keys.values())
    return {
        key: keys.get(_meant(key.lower().replace("-", "_"), keys), "")
        for key in config
        if key not in known
    }


class DaemonOptions:
    """What the options of all daemons have in common."""

    __slots__ = ()
    program: ClassVar[str]
    log_level: LogLevel
    log_format: LogFormat
    log_prefix: str

    @classmethod
    def from_sources(cls, given: Mapping[str, Any], config: Mapping[str, object]) -> Self:
        """Flags (by name) over the config file (as TOML gave it) over defaults; OptionsError."""
        options = build(cls, given, config)
        if fault := options.fault():
            raise OptionsError(f"failed to instantiate {cls.program} - {fault}")
        return options

    def fault(self) -> str:
        """The first thing wrong with the values, or empty."""
        return ""


def attribute_of(options_class: type[Any], key: str) -> tuple[str, Flag]:
    """The attribute and row behind a config key, or KeyError."""
    for attribute, flag in _attributes(options_class).items():
        if flag.key == key:
            return attribute, flag
    raise KeyError(key)


def usage(program: str, flags: Sequence[Flag], *, head: str = "", examples: str = "") -> str:
    """The help text: a head, every flag by name, then the tool's examples."""
    import textwrap  # 2 ms of a start, for those who ask for help

    lines = [head or f"Usage of {program}:"]
    for flag in sorted(flags, key=lambda each: each.name):
        lines.append(f"  --{flag.name} {flag.kind.label}".rstrip())
        text = flag.help
        if flag.default not in (0, "", [], ()):  # False is 0
            text += f" (default {flag.kind.show(flag.default)})"
        lines += textwrap.wrap(
            text, USAGE_COLUMNS, initial_indent=" " * 8, subsequent_indent=" " * 8
        )
    if examples:
        lines += ["", "Examples:", textwrap.indent(textwrap.dedent(examples).strip("\n"), "  ")]
    return "\n".join(lines) + "\n"


def _meant(name: str, known: Iterable[str]) -> str:
    """What is like a misspelt name, or empty."""
    from difflib import get_close_matches  # 1 ms of a start, for mistakes alone

    return "".join(get_close_matches(name, known, 1, cutoff=0.7))


def _attributes(options_class: type[Any]) -> dict[str, Flag]:
    """Attribute name to row."""
    rows = {}
    for each in fields(options_class):
        row: _Row = each.metadata[_ROW_KEY]
        attribute = each.name.removesuffix("_ns") if row.kind is DURATION else each.name
        default = each.default if each.default_factory is MISSING else each.default_factory()
        name = attribute.rstrip("_").replace("_", "-")
        rows[each.name] = Flag(name, row.kind, default, row.help, row.config_key)
    return rows


def _split(argument: str) -> tuple[str, str | None]:
    """A flag's name, and the text after `=` if there is one."""
    body = argument[2:] if argument.startswith("--") else argument[1:]
    if not body or body[0] in "-=":
        raise FlagError(f"bad flag syntax: {argument}")
    name, equals, text = body.partition("=")
    return name, text if equals else None


def _text_for(flag: Flag, rest: list[str]) -> str:
    """The value of a flag that came without `=`; takes it from the arguments left."""
    if flag.kind.is_boolean:
        return "true"
    if not rest:
        raise FlagError(f"flag needs an argument: -{flag.name}")
    return rest.pop(0)


def _parsed(flag: Flag, text: str) -> Any:
    try:
        return flag.kind.parse(text)
    except ValueError as error:
        quoted = go_quote(text.encode("utf-8", "surrogateescape"))
        if flag.kind.is_boolean:
            raise FlagError(f"invalid boolean value {quoted} for -{flag.name}: {error}") from None
        raise FlagError(f"invalid value {quoted} for flag -{flag.name}: {error}") from None


def _coerced(flag: Flag, value: object) -> Any:
    try:
        return flag.kind.coerce(value)
    except ValueError as error:
        cause = f" - {error}" if str(error) else ""
        raise OptionsError(f"failed parsing {flag.key} {_toml_text(value)}{cause}") from None


def through_text(parse_text: Callable[[str], T]) -> Callable[[object], T]:
    """A `coerce` that reads a TOML value as the flag's text. NSQ reports no cause for these."""

    def coerce(value: object) -> T:
        try:
            return parse_text(_toml_text(value))
        except ValueError:
            raise ValueError from None

    return coerce


def _toml_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_bool(text: str) -> bool:
    if text in _TRUE_WORDS:
        return True
    if text in _FALSE_WORDS:
        return False
    raise ValueError("parse error")


def _parse_int(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError("parse error")
    # Go reads 0755 as octal, Python refuses it; a lone 0 is 0 to both.
    value = int(re.sub(r"^([+-]?)0(?=[_0-7])", r"\g<1>0o", text), 0)
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError("value out of range")
    return value


def _parse_float(text: str) -> float:
    # float() also takes spaces, underscores and other scripts' digits; Go does not.
    if not _FLOAT_CHARS.fullmatch(text):
        raise ValueError("parse error")
    try:
        return float(text)
    except ValueError:
        raise ValueError("parse error") from None


def _parse_duration(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError("parse error") from None


def parse_log_level(text: str) -> LogLevel:
    """A level by its word in any case, or ValueError in NSQ's words."""
    try:
        return LogLevel[text.upper()]
    except KeyError:
        words = ", ".join(level.name.lower() for level in LogLevel)
        raise ValueError(f"invalid log level '{text}' ({words})") from None


def parse_log_format(text: str) -> LogFormat:
    try:
        return LogFormat(text.lower())
    except ValueError:
        raise ValueError(f"invalid log format '{text}' (text, json)") from None


def _coerce_bool(value: object) -> bool:
    return value if isinstance(value, bool) else _parse_bool(_toml_text(value))


def _coerce_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("not an integer")
    return _parse_int(str(value))


def _coerce_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a number")
    return _parse_float(str(value).strip())


def _coerce_duration(value: object) -> int:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("not a duration, nor an integer of milliseconds")
    if abs(value) > INT64_MAX // NS_PER_MS:
        raise ValueError("value out of range")
    return value * NS_PER_MS


def _coerce_string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    return value


def _parse_hosts(text: str) -> list[str]:
    return _checked_hosts(text.split(","))


def _coerce_hosts(value: object) -> list[str]:
    return _checked_hosts(_coerce_strings(value))


def _checked_hosts(names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    if any(not name or _NO_HOST.search(name) for name in names):
        raise ValueError("not a host name")
    return names


def _coerce_strings(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split(",") if value else []
    if not isinstance(value, list):
        raise ValueError("not a list of strings")
    return [_coerce_string(each) for each in value]


def _coerce_floats(value: object) -> list[float]:
    if isinstance(value, list):
        return [_coerce_float(each) for each in value]
    if isinstance(value, str):
        return [_parse_float(each.strip()) for each in value.split(",") if each.strip()]
    return [_coerce_float(value)]


def _show_string(value: str) -> str:
    return go_quote(value.encode("utf-8", "surrogateescape"))


BOOL: Kind[bool] = Kind("", _parse_bool, _coerce_bool, lambda v: str(v).lower(), is_boolean=True)
INT: Kind[int] = Kind("int", _parse_int, _coerce_int)
FLOAT: Kind[float] = Kind("float", _parse_float, _coerce_float)
STRING: Kind[str] = Kind("string", str, _coerce_string, _show_string)
DURATION: Kind[int] = Kind("duration", _parse_duration, _coerce_duration, format_duration)
STRINGS: Kind[list[str]] = Kind("value", lambda text: [text], _coerce_strings, is_repeatable=True)
HOSTS: Kind[list[str]] = Kind("name", _parse_hosts, _coerce_hosts, is_repeatable=True)
FLOATS: Kind[list[float]] = Kind(
    "value",
    lambda text: [_parse_float(each) for each in text.split(",")],
    _coerce_floats,
    is_repeatable=True,
)
LOG_LEVEL: Kind[LogLevel] = Kind(
    "level", parse_log_level, through_text(parse_log_level), lambda level: level.name.lower()
)
LOG_FORMAT: Kind[LogFormat] = Kind(
    "format", parse_log_format, through_text(parse_log_format), lambda chosen: chosen.value
)
PROCESS_FLAGS = (
    Flag("config", STRING, "", "path of a TOML config file"),
    Flag("version", BOOL, False, "print the version and exit"),
    Flag("verbose", BOOL, False, "deprecated, no effect: use --log-level"),
)
"""Flags of all daemons that are no options: not in the config file, nor shown by GET /config."""
