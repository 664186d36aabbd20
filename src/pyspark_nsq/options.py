"""The options of `format("nsq")`: parsed and checked before any node is asked.

Names are those of Spark's Kafka source where it has the same option. Spark passes option names in
lower case, so names are compared without regard to case. Knows texts and their limits; must not
know nodes, sockets or Spark.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TypedDict

from pumpline.core.text.access_tokens import TOKEN_CHARS, is_access_token
from pumpline.core.text.names import is_ephemeral, is_valid_name
from pyspark_nsq.errors import BadOption

EARLIEST = "earliest"
LATEST = "latest"
OFFSET_LATEST = -1  # in JSON, as in Spark's Kafka source
OFFSET_EARLIEST = -2
ALL_OTHERS = "*"  # in JSON, {"*": {"*": -2}}: of all logs that are not named

READ_NAMES = (
    "nsqd lookupd subscribe subscribePattern startingOffsets endingOffsets startingTimestamp "
    "endingTimestamp parallelism minPartitions maxRecordsPerPartition maxOffsetsPerTrigger "
    "minOffsetsPerTrigger maxTriggerDelay maxBytesPerTrigger failOnDataLoss withoutNode "
    "expectNodes hold holdBytesMax holdDescription fetchBytes localFiles requestTimeoutMs "
    "retryForMs accessToken accessTokenFile tlsCaFile tlsCertFile tlsKeyFile"
).split()
WRITE_NAMES = (
    "nsqd topic writeId chunkBytes chunkRows requestTimeoutMs retryForMs accessToken "
    "accessTokenFile tlsCaFile tlsCertFile tlsKeyFile"
).split()
# Spark passes these on to sources and sinks, too, but they are Spark's own. Those after the first
# three are of tables in a catalog.
SPARKS_OWN_NAMES = frozenset(
    "checkpointlocation queryname serialization.format provider location owner comment collation "
    "external is_managed_location transient_lastddltime".split()
)
CATALOG_PREFIX = "option."  # of the options of a table in a catalog, which Spark passes on twice
# Names that other sources and tools use for the same thing.
OTHER_NAMES = {
    "path": "subscribe",
    "topics": "subscribe",
    "kafka.bootstrap.servers": "nsqd",
    "nsqd_tcp_address": "nsqd",
    "nsqd_http_address": "nsqd",
    "nsqd-http-address": "nsqd",
    "lookupd_http_address": "lookupd",
    "lookupd-http-address": "lookupd",
    "nsqlookupd": "lookupd",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "channel": "hold",
}

FETCH_BYTES = 4 << 20  # 8 MiB is slower: it does not stay in the processor's cache
FETCH_BYTES_RANGE = (64 << 10, 512 << 20)
CHUNK_BYTES = 1 << 20  # 2 MiB costs nsqd half as much CPU again, and is a tenth slower
CHUNK_BYTES_RANGE = (1 << 10, 512 << 20)
CHUNK_ROWS = 20_000
TRIGGER_BYTES = 512 << 20  # of a micro-batch; a pipeline keeps it in memory, or on the local disk
TRIGGER_DELAY = "15m"  # as in Spark's Kafka source
REQUEST_TIMEOUT_MS = 30_000
RETRY_FOR_MS = 60_000
INTEGER_MAX = (1 << 63) - 1

_MS_PER_S = 1000
_NS_PER_MS = 1_000_000
_NS_PER_US = 1000
_DELAY = re.compile(r"(\d{1,9}) ?(ms|s|m|min|h|d)", re.ASCII)
_S_BY_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_ADDRESS = re.compile(r"(?:(https?)://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})/?")
_NODE = re.compile(r"(?:https?://)?([^\s/]+:[0-9]{1,5})/?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message published at this time or later."""

    time_ns: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each node of each topic."""

    offsets: Mapping[str, Mapping[str, int]]
    others_ns: int | None = None  # of logs that are not named: a time instead of an offset


Bound = str | AtTime | AtOffsets  # the str is EARLIEST or LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Connecting:
    """How to talk to nodes."""

    request_timeout_s: float = REQUEST_TIMEOUT_MS / _MS_PER_S
    retry_s: float = RETRY_FOR_MS / _MS_PER_S
    access_token: str = field(default="", repr=False)
    access_token_file: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    nsqd: tuple[str, ...]
    lookupd: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str | None
    starting: Bound
    ending: Bound
    cores: int | None  # of all executors; those of the driver's machine if it is not known
    partitions_min: int | None
    partition_rows_max: int | None
    trigger_rows_max: int | None
    trigger_rows_min: int | None
    trigger_delay_s: float  # that a micro-batch waits for trigger_rows_min at most
    trigger_bytes_max: int
    fail_on_data_loss: bool
    without: frozenset[str]  # nodes that may be missing, by name or HTTP address
    nodes_expected: int | None  # so many must answer, at least
    hold: str | None
    hold_bytes_max: int | None
    hold_description: str | None
    fetch_bytes: int
    local_files: bool
    connecting: Connecting

    def wants(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics

    @property
    def subscription(self) -> str:
        """A description of the topics, for error texts."""
        if self.pattern is not None:
            return f"topics like {self.pattern}"
        return "topic " + ", ".join(self.topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    nsqd: tuple[str, ...]
    topic: str | None
    write_id: str | None
    chunk_bytes: int
    chunk_rows: int
    connecting: Connecting


def from_catalog(options: Mapping[str, str]) -> dict[str, str]:
    """The options, also those of CREATE TABLE, which Spark passes on with a prefix."""
    length = len(CATALOG_PREFIX)
    return {
        name[length:] if name.lower().startswith(CATALOG_PREFIX) else name: value
        for name, value in options.items()
    }


def check_names(options: Mapping[str, str]) -> None:
    """Raise BadOption for an unknown name, with the name that was probably meant."""
    known = {name.lower(): name for name in (*READ_NAMES, *WRITE_NAMES)}
    for given in options:
        name = given.lower()
        if name in known or name in SPARKS_OWN_NAMES or name.startswith(("spark.", "pipelines.")):
            continue
        meant = OTHER_NAMES.get(name)
        if meant is None:
            close = get_close_matches(name, known, n=1, cutoff=0.6)
            meant = known[close[0]] if close else None
        hint = f"did you mean '{meant}'?" if meant else "known are: " + ", ".join(known.values())
        raise BadOption(f"unknown option '{given}': {hint}")


def parse_read(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    given = _Given(options)
    given.refuse_others(READ_NAMES, "is for writing only")
    nsqd, lookupd = given.addresses("nsqd"), given.addresses("lookupd")
    if not nsqd and not lookupd:
        raise BadOption(
            "say where to read: nsqd=host:port,... (HTTP addresses, often port 4151) "
            "or lookupd=host:port,... (nsqlookupd, often port 4161)" + _of_catalog(options)
        )
    topics, pattern = _subscription(given)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp"):
            if given.text(name) is not None:
                raise BadOption(f"'{name}' makes no sense in a stream, which has no end")
    return ReadOptions(
        nsqd=nsqd,
        lookupd=lookupd,
        topics=topics,
        pattern=pattern,
        starting=_bound(given, "starting", default=LATEST if streaming else EARLIEST),
        ending=_bound(given, "ending", default=LATEST),
        cores=given.integer("parallelism", low=1, high=100_000),
        partitions_min=given.integer("minPartitions", low=1, high=100_000),
        partition_rows_max=given.integer("maxRecordsPerPartition", low=1),
        **_of_trigger(given),
        fail_on_data_loss=given.boolean("failOnDataLoss", default=True),
        without=_without(given),
        nodes_expected=given.integer("expectNodes", low=1),
        hold=_hold(given),
        hold_bytes_max=given.integer("holdBytesMax", low=0),
        hold_description=given.text("holdDescription"),
        fetch_bytes=given.integer("fetchBytes", *FETCH_BYTES_RANGE) or FETCH_BYTES,
        local_files=given.boolean("localFiles", default=True),
        connecting=_connecting(given),
    )


class _OfTrigger(TypedDict):
    trigger_rows_max: int | None
    trigger_rows_min: int | None
    trigger_delay_s: float
    trigger_bytes_max: int


def _of_trigger(given: "_Given") -> _OfTrigger:
    """How much a micro-batch reads, and how long it waits for more."""
    rows_min = given.integer("minOffsetsPerTrigger", low=1)
    rows_max = given.integer("maxOffsetsPerTrigger", low=1)
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise BadOption(
            f"'minOffsetsPerTrigger' must be at most {rows_max:,}, which is "
            f"'maxOffsetsPerTrigger', not {rows_min:,}"
        )
    delay = given.text("maxTriggerDelay")
    if delay is not None and rows_min is None:
        raise BadOption("'maxTriggerDelay' needs 'minOffsetsPerTrigger', the rows to wait for")
    found = _DELAY.fullmatch(delay or TRIGGER_DELAY)
    if found is None:
        raise BadOption(f"'maxTriggerDelay' must be a time like 30s, 15m or 1h, not '{delay}'")
    return {
        "trigger_rows_max": rows_max,
        "trigger_rows_min": rows_min,
        "trigger_delay_s": int(found[1]) * _S_BY_UNIT[found[2]],
        "trigger_bytes_max": given.integer("maxBytesPerTrigger", low=1) or TRIGGER_BYTES,
    }


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    given = _Given(options)
    given.refuse_others(WRITE_NAMES, "is for reading only")
    nsqd = given.addresses("nsqd")
    if not nsqd:
        raise BadOption(
            "say where to write: nsqd=host:port,... (HTTP addresses, often port 4151)"
            + _of_catalog(options)
        )
    topic = given.text("topic")
    if topic is not None and not is_valid_name(topic):
        raise BadOption(f"'topic': '{topic}' is not a valid topic name")
    return WriteOptions(
        nsqd=nsqd,
        topic=topic,
        write_id=given.text("writeId"),
        chunk_bytes=given.integer("chunkBytes", *CHUNK_BYTES_RANGE) or CHUNK_BYTES,
        chunk_rows=given.integer("chunkRows", low=1) or CHUNK_ROWS,
        connecting=_connecting(given),
    )


def _of_catalog(options: Mapping[str, str]) -> str:
    """What to add if there is no option at all, as when a table of Spark's catalog is used."""
    if options:
        return ""
    return (
        "; if this is a table in Spark's catalog: Spark drops the options of CREATE TABLE, so give "
        "them in the query, as in FROM t WITH (nsqd='host:port', subscribe='topic')"
    )


class _Given:
    """The options that the user gave; names in any case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        check_names(options)

    def refuse_others(self, names: list[str], why: str) -> None:
        allowed = {name.lower() for name in names}
        for name in (*READ_NAMES, *WRITE_NAMES):
            if name.lower() in self._values and name.lower() not in allowed:
                raise BadOption(f"option '{name}' {why}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is None:
            return None
        if not (stripped := value.strip()):
            raise BadOption(f"'{name}' is empty")
        return stripped

    def integer(self, name: str, low: int, high: int = INTEGER_MAX) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise BadOption(f"'{name}' must be a whole number, not '{text}'") from None
        if not low <= value <= high:
            limits = f"at least {low:,}" if high == INTEGER_MAX else f"from {low:,} to {high:,}"
            raise BadOption(f"'{name}' must be {limits}, not {value:,}")
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise BadOption(f"'{name}' must be true or false, not '{text}'")
        return text.lower() == "true"

    def addresses(self, name: str) -> tuple[str, ...]:
        """HTTP addresses as `http://host:port`, without repeats."""
        found: dict[str, None] = {}
        for address in (self.text(name) or "").split(","):
            if not (text := address.strip()):
                continue
            match = _ADDRESS.fullmatch(text)
            if match is None or not 0 < int(match[3]) < 1 << 16:
                raise BadOption(f"'{name}': '{text}' is not an address like 127.0.0.1:4151")
            found[f"{match[1] or 'http'}://{match[2]}:{match[3]}"] = None
        return tuple(found)


def _subscription(given: _Given) -> tuple[tuple[str, ...], str | None]:
    listed, pattern = given.text("subscribe"), given.text("subscribePattern")
    if (listed is None) == (pattern is None):
        said = "not both" if listed else "as in subscribe=orders"
        raise BadOption(f"say what to read by 'subscribe' or 'subscribePattern', {said}")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadOption(f"'subscribePattern': {error} in '{pattern}'") from None
        return (), pattern
    assert listed is not None
    topics = tuple(dict.fromkeys(name.strip() for name in listed.split(",") if name.strip()))
    for name in topics:
        if not is_valid_name(name):
            raise BadOption(f"'subscribe': '{name}' is not a valid topic name")
        if is_ephemeral(name):
            raise BadOption(f"'subscribe': '{name}' is ephemeral and has no log to read")
    if not topics:
        raise BadOption("'subscribe' names no topic")
    return topics, None


def _without(given: _Given) -> frozenset[str]:
    found: set[str] = set()
    for text in (given.text("withoutNode") or "").split(","):
        if not text.strip():
            continue
        match = _NODE.fullmatch(text.strip())
        if match is None:
            raise BadOption(f"'withoutNode': '{text.strip()}' is not a node like 127.0.0.1:4150")
        found.add(match[1])
    return frozenset(found)


def _hold(given: _Given) -> str | None:
    name = given.text("hold")
    if name is not None and (not is_valid_name(name) or is_ephemeral(name)):
        raise BadOption(f"'hold': '{name}' is not a valid channel name")
    for other in ("holdBytesMax", "holdDescription"):
        if name is None and given.text(other) is not None:
            raise BadOption(f"'{other}' needs 'hold', the name of the hold")
    return name


def _bound(given: _Given, side: str, *, default: str) -> Bound:
    offsets, time = given.text(f"{side}Offsets"), given.text(f"{side}Timestamp")
    if offsets is not None and time is not None:
        raise BadOption(f"say '{side}Offsets' or '{side}Timestamp', not both")
    if time is not None:
        return AtTime(parse_time_ns(f"{side}Timestamp", time))
    if offsets is None:
        return default
    edges = (EARLIEST, LATEST) if side == "starting" else (LATEST,)
    if offsets.lower() in edges:
        return offsets.lower()
    return _at_offsets(f"{side}Offsets", offsets, edges)


def parse_time_ns(name: str, text: str) -> int:
    """Milliseconds since 1970, as Spark's Kafka source takes them, or an ISO 8601 date and time."""
    if re.fullmatch(r"[0-9]{1,15}", text, re.ASCII):
        return int(text) * _NS_PER_MS
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"'{name}' must be milliseconds since 1970 or like 2026-11-16T08:00:00Z, not '{text}'"
        ) from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * _NS_PER_US


def time_text(time_ns: int) -> str:
    """A time as `parse_time_ns` takes it, in microseconds."""
    return (_EPOCH + timedelta(microseconds=time_ns // _NS_PER_US)).isoformat()


def _at_offsets(name: str, text: str, edges: tuple[str, ...]) -> AtOffsets:
    wanted = (
        f"'{name}' must be {' or '.join(edges)} or JSON like "
        '{"orders": {"127.0.0.1:4150": 42}} (topic, node, offset; -1: latest, -2: earliest)'
    )
    try:
        value = json.loads(text)
    except ValueError:
        raise BadOption(f"{wanted}, not '{text}'") from None
    if not isinstance(value, dict) or not value:
        raise BadOption(f"{wanted}, not '{text}'")
    others_ns: int | None = None
    for topic, nodes in value.items():
        if not isinstance(nodes, dict) or not nodes:
            raise BadOption(f"{wanted}; topic '{topic}' has no nodes")
        for node, offset in nodes.items():
            if topic == node == ALL_OTHERS and isinstance(offset, str):
                others_ns = parse_time_ns(name, offset)
                continue
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < OFFSET_EARLIEST:
                raise BadOption(f"{wanted}; '{topic}' on '{node}' has {json.dumps(offset)}")
    if others_ns is not None:
        del value[ALL_OTHERS][ALL_OTHERS]
    return AtOffsets(value, others_ns)


def _connecting(given: _Given) -> Connecting:
    cert, key = given.text("tlsCertFile"), given.text("tlsKeyFile")
    if (cert is None) != (key is None):
        raise BadOption("'tlsCertFile' and 'tlsKeyFile' go together")
    timeout_ms = given.integer("requestTimeoutMs", low=100, high=3_600_000) or REQUEST_TIMEOUT_MS
    retry_ms = given.integer("retryForMs", low=0, high=86_400_000)
    token, token_file = given.text("accessToken"), given.text("accessTokenFile")
    if token and token_file:
        raise BadOption("say 'accessToken' or 'accessTokenFile', not both")
    if token and not is_access_token(token):
        raise BadOption(f"'accessToken' has characters other than {TOKEN_CHARS}")
    return Connecting(
        request_timeout_s=timeout_ms / _MS_PER_S,
        retry_s=(RETRY_FOR_MS if retry_ms is None else retry_ms) / _MS_PER_S,
        access_token=token or "",
        access_token_file=token_file or "",
        tls_ca_file=given.text("tlsCaFile") or "",
        tls_cert_file=cert or "",
        tls_key_file=key or "",
    )
