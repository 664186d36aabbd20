"""Moves the hold of a stream that has ended to where its last batch ended.

Spark reports a batch as done to its source when it plans the next one, so nodes would keep the last
batch, and show it as a depth, until the stream runs again. Knows the checkpoint; must not know what
was done with the messages.
"""

import logging

from pyspark_nsq.errors import NsqError
from pyspark_nsq.nodes.nodes import Nodes
from pyspark_nsq.options import parse_read
from pyspark_nsq.pipelines.table.history import positions_of
from pyspark_nsq.pipelines.table.storage import Storage

_LOG = logging.getLogger(__name__)


def commit_last_batch(options: dict[str, str], checkpoint: Storage) -> None:
    """Commit the hold of the options, if it names one, at the end of the newest batch that is done.
    A node that does not answer keeps more than it needs to, until the stream runs again."""
    read = parse_read(options, streaming=True)
    batch = max(checkpoint.batches("commits"), default=None)
    if read.hold is None or batch is None:
        return
    places = positions_of(checkpoint, batch)
    nodes = Nodes(read)
    try:
        survey = nodes.survey()
        offsets = {
            key: place.offset
            for key, place in places.items()
            if key in survey.logs and survey.logs[key].log == place.log
        }
        for key in nodes.commit_holds(offsets, survey.names):
            _LOG.warning("hold %s on topic %s on %s was not moved", read.hold, *key)
    except NsqError as error:
        _LOG.warning("hold %s was not moved: %s", read.hold, error)
    finally:
        nodes.close()
