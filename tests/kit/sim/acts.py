"""What the verbs of a history do. Each takes its arguments from the action; one that finds nothing
to act on does nothing."""

import json
from collections.abc import Callable
from typing import Any

from tests.kit.sim.books import Outcome
from tests.kit.sim.disk import Faults
from tests.kit.sim.machine import Reply
from tests.kit.sim.peers import MessageFrame, Publisher, Subscriber
from tests.kit.sim.stage import Stage


class Acts(Stage):
    # -- clients ------------------------------------------------------------------------------

    def do_publish(
        self, client: int, topic: str, count: int, many: bool, delay_ms: int, size: int
    ) -> None:
        publisher = self.publishers[client]
        if publisher is None or not publisher.is_open:
            publisher = Publisher(self.machine, self.ledger, f"p{client}")
            if not publisher.open():
                return
            self.publishers[client] = publisher
        publisher.publish(topic, self._new_bodies(count, size), delay_ms=delay_ms, many=many)

    def _new_bodies(self, count: int, size: int = 0) -> list[bytes]:
        first = self.bodies
        self.bodies += count
        return [b"m%d." % (first + i) + b"-" * size for i in range(count)]

    def do_post(self, topic: str, token: int | None, count: int) -> None:
        """Over HTTP. A token stands for the same messages, however often it is used: who has one
        and gets no answer tries again once nsqd is back."""
        if not self._post(topic, token, count) and token is not None:
            self.revive()
            self._post(topic, token, count)

    def _post(self, topic: str, token: int | None, count: int) -> bool:
        """Return whether it was answered."""
        ledger = self.ledger
        if token is None:
            bodies = self._new_bodies(count)
        else:
            bodies = [f"{topic}{token}.{count}.{i}.".encode() for i in range(count)]
        query = f"topic={topic}" + (f"&token={token}:{count}" if token else "")
        messages = [ledger.messages[body] for body in bodies if body in ledger.messages]
        gone = (Outcome.REFUSED, Outcome.DELETED)
        known = bool(messages) and messages[0].outcome not in gone
        if not known:
            messages = ledger.sending(topic, bodies)
            ledger.arrived(messages)
        else:
            ledger.token_sent_again(messages)
        reply = self.request("POST", f"/mpub?{query}", b"\n".join(bodies))
        if known:
            if reply.is_ok:
                ledger.token_repeated(messages)
        elif reply.is_ok:
            ledger.taken(messages)
        elif reply.status:
            ledger.refused(messages, reply.body.decode())
        else:
            ledger.lost(messages)
        return bool(reply.status)

    def do_subscribe(
        self, client: int, topic: str, channel: str, rdy: int, msg_timeout_ms: int
    ) -> None:
        consumer = self.consumers[client]
        if consumer is not None and consumer.is_open:
            return
        consumer = Subscriber(self.machine, self.ledger, f"c{client}", topic, channel)
        if consumer.open():
            self.consumers[client] = consumer
            consumer.subscribe(msg_timeout_ms=msg_timeout_ms, rdy=rdy)

    def _consumer(self, client: int) -> Subscriber | None:
        consumer = self.consumers[client]
        return consumer if consumer is not None and consumer.is_open else None

    def do_ready(self, client: int, rdy: int) -> None:
        if (consumer := self._consumer(client)) is not None:
            consumer.ready(rdy)

    def do_answer(self, client: int, how: str, count: int, delay_ms: int, pick: str) -> None:
        consumer = self._consumer(client)
        if consumer is None:
            return
        hand = list(consumer.hand.values())
        if pick == "last":
            hand.reverse()
        elif pick == "any":
            self.chance.shuffle(hand)
        for frame in hand[:count]:
            self._answer(consumer, frame, how, delay_ms)

    def _answer(self, consumer: Subscriber, frame: MessageFrame, how: str, delay_ms: int) -> None:
        if how == "FIN":
            consumer.finish(frame)
        elif how == "REQ":
            consumer.requeue(frame, delay_ms)
        else:
            consumer.touch(frame)

    def do_answer_late(self, client: int, how: str) -> None:
        consumer = self._consumer(client)
        if consumer is not None and consumer.had:
            self._answer(consumer, self.chance.choice(consumer.had), how, 0)

    def do_leave(self, client: int, how: str) -> None:
        consumer = self._consumer(client)
        if consumer is None:
            return
        if how == "CLS":
            consumer.say_close()
        else:
            consumer.hang_up(politely=how == "close")

    def do_wait(self, ms: int) -> None:
        self.run(ms / 1000)

    # -- operators ----------------------------------------------------------------------------

    def _names(self, topic: str, channel: str, only_topic: bool) -> tuple[str, str]:
        if only_topic:
            return "/topic", f"topic={topic}"
        return "/channel", f"topic={topic}&channel={channel.replace('#', '%23')}"

    def _change(
        self, what: str, topic: str, channel: str, only_topic: bool, enter: Callable[..., None]
    ) -> Reply:
        """Ask for a change, and enter its outcome if there may be one."""
        since = self.ledger.now
        kind, query = self._names(topic, channel, only_topic)
        reply = self.request("POST", f"{kind}/{what}?{query}")
        if reply.is_ok:
            enter(since, True)
        elif reply.is_unknown or reply.status >= 500:
            enter(since, False)
        return reply

    def do_create(self, topic: str, channel: str, only_topic: bool) -> None:
        def enter(since: int, certain: bool) -> None:
            if only_topic:
                book = self.ledger.topic(topic)
                book.is_certain = book.is_certain or certain
                self.ledger.never_made.pop(topic, None)
            elif not channel.endswith("#ephemeral"):
                self.ledger.created(topic, channel, since, certain=certain)

        if only_topic or not channel.endswith("#ephemeral"):
            self._change("create", topic, channel, only_topic, enter)

    def do_delete(self, topic: str, channel: str, only_topic: bool) -> None:
        def enter(since: int, certain: bool) -> None:
            if only_topic:
                self.ledger.deleted_topic(topic, since, certain=certain)
            else:
                self.ledger.deleted_channel(topic, channel, since, certain=certain)
            if not certain:
                self.audit()

        self._change("delete", topic, channel, only_topic, enter)

    def do_empty(self, topic: str, channel: str, only_topic: bool) -> None:
        def enter(since: int, certain: bool) -> None:
            name = None if only_topic else channel
            self.ledger.emptied(topic, name, since, certain=certain)

        self._change("empty", topic, channel, only_topic, enter)

    def do_pause(self, topic: str, channel: str, only_topic: bool) -> None:
        self._set_paused(topic, channel, only_topic, True)

    def do_unpause(self, topic: str, channel: str, only_topic: bool) -> None:
        self._set_paused(topic, channel, only_topic, False)

    def _set_paused(self, topic: str, channel: str, only_topic: bool, paused: bool) -> None:
        book = self.ledger.topics.get(topic)
        target = book if only_topic or book is None else book.channels.get(channel)
        changes = target is not None and target.paused is not paused
        if target is not None and changes:
            if target.pause_is_saved:
                target.pause_ns = self.ledger.steady_ns
            target.paused = None  # from here on, until it is answered, messages may come or not
            self.ledger.topics[topic].settle(self.ledger.steady_ns)

        def enter(since: int, certain: bool) -> None:
            if changes or certain:
                self.ledger.paused(topic, None if only_topic else channel, paused, certain=certain)

        was_asked_for = book is not None and book.is_asked_for
        if book is not None and only_topic and paused:
            book.is_asked_for = True  # a refused publish does not take a topic that is paused
        what = "pause" if paused else "unpause"
        reply = self._change(what, topic, channel, only_topic, enter)
        if book is not None and reply.status == 404:
            book.is_asked_for = was_asked_for
        if target is not None and target.paused is None:
            self.audit()

    def do_seek(self, topic: str, channel: str, to: str) -> None:
        book = self.ledger.topics.get(topic)
        since = self.ledger.now
        there = self.peek(topic)
        if book is None or channel not in book.channels or not there or self.machine.is_dead:
            return
        offset = {"beginning": min(there), "end": max(there) + 1}.get(to)
        if offset is None:
            offset = self.chance.choice(list(there))
        query = f"topic={topic}&channel={channel.replace('#', '%23')}&offset={offset}"
        self.ledger.seeking(topic, channel)
        reply = self.request("POST", f"/channel/seek?{query}")
        if not reply.was_read or reply.status in (400, 404, 416):
            book.channels[channel].moved = None
            return
        certain = reply.is_ok and reply.json()["offset"] == offset
        skipped = {body for at, body in there.items() if at < offset}
        if channel in book.channels:
            kept = set(there.values()) - skipped
            self.ledger.sought(topic, channel, kept, skipped, since, certain=certain)

    def do_configure(self, topic: str, settings: dict[str, Any]) -> None:
        if topic not in self.ledger.topics:
            return
        body = json.dumps(settings).encode()
        self.ledger.perhaps_configured(topic, settings)  # from here on, until it is answered
        book = self.ledger.topics[topic]
        maybe = len(book.settings_maybe) - 2
        reply = self.request("POST", f"/topic/settings?topic={topic}", body)
        if reply.is_ok:
            self.ledger.configured(topic, reply.json()["settings"])
        elif not reply.is_unknown and reply.status < 500:
            del book.settings_maybe[maybe:]

    def do_hold(self, topic: str, hold: str, what: str, to: str) -> None:
        book = self.ledger.topics.get(topic)
        if book is None:
            return
        query = f"topic={topic}&hold={hold}"
        if what == "create":
            query += f"&to={to}"
        elif what == "commit":
            there = self.peek(topic)
            if not there:
                return
            query += f"&offset={self.chance.choice(list(there))}"
        reply = self.request("POST", f"/hold/{what}?{query}")
        if reply.is_ok:
            offset = None if what == "delete" else reply.json()["offset"]
            self.ledger.held(topic, hold, offset, certain=True)
        elif reply.is_unknown or reply.status >= 500:
            self.ledger.held(topic, hold, None, certain=False)

    def do_look(self, topic: str) -> None:
        self.audit()
        there = self.peek(topic)
        if there is not None:
            self.ledger.peeked(topic, there)

    # -- the machine ---------------------------------------------------------------------------

    def do_kill(self, where: str, after: int, power: bool, again: int | None, away_ms: int) -> None:
        """Now, or at a call to the disk or a callback that is to come."""
        self.power, self.again, self.away_ms = power, again, away_ms
        if where == "now":
            self.end()
            self.start()
        elif where == "call":
            self.machine.disk.kill_after = after
        else:
            self.machine.loop.kill_after = after * 3

    def do_stop(self, away_ms: int) -> None:
        self.away_ms = away_ms
        self.stop()
        self.start()

    def do_fail_disk(self, kinds: str, rate: float, error: int) -> None:
        self.machine.disk.faults = Faults(frozenset(kinds.split()), rate, error)
        self.ledger.disk_failing()
        self.ledger.cannot_cut = "ftruncate" in kinds or "unlink" in kinds
        self.ledger.cannot_delete = "rename" in kinds or "mkdir" in kinds  # of the trash
        self.ledger.cannot_sync = "fsync" in kinds

    def do_heal_disk(self) -> None:
        self.heal()

    def do_set_clock(self, by_s: int) -> None:
        self.machine.clock.wall_set_ns += by_s * 10**9
        self.ledger.clock_set()

    def do_slow_disk(self, by_ms: int) -> None:
        self.set_thread_delay(by_ms)
        self.machine.loop.thread_delay_s = self.machine.thread_delay_s
