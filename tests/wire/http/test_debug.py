"""/debug: what can be seen of the running process."""

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.wire.web import NSQ_HEADER, TEXT_TYPE, ask


def test_the_index_lists_the_pages(nsqd: Nsqd) -> None:
    answer = ask(nsqd, "GET", "/debug/pprof/")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers[NSQ_HEADER] is None
    assert b"cmdline</a>" in answer.body


def test_command_line(nsqd: Nsqd) -> None:
    answer = ask(nsqd, "GET", "/debug/pprof/cmdline")
    assert answer.headers["Content-Type"] == TEXT_TYPE
    assert f"--data-path={nsqd.data_path}" in answer.body.decode().split("\0")


@pytest.mark.deviation  # the original does it, and answers 500
def test_memory_is_given_back(nsqd: Nsqd) -> None:
    answer = ask(nsqd, "POST", "/debug/freememory")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.deviation
def test_there_is_no_block_profile_to_set_a_rate_of(nsqd: Nsqd) -> None:
    assert ask(nsqd, "PUT", "/debug/setblockrate?rate=0").status == 404


@pytest.mark.deviation
@pytest.mark.parametrize(
    "page", ["profile", "heap", "goroutine", "symbol", "block", "threadcreate"]
)
def test_profiles_are_gos_alone(nsqd: Nsqd, page: str) -> None:
    assert ask(nsqd, "GET", f"/debug/pprof/{page}").status == 404
