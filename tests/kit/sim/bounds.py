"""What nsqd may keep: files, descriptors, connections and tables are bounded by what is held.

Two kinds of checks. `check_now` holds between any two callbacks. `check_at_rest` holds when the
disk works and nothing has happened for some seconds: then all that is late has been done, and what
is there must be there for a reason. Both look into nsqd, whose sockets say nothing of this.
"""

import gc
import re
from collections.abc import Iterator

from pumpline.log.log import Log, State
from pumpline.log.wal import number_in
from pumpline.nsqd.broker import Broker
from pumpline.nsqd.queue.channel import Channel
from pumpline.nsqd.queue.topic import Topic
from tests.kit.sim.machine import DATA_PATH, Machine

TOPICS_PATH = f"{DATA_PATH}/topics/"
WAL_DAMAGE = re.compile(rf"{DATA_PATH}/wal-\d+(\.\d+)+\.bad")  # a second one has a number more
AT_MOST_ONE = re.compile(r"\d{20}\.unordered|topic\.json|holds\.json|tokens|tokens\.old")


class Bounds:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lows: dict[Topic, tuple[int, int]] = {}

    def check_now(self) -> Iterator[str]:
        """Faults of this moment."""
        machine = self._machine
        broker = machine.broker
        if broker is None or machine.is_dead:
            return
        yield from self._descriptors(broker)
        yield from self._connections(broker)
        for topic in broker.topics.values():
            if len(topic.upkeep.tokens) > broker.options.max_publish_tokens:
                yield f"{topic.name} remembers {len(topic.upkeep.tokens)} tokens"
            for channel in topic.channels.values():
                yield from self._tables(topic, channel)
            if isinstance(topic.log, Log):
                yield from self._offsets(topic.name, topic.log)

    def _offsets(self, topic: str, log: Log) -> Iterator[str]:
        """As the table in `log.log` has them; what the open batch got since the last tick is
        acknowledged in the next one."""
        logged = log.logged
        if log.is_shared and not log.keeps_unsynced:  # derived from the open batch
            logged = max(log.end, logged)
        is_cut = log.written <= logged or log.is_unsound  # else the next flush cuts it back
        is_ordered = log.synced <= log.end <= logged <= log.accepted and log.synced <= log.written
        if not is_ordered or not is_cut or (log.written > log.end and not log.keeps_unsynced):
            names = ("synced", "written", "end", "logged", "accepted")
            yield f"{topic}: { ({name: getattr(log, name) for name in names}) }"

    def _descriptors(self, broker: Broker) -> Iterator[str]:
        disk = self._machine.disk
        pooled = len(broker.disk.files)
        if len(disk.descriptors) != pooled:
            yield f"{len(disk.descriptors)} descriptors are open, and the pool has {pooled}"
        linked = {id(file) for _, file in disk.files()}
        unlinked = [node for node in disk.descriptors.values() if id(node) not in linked]
        if unlinked:
            yield f"{len(unlinked)} files are open and deleted"

    def _connections(self, broker: Broker) -> Iterator[str]:
        links = self._machine.network.count("TCP")
        if len(broker.connections) > links:
            yield f"{len(broker.connections)} clients are known, and {links} are connected"
        channels = [c for topic in broker.topics.values() for c in topic.channels.values()]
        consumers = sum(len(channel.consumers) for channel in channels)
        if consumers > len(broker.connections):
            yield f"channels have {consumers} consumers, of {len(broker.connections)} clients"

    def _tables(self, topic: Topic, channel: Channel) -> Iterator[str]:
        """Every offset that is not finished is in one place, and nothing else is anywhere."""
        delivery = channel.delivery
        finished = delivery.finished
        seen = delivery.high - finished.low - finished.count(finished.low, delivery.high)
        seen -= delivery.fresh(delivery.high)
        placed = len(delivery.ready) + delivery.behind_count + delivery.deferred_count
        placed += channel.in_flight_count + channel.dead_letters.pending
        about = f"{topic.name}/{channel.name}"
        if seen != placed:
            yield f"{about} has {placed} messages in its tables, and {seen} are not finished"
        if len(delivery.attempts) > seen:
            yield f"{about} counts attempts of {len(delivery.attempts)} messages, and has {seen}"
        if delivery.high > topic.log.end:
            yield f"{about} is at {delivery.high}, and the log ends at {topic.log.end}"

    # -- when nothing happens -----------------------------------------------------------------

    def rest(self) -> None:
        """Note what there is; `check_at_rest` follows, after more than a pass of retention."""
        broker = self._machine.broker
        if broker is not None:
            self._lows = {topic: _progress(topic) for topic in broker.topics.values()}

    def check_at_rest(self) -> Iterator[str]:
        machine = self._machine
        broker = machine.broker
        if broker is None or machine.is_dead:
            return
        yield from self.check_now()
        if broker.disk.checkpoints.age_s > 1:
            yield f"a checkpoint is {broker.disk.checkpoints.age_s:.1f} s late"
        known = {f"{DATA_PATH}/{name}" for name in ("nsqd.dat", "format", "running")}
        files = {path for path, _ in machine.disk.files() if path not in known}
        files -= self._wal_files()
        for topic in broker.topics.values():
            log = topic.log
            if isinstance(log, Log):
                yield from self._memory(topic, log)
                if self._lows.get(topic) == _progress(topic):
                    yield from self._history(topic, log)
                files -= self._files(topic, log)
        yield from (f"{path} is there, and nobody knows it" for path in sorted(files))

    def _wal_files(self) -> set[str]:
        """Those of the write-ahead log: at rest all that was in them is in the segments, but for
        damage."""
        files = dict(self._machine.disk.files())
        names = {path: path.removeprefix(f"{DATA_PATH}/") for path in files}
        empty = {
            path
            for path, name in names.items()
            if number_in(name) is not None and not files[path].data
        }
        return empty | {path for path in files if WAL_DAMAGE.fullmatch(path)}

    def _memory(self, topic: Topic, log: Log) -> Iterator[str]:
        tail = log.tail
        kept = tail[-1].end - tail[0].first if tail else 0
        if kept > topic.options.mem_queue_size:
            yield f"{topic.name} has {kept} messages in memory"
        if log.unsynced:
            yield f"{topic.name} has {log.unsynced} messages that are not synced"
        if log.state is State.STUCK or log.written < log.end:
            yield f"{topic.name} is not flushed"

    def _history(self, topic: Topic, log: Log) -> Iterator[str]:
        """Segments that nobody needs are within the bound of retention."""
        own = topic.settings.retention_bytes
        bytes_max = topic.options.retention_bytes if own is None else own
        history = sum(segment.size_bytes for segment in log.consumed(topic.upkeep.low))
        if history > bytes_max:
            yield f"{topic.name} keeps {history} bytes of history, {bytes_max} allowed"

    def _files(self, topic: Topic, log: Log) -> set[str]:
        """The files that a topic may have."""
        disk = self._machine.disk
        path = topic.disk.directory.topic_path(topic.name) + "/"
        names = {each.removeprefix(path) for each, _ in disk.files() if each.startswith(path)}
        found = {segment.path for segment in log.segments}
        found |= {c.cursor_file.path for c in topic.channels.values() if c.cursor_file}
        kinds: dict[str, str] = {}
        for name in names:
            if AT_MOST_ONE.fullmatch(name):
                kinds[re.sub(r"\d", "", name)] = name
            elif name.endswith((".bad", ".gap")):  # for a person to look at; of lost offsets
                found.add(path + name)
        return found | {path + name for name in kinds.values()}

    def check_freed(self) -> Iterator[str]:
        """Nothing is left in memory of connections that are closed."""
        gc.collect()
        left = self._machine.network.leftovers()
        if left:
            yield f"{left} closed connections are in memory"


def _progress(topic: Topic) -> tuple[int, int]:
    return topic.upkeep.low, topic.log.end
