"""The nodes of a read: finds them, asks which logs they have, and places holds on them.

Nodes come from the `nsqd` option, from nsqlookupd, or both. A node that was found once is kept, so
a failing nsqlookupd does not interrupt a stream. Nodes that nsqlookupd has lost are asked, too:
they may be back, and if they are not, a read without them is incomplete (`absence`). A survey asks
all nodes at the same time. Knows the HTTP API of nsqd and nsqlookupd; must not know Spark, or what
the answers are used for.
"""

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from socket import gethostname
from threading import Lock
from typing import Any

from pumpline.core.messages.spans import left_out
from pyspark_nsq.errors import BadOption, NodeRefused, NsqError, UnknownTopic, Unreachable
from pyspark_nsq.nodes.connection import NodeConnection
from pyspark_nsq.nodes.directory import LOST, NamedNode, merged, named_nodes
from pyspark_nsq.nodes.positions import Gaps, Key
from pyspark_nsq.nodes.workers import NodeWorkers
from pyspark_nsq.options import ReadOptions

TOPICS_ASKED_ONE_BY_ONE_MAX = 8  # for more, a node lists all its topics instead
SERVER_ERROR = 500  # and above
DESCRIPTION_CHARS_MAX = 500  # of a hold
DISCOVERY_S = 1.0  # between two questions to nsqlookupd
PATIENCE_S = 2.0  # for the answers to a survey; a node that is late is away for now

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What a node says about one of its logs."""

    topic: str
    node: str
    address: str
    log: str
    first: int
    end: int
    bytes: int
    now_ns: int = 0  # the node's time; 0 if it does not say
    started: str = ""  # changes with every start of the node
    gaps: Gaps = ()

    @property
    def key(self) -> Key:
        return self.topic, self.node

    @property
    def row_bytes(self) -> int:
        rows = self.end - self.first - left_out(self.gaps, self.first, self.end)
        return max(self.bytes // max(rows, 1), 1)


@dataclass(slots=True)
class Survey:
    """The answers of all nodes: logs of the wanted topics, names, and which do not answer."""

    logs: dict[Key, LogState] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # address by node
    silent: dict[str, str] = field(default_factory=dict)  # reason by address
    silent_names: dict[str, str] = field(default_factory=dict)  # by address, if it answered before
    lost: dict[str, NamedNode] = field(default_factory=dict)  # by address, if nsqlookupd says so
    undirected: str = ""  # why no nsqlookupd can be asked


class Nodes:
    """All nodes of a read. It has sockets, so it cannot be pickled: make it where it is used."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pattern = None if options.pattern is None else re.compile(options.pattern)
        self._known: dict[str, NodeConnection] = {}
        self._names: dict[str, str] = {}  # node by address
        self._locks: dict[str, Lock] = {}  # a late question may still use the connection
        self._lost: dict[str, NamedNode] = {}  # by address
        self._undirected = ""
        self._discovered_s: float | None = None
        self._workers = NodeWorkers()

    def close(self) -> None:
        self._workers.close()
        for connection in self._known.values():
            connection.close()

    def survey(self, *, patience_s: float | None = None) -> Survey:
        """Ask all nodes; those that take longer than `patience_s` are silent for now."""
        self._discover(patience_s)
        survey = Survey(lost=self._lost, undirected=self._undirected)
        answers = self._workers.at_once(
            [*self._known], self._describe, kind="survey", patience_s=patience_s
        )
        for address, answer in answers.items():
            if isinstance(answer, Unreachable):
                survey.silent[address] = str(answer)
                if address in self._names:
                    survey.silent_names[address] = self._names[address]
                continue
            node, states = answer
            survey.names.setdefault(node, self._known[address].address)
            for state in states:
                twin = survey.logs.setdefault(state.key, state)
                if twin.log != state.log:
                    raise NsqError(
                        f"{twin.address} and {address} both call themselves {node}: "
                        "give each nsqd its own --broadcast-address"
                    )
        return survey

    def offset_at(self, state: LogState, time_ns: int) -> int:
        """The first offset published at this time or later; the end if there is none."""
        answer = self._ask(state.address, "/log/offsets", {"topic": state.topic, "time": time_ns})
        return _integer(answer, "offset", state.address)

    def published_ns(self, state: LogState, offset: int) -> int | None:
        """When the message at an offset was published; None if there is none."""
        query = {"topic": state.topic, "from": offset, "limit": 1, "body_max": 0}
        messages = self._ask(state.address, "/log/peek", query).get("messages")
        found = messages[0] if isinstance(messages, list) and messages else {}
        published = found.get("timestamp") if found.get("offset") == offset else None
        return published if isinstance(published, int) else None

    def missing(self, survey: Survey) -> UnknownTopic | None:
        """The error for wanted topics that are on no node; None if all are on some node."""
        have = {topic for topic, _ in survey.logs}
        if self._pattern is not None:
            if have:
                return None
            return UnknownTopic(
                f"no topic matches '{self._pattern.pattern}' on {self._all(survey)}"
            )
        lacking = [topic for topic in self._options.topics if topic not in have]
        if not lacking:
            return None
        there = sorted(self._topics_there(survey))
        close = get_close_matches(lacking[0], there, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        return UnknownTopic(f"topic '{lacking[0]}' is not on {self._all(survey)}{hint}")

    def create_hold(self, state: LogState, offset: int) -> int:
        """Create the hold at `offset` unless it exists; return the offset at which it stands."""
        query: dict[str, object] = {
            "topic": state.topic,
            "hold": self._options.hold,
            "offset": offset,
        }
        description = self._options.hold_description or f"Spark on {gethostname()}"
        query["description"] = description[:DESCRIPTION_CHARS_MAX]
        if self._options.hold_bytes_max is not None:
            query["bytes_max"] = self._options.hold_bytes_max
        answer = self._ask(state.address, "/hold/create", query, method="POST")
        place = answer.get("offset")
        return place if isinstance(place, int) else offset

    def commit_holds(
        self,
        offsets: Mapping[Key, int],
        addresses: Mapping[str, str],
        *,
        patience_s: float | None = None,
    ) -> list[Key]:
        """Move holds forward, on all nodes at once; return those that could not be moved."""
        by_address: dict[str, list[Key]] = {}
        failed: list[Key] = []
        for key in offsets:
            address = addresses.get(key[1])
            if address is None:
                failed.append(key)
            else:
                by_address.setdefault(address, []).append(key)

        def commit(address: str) -> list[Key]:
            return [key for key in by_address[address] if not self._commit(address, key, offsets)]

        outcomes = self._workers.at_once(by_address, commit, kind="commit", patience_s=patience_s)
        for address, outcome in outcomes.items():
            failed += by_address[address] if isinstance(outcome, Unreachable) else outcome
        return failed

    def _commit(self, address: str, key: Key, offsets: Mapping[Key, int]) -> bool:
        query = {"topic": key[0], "hold": self._options.hold, "offset": offsets[key]}
        try:
            answer = self._ask(address, "/hold/commit", query, method="POST")
        except NodeRefused as error:
            _LOG.warning("hold %s on topic %s: %s", self._options.hold, key[0], error)
            return False
        if answer.get("dropped"):
            _LOG.warning("hold %s on topic %s was dropped: too far behind", query["hold"], key[0])
        return True

    def _describe(self, address: str) -> tuple[str, list[LogState]]:
        """The node's name, and its logs of the wanted topics."""
        topics = self._options.topics
        if self._pattern is not None or len(topics) > TOPICS_ASKED_ONE_BY_ONE_MAX:
            return self._describe_all(address)
        states: list[LogState] = []
        for topic in topics:
            try:
                answer = self._ask(address, "/log/offsets", {"topic": topic})
            except NodeRefused as error:
                if error.code != "TOPIC_NOT_FOUND":
                    raise _explained(error) from None
                continue
            states.append(_state(answer, self._known[address].address))
        if states:
            self._names[address] = states[0].node
        elif address not in self._names:
            return self._describe_all(address)
        return self._names[address], states

    def _describe_all(self, address: str) -> tuple[str, list[LogState]]:
        node, entries = self._list(address)
        self._names[address] = node
        now = self._known[address].address
        states = [_state({"node": node, **entry}, now) for entry in entries]
        return node, [state for state in states if self._options.wants(state.topic)]

    def _list(self, address: str) -> tuple[str, list[dict[str, object]]]:
        try:
            answer = self._ask(address, "/log/offsets", {})
        except NodeRefused as error:
            raise _explained(error) from None
        entries = answer.get("topics")
        if not isinstance(entries, list):
            raise Unreachable(f"{address} answers /log/offsets without topics")
        return str(answer.get("node")), entries

    def _topics_there(self, survey: Survey) -> set[str]:
        def names(address: str) -> list[str]:
            return [str(entry.get("topic")) for entry in self._list(address)[1]]

        reachable = dict.fromkeys(survey.names.values())
        lists = self._workers.at_once(reachable, names, kind="topics").values()
        return {name for found in lists if not isinstance(found, Unreachable) for name in found}

    def _all(self, survey: Survey) -> str:
        return ", ".join(sorted(survey.names)) or "any node"

    def _discover(self, patience_s: float | None) -> None:
        """Add nodes from the options, and at most every DISCOVERY_S those that nsqlookupds name."""
        for address in self._options.nsqd:
            self._add(address)
        now_s = time.monotonic()
        recently = self._discovered_s is not None and now_s - self._discovered_s < DISCOVERY_S
        if not self._options.lookupd or recently:
            return
        answers = self._workers.at_once(
            self._options.lookupd, self._look_up, kind="lookup", patience_s=patience_s
        )
        silent = [str(answer) for answer in answers.values() if isinstance(answer, Unreachable)]
        self._undirected = "; ".join(silent) if len(silent) == len(answers) else ""
        if self._undirected and not self._known:
            raise Unreachable(f"no nsqlookupd can be asked: {self._undirected}")
        for text in silent:
            _LOG.warning("nsqlookupd: %s", text)
        if not self._undirected:
            lists = [answer for answer in answers.values() if not isinstance(answer, Unreachable)]
            self._name(merged(lists))
        self._discovered_s = now_s

    def _name(self, named: Mapping[str, NamedNode]) -> None:
        """Add the nodes that nsqlookupds name. A lost node that never answered and was dismissed
        is expected no more."""
        for address in self._lost.keys() - named.keys():
            if address not in self._names and address not in self._options.nsqd:
                self._known.pop(address).close()
        self._lost = {address: node for address, node in named.items() if node.lost_ns}
        for address in named:
            self._add(address)

    def _add(self, address: str) -> None:
        if address not in self._known:
            self._known[address] = NodeConnection(address, self._options.connecting)

    def _look_up(self, address: str) -> list[NamedNode]:
        """The nodes that one nsqlookupd names."""
        # Without the access token: it is for nsqds.
        connecting = replace(self._options.connecting, access_token="", access_token_file="")
        connection = NodeConnection(address, connecting)
        wants = self._options.wants
        try:
            if self._pattern is not None:
                return named_nodes(self._look_up_at(connection, "/nodes", LOST), wants)
            found: list[NamedNode] = []
            for topic in self._options.topics:
                query = {"topic": topic, **LOST}
                found += named_nodes(self._look_up_at(connection, "/lookup", query), wants)
            return found
        finally:
            connection.close()

    def _look_up_at(
        self, connection: NodeConnection, path: str, query: Mapping[str, object]
    ) -> object:
        try:
            return connection.ask(path, query)
        except NodeRefused as error:
            if error.status != 404:
                raise Unreachable(str(error)) from None
            if error.code != "TOPIC_NOT_FOUND":
                text = f"{connection.address} has no {path}: it is no HTTP port of an nsqlookupd"
                raise BadOption(f"{text}, which is often 4161") from None
            return None

    def _ask(
        self, address: str, path: str, query: Mapping[str, object], *, method: str = "GET"
    ) -> dict[str, object]:
        with self._locks.setdefault(address, Lock()):
            answer = self._at(address).ask(path, query, method=method)
        return answer if isinstance(answer, dict) else {}

    def _at(self, address: str) -> NodeConnection:
        """The connection for an address: where the node was found, or its TLS address."""
        found = self._known.get(address)
        if found is None:
            found = next(c for c in self._known.values() if c.address == address)
        return found


def _explained(error: NodeRefused) -> NsqError:
    if error.status >= SERVER_ERROR:
        return Unreachable(str(error))  # starting, stopping or failing: it may answer later
    if error.status == 404:
        return NsqError(
            f"{error}: it has no /log API, so it is not a pumpline nsqd (or 'nsqd' names a port "
            "that is not its HTTP port)"
        )
    return error


def _state(answer: Mapping[str, object], address: str) -> LogState:
    return LogState(
        topic=str(answer.get("topic")),
        node=str(answer.get("node")),
        address=address,
        log=str(answer.get("log")),
        first=_integer(answer, "first", address),
        end=_integer(answer, "end", address),
        bytes=_integer(answer, "bytes", address),
        now_ns=_integer(answer, "timestamp", address),
        started=str(answer.get("started", "")),
        gaps=_gaps(answer, address),
    )


def _gaps(answer: Mapping[str, object], address: str) -> Gaps:
    try:
        gaps: Any = answer.get("gaps", ())
        return tuple((int(start), int(end)) for start, end in gaps)
    except (TypeError, ValueError):
        raise Unreachable(f"{address} answers /log/offsets with 'gaps' that are none") from None


def _integer(answer: Mapping[str, object], name: str, address: str) -> int:
    value = answer.get(name)
    if not isinstance(value, int):
        raise Unreachable(f"{address} answers /log/offsets without '{name}'")
    return value
