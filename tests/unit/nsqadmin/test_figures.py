"""Sums over nodes where NSQ's are wrong: each node keeps its figures, and minima are minima."""

import msgspec

from pumpline.cluster.stats import SeenChannel, SeenTopic
from pumpline.nsqadmin.cluster.figures import (
    ToldLatency,
    ToldPercentile,
    TopicFigures,
    sum_topic,
    topic_figures,
)


def part(node: str, depth: int, *percentiles: tuple[float, float], count: int = 0) -> TopicFigures:
    told_latency = ToldLatency(count, [ToldPercentile(*each) for each in percentiles])
    latency = msgspec.Raw(msgspec.json.encode(told_latency))
    channel = SeenChannel(channel_name="c", depth=depth, e2e_processing_latency=latency)
    told = SeenTopic(topic_name="t", channels=[channel], e2e_processing_latency=latency)
    return topic_figures(told, node=node, hostname="h", now_s=0)


def test_nodes_keep_their_own_figures() -> None:
    total = sum_topic("t", [part("b:1", 2), part("a:1", 1)])
    assert total.nodes is not None and total.channels is not None
    assert [node.node for node in total.nodes] == ["a:1", "b:1"]
    assert [each.depth for node in total.nodes for each in node.channels or ()] == [1, 2]
    (channel,) = total.channels
    assert (channel.node, channel.depth) == ("*", 3)
    assert [each.node for each in channel.nodes or ()] == ["a:1", "b:1"]


def test_a_channel_on_one_node_is_that_of_the_node() -> None:
    total = sum_topic("t", [part("a:1", 1)])
    assert total.channels is not None
    assert (total.channels[0].node, total.channels[0].nodes) == ("a:1", None)


def test_latencies_over_nodes() -> None:
    parts = [
        part("a:1", 0, (0.5, 10), (0.99, 100), count=1),
        part("b:1", 0, (0.5, 40), (0.99, 300), count=3),
        part("c:1", 0, (0.5, 0), (0.99, 0)),  # no messages: counts for nothing
    ]
    latency = sum_topic("t", parts).e2e_processing_latency
    assert latency.percentiles is not None
    high, low = latency.percentiles
    assert (latency.count, high.quantile, low.quantile) == (4, 0.99, 0.5)
    assert (high.min, high.max, high.average) == (100, 300, 250)
    assert (low.min, low.max, low.average, low.count) == (10, 40, 32.5, 4)
