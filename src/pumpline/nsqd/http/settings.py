"""Settings of a topic over HTTP: GET and POST /topic/settings.

POST takes a JSON object of what is to change, null for a setting that is to be absent again, and
answers as GET does. What it answers is on disk. Both show how often a setting took effect.
"""

import asyncio

import msgspec

from pumpline.core.text.settings import SettingsError, TopicSettings
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.http.publish import topic_name
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.topic import Topic
from pumpline.web.replies import HttpError, Reply, json_reply
from pumpline.web.request import Request

BODY_BYTES_MAX = 16 * 1024


class SettingsEndpoints:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def get(self, request: Request) -> Reply:
        return _described(self._topic(request))

    async def post(self, request: Request) -> Reply:
        topic = self._topic(request)
        try:
            settings = topic.settings.changed(_decoded(request.body))
            settings.check(topic.name)
            self._check_others(topic, settings)
        except SettingsError as error:
            raise HttpError(400, "INVALID_SETTINGS", details={"detail": str(error)}) from None
        disk = self._broker.disk
        try:
            topic.store_settings(settings)
            await asyncio.to_thread(disk.directory.sync_manifest, topic.name)
        except OSError as error:
            reason = disk.health.failed(error, f"settings of topic {topic.name}")
            raise HttpError(500, "INTERNAL_ERROR", details={"detail": reason}) from None
        self._broker.retention.retire_now(topic)
        return _described(topic)

    def _topic(self, request: Request) -> Topic:
        topic = self._broker.topics.get(topic_name(request.query()))
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        if topic.ephemeral:
            # It goes with its last channel, and its settings would go with it, unseen.
            raise HttpError(400, "EPHEMERAL_TOPIC")
        return topic

    def _check_others(self, topic: Topic, settings: TopicSettings) -> None:
        """Dead letters that are given up on must not go on to a third topic, or in a circle."""
        if settings.max_attempts is None:
            return
        target = settings.dead_letters_of(topic.name)
        for other in self._broker.topics.values():
            if not other.attempts_max or other is topic:
                continue
            if other.name == target:
                raise SettingsError(f"{target} cannot take dead letters: it has max_attempts")
            if other.settings.dead_letters_of(other.name) == topic.name:
                raise SettingsError(
                    f"max_attempts cannot be: {topic.name} has the dead letters of {other.name}"
                )


def _decoded(body: bytes) -> dict[str, object]:
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        example = '{"message_ttl":"1h"}'
        raise SettingsError(f"the body must be a JSON object, such as {example}") from None


def _described(topic: Topic) -> Reply:
    channels = {name: _counters(channel) for name, channel in sorted(topic.channels.items())}
    return json_reply(
        {
            "topic": topic.name,
            "settings": topic.settings.shown(),
            "refused": topic.publishing.refused_count,
            "dropped": topic.publishing.overflow_count,
            "channels": channels,
        }
    )


def _counters(channel: Channel) -> dict[str, int]:
    return {
        "expired": channel.expiry.count,
        "dead_letters": channel.dead_letters.count,
        "dropped": channel.overflow_count,
    }
