"""An nsqd attacked from many connections at once, round after round, beside a bystander."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz.conftest import Rounds
from tests.kit.daemons import Nsqd
from tests.kit.fuzz import bystander
from tests.kit.fuzz.bystander import Bystander, Publish
from tests.kit.fuzz.watch import Watch, delete_topics

Attack = Callable[[Nsqd, int], None]
"""One connection, from a seed."""


def swarm(
    rounds: Rounds,
    nsqd: Nsqd,
    attack: Attack,
    *,
    connections: int,
    at_once: int,
    warm_up: int = 0,
    publish: Publish | None = None,
    after_each: Callable[[], None] | None = None,
) -> None:
    """Runs `attack` on `connections` connections each round, `at_once` of them at a time.

    The first client and the first `warm_up` attacks may make the process grow. Each round ends with
    the topics deleted, or with a call of `after_each`.
    """
    watch = Watch(nsqd)
    with Bystander(nsqd, publish):
        pass
    for seed in range(warm_up):
        attack(nsqd, seed)
    watch.forgive_growth()

    def play(rng: random.Random) -> None:
        seeds = [rng.getrandbits(64) for _ in range(connections)]
        with Bystander(nsqd, publish), ThreadPoolExecutor(at_once) as threads:
            for _ in threads.map(lambda seed: attack(nsqd, seed), seeds):
                pass
        if after_each is None:
            delete_topics(nsqd, but=bystander.TOPIC)
        else:
            after_each()
        watch.check()

    rounds(play)
