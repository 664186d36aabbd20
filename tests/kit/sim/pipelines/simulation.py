"""Plays a history of an archive: its actions, and an end in which all must come."""

import json
import random
from typing import Any, NamedTuple

from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from pyspark_nsq.errors import DataLoss, NotAllRead, UnknownTopic, Unreachable
from pyspark_nsq.nodes.positions import from_json, rows_between
from pyspark_nsq.pipelines.archive import Archive
from pyspark_nsq.pipelines.running.last_hold import commit_last_batch
from pyspark_nsq.pipelines.table import manifest
from pyspark_nsq.pipelines.table.layout import PARTITION_BY
from pyspark_nsq.pipelines.table.storage import Storage
from pyspark_nsq.pipelines.table.table import ParquetTable
from tests.kit.sim.actions import History
from tests.kit.sim.pipelines.actions import TOPICS
from tests.kit.sim.pipelines.cluster import Cluster, SimLog, SimNode
from tests.kit.sim.pipelines.engine import load
from tests.kit.sim.pipelines.frames import Row, SimSpark
from tests.kit.sim.pipelines.hadoop import Killed, SimFiles, plain
from tests.kit.sim.pipelines.ledger import Ledger, Published, body_of, number_in
from tests.kit.sim.pipelines.seams import simulated

TABLE, QUARANTINE = "/t", "/t-quarantine"
CHECKPOINT = f"{TABLE}/_checkpoint"
HOLD = "archive"
FIRST_PORT = 4150
SCHEMA = StructType(
    [
        StructField("n", LongType()),
        StructField("k", StringType()),
        StructField("v", DoubleType()),
    ]
)
LAST_RUNS_MAX = 6  # until all is read, when nothing fails any more


class Played(NamedTuple):
    """The outcome of a history."""

    faults: list[str]
    at: int  # the action after which the first fault was seen
    kills: int
    batches: int
    runs: int
    messages: int


def play(history: History) -> Played:
    """Carry out a history; the same one has the same outcome."""
    return Simulation(history).play()


class Simulation:
    def __init__(self, history: History) -> None:
        self.history = history
        self.options: dict[str, Any] = history.options
        self.chance = random.Random(history.seed)
        self.cluster = Cluster(self.options["nodes"], self.options["lookupds"])
        self.files = SimFiles()
        self.ledger = Ledger()
        self.kills = self.batches = self.runs = 0
        self.tolerates = False  # failOnDataLoss=false, in the next run

    def play(self) -> Played:
        at = -1
        with simulated(self.cluster, self.files.step):
            for action in self.history.actions:
                at += 1
                self.chance.seed(action.salt)
                getattr(self, f"do_{action.verb}")(**action.args)
                if self.ledger.faults:
                    break
            else:
                at += 1
                self.chance.seed(self.history.seed)
                self._finish()
        found = self.ledger.faults
        return Played(found, at, self.kills, self.batches, self.runs, len(self.ledger.published))

    # -- the cluster ----------------------------------------------------------------------------

    def do_publish(self, node: int, topic: str, count: int) -> None:
        where = self._node(node)
        if where.is_up:
            for _ in range(count):
                self._publish(where, topic)

    def _publish(self, node: SimNode, topic: str) -> None:
        number = len(self.ledger.published)
        key = str(self.chance.randrange(number + 3)) if self.chance.random() < 0.8 else None
        fits = self.chance.random() < 0.9
        extra = self.chance.choice((None, None, 1, 2.5))
        body = body_of(number, key, fits=fits, extra=extra)
        log = self.cluster.publish(node, topic, [body])
        place = (node.number, log.id, log.end - 1)
        self.ledger.published.append(Published(number, topic, *place, body, key, fits))

    def do_stop(self, node: int) -> None:
        self.cluster.stop(self._node(node))

    def do_start(self, node: int) -> None:
        self.cluster.start(self._node(node))

    def do_drop_packets(self, node: int) -> None:
        self._node(node).drops = True

    def do_heal_network(self) -> None:
        for node in self.cluster.nodes:
            node.drops = False

    def do_change_ports(self, node: int, tcp: bool) -> None:
        where = self._node(node)
        self.cluster.stop(where)
        where.http_port += 10
        # A node that deleted a log and has another name since is not told from one that is away.
        where.tcp_port += 10 if tcp and not where.has_deleted else 0
        self.cluster.start(where)

    def do_delete(self, node: int, topic: str, keep: int) -> None:
        where = self._node(node)
        log = where.logs.get(topic)
        # nsqlookupd does not list a node without topics: it would look as if it were away.
        is_listed = len(where.logs) > 1 or not self.cluster.lookupds
        if where.is_up and log is not None and is_listed and where.tcp_port == FIRST_PORT:
            where.has_deleted = True
            self._lose(log, range(log.first, log.end))
            del where.logs[topic]
            if where.backup is not None:
                where.backup.pop(topic, None)

    def do_retire(self, node: int, topic: str, keep: int) -> None:
        log = self._node(node).logs.get(topic)
        if log is None or not self._node(node).is_up:
            return
        first = max(min([log.end - keep, *log.holds.values()]), log.first)
        if not log.holds:  # else it is all in the table, or that is a fault
            self._lose(log, range(log.first, first))
        log.first = first

    def do_back_up(self, node: int) -> None:
        where = self._node(node)
        where.backup = {topic: log.copy() for topic, log in where.logs.items()}

    def do_put_back(self, node: int) -> None:
        where = self._node(node)
        if not where.backup or where.tcp_port != FIRST_PORT:
            return
        self.cluster.stop(where)
        for topic, log in where.logs.items():
            kept = where.backup.get(topic)
            first = kept.end if kept is not None else log.first
            where.has_deleted |= kept is None
            # No reader can know what was published after the backup, unless it was read.
            self._lose(log, range(first, log.end), in_silence=True)
        self.cluster.put_back(where)

    def do_stop_lookupd(self, number: int) -> None:
        for lookupd in self.cluster.lookupds[number : number + 1]:
            lookupd.is_up = False

    def do_start_lookupd(self, number: int) -> None:
        for lookupd in self.cluster.lookupds[number : number + 1]:
            lookupd.is_up = True

    def do_wait(self, seconds: float) -> None:
        self.cluster.clock.now_s += seconds

    def _node(self, number: int) -> SimNode:
        return self.cluster.nodes[number % len(self.cluster.nodes)]

    def _lose(self, log: SimLog, offsets: range, *, in_silence: bool = False) -> None:
        there = self._archived()
        lost = [
            message.number
            for message in self.ledger.published
            if message.log == log.id
            and message.offset in offsets
            and log.messages[message.offset][1] == message.body
            and message.number not in there
        ]
        self.ledger.lose(lost, begun=not in_silence and self._is_begun(log))

    def _is_begun(self, log: SimLog) -> bool:
        """Whether a checkpoint has a place in the log."""
        mark = f'"{log.id}"'
        return any(
            mark in text
            for path, text in self.files.content.items()
            if path.startswith(CHECKPOINT) and isinstance(text, str)
        )

    # -- the pipeline ---------------------------------------------------------------------------

    def do_run(self, batches: int, publishes: float, once: bool, kill_at: int | None) -> None:
        """One process: it starts, runs some batches, and is stopped or killed."""
        self.files.revive(-1 if kill_at is None else kill_at)
        until = len(self.ledger.published)
        done = False
        self.runs += 1
        try:
            done = self._run(batches, publishes, once=once)
            if self.tolerates:
                self.ledger.reported()
            self.tolerates = False
        except Killed:
            self.kills += 1
        except DataLoss as error:
            if not self.ledger.is_disturbed:
                self.ledger.fault(f"nothing was lost: {error}")
            self.ledger.reported()
            self.tolerates = True
        except (Unreachable, NotAllRead) as error:
            self._check_need(str(error), once=once)
        except UnknownTopic as error:
            if self.batches and self._is_complete():
                self.ledger.fault(f"failed: {error}")
        except Exception as error:
            self.ledger.fault(f"failed: {type(error).__name__}: {error}")
        self.files.revive()
        table, quarantine = self._rows_of(TABLE), self._rows_of(QUARANTINE)
        if done:
            dedupes = self.options["dedupe"]
            self.ledger.check_done(table, quarantine, until=until, dedupes=dedupes)
            self._check_holds()
        else:
            self.ledger.check(table, quarantine)

    def _run(self, batches: int, publishes: float, *, once: bool) -> bool:
        """Whether it read all there was, and said so."""
        spark: Any = SimSpark(self.files, load)
        archive = self._archive(spark)
        options = self._reading()
        query: Any = archive.start(options, every="0 seconds", once=once)
        done = False
        try:
            for _ in range(1000 if once else batches):
                if not query.trigger():
                    done = once
                    if once:
                        break
                if self.chance.random() < publishes:
                    self.do_publish(self.chance.randrange(3), self.chance.choice(TOPICS), 1)
        finally:
            self.batches += query.batches
            query.stop()
        commit_last_batch({**options, **archive.holding()}, Storage(spark, CHECKPOINT))
        return done

    def _archive(self, spark: Any) -> Archive:
        return Archive(
            spark=spark,
            table=ParquetTable(spark, TABLE, PARTITION_BY),
            quarantine=ParquetTable(spark, QUARANTINE, PARTITION_BY),
            checkpoint=CHECKPOINT,
            schema=None if self.options["infers"] else SCHEMA,
            dedupe="k" if self.options["dedupe"] else None,
            hold=HOLD if self.options["hold"] else "",
        )

    def _reading(self) -> dict[str, str]:
        options = {
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.options["rows_max"]),
            "minPartitions": "2",
            "localFiles": "false",
            "fetchBytes": str(64 << 10),
            "requestTimeoutMs": "1000",
            "retryForMs": "2000",
            "failOnDataLoss": "false" if self.tolerates else "true",
        }
        if self.options["by_pattern"]:
            options["subscribePattern"] = "[ab]"
        else:
            options["subscribe"] = "a,b" if self.ledger_has("b") else "a"
        if self.cluster.lookupds:
            options["lookupd"] = ",".join(each.address for each in self.cluster.lookupds)
        else:
            options["nsqd"] = ",".join(node.address for node in self.cluster.nodes)
        return options

    def ledger_has(self, topic: str) -> bool:
        return any(message.topic == topic for message in self.ledger.published)

    def _is_complete(self) -> bool:
        """Whether every node and an nsqlookupd answer."""
        directory = not self.cluster.lookupds or any(each.is_up for each in self.cluster.lookupds)
        return directory and all(node.answers for node in self.cluster.nodes)

    def _check_need(self, said: str, *, once: bool) -> None:
        """A pipeline may stop for a node that is away only if it needs the node: at its first
        start, at the end of a run that ends, and for a batch that has its messages."""
        if self._is_complete():
            self.ledger.fault(f"stopped although every node answers: {said}")
        lookupds = self.cluster.lookupds
        if once or (lookupds and not any(lookupd.is_up for lookupd in lookupds)):
            return
        begun, done = self._numbers("offsets"), self._numbers("commits")
        if not done:
            return
        needed = set[str]()
        if begun[-1] > done[-1]:
            before, after = (self._positions(number) for number in (begun[-1] - 1, begun[-1]))
            needed = {after[key].log for key in rows_between(before, after)}
        away = [node for node in self.cluster.nodes if not node.answers]
        if not needed & {log.id for node in away for log in node.logs.values()}:
            self.ledger.fault(f"needs a node that it does not read: {said}")

    def _check_holds(self) -> None:
        """After a run that read everything, each hold is where the run ended."""
        if not self.options["hold"] or not self._is_complete():
            return
        places = self._positions(self._numbers("commits")[-1])
        logs = {log.id: log for node in self.cluster.nodes for log in node.logs.values()}
        for (topic, node), place in places.items():
            log = logs.get(place.log)
            held = None if log is None else log.holds.get(HOLD)
            if held is not None and held < min(place.offset, log.end if log else 0):
                self.ledger.fault(f"hold of {topic} on {node} is at {held}, not {place.offset}")

    def _numbers(self, name: str) -> list[int]:
        prefix = f"{CHECKPOINT}/{name}/"
        return sorted(int(p[len(prefix) :]) for p in self.files.content if p.startswith(prefix))

    def _positions(self, batch: int) -> Any:
        text = self.files.content[f"{CHECKPOINT}/offsets/{batch}"]
        return from_json(json.loads(text.splitlines()[-1]))

    def _rows_of(self, path: str) -> list[Row]:
        storage = Storage(SimSpark(self.files), path)  # type: ignore[arg-type]
        rows: list[Row] = []
        for file in manifest.snapshot(storage).files:
            place = dict(part.split("=") for part in file.path.split("/") if "=" in part)
            rows += [
                {**row, "topic": place["topic"]} for row in self.files.content[plain(file.path)]
            ]
        return rows

    def _archived(self) -> set[int]:
        rows = [*self._rows_of(TABLE), *self._rows_of(QUARANTINE)]
        return {number_in(row["body"]) for row in rows}

    # -- the end --------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Every node is back: a run that ends must read everything."""
        self.do_heal_network()
        for node in self.cluster.nodes:
            if not node.is_up:
                self.cluster.start(node)
        for lookupd in self.cluster.lookupds:
            lookupd.is_up = True
        if not any(node.logs for node in self.cluster.nodes):
            return
        for _ in range(LAST_RUNS_MAX):
            self.do_run(batches=0, publishes=0.0, once=True, kill_at=None)
            if self.ledger.faults or not self.tolerates:
                break
        else:
            self.ledger.fault("it does not end")
