"""A completion calls everybody who waits for it, once."""

import pytest

from pumpline.log.completion import Completion, completed


def test_a_new_completion_is_not_done() -> None:
    completion = Completion()
    assert (completion.done, completion.succeeded, completion.error) == (False, False, None)


def test_all_who_wait_are_called_in_order_with_the_outcome_known() -> None:
    completion = Completion()
    seen: list[tuple[str, bool, str | None]] = []
    for name in ("a", "b", "c"):
        completion.when_done(
            lambda name=name: seen.append((name, completion.done, completion.error))
        )
    completion.complete("disk full")
    assert seen == [(name, True, "disk full") for name in ("a", "b", "c")]


def test_a_completion_without_anybody_waiting_can_complete() -> None:
    completion = Completion()
    completion.complete(None)
    assert (completion.done, completion.succeeded, completion.error) == (True, True, None)


def test_a_completion_completes_once() -> None:
    completion = Completion()
    calls: list[int] = []
    completion.when_done(lambda: calls.append(1))
    completion.complete(None)
    with pytest.raises(AssertionError):
        completion.complete("exiting")
    with pytest.raises(AssertionError):
        completion.when_done(lambda: calls.append(2))
    assert (calls, completion.error) == ([1], None)


def test_a_callback_that_fails_keeps_no_other_from_being_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    completion = Completion()
    calls: list[int] = []

    def fail() -> None:
        raise RuntimeError("so it goes")

    completion.when_done(fail)
    completion.when_done(lambda: calls.append(1))
    completion.complete(None)
    assert calls == [1]
    assert "a callback of a completion failed" in caplog.text


@pytest.mark.parametrize("error", [None, "exiting"])
def test_an_outcome_that_is_known(error: str | None) -> None:
    completion = completed(error)
    assert (completion.done, completion.succeeded) == (True, error is None)
    assert completion.error == error
