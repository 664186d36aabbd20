"""NSQ's routes that change something: create, delete, pause, unpause, empty, tombstone.

As NSQ's, but for one thing: a change that failed everywhere is a 502, not a 200 with a warning.
"""

import logging
from collections.abc import Awaitable

import msgspec

from pumpline.nsqadmin.api.bodies import check_channel, check_topic, json_body
from pumpline.nsqadmin.api.nsq import upstream_error
from pumpline.nsqadmin.cluster.changes import Change, Changes
from pumpline.nsqadmin.cluster.directory import Failed, join, warning_message
from pumpline.nsqadmin.notifications import Notifier
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

ACTIONS = ("pause", "unpause", "empty")

_LOG = logging.getLogger(__name__)


class Creation(msgspec.Struct):
    topic: str = ""
    channel: str = ""


class ActionBody(msgspec.Struct):
    action: str = ""


class TombstoneBody(msgspec.Struct):
    topic: str = ""


class NsqChangeEndpoints:
    def __init__(self, changes: Changes, notifier: Notifier) -> None:
        self._changes = changes
        self._notifier = notifier

    async def create(self, request: Request) -> Reply:
        body = json_body(request, Creation)
        topic, channel = check_topic(body.topic), body.channel
        if channel:
            check_channel(channel)
        reply = await _reply("create", self._changes.create(topic, channel))
        self._notifier.tell(request, "create_topic", topic=topic)
        if channel:
            self._notifier.tell(request, "create_channel", topic=topic, channel=channel)
        return reply

    async def act_on_topic(self, request: Request) -> Reply:
        return await self._act(request, request.variable, "")

    async def act_on_channel(self, request: Request) -> Reply:
        topic, _, channel = request.variable.partition("/")
        return await self._act(request, topic, channel)

    async def _act(self, request: Request, topic: str, channel: str) -> Reply:
        action = json_body(request, ActionBody).action
        if action not in ACTIONS:
            raise HttpError(400, "INVALID_ACTION")
        reply = await _reply(action, self._changes.act(action, topic, channel))
        kind = "channel" if channel else "topic"
        self._notifier.tell(request, f"{action}_{kind}", topic=topic, channel=channel)
        return reply

    async def delete_topic(self, request: Request) -> Reply:
        topic = request.variable
        reply = await _reply("delete", self._changes.delete(topic))
        self._notifier.tell(request, "delete_topic", topic=topic)
        return reply

    async def delete_channel(self, request: Request) -> Reply:
        topic, _, channel = request.variable.partition("/")
        reply = await _reply("delete", self._changes.delete(topic, channel))
        self._notifier.tell(request, "delete_channel", topic=topic, channel=channel)
        return reply

    async def tombstone(self, request: Request) -> Reply:
        node = request.variable
        try:
            topic = json_body(request, TombstoneBody).topic
        except HttpError:
            raise HttpError(400, "INVALID_BODY") from None
        check_topic(topic)
        reply = await _reply("tombstone", self._changes.tombstone(topic, node))
        self._notifier.tell(request, "tombstone_topic_producer", topic=topic, node=node)
        return reply


async def _reply(what: str, doing: Awaitable[Change]) -> Reply:
    try:
        change = await doing
    except Failed as error:
        raise upstream_error(what, error) from None
    warned = change.all_warnings()
    if change.all_failed:
        raise upstream_error(what, Failed(join(warned)))
    for text in warned:
        _LOG.warning("failed to %s - %s", what, text)
    return json_reply({"message": warning_message(warned)})
