"""A broker's topics without a broker, for all tests here; those who need options make their own."""

from pathlib import Path

import pytest
from stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)
