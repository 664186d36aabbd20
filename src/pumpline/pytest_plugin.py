"""Fixtures for pytest: `nsqd` and `nsqlookupd`, new for each test (see `pumpline.testing`).

pytest loads this in every run where pumpline is installed, so it imports the daemons (a quarter of
a second) only for a test that asks for one; hence TYPE_CHECKING.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # a plugin of every test run must import little
    from pumpline.testing import LocalNsqd, LocalNsqlookupd


@pytest.fixture
def nsqd() -> Iterator["LocalNsqd"]:
    """An nsqd of its own for this test, gone with its data after it."""
    from pumpline.testing import LocalNsqd

    with LocalNsqd() as running:
        yield running


@pytest.fixture
def nsqlookupd() -> Iterator["LocalNsqlookupd"]:
    """An nsqlookupd of its own for this test."""
    from pumpline.testing import LocalNsqlookupd

    with LocalNsqlookupd() as running:
        yield running
