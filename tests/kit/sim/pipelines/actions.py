"""The vocabulary of a history of a pipeline, and how a seed makes one.

As for nsqd, an action is complete in itself and has a seed of its own, so that actions can be left
out, and the others mean the same.
"""

import random
from typing import Any

from tests.kit.sim.actions import Action, History

TOPICS = ("a", "b")

# How often each verb comes.
WEIGHTS = {
    "publish": 200,
    "run": 300,
    "stop": 40,
    "start": 60,
    "drop_packets": 20,
    "heal_network": 25,
    "change_ports": 15,
    "delete": 8,
    "retire": 40,
    "back_up": 15,
    "put_back": 10,
    "stop_lookupd": 15,
    "start_lookupd": 25,
    "wait": 30,
}


def generate(seed: int, length: int | None = None) -> History:
    chance = random.Random(seed)
    options = {
        "nodes": chance.choice((1, 2, 3)),
        "lookupds": chance.choice((0, 1, 2)),
        "by_pattern": chance.random() < 0.3,
        "hold": chance.random() < 0.6,
        "dedupe": chance.random() < 0.5,
        "infers": chance.random() < 0.5,
        "rows_max": chance.choice((3, 10, 1000)),
    }
    count = chance.randrange(12, 32) if length is None else length
    actions = [Action("publish", {"node": n, "topic": "a", "count": 3}, seed) for n in range(2)]
    verbs = chance.choices([*WEIGHTS], [*WEIGHTS.values()], k=count)
    for verb in verbs:
        actions.append(Action(verb, _arguments(verb, chance), chance.randrange(1 << 32)))
    return History(seed, options, actions)


def _arguments(verb: str, chance: random.Random) -> dict[str, Any]:
    node, topic = chance.randrange(3), chance.choice(TOPICS)
    if verb == "publish":
        return {"node": node, "topic": topic, "count": chance.choice((1, 2, 5, 20))}
    if verb == "run":
        return {
            "batches": chance.choice((1, 3, 10, 25)),
            "publishes": chance.choice((0.0, 0.5, 0.9)),
            "once": chance.random() < 0.25,
            "kill_at": chance.choice((None, chance.randrange(60), chance.randrange(2000))),
        }
    if verb in ("delete", "retire"):
        return {"node": node, "topic": topic, "keep": chance.choice((0, 2, 5))}
    if verb in ("stop_lookupd", "start_lookupd"):
        return {"number": chance.randrange(2)}
    if verb == "change_ports":
        return {"node": node, "tcp": chance.random() < 0.5}
    if verb == "wait":
        return {"seconds": chance.choice((1, 5, 30))}
    return {} if verb == "heal_network" else {"node": node}
