from collections.abc import Iterator

import pytest

from pumpline.log import flusher


@pytest.fixture(autouse=True)
def no_pause() -> Iterator[None]:
    """A flush that takes long on a busy machine does not delay the next. Not by the test's own
    `monkeypatch`, which would then end after its directory is removed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flusher, "PAUSE_RATIO", 0)
        yield
