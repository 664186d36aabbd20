"""Names of topics and channels, and Go's quotes."""

import pytest

from pumpline.core.text.names import go_quote, is_ephemeral, is_valid_name


@pytest.mark.parametrize(
    "name", ["a", ".", "..", "-", "_", "A.b-c_9", "x" * 64, "x#ephemeral", "x" * 54 + "#ephemeral"]
)
def test_valid_names(name: str) -> None:
    assert is_valid_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 65,
        "x" * 55 + "#ephemeral",
        "#ephemeral",
        "x#",
        "x#ephemera",
        "x#ephemeral#ephemeral",
        "a b",
        "a/b",
        "a:b",
        "a\n",
        "a\0",
        "é",
        "\u0665",
        "a\udcff",
    ],
)
def test_invalid_names(name: str) -> None:
    assert not is_valid_name(name)


def test_ephemeral_names_say_so() -> None:
    assert is_ephemeral("x#ephemeral")
    assert not is_ephemeral("ephemeral")


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"", '""'),
        (b"plain", '"plain"'),
        (b'a"b\\c', r'"a\"b\\c"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\0\x1f\x7f", r'"\x00\x1f\x7f"'),
        (b"\xff\xc3", r'"\xff\xc3"'),
        ("é\u4e16".encode(), '"é\u4e16"'),
        ("\u00a0\u200b".encode(), r'"\u00a0\u200b"'),
        ("\U000e0001".encode(), r'"\U000e0001"'),
    ],
)
def test_bytes_are_quoted_as_go_does(raw: bytes, quoted: str) -> None:
    assert go_quote(raw) == quoted
