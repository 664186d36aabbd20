"""ByteBudget: a limit that is waited for in turn."""

import asyncio

from pumpline.client.publishing.byte_budget import ByteBudget


async def test_it_is_given_in_turn() -> None:
    budget = ByteBudget(100)
    order: list[int] = []

    async def visit(number: int, size: int) -> None:
        await budget.take(size)
        order.append(number)

    await visit(0, 100)
    waiting = [asyncio.create_task(visit(number, 60)) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    assert not budget.try_take(1)
    budget.give_back(100)
    await asyncio.gather(*waiting[:2])
    assert order == [0, 1, 2]
    assert budget.taken_bytes == 120
    budget.give_back(60)
    await waiting[2]
    assert order == [0, 1, 2, 3]


async def test_one_that_gives_up_takes_nothing() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(10)
    waiting = [asyncio.create_task(budget.take(10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # while it waits
    budget.give_back(10)
    waiting[1].cancel()  # after it was let in
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[2].done() and not waiting[2].cancelled()
    budget.give_back(10)
    assert budget.taken_bytes == 0
