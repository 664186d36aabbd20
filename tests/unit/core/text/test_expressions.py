"""RE2's syntax by means of Python's: what is translated, what is refused."""

import pytest

from pumpline.core.text.expressions import ExpressionError, compile_expression


@pytest.mark.parametrize(
    ("expression", "found", "not_found"),
    [
        ("", ["", "a"], []),
        (".*", ["", "a"], []),
        ("pi", ["topic", "pi"], ["p-i"]),
        ("^pi$", ["pi"], ["topic", "pin"]),
        (r"^a\z", ["a"], ["ab"]),
        (r"^a{2,3}$", ["aa", "aaa"], ["a", "aaaa"]),
        (r"^a{2}?$", ["aa"], ["a"]),
        (r"a{,3}", ["a{,3}"], ["aaa"]),
        (r"x{", ["x{"], ["x"]),
        (r"^\Qa.b\E+$", ["a.b", "a.bb"], ["axb"]),
        (r"\Q(", ["("], ["a"]),
        (r"^\x{41}\x42$", ["AB"], ["ab"]),
        (r"^[[:alpha:]_]+$", ["a_Z"], ["a1"]),
        (r"^[^[:digit:].]+$", ["a"], ["1", "."]),
        (r"^[]a]$", ["]", "a"], ["b"]),
        (r"^[^]]$", ["a"], ["]"]),
        (r"^[[&|~]$", ["[", "&"], ["a"]),
        (r"^[\d\-]$", ["1", "-"], ["a"]),
        (r"(?i)^a|b$", ["A", "xB"], ["c"]),
        (r"^(?:(?i)a|b)c$", ["Ac", "Bc"], ["AC"]),
        (r"^(?i:a)b$", ["Ab"], ["AB"]),
        (r"(?i)(?s)^a.b$", ["A\nB"], ["ab"]),
        (r"^(?P<one>a)(?<two>b)$", ["ab"], ["a"]),
        (r"^\w+$", ["a_1"], ["é"]),
        (r"a+?|b*?", ["a", ""], []),
    ],
)
def test_what_is_found(expression: str, found: list[str], not_found: list[str]) -> None:
    compiled = compile_expression(expression)
    assert [each for each in found if compiled.search(each) is None] == []
    assert [each for each in not_found if compiled.search(each) is not None] == []


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        ")",
        "a)",
        "[",
        "[]",
        "[z-a]",
        "[[:nothing:]]",
        "*",
        "a**",
        "a*+",
        "a++",
        "a?+",
        "a{2}+",
        "a{2}{3}",
        "a{1001}",
        r"(a)\1",
        r"\Z",
        r"\C",
        r"\pL",
        r"\p{Greek}",
        r"\u0041",
        r"\N{DIGIT ONE}",
        r"\x{110000}",
        "\\",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?<!a)",
        "(?>a)",
        "(?#a)",
        "(?P=a)",
        "(?(1)a)",
        "(?U)a",
        "(?a)b",
        "a(?i)b",
        "(?)",
    ],
)
def test_what_is_refused(expression: str) -> None:
    with pytest.raises(ExpressionError):
        compile_expression(expression)
