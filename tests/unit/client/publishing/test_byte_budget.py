"""Room: a limit that is waited for in turn."""

import asyncio

from pumpline.client.publishing.byte_budget import Room


async def test_it_is_given_in_turn() -> None:
    room = Room(100)
    order: list[int] = []

    async def visit(number: int, size: int) -> None:
        await room.take(size)
        order.append(number)

    await visit(0, 100)
    waiting = [asyncio.create_task(visit(number, 60)) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    assert not room.try_take(1)
    room.give(100)
    await asyncio.gather(*waiting[:2])
    assert order == [0, 1, 2]
    assert room.taken_bytes == 120
    room.give(60)
    await waiting[2]
    assert order == [0, 1, 2, 3]


async def test_one_that_gives_up_takes_nothing() -> None:
    room = Room(10)
    assert room.try_take(10)
    waiting = [asyncio.create_task(room.take(10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # while it waits
    room.give(10)
    waiting[1].cancel()  # after it was let in
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[2].done() and not waiting[2].cancelled()
    room.give(10)
    assert room.taken_bytes == 0
