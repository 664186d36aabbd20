"""POST /debug/freememory: what of NSQ's /debug makes sense in Python, beside `web.pprof`."""

import asyncio
import gc

from pumpline.web.process_memory import trim_heap
from pumpline.web.replies import Reply, plain_reply
from pumpline.web.request import Request


async def free_memory(request: Request) -> Reply:
    """Collect garbage, and give memory back to the system."""
    gc.collect()
    await asyncio.to_thread(trim_heap)
    return plain_reply("")
