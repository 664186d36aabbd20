"""nsqd.dat is written by one at a time, and by nobody once its writer is closed."""

import asyncio
from pathlib import Path

from pumpline.log.directory import Metadata
from pumpline.nsqd.storage.metadata import MetadataWriter
from tests.kit.fake_broker import FakeBroker


async def test_who_waits_to_write_when_it_is_closed_writes_nothing(tmp_path: Path) -> None:
    """The directory may belong to another nsqd by then."""
    described = []

    def describe() -> Metadata:
        described.append(len(described))
        return Metadata()

    writer = MetadataWriter(FakeBroker(tmp_path).disk, describe=describe, count=lambda: 0)
    await writer.persist()
    await asyncio.gather(writer.close(), writer.persist())
    await writer.persist()
    assert described == [0, 1]
