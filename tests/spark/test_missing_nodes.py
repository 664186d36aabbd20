"""Three nsqds and an nsqlookupd, which forgets an nsqd that is killed: no run that knows the nsqd
from before ends as if all were read, and nothing is missing or there twice when it is back."""

import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_nsq.errors import NotAllRead, Unreachable
from pyspark_nsq.pipelines import archive, metrics, replay, sql, transform
from pyspark_nsq.pipelines.running import command
from pyspark_nsq.pipelines.running.batch_range import fixed_start, messages_of
from pyspark_nsq.pipelines.table.storage import Storage
from tests.kit.daemons import Nsqd, Nsqlookupd, wait_until
from tests.kit.ports import HeldPort
from tests.kit.spark.pipelines import order_ids, orders
from tests.kit.spark.streams import Stream, addresses, wait_for_rows
from tests.kit.spark.topics import name_of, numbered, producers, publish
from tests.spark.conftest import QUICK

TRANSFORM = tuple(
    "--sql|SELECT event.order_id FROM input|--to|made|--to-nsqd|TARGET|--checkpoint|WORK/c|"
    "--start|earliest|--once".split("|")
)

Ended = tuple[int, str]  # exit code, and what it printed


class Cluster:
    """40 orders on each of three nodes; the last one by name may go away."""

    def __init__(
        self, start_nsqd: Callable[..., Nsqd], lookupd: Nsqlookupd, topic: str, nsqd: Nsqd
    ) -> None:
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
        self.nodes = sorted((start_nsqd(*flags) for _ in range(3)), key=name_of)
        self.last = self.nodes[-1]
        self.name = name_of(self.last)
        self.lookupd, self.topic, self.target = lookupd, topic, nsqd
        for number, node in enumerate(self.nodes):
            publish(node, topic, orders(range(number * 40, number * 40 + 40)))
        self.listed(3)

    @property
    def source(self) -> tuple[str, ...]:
        return ("--lookupd", self.lookupd.http_address, "--topic", self.topic)

    @property
    def options(self) -> dict[str, str]:
        return {"lookupd": self.lookupd.http_address, "subscribe": self.topic}

    def listed(self, count: int) -> None:
        wait_until(lambda: len(producers(self.lookupd, self.topic)) == count)

    def lose(self) -> None:
        self.last.kill()
        self.listed(2)

    def bring_back(self) -> None:
        self.last.restart()
        self.listed(3)


@pytest.fixture
def cluster(
    start_nsqd: Callable[..., Nsqd], nsqlookupd: Nsqlookupd, topic: str, nsqd: Nsqd
) -> Cluster:
    return Cluster(start_nsqd, nsqlookupd, topic, nsqd)


@pytest.fixture
def ended(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs a pipeline as its command line does, in the session of the tests."""

    def run(pipeline: ModuleType, *arguments: str) -> Ended:
        quick = [part for name, value in QUICK.items() for part in ("--option", f"{name}={value}")]
        code = command.main(pipeline, [*arguments, *quick, "--master", "local[2,4]"])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def is_refused(outcome: Ended, name: str) -> bool:
    code, said = outcome
    return code == 1 and name in said and f"--without-node {name}" in said and "; done" not in said


def bodies(spark: SparkSession, node: Nsqd, topic: str) -> Counter[bytes]:
    rows = spark.read.format("nsq").option("nsqd", addresses(node)).option("subscribe", topic)
    return Counter(bytes(row.body) for row in rows.load().select("body").collect())


def stopped_replay(
    cluster: Cluster, ended: Callable[..., Ended], work: Path, source: tuple[str, ...]
) -> tuple[str, ...]:
    """A replay that Ctrl-C stops after some of its six steps; its arguments."""
    state = work / "state.json"
    asked = (*source, "--to", f"{cluster.topic}-again", "--state", str(state))
    asked += ("--to-nsqd", cluster.target.http_address, "--rate", "20")

    def interrupt() -> None:
        wait_until(lambda: state.exists() and json.loads(state.read_text())["done"] >= 1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()
    code, said = ended(replay, *asked)
    thread.join()
    assert code == 0 and "stopped" in said
    return asked


@pytest.mark.e2e
def test_a_replay_is_not_done_without_a_node_of_its_plan_and_ends_when_the_node_is_back(
    spark: SparkSession, cluster: Cluster, ended: Callable[..., Ended], work: Path
) -> None:
    asked = stopped_replay(cluster, ended, work, cluster.source)
    again = f"{cluster.topic}-again"
    cluster.lose()
    assert is_refused(ended(replay, *asked), cluster.name)
    assert is_refused(ended(replay, *asked, "--option", "failOnDataLoss=false"), cluster.name)
    assert bodies(spark, cluster.target, again) == Counter(orders(range(80)))
    code, said = ended(replay, *asked, "--without-node", cluster.name)
    assert code == 0 and f"80 messages published to {again}; done without {cluster.name}" in said
    assert bodies(spark, cluster.target, again) == Counter(orders(range(80)))
    cluster.bring_back()
    code, said = ended(replay, *asked)
    assert code == 0 and "120 messages published" in said and "without" not in said
    assert bodies(spark, cluster.target, again) == Counter(orders(range(120)))


@pytest.mark.parametrize("by_lookupd", [True, False])
@pytest.mark.e2e
def test_a_replay_is_not_done_when_the_topic_of_its_plan_was_deleted_on_a_node(
    spark: SparkSession,
    cluster: Cluster,
    ended: Callable[..., Ended],
    work: Path,
    by_lookupd: bool,
) -> None:
    named = ("--nsqd", addresses(*cluster.nodes), "--topic", cluster.topic)
    asked = stopped_replay(cluster, ended, work, cluster.source if by_lookupd else named)
    cluster.last.http("POST", f"/topic/delete?topic={cluster.topic}")
    cluster.listed(2)
    assert is_refused(ended(replay, *asked), cluster.name)
    publish(cluster.last, cluster.topic, orders(range(1000, 1040)))
    cluster.listed(3)
    assert is_refused(ended(replay, *asked), cluster.name)
    code, said = ended(replay, *asked, "--without-node", cluster.name)
    assert code == 0 and f"done without {cluster.name}" in said
    again = bodies(spark, cluster.target, f"{cluster.topic}-again")
    assert again == Counter(orders(range(80)))


@pytest.mark.e2e
def test_a_node_of_a_replay_that_comes_back_at_another_address_is_known_by_its_logs(
    spark: SparkSession, cluster: Cluster, ended: Callable[..., Ended], work: Path
) -> None:
    asked = stopped_replay(cluster, ended, work, cluster.source)
    cluster.lose()
    tcp, http = HeldPort(), HeldPort()
    cluster.last.start(tcp_port=tcp.number, http_port=http.number)
    cluster.listed(3)
    assert name_of(cluster.last) != cluster.name
    code, said = ended(replay, *asked)
    assert code == 0 and "; done\n" in said
    again = bodies(spark, cluster.target, f"{cluster.topic}-again")
    assert again == Counter(orders(range(120)))


@pytest.mark.e2e
def test_a_replay_that_is_planned_without_a_node_says_so_whenever_it_is_done(
    spark: SparkSession, cluster: Cluster, ended: Callable[..., Ended], work: Path
) -> None:
    address = cluster.last.http_address
    asked = ("--nsqd", addresses(*cluster.nodes), "--topic-pattern", f"{cluster.topic}$")
    asked += ("--to", f"{cluster.topic}-again", "--to-nsqd", cluster.target.http_address)
    asked += ("--state", str(work / "state.json"))
    cluster.lose()
    assert is_refused(ended(replay, *asked), address)
    code, said = ended(replay, *asked, "--without-node", address)
    assert code == 0 and f"80 messages published to {cluster.topic}-again; done without" in said
    cluster.bring_back()
    code, said = ended(replay, *asked)
    assert code == 0 and f"published to {cluster.topic}-again before without {address}" in said


@pytest.mark.e2e
def test_an_archive_is_not_done_without_a_node_of_its_checkpoint(
    spark: SparkSession, cluster: Cluster, ended: Callable[..., Ended], work: Path
) -> None:
    asked = (*cluster.source, "--table", str(work / "t"), "--once")
    assert ended(archive, *asked)[0] == 0
    publish(cluster.last, cluster.topic, orders(range(200, 210)))
    cluster.lose()
    publish(cluster.nodes[0], cluster.topic, orders(range(300, 310)))
    assert is_refused(ended(archive, *asked), cluster.name)
    assert order_ids(spark, work / "t") == [*range(120), *range(300, 310)]
    assert is_refused(ended(archive, *asked, "--option", "failOnDataLoss=false"), cluster.name)
    code, said = ended(archive, *asked, "--without-node", cluster.name)
    assert code == 0 and cluster.name in said
    cluster.bring_back()
    code, said = ended(archive, *asked)
    assert code == 0 and "done" in said
    assert order_ids(spark, work / "t") == [*range(120), *range(200, 210), *range(300, 310)]


@pytest.mark.e2e
def test_an_archive_is_not_done_when_the_topic_was_deleted_on_a_node(
    cluster: Cluster, ended: Callable[..., Ended], work: Path
) -> None:
    asked = (*cluster.source, "--table", str(work / "t"), "--once")
    assert ended(archive, *asked)[0] == 0
    cluster.last.http("POST", f"/topic/delete?topic={cluster.topic}")
    cluster.listed(2)
    assert is_refused(ended(archive, *asked), cluster.name)


@pytest.mark.parametrize(
    ("pipeline", "flags"),
    [
        (transform, ("--sql", "SELECT body FROM input", "--to", "transformed")),
        (metrics, ("--quiet", "--to", "measured")),
    ],
)
@pytest.mark.e2e
def test_no_stream_that_ends_is_done_without_a_node_of_its_checkpoint(
    cluster: Cluster,
    ended: Callable[..., Ended],
    work: Path,
    pipeline: ModuleType,
    flags: tuple[str, ...],
) -> None:
    asked = (*cluster.source, *flags, "--to-nsqd", cluster.target.http_address, "--once")
    asked += ("--checkpoint", str(work / "c"), "--start", "earliest")
    assert ended(pipeline, *asked)[0] == 0
    cluster.lose()
    assert is_refused(ended(pipeline, *asked), cluster.name)
    assert ended(pipeline, *asked, "--without-node", cluster.name)[0] == 0
    cluster.bring_back()
    assert ended(pipeline, *asked)[0] == 0


def test_no_first_read_is_complete_without_a_node_that_nsqlookupd_has_lost(
    spark: SparkSession, cluster: Cluster, work: Path
) -> None:
    """Nothing is known from before: nsqlookupd remembers the node."""
    cluster.lose()
    away = f"{cluster.name} is away since 20"
    reader = spark.read.format("nsq").options(**cluster.options, **QUICK)
    with pytest.raises(PySparkException, match=f"{away}.*--without-node {cluster.name} "):
        reader.load().count()
    assert reader.option("withoutNode", cluster.name).load().count() == 80
    stream = Stream(spark, work / "s", **cluster.options)
    with pytest.raises(PySparkException, match=away):
        stream.run()
    checkpoint = Storage(spark, str(work / "c"))
    with pytest.raises(NotAllRead, match=away):
        fixed_start({**cluster.options, **QUICK}, checkpoint)
    pattern = {"lookupd": cluster.lookupd.http_address, "subscribePattern": f"{cluster.topic}$"}
    with pytest.raises(PySparkException, match=away):
        spark.read.format("nsq").options(**pattern, **QUICK).load().count()
    cluster.bring_back()
    stream.run()
    assert stream.bodies() == Counter(orders(range(120)))


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("pipeline", "flags"),
    [
        (archive, ("--table", "WORK/t", "--once")),
        (replay, ("--to", "again", "--to-nsqd", "TARGET", "--state", "WORK/s")),
        (sql, ("--output", "csv", "SELECT count(*) AS n FROM TOPIC")),
        (
            transform,
            TRANSFORM,
        ),
    ],
)
def test_no_pipeline_begins_without_a_node_that_nsqlookupd_has_lost(
    cluster: Cluster,
    ended: Callable[..., Ended],
    work: Path,
    pipeline: ModuleType,
    flags: tuple[str, ...],
) -> None:
    words = {"WORK": str(work), "TARGET": cluster.target.http_address}
    words["TOPIC"] = sql.view_name(cluster.topic)
    for word, text in words.items():
        flags = tuple(flag.replace(word, text) for flag in flags)
    asked = (*cluster.source, *flags)
    cluster.lose()
    outcome = ended(pipeline, *asked)
    assert is_refused(outcome, cluster.name) and "is away since 20" in outcome[1]
    cluster.bring_back()
    assert ended(pipeline, *asked)[0] == 0


def test_a_node_that_was_forgotten_is_not_expected(spark: SparkSession, cluster: Cluster) -> None:
    cluster.lose()
    cluster.lookupd.http("POST", f"/node/forget?node={cluster.name}")
    reader = spark.read.format("nsq").options(**cluster.options, **QUICK)
    assert reader.load().count() == 80
    with pytest.raises(PySparkException, match="expectNodes is 3, but 2 answer"):
        reader.option("expectNodes", 3).load().count()


def test_a_stream_that_has_noted_its_start_needs_the_nodes_of_that_start(
    spark: SparkSession, cluster: Cluster, work: Path
) -> None:
    checkpoint = Storage(spark, str(work / "c"))
    options = {**cluster.options, **QUICK, "startingOffsets": "latest"}
    fixed_start(options, checkpoint).keep(checkpoint)
    cluster.lose()
    with pytest.raises(NotAllRead, match=f"--without-node {cluster.name} "):
        fixed_start(options, checkpoint)
    begin = fixed_start({**options, "withoutNode": cluster.name}, checkpoint)
    assert cluster.name not in begin.options["startingOffsets"]
    cluster.bring_back()
    begin = fixed_start(options, checkpoint)
    assert json.loads(begin.options["startingOffsets"])[cluster.topic][cluster.name] == 40


def test_a_stream_of_more_batches_than_spark_keeps_needs_no_node_to_begin_again(
    spark: SparkSession, cluster: Cluster, work: Path
) -> None:
    """Spark deletes `commits/0` after a hundred batches."""
    checkpoint = Storage(spark, str(work / "c"))
    options = {**cluster.options, **QUICK, "startingOffsets": "latest"}
    fixed_start(options, checkpoint).keep(checkpoint)
    for name in ("offsets/103", "commits/103", "offsets/104"):
        checkpoint.write_text(name, "v1")
    cluster.lose()
    assert fixed_start(options, checkpoint) == (options, None)


def test_the_messages_of_a_batch_are_all_of_them_or_an_error(
    spark: SparkSession, cluster: Cluster, ended: Callable[..., Ended], work: Path
) -> None:
    """`transform` reads them a second time, for its quarantine."""
    asked = (*cluster.source, "--sql", "SELECT body FROM input", "--to", "transformed")
    asked += ("--to-nsqd", cluster.target.http_address, "--checkpoint", str(work / "c"), "--once")
    assert ended(transform, *asked, "--start", "earliest")[0] == 0
    checkpoint = Storage(spark, str(work / "c"))
    publish(cluster.nodes[0], cluster.topic, orders(range(300, 310)))
    cluster.lose()
    assert is_refused(ended(transform, *asked), cluster.name)
    with pytest.raises(Unreachable, match=f"{cluster.name} is needed to go on: batch 0"):
        messages_of(spark, cluster.options, checkpoint, 0)
    named = {**cluster.options, **QUICK, "nsqd": addresses(*cluster.nodes)}
    later = messages_of(spark, named, checkpoint, 1)  # has no message of the node that is away
    assert later is not None and later.count() == 10
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # accepts connections, and never answers
        named["nsqd"] += f",127.0.0.1:{deaf.getsockname()[1]}"
        named |= {"requestTimeoutMs": "3600000", "retryForMs": "3600000"}
        later = messages_of(spark, named, checkpoint, 1)
        assert later is not None and later.count() == 10


@pytest.mark.e2e
def test_sql_over_a_table_does_not_answer_without_a_node_of_its_checkpoint(
    spark: SparkSession, cluster: Cluster, ended: Callable[..., Ended], work: Path
) -> None:
    table = ("--table", str(work / "t"))
    assert ended(archive, *cluster.source, *table, "--once")[0] == 0
    publish(cluster.last, cluster.topic, orders(range(200, 210)))
    cluster.lose()
    asked = ("--lookupd", cluster.lookupd.http_address, *table, "--output", "csv")
    query = f"SELECT count(*) AS n FROM {sql.view_name(cluster.topic)}"
    assert is_refused(ended(sql, *asked, query), cluster.name)
    code, said = ended(sql, *asked, "--without-node", cluster.name, query)
    assert code == 0 and "120" in said
    cluster.bring_back()
    code, said = ended(sql, *asked, query)
    assert code == 0 and "130" in said


def test_a_stream_that_runs_on_goes_on_without_a_node_and_one_that_ends_fails(
    spark: SparkSession, cluster: Cluster, work: Path
) -> None:
    stream = Stream(spark, work, **cluster.options)
    stream.run()
    cluster.lose()
    publish(cluster.nodes[0], cluster.topic, numbered(10))
    with pytest.raises(PySparkException, match=f"not all is read: {cluster.name}"):
        stream.run()
    assert stream.bodies() == Counter([*orders(range(120)), *numbered(10)])
    query = stream.start()
    try:
        publish(cluster.nodes[0], cluster.topic, numbered(10, start=10))
        wait_for_rows(query, 10)
        cluster.bring_back()
        publish(cluster.last, cluster.topic, numbered(10, start=20))
        wait_for_rows(query, 20)
    finally:
        query.stop()
    stream.run()
    assert stream.bodies() == Counter([*orders(range(120)), *numbered(30)])


def test_a_batch_read_is_refused_without_a_node_that_its_options_name(
    spark: SparkSession, cluster: Cluster
) -> None:
    offsets = json.dumps({cluster.topic: {name_of(node): 30 for node in cluster.nodes}})
    named = {**cluster.options, **QUICK, "nsqd": addresses(*cluster.nodes)}
    cluster.lose()
    for options, missing in (
        (named, cluster.name),
        ({**named, "failOnDataLoss": "false"}, cluster.name),
        ({**cluster.options, **QUICK, "startingOffsets": offsets}, cluster.name),
    ):
        reader = spark.read.format("nsq").options(**options)
        with pytest.raises(PySparkException, match=f"--without-node {missing}"):
            reader.load().count()
        without = reader.option("withoutNode", missing).load()
        assert without.count() == (20 if "startingOffsets" in options else 80)
