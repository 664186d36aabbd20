"""Redeliveries by window, out of counters that nodes keep: sampled, and never made up."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.options import parse_read
from pyspark_nsq.pipelines.metrics import Sampler
from pyspark_nsq.pipelines.redeliveries import POINTS_MAX, Redeliveries

OVERTAKEN_S = 0.3  # for another question to be asked, and its answer taken in


def sampled(*samples: tuple[float, dict[str, dict[str, int]]]) -> Redeliveries:
    known = Redeliveries()
    for time_s, counts in samples:
        known.add(time_s, counts)
    return known


def test_what_was_counted_before_the_first_sample_is_not_of_any_window() -> None:
    known = sampled((10, {"t": {"n/c": 500}}), (20, {"t": {"n/c": 530}}))
    assert known.between("t", 10, 20) == 30
    assert known.between("t", 10, 15) == 15
    assert known.between("t", 5, 15) is None
    assert known.between("t", 15, 25) is None
    assert known.between("other", 10, 20) is None


def test_a_window_that_is_not_over_is_counted_so_far() -> None:
    known = sampled((10, {"t": {"n/c": 0}}), (14, {"t": {"n/c": 8}}))
    assert known.so_far("t", 10, 20) == 8
    assert known.so_far("t", 20, 30) is None
    assert known.so_far("other", 10, 20) is None


def test_a_node_that_was_restarted_counts_from_nothing_again() -> None:
    known = sampled((0, {"t": {"n/c": 7}}), (1, {"t": {"n/c": 2}}), (2, {"t": {"n/c": 5}}))
    assert known.between("t", 0, 2) == 5


def test_a_channel_and_a_topic_that_are_new_have_begun_at_nothing() -> None:
    known = sampled((0, {"t": {"n/a": 1}}), (1, {"t": {"n/a": 1, "n/b": 4}, "u": {"n/c": 3}}))
    assert known.between("t", 0, 1) == 4
    assert known.between("u", 0, 1) == 3


def test_a_node_that_is_away_for_a_sample_loses_nothing() -> None:
    known = sampled((0, {"t": {"n/c": 1}}), (1, {}), (2, {"t": {"n/c": 9}}))
    assert known.between("t", 0, 2) == 8


def test_a_topic_at_rest_takes_no_room_and_one_that_changes_a_bounded_one() -> None:
    known = Redeliveries()
    for time_s in range(2 * POINTS_MAX):
        known.add(time_s, {"rest": {"n/c": 3}, "busy": {"n/c": time_s}})
    assert len(known.points["rest"]) == 2
    assert known.between("rest", 0, 2 * POINTS_MAX - 1) == 0
    assert len(known.points["busy"]) == POINTS_MAX


counts = st.lists(st.integers(0, 50), min_size=2, max_size=12)


@given(counts, st.integers(1, 40))
def test_windows_side_by_side_add_up_also_after_a_restart(steps: list[int], width: int) -> None:
    known = Redeliveries()
    total = 0
    for number, step in enumerate(steps):
        total += step
        known.add(10.0 * number, {"t": {"n/c": total}})
        known = Redeliveries.from_json(known.to_json())
    edges = [0.0, *(e for e in range(width, 10 * (len(steps) - 1), width)), 10.0 * (len(steps) - 1)]
    windows = [known.between("t", a, b) for a, b in pairwise(edges)]
    assert sum(n for n in windows if n is not None) == total - steps[0]
    assert None not in windows


@pytest.mark.parametrize("back_s", [0.0, 5.0])
def test_a_clock_that_is_set_back_does_no_harm(back_s: float) -> None:
    known = sampled((10, {"t": {"n/c": 0}}), (10 - back_s, {"t": {"n/c": 4}}))
    known.add(11, {"t": {"n/c": 5}})
    assert known.between("t", 10, 11) in (1, 5)


class CountingNode(BaseHTTPRequestHandler):
    """Counts 3, then 5, then 7, and gives the second answer last if it is asked twice at once."""

    asked = 0

    def do_GET(self) -> None:
        CountingNode.asked += 1
        number = CountingNode.asked
        if number == 2:
            time.sleep(OVERTAKEN_S)
        channel = {"channel_name": "c", "requeue_count": 1 + 2 * number, "timeout_count": 0}
        body = json.dumps({"topics": [{"topic_name": "t", "channels": [channel]}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_of_two_samples_at_once_the_older_is_not_taken_for_a_restart() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), CountingNode) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {"nsqd": f"127.0.0.1:{server.server_port}", "subscribe": "t"}
        known = Redeliveries()
        sampler = Sampler(parse_read(options, streaming=True), known)
        sampler.sample()
        both = [threading.Thread(target=sampler.sample) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        server.shutdown()
    assert known.points["t"][-1][1] == 7 - 3
