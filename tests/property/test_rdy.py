"""Shares of max_in_flight, whatever connects, is lost, delivers or answers, and when."""

from math import inf

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pumpline.client.consuming.rdy import (
    IDLE_ROUND_S,
    PROBE_SLOTS,
    Credit,
    RdyPool,
    fill,
)
from pumpline.client.settings import REDISTRIBUTE_INTERVAL_S as INTERVAL_S

CONNECTIONS_MAX = 8
STEPS = 5  # of a turn
IDLE_TURNS = int(IDLE_ROUND_S / INTERVAL_S)  # the longest that an idle consumer takes to go round


class Node:
    """An nsqd at once obedient: sends while it has messages and fewer in flight than RDY."""

    def __init__(self, rdy_max: int) -> None:
        self.credit = Credit(rdy_max)
        self.rdy = 0

    @property
    def room(self) -> int:
        return max(0, self.rdy - self.credit.in_flight)


class FakeNodes:
    """A pool and its nsqds on a virtual clock."""

    def __init__(self, max_in_flight: int) -> None:
        self.now = 100.0
        self.pool = RdyPool(max_in_flight)
        self.nodes: list[Node] = []
        self.sent = 0

    def connect(self, rdy_max: int = 2500) -> Node:
        node = Node(rdy_max)
        self.nodes.append(node)
        self.pool.add(node.credit, self.now)
        self.send()
        return node

    def lose(self, node: Node) -> None:
        self.nodes.remove(node)
        self.pool.remove(node.credit, self.now)
        self.send()

    def deliver(self, node: Node, count: int) -> int:
        count = min(count, node.room)
        if count:
            self.pool.received(node.credit, count, self.now)
            self.send()
        return count

    def answer(self, node: Node, count: int) -> None:
        count = min(count, node.credit.in_flight)
        if count:
            self.pool.answered(node.credit, count, self.now)
            self.send()

    def send(self) -> None:
        by_credit = {node.credit: node for node in self.nodes}
        for credit in self.pool.changes(self.now):
            by_credit[credit].rdy = credit.rdy
            self.sent += 1

    def pass_time(self, seconds: float) -> None:
        """Turns happen when they are due."""
        end = self.now + seconds
        for _ in range(5 + 3 * int(seconds / INTERVAL_S)):  # it must not be due all the time
            if self.pool.due_at > end:
                break
            self.now = max(self.now, self.pool.due_at)
            self.send()
        assert self.pool.due_at > end
        self.now = end

    def work(self, busy: list[Node], turns: int) -> dict[Node, int]:
        """Busy nodes always have messages, and each is answered within the turn it came in."""
        delivered = dict.fromkeys(self.nodes, 0)
        for _ in range(turns):
            for node in busy:
                delivered[node] += self.deliver(node, node.room)
            self.pass_time(INTERVAL_S)
            for node in self.nodes:
                self.answer(node, node.credit.in_flight)
        return delivered

    def flow(
        self, busy: list[Node], turns: int, *, after: int = 0, hold: int = STEPS
    ) -> dict[Node, float]:
        """Busy nodes always have messages, and each message is answered after `hold` steps.
        Returns the average RDY of each, not counting the first `after` turns."""
        used = dict.fromkeys(self.nodes, 0)
        held: list[tuple[int, Node, int]] = []
        for step in range((after + turns) * STEPS):
            while held and held[0][0] <= step:
                _, node, count = held.pop(0)
                self.answer(node, count)
            for node in busy:
                # A part at a time, so that answers do not come all at once for ever.
                if count := self.deliver(node, -(-node.room // 2)):
                    held.append((step + hold, node, count))
                if step >= after * STEPS:
                    used[node] += node.rdy
            self.pass_time(INTERVAL_S / STEPS)
            assert self.pool.rdy <= self.pool.max_in_flight
        return {node: count / (turns * STEPS) for node, count in used.items()}

    def answer_all(self) -> None:
        """What an earlier part of the test left in flight."""
        for node in self.nodes:
            self.answer(node, node.credit.in_flight)

    @property
    def taken(self) -> int:
        return sum(max(node.rdy, node.credit.in_flight) for node in self.nodes)


class RdyMachine(RuleBasedStateMachine):
    @initialize(max_in_flight=st.integers(0, 30))
    def begin(self, max_in_flight: int) -> None:
        self.fake = FakeNodes(max_in_flight)
        self.mode = "open"
        self.taken_before = 0

    def pick(self, number: int) -> Node:
        return self.fake.nodes[number % len(self.fake.nodes)]

    @property
    def has_nodes(self) -> bool:
        return bool(self.fake.nodes)

    @precondition(lambda self: len(self.fake.nodes) < CONNECTIONS_MAX)
    @rule(rdy_max=st.sampled_from([1, 3, 2500]))
    def connect(self, rdy_max: int) -> None:
        self.fake.connect(rdy_max)

    @precondition(lambda self: self.has_nodes)
    @rule(number=st.integers(0, 99))
    def lose(self, number: int) -> None:
        self.fake.lose(self.pick(number))

    @precondition(lambda self: self.has_nodes)
    @rule(number=st.integers(0, 99), count=st.integers(1, 30))
    def deliver(self, number: int, count: int) -> None:
        self.fake.deliver(self.pick(number), count)

    @precondition(lambda self: self.has_nodes)
    @rule(number=st.integers(0, 99), count=st.integers(1, 30))
    def answer(self, number: int, count: int) -> None:
        self.fake.answer(self.pick(number), count)

    @rule(turns=st.sampled_from([0.1, 0.5, 1.0, 1.5, 7.0]))
    def pass_time(self, turns: float) -> None:
        self.fake.pass_time(turns * INTERVAL_S)

    @rule(max_in_flight=st.integers(0, 30))
    def set_max_in_flight(self, max_in_flight: int) -> None:
        self.fake.pool.set_max_in_flight(max_in_flight, self.fake.now)
        self.fake.send()

    @rule(mode=st.sampled_from(["open", "block", "probe"]))
    def set_mode(self, mode: str) -> None:
        self.mode = mode
        getattr(self.fake.pool, mode)(self.fake.now)
        self.fake.send()

    @rule()
    def settle(self) -> None:
        """Everything is answered and nothing comes: all of max_in_flight is given out again."""
        fake = self.fake
        fake.answer_all()
        fake.pass_time(3 * INTERVAL_S)
        wanted = min(fake.pool.max_in_flight, sum(node.credit.rdy_max for node in fake.nodes))
        if self.mode == "open":
            slots = min(wanted, len(fake.nodes))
            assert fake.pool.rdy == (wanted if slots == len(fake.nodes) else slots)
        elif self.mode == "probe":
            assert fake.pool.rdy == min(1, wanted)

    def teardown(self) -> None:
        """After any history, busy nodes have what they would have had from a fresh start."""
        if not hasattr(self, "fake") or not self.has_nodes:
            return
        slots = self.fake.pool.max_in_flight
        fresh = FakeNodes(slots)
        for node in self.fake.nodes:
            fresh.connect(node.credit.rdy_max)
        self.set_mode("open")
        here, there = (averages_of_every_other(fake) for fake in (self.fake, fresh))
        assert sum(here) >= 0.9 * sum(there) - 0.2
        if len(self.fake.nodes) <= slots:
            assert all(mine >= 0.8 * other - 1 for mine, other in zip(here, there, strict=True))
        assert not slots or all(average > 0 for average in here)

    @invariant()
    def rdy_never_adds_up_to_more_than_max_in_flight(self) -> None:
        assert self.fake.pool.rdy <= self.fake.pool.max_in_flight

    @invariant()
    def what_is_taken_never_grows_beyond_max_in_flight(self) -> None:
        taken = self.fake.taken
        assert taken <= max(self.fake.pool.max_in_flight, self.taken_before)
        self.taken_before = taken

    @invariant()
    def nobody_gets_more_than_nsqd_allows(self) -> None:
        assert all(0 <= node.rdy <= node.credit.rdy_max for node in self.fake.nodes)

    @invariant()
    def nsqds_know_the_rdy_in_force(self) -> None:
        assert all(node.rdy == node.credit.rdy for node in self.fake.nodes)

    @invariant()
    def while_blocked_nothing_can_come(self) -> None:
        if self.mode == "block":
            assert self.fake.pool.rdy == 0

    @invariant()
    def while_probing_one_message_can_come(self) -> None:
        if self.mode == "probe":
            assert sum(node.room for node in self.fake.nodes) <= 1

    @invariant()
    def nobody_is_left_out_when_there_is_enough_for_all(self) -> None:
        pool = self.fake.pool
        # A fifth is for all of them that are idle; those in use have more than 1 of the rest.
        is_enough = self.has_nodes and PROBE_SLOTS * len(self.fake.nodes) <= pool.max_in_flight
        if is_enough and self.mode == "open" and not pool.is_waiting:
            assert all(node.rdy >= 1 for node in self.fake.nodes)

    @invariant()
    def someone_can_receive_or_something_is_awaited(self) -> None:
        """No stall: with room for a message either some nsqd may send, or a turn is due."""
        pool = self.fake.pool
        if not self.has_nodes or self.mode == "block" or pool.in_flight >= pool.max_in_flight:
            return
        is_open = any(node.room for node in self.fake.nodes)
        is_probed = self.mode == "probe" and pool.in_flight > 0
        is_full = all(node.credit.in_flight >= node.credit.rdy_max for node in self.fake.nodes)
        assert is_open or is_probed or is_full or pool.due_at < inf


def averages_of_every_other(fake: FakeNodes) -> list[float]:
    """RDY of every other node when those are busy, once shares have settled."""
    busy = fake.nodes[::2]
    fake.answer_all()
    used = fake.flow(busy, 4 * PROBE_SLOTS, after=IDLE_TURNS + PROBE_SLOTS)
    return [used[node] for node in busy]


TestRdy = RdyMachine.TestCase


@given(st.integers(0, 100), st.lists(st.integers(0, 40), max_size=8))
def test_fill_is_as_even_as_the_ceilings_allow(total: int, ceilings: list[int]) -> None:
    shares = fill(total, ceilings)
    assert sum(shares) == min(total, sum(ceilings))
    assert all(0 <= share <= ceiling for share, ceiling in zip(shares, ceilings, strict=True))
    unfilled = [s for s, ceiling in zip(shares, ceilings, strict=True) if s < ceiling]
    assert not unfilled or min(unfilled) >= max(shares) - 1


def unused(quiet: int, max_in_flight: int) -> int:
    """The most that quiet connections keep beside a busy one."""
    return min(quiet, -(-max_in_flight // PROBE_SLOTS))


@given(st.integers(2, 8), st.integers(0, 200))
def test_one_busy_connection_gets_all_but_one_message_each_of_the_others(
    nodes: int, spare: int
) -> None:
    """Or all but a fifth, where that is more: quiet ones then take turns."""
    fake = FakeNodes(nodes + spare)
    busy, *_ = [fake.connect() for _ in range(nodes)]
    fake.work([busy], 4)
    kept = unused(nodes - 1, fake.pool.max_in_flight)
    assert busy.rdy >= fake.pool.max_in_flight - kept
    if nodes - 1 <= fake.pool.max_in_flight // PROBE_SLOTS:
        assert busy.rdy == fake.pool.max_in_flight - (nodes - 1)


@given(
    st.integers(1, 60),
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0, 3.0]), min_size=1, max_size=7),
    st.integers(0, 7),
    st.integers(0, 60),
)
def test_whatever_the_order_of_joins_a_busy_connection_has_what_others_do_not_use(
    max_in_flight: int, turns_later: list[float], place: int, answered: int
) -> None:
    fake = FakeNodes(max_in_flight)
    busy: list[Node] = []
    for position, turns in enumerate(turns_later):
        if position == place % len(turns_later):
            busy.append(fake.connect())
        for node in busy:
            fake.deliver(node, node.room)
        fake.pass_time(turns * INTERVAL_S)
        fake.connect()
    for node in busy:
        fake.answer(node, answered)  # within the turn in which they came
        fake.deliver(node, node.room)
    fake.pass_time(INTERVAL_S)
    fake.answer_all()
    average = fake.flow(busy, 2 * PROBE_SLOTS, after=IDLE_TURNS + 8)[busy[0]]
    assert average >= 0.7 * max_in_flight


def test_a_connection_that_filled_up_before_others_joined_is_lent_what_they_do_not_use() -> None:
    fake = FakeNodes(30)
    busy = fake.connect()
    fake.deliver(busy, 30)
    fake.pass_time(0.3 * INTERVAL_S)
    fake.connect()
    fake.connect()
    fake.answer(busy, 30)  # within the turn in which it came
    fake.flow([busy], 4)
    assert [node.rdy for node in fake.nodes] == [28, 1, 1]


@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.sets(st.integers(0, 9), min_size=2, max_size=3),
    st.integers(1, 11),
)
def test_nobody_starves_however_long_a_message_takes(
    max_in_flight: int, more: int, busy: set[int], hold: int
) -> None:
    """Its slot may become free only in the middle of a turn, and always so."""
    fake = FakeNodes(max_in_flight)
    nodes = [fake.connect() for _ in range(max_in_flight + more)]
    chosen = list({number % len(nodes): nodes[number % len(nodes)] for number in busy}.values())
    used = fake.flow(chosen, 150, hold=hold)
    assert all(used[node] for node in chosen)


@given(st.integers(2, 8), st.integers(1, 3), st.integers(1, 40))
def test_more_credit_is_never_slower(nodes: int, busy: int, max_in_flight: int) -> None:
    def rate(credit: int) -> float:
        fake = FakeNodes(credit)
        everyone = [fake.connect() for _ in range(nodes)]
        return sum(fake.flow(everyone[:busy], 8 * PROBE_SLOTS, after=4 * nodes).values())

    assert rate(max_in_flight + 1) >= rate(max_in_flight) - 0.05


@given(st.integers(2, 8), st.integers(0, 200))
def test_a_connection_that_wakes_up_gets_its_fair_share_back_in_two_turns(
    nodes: int, spare: int
) -> None:
    fake = FakeNodes(nodes + spare)
    busy, other, *_ = [fake.connect() for _ in range(nodes)]
    fake.work([busy], 4)
    fake.work([busy, other], 2)
    assert other.rdy >= fake.pool.fair_share
    assert fake.pool.rdy == fake.pool.max_in_flight


@given(st.integers(1, 6), st.integers(1, 12), st.data())
def test_with_more_connections_than_messages_every_busy_one_is_served(
    max_in_flight: int, more: int, data: st.DataObject
) -> None:
    fake = FakeNodes(max_in_flight)
    nodes = [fake.connect() for _ in range(max_in_flight + more)]
    busy = data.draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
    turns = PROBE_SLOTS * (len(nodes) + len(busy)) // max_in_flight + PROBE_SLOTS + IDLE_TURNS
    delivered = fake.work(busy, turns)
    assert all(delivered[node] for node in busy)


@given(st.integers(1, 6), st.integers(1, 12))
def test_a_busy_connection_borrows_most_of_the_slots_of_the_quiet_ones(
    max_in_flight: int, more: int
) -> None:
    fake = FakeNodes(max_in_flight)
    busy, *_ = [fake.connect() for _ in range(max_in_flight + more)]
    fake.work([busy], 2 * (max_in_flight + more))
    turns = 50
    delivered = fake.work([busy], turns)[busy]
    assert delivered >= 0.7 * turns * max_in_flight


def test_slow_handlers_leave_turns_to_others() -> None:
    """Each message takes many turns: the slot goes to the other when the message is answered."""
    fake = FakeNodes(1)
    slow, other = fake.connect(), fake.connect()
    served = []
    for _ in range(20):
        while not (ready := [node for node in (slow, other) if node.room]):
            assert fake.pool.due_at < inf
            fake.pass_time(fake.pool.due_at - fake.now)
        fake.deliver(ready[0], 1)
        served.append(ready[0])
        fake.pass_time(10 * INTERVAL_S)
        fake.answer(ready[0], 1)
    assert 9 <= served.count(other) <= 11


def test_a_quiet_consumer_with_enough_for_all_sends_nothing() -> None:
    fake = FakeNodes(10)
    for _ in range(3):
        fake.connect()
    fake.pass_time(INTERVAL_S)
    sent = fake.sent
    fake.pass_time(1000 * INTERVAL_S)
    assert fake.sent == sent
    assert fake.pool.due_at == inf


def test_the_remainder_is_given_out_too() -> None:
    fake = FakeNodes(11)
    nodes = [fake.connect() for _ in range(3)]
    assert sorted(node.rdy for node in nodes) == [3, 4, 4]


def test_a_lost_connection_leaves_its_share_to_the_others() -> None:
    fake = FakeNodes(30)
    first, second, third = (fake.connect() for _ in range(3))
    fake.deliver(third, 10)
    fake.lose(third)
    assert [first.rdy, second.rdy] == [15, 15]


def test_the_probe_goes_round_until_a_message_comes() -> None:
    fake = FakeNodes(10)
    nodes = [fake.connect() for _ in range(3)]
    fake.pool.block(fake.now)
    fake.send()
    fake.pool.probe(fake.now)
    fake.send()
    probed = []
    for _ in range(6):
        probed += [nodes.index(node) for node in nodes if node.rdy]
        fake.pass_time(fake.pool.due_at - fake.now)
    assert sorted(probed) == [0, 0, 1, 1, 2, 2]
    [last] = [node for node in nodes if node.rdy]
    fake.deliver(last, 1)
    fake.pass_time(20 * INTERVAL_S)
    assert [node for node in nodes if node.rdy] == [last]


def test_a_probe_has_room_beside_messages_still_being_handled() -> None:
    fake = FakeNodes(10)
    node = fake.connect()
    fake.deliver(node, 4)
    fake.pool.block(fake.now)
    fake.send()
    fake.pool.probe(fake.now)
    fake.send()
    assert node.rdy == 5
