"""Plays a history: its actions one after the other, and then an end in which all must come out."""

import logging
from typing import NamedTuple

from pumpline.log.group_commit import DIRECT_BYTES
from pumpline.nsqd.queue.tick import CHANNELS_AT_ONCE
from tests.kit.sim.actions import Action, History
from tests.kit.sim.loop import Stuck
from tests.kit.sim.peers import Subscriber
from tests.kit.sim.seams import simulated
from tests.kit.sim.time_acts import TimeActs

SETTLE_S = 0.004  # after each action
REST_S = 15.0  # at the end: there is a pass of retention in it, and an fsync of tokens after it


class Played(NamedTuple):
    """The outcome of a history."""

    faults: list[str]
    at: int  # the action after which the first fault was seen
    kills: int
    power_losses: int  # of these kills
    deliveries: int
    repeats: int = 0  # publishes without an answer, sent again, of which the outcome is certain


def play(history: History) -> Played:
    """Carry out a history; the same one has the same outcome."""
    return Simulation(history).play()


class Simulation(TimeActs):
    def play(self) -> Played:
        machine, ledger = self.machine, self.ledger
        log = logging.getLogger("pumpline")
        propagate, log.propagate = log.propagate, False
        log.addHandler(machine.logged)
        at = -1
        try:
            seed = self.history.seed
            channels_at_once = seed % 2 * CHANNELS_AT_ONCE  # two topics are many, with 0
            direct_bytes = 300 if seed % 3 == 0 else DIRECT_BYTES
            with simulated(
                machine.disk,
                machine.clock,
                self.chance,
                channels_at_once=channels_at_once,
                direct_bytes=direct_bytes,
            ):
                try:
                    self.start()
                    for action in self.history.actions:
                        at += 1
                        self._act(action)
                        if self._look_for_faults():
                            break
                    else:
                        at += 1
                        self.chance.seed(self.history.seed)
                        self._finish()
                        self._look_for_faults()
                except Stuck as error:
                    ledger.fault(f"stuck: {error}")
                machine.kill()
        finally:
            log.removeHandler(machine.logged)
            log.propagate = propagate
        return Played(
            ledger.faults,
            at,
            machine.kills - 1,
            machine.power_losses,
            ledger.deliveries,
            ledger.repeats,
        )

    def _act(self, action: Action) -> None:
        self.chance.seed(action.salt)
        getattr(self, f"do_{action.verb}")(**action.args)
        self.run(SETTLE_S)
        self.revive()
        for consumer in self.consumers:
            if consumer is not None:
                consumer.check()
        self.enter(self.bounds.check_now())

    def _look_for_faults(self) -> bool:
        machine = self.machine
        for text in (*machine.faults, *machine.loop.faults, *machine.logged.found):
            self.ledger.fault(f"nsqd failed: {text}")
        return bool(self.ledger.faults)

    # -- the end ------------------------------------------------------------------------------

    def _finish(self) -> None:
        """The disk works, everybody answers: every message that was acknowledged must come."""
        self.heal()
        self.machine.disk.kill_after = self.machine.loop.kill_after = -1
        self.run(12)  # delays and message timeouts are over
        self.end() if self.chance.random() < 0.5 else self.stop()
        self.start()
        self._unpause_all()
        for topic in list(self.ledger.topics.values()):
            if not topic.channels and not topic.is_ephemeral:
                self.do_create(topic.name, "x", False)
        self._consume_all(25)
        self.audit()
        self.ledger.check_all_came()
        self.bounds.rest()
        self.run(REST_S)
        self.enter(self.bounds.check_at_rest())
        if self.history.seed % 8 == 0:  # it takes as long as the rest
            self.enter(self.bounds.check_freed())
        self.end()
        self.start()
        self._consume_all(2)

    def _unpause_all(self) -> None:
        for topic in list(self.ledger.topics.values()):
            self.do_unpause(topic.name, "", True)
            for channel in list(topic.channels.values()):
                self.do_unpause(topic.name, channel.name, False)

    def _consume_all(self, seconds: float) -> None:
        """Consumers that finish everything, of every channel."""
        known: set[tuple[str, str]] = set()
        for _ in range(2):  # dead letters may make a topic meanwhile
            self.audit()
            for topic in list(self.ledger.topics.values()):
                if not topic.channels:
                    self.do_create(topic.name, "x", False)
                for name in list(topic.channels):
                    if (topic.name, name) not in known:
                        known.add((topic.name, name))
                        consumer = Subscriber(
                            self.machine, self.ledger, f"last-{topic.name}/{name}", topic.name, name
                        )
                        consumer.finishes = True
                        assert consumer.open()
                        consumer.subscribe(msg_timeout_ms=10_000, rdy=100)
            self.run(seconds / 2)
