"""What can happen to a network, by dice."""

import asyncio
import random

from tests.kit.proxy import DOWN, UP, Proxy

KINDS = ("cut", "up", "down", "half open", "nothing")


async def trouble(
    proxies: list[Proxy],
    dice: random.Random,
    *,
    kinds: tuple[str, ...] = KINDS,
    stall_s: float = 0.1,
) -> None:
    """One thing, at one of them, and it passes; `stall_s` is the longest that it lasts."""
    proxy = dice.choice(proxies)
    kind = dice.choice(kinds)
    if kind == "cut":
        proxy.cut()
    elif kind == "half open":
        proxy.half_open()
    elif kind == "refuse":
        proxy.refuse()
        proxy.cut()
        await asyncio.sleep(dice.random() * 0.1)
        proxy.accept()
    elif kind != "nothing":
        proxy.stall(UP if kind == "up" else DOWN)
        await asyncio.sleep(dice.random() * stall_s)
        proxy.resume()
    await asyncio.sleep(dice.random() * 0.1)
