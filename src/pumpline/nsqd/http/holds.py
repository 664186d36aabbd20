"""Holds over HTTP: create, commit, delete, list (see `nsqd.storage.holds`).

Every change is on disk before it is answered."""

import logging
from collections.abc import Mapping

from pumpline.core.text.names import is_ephemeral, is_valid_name
from pumpline.log.files import lacks_room
from pumpline.log.holds import StoredHold
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.http.log import LogEndpoints, check_offset, number
from pumpline.nsqd.queue.topic import Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.nsqd.storage.holds import HOLDS_MAX
from pumpline.web.replies import NOTHING, HttpError, Reply, json_reply
from pumpline.web.request import Request

DESCRIPTION_CHARS_MAX = 500

_LOG = logging.getLogger(__name__)


class HoldEndpoints:
    def __init__(self, broker: Broker, log: LogEndpoints) -> None:
        self._broker = broker
        self._log = log

    async def create(self, request: Request) -> Reply:
        """A new hold, or the one that is there, as it is but for its description."""
        query = request.query()
        topic = self._log.durable(query)
        name = _hold_name(query)
        bytes_max = number(query, "bytes_max", self._broker.options.hold_bytes_max)
        description = _description(query)
        if name not in topic.upkeep.holds.by_name:
            offset = await self._log.place(topic, query, default="end")
            check_offset(topic, offset)
        # It may have come while the place was looked for.
        hold = topic.upkeep.holds.by_name.get(name)
        if hold is None:
            if name in topic.channels:
                raise HttpError(409, "CHANNEL_EXISTS")
            if len(topic.upkeep.holds.by_name) >= HOLDS_MAX:
                raise HttpError(409, "TOO_MANY_HOLDS")
            hold = topic.upkeep.holds.create(
                name, offset=offset, bytes_max=bytes_max, now_ns=self._log.now_ns
            )
        if description is not None:
            topic.upkeep.holds.describe(hold, description)
        await self._save(topic)
        return json_reply(_described(topic, hold))

    async def commit(self, request: Request) -> Reply:
        query = request.query()
        topic = self._log.durable(query)
        hold = _existing(topic, query)
        offset = number(query, "offset")
        if offset > topic.log.end:
            raise HttpError(416, "OFFSET_BEYOND_END", details={"end": topic.log.end})
        topic.upkeep.holds.commit(hold, offset, self._log.now_ns)
        await self._save(topic)
        return json_reply(_described(topic, hold))

    async def delete(self, request: Request) -> Reply:
        query = request.query()
        topic = self._log.durable(query)
        topic.upkeep.holds.delete(_existing(topic, query).name)
        await self._save(topic)
        self._broker.retention.retire_now(topic)
        return NOTHING

    def list(self, request: Request) -> Reply:
        topic = self._log.durable(request.query())
        holds = [_described(topic, hold) for _, hold in sorted(topic.upkeep.holds.by_name.items())]
        return json_reply({"topic": topic.name, "holds": holds})

    async def _save(self, topic: Topic) -> None:
        try:
            try:
                await topic.upkeep.holds.save()
            except OSError as error:
                if not lacks_room(error):
                    raise
                topic.upkeep.holds.release_unsaved()
                self._broker.retention.retire_now(topic)
                await topic.upkeep.holds.save()
        except OSError as error:
            if topic.state is CLOSED:
                raise HttpError(404, "TOPIC_NOT_FOUND") from None
            reason = self._broker.disk.health.failed(error, f"holds of topic {topic.name}")
            _LOG.error("TOPIC(%s): failed to write holds - %s", topic.name, reason)
            raise HttpError(500, "INTERNAL_ERROR", details={"detail": reason}) from None


def _described(topic: Topic, hold: StoredHold) -> dict[str, object]:
    return {
        "hold": hold.name,
        "offset": hold.offset,
        "depth": topic.upkeep.holds.depth(hold),
        "bytes": topic.upkeep.holds.pinned_bytes(hold),
        "bytes_max": hold.bytes_max,
        "dropped": hold.dropped,
        "committed_at": hold.committed_at_ns,
        "description": hold.description,
    }


def _existing(topic: Topic, query: Mapping[str, str]) -> StoredHold:
    hold = topic.upkeep.holds.by_name.get(_hold_name(query))
    if hold is None:
        raise HttpError(404, "HOLD_NOT_FOUND")
    return hold


def _description(query: Mapping[str, str]) -> str | None:
    description = query.get("description")
    if description is not None and len(description) > DESCRIPTION_CHARS_MAX:
        raise HttpError(400, "INVALID_DESCRIPTION")
    return description


def _hold_name(query: Mapping[str, str]) -> str:
    name = query.get("hold")
    if name is None:
        raise HttpError(400, "MISSING_ARG_HOLD")
    if not is_valid_name(name) or is_ephemeral(name):
        raise HttpError(400, "INVALID_HOLD")
    return name
