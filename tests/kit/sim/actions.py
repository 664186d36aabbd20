"""The vocabulary of a history, and how a seed makes one.

An action is complete in itself: it names its topic, channel and client, and has a seed of its own
for what chance decides while it runs. So actions can be left out, and the others mean the same.
"""

import errno
import random
from typing import Any, NamedTuple

TOPICS = ("a", "b")
CHANNELS = ("x", "y", "e#ephemeral")
PUBLISHERS = 2
CONSUMERS = 4
HOLDS = ("h",)
QUIET_EVERY = 5  # seeds
TIMES_EVERY, TIMES_AT = 4, 2  # seeds with verbs of TIME_VERBS: others mean what they did before
TIME_VERBS = ("find_time", "find_time", "seek_time")


class Action(NamedTuple):
    verb: str
    args: dict[str, Any]
    salt: int

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        return f"{self.verb}({shown})"


class History(NamedTuple):
    seed: int
    options: dict[str, Any]  # of nsqd
    actions: list[Action]

    def show(self) -> str:
        lines = [f"nsqd {' '.join(f'{k}={v}' for k, v in self.options.items())}"]
        lines += [f"{number:4} {action}" for number, action in enumerate(self.actions)]
        return "\n".join(lines)


# How often each verb comes, among 1000 or so.
WEIGHTS = {
    "publish": 170,
    "post": 40,
    "subscribe": 90,
    "ready": 25,
    "answer": 190,
    "answer_late": 15,
    "leave": 25,
    "wait": 110,
    "create": 25,
    "delete": 10,
    "empty": 25,
    "pause": 20,
    "unpause": 25,
    "seek": 12,
    "configure": 20,
    "hold": 15,
    "look": 30,
    "kill": 60,
    "stop": 10,
    "fail_disk": 20,
    "heal_disk": 25,
    "set_clock": 8,
    "slow_disk": 8,
}

# Of seeds whose topics are quiet: publishes stay in the open batches, without consumers.
QUIET_WEIGHTS = {"publish": 600, "subscribe": 15, "answer": 50, "kill": 30, "fail_disk": 30}


def generate(seed: int, length: int | None = None) -> History:
    chance = random.Random(seed)
    options = {
        "mem_queue_size": chance.choice((10_000, 10_000, 1_000, 5, 1)),
        "sync_every": chance.choice((2500, 2500, 1)),
        "max_bytes_per_file": chance.choice((100 << 20, 2_000, 300)),
        "max_msg_timeout_ns": 20 * 10**9,
        "max_req_timeout_ns": 10 * 10**9,
        "max_publish_tokens": chance.choice((100_000, 100)),
    }
    if chance.random() < 0.4:
        options |= {"retention_time_ns": 0, "retention_bytes": 0}
    # A seed does not do everything, so that what it does meets often.
    weights = {verb: w for verb, w in WEIGHTS.items() if w >= 50 or chance.random() < 0.6}
    is_quiet = seed % QUIET_EVERY == 0
    if is_quiet:
        weights |= QUIET_WEIGHTS
        options["sync_every"] = chance.choice((2500, 1))
    count = length or chance.randint(30, 130)
    verbs = chance.choices(list(weights), list(weights.values()), k=count)
    actions = [_action(verb, chance) for verb in verbs]
    for action in actions:
        if is_quiet and action.verb == "publish":
            action.args.update(many=False, delay_ms=0)  # others are batches of their own
    if seed % TIMES_EVERY == TIMES_AT:
        _add_times(actions, random.Random(-1 - seed))
    return History(seed, options, actions)


def _add_times(actions: list[Action], chance: random.Random) -> None:
    for _ in range(chance.randint(4, 16)):
        action = _action(chance.choice(TIME_VERBS), chance)
        actions.insert(chance.randint(0, len(actions)), action)


def _action(verb: str, chance: random.Random) -> Action:
    make = globals()[f"_{verb}"]
    return Action(verb, make(chance), chance.getrandbits(32))


def _place(chance: random.Random) -> dict[str, Any]:
    topic = chance.choices(TOPICS, (3, 1))[0]
    return {"topic": topic, "channel": chance.choices(CHANNELS, (5, 3, 1))[0]}


def _publish(chance: random.Random) -> dict[str, Any]:
    delay_ms = chance.choice((50, 400, 3000)) if chance.random() < 0.15 else 0
    return {
        "client": chance.randrange(PUBLISHERS),
        "topic": chance.choices(TOPICS, (3, 1))[0],
        "count": chance.choice((1, 1, 2, 3, 8, 30)),
        "many": not delay_ms and chance.random() < 0.4,
        "delay_ms": delay_ms,
        "size": chance.choice((0, 0, 0, 100, 1000)),
    }


def _post(chance: random.Random) -> dict[str, Any]:
    return {
        "topic": chance.choices(TOPICS, (3, 1))[0],
        "token": chance.choice((None, 1, 2, 3, 4)),
        "count": chance.choice((1, 1, 3)),
    }


def _subscribe(chance: random.Random) -> dict[str, Any]:
    return {
        "client": chance.randrange(CONSUMERS),
        **_place(chance),
        "rdy": chance.choice((1, 2, 5, 100)),
        "msg_timeout_ms": chance.choice((1000, 2000, 10_000)),
    }


def _ready(chance: random.Random) -> dict[str, Any]:
    return {"client": chance.randrange(CONSUMERS), "rdy": chance.choice((0, 1, 3, 50))}


def _answer(chance: random.Random) -> dict[str, Any]:
    return {
        "client": chance.randrange(CONSUMERS),
        "how": chance.choice(("FIN", "FIN", "FIN", "REQ", "REQ", "TOUCH")),
        "count": chance.choice((1, 2, 10, 100)),
        "delay_ms": chance.choice((0, 0, 100, 1500)),
        "pick": chance.choice(("first", "last", "any")),
    }


def _answer_late(chance: random.Random) -> dict[str, Any]:
    how = chance.choice(("FIN", "REQ", "TOUCH"))
    return {"client": chance.randrange(CONSUMERS), "how": how}


def _leave(chance: random.Random) -> dict[str, Any]:
    how = chance.choice(("close", "reset", "CLS"))
    return {"client": chance.randrange(CONSUMERS), "how": how}


def _wait(chance: random.Random) -> dict[str, Any]:
    return {"ms": chance.choice((1, 20, 80, 150, 600, 2500, 15_000))}


def _create(chance: random.Random) -> dict[str, Any]:
    return {**_place(chance), "only_topic": chance.random() < 0.2}


def _delete(chance: random.Random) -> dict[str, Any]:
    return {**_place(chance), "only_topic": chance.random() < 0.3}


_empty = _create
_pause = _create
_unpause = _create


def _seek(chance: random.Random) -> dict[str, Any]:
    return {**_place(chance), "to": chance.choice(("beginning", "end", "middle"))}


def _find_time(chance: random.Random) -> dict[str, Any]:
    return {
        "topic": chance.choices(TOPICS, (3, 1))[0],
        "client": chance.randrange(PUBLISHERS),
        "count": chance.choice((0, 1, 3, 8)),
        "place": chance.random(),
        "by_ns": chance.choice((-1, 0, 0, 0, 1, 1000, -(10**9))),
    }


def _seek_time(chance: random.Random) -> dict[str, Any]:
    return {**_find_time(chance), **_place(chance)}


def _configure(chance: random.Random) -> dict[str, Any]:
    choices: tuple[dict[str, Any], ...] = (
        {"message_ttl": chance.choice(("700ms", "3s", None))},
        {"max_attempts": chance.choice((1, 2, 3, None))},
        {"max_depth": chance.choice((1, 5, 20, None)), "when_full": None},
        {"max_depth": chance.choice((2, 10)), "when_full": "drop-oldest"},
        {"retention_bytes": chance.choice((0, 500, None))},
    )
    return {"topic": chance.choices(TOPICS, (3, 1))[0], "settings": chance.choice(choices)}


def _hold(chance: random.Random) -> dict[str, Any]:
    return {
        "topic": chance.choices(TOPICS, (3, 1))[0],
        "hold": chance.choice(HOLDS),
        "what": chance.choice(("create", "create", "commit", "commit", "delete")),
        "to": chance.choice(("beginning", "end")),
    }


def _look(chance: random.Random) -> dict[str, Any]:
    return {"topic": chance.choices(TOPICS, (3, 1))[0]}


def _kill(chance: random.Random) -> dict[str, Any]:
    where = chance.choice(("now", "call", "call", "callback"))
    again = chance.randrange(12) if chance.random() < 0.15 else None
    return {
        "where": where,
        "after": chance.choice((0, 1, 2, 3, 5, 9, 20, 60)),
        "power": chance.random() < 0.2,
        "again": again,
        "away_ms": chance.choice((0, 0, 50, 2000)),
    }


def _stop(chance: random.Random) -> dict[str, Any]:
    return {"away_ms": chance.choice((0, 500))}


def _fail_disk(chance: random.Random) -> dict[str, Any]:
    kinds = chance.choice(
        (
            "write",
            "fsync",
            "write create mkdir",
            "write fsync",
            "rename",
            "unlink rmdir",
            "ftruncate write",
            "create write fsync rename ftruncate unlink mkdir rmdir",
        )
    )
    error = chance.choice((errno.ENOSPC, errno.EIO))
    return {"kinds": kinds, "rate": chance.choice((0.1, 0.5, 1.0)), "error": error}


def _heal_disk(chance: random.Random) -> dict[str, Any]:
    return {}


def _set_clock(chance: random.Random) -> dict[str, Any]:
    return {"by_s": chance.choice((-3600, -2, 2, 3600))}


def _slow_disk(chance: random.Random) -> dict[str, Any]:
    return {"by_ms": chance.choice((1, 20, 20, 400))}
