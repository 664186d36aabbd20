"""What an open page of nsqadmin costs, in Chromium, with a cluster of any size.

    python -m bench.nsqadmin [--nodes 20] [--topics 5000] [--channels 10] [--seconds 60]

| figure         | is                                                                  |
|----------------|---------------------------------------------------------------------|
| first_paint_ms | until the bar is there, from opening the address; the median of 5   |
| plain_paint_ms | the same of a page of one word without a server: the machine's part |
| first_rows_ms  | until the table has its rows                                        |
| page_bytes     | over the network until then, with an empty cache                    |
| bytes_per_s    | to the browser, while the page is open; a tenth of the topics move  |
| poll_s         | from one poll of all nodes to the next, meanwhile                   |
| nsqadmin_cpu   | of a core, meanwhile                                                |
| browser_cpu    | of a core, all processes of Chromium                                |
| table_ms       | a page of the table in another order; then the same one again       |
| nsqadmin_mb    | resident memory, and its peak                                       |

A page is left open for --seconds, and until two polls have ended: nothing moves between them.

Results go to `results/nsqadmin.jsonl`, one line a page and run. Needs Chromium and Playwright; the
latter comes with `pip install -e .[test]`. The nodes are bench/nsqadmin/nodes.py.
"""

import argparse
import http.client
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from bench.kit.servers import cpu_s

RESULTS = Path(__file__).parents[1] / "results" / "nsqadmin.jsonl"
PAGES = {"overview": "/", "channels": "/topics?of=channels"}
ROUNDS = 5
START_S = 120.0
SETTLE_S = 5.0
POLLS_S = 300.0  # that two polls are waited for
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
LISTENING = "HTTP: listening on "
PLAIN = "data:text/html,<main id=main>word<table><tr><td>"
ROW = "document.querySelector('#main tbody tr')"
PAINT = """() => new Promise((done) => {
  const look = () => {
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    if (paint && ROW) done([paint.startTime, performance.now()]); else requestAnimationFrame(look);
  };
  look();
})""".replace("ROW", ROW)


@contextmanager
def nodes(count: int, topics: int, channels: int) -> Iterator[list[str]]:
    command = [sys.executable, "-m", "bench.nsqadmin.nodes", str(count), str(topics), str(channels)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        addresses = []
        while line := process.stdout.readline().strip():
            addresses.append(line)
        try:
            yield addresses
        finally:
            process.terminate()


@contextmanager
def nsqadmin(addresses: list[str]) -> Iterator[tuple[int, int]]:
    """Its process, and its port."""
    flags = [f"--nsqd-http-address={each}" for each in addresses]
    timeout = "--http-client-request-timeout=60s"  # the nodes share one process
    command = [sys.executable, "-m", "pumpline.tools.nsqadmin", "--http-address=127.0.0.1:0"]
    with subprocess.Popen(
        [*command, timeout, *flags], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if LISTENING in line:
                    yield process.pid, int(line.strip().rpartition(":")[2])
                    break
        finally:
            process.terminate()


def ask(port: int, path: str) -> tuple[dict[str, Any], float]:
    """The answer, and how long it took, in ms."""
    began_s = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_S)
    connection.request("GET", path)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer, 1000 * (time.perf_counter() - began_s)


def wait_for_polls(port: int, topics: int) -> None:
    """Two: rates need them."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        told, _ = ask(port, "/api/v1/overview")
        if told["seq"] > 1 and told["totals"]["topics"] == topics:
            return
        time.sleep(0.5)
    raise SystemExit(f"nsqadmin did not see {topics} topics within {START_S:.0f} s")


def polls_of(port: int) -> int:
    """How many have ended."""
    return int(ask(port, "/api/v1/overview")[0]["seq"])


class Received:
    """What comes over the network to a page: as it is sent, once that is known."""

    def __init__(self, page: Page) -> None:
        self._by_request: dict[str, int] = {}
        network = page.context.new_cdp_session(page)
        network.send("Network.enable")
        network.on("Network.dataReceived", self._on_data)
        network.on("Network.loadingFinished", self._on_end)

    @property
    def total(self) -> int:
        return sum(self._by_request.values())

    def _on_data(self, event: dict[str, Any]) -> None:
        key = event["requestId"]
        self._by_request[key] = self._by_request.get(key, 0) + event["dataLength"]

    def _on_end(self, event: dict[str, Any]) -> None:
        self._by_request[event["requestId"]] = event["encodedDataLength"]


def open_page(browser: Browser, address: str) -> tuple[Page, Received, list[float]]:
    """The page, what it receives, and when there was paint, and rows, in ms."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    received = Received(page)
    page.goto(address, wait_until="commit")
    return page, received, page.evaluate(PAINT)


def chromium_cpu_s(parent: int) -> float:
    """Of all processes of the browser that this one started, as far as they live."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    family = {parent}
    for _ in range(8):  # generations
        family |= {pid for pid, of in parents.items() if of in family}
    names = ((pid, Path(f"/proc/{pid}/comm")) for pid in family)
    return sum(cpu_s(pid) for pid, comm in names if "chrom" in comm.read_text())


def memory_mb(pid: int) -> tuple[int, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}
    return kib["VmRSS"] // 1024, kib["VmHWM"] // 1024


def measure(browser: Browser, pid: int, port: int, path: str, seconds: float) -> dict[str, Any]:
    address = f"http://127.0.0.1:{port}{path}"
    paints, plain_paints = [], []
    for _ in range(ROUNDS):
        page, _, paint = open_page(browser, PLAIN)
        plain_paints.append(paint[0])
        page.context.close()
        page, received, paint = open_page(browser, address)
        paints.append(paint)
        page_bytes = received.total
        page.context.close()
    page, received, _ = open_page(browser, address)
    page.wait_for_timeout(1000 * SETTLE_S)
    polls = polls_of(port)
    before = cpu_s(pid), chromium_cpu_s(os.getpid()), received.total, time.monotonic()
    polled_s = []
    while True:
        page.wait_for_timeout(1000)
        elapsed_s = time.monotonic() - before[3]
        if polls_of(port) - polls > len(polled_s):
            polled_s.append(elapsed_s)
        if elapsed_s >= seconds and len(polled_s) >= 2:
            break
        if elapsed_s > POLLS_S:
            raise SystemExit(f"nsqadmin did not poll twice within {POLLS_S:.0f} s")
    figures = {
        "first_paint_ms": round(statistics.median(paint for paint, _ in paints)),
        "plain_paint_ms": round(statistics.median(plain_paints)),
        "first_rows_ms": round(statistics.median(rows for _, rows in paints)),
        "page_bytes": page_bytes,
        "bytes_per_s": round((received.total - before[2]) / elapsed_s),
        "poll_s": round(statistics.mean(b - a for a, b in pairwise(polled_s)), 1),
        "nsqadmin_cpu": round((cpu_s(pid) - before[0]) / elapsed_s, 3),
        "browser_cpu": round((chromium_cpu_s(os.getpid()) - before[1]) / elapsed_s, 3),
    }
    page.context.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.nsqadmin",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--channels", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0, help="that a page is left open")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    chromium = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit("no Chromium on PATH")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with (
        nodes(asked.nodes, asked.topics, asked.channels) as addresses,
        nsqadmin(addresses) as (pid, port),
        sync_playwright() as playwright,
    ):
        wait_for_polls(port, asked.topics)
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        for name, path in PAGES.items():
            load = os.getloadavg()[0]
            record = {
                "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "page": name,
                "nodes": asked.nodes,
                "topics": asked.topics,
                "channels": asked.channels,
                **measure(browser, pid, port, path, asked.seconds),
            }
            view = "topics" if name == "overview" else name
            times = [ask(port, f"/api/v1/table/{view}?sort=-message_count")[1] for _ in range(2)]
            record["table_ms"] = [round(each, 1) for each in times]
            record["nsqadmin_mb"] = memory_mb(pid)
            record["load_average"] = round(load, 1)
            record["machine"] = f"{os.cpu_count()} cores, Python {platform.python_version()}"
            print(json.dumps(record, indent=2))
            with asked.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
        browser.close()


if __name__ == "__main__":
    main()
