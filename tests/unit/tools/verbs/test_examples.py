"""Every example that the help of a verb shows runs as it stands."""

from importlib import import_module

import pytest

from pumpline.testing import LocalNsqd
from pumpline.tools.pumpline import COMMANDS, module_of
from tests.kit.daemons import wait_until
from tests.kit.tools.verbs import Fleet, Pumpline, examples_of, give_up, in_shell, lose_node

OWN_TESTS = {"bench", "import", "kick"}  # their examples need something that runs, or change it
VERBS = [
    name
    for name in COMMANDS
    if hasattr(import_module(module_of(name)), "VERB") and name not in OWN_TESTS
]


def prepare(nsqd: LocalNsqd) -> None:
    give_up(nsqd, "orders", b"one", b"two")
    nsqd.post("/channel/create?topic=orders&channel=billing")
    nsqd.post("/hold/create?topic=orders&hold=archive&to=beginning")


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_examples_run(fleet: Fleet, pumpline: Pumpline, verb: str) -> None:
    prepare(fleet.one)
    if verb == "forget-node":
        lose_node(fleet.lookupd, "10.0.0.7")
    wait_until(lambda: b"billing" in fleet.lookupd.get("/channels?topic=orders"))
    usage = pumpline(verb, "--help")
    assert usage.code == 0
    assert usage.out.startswith(f"pumpline {verb}: {import_module(module_of(verb)).VERB.summary}\n")
    for example in examples_of(usage.out):
        command = example.replace("127.0.0.1:4161", fleet.lookupd.http_address)
        if verb == "recover":
            command = command.replace("/var/lib/nsqd", str(fleet.one.data_path))
            command = command.replace("127.0.0.1:4151", fleet.one.http_address)
        if verb == "top" and "--once" not in command:
            command += " --once"  # there is no terminal
        said = in_shell(command, PUMPLINE_LOOKUPD=fleet.lookupd.http_address)
        assert said.code == 0 or (verb == "doctor" and said.code == 1), (command, said)
        assert "--names" in command or said.json() is not None
