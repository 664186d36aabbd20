"""What a task does: fetches the ranges of its partition, decodes them, and checks for missing rows.

Runs in Spark's Python workers, so it depends on its arguments only.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from pyspark_nsq.errors import DataLoss
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.reading.decode import Decoder
from pyspark_nsq.reading.fetch import Answer, Fetcher, Retired
from pyspark_nsq.reading.local import LocalReader
from pyspark_nsq.reading.plan import LogRange
from pyspark_nsq.worker_gc import freeze_gc

_LOG = logging.getLogger(__name__)


def read_ranges(
    ranges: tuple[LogRange, ...], options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    freeze_gc()
    for wanted in ranges:
        rest = wanted
        while rest.rows:
            try:
                yield from _read(rest, options, schema)
            except Retired as error:
                _lost(error, options)
                if error.first is not None and rest.start < error.first < rest.end:
                    rest = replace(rest, start=error.first)
                    continue
            except DataLoss as error:
                _lost(error, options)
            break


def _read(wanted: LogRange, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    decoder = Decoder(schema, topic=wanted.topic, node=wanted.node)
    expected = wanted.start
    for answer in _answers(wanted, options):
        rows = decoder.rows(answer.data).within(expected, answer.stop)
        missing = answer.stop - expected - len(rows)
        if missing:
            text = f"{missing} of the offsets {expected} to {answer.stop - 1} are gone"
            _lost(DataLoss(f"topic {wanted.topic} on {wanted.node}: {text}"), options)
        yield from decoder.record_batches(answer.data, rows)
        expected = answer.stop


def _answers(wanted: LogRange, options: ReadOptions) -> Iterator[Answer]:
    """From the node's files as far as this process can read them, the rest over HTTP."""
    rest = wanted
    if options.local_files:
        for answer in LocalReader(wanted, options).answers():
            rest = replace(rest, start=answer.stop)
            yield answer
    if rest.rows:
        yield from Fetcher(rest, options).answers()


def _lost(error: DataLoss, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(f"{error}; failOnDataLoss=false reads what is there")
    _LOG.warning("%s", error)
