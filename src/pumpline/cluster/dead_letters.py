"""Dead letters of a topic on one node: count them, read them, publish them again.

A letter is published again on the node that has it, to the topic that it came from, with a publish
token made of its place in the log. So a publish that was interrupted can be repeated, by a command,
by nsqadmin or by both: no letter is published twice. Letters stay where they are.
"""

from collections.abc import Iterator

import msgspec

from pumpline.cluster.log import LogMessage, LogPage, offsets_of, raw_body
from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.cluster.stats import read_stats
from pumpline.core.text.names import dead_letter_topic_of, is_ephemeral
from pumpline.core.text.settings import FORM_BODY

PAGE_LETTERS = 500  # asked for at once


class LetterSettings(msgspec.Struct, kw_only=True):
    """The settings of a topic that concern dead letters."""

    max_attempts: int | None = None
    dead_letter_topic: str | None = None
    dead_letter_form: str | None = None


class SettingsReply(msgspec.Struct):
    """The reply of /topic/settings."""

    settings: LetterSettings


class DeadLetterTopic(msgspec.Struct, kw_only=True):
    """Where one node keeps the dead letters of a topic."""

    topic: str
    dead_letter_topic: str
    form: str
    letters: int = 0
    first_timestamp: int | None = None  # ns


class WrittenLetter(msgspec.Struct, kw_only=True):
    """The message that was given up, as a letter in the form `json` has it."""

    topic: str = ""
    channel: str = ""
    id: str = ""
    attempts: int | None = None
    timestamp: int | None = None  # ns
    reason: str = ""
    body: str | None = None
    body_base64: str | None = None


class DeadLetter(msgspec.Struct, kw_only=True):
    offset: int
    id: str  # of the letter; that of the message is in `origin`
    log: str
    written_ns: int
    origin: WrittenLetter

    def raw(self) -> bytes:
        return raw_body(self.origin.body, self.origin.body_base64)


def read_dead_letter_topic(node: ClusterNode, topic: str) -> DeadLetterTopic:
    own = LetterSettings()
    if not is_ephemeral(topic):
        own = node.get_as(SettingsReply, "/topic/settings", {"topic": topic}).settings
    return _described(node, topic, own)


def read_dead_letter_topics(node: ClusterNode, topic: str = "") -> list[DeadLetterTopic]:
    """Of all topics that can have dead letters; or of one, if it can. None of a Go nsqd."""
    found = []
    names = {each.topic_name for each in read_stats(node, topic or None).topics or ()}
    for name in sorted(each for each in names if not is_ephemeral(each)):
        try:
            own = node.get_as(SettingsReply, "/topic/settings", {"topic": name}).settings
        except NodeFailure as failure:
            if failure.code in ("NOT_FOUND", "TOPIC_NOT_FOUND"):  # a Go nsqd, or just deleted
                continue
            raise
        # Consumers write dead letters also where the topic has no max_attempts.
        if own.max_attempts is None and not topic and dead_letter_topic_of(name) not in names:
            continue
        dlq = _described(node, name, own)
        if own.max_attempts is not None or dlq.letters or not topic:
            found.append(dlq)
    return found


def _described(node: ClusterNode, topic: str, own: LetterSettings) -> DeadLetterTopic:
    dlq = DeadLetterTopic(
        topic=topic,
        dead_letter_topic=own.dead_letter_topic or dead_letter_topic_of(topic),
        form=own.dead_letter_form or "json",
    )
    if offsets := offsets_of(node, dlq.dead_letter_topic):
        dlq.letters = offsets.messages
        dlq.first_timestamp = offsets.first_timestamp
    return dlq


def letter_page(
    node: ClusterNode,
    dlq: DeadLetterTopic,
    *,
    limit: int,
    start: int | None = None,
    since_ns: int | None = None,
    contains: str = "",
    newest: bool = False,
) -> LogPage:
    if not dlq.letters:
        return LogPage(first=0, end=0, messages=[], next=0)
    query = {
        "topic": dlq.dead_letter_topic,
        "limit": limit,
        "from": start,
        "time": since_ns,
        "newest": "true" if newest else None,
        "contains": contains or None,
    }
    return node.get_as(LogPage, "/log/peek", query)


def letters_on(dlq: DeadLetterTopic, page: LogPage, channel: str = "") -> list[DeadLetter]:
    """The letters of a page that came from that channel; without one, all."""
    letters = (
        DeadLetter(
            offset=each.offset,
            id=each.id,
            log=page.log,
            written_ns=each.timestamp,
            origin=_origin(dlq, each),
        )
        for each in page.messages
    )
    return [each for each in letters if channel in ("", each.origin.channel)]


def letters_since(
    node: ClusterNode,
    dlq: DeadLetterTopic,
    *,
    since_ns: int = 0,
    contains: str = "",
    channel: str = "",
) -> Iterator[DeadLetter]:
    """All letters that were written at `since_ns` or later, oldest first; up to the end that there
    is now, because letters that are published may come back."""
    page = letter_page(node, dlq, limit=PAGE_LETTERS, since_ns=since_ns, contains=contains)
    end = page.end
    while True:
        yield from (each for each in letters_on(dlq, page, channel) if each.offset < end)
        if page.next >= end:
            return
        page = letter_page(node, dlq, limit=PAGE_LETTERS, start=page.next, contains=contains)


def letter_at(node: ClusterNode, dlq: DeadLetterTopic, offset: int) -> DeadLetter:
    page = letter_page(node, dlq, limit=1, start=offset)
    for letter in letters_on(dlq, page):
        if letter.offset == offset:
            return letter
    raise NodeFailure(f"there is no letter at {offset}")


def publish_letter(node: ClusterNode, dlq: DeadLetterTopic, letter: DeadLetter) -> None:
    query = {"topic": dlq.topic, "token": f"deadletter:{letter.log}:{letter.offset}"}
    node.post("/pub", query, letter.raw(), is_repeatable=True)


def _origin(dlq: DeadLetterTopic, message: LogMessage) -> WrittenLetter:
    """The message that was given up, whichever form the letter has."""
    if dlq.form != FORM_BODY and message.body is not None:
        try:
            written = msgspec.json.decode(message.body, type=WrittenLetter)
        except msgspec.MsgspecError:
            written = WrittenLetter()
        if written.body is not None or written.body_base64 is not None:
            return written
        # Another program's message, in the same topic.
    return WrittenLetter(id=message.id, body=message.body, body_base64=message.body_base64)
