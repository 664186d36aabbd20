"""A ticket calls everybody who waits for it, once."""

from pumpline.nsqd.queue.outcome import Ticket


def test_a_new_ticket_is_not_done() -> None:
    ticket = Ticket()
    assert (ticket.done, ticket.error) == (False, None)


def test_all_who_wait_are_called_in_order_with_the_outcome_known() -> None:
    ticket = Ticket()
    seen: list[tuple[str, bool, str | None]] = []
    ticket.wait(lambda: seen.append(("a", ticket.done, ticket.error)))
    ticket.wait(lambda: seen.append(("b", ticket.done, ticket.error)))
    ticket.settle("disk full")
    assert seen == [("a", True, "disk full"), ("b", True, "disk full")]


def test_a_ticket_without_anybody_waiting_can_be_settled() -> None:
    ticket = Ticket()
    ticket.settle(None)
    assert (ticket.done, ticket.error) == (True, None)


def test_nobody_is_called_twice() -> None:
    ticket = Ticket()
    calls: list[int] = []
    ticket.wait(lambda: calls.append(1))
    ticket.settle(None)
    ticket.settle("exiting")
    assert calls == [1]
