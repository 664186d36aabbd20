"""The schema that divides a batch into events and quarantine, noted before either is written.

A kill may come when the quarantine has the batch and the table has not. When the batch comes again,
its messages must be judged as before, or one of them would be in both or in neither. What a batch
teaches depends on what was known before it and on the way it was cut, so it is not inferred again.

    CHECKPOINT/batch_schema.json     of the newest batch

Knows a file; must not know tables.
"""

import json
from dataclasses import dataclass

from pyspark.sql.types import StructType

from pyspark_nsq.pipelines.table.storage import Storage

NAME = "batch_schema.json"


@dataclass(frozen=True, slots=True)
class BatchSchema:
    batch: int
    unknown: str  # what is done with keys that are not in the schema
    schema: StructType

    def keep(self, checkpoint: Storage) -> None:
        value = {"batch": self.batch, "unknown": self.unknown, "schema": self.schema.jsonValue()}
        checkpoint.write_text(NAME, json.dumps(value))


def kept(checkpoint: Storage, batch: int) -> BatchSchema | None:
    """None if the batch was not begun before."""
    text = checkpoint.read_text(NAME)
    value = json.loads(text) if text else {}
    if value.get("batch") != batch:
        return None
    return BatchSchema(batch, value["unknown"], StructType.fromJson(value["schema"]))
