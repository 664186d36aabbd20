"""Changes of many rows at once, and of one node alone; and moving a channel to another place.

What happened is told row by row and node by node. docs/nsqadmin.md has every field.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec

from pumpline.nsqadmin.api.bodies import check_channel, check_topic, json_body
from pumpline.nsqadmin.api.topic_nodes import TopicNodes, change_reply, failures
from pumpline.nsqadmin.cluster.changes import Change, Changes
from pumpline.nsqadmin.cluster.directory import Failed, warning_message
from pumpline.nsqadmin.notifications import Notifier
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

TARGETS_MAX = 1000
AT_ONCE_MAX = 16  # targets
ON_NODES = ("pause", "unpause", "empty")
ON_ONE_NODE = ("tombstone", "disconnect")
ACTIONS = (*ON_NODES, *ON_ONE_NODE, "create", "delete", "delete_hold")
OTHER_NAMES = {  # in notifications
    "tombstone": "tombstone_topic_producer",
    "delete_hold": "delete_hold",
    "disconnect": "disconnect_client",
}
PLACES = ("beginning", "end")
NS_PER_MS = 1_000_000


class ActionTarget(msgspec.Struct, omit_defaults=True):
    topic: str
    channel: str = ""
    hold: str = ""
    client: str = ""  # the address of a consumer


class ActionRequest(msgspec.Struct):
    action: str = ""
    targets: list[ActionTarget] = []
    node: str = ""


class RewindRequest(msgspec.Struct, kw_only=True):
    topic: str = ""
    channel: str = ""
    node: str = ""
    dry_run: bool = False
    time_ms: float | None = None
    offset: int | None = None
    to: str = ""


class SeekAnswer(msgspec.Struct, kw_only=True):
    offset: int = 0
    clamped: bool = False
    depth: int = 0
    again: int | None = None
    skipped: int | None = None
    in_flight: int | None = None


class ActionEndpoints:
    def __init__(self, changes: Changes, nodes: TopicNodes, notifier: Notifier) -> None:
        self._changes = changes
        self._nodes = nodes
        self._notifier = notifier

    async def act(self, request: Request) -> Reply:
        asked = json_body(request, ActionRequest)
        self._check(asked)
        limit = asyncio.Semaphore(AT_ONCE_MAX)

        async def one(target: ActionTarget) -> Change:
            async with limit:
                return await self._change(asked.action, target, asked.node)

        changes = await asyncio.gather(*map(one, asked.targets))
        for target, change in zip(asked.targets, changes, strict=True):
            if not change.all_failed:
                self._notify(request, asked, target)
        return _told(asked.targets, changes)

    def _check(self, asked: ActionRequest) -> None:
        if asked.action not in ACTIONS:
            raise HttpError(400, "INVALID_ACTION")
        if not 0 < len(asked.targets) <= TARGETS_MAX:
            raise HttpError(400, "INVALID_TARGETS")
        for target in asked.targets:
            check_topic(target.topic)
            if target.channel:
                check_channel(target.channel)
            if asked.action == "delete_hold":
                if not target.hold:
                    raise HttpError(400, "INVALID_TARGETS")
                check_channel(target.hold)
            if asked.action == "disconnect" and not (target.channel and target.client):
                raise HttpError(400, "INVALID_TARGETS")
        if asked.action in ON_ONE_NODE and not asked.node:
            raise HttpError(400, "NODE_REQUIRED")
        if asked.node:
            self._nodes.known(asked.node)

    async def _change(self, action: str, target: ActionTarget, node: str) -> Change:
        topic, channel = target.topic, target.channel
        doing: Awaitable[Change]
        if action in ON_NODES:
            doing = self._changes.act(action, topic, channel, node)
        elif action == "create":
            doing = self._changes.create(topic, channel, node)
        elif action == "delete":
            doing = self._changes.delete(topic, channel, node)
        elif action == "tombstone":
            doing = self._changes.tombstone(topic, node)
        elif action == "disconnect":
            doing = self._changes.disconnect(topic, channel, target.client, node)
        else:
            doing = self._changes.delete_hold(topic, target.hold, node)
        try:
            return await doing
        except Failed as error:
            return Change(warnings=[str(error)], failed=True)

    def _notify(self, request: Request, asked: ActionRequest, target: ActionTarget) -> None:
        kind = "channel" if target.channel else "topic"
        self._notifier.tell(
            request,
            OTHER_NAMES.get(asked.action, f"{asked.action}_{kind}"),
            topic=target.topic,
            channel=target.channel or target.hold,
            node=asked.node,
            client=target.client,
        )

    # -- to another place ---------------------------------------------------------------------

    async def rewind(self, request: Request) -> Reply:
        asked = json_body(request, RewindRequest)
        topic, channel = check_topic(asked.topic), check_channel(asked.channel)
        place = _place(asked)
        nodes = await self._nodes.having(topic, asked.node)
        if asked.offset is not None and len(nodes) > 1:
            raise HttpError(400, "NODE_REQUIRED")
        query = {
            "topic": topic,
            "channel": channel,
            **place,
            "dry_run": "true" if asked.dry_run else None,
        }

        async def seek(node: str) -> SeekAnswer:
            return await self._nodes.upstream.post_as(SeekAnswer, node, "/channel/seek", query)

        found = await self._nodes.ask(nodes, seek)
        answers = found.answers.values()
        if found.answers and not asked.dry_run:
            self._notifier.tell(
                request, "rewind_channel", topic=topic, channel=channel, node=asked.node
            )
        shown: dict[str, Any] = {
            "dry_run": asked.dry_run,
            "depth": sum(each.depth for each in answers),
            "nodes": [
                *(
                    {"node": node, "ok": True, "error": "", **_dict(each)}
                    for node, each in found.answers.items()
                ),
                *failures(found.errors),
            ],
        }
        if asked.dry_run:
            for name in ("again", "skipped", "in_flight"):
                shown[name] = sum(getattr(each, name) or 0 for each in answers)
        return change_reply(shown, found.errors, ok=len(found.answers))


def _place(asked: RewindRequest) -> dict[str, object]:
    """Exactly one way to say where to."""
    places: dict[str, object] = {}
    if asked.time_ms is not None and asked.time_ms >= 0:
        places["time"] = int(asked.time_ms * NS_PER_MS)
    if asked.offset is not None and asked.offset >= 0:
        places["offset"] = asked.offset
    if asked.to in PLACES:
        places["to"] = asked.to
    given = (asked.time_ms is not None) + (asked.offset is not None) + bool(asked.to)
    if len(places) != 1 or given != 1:
        raise HttpError(400, "INVALID_PLACE")
    return places


def _dict(answer: SeekAnswer) -> dict[str, Any]:
    told = msgspec.structs.asdict(answer)
    return {name: value for name, value in told.items() if value is not None}


def _told(targets: list[ActionTarget], changes: list[Change]) -> Reply:
    results = []
    ok = failed = 0
    warned = []
    for target, change in zip(targets, changes, strict=True):
        told = [each.shown() for each in change.told]
        ok += sum(each.ok for each in change.told)
        failed += sum(not each.ok for each in change.told) + change.failed
        warned += change.all_warnings()
        error = "\n".join(change.warnings)
        results.append({**msgspec.to_builtins(target), "nodes": told, "error": error})
    message = warning_message(warned)
    nothing_worked = failed and not ok
    if nothing_worked:
        message = "UPSTREAM_ERROR: " + message.removeprefix("WARNING: ")
    shown = {"ok": ok, "failed": failed, "message": message, "results": results}
    return json_reply(shown, status=502 if nothing_worked else 200)
