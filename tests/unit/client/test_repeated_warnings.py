"""`client/repeated_warnings.py`: how often the same warning is written."""

import logging

import pytest

from pumpline.client.repeated_warnings import REPEAT_S, RepeatedWarnings


def test_the_same_text_is_written_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    warnings = RepeatedWarnings(logging.getLogger("pumpline.client"), lambda: now)
    for text in ("a", "a", "b", "a", "a"):
        warnings.warn(text)
    assert caplog.messages == ["a", "b", "a"]
    now = REPEAT_S
    warnings.warn("a")
    warnings.warn("a")
    assert caplog.messages == ["a", "b", "a", "a"]
    warnings.forget()
    warnings.warn("a")
    assert len(caplog.messages) == 5
