"""A broker's topics without a broker, for all tests here; those who need options make their own."""

from pathlib import Path

import pytest

from tests.kit.fake_broker import FakeBroker


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    return FakeBroker(tmp_path)
