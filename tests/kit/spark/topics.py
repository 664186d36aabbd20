"""Topics for Spark to read: publishing to them, and naming their nodes."""

import json
import re

from tests.kit.daemons import Nsqd, Nsqlookupd


def publish(node: Nsqd, topic: str, messages: list[bytes], batch: int = 1000) -> None:
    with node.connect() as client:
        for at in range(0, len(messages), batch):
            client.mpub(topic, messages[at : at + batch])


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def name_of(node: Nsqd) -> str:
    """What the node calls itself, as in the column `node`."""
    return str(json.loads(node.http("GET", "/log/offsets")[1])["node"])


def end_of(node: Nsqd, topic: str) -> int:
    status, body = node.http("GET", f"/log/offsets?topic={topic}")
    assert status == 200, body
    return int(json.loads(body)["end"])


def first_of(node: Nsqd, topic: str) -> int:
    status, body = node.http("GET", f"/log/offsets?topic={topic}")
    assert status == 200, body
    return int(json.loads(body)["first"])


def repeats(node: Nsqd, topic: str) -> int:
    """Publishes that the node answered only, as it knew their tokens."""
    status, body = node.http("GET", f"/metrics?topic={topic}")
    found = re.search(rb"^nsqd_topic_publish_repeats_total{[^}]*} (\d+)", body, re.MULTILINE)
    assert status == 200 and found, body
    return int(found[1])


def producers(lookupd: Nsqlookupd, topic: str) -> list[object]:
    """Who nsqlookupd says has the topic."""
    status, body = lookupd.http("GET", f"/lookup?topic={topic}")
    return list(json.loads(body)["producers"]) if status == 200 else []
