"""Managing topics and channels over HTTP: create, delete, empty, pause, unpause,
and seek and disconnect, which NSQ does not have.

The codes differ between the two on purpose, as they do in NSQ: a bad topic name is INVALID_TOPIC
to a topic's endpoint and INVALID_ARG_TOPIC to a channel's. What pauses, deletes or empties is on
disk before it is answered, so that a crash does not undo it.
"""

import asyncio
import logging
import os

from pumpline.core.text.names import is_valid_name
from pumpline.log.files import lacks_room, sync_paths
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.http.log import LogEndpoints
from pumpline.nsqd.http.publish import topic_name
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.topic import NameTaken, Topic
from pumpline.nsqd.queue.topic_state import CLOSED
from pumpline.web.query import BOOLEANS
from pumpline.web.replies import NOTHING, HttpError, Reply, json_reply
from pumpline.web.request import Request
from pumpline.web.yielding import Pace

_LOG = logging.getLogger(__name__)


class AdminEndpoints:
    def __init__(self, broker: Broker, log: LogEndpoints) -> None:
        self._broker = broker
        self._log = log

    # -- topics -------------------------------------------------------------------------------

    async def create_topic(self, request: Request) -> Reply:
        name = topic_name(request.query())
        try:
            topic = self._broker.topics.ensure(name)
        except OSError as error:
            raise self._failed(error, f"topic {name}") from None
        await self._broker.lookups.discovered(topic)
        return NOTHING

    async def delete_topic(self, request: Request) -> Reply:
        topic = self._topic_unchecked(request)
        try:
            self._broker.topics.delete(topic.name)
        except OSError as error:
            raise self._failed(error, f"topic {topic.name}") from None
        return await self._persisted()

    async def empty_topic(self, request: Request) -> Reply:
        topic_name(request.query())
        topic = self._topic_unchecked(request)
        try:
            topic.empty()
        except OSError as error:
            raise self._failed(error, f"topic {topic.name}") from None
        self._broker.retention.retire_now(topic)
        await self._checkpointed(*topic.channels.values())
        return NOTHING

    async def pause_topic(self, request: Request) -> Reply:
        topic = self._topic_unchecked(request)
        try:
            topic.pause()
        except OSError as error:
            raise self._failed(error, f"topic {topic.name}") from None
        return await self._persisted()

    async def unpause_topic(self, request: Request) -> Reply:
        self._topic_unchecked(request).unpause()
        return await self._persisted()

    # -- channels -----------------------------------------------------------------------------

    def create_channel(self, request: Request) -> Reply:
        topic, name = self._topic_and_channel(request)
        try:
            topic.ensure_channel(name)
        except NameTaken:
            raise HttpError(409, "HOLD_EXISTS") from None
        except OSError as error:
            raise self._failed(error, f"channel {name}") from None
        return NOTHING

    async def delete_channel(self, request: Request) -> Reply:
        channel = self._channel(request)
        topic = self._existing(channel.topic.name)
        try:
            unwritten = topic.delete_channel(channel.name)
        except OSError as error:
            raise self._failed(error, f"channel {channel.name}") from None
        self._retire_now(topic.name)
        reply = await self._persisted()
        if unwritten and (unwritten := topic.upkeep.manifest.try_write()):
            raise self._failed(unwritten, f"manifest of topic {topic.name}")
        return reply

    async def empty_channel(self, request: Request) -> Reply:
        channel = self._channel(request)
        channel.empty()
        self._retire_now(channel.topic.name)
        await self._checkpointed(channel)
        return NOTHING

    async def seek_channel(self, request: Request) -> Reply:
        """Move a channel to an offset, a time, the beginning or the end; or say what that does."""
        channel = self._channel(request)
        topic = channel.topic
        dry_run = BOOLEANS.get(request.query().get("dry_run", "false"))
        if dry_run is None:
            raise HttpError(400, "INVALID_DRY_RUN")
        wanted = await self._log.place(self._log.durable(request.query()), request.query())
        if channel.deleted or topic.state is CLOSED:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        offset = max(wanted, topic.log.first)
        if offset > topic.log.end:
            raise HttpError(416, "OFFSET_BEYOND_END", details={"end": topic.log.end})
        answer: dict[str, object] = {"offset": offset, "clamped": offset > wanted}
        if dry_run:
            return json_reply({**answer, **channel.seek_effect(offset)._asdict(), "dry_run": True})
        channel.seek(offset)
        answer["depth"] = channel.depth
        _LOG.info("CHANNEL(%s:%s): moved to %d", topic.name, channel.name, offset)
        await self._written(channel)
        return json_reply(answer)

    def disconnect_client(self, request: Request) -> Reply:
        """Close the connection of one consumer, which is known by its address in /stats."""
        channel = self._channel(request)
        client = request.query().get("client")
        if client is None:
            raise HttpError(400, "MISSING_ARG_CLIENT")
        for connection in self._broker.connections:
            consumer = connection.consumer
            if client and connection.peer == client and consumer in channel.consumers:
                break
        else:
            raise HttpError(404, "CLIENT_NOT_FOUND")
        assert consumer is not None
        in_flight = len(consumer.leases)
        # At once: a connection that is closed ends a little later, and /stats would still have it.
        channel.remove(consumer)
        connection.close()
        _LOG.info("CHANNEL(%s:%s): disconnected %s", channel.topic.name, channel.name, client)
        return json_reply({"in_flight": in_flight})

    async def pause_channel(self, request: Request) -> Reply:
        self._channel(request).pause()
        return await self._persisted()

    async def unpause_channel(self, request: Request) -> Reply:
        self._channel(request).unpause()
        return await self._persisted()

    # -- what they have in common -------------------------------------------------------------

    def _topic_unchecked(self, request: Request) -> Topic:
        """The topic named; a name that cannot be one is just not found."""
        name = request.query().get("topic")
        if name is None:
            raise HttpError(400, "MISSING_ARG_TOPIC")
        return self._existing(name)

    def _channel(self, request: Request) -> Channel:
        topic, name = self._topic_and_channel(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return channel

    def _topic_and_channel(self, request: Request) -> tuple[Topic, str]:
        """The topic named, and the name of a channel of it that may or may not exist."""
        query = request.query()
        for parameter in ("topic", "channel"):
            name = query.get(parameter)
            if name is None:
                raise HttpError(400, f"MISSING_ARG_{parameter.upper()}")
            if not is_valid_name(name):
                raise HttpError(400, f"INVALID_ARG_{parameter.upper()}")
        return self._existing(query["topic"]), query["channel"]

    def _existing(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    def _retire_now(self, name: str) -> None:
        """Something of the topic is needed no more; an ephemeral topic may have gone with it."""
        topic = self._broker.topics.get(name)
        if topic is not None:
            self._broker.retention.retire_now(topic)

    async def _checkpointed(self, *channels: Channel) -> None:
        """The state of these channels is in their files when this returns: it survives a kill. What
        cannot be written now is answered with 500, and written once it can be."""
        checkpoints = self._broker.disk.checkpoints
        pace = Pace()
        for channel in channels:
            error = checkpoints.write_now(channel)
            if error and lacks_room(error) and self._broker.topics.drop_history():
                error = checkpoints.write_now(channel)
            if error:
                raise self._failed(error, f"cursor of channel {channel.name}")
            await pace.breathe()

    async def _written(self, channel: Channel) -> None:
        """The state of a channel is on disk when this returns: it survives a loss of power."""
        await self._checkpointed(channel)
        file = channel.cursor_file
        if file is None or channel.deleted:
            return
        try:
            await asyncio.to_thread(sync_paths, [file.path, os.path.dirname(file.path)])
        except OSError as error:
            raise self._failed(error, f"cursor of channel {channel.name}") from None

    async def _persisted(self) -> Reply:
        persist = self._broker.metadata.persist
        try:
            try:
                await persist()
            except OSError as error:
                if not lacks_room(error):
                    raise
                # The files of a topic that was just deleted go in a thread, and may be there yet.
                await asyncio.to_thread(self._broker.disk.directory.empty_trash)
                self._broker.topics.drop_history()
                await persist()
        except OSError as error:
            raise self._failed(error, "metadata") from None
        return NOTHING

    def _failed(self, error: OSError, what: str) -> HttpError:
        reason = self._broker.disk.health.failed(error, what)
        _LOG.error("failed to write %s - %s", what, reason)
        return HttpError(500, "INTERNAL_ERROR", details={"detail": reason})
