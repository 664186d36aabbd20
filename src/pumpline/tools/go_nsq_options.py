"""go-nsq's options by their names, as `--consumer-opt` and `--producer-opt` take them.

    --consumer-opt=msg_timeout,30s      name and value
    --consumer-opt=tls_v1               a name alone means true

`CLIENT_OPTIONS` is the kind of such a flag: it checks names, values and limits while the flags are
read, with go-nsq's error texts. `client_settings` turns what was given into the settings of
pumpline.client. An option that is not given has pumpline.client's default.

| not taken from here | why                                                              |
|---------------------|------------------------------------------------------------------|
| max_in_flight       | every tool has a flag for it, which wins in NSQ's tools as well  |
| low_rdy_*           | our RDY moves between connections by redistribute_interval alone |
"""

import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pumpline.client import Settings
from pumpline.core.protocol.verification import verifying_context
from pumpline.core.text.durations import NS_PER_MS, NS_PER_S, format_duration, parse_duration
from pumpline.core.text.flags import Kind

MINUTE_NS = 60 * NS_PER_S
_TRUE_WORDS = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE_WORDS = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_TLS_VERSIONS = {
    "ssl3.0": ssl.TLSVersion.SSLv3,
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}

Given = tuple[str, Any]
"""Name and value; durations in nanoseconds."""


class ClientOption(NamedTuple):
    """How the text of one option is read, and between which values it must be."""

    read: Callable[[str], Any]
    low: float | None = None
    high: float | None = None
    is_duration: bool = False


def _bool(text: str) -> bool:
    if text not in _TRUE_WORDS | _FALSE_WORDS:
        raise ValueError(f'strconv.ParseBool: parsing "{text}": invalid syntax')
    return text in _TRUE_WORDS


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'strconv.ParseFloat: parsing "{text}": invalid syntax') from None


def _file(text: str) -> str:
    try:
        with open(text, "rb"):
            return text
    except OSError as error:
        cause = f"open {text}: {(error.strerror or str(error)).lower()}"
        raise OptionFault(
            f"ERROR: failed to read custom Certificate Authority file {cause}"
        ) from None


def _tls_version(text: str) -> ssl.TLSVersion:
    if text not in _TLS_VERSIONS:
        raise OptionFault(f"ERROR: {text} is not a tls version")
    return _TLS_VERSIONS[text]


class OptionFault(ValueError):
    """A whole error text of go-nsq."""


def _duration(low_ns: int | None = None, high_ns: int | None = None) -> ClientOption:
    return ClientOption(parse_duration, low_ns, high_ns, is_duration=True)


OPTIONS: dict[str, ClientOption] = {
    "dial_timeout": _duration(),
    "read_timeout": _duration(100 * NS_PER_MS, 5 * MINUTE_NS),
    "write_timeout": _duration(100 * NS_PER_MS, 5 * MINUTE_NS),
    "lookupd_poll_interval": _duration(10 * NS_PER_MS, 5 * MINUTE_NS),
    "lookupd_poll_jitter": ClientOption(_number, 0, 1),
    "max_requeue_delay": _duration(0, 60 * MINUTE_NS),
    "default_requeue_delay": _duration(0, 60 * MINUTE_NS),
    "max_backoff_duration": _duration(0, 60 * MINUTE_NS),
    "backoff_multiplier": _duration(0, 60 * MINUTE_NS),
    "max_attempts": ClientOption(_integer, 0, 65535),
    "low_rdy_idle_timeout": _duration(NS_PER_S, 5 * MINUTE_NS),
    "low_rdy_timeout": _duration(NS_PER_S, 5 * MINUTE_NS),
    "rdy_redistribute_interval": _duration(NS_PER_MS, 5 * NS_PER_S),
    "client_id": ClientOption(str),
    "hostname": ClientOption(str),
    "user_agent": ClientOption(str),
    "heartbeat_interval": _duration(),
    "sample_rate": ClientOption(_integer, 0, 99),
    "tls_v1": ClientOption(_bool),
    "tls_root_ca_file": ClientOption(_file),
    "tls_insecure_skip_verify": ClientOption(_bool),
    "tls_cert": ClientOption(str),
    "tls_key": ClientOption(str),
    "tls_min_version": ClientOption(_tls_version),
    "deflate": ClientOption(_bool),
    "deflate_level": ClientOption(_integer, 1, 9),
    "snappy": ClientOption(_bool),
    "output_buffer_size": ClientOption(_integer),
    "output_buffer_timeout": _duration(),
    "max_in_flight": ClientOption(_integer, 0),
    "msg_timeout": _duration(0),
    "auth_secret": ClientOption(str),
}

_SETTINGS = {
    "client_id": "client_id",
    "hostname": "hostname",
    "user_agent": "user_agent",
    "dial_timeout": "connect_timeout_s",
    "read_timeout": "read_timeout_s",
    "write_timeout": "write_timeout_s",
    "heartbeat_interval": "heartbeat_interval_s",
    "msg_timeout": "msg_timeout_s",
    "sample_rate": "sample_rate",
    "output_buffer_size": "output_buffer_size",
    "output_buffer_timeout": "output_buffer_timeout_s",
    "deflate": "deflate",
    "deflate_level": "deflate_level",
    "snappy": "snappy",
    "auth_secret": "auth_secret",
    "lookupd_poll_interval": "poll_interval_s",
    "lookupd_poll_jitter": "poll_jitter",
    "max_requeue_delay": "requeue_delay_max_s",
    "default_requeue_delay": "requeue_delay_s",
    "max_backoff_duration": "backoff_max_s",
    "backoff_multiplier": "backoff_multiplier_s",
    "rdy_redistribute_interval": "redistribute_interval_s",
}


def parse_option(text: str) -> list[Given]:
    """One flag's value as a list of one; ValueError in go-nsq's words."""
    key, comma, value = text.partition(",")
    name = key.replace("-", "_").lower()
    option = OPTIONS.get(name)
    if option is None:
        raise ValueError(f"invalid option {key}")
    try:
        read = option.read(value if comma else "true")
    except OptionFault:
        raise
    except ValueError as error:
        raise ValueError(f"failed to coerce option {name} ({value}) - {error}") from None
    show: Callable[[Any], str] = format_duration if option.is_duration else str
    if option.low is not None and read < option.low:
        raise ValueError(f"invalid {name} ! {show(read)} < {show(option.low)}")
    if option.high is not None and read > option.high:
        raise ValueError(f"invalid {name} ! {show(read)} > {show(option.high)}")
    return [(name, read)]


def _not_in_files(value: object) -> list[Given]:
    raise ValueError("not an option of a config file")


CLIENT_OPTIONS: Kind[list[Given]] = Kind("value", parse_option, _not_in_files, is_repeatable=True)


def client_settings(given: Sequence[Given], *, user_agent: str) -> Settings:
    """ValueError if the options contradict each other."""
    values = dict(given)
    chosen = {
        attribute: _in_seconds(name, values[name])
        for name, attribute in _SETTINGS.items()
        if name in values
    }
    tls = _tls_context(values) if values.get("tls_v1") else False
    return replace(Settings(user_agent=user_agent), **chosen, tls=tls)


def attempts_max(given: Sequence[Given], default: int) -> int:
    return int(dict(given).get("max_attempts", default))


def _in_seconds(name: str, value: Any) -> Any:
    return value / NS_PER_S if OPTIONS[name].is_duration else value


def _tls_context(values: dict[str, Any]) -> ssl.SSLContext:
    try:
        context = verifying_context(values.get("tls_root_ca_file", ""))
        if values.get("tls_cert") or values.get("tls_key"):
            context.load_cert_chain(values.get("tls_cert", ""), values.get("tls_key"))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"TLS: {error}") from None
    if values.get("tls_insecure_skip_verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if version := values.get("tls_min_version"):
        context.minimum_version = version
    return context
