"""Dead letters across kill -9: every message is in the channel or among the dead letters."""

import json
from pathlib import Path
from random import Random

import pytest

from tests.kit.daemons import Nsqd, RawClient

MESSAGES = 300
KILLS = 6
LOOK_S = 0.2  # without a message, whether there are more


def settle_accounts(nsqd: Nsqd) -> set[str]:
    """The bodies of all dead letters."""
    bodies = set()
    with nsqd.connect() as client:
        client.sub("t.dlq", "look")
        client.rdy(100)
        while nsqd.channel_stats("t.dlq", "look")["depth"] or len(bodies) < MESSAGES:
            message = client.read_message()
            letter = json.loads(message.body)
            assert (letter["topic"], letter["channel"], letter["attempts"]) == ("t", "c", 2)
            bodies.add(letter["body"])
            client.fin(message.id)
    return bodies


def requeue(nsqd: Nsqd, client: RawClient, count: int | None = None) -> None:
    """Give up on messages, until `count` or there are no more."""
    client.sub("t", "c")
    client.rdy(20)
    requeued = 0
    while requeued != count:
        try:
            client.req(client.read_message(timeout_s=LOOK_S).id)
            requeued += 1
        except TimeoutError:
            stats = nsqd.channel_stats("t", "c")
            if not stats["depth"] and not stats["in_flight_count"]:
                return


@pytest.mark.slow
def test_no_message_is_lost_between_channel_and_dead_letters(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    with Nsqd(tmp_path / "data") as nsqd:
        assert nsqd.http("POST", "/topic/create?topic=t")[0] == 200
        assert nsqd.http("POST", "/channel/create?topic=t&channel=c")[0] == 200
        assert nsqd.http("POST", "/topic/settings?topic=t", b'{"max_attempts":2}')[0] == 200
        with nsqd.connect() as client:
            client.mpub("t", [b"%d" % number for number in range(MESSAGES)])
        for _ in range(KILLS):
            client = nsqd.connect()
            requeue(nsqd, client, random.randrange(20, 200))
            nsqd.kill()
            client.close()
            nsqd.restart()
        with nsqd.connect() as client:
            requeue(nsqd, client)
        assert settle_accounts(nsqd) == {str(number) for number in range(MESSAGES)}
