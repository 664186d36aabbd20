"""What a stream's reader tells Spark, asked as Spark asks, with no Spark: which rows are in which
batch, what is lost, and where holds stand. Nodes are real."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_nsq.errors import DataLoss, NotAllRead, UnknownTopic, Unreachable
from pyspark_nsq.progress import away, lag, least_lag
from pyspark_nsq.reading.stream import StreamReader
from tests.kit.daemons import Nsqd
from tests.kit.ports import HeldPort
from tests.kit.spark.stream_reader import NewReader, kept, latest, ranges, rows
from tests.kit.spark.topics import name_of, numbered, publish


def held_at(node: Nsqd, topic: str, name: str) -> int:
    _, body = node.http("GET", f"/hold/list?topic={topic}")
    (hold,) = [hold for hold in json.loads(body)["holds"] if hold["hold"] == name]
    return int(hold["offset"])


# -- batches --------------------------------------------------------------------------------------


def test_batches_follow_on_each_other_and_no_news_is_the_same_place(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, numbered(10))
    reader = new_reader(nsqd, subscribe=topic)
    start = kept(reader.initialOffset())
    first = latest(reader, start)
    assert rows(reader, start, first) == numbered(10)
    publish(nsqd, topic, [b"x" * 5000])
    second = latest(reader, first)
    assert rows(reader, first, second) == [b"x" * 5000]
    assert latest(reader, second) == second  # another text would be another batch to Spark


def test_a_pattern_that_nothing_matches_yet_waits_for_a_topic(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    reader = new_reader(nsqd, subscribePattern=f"{topic}-.*")
    start = kept(reader.initialOffset())
    assert latest(reader, start) == start
    publish(nsqd, f"{topic}-a", numbered(10))
    found = latest(reader, start)  # where the new topic begins
    assert rows(reader, start, found) == []
    end = latest(reader, found)
    assert rows(reader, found, end) == numbered(10)


def test_a_pattern_that_nothing_matches_is_an_error_for_a_query_that_ends(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    reader = new_reader(nsqd, subscribePattern=f"{topic}-.*")
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(UnknownTopic, match=f"no topic matches '{topic}-"):
        reader.initialOffset()


def test_a_batch_that_is_planned_again_has_the_same_partitions(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    for number in range(3):
        publish(nsqd, f"{topic}-{number}", [b"x" * (10**number)] * 20_000)
    said = {"subscribePattern": f"{topic}-.*", "minPartitions": "5"}
    first = new_reader(nsqd, **said)
    start = kept(first.initialOffset())
    end = latest(first, start)
    planned = ranges(first, start, end)
    light, *_, heavy = [sum(part.rows for part in parts) for parts in planned]
    assert light > 2 * heavy  # as they are of a weight
    publish(nsqd, f"{topic}-0", [b"x" * 5000] * 1000)
    assert ranges(new_reader(nsqd, **said), start, end) == planned


def test_the_lag_is_known_from_the_batch_on_that_is_repeated_after_a_restart(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, numbered(10))
    first = new_reader(nsqd, subscribe=topic)
    start = kept(first.initialOffset())
    end = latest(first, start, ReadMaxRows(4))
    restarted = new_reader(nsqd, subscribe=topic)
    restarted.partitions(start, end)  # without latestOffset: the checkpoint has both places
    newest = restarted.reportLatestOffset()
    source = {"endOffset": end, "latestOffset": newest}
    assert lag({"sources": [source]}) == 6


def test_a_limit_is_shared_by_the_logs_and_nothing_is_left_out(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, f"{topic}-a", numbered(90))
    publish(nsqd, f"{topic}-b", numbered(10, start=90))
    reader = new_reader(nsqd, subscribe=f"{topic}-a,{topic}-b")
    at = kept(reader.initialOffset())
    batches = []
    while (end := latest(reader, at, ReadMaxRows(40))) != at:
        batches.append(rows(reader, at, end))
        at = end
    assert [len(batch) for batch in batches] == [40, 40, 20]
    assert sorted(body for batch in batches for body in batch) == sorted(numbered(100))
    assert reader.reportLatestOffset() == at


def test_bytes_limit_a_batch_whatever_its_rows(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, [b"x" * 10_000] * 100)
    reader = new_reader(nsqd, subscribe=topic, maxBytesPerTrigger="100000")
    at = kept(reader.initialOffset())
    sizes = []
    while (end := latest(reader, at, reader.getDefaultReadLimit())) != at:
        sizes.append(len(rows(reader, at, end)))
        at = end
    assert sum(sizes) == 100
    assert max(sizes) <= 10
    start = kept(reader.initialOffset())
    assert len(rows(reader, start, latest(reader, start))) == 100  # Trigger.Once names no limit


def test_a_batch_waits_for_rows_but_not_for_ever(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, numbered(1))
    said = {"subscribe": topic, "minOffsetsPerTrigger": "10"}
    patient, hasty = new_reader(nsqd, **said), new_reader(nsqd, **said, maxTriggerDelay="1ms")
    limit = patient.getDefaultReadLimit()
    start = kept(patient.initialOffset())
    first = latest(patient, start, limit)  # of a start, whatever there is
    assert rows(patient, start, first) == numbered(1)
    assert rows(hasty, start, latest(hasty, start, limit)) == numbered(1)
    publish(nsqd, topic, numbered(8, start=1))
    assert latest(patient, first, limit) == first
    assert rows(hasty, first, latest(hasty, first, limit)) == numbered(8, start=1)
    publish(nsqd, topic, numbered(2, start=9))
    assert rows(patient, first, latest(patient, first, limit)) == numbered(10, start=1)


def test_a_query_that_ends_waits_for_no_rows(nsqd: Nsqd, topic: str, new_reader: NewReader) -> None:
    publish(nsqd, topic, numbered(3))
    reader = new_reader(nsqd, subscribe=topic, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="20")
    reader.prepareForTriggerAvailableNow()
    start = kept(reader.initialOffset())
    first = latest(reader, start, ReadMaxRows(2))
    assert rows(reader, first, latest(reader, first, ReadMaxRows(2))) == numbered(1, start=2)


def test_available_now_ends_where_the_logs_ended_when_it_began(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, f"{topic}-a", numbered(10))
    reader = new_reader(nsqd, subscribePattern=f"{topic}-.*")
    start = kept(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    publish(nsqd, f"{topic}-a", numbered(5, start=10))
    publish(nsqd, f"{topic}-b", numbered(5))
    end = latest(reader, start)
    assert rows(reader, start, end) == numbered(10)
    assert latest(reader, end) == end


def test_a_topic_that_is_new_enters_with_no_rows_and_is_then_read_from_its_beginning(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, f"{topic}-a", numbered(1))
    reader = new_reader(nsqd, subscribePattern=f"{topic}-.*", startingOffsets="latest")
    start = kept(reader.initialOffset())
    publish(nsqd, f"{topic}-b", numbered(5))
    entered = latest(reader, start)
    assert rows(reader, start, entered) == []
    end = latest(reader, entered)
    assert rows(reader, entered, end) == numbered(5)


def test_starting_at_the_end_leaves_out_what_was_there(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, numbered(5))
    reader = new_reader(nsqd, subscribe=topic, startingOffsets="latest", hold="late")
    start = kept(reader.initialOffset())
    assert held_at(nsqd, topic, "late") == 5
    publish(nsqd, topic, numbered(5, start=5))
    assert rows(reader, start, latest(reader, start)) == numbered(5, start=5)


def test_a_node_that_is_new_is_read_from_its_beginning(
    nsqd: Nsqd, start_nsqd: Callable[..., Nsqd], topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, numbered(10))
    at = kept(new_reader(nsqd, subscribe=topic, startingOffsets="latest").initialOffset())
    later = start_nsqd()
    publish(later, topic, numbered(10, start=100))
    reader = new_reader(nsqd, later, subscribe=topic, startingOffsets="latest")
    entered = latest(reader, at)
    assert rows(reader, at, entered) == []
    assert rows(reader, entered, latest(reader, entered)) == numbered(10, start=100)


def test_a_node_that_comes_back_at_another_address_is_read_on(
    start_nsqd: Callable[..., Nsqd], topic: str, new_reader: NewReader
) -> None:
    node = start_nsqd()
    publish(node, topic, numbered(10))
    before = new_reader(node, subscribe=topic)
    at = latest(before, kept(before.initialOffset()))
    name = name_of(node)
    node.stop()
    other = HeldPort()
    node.start(tcp_port=other.number)
    assert name_of(node) != name
    publish(node, topic, numbered(10, start=10))
    reader = new_reader(node, subscribe=topic)
    moved = latest(reader, at)
    assert list(moved[topic]) == [name_of(node)]
    assert rows(reader, at, moved) == []
    assert rows(reader, moved, latest(reader, moved)) == numbered(10, start=10)


def test_a_star_stands_for_all_logs_that_are_not_named(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    for name in ("one", "two"):
        publish(nsqd, f"{topic}-{name}", numbered(3))
    starts = {f"{topic}-one": {name_of(nsqd): 2}, "*": {"*": -2}}
    said = {"subscribePattern": f"{topic}-.*", "startingOffsets": json.dumps(starts)}
    found = kept(new_reader(nsqd, **said).initialOffset())
    assert [found[f"{topic}-{n}"][name_of(nsqd)]["offset"] for n in ("one", "two")] == [2, 0]


def test_a_topic_that_is_not_subscribed_for_a_time_keeps_its_place(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    one, two = f"{topic}-one", f"{topic}-two"
    for name in (one, two):
        publish(nsqd, name, numbered(5))
    both = new_reader(nsqd, subscribe=f"{one},{two}")
    at = latest(both, kept(both.initialOffset()))
    publish(nsqd, one, numbered(5, start=5))
    publish(nsqd, two, numbered(5, start=5))
    alone = new_reader(nsqd, subscribe=one)
    later = latest(alone, at)
    assert later[two] == at[two]
    assert rows(alone, at, later) == numbered(5, start=5)
    by_pattern = new_reader(nsqd, subscribePattern=f"{topic}-t.*")
    last = latest(by_pattern, later)
    assert last[one] == later[one]
    assert rows(by_pattern, later, last) == numbered(5, start=5)
    again = new_reader(nsqd, subscribe=f"{one},{two}")
    assert latest(again, last) == last


# -- nodes that are away, and what is lost --------------------------------------------------------


def test_a_silent_node_stays_where_it_is_and_a_batch_that_needs_it_waits_in_vain(
    start_nsqd: Callable[..., Nsqd], nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    gone = start_nsqd()
    for node in (nsqd, gone):
        publish(node, topic, numbered(5))
    name = name_of(gone)
    reader = new_reader(nsqd, gone, subscribe=topic)
    start = kept(reader.initialOffset())
    planned = latest(reader, start)
    gone.kill()
    publish(nsqd, topic, numbered(5))
    end = latest(reader, planned)
    assert end[topic][name] == planned[topic][name]
    assert len(rows(reader, planned, end)) == 5
    with pytest.raises(Unreachable, match=f"{name} is needed to go on"):
        new_reader(nsqd, gone, subscribe=topic).partitions(start, planned)


def test_a_query_that_ends_names_the_nodes_of_its_checkpoint_that_are_away(
    start_nsqd: Callable[..., Nsqd], nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    gone = start_nsqd()
    for node in (nsqd, gone):
        publish(node, topic, numbered(5))
    name = name_of(gone)
    reader = new_reader(nsqd, gone, subscribe=topic)
    at = latest(reader, kept(reader.initialOffset()))
    gone.kill()
    publish(nsqd, topic, numbered(5, start=5))

    def ending(*nodes: Nsqd, **said: str) -> StreamReader:
        reader = new_reader(*nodes, **{"subscribe": topic, **said})
        reader.prepareForTriggerAvailableNow()
        return reader

    reader = ending(nsqd)  # as when nsqlookupd no longer lists the other
    end = latest(reader, at)
    assert rows(reader, at, end) == numbered(5, start=5)
    with pytest.raises(NotAllRead, match=f"{name} is away.* up to 5.*--without-node {name} "):
        latest(reader, end)
    with pytest.raises(NotAllRead, match=f"--without-node {gone.http_address},{name} "):
        latest(ending(nsqd, gone), end)
    assert latest(ending(nsqd, withoutNode=name), end) == end
    assert latest(ending(nsqd, gone, withoutNode=f"{gone.http_address},{name}"), end) == end
    publish(nsqd, f"{topic}-other", numbered(1))
    other = ending(nsqd, subscribe=f"{topic}-other")
    at = latest(other, latest(other, end))
    assert latest(other, at) == at  # the topic of the node that is away is not wanted here


def test_the_lag_is_at_least_what_is_known_while_a_node_is_away(
    start_nsqd: Callable[..., Nsqd], nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    other = start_nsqd()
    for node in (nsqd, other):
        publish(node, topic, numbered(5))
    reader = new_reader(nsqd, other, subscribe=topic)
    at = latest(reader, kept(reader.initialOffset()))
    name = name_of(other)

    def reported() -> dict[str, object]:
        publish(nsqd, topic, numbered(3))
        end = latest(reader, at, ReadMaxRows(1))
        return {"sources": [{"endOffset": end, "latestOffset": reader.reportLatestOffset()}]}

    progress = reported()
    assert (lag(progress), away(progress)) == (2, [])
    other.kill()
    progress = reported()
    assert (lag(progress), least_lag(progress), away(progress)) == (None, 5, [name])


def test_the_first_batch_is_not_repeated_without_a_node_that_it_was_planned_with(
    start_nsqd: Callable[..., Nsqd], nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    """Spark's checkpoint does not have its beginning, which is found again without that node."""
    gone = start_nsqd()
    for node in (nsqd, gone):
        publish(node, topic, numbered(5))
    name = name_of(gone)
    reader = new_reader(nsqd, gone, subscribe=topic)
    planned = latest(reader, kept(reader.initialOffset()))
    gone.kill()
    again = new_reader(nsqd, subscribe=topic)
    with pytest.raises(Unreachable, match=f"{name} is needed to go on"):
        again.partitions(kept(again.initialOffset()), planned)
    gone.restart()
    again = new_reader(nsqd, gone, subscribe=topic)
    assert len(rows(again, kept(again.initialOffset()), planned)) == 10


def test_a_log_that_was_replaced_is_loss_or_read_from_its_beginning(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, numbered(10))
    before = new_reader(nsqd, subscribe=topic)
    at = latest(before, kept(before.initialOffset()))
    nsqd.http("POST", f"/topic/delete?topic={topic}")
    with pytest.raises(DataLoss, match="was deleted;"):
        latest(new_reader(nsqd, subscribe=topic), at)
    publish(nsqd, topic, numbered(20, start=100))  # more than there was: the offset is valid again
    with pytest.raises(DataLoss, match="was deleted and created again"):
        latest(new_reader(nsqd, subscribe=topic), at)
    careless = new_reader(nsqd, subscribe=topic, failOnDataLoss="false")
    entered = latest(careless, at)
    assert rows(careless, at, entered) == []
    assert rows(careless, entered, latest(careless, entered)) == numbered(20, start=100)


@pytest.mark.parametrize("offset", [11, 1 << 40])
def test_a_place_beyond_the_end_is_loss_or_the_end(
    nsqd: Nsqd, topic: str, new_reader: NewReader, offset: int
) -> None:
    publish(nsqd, topic, numbered(10))
    reader = new_reader(nsqd, subscribe=topic)
    at = kept(reader.initialOffset())
    at[topic][name_of(nsqd)]["offset"] = offset
    with pytest.raises(DataLoss, match=f"ends at 10, before the checkpoint's {offset}"):
        latest(reader, at)
    careless = new_reader(nsqd, subscribe=topic, failOnDataLoss="false")
    end = latest(careless, at)
    assert end[topic][name_of(nsqd)]["offset"] == 10
    assert rows(careless, at, end) == []


# -- holds ----------------------------------------------------------------------------------------


def test_a_hold_is_made_where_the_stream_begins_and_follows_what_is_committed(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, numbered(10))
    reader = new_reader(nsqd, subscribe=topic, hold="archive")
    start = kept(reader.initialOffset())
    assert held_at(nsqd, topic, "archive") == 0  # before the first batch is planned
    end = latest(reader, start)
    assert held_at(nsqd, topic, "archive") == 0
    reader.commit(end)
    assert held_at(nsqd, topic, "archive") == 10


def test_a_hold_that_could_not_be_moved_is_moved_with_the_next_batch(
    start_nsqd: Callable[..., Nsqd], topic: str, new_reader: NewReader
) -> None:
    node = start_nsqd()
    publish(node, topic, numbered(10))
    reader = new_reader(node, subscribe=topic, hold="archive")
    end = latest(reader, kept(reader.initialOffset()))
    node.kill()
    reader.commit(end)  # nothing depends on it, so it is no failure
    node.restart()
    assert held_at(node, topic, "archive") == 0
    reader.commit(end)
    assert held_at(node, topic, "archive") == 10


def test_a_hold_that_was_deleted_is_made_again_when_the_stream_goes_on(
    nsqd: Nsqd, topic: str, new_reader: NewReader
) -> None:
    publish(nsqd, topic, numbered(10))
    reader = new_reader(nsqd, subscribe=topic, hold="archive")
    at = latest(reader, kept(reader.initialOffset()))
    nsqd.http("POST", f"/hold/delete?topic={topic}&hold=archive")
    publish(nsqd, topic, numbered(5))
    again = new_reader(nsqd, subscribe=topic, hold="archive")
    latest(again, at)
    assert held_at(nsqd, topic, "archive") == 10


def test_without_a_hold_nothing_is_pinned(nsqd: Nsqd, topic: str, new_reader: NewReader) -> None:
    publish(nsqd, topic, numbered(10))
    reader = new_reader(nsqd, subscribe=topic)
    reader.commit(latest(reader, kept(reader.initialOffset())))
    assert json.loads(nsqd.http("GET", f"/hold/list?topic={topic}")[1])["holds"] == []


def test_a_log_that_went_back_and_has_grown_since_is_noticed(
    start_nsqd: Callable[..., Nsqd], topic: str, new_reader: NewReader, tmp_path: Path
) -> None:
    """A restored backup: the log has its id, and other messages at offsets that were read."""
    node = start_nsqd()
    publish(node, topic, numbered(30))
    node.stop()
    shutil.copytree(node.data_path, tmp_path / "backup")
    node.start()
    publish(node, topic, numbered(50, start=30))
    running = new_reader(node, subscribe=topic)
    start = kept(running.initialOffset())
    read = latest(running, start)
    assert len(rows(running, start, read)) == 80
    node.stop()
    node.start()
    assert latest(running, read) == latest(new_reader(node, subscribe=topic), read) == read
    node.stop()
    shutil.rmtree(node.data_path)
    shutil.copytree(tmp_path / "backup", node.data_path)
    node.start()
    publish(node, topic, numbered(80, start=1000))
    resumed = new_reader(node, subscribe=topic)
    for reader in (running, resumed):
        with pytest.raises(DataLoss, match="went back to an older state, as of a backup"):
            latest(reader, read)
    with pytest.raises(DataLoss, match="went back to an older state"):
        resumed.partitions(start, read)  # of a batch that was planned and not done
    lenient = new_reader(node, subscribe=topic, failOnDataLoss="false")
    place = latest(lenient, read)
    assert rows(lenient, place, latest(lenient, place)) == numbered(80, start=1000)
