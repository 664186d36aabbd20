"""What a run with --once did not read: nodes that do not answer, and logs that it did not finish.

Without this, an archive whose only node is down would end as if it had read everything. Knows the
nodes' answers before the run and the checkpoint after it; must not know what is done with rows.
"""

import json

from pyspark_nsq.errors import NsqError
from pyspark_nsq.nodes.nodes import Nodes, Survey
from pyspark_nsq.nodes.positions import Positions, from_json
from pyspark_nsq.options import parse_read
from pyspark_nsq.pipelines.table.storage import Storage


class NotAllRead(NsqError):
    """The run has ended, and messages that were there when it began are not read."""


def survey_of(options: dict[str, str]) -> Survey:
    """What there is to read, and which nodes do not answer."""
    nodes = Nodes(parse_read(options, streaming=True))
    try:
        return nodes.survey()
    finally:
        nodes.close()


def require_all_read(survey: Survey, checkpoint: Storage) -> None:
    """Raise NotAllRead unless the checkpoint is at the end of all logs of a survey before it."""
    if texts := unread(survey, reached(checkpoint)):
        raise NotAllRead("not all is read: " + "; ".join(texts))


def reached(checkpoint: Storage) -> Positions:
    """Where the newest batch of a stream ends; empty if there was none."""
    batches = [int(name) for name in checkpoint.names("offsets") if name.isdigit()]
    text = checkpoint.read_text(f"offsets/{max(batches)}") if batches else None
    return from_json(json.loads(text.splitlines()[-1])) if text else {}


def unread(survey: Survey, reached: Positions) -> list[str]:
    """A sentence for each node and each log that was not read to its end."""
    texts = list(survey.silent.values())
    if not survey.names and not texts:
        texts.append("no node is known")
    # A node may have a new name; the id of a log stays.
    by_log = {(topic, place.log): place for (topic, _), place in reached.items()}
    seen = {(state.topic, state.log) for state in survey.logs.values()}
    for (topic, node), state in sorted(survey.logs.items()):
        place = by_log.get((topic, state.log))
        if not reached or state.first == state.end:
            continue  # a stream notes no position before it has found a first row
        if place is None or place.offset < state.end:
            at = f"read up to {place.offset:,}, of {state.end:,}" if place else "nothing is read"
            texts.append(f"topic {topic} on {node}: {at}")
    if texts:  # logs of nodes that are not there are no news while all others are read
        texts += [
            f"topic {topic} on {node}: nothing beyond {place.offset:,} is read"
            for (topic, node), place in sorted(reached.items())
            if node not in survey.names and (topic, place.log) not in seen
        ]
    return texts
