"""`pumpline kick`: a consumer is disconnected, and the others get its messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pumpline.testing import LocalNsqd
from tests.kit.daemons import RawClient
from tests.kit.tools.verbs import Fleet, Pumpline


@contextmanager
def consumer(nsqd: LocalNsqd, client_id: str, *, rdy: int = 10) -> Iterator[RawClient]:
    port = int(nsqd.tcp_address.rpartition(":")[2])
    with RawClient(port) as client:
        client.identify({"client_id": client_id, "hostname": f"host-{client_id}"})
        client.sub("orders", "billing")
        client.rdy(rdy)
        yield client


def address(client: RawClient) -> str:
    return "{}:{}".format(*client.socket.getsockname())


def is_closed(client: RawClient) -> bool:
    try:
        client.read_frame()
    except (EOFError, ConnectionError):
        return True
    return False


def test_the_one_at_an_address_goes_and_another_gets_its_messages(
    nsqd: LocalNsqd, pumpline: Pumpline
) -> None:
    with consumer(nsqd, "a") as hangs, consumer(nsqd, "b", rdy=0) as works:
        nsqd.publish("orders", b"one")
        assert hangs.read_message().body == b"one"
        said = pumpline("kick", "orders", "billing", address(hangs), "--yes")
        assert said.code == 0
        (row,) = said.json()
        assert row == {
            "node": nsqd.http_address,
            "client": address(hangs),
            "client_id": "a",
            "in_flight": 1,
            "ok": True,
            "result": "disconnected",
        }
        assert is_closed(hangs)
        works.rdy(1)
        assert works.read_message().body == b"one"


def test_consumers_are_known_by_client_id_and_host_on_all_nodes(
    fleet: Fleet, pumpline: Pumpline
) -> None:
    with (
        consumer(fleet.one, "a") as one,
        consumer(fleet.two, "a") as two,
        consumer(fleet.one, "b") as other,
    ):
        said = pumpline("kick", "orders", "billing", "a", "--yes", "--table")
        assert said.code == 0
        assert len(said.words) == 2
        assert is_closed(one) and is_closed(two)
        assert pumpline("kick", "orders", "billing", "host-b", "--yes").code == 0
        assert is_closed(other)


def test_all_consumers_of_a_channel_can_go(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    with consumer(nsqd, "a") as one, consumer(nsqd, "b") as two:
        said = pumpline("kick", "orders", "billing", "--all", "--yes")
        assert [row["client_id"] for row in said.json()] == ["a", "b"]
        assert is_closed(one) and is_closed(two)


def test_nothing_is_done_without_a_yes(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    with consumer(nsqd, "a") as client:
        said = pumpline("kick", "orders", "billing", "a")
        assert said.code == 1
        assert f"Disconnect 1 consumer of channel billing of topic orders: {address(client)}" in (
            said.err
        )
        assert nsqd.stats("orders", "billing")["client_count"] == 1


def test_what_is_not_there_is_said(nsqd: LocalNsqd, pumpline: Pumpline) -> None:
    with consumer(nsqd, "a"):
        said = pumpline("kick", "orders", "billing", "nobody", "--yes")
        assert (said.code, said.out) == (1, "")
        assert "no consumer of channel billing of topic orders is nobody" in said.err
        assert pumpline("kick", "orders", "nothing", "a", "--yes").err == (
            "pumpline kick: topic orders has no channel nothing\n"
        )
        assert pumpline("kick", "orders", "billing").code == 2
        assert pumpline("kick", "orders", "billing", "a", "--all").code == 2


def test_a_token_that_may_only_read_may_not(tmp_path: Path, pumpline: Pumpline) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("all-of-it-0123456789\nlook-only-0123456789 read\n")
    tokens.chmod(0o600)
    reading = tmp_path / "reading"
    reading.write_text("look-only-0123456789\n")
    reading.chmod(0o600)
    with LocalNsqd(f"--http-token-file={tokens}") as nsqd, consumer(nsqd, "a"):
        said = pumpline(
            "kick", "orders", "billing", "a", "--yes",
            f"--nsqd={nsqd.http_address}", f"--token-file={reading}",
        )  # fmt: skip
        assert said.code == 1
        assert "403 FORBIDDEN" in said.err
