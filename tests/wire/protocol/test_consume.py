"""RDY, FIN, REQ and delivery: who gets which message, when, and how often."""

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.admin import act, await_channel
from tests.kit.wire.commands import fin, mpub, rdy, req, touch
from tests.kit.wire.session import FRAME_ERROR, OK, Connect, Message, bodies

UNOWNED = "client does not own message"
NOT_IN_FLIGHT = "ID not in flight"


def failure(verb: str, message: Message, reason: str) -> tuple[int, bytes]:
    text = f"E_{verb}_FAILED {verb} {message.id} failed {reason}"
    return FRAME_ERROR, text.encode()


def test_rdy_is_a_ceiling_on_what_is_outstanding(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, *[b"%d" % n for n in range(5)])
    session.subscribe(topic, "ch", ready=2)
    first, second = session.messages(2)
    await_channel(nsqd, topic, "ch", depth=3, in_flight_count=2)
    assert session.before_barrier() == []
    session.finish(first)
    third = session.message()
    session.send(req(second.id, 3600000))
    fourth = session.message()
    assert bodies([first, second, third, fourth]) == [b"0", b"1", b"2", b"3"]
    await_channel(nsqd, topic, "ch", depth=1, in_flight_count=2, deferred_count=1)
    assert session.before_barrier() == []


def test_raising_rdy_lets_more_through(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, *[b"x"] * 6)
    session.subscribe(topic, "ch", ready=1)
    session.messages(1)
    session.send(rdy(4))
    session.messages(3)
    await_channel(nsqd, topic, "ch", depth=2, in_flight_count=4)
    assert session.before_barrier() == []


def test_lowering_rdy_below_what_is_outstanding_pauses_until_drained(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = connect()
    session.publish(topic, *[b"x"] * 6)
    session.subscribe(topic, "ch", ready=3)
    outstanding = session.messages(3)
    session.send(rdy(1))
    session.finish(*outstanding[:2])
    await_channel(nsqd, topic, "ch", depth=3, in_flight_count=1)
    assert session.before_barrier() == []
    session.finish(outstanding[2])
    session.message()
    await_channel(nsqd, topic, "ch", depth=2, in_flight_count=1)


def test_rdy_zero_stops_deliveries(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session, producer = connect(), connect()
    session.subscribe(topic, "ch", ready=5)
    producer.publish(topic, b"a")
    held = session.message()
    session.send(rdy(0))
    wait_until(lambda: nsqd.channel_stats(topic, "ch")["clients"][0]["ready_count"] == 0)
    producer.publish(topic, b"b")
    session.finish(held)
    await_channel(nsqd, topic, "ch", depth=1, in_flight_count=0)
    assert session.before_barrier() == []
    session.send(rdy(1))
    assert session.message().body == b"b"


def test_without_rdy_nothing_is_delivered(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, b"x")
    session.subscribe(topic, "ch")
    await_channel(nsqd, topic, "ch", depth=1, in_flight_count=0)
    assert session.before_barrier() == []


@pytest.mark.parametrize(
    ("line", "count"),
    [
        (b"RDY\n", 1),
        (b"RDY \n", 0),
        (b"RDY 0\n", 0),
        (b"RDY 0007\n", 7),
        (b"RDY 2500\n", 2500),
        (b"RDY 18446744073709551617\n", 1),
        (b"RDY 18446744073709551616\n", 0),
    ],
)
def test_rdy_counts(nsqd: Nsqd, connect: Connect, topic: str, line: bytes, count: int) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=3)
    session.send(line)
    assert session.before_barrier() == []
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    assert client["ready_count"] == count


def test_rdy_above_the_default_limit_is_fatal(connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=2501)
    text = b"E_INVALID RDY count 2501 out of range 0-2500"
    assert session.until_closed() == [(FRAME_ERROR, text)]


def test_fin_is_counted_and_final(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, b"x")
    session.subscribe(topic, "ch", ready=5)
    message = session.message()
    session.send(fin(message.id), fin(message.id))
    assert session.frame() == failure("FIN", message, NOT_IN_FLIGHT)
    stats = await_channel(nsqd, topic, "ch", in_flight_count=0, depth=0, message_count=1)
    (client,) = stats["clients"]
    assert (client["finish_count"], client["message_count"]) == (1, 1)
    assert client["in_flight_count"] == 0


def test_req_zero_comes_again_with_one_more_attempt(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = connect()
    session.publish(topic, b"again")
    session.subscribe(topic, "ch", ready=1)
    first = session.message()
    for attempts in range(2, 8):
        session.send(req(first.id, 0))
        assert session.message() == first._replace(attempts=attempts)
    stats = await_channel(nsqd, topic, "ch", requeue_count=6, message_count=1, timeout_count=0)
    (client,) = stats["clients"]
    assert (client["requeue_count"], client["message_count"]) == (6, 7)
    assert client["in_flight_count"] == 1


def test_req_with_a_delay_is_deferred(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, b"x")
    session.subscribe(topic, "ch", ready=1)
    message = session.message()
    session.send(req(message.id, 3600000))
    await_channel(nsqd, topic, "ch", deferred_count=1, in_flight_count=0, depth=0, requeue_count=1)
    # Deferred is neither in flight nor queued: nobody can settle it.
    session.send(fin(message.id), req(message.id, 0), touch(message.id))
    assert session.frames(3) == [
        failure("FIN", message, NOT_IN_FLIGHT),
        failure("REQ", message, NOT_IN_FLIGHT),
        failure("TOUCH", message, NOT_IN_FLIGHT),
    ]


def test_req_with_an_empty_delay_is_immediate(connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, b"x")
    session.subscribe(topic, "ch", ready=1)
    message = session.message()
    session.send(f"REQ {message.id} \n".encode())
    assert session.message() == message._replace(attempts=2)


def test_only_the_owner_may_settle_a_message(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    owner, other = connect(), connect()
    owner.publish(topic, b"x")
    owner.subscribe(topic, "ch", ready=1)
    message = owner.message()
    other.subscribe(topic, "ch", ready=1)
    other.send(fin(message.id), req(message.id, 0), touch(message.id))
    assert other.frames(3) == [
        failure("FIN", message, UNOWNED),
        failure("REQ", message, UNOWNED),
        failure("TOUCH", message, UNOWNED),
    ]
    owner.send(touch(message.id))
    owner.finish(message)
    assert owner.before_barrier() == []
    stats = await_channel(nsqd, topic, "ch", in_flight_count=0, requeue_count=0)
    assert sorted(client["finish_count"] for client in stats["clients"]) == [0, 1]


def test_message_of_one_channel_cannot_be_settled_in_another(connect: Connect, topic: str) -> None:
    holder, stranger = connect(), connect()
    stranger.subscribe(topic, "other")
    holder.subscribe(topic, "ch", ready=1)
    stranger.publish(topic, b"x")
    message = holder.message()
    stranger.send(fin(message.id))
    assert stranger.frame() == failure("FIN", message, NOT_IN_FLIGHT)
    holder.finish(message)
    assert holder.before_barrier() == []


def test_answers_in_one_piece_are_carried_out_one_by_one(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    """In a run of them, what fails is told in its place, and the others are as if sent alone."""
    session = connect()
    session.publish(topic, *[b"%d" % n for n in range(5)])
    session.subscribe(topic, "ch", ready=5)
    a, b, c, d, e = session.messages(5)
    stranger = a._replace(id="0123456789abcdef")
    session.send(rdy(0))
    runs = (
        *(touch(each.id) for each in (a, b, stranger, c, c)),
        *(req(each.id, 0) for each in (b, a, a, stranger)),
        *(req(each.id, 3600000) for each in (c, c)),
        *(fin(each.id) for each in (c, d, d)),
        *(touch(each.id) for each in (d, a, e)),
    )
    session.send(b"".join(runs))
    assert session.frames(8) == [
        failure("TOUCH", stranger, NOT_IN_FLIGHT),
        failure("REQ", a, NOT_IN_FLIGHT),
        failure("REQ", stranger, NOT_IN_FLIGHT),
        failure("REQ", c, NOT_IN_FLIGHT),
        failure("FIN", c, NOT_IN_FLIGHT),
        failure("FIN", d, NOT_IN_FLIGHT),
        failure("TOUCH", d, NOT_IN_FLIGHT),
        failure("TOUCH", a, NOT_IN_FLIGHT),
    ]
    counts = {"depth": 2, "in_flight_count": 1, "deferred_count": 1, "requeue_count": 3}
    stats = await_channel(nsqd, topic, "ch", **counts)
    assert [client["finish_count"] for client in stats["clients"]] == [1]
    session.send(rdy(5))
    assert session.messages(2) == [b._replace(attempts=2), a._replace(attempts=2)]
    assert session.before_barrier() == []


@pytest.mark.parametrize("consumers", [1, 4])
def test_each_message_goes_to_one_consumer_of_a_channel(
    nsqd: Nsqd, connect: Connect, topic: str, consumers: int
) -> None:
    sessions = [connect() for _ in range(consumers)]
    for session in sessions:
        session.subscribe(topic, "ch", ready=200)
    sent = [b"%d" % n for n in range(200)]
    assert connect().request(mpub(topic, sent)) == OK
    stats = await_channel(nsqd, topic, "ch", in_flight_count=200, depth=0)
    received: list[Message] = []
    ports = {session.raw.socket.getsockname()[1]: session for session in sessions}
    for client in stats["clients"]:
        session = ports[int(client["remote_address"].rsplit(":", 1)[1])]
        messages = session.messages(client["in_flight_count"])
        session.finish(*messages)
        received += messages
    assert sorted(bodies(received)) == sorted(sent)
    await_channel(nsqd, topic, "ch", in_flight_count=0, depth=0, requeue_count=0)


def test_consumers_with_one_credit_hold_one_message_each(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    sessions = [connect() for _ in range(5)]
    for session in sessions:
        session.subscribe(topic, "ch", ready=1)
    assert connect().request(mpub(topic, [b"%d" % n for n in range(7)])) == OK
    held = [session.message() for session in sessions]
    assert len({message.id for message in held}) == 5
    stats = await_channel(nsqd, topic, "ch", in_flight_count=5, depth=2)
    assert [client["in_flight_count"] for client in stats["clients"]] == [1] * 5


def test_consumer_that_settles_nothing_does_not_hold_up_the_others(
    connect: Connect, topic: str
) -> None:
    stuck, worker = connect(), connect()
    stuck.subscribe(topic, "ch", ready=1)
    assert connect().request(mpub(topic, [b"x"] * 20)) == OK
    stuck.message()
    worker.subscribe(topic, "ch", ready=1)
    for _ in range(19):
        worker.finish(worker.message())


@pytest.mark.deviation
def test_a_batch_is_shared_among_consumers_with_credit(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    for _ in range(4):
        connect().subscribe(topic, "ch", ready=100)
    assert connect().request(mpub(topic, [b"x"] * 100)) == OK
    stats = await_channel(nsqd, topic, "ch", in_flight_count=100)
    assert min(client["in_flight_count"] for client in stats["clients"]) >= 10


def test_delivery_follows_publication_order(connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, *[b"%d" % n for n in range(100)])
    session.subscribe(topic, "ch", ready=1)
    for n in range(100):
        message = session.message()
        assert message.body == b"%d" % n
        session.finish(message)


def test_empty_forgets_what_is_in_flight(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session, producer = connect(), connect()
    producer.publish(topic, b"a", b"b", b"c", b"d")
    session.subscribe(topic, "ch", ready=3)
    first, second, third = session.messages(3)
    session.send(req(third.id, 3600000))
    session.message()
    await_channel(nsqd, topic, "ch", deferred_count=1, in_flight_count=3)
    act(nsqd, "/channel/empty", topic=topic, channel="ch")
    stats = await_channel(nsqd, topic, "ch", in_flight_count=0, deferred_count=0, depth=0)
    assert stats["clients"][0]["in_flight_count"] == 0
    session.send(fin(first.id), req(second.id, 0))
    assert session.frames(2) == [
        failure("FIN", first, NOT_IN_FLIGHT),
        failure("REQ", second, NOT_IN_FLIGHT),
    ]
    producer.publish(topic, b"e", b"f", b"g")
    assert bodies(session.messages(3)) == [b"e", b"f", b"g"]


@pytest.mark.parametrize("path", ["/channel/delete", "/topic/delete"])
def test_delete_closes_consumers_without_a_word(
    nsqd: Nsqd, connect: Connect, topic: str, path: str
) -> None:
    consumers = [connect(), connect()]
    for session in consumers:
        session.subscribe(topic, "ch", ready=1)
    params = {"channel": "ch"} if path == "/channel/delete" else {}
    act(nsqd, path, topic=topic, **params)
    assert [session.until_closed() for session in consumers] == [[], []]


@pytest.mark.deviation
@pytest.mark.parametrize("farewell", ["close", "half close", "CLS"])
def test_messages_of_a_lost_consumer_are_available_at_once(
    nsqd: Nsqd, connect: Connect, topic: str, farewell: str
) -> None:
    lost, heir = connect(), connect()
    lost.publish(topic, b"a", b"b", b"c")
    lost.subscribe(topic, "ch", ready=2)
    held = lost.messages(2)
    if farewell == "half close":
        lost.half_close()
        assert lost.until_closed() == []
    else:
        if farewell == "CLS":
            lost.request(b"CLS\n")
        lost.close()
    heir.subscribe(topic, "ch", ready=3)
    received = {message.id: message.attempts for message in heir.messages(3)}
    assert [received[message.id] for message in held] == [2, 2]
    assert sorted(received.values()) == [1, 2, 2]
    heir.send(fin(held[0].id))
    assert heir.before_barrier() == []


@pytest.mark.deviation
@pytest.mark.parametrize(
    "fields",
    [{"output_buffer_timeout": -1}, {"output_buffer_timeout": 30000, "output_buffer_size": 65536}],
    ids=["no flush timer", "slow flush timer"],
)
def test_messages_are_flushed_at_once_whatever_the_buffering(
    connect: Connect, topic: str, fields: dict[str, object]
) -> None:
    session, producer = connect(), connect()
    session.subscribe(topic, "ch", ready=100, **fields)
    for _ in range(3):
        producer.publish(topic, b"x")
        session.message(timeout_s=5.0)


def test_unbuffered_output_needs_no_flush(connect: Connect, topic: str) -> None:
    session, producer = connect(), connect()
    session.subscribe(topic, "ch", ready=100, output_buffer_size=-1)
    for _ in range(3):
        producer.publish(topic, b"x")
        session.message(timeout_s=5.0)


def test_sampling_discards_for_good(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=2500, sample_rate=50)
    assert connect().request(mpub(topic, [b"x"] * 1000)) == OK
    await_channel(nsqd, topic, "ch", depth=0, message_count=1000)
    # 51 % of 1000 is expected, with a deviation of 16: nine of those either way.
    taken = nsqd.channel_stats(topic, "ch")["in_flight_count"]
    assert 360 < taken < 660
    session.finish(*session.messages(taken))
    stats = await_channel(nsqd, topic, "ch", depth=0, in_flight_count=0, requeue_count=0)
    assert stats["clients"][0]["finish_count"] == taken
    assert session.before_barrier() == []
