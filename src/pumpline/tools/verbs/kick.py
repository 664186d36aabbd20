"""`pumpline kick`: disconnect consumers of a channel, so that others get their messages at once.

A consumer is known by its address as /stats shows it, or by the client id or host name that it told
nsqd. It may connect again. Stock nsqds have no such endpoint.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.core.text.flags import BOOL, option
from pumpline.tools.arguments import UsageError
from pumpline.tools.verbs.changes import named
from pumpline.tools.verbs.output import Column, note, shown_number
from pumpline.tools.verbs.verb import Call, ChangeOptions, Nothing, Verb, run_verb

NAMED_MAX = 10  # consumers in the question

COLUMNS = (
    Column("node", "node"),
    Column("client", "client"),
    Column("client_id", "client id"),
    Column("in_flight", "in flight", shown_number, is_number=True),
    Column("result", "result"),
)


@dataclass(slots=True, kw_only=True)
class KickOptions(ChangeOptions):
    all: bool = option(BOOL, False, "all consumers of the channel")


class _Client(msgspec.Struct, kw_only=True):
    remote_address: str
    client_id: str = ""
    hostname: str = ""
    in_flight_count: int = 0

    def is_one_of(self, names: Sequence[str]) -> bool:
        return bool({self.remote_address, self.client_id, self.hostname} & set(names))


class _Channel(msgspec.Struct, kw_only=True):
    channel_name: str
    clients: list[_Client] | None = None


class _Topic(msgspec.Struct, kw_only=True):
    channels: list[_Channel]


class _Stats(msgspec.Struct, kw_only=True):
    topics: list[_Topic] | None = None


class _Found(NamedTuple):
    node: ClusterNode
    client: _Client


_decoder = msgspec.json.Decoder(_Stats)


def run(call: Call[KickOptions]) -> int:
    topic, channel, *names = call.arguments
    if bool(names) == call.options.all:
        raise UsageError("name the consumers (address, client id or host), or say --all")
    nodes, _ = call.with_channel(topic, channel)
    by_node = call.each(nodes, lambda node: _clients(node, topic, channel))
    found = [
        _Found(node, client)
        for node in nodes
        for client in by_node.get(node.address, ())
        if call.options.all or client.is_one_of(names)
    ]
    if not found:
        who = " or ".join(names)
        where = named(topic, channel)
        raise Nothing(f"no consumer of {where} is {who}" if names else f"{where} has no consumer")
    shown = [each.client.remote_address for each in found[:NAMED_MAX]]
    shown += ["…"] if len(found) > NAMED_MAX else []
    many = f"{len(found)} consumer{'s' if len(found) != 1 else ''}"
    question = f"Disconnect {many} of {named(topic, channel)}: {', '.join(shown)}?"
    if not call.confirmed(question, yes=call.options.yes):
        return 1
    rows: list[dict[str, object]] = []
    answers = call.each(
        list({each.node.address: each.node for each in found}.values()),
        lambda node: [
            _kick(node, topic, channel, each.client) for each in found if each.node is node
        ],
    )
    for answer in answers.values():
        rows += answer
    for row in rows:
        if not row["ok"]:
            note(f"nsqd {row['node']}: {row['client']}: {row['result']}")
            call.failed = True
    call.out.rows(COLUMNS, rows, empty="no consumer")
    return call.exit_code


def _clients(node: ClusterNode, topic: str, channel: str) -> list[_Client]:
    query = {"format": "json", "topic": topic, "channel": channel, "include_mem": "false"}
    try:
        stats = _decoder.decode(node.get("/stats", query))
    except msgspec.MsgspecError as error:
        raise NodeFailure(f"it answers /stats as no nsqd does: {error}") from None
    channels = [each for one in stats.topics or () for each in one.channels]
    return [client for each in channels for client in each.clients or ()]


def _kick(node: ClusterNode, topic: str, channel: str, client: _Client) -> dict[str, object]:
    """A row; a consumer that is gone by itself is no failure."""
    query = {"topic": topic, "channel": channel, "client": client.remote_address}
    row: dict[str, object] = {
        "node": node.address,
        "client": client.remote_address,
        "client_id": client.client_id,
        "in_flight": client.in_flight_count,
        "ok": True,
        "result": "disconnected",
    }
    try:
        answer = node.post_json("/channel/disconnect", query)
        if isinstance(answer, dict):
            row["in_flight"] = answer.get("in_flight")
    except NodeFailure as failure:
        if failure.code == "CLIENT_NOT_FOUND":
            row["result"] = "gone already"
        else:
            row.update(ok=False, result=str(failure))
    return row


VERB = Verb(
    name="kick",
    summary="disconnect consumers of a channel; others get their messages",
    places="<topic> <channel> [consumer]...",
    options=KickOptions,
    examples="""
        pumpline kick orders billing 10.0.0.7:53124 --yes
        pumpline kick orders billing worker-3 --yes
        pumpline kick orders billing --all --yes
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
