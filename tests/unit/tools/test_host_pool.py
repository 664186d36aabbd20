"""Which destination is next: in turn, without those that failed, or the fastest."""

from pumpline.tools.host_pool import RETRY_FIRST_S, HostPool


class Clock:
    now = 100.0


def pool(mode: str, *, chance: float = 1.0) -> tuple[HostPool, Clock]:
    clock = Clock()
    return HostPool(["a", "b", "c"], mode, now=lambda: clock.now, random=lambda: chance), clock


def test_round_robin_begins_with_the_second_and_leaves_nobody_out() -> None:
    """NSQ counts before it chooses."""
    hosts, _ = pool("round-robin")
    second = hosts.next()
    hosts.failed(second)
    assert second.address == "b"
    assert [hosts.next().address for _ in range(5)] == ["c", "a", "b", "c", "a"]


def test_a_host_that_failed_is_left_out_for_longer_each_time() -> None:
    hosts, clock = pool("hostpool")
    first = hosts.next()
    for retry_s in (RETRY_FIRST_S, 2 * RETRY_FIRST_S):
        hosts.failed(first)
        assert {hosts.next().address for _ in range(6)} == {"b", "c"}
        clock.now += retry_s - 1
        assert {hosts.next().address for _ in range(6)} == {"b", "c"}
        clock.now += 1
        assert {hosts.next().address for _ in range(6)} == {"a", "b", "c"}
    hosts.succeeded(first, 0.1)
    hosts.failed(first)
    clock.now += RETRY_FIRST_S
    assert {hosts.next().address for _ in range(6)} == {"a", "b", "c"}


def test_if_all_have_failed_all_are_tried() -> None:
    hosts, _ = pool("hostpool")
    for _ in range(3):
        hosts.failed(hosts.next())
    assert {hosts.next().address for _ in range(3)} == {"a", "b", "c"}


def test_the_fastest_comes_most_of_the_time() -> None:
    hosts, _ = pool("epsilon-greedy", chance=0.0)  # at random, that is: in turn
    for elapsed_s in (0.3, 0.1, 0.2):
        hosts.succeeded(hosts.next(), elapsed_s)
    hosts._random = lambda: 0.9
    assert {hosts.next().address for _ in range(5)} == {"b"}
