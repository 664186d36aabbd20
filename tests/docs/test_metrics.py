"""docs/metrics.md: its examples print what it says, and its names are those of the code."""

import re
import shutil
import urllib.request
from pathlib import Path

import pytest

from deploy.monitoring.known_metrics import FAMILIES, NAME, check
from pumpline.web.prometheus_text import HISTOGRAM
from tests.kit.daemons import Nsqd, Nsqlookupd
from tests.kit.nsqadmin_process import NsqadminProcess
from tests.kit.pages import DOCS, Reader

PAGE = (DOCS / "metrics.md").read_text()


def test_the_page_names_metrics_that_exist() -> None:
    histograms = {
        family.name for each in FAMILIES.values() for family in each if family.kind == HISTOGRAM
    }
    told = set(NAME.findall(PAGE)) - histograms
    assert len(told) > 10
    check(told)


def test_what_daemons_give_is_in_their_tables(tmp_path: Path) -> None:
    with (
        Nsqlookupd(tmp_path / "nsqlookupd.log") as lookupd,
        Nsqd(tmp_path / "data", [f"--lookupd-tcp-address={lookupd.tcp_address}"]) as nsqd,
        NsqadminProcess(
            tmp_path / "nsqadmin.log", f"--nsqd-http-address={nsqd.http_address}"
        ) as nsqadmin,
    ):
        nsqd.http("POST", "/topic/create?topic=t")
        nsqd.http("POST", "/channel/create?topic=t&channel=c")
        nsqd.http("POST", "/hold/create?topic=t&hold=h")
        for daemon, address in {
            "nsqd": nsqd.http_address,
            "nsqlookupd": lookupd.http_address,
            "nsqadmin": nsqadmin.http_address,
        }.items():
            with urllib.request.urlopen(f"http://{address}/metrics?include_clients=true") as reply:
                text = reply.read().decode()
            given = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
            table = {each.shown_name: each for each in FAMILIES[daemon]}
            table |= {each.shown_name: each for each in FAMILIES["every daemon"]}
            assert given.items() <= {name: each.kind for name, each in table.items()}.items()
            for name, shown in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
                labels = re.findall(r'(\w+)="', shown)
                if name in table:
                    assert set(labels) - {"kernels"} == set(table[name].labels), name


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_examples_print_what_the_page_says(tmp_path: Path) -> None:
    assert Reader(tmp_path).follow("metrics.md") == 6
