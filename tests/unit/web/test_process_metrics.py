"""The event loop's lateness is noticed by a timer."""

import asyncio
import time

from pumpline.web import process_metrics
from pumpline.web.process_metrics import LoopDelay

PATIENCE_S = 60.0
STALL_S = 0.02


async def test_a_loop_that_was_busy_is_late() -> None:
    delay = LoopDelay()
    loop = asyncio.get_running_loop()
    delay.start(loop)
    try:
        time.sleep(process_metrics.DELAY_PERIOD_S + STALL_S)  # the stall is what is tested
        async with asyncio.timeout(PATIENCE_S):
            while not sum(delay.delays_s.counts):
                await asyncio.sleep(0)
    finally:
        delay.close()
    assert delay.delays_s.total >= STALL_S
