"""The stage of a simulation: the machine, the clients and the ledger, and what happens when nsqd is
killed: it is entered, nsqd starts again, and says what it has kept."""

import random
from collections.abc import Iterable
from typing import Any

from pumpline.web.sockets import StartupError
from tests.kit.sim.actions import CONSUMERS, PUBLISHERS, History
from tests.kit.sim.books import NS
from tests.kit.sim.bounds import Bounds
from tests.kit.sim.ledger import Ledger
from tests.kit.sim.loop import Killed, Stuck
from tests.kit.sim.machine import Machine, Reply
from tests.kit.sim.peers import Publisher, Subscriber

STARTS_MAX = 20
WINDOW_NS = NS * 12 // 100  # between two checkpoints, and a little
SYNC_NS = NS * 22 // 10  # --sync-timeout, and a little


class Stage:
    def __init__(self, history: History) -> None:
        self.history = history
        self.chance = random.Random(history.seed)
        self.machine = Machine(self.chance, **history.options)
        self.ledger = Ledger(
            self.machine.clock,
            mem_queue_size=history.options["mem_queue_size"],
            group_commit=history.options["sync_every"] == 1,
            rolls=history.options["max_bytes_per_file"] < 100 << 20,
        )
        self.publishers: list[Publisher | None] = [None] * PUBLISHERS
        self.consumers: list[Subscriber | None] = [None] * CONSUMERS
        self.bodies = 0
        self.away_ms = 0  # how long the next kill keeps nsqd away
        self.power = False  # the kill to come takes the power with it
        self.again: int | None = None  # calls after which the next process is killed, too
        self.bounds = Bounds(self.machine)
        self.set_thread_delay(20)

    def set_thread_delay(self, ms: int) -> None:
        """How late jobs for threads begin, at most; a kill may undo so much more."""
        ledger, machine = self.ledger, self.machine
        machine.thread_delay_s = ms / 1000
        ledger.window_ns = max(ledger.window_ns, WINDOW_NS + 4 * ms * 10**6)
        ledger.sync_ns = max(ledger.sync_ns, SYNC_NS + 4 * ms * 10**6)

    def run(self, seconds: float) -> None:
        if not self.machine.is_dead:
            self.machine.run(seconds)

    def revive(self) -> None:
        """If nsqd was killed: enter it, and start it again."""
        if self.machine.is_dead:
            self.end()
            self.start()

    def end(self) -> None:
        """nsqd is killed, now or before."""
        machine = self.machine
        machine.loop.is_dead = machine.disk.is_dead = True
        self.ledger.killed(power=self.power)
        machine.kill(power=self.power)
        self._all_gone()
        self.power = False

    def stop(self) -> None:
        """nsqd ends in order, unless it is killed meanwhile."""
        sound = self.ledger.disk_is_sound and self.machine.disk.faults is None
        try:
            self.machine.stop()
        except Killed:
            self.end()
            return
        if sound:
            self.ledger.stopped()
        else:
            self.ledger.killed(power=False)
        self._all_gone()

    def _all_gone(self) -> None:
        self.publishers = [None] * PUBLISHERS
        self.consumers = [None] * CONSUMERS
        self.machine.clock.passed_ns += self.away_ms * 10**6
        self.away_ms = 0

    def start(self) -> None:
        machine = self.machine
        for _ in range(STARTS_MAX):
            if self.again is not None:
                machine.disk.kill_after, self.again = self.again, None
            try:
                machine.start()
                self.ledger.began()
                machine.disk.kill_after = -1
                self.audit()
                if not machine.is_dead:
                    return
            except Killed:
                pass
            except (StartupError, OSError) as error:
                if machine.disk.faults is None:
                    self.ledger.fault(f"nsqd does not start: {error}")
                    raise Stuck("nsqd does not start") from error
                self.heal()
                continue
            self.end()
        raise Stuck("nsqd does not start")

    def heal(self) -> None:
        """The disk works again."""
        self.machine.disk.faults = None
        self.ledger.disk_healed()
        self.ledger.cannot_cut = self.ledger.cannot_delete = self.ledger.cannot_sync = False

    # -- asking -------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: bytes = b"") -> Reply:
        if self.machine.is_dead:
            return Reply(0, b"", was_read=False)
        return self.machine.request(method, path, body)

    def audit(self) -> None:
        """Compare what nsqd says it has with the ledger."""
        since = self.ledger.now
        reply = self.request("GET", "/stats?format=json&include_mem=false")
        if not reply.is_ok:
            return
        self.ledger.audit(reply.json(), since)
        for name in [n for n, topic in self.ledger.topics.items() if not topic.is_ephemeral]:
            settings = self.request("GET", f"/topic/settings?topic={name}")
            if settings.is_ok:
                self.ledger.settings_found(name, settings.json()["settings"])
            holds = self.request("GET", f"/hold/list?topic={name}")
            offsets = self.request("GET", f"/log/offsets?topic={name}")
            if holds.is_ok and offsets.is_ok:
                found = {each["hold"]: each["offset"] for each in holds.json()["holds"]}
                self.ledger.holds_found(name, found, offsets.json()["first"])
        self.ledger.audited()

    def enter(self, faults: Iterable[str]) -> None:
        for text in faults:
            self.ledger.fault(text)

    def peek(self, topic: str) -> dict[int, Any] | None:
        """The bodies in a topic's log by offset."""
        reply = self.request("GET", f"/log/peek?topic={topic}&limit=1000")
        if not reply.is_ok:
            return None
        return {each["offset"]: each["body"].encode() for each in reply.json()["messages"]}
