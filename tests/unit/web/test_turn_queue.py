"""Turns: given in order, and never lost with a task that waited for one."""

import asyncio

from pumpline.web.turn_queue import TurnQueue


async def test_turns_are_given_in_order() -> None:
    turns = TurnQueue(2)
    order: list[int] = []

    async def work(number: int) -> None:
        async with turns:
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(10)))
    assert order == list(range(10))
    assert not turns.is_awaited


async def test_a_task_that_is_cancelled_takes_no_turn() -> None:
    for is_given in (False, True):
        turns = TurnQueue(1)
        await turns.acquire()
        waiting = [asyncio.create_task(turns.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        assert turns.is_awaited
        if is_given:
            turns.release()
        waiting[0].cancel()
        waiting[1].cancel()
        if not is_given:
            turns.release()
        await waiting[2]
        assert not turns.is_awaited
        turns.release()
        await turns.acquire()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert [task.cancelled() for task in waiting] == [True, True, False]
