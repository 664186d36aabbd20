"""What strangers say, fit for a log line."""

import pytest

from pumpline.core.text.lines import LOG_CHARS_MAX, escaped, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain text", "plain text"),
        ("größer 日本", "größer 日本"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x00\x1b[31m\x7f\x9b", r"\x00\x1b[31m\x7f\x9b"),
        ("\u2028\u202e\ufeff", r"\u2028\u202e\ufeff"),
        (b"\xff\xfe".decode("utf-8", "surrogateescape"), r"\xff\xfe"),
        (chr(0xD800), r"\ud800"),
        (r"C:\new", r"C:\new"),
    ],
)
def test_what_cannot_be_printed_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_stranger_fills_no_log() -> None:
    assert one_line("x" * 10_000) == "x" * LOG_CHARS_MAX
