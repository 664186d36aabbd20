"""`pumpline recover`: publish again the messages in `.bad` files that the logs lack.

Reads a data directory, whose nsqd may run, and by default only shows what it found. A message is
published with a publish token made of its id and publish time, so a command that was interrupted
can be repeated: each message is stored once. No `.bad` file is deleted.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pumpline.cluster.node import ClusterNode, NodeFailure
from pumpline.core.text.durations import NS_PER_MS
from pumpline.core.text.flags import BOOL, STRING, option
from pumpline.log.bad_files import BadFile, find_bad_files
from pumpline.log.directory import Directory
from pumpline.log.missing import Missing, token_of
from pumpline.log.salvage import SalvagedMessage
from pumpline.tools.arguments import UsageError
from pumpline.tools.verbs.output import Column, note, shown_number, shown_time
from pumpline.tools.verbs.verb import Call, Nothing, Verb, VerbOptions, run_verb

RENAMED = ".recovered"  # added to the name of a .bad file
REFUSALS_SHOWN = 5


@dataclass(slots=True, kw_only=True)
class RecoverOptions(VerbOptions):
    data_path: str = option(STRING, "", "path of the data directory with the .bad files")
    publish: bool = option(BOOL, False, "publish the missing messages to the nsqd of --nsqd")
    doubtful: bool = option(BOOL, False, "publish: also messages that no checksum vouches for")
    rename: bool = option(
        BOOL, False, f"publish: add {RENAMED} to the name of a file of which nothing is missing"
    )


COLUMNS = (
    Column("topic", "topic"),
    Column("found", "found", shown_number, is_number=True),
    Column("held", "in the log", shown_number, is_number=True),
    Column("republished", "published again", shown_number, is_number=True),
    Column("missing", "missing", shown_number, is_number=True),
    Column("doubtful", "doubtful", shown_number, is_number=True),
    Column("first_timestamp", "from", shown_time),
    Column("last_timestamp", "to", shown_time),
)


@dataclass(slots=True)
class Recovery:
    call: Call[RecoverOptions]
    missing: Missing
    files: list[BadFile]
    unsettled: set[str] = field(default_factory=set)  # paths of files that keep their names
    refusals: int = 0
    published: int = 0

    def sentence(self, text: str) -> None:
        note(f"pumpline recover: {text}")

    def failed(self, text: str) -> None:
        self.sentence(text)
        self.call.failed = True


def run(call: Call[RecoverOptions]) -> int:
    options = call.options
    if not options.data_path:
        raise UsageError("--data-path says which data directory")
    if not options.publish and (options.doubtful or options.rename):
        raise UsageError("--doubtful and --rename go with --publish")
    recovery = _read(call)
    if options.publish:
        _publish(recovery)
        if options.rename:
            _rename(recovery)
    rows = []
    for topic, messages in sorted(recovery.missing.topics.items()):
        first_ns, last_ns = messages.times()
        times = {"first_timestamp": first_ns, "last_timestamp": last_ns}
        rows.append({"topic": topic, **messages.counts()._asdict(), **times})
    call.out.rows(COLUMNS, rows, empty=f"no .bad file of {options.data_path} has messages")
    return call.exit_code


def _read(call: Call[RecoverOptions]) -> Recovery:
    """All .bad files, compared with the logs."""
    directory = Directory(call.options.data_path)
    if not os.path.isdir(directory.topics_path):
        raise Nothing(f"{directory.path} is no data directory of nsqd: it has no topics")
    found = find_bad_files(directory)
    recovery = Recovery(call, Missing(directory), found.files)
    for sentence in found.others:
        recovery.sentence(sentence)
    for file in found.files:
        try:
            unread_bytes = recovery.missing.add(file)
        except OSError as error:
            recovery.failed(f"cannot read {file.path}: {error.strerror or error}")
            recovery.unsettled.add(file.path)
            continue
        if unread_bytes:
            recovery.sentence(f"{file.path}: {unread_bytes:,} bytes belong to no message")
    if recovery.missing.deleted:
        recovery.sentence(
            f"{recovery.missing.deleted:,} messages are of topics that {directory.path} does not "
            "have: deleted ones, as a rule"
        )
    recovery.missing.compare()
    return recovery


# -- publishing ---------------------------------------------------------------------------------


def _publish(recovery: Recovery) -> None:
    nodes = recovery.call.nodes()
    if len(nodes) != 1:
        raise UsageError("--publish needs one nsqd: only that one knows what it has published")
    node = nodes[0]
    try:
        topics = _topics_on(recovery, node)
        # Certain ones first: the same message may be doubtful in another file.
        for is_certain in (True, False) if recovery.call.options.doubtful else (True,):
            for file, topic, message in _missing_messages(recovery):
                if topic in topics and message.is_certain == is_certain:
                    _publish_one(recovery, node, file, topic, message)
    except NodeFailure as failure:
        recovery.failed(
            f"nsqd {node.address}: {failure}, after {recovery.published:,} messages; run the same "
            "command again: none is stored twice"
        )
    if recovery.refusals > REFUSALS_SHOWN:
        more = recovery.refusals - REFUSALS_SHOWN
        recovery.failed(f"nsqd {node.address} refused {more:,} more messages")


def _topics_on(recovery: Recovery, node: ClusterNode) -> set[str]:
    """The topics that have something missing and exist on the node. A publish would make one that
    was deleted."""
    found = set()
    for topic, messages in sorted(recovery.missing.topics.items()):
        if not any(messages.counts()[-2:]):
            continue
        try:
            node.get("/log/offsets", {"topic": topic})
        except NodeFailure as failure:
            if failure.code == "NOT_FOUND":
                raise NodeFailure("it is a stock nsqd, which knows no publish tokens") from None
            if failure.code != "TOPIC_NOT_FOUND":
                raise
            recovery.failed(
                f"nsqd {node.address} has no topic {topic}: make it there to publish its messages"
            )
        else:
            found.add(topic)
    return found


def _missing_messages(recovery: Recovery) -> Iterator[tuple[BadFile, str, SalvagedMessage]]:
    missing = recovery.missing
    for file in recovery.files:
        if file.path in recovery.unsettled:
            continue
        try:
            for batch in file.batches():
                for message in batch.messages():
                    topic = missing.topic_of(file, message)
                    if topic and missing.topics[topic].is_missing(message):
                        yield file, topic, message
        except OSError as error:
            recovery.failed(f"cannot read {file.path}: {error.strerror or error}")
            recovery.unsettled.add(file.path)


def _publish_one(
    recovery: Recovery, node: ClusterNode, file: BadFile, topic: str, message: SalvagedMessage
) -> None:
    defer_ms = max(message.due_ns - time.time_ns(), 0) // NS_PER_MS
    token = token_of(message.id, message.timestamp_ns)
    query = {"topic": topic, "token": token, "defer": defer_ms or None}
    try:
        node.post("/pub", query, message.body, is_repeatable=True)
    except NodeFailure as failure:
        if not 400 <= failure.status < 500 or failure.status in (401, 403):
            raise
        recovery.refusals += 1
        recovery.call.failed = True
        if recovery.refusals <= REFUSALS_SHOWN:
            recovery.failed(
                f"nsqd {node.address} refused message {message.id:016x} of {file.path}: {failure}"
            )
        return
    recovery.missing.topics[topic].note_republished(message)
    recovery.published += 1


def _rename(recovery: Recovery) -> None:
    for file, _, _ in _missing_messages(recovery):
        recovery.unsettled.add(file.path)
    for file in recovery.files:
        if file.path in recovery.unsettled or _has_unknown_topic(recovery, file):
            recovery.sentence(f"{file.path} keeps its name: not all of its messages are in a log")
            continue
        try:
            os.rename(file.path, _free_name(file.path + RENAMED))
        except OSError as error:
            recovery.failed(f"cannot rename {file.path}: {error.strerror or error}")


def _has_unknown_topic(recovery: Recovery, file: BadFile) -> bool:
    messages = (message for batch in file.batches() for message in batch.messages())
    return any(not recovery.missing.topic_of(file, message) for message in messages)


def _free_name(path: str) -> str:
    number = 1
    name = path
    while os.path.lexists(name):
        number += 1
        name = f"{path}-{number}"
    return name


VERB = Verb(
    name="recover",
    summary="publish again the messages of damaged files (.bad) that the logs lack",
    places="",
    options=RecoverOptions,
    examples="""
        pumpline recover --data-path /var/lib/nsqd
        pumpline recover --data-path /var/lib/nsqd --publish --nsqd 127.0.0.1:4151
        pumpline recover --data-path /var/lib/nsqd --publish --rename --nsqd 127.0.0.1:4151
    """,
    run=run,
)
FLAGS = VERB.flags


def main(argv: Sequence[str] | None = None) -> int:
    return run_verb(VERB, argv)


if __name__ == "__main__":
    sys.exit(main())
