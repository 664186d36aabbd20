"""`pumpline doctor` on real daemons: exit codes, JSON, and what it can see of each check."""

from pathlib import Path

import pytest

from pumpline.testing import LocalNsqd
from tests.kit.daemons import wait_until
from tests.kit.ports import HeldPort
from tests.kit.tools.verbs import Fleet, Pumpline

NO_DISK = "--skip=disk"  # the machine that runs the tests may have a full one


def test_all_is_well(fleet: Fleet, pumpline: Pumpline) -> None:
    said = pumpline("doctor", NO_DISK)
    answer = said.json()
    assert (said.code, answer["status"], answer["findings"]) == (0, "ok", [])
    assert (answer["nodes"], answer["nsqlookupds"], len(answer["checks"])) == (2, 1, 11)
    said = pumpline("doctor", NO_DISK, "--table")
    assert "OK        answers\n" in said.out
    assert "skipped   disk\n" in said.out
    assert said.out.endswith("\n2 nsqds and 1 nsqlookupd looked at: all well\n")


def test_a_warning(nsqd: LocalNsqd, pumpline: Pumpline, tmp_path: Path) -> None:
    nsqd.publish("orders", b"1")
    nsqd.post("/channel/create?topic=orders&channel=billing")
    tokens = tmp_path / "tokens"
    tokens.write_text("an-access-token-for-all\n")
    tokens.chmod(0o644)
    said = pumpline("doctor", NO_DISK, f"--token-file={tokens}")
    answer = said.json()
    assert (said.code, answer["status"]) == (1, "warning")
    assert [(each["check"], each["subject"]) for each in answer["findings"]] == [
        ("consumers", "orders/billing"),
        ("token-file", str(tokens)),
    ]
    said = pumpline("doctor", NO_DISK, "--skip=consumers")
    assert said.code == 0


def test_what_is_critical(fleet: Fleet, pumpline: Pumpline) -> None:
    closed = HeldPort()
    with LocalNsqd() as unknown, LocalNsqd("--broadcast-address=no.such.host.invalid") as lost:
        said = pumpline(
            "doctor",
            NO_DISK,
            f"--lookupd={fleet.lookupd.http_address}",
            f"--nsqd={unknown.http_address}",
            f"--nsqd={lost.http_address}",
            f"--nsqd=127.0.0.1:{closed.number}",
        )
        answer = said.json()
        seen = {(each["level"], each["check"], each["subject"]) for each in answer["findings"]}
        assert (said.code, answer["status"]) == (2, "critical")
        assert seen >= {
            ("critical", "answers", f"127.0.0.1:{closed.number}"),
            ("critical", "discovery", unknown.http_address),
            ("critical", "broadcast", lost.http_address),
        }


def test_a_node_that_lost_its_nsqlookupd(fleet: Fleet, pumpline: Pumpline) -> None:
    fleet.lookupd.stop()
    given = ["doctor", NO_DISK, f"--nsqd={fleet.one.http_address}"]
    wait_until(lambda: pumpline(*given).code == 1)
    (finding,) = pumpline(*given).json()["findings"]
    assert (finding["check"], finding["subject"]) == ("discovery", fleet.one.http_address)


def test_nsqds_with_access_tokens_tell_the_rest(pumpline: Pumpline, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("an-access-token-for-all\n")
    tokens.chmod(0o600)
    with LocalNsqd(f"--http-token-file={tokens}") as nsqd:
        given = ["doctor", NO_DISK, "--skip=consumers", f"--nsqd={nsqd.http_address}"]
        token = f"--token-file={tokens}"
        assert pumpline("pub", "orders", "x", given[-1], token).code == 0
        assert pumpline(*given).code == 0
        assert pumpline(*given, token).code == 0


def test_an_unknown_check(pumpline: Pumpline) -> None:
    said = pumpline("doctor", "--skip=weather")
    assert (said.code, "--skip is one of answers, health" in said.err) == (2, True)


@pytest.mark.parametrize("flag", ["--json", "--table"])
def test_nobody_answers(pumpline: Pumpline, flag: str) -> None:
    said = pumpline("doctor", flag, f"--nsqd=127.0.0.1:{HeldPort().number}")
    assert said.code == 2
