"""docs/operating.md: its examples print what it says."""

import shutil
from pathlib import Path

import pytest

from tests.kit.pages import Reader


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_examples_print_what_the_page_says(tmp_path: Path) -> None:
    assert Reader(tmp_path).follow("operating.md") == 37
