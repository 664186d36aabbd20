"""A broker's topics without a broker, for all tests here; those who need options make their own."""

from pathlib import Path

import pytest

from tests.kit.fake_broker import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)
