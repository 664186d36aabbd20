"""With --sync-every=1 an OK is good for a loss of power, not only for a kill.

Also what an fsync that fails means: the publisher is told, and what it sent never was.
"""

import json
import random
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.conftest import NewNsqd
from tests.kit.crash import recording_nsqd
from tests.kit.crash.killable_nsqd import (
    KillableNsqd,
    await_checkpoint,
    create_channel,
    drain,
    drain_all,
    refusal,
    until_barrier,
)
from tests.kit.crash.ledger import Ledger
from tests.kit.crash.load import Load
from tests.kit.crash.power import Power
from tests.kit.crash.repeats import Repeater, check_once
from tests.kit.daemons import COMMAND_VARIABLE, ErrorFrame, wait_until

SEEDS = (1,)
LARGE = bytes(10_000)
GROUP_COMMIT = "--sync-every=1"
SYNC_S = 0.02
CHANNELS = (("t", "a"), ("t", "b"), ("u", "a"))
TOPICS = ("t", "u", "no-channel-yet")
EIO_TEXT = "input/output error"
EROFS_TEXT = "read-only file system"


class Bench:
    """A daemon under record, with its power switch, and switches that keep fsyncs from ending."""

    def __init__(
        self,
        nsqd: KillableNsqd,
        power: Power,
        *,
        fault_path: Path,
        cut_fault_path: Path,
        wait_path: Path,
    ) -> None:
        self.nsqd = nsqd
        self.power = power
        self._fault_path = fault_path
        self._cut_fault_path = cut_fault_path
        self._wait_path = wait_path

    def hold_fsync(self) -> None:
        self._wait_path.touch()

    def release_fsync(self) -> None:
        self._wait_path.unlink()

    def break_fsync(self) -> None:
        self._fault_path.touch()

    def mend_fsync(self) -> None:
        self._fault_path.unlink()

    def break_ftruncate(self) -> None:
        self._cut_fault_path.touch()

    def mend_ftruncate(self) -> None:
        self._cut_fault_path.unlink()


@pytest.fixture
def bench(
    new_nsqd: NewNsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Bench]:
    runner = [sys.executable, recording_nsqd.__file__]
    monkeypatch.setenv(COMMAND_VARIABLE, shlex.join(runner))
    record_path, fault_path, wait_path = (tmp_path / name for name in ("synced", "fault", "wait"))
    monkeypatch.setenv(recording_nsqd.RECORD_VARIABLE, str(record_path))
    monkeypatch.setenv(recording_nsqd.FAULT_VARIABLE, str(fault_path))
    monkeypatch.setenv(recording_nsqd.WAIT_VARIABLE, str(wait_path))
    cut_fault_path = tmp_path / "cut-fault"
    monkeypatch.setenv(recording_nsqd.CUT_FAULT_VARIABLE, str(cut_fault_path))

    def make(*flags: str, sync_s: float = 0.0) -> Bench:
        monkeypatch.setenv(recording_nsqd.DELAY_VARIABLE, str(sync_s))
        nsqd = new_nsqd(*flags).start()
        power = Power(nsqd, record_path)
        return Bench(
            nsqd,
            power,
            fault_path=fault_path,
            cut_fault_path=cut_fault_path,
            wait_path=wait_path,
        )

    return make


def test_without_group_commit_a_loss_of_power_costs_what_was_not_synced(
    bench: Callable[..., Bench],
) -> None:
    """Checks the power switch itself: it must be able to lose something."""
    run = bench("--sync-every=1000000", "--sync-timeout=1h")
    create_channel(run.nsqd, "t", "c")
    with run.nsqd.connect() as client:
        client.mpub("t", [b"1", b"2", b"3"])
    run.power.cut(cursors="kept")
    assert run.power.bytes_lost > 0
    run.nsqd.again()
    assert drain(run.nsqd, "t", "c", 0) == []


def test_what_is_not_synced_yet_is_seen_by_nobody(bench: Callable[..., Bench]) -> None:
    run = bench(GROUP_COMMIT)
    nsqd = run.nsqd
    create_channel(nsqd, "t", "c")
    with nsqd.connect() as producer, nsqd.connect() as consumer:
        producer.publish("t", b"first")
        consumer.sub("t", "c")
        consumer.rdy(5)
        assert consumer.read_message().body == b"first"
        run.hold_fsync()
        producer.send_command("PUB t", b"second")
        wait_until(lambda: nsqd.in_wal(b"second"))
        assert until_barrier(consumer) == []
        assert json.loads(nsqd.http("GET", "/log/offsets?topic=t")[1])["end"] == 1
        assert b"second" not in nsqd.http("GET", "/log/raw?topic=t&from=0&to=9")[1]
        assert len(json.loads(nsqd.http("GET", "/log/peek?topic=t")[1])["messages"]) == 1
        run.release_fsync()
        assert producer.read_response() == b"OK"
        assert consumer.read_message().body == b"second"
        assert b"second" in nsqd.http("GET", "/log/raw?topic=t&from=0&to=9")[1]


def test_holds_survive_each_change_of_them(bench: Callable[..., Bench]) -> None:
    run = bench(GROUP_COMMIT)
    with run.nsqd.connect() as client:
        client.mpub("t", [b"1", b"2", b"3"])
    for path, offset in (("/hold/create", 1), ("/hold/commit", 2)):
        run.nsqd.act(path, topic="t", hold="h", offset=str(offset))
        run.power.cut(cursors="kept")
        run.nsqd.again()
        (hold,) = json.loads(run.nsqd.http("GET", "/hold/list?topic=t")[1])["holds"]
        assert (hold["hold"], hold["offset"]) == ("h", offset)


@pytest.mark.parametrize("cursors", ["kept", "earlier", "empty"])
def test_first_message_of_a_new_topic_survives(bench: Callable[..., Bench], cursors: str) -> None:
    run = bench(GROUP_COMMIT)
    create_channel(run.nsqd, "t", "c")
    run.power.remember_cursors()
    with run.nsqd.connect() as client:
        client.publish("t", b"first")
        client.publish("fresh", b"first, without a channel")
    run.power.cut(cursors=cursors)
    run.nsqd.again()
    assert [message.body for message in drain(run.nsqd, "t", "c", 1)] == [b"first"]
    assert [message.body for message in drain(run.nsqd, "fresh", "c", 1)] == [
        b"first, without a channel"
    ]


def test_messages_after_a_loss_survive_the_next_one(bench: Callable[..., Bench]) -> None:
    """The log goes on in a new file after offsets that were given out and lost."""
    run = bench(GROUP_COMMIT)
    create_channel(run.nsqd, "t", "c")
    with run.nsqd.connect() as client:
        client.publish("t", b"synced")
    run.nsqd.kill()
    run.nsqd.flags = ["--sync-every=1000000", "--sync-timeout=1h"]
    run.nsqd.again()
    with run.nsqd.connect() as client:
        client.mpub("t", [b"lost"] * 10)
    drain(run.nsqd, "t", "c", 11)
    await_checkpoint(run.nsqd, "t", "c")
    run.power.cut(cursors="kept")
    assert run.power.bytes_lost > 0
    run.nsqd.flags = [GROUP_COMMIT]
    for number in range(3):
        run.nsqd.again()
        with run.nsqd.connect() as client:
            client.publish("t", b"%d" % number)
        run.power.cut(cursors="kept")
    run.nsqd.again()
    assert [message.body for message in drain(run.nsqd, "t", "c", 3)] == [b"0", b"1", b"2"]


def test_first_message_of_a_topic_known_only_by_name_survives(bench: Callable[..., Bench]) -> None:
    """nsqd.dat may name topics that have no directory yet, as when it is another nsqd's."""
    run = bench(GROUP_COMMIT)
    run.nsqd.stop()
    metadata = '{"topics":[{"name":"t","paused":false,"channels":null}],"version":"1.3.0"}'
    (run.nsqd.data_path / "nsqd.dat").write_text(metadata)
    run.nsqd.again()
    with run.nsqd.connect() as client:
        client.publish("t", b"first")
    run.power.cut(cursors="kept")
    run.nsqd.again()
    assert [message.body for message in drain(run.nsqd, "t", "c", 1)] == [b"first"]


@pytest.mark.slow
@pytest.mark.parametrize("cursors", ["kept", "earlier", "empty"])
def test_losses_of_power_under_load_lose_nothing_acknowledged(
    bench: Callable[..., Bench], cursors: str, seed: int
) -> None:
    rng = random.Random(seed)
    run = bench(GROUP_COMMIT, "--max-bytes-per-file=60000", sync_s=SYNC_S)
    ledger = Ledger(checks_deliveries=cursors == "kept")
    for channel in CHANNELS:
        create_channel(run.nsqd, *channel)
        ledger.open_books(*channel)
    for _ in range(3):
        load = Load(run.nsqd, ledger, seed)
        for channel in CHANNELS:
            load.consume(*channel)
        for verb in ("mpub", "pub", "dpub"):
            load.publish(verb, TOPICS)
        ledger.await_acknowledged(ledger.acknowledged_count + 200, timeout_s=60)
        run.power.remember_cursors()
        ledger.await_acknowledged(ledger.acknowledged_count + rng.randrange(1, 2000), timeout_s=60)
        run.power.await_unsynced()
        killed_s = time.time()
        run.power.cut(cursors=cursors)
        load.join()
        ledger.killed(killed_s)
        run.nsqd.again()
    ledger.open_books("no-channel-yet", "first", since_s=0)
    load = Load(run.nsqd, ledger, seed)
    for channel in (*CHANNELS, ("no-channel-yet", "first")):
        load.consume(*channel, finish_all=True)
    ledger.await_nothing_outstanding(20)
    load.stop()
    print(ledger.summary(), f"{run.power.bytes_lost} bytes thrown away")
    assert not ledger.faults, "\n".join(ledger.faults[:50])
    lost = {key: (len(bodies), bodies[:5]) for key, bodies in ledger.outstanding().items()}
    assert lost == {}
    assert run.power.bytes_lost > 0, "no cut met unsynced bytes: the test tested nothing"


@pytest.mark.slow
def test_losses_of_power_while_everything_is_repeated(
    bench: Callable[..., Bench], seed: int
) -> None:
    """A token is on the disk exactly if its messages are."""
    rng = random.Random(seed)
    run = bench(GROUP_COMMIT, "--max-bytes-per-file=5000", sync_s=SYNC_S / 10)
    repeaters = [Repeater(f"p{number}", "t", seed) for number in range(3)]
    for _ in range(4):
        answered = sum(repeater.answered for repeater in repeaters)
        for repeater in repeaters:
            repeater.start(run.nsqd)
        wait_until(lambda: sum(each.answered for each in repeaters) > answered + 20)  # noqa: B023
        time.sleep(rng.uniform(0.0, 0.2))  # the moment of the cut is to be any
        run.power.cut(cursors="kept")
        for repeater in repeaters:
            repeater.join()
        run.nsqd.again()
    for repeater in repeaters:
        repeater.start(run.nsqd)
        repeater.stop()
    check_once(run.nsqd, "t", repeaters)
    assert run.power.bytes_lost > 0, "no cut met unsynced bytes: the test tested nothing"


def test_a_client_that_does_not_wait_for_its_fsync_is_not_read_from(
    bench: Callable[..., Bench],
) -> None:
    """What a client can make nsqd hold in memory is bounded."""
    run = bench(GROUP_COMMIT)
    command = b"PUB t\n" + (10_000).to_bytes(4) + bytes(10_000)
    commands = memoryview(command * 10_000)  # 100 MB
    with run.nsqd.connect() as client:
        client.publish("t", b"first")
        run.hold_fsync()
        client.socket.settimeout(1.0)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < len(commands):
                sent += client.socket.send(commands[sent : sent + 65_536])
        assert sent < 40_000_000  # socket buffers included
        run.release_fsync()
        client.send(commands[sent : -(-sent // len(command)) * len(command)])  # the last is whole
        count = -(-sent // len(command))
        assert [client.read_response() for _ in range(count)] == [b"OK"] * count


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("PUB t", f"E_PUB_FAILED PUB failed {EIO_TEXT}"),
        ("DPUB t 1", f"E_DPUB_FAILED DPUB failed {EIO_TEXT}"),
    ],
)
def test_publish_whose_fsync_fails_is_refused_and_never_delivered(
    bench: Callable[..., Bench], line: str, answer: str
) -> None:
    run = bench(GROUP_COMMIT)
    create_channel(run.nsqd, "t", "c")
    with run.nsqd.connect() as client:
        client.publish("t", b"before")
    run.break_fsync()
    with run.nsqd.connect() as client:
        assert refusal(client, line, b"refused") == answer
    run.mend_fsync()
    with run.nsqd.connect() as client:
        client.publish("t", b"after")
    assert [message.body for message in drain(run.nsqd, "t", "c", 2)] == [b"before", b"after"]


def test_publish_that_can_be_neither_synced_nor_cut_off_is_never_delivered(
    bench: Callable[..., Bench],
) -> None:
    """As on a file system that has become read-only for a while. As soon as fsyncs succeed again,
    the next file of the write-ahead log is written to."""
    run = bench(GROUP_COMMIT, "--sync-timeout=10ms")
    nsqd = run.nsqd
    for topic in ("t", "other"):
        create_channel(nsqd, topic, "c")
        with nsqd.connect() as client:
            client.publish(topic, b"before")
    run.break_fsync()
    run.break_ftruncate()
    for topic in ("t", "other"):
        with nsqd.connect() as client:
            answer = refusal(client, f"PUB {topic}", b"refused")
            assert answer == f"E_PUB_FAILED PUB failed {EIO_TEXT}"
    assert nsqd.http("GET", "/ping")[0] == 500
    run.mend_fsync()
    wait_until(lambda: nsqd.http("POST", "/pub?topic=t", b"after") == (200, b"OK"))
    wait_until(lambda: nsqd.http("GET", "/ping")[0] == 200)
    wait_until(lambda: not nsqd.in_wal(b"refused"))
    nsqd.kill()
    nsqd.again()
    assert [message.body for message in drain(nsqd, "t", "c", 2)] == [b"before", b"after"]
    assert [message.body for message in drain(nsqd, "other", "c", 1)] == [b"before"]


def test_consumer_that_lags_behind_gets_what_replaced_a_refused_publish(
    bench: Callable[..., Bench],
) -> None:
    """It may have read the batch with the refused message before that was taken back."""
    run = bench(GROUP_COMMIT, "--mem-queue-size=0")
    create_channel(run.nsqd, "t", "c")
    with run.nsqd.connect() as producer, run.nsqd.connect() as consumer:
        producer.mpub("t", [b"before %d" % number for number in range(3)])
        consumer.sub("t", "c")
        run.hold_fsync()
        run.break_fsync()
        producer.send_command("PUB t", b"refused")
        wait_until(lambda: run.nsqd.in_wal(b"refused"))
        consumer.rdy(1)  # reads the batch that the unsynced message is in
        assert consumer.read_message().body == b"before 0"
        run.release_fsync()
        with pytest.raises(ErrorFrame, match="E_PUB_FAILED"):
            producer.read_response()
        run.mend_fsync()
    with run.nsqd.connect() as producer, run.nsqd.connect() as consumer:
        producer.publish("t", b"accepted")
        consumer.sub("t", "c")
        consumer.rdy(10)
        received = [consumer.read_message().body for _ in range(4)]
    assert sorted(received) == [b"accepted", b"before 0", b"before 1", b"before 2"]


def test_fsync_that_failed_is_tried_again_without_a_further_publish(
    bench: Callable[..., Bench],
) -> None:
    run = bench("--sync-every=1000000", "--sync-timeout=100ms")
    create_channel(run.nsqd, "t", "c")
    run.break_fsync()
    with run.nsqd.connect() as client:
        client.publish("t", b"x")
    wait_until(lambda: run.nsqd.http("GET", "/ping")[0] == 500)
    run.mend_fsync()
    wait_until(lambda: run.nsqd.http("GET", "/ping")[0] == 200)
    run.power.await_synced(run.nsqd.segments("t")[0])


def test_what_a_stop_could_not_sync_is_synced_by_the_next_start(
    bench: Callable[..., Bench],
) -> None:
    run = bench("--sync-every=1000000", "--sync-timeout=100ms")
    create_channel(run.nsqd, "t", "c")
    run.break_fsync()
    with run.nsqd.connect() as client:
        client.publish("t", b"x")
    run.nsqd.stop()
    run.mend_fsync()
    run.nsqd.again()
    run.power.await_synced(run.nsqd.segments("t")[0])
    run.power.cut(cursors="kept")
    run.nsqd.again()
    assert [message.body for message in drain(run.nsqd, "t", "c", 1)] == [b"x"]


def test_a_dead_letter_is_on_the_disk_before_its_channel_has_finished_with_it(
    bench: Callable[..., Bench],
) -> None:
    run = bench("--sync-every=1000000", "--sync-timeout=1h")
    nsqd = run.nsqd
    create_channel(nsqd, "t", "c")
    assert nsqd.http("POST", "/topic/settings?topic=t", b'{"max_attempts":1}')[0] == 200
    with nsqd.connect() as client:
        client.publish("t", b"x")
    nsqd.restart()  # which syncs it
    with nsqd.connect() as client:
        client.sub("t", "c")
        client.rdy(1)
        client.req(client.read_message().id)
        shown = "/topic/settings?topic=t"
        wait_until(lambda: b'"dead_letters":1' in nsqd.http("GET", shown)[1])
    await_checkpoint(nsqd, "t", "c")
    run.power.cut(cursors="kept")
    nsqd.again()
    letters = [json.loads(message.body)["body"] for message in drain_all(nsqd, "t.dlq", "c")]
    left = [message.body.decode() for message in drain_all(nsqd, "t", "c")]
    assert {*letters, *left} == {"x"}


def test_checkpoints_do_not_wait_for_fsyncs(bench: Callable[..., Bench]) -> None:
    """However many fsyncs are under way, and however long they take."""
    run = bench("--sync-timeout=10ms")
    nsqd = run.nsqd
    topics = [f"t{number}" for number in range(10)]
    for topic in topics:
        create_channel(nsqd, topic, "c")
    run.hold_fsync()
    with nsqd.connect() as client:
        for topic in topics:
            client.publish(topic, b"x")
    for topic in topics:
        assert len(drain_all(nsqd, topic, "c")) == 1
        await_checkpoint(nsqd, topic, "c")
    assert b"nsqd_checkpoint_age_seconds" in nsqd.http("GET", "/metrics")[1]
    nsqd.kill()
    run.release_fsync()
    nsqd.again()
    assert [drain_all(nsqd, topic, "c") for topic in topics] == [[] for _ in topics]


@pytest.mark.parametrize("losses", [1, 2, 3])
def test_ids_are_not_used_again_after_a_loss_of_power(
    bench: Callable[..., Bench], losses: int
) -> None:
    """Consumers remember ids. With default flags, messages are delivered before they are synced,
    and so lost after that."""
    run = bench("--sync-every=1000000", "--sync-timeout=1h")
    nsqd = run.nsqd
    for topic in ("t", "idle"):
        create_channel(nsqd, topic, "c")
        with nsqd.connect() as client:
            client.publish(topic, b"kept")
        assert len(drain_all(nsqd, topic, "c")) == 1
    nsqd.restart()
    run.power.remember_cursors()
    seen: set[str] = set()
    for number in range(losses):
        with nsqd.connect() as client:
            client.mpub("t", [b"%d" % number] * 10)
        fresh = {message.id for message in drain(nsqd, "t", "c", 10)}
        assert not fresh & seen
        seen |= fresh
        run.power.cut(cursors="earlier")
        nsqd.again()
    with nsqd.connect() as client:
        client.mpub("t", [b"new"] * 10)
    assert nsqd.depth("t", "c") == 10
    fresh = drain(nsqd, "t", "c", 10)
    assert [message.body for message in fresh] == [b"new"] * 10
    assert not {message.id for message in fresh} & seen
    # Without a message that needs it, nothing is left out.
    assert json.loads(nsqd.http("GET", "/log/offsets?topic=idle")[1])["end"] == 1


def test_a_kill_leaves_out_no_offsets(bench: Callable[..., Bench]) -> None:
    """The system still has what was not synced."""
    run = bench("--sync-every=1000000", "--sync-timeout=1h")
    for number in range(3):
        with run.nsqd.connect() as client:
            client.publish("t", b"x")
        offsets = json.loads(run.nsqd.http("GET", "/log/offsets?topic=t")[1])
        assert offsets["end"] == number + 1
        run.nsqd.kill()
        run.nsqd.again()
