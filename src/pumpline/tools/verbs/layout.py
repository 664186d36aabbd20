"""The layout of a cluster as a JSON document: topics, channels, settings and pauses; no messages.

    {"version": 1,
     "topics": [{"topic": "orders", "paused": false, "settings": {"message_ttl": "24h0m0s"},
                 "channels": [{"channel": "billing", "paused": true}]}]}

Topics and channels that are ephemeral are left out: they go with their consumers. A setting that is
not there is absent, as in `core.text.settings`.
"""

from collections.abc import Iterator

import msgspec

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.cluster.stats import read_stats
from pumpline.core.text.names import is_ephemeral, is_valid_name
from pumpline.core.text.settings import NO_SETTINGS, SettingsError

VERSION = 1


class ChannelLayout(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    channel: str
    paused: bool = False


class TopicLayout(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    topic: str
    paused: bool = False
    settings: dict[str, str | int] = {}
    channels: list[ChannelLayout] = []


class Layout(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    version: int
    topics: list[TopicLayout] = []


class LayoutError(ValueError):
    """A document is no layout, or nodes do not agree on one; the text says why."""


class _Settings(msgspec.Struct):
    settings: dict[str, str | int | None]


def read_layout(node: ClusterNode) -> dict[str, TopicLayout]:
    """What a node has, by topic."""
    found: dict[str, TopicLayout] = {}
    for topic in read_stats(node).topics or ():
        if is_ephemeral(topic.topic_name):
            continue
        channels = [
            ChannelLayout(channel=each.channel_name, paused=each.paused)
            for each in topic.channels
            if not each.hold and not is_ephemeral(each.channel_name)
        ]
        found[topic.topic_name] = TopicLayout(
            topic=topic.topic_name,
            paused=topic.paused,
            settings=_settings(node, topic.topic_name),
            channels=sorted(channels, key=lambda each: each.channel),
        )
    return found


def _settings(node: ClusterNode, topic: str) -> dict[str, str | int]:
    try:
        answer = node.get("/topic/settings", {"topic": topic})
    except NodeFailure as failure:
        if failure.code in ("NOT_FOUND", "TOPIC_NOT_FOUND"):  # a stock nsqd; or it was deleted
            return {}
        raise
    try:
        settings = msgspec.json.decode(answer, type=_Settings).settings
    except msgspec.MsgspecError as error:
        raise NodeFailure(f"it answers /topic/settings as no nsqd does: {error}") from None
    return {name: value for name, value in settings.items() if value is not None}


def merged(by_node: dict[str, dict[str, TopicLayout]]) -> Layout:
    """One layout of all nodes; LayoutError if two of them differ in a setting or a pause."""
    topics: dict[str, TopicLayout] = {}
    first: dict[str, str] = {}  # the node that a topic or channel was found on first
    for node, layout in by_node.items():
        for name, topic in layout.items():
            known = topics.get(name)
            if known is None:
                topics[name] = msgspec.structs.replace(topic, channels=[])
                first[name] = node
            elif (known.paused, known.settings) != (topic.paused, topic.settings):
                raise LayoutError(_difference(f"topic {name}", first[name], node))
            channels = {each.channel: each for each in topics[name].channels}
            for channel in topic.channels:
                where = f"{name}/{channel.channel}"
                if channel.channel not in channels:
                    topics[name].channels.append(channel)
                    first[where] = node
                elif channels[channel.channel] != channel:
                    raise LayoutError(_difference(f"channel {where}", first[where], node))
    for topic in topics.values():
        topic.channels.sort(key=lambda each: each.channel)
    return Layout(version=VERSION, topics=[topics[name] for name in sorted(topics)])


def _difference(what: str, one: str, other: str) -> str:
    return f"{what} is not the same on {one} and on {other}: export one of them with --nsqd"


def decode_layout(text: bytes) -> Layout:
    """LayoutError unless all of it can be applied."""
    try:
        layout = msgspec.json.decode(text, type=Layout)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LayoutError(f"no document of `pumpline export`: {error}") from None
    if layout.version != VERSION:
        raise LayoutError(f"version {layout.version} is not known, only {VERSION}")
    names = [topic.topic for topic in layout.topics]
    for where in (*_twice(names),):
        raise LayoutError(f"topic {where} is there twice")
    for topic in layout.topics:
        _check_name("topic", topic.topic)
        for twice in _twice([each.channel for each in topic.channels]):
            raise LayoutError(f"channel {twice} of topic {topic.topic} is there twice")
        for channel in topic.channels:
            _check_name("channel", channel.channel)
        try:
            NO_SETTINGS.changed(topic.settings).check(topic.topic)
        except SettingsError as error:
            raise LayoutError(f"topic {topic.topic}: {error}") from None
    return layout


def _check_name(kind: str, name: str) -> None:
    if not is_valid_name(name) or is_ephemeral(name):
        raise LayoutError(f"{name!r} is no name of a {kind} that stays")


def _twice(names: list[str]) -> Iterator[str]:
    return (name for name in dict.fromkeys(names) if names.count(name) > 1)
