"""What an archive notes beside the files of a table: which stream writes it, how, and which events.

    TABLE/_owner.json          the stream and its checkpoint
    TABLE/_settings/0.json     settings of the archive, the newest last
    TABLE/_schema/17.json      schema of `event` since that batch

A Parquet table has the same files. Readers of tables leave out what begins with `_`.
"""

import json
from dataclasses import dataclass

from pyspark.sql.types import StructType

from pyspark_nsq.errors import NsqError
from pyspark_nsq.pipelines.table.storage import Storage
from pyspark_nsq.pipelines.table.table import OWNER, SCHEMAS, SETTINGS


@dataclass(frozen=True, slots=True)
class TableOwner:
    query: str
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Notes:
    storage: Storage

    def owner(self) -> TableOwner | None:
        text = self.storage.read_text(OWNER)
        return TableOwner(**json.loads(text)) if text else None

    def keep_owner(self, owner: TableOwner) -> None:
        text = json.dumps({"query": owner.query, "checkpoint": owner.checkpoint})
        self.storage.write_text(OWNER, text)

    def settings(self) -> str | None:
        return self.storage.newest(SETTINGS)[1]

    def keep_settings(self, text: str) -> None:
        number, before = self.storage.newest(SETTINGS)
        if text != before:
            self.storage.write_text(f"{SETTINGS}/{number + 1}.json", text)

    def event_schema(self) -> StructType:
        _, text = self.storage.newest(SCHEMAS)
        return StructType.fromJson(json.loads(text)) if text else StructType()

    def keep_event_schema(self, batch: int, schema: StructType) -> None:
        self.storage.write_text(f"{SCHEMAS}/{batch}.json", schema.json())


def refuse_other(table: str, owner: TableOwner | None, checkpoint: str, query: str | None) -> None:
    """Raise NsqError if another stream has written a table: its rows would be there twice."""
    if owner is None:
        raise NsqError(
            f"{table} is a table that no archive wrote: name another, or move it out of the way"
        )
    if owner.query != query:
        raise NsqError(
            f"{table} was written by the stream with the checkpoint {owner.checkpoint}, "
            f"not by that of {checkpoint}: every row would be there twice. Name that one, or "
            "another table"
        )


def refuse_gap(table: str, newest: int, batch: int) -> None:
    """Raise NsqError unless the batch is the next one."""
    if newest + 1 != batch:
        raise NsqError(
            f"{table} has batches up to {newest}, and the checkpoint goes on with {batch}: "
            "the table was deleted or replaced. Delete the checkpoint too, to begin anew"
        )
