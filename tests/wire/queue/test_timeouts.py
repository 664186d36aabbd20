"""Leases and delays: messages that come again because time has passed.

Lower bounds are exact: nothing may come early. Upper bounds are loose, and only the tests marked
as deviations have any: the original is up to 5 s late on a channel younger than that.
"""

import time

import pytest

from tests.kit.daemons import Nsqd, wait_until
from tests.kit.wire.admin import act, await_channel
from tests.kit.wire.commands import dpub, fin, mpub, rdy, req, touch
from tests.kit.wire.session import FRAME_ERROR, OK, Connect, Message, Session

LEASE_S = 0.5
LEASE_CEILING_S = 1.0
DELAY_CEILING_S = 0.3
LATE_S = 20.0  # of a busy machine; the original may take 5

NSQD_FLAGS = ("--msg-timeout=500ms", "--max-msg-timeout=1s", "--max-req-timeout=300ms")


def take(session: Session, topic: str, *, msg_timeout: int = 0) -> tuple[float, Message]:
    """Publishes and takes one message; also the time before it can have been leased."""
    session.publish(topic, b"x")
    session.subscribe(topic, "ch", msg_timeout=msg_timeout)
    before_s = time.monotonic()
    session.send(rdy(1))
    return before_s, session.message()


def test_unsettled_message_times_out_and_comes_again(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = connect()
    before_s, message = take(session, topic)
    assert session.message() == message._replace(attempts=2)
    assert time.monotonic() - before_s >= LEASE_S
    stats = nsqd.channel_stats(topic, "ch")
    assert (stats["requeue_count"], stats["message_count"]) == (0, 1)
    assert stats["timeout_count"] >= 1
    assert stats["in_flight_count"] + stats["depth"] == 1


def test_every_message_of_a_batch_times_out(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=100)
    assert connect().request(mpub(topic, [b"%d" % n for n in range(100)])) == OK
    first = session.messages(100)
    session.send(rdy(0))
    await_channel(nsqd, topic, "ch", timeout_count=100, depth=100, in_flight_count=0)
    session.send(rdy(100))
    second = session.messages(100)
    assert {m.id for m in second} == {m.id for m in first}
    assert {m.attempts for m in second} == {2}


def test_settling_after_the_timeout_fails_softly(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    late, heir = connect(), connect()
    _, message = take(late, topic)
    late.send(rdy(0))
    await_channel(nsqd, topic, "ch", timeout_count=1, depth=1, in_flight_count=0)
    late.send(fin(message.id), req(message.id, 0), touch(message.id))
    for verb in ("FIN", "REQ", "TOUCH"):
        text = f"E_{verb}_FAILED {verb} {message.id} failed ID not in flight"
        assert late.frame() == (FRAME_ERROR, text.encode())
    heir.subscribe(topic, "ch", ready=1, msg_timeout=1000)
    assert heir.message().attempts == 2
    late.send(fin(message.id))
    text = f"E_FIN_FAILED FIN {message.id} failed client does not own message"
    assert late.frame() == (FRAME_ERROR, text.encode())
    stats = nsqd.channel_stats(topic, "ch")
    assert [client["finish_count"] for client in stats["clients"]] == [0, 0]
    assert stats["requeue_count"] == 0


def test_touch_renews_the_lease(connect: Connect, topic: str) -> None:
    session = connect()
    _, message = take(session, topic)
    # A stall of this machine may let the lease run out before TOUCH: then the next one counts.
    while True:
        time.sleep(LEASE_S / 2)
        touched_s = time.monotonic()
        session.send(touch(message.id))
        if not session.before_barrier():
            break
    again = session.message()
    assert again.id == message.id
    assert time.monotonic() - touched_s >= LEASE_S


def test_touch_cannot_hold_a_message_for_ever(connect: Connect, topic: str) -> None:
    session = connect()
    before_s, message = take(session, topic)
    redelivered: list[Message] = []
    while not redelivered:
        session.send(touch(message.id))
        try:
            redelivered.append(session.message(timeout_s=LEASE_S / 5))
        except TimeoutError:
            assert time.monotonic() - before_s < LATE_S, "still held"
    assert redelivered[0] == message._replace(attempts=2)


@pytest.mark.deviation
def test_touch_holds_a_message_up_to_the_ceiling(connect: Connect, topic: str) -> None:
    session = connect()
    before_s, message = take(session, topic, msg_timeout=1000)
    time.sleep(LEASE_CEILING_S / 2)
    session.send(touch(message.id))
    assert session.message().attempts == 2
    elapsed_s = time.monotonic() - before_s
    assert LEASE_CEILING_S <= elapsed_s < LEASE_CEILING_S / 2 + 1.0 + LATE_S


def test_connection_may_ask_for_a_longer_lease(connect: Connect, topic: str) -> None:
    session = connect()
    before_s, message = take(session, topic, msg_timeout=1000)
    assert session.message() == message._replace(attempts=2)
    assert time.monotonic() - before_s >= 1.0


@pytest.mark.deviation
def test_timeout_is_on_time_on_a_new_channel(connect: Connect, topic: str) -> None:
    session = connect()
    before_s, _ = take(session, topic)
    session.message()
    assert LEASE_S <= time.monotonic() - before_s < LEASE_S + LATE_S


@pytest.mark.parametrize("delay", ["301", "3600000", "9999999999"])
def test_req_delay_is_cut_to_the_limit(
    nsqd: Nsqd, connect: Connect, topic: str, delay: str
) -> None:
    session = connect()
    _, message = take(session, topic)
    before_s = time.monotonic()
    session.send(f"REQ {message.id} {delay}\n".encode())
    assert session.message() == message._replace(attempts=2)
    assert time.monotonic() - before_s >= DELAY_CEILING_S
    session.finish(message)
    await_channel(nsqd, topic, "ch", requeue_count=1, deferred_count=0, in_flight_count=0)


def test_req_delay_that_wraps_is_taken(connect: Connect, topic: str) -> None:
    session = connect()
    _, message = take(session, topic)
    session.send(f"REQ {message.id} 18446744073709551615\n".encode())
    assert session.message() == message._replace(attempts=2)


@pytest.mark.deviation
def test_req_delays_come_due_in_order(connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, b"0", b"1", b"2")
    session.subscribe(topic, "ch", ready=3)
    messages = session.messages(3)
    before_s = time.monotonic()
    session.send(
        *[req(m.id, delay_ms) for m, delay_ms in zip(messages, (250, 50, 150), strict=True)]
    )
    assert [session.message().body for _ in range(3)] == [b"1", b"2", b"0"]
    assert 0.25 <= time.monotonic() - before_s < 0.25 + LATE_S


def test_messages_of_a_lost_consumer_come_again_in_the_end(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    lost, heir = connect(), connect()
    _, message = take(lost, topic)
    lost.close()
    heir.subscribe(topic, "ch", ready=1)
    assert heir.message() == message._replace(attempts=2)


def test_leases_run_out_while_the_channel_is_paused(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = connect()
    _, message = take(session, topic)
    act(nsqd, "/channel/pause", topic=topic, channel="ch")
    await_channel(nsqd, topic, "ch", timeout_count=1, in_flight_count=0, depth=1)
    assert session.before_barrier() == []
    act(nsqd, "/channel/unpause", topic=topic, channel="ch")
    assert session.message() == message._replace(attempts=2)


def test_delays_run_out_while_the_channel_is_paused(
    nsqd: Nsqd, connect: Connect, topic: str
) -> None:
    session = connect()
    session.subscribe(topic, "ch", ready=1)
    act(nsqd, "/channel/pause", topic=topic, channel="ch")
    assert connect().request(dpub(topic, 100, b"x")) == OK
    await_channel(nsqd, topic, "ch", deferred_count=0, depth=1, message_count=1)
    assert session.before_barrier() == []
    act(nsqd, "/channel/unpause", topic=topic, channel="ch")
    assert session.message().attempts == 1


def test_settled_messages_do_not_time_out(nsqd: Nsqd, connect: Connect, topic: str) -> None:
    session = connect()
    session.publish(topic, b"kept", b"settled")
    session.subscribe(topic, "ch", ready=2)
    kept, settled = session.messages(2)
    session.finish(settled)
    # The lease of the settled one began no later, so it would have run out by now as well.
    wait_until(lambda: nsqd.channel_stats(topic, "ch")["timeout_count"] >= 1)
    again = session.message()
    assert again == kept._replace(attempts=2)
    session.finish(again)
    await_channel(nsqd, topic, "ch", in_flight_count=0, depth=0)
    assert session.before_barrier() == []
