"""POST /debug/freememory: what of NSQ's /debug makes sense in Python, beside `web.pprof`."""

import asyncio
import gc
from contextlib import suppress

from pumpline.web.replies import Reply, plain_reply
from pumpline.web.request import Request


async def free_memory(request: Request) -> Reply:
    """Collect garbage, and give memory back to the system."""
    gc.collect()
    await asyncio.to_thread(_trim_heap)
    return plain_reply("")


def _trim_heap() -> None:
    """Give free memory at the top of the C heap back, where the C library can."""
    import ctypes  # 10 ms of a start, for what is hardly ever asked for

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
