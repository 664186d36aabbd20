"""The same source over Spark Connect, whose client has no Java of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.daemons import Nsqd
from tests.kit.spark.drivers import QUICK_ENVIRONMENT
from tests.kit.spark.topics import end_of, numbered, publish

DRIVER = Path(__file__).parents[1] / "kit" / "spark" / "connect_driver.py"
RUN_S_MAX = 500.0


@pytest.mark.slow
@pytest.mark.e2e
def test_topics_are_read_streamed_and_written_over_connect(
    nsqd: Nsqd, topic: str, work: Path
) -> None:
    publish(nsqd, topic, numbered(2000))
    with (work / "driver.log").open("w+") as log:
        ran = subprocess.run(
            [sys.executable, str(DRIVER), nsqd.http_address, topic, str(work)],
            env={**os.environ, **QUICK_ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        log.seek(0)
        assert ran.returncode == 0, log.read()[-2000:]
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert "connect" in seen["session"]
    assert (seen["batch"], seen["sql"], seen["stream"]) == (2000, 2000, 2000)
    assert end_of(nsqd, f"{topic}-out") == 500
    assert "did you mean 'subscribe'?" in seen["error"]
