"""Cuts a history that fails to the shortest that still does: delta debugging over its actions.

First whole stretches are left out, then shorter and shorter ones, until no single action can be
left out. Then arguments are made simpler. A shorter history counts only if it fails in the same
way: the first fault, without its numbers, is the same.
"""

import re
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tests.kit.sim.actions import Action, History

SECONDS_MAX = 120.0


class Outcome(Protocol):
    """What a simulator says of a history."""

    @property
    def faults(self) -> list[str]: ...
    @property
    def at(self) -> int: ...


P = TypeVar("P", bound=Outcome)
# What an argument becomes if that changes nothing.
PLAIN: dict[str, Any] = {
    "count": 1,
    "size": 0,
    "delay_ms": 0,
    "away_ms": 0,
    "again": None,
    "power": False,
    "after": 0,
    "many": False,
    "pick": "first",
    "where": "now",
    "rate": 1.0,
    "rdy": 1,
    "client": 0,
    "msg_timeout_ms": 10_000,
}


def kind_of(played: Outcome) -> str:
    """The first fault without what differs from run to run; empty if there is none."""
    if not played.faults:
        return ""
    text = played.faults[0].partition(": ")[2]
    text = re.sub(r"\bm\d+\.|\b[ab]\d\.\d\.\d\.", "M", text)
    return re.sub(r"[0-9a-f]{16}|\d+(\.\d+)?|\bc\d|\bp\d|\b[ab]/[xye]\b", "N", text)[:90]


def shrink(
    history: History,
    played: P,
    *,
    run: Callable[[History], P],
    seconds_max: float = SECONDS_MAX,
) -> tuple[History, P]:
    """A history that cannot be made shorter, in the time there is, and its outcome."""
    kind = kind_of(played)
    until_s = time.monotonic() + seconds_max
    best = history._replace(actions=history.actions[: played.at + 1]), played

    def fails(actions: list[Action]) -> bool:
        nonlocal best
        tried = history._replace(actions=actions)
        outcome = run(tried)
        if kind_of(outcome) != kind:
            return False
        best = tried._replace(actions=actions[: outcome.at + 1]), outcome
        return True

    if not fails(best[0].actions):
        return history, played
    size = max(len(best[0].actions) // 2, 1)
    while time.monotonic() < until_s:
        shorter = _without_stretches(lambda: best[0].actions, size, fails, until_s)
        if size > 1:
            size //= 2
        elif not shorter:
            break
    _simplify(lambda: best[0].actions, fails, until_s)
    return best


def _without_stretches(
    actions: Callable[[], list[Action]],
    size: int,
    fails: Callable[[list[Action]], bool],
    until_s: float,
) -> bool:
    """Leave out stretches of `size` where that is possible; return whether it was anywhere."""
    shorter = False
    at = len(actions()) - size
    while at > -size and time.monotonic() < until_s:
        now = actions()
        start = max(at, 0)
        if start < len(now) and fails(now[:start] + now[start + size :]):
            shorter = True
        at -= size
    return shorter


def _simplify(
    actions: Callable[[], list[Action]], fails: Callable[[list[Action]], bool], until_s: float
) -> None:
    for at in range(len(actions())):
        for name, plain in PLAIN.items():
            now = actions()
            if at >= len(now) or time.monotonic() > until_s:
                return
            action = now[at]
            if action.args.get(name, plain) != plain:
                simpler = action._replace(args={**action.args, name: plain})
                fails([*now[:at], simpler, *now[at + 1 :]])
