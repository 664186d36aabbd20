"""Expressions of auth servers: RE2's syntax and no other, in linear time."""

import subprocess
import sys
import time

import pytest

from pumpline.core.protocol.expressions import (
    ExpressionError,
    ExpressionsMissing,
    compile_expression,
    require_expressions,
)


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
        (r"^\pL+$", ["é"], ["1"]),
        (r"^\p{Greek}$", ["λ"], ["l"]),
        (r"^a(?i)b$", ["aB"], ["Ab"]),
        (r"(?U)^a+$", ["aa"], ["b"]),
        (r"^a$", ["a"], ["a\n"]),
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
        "(?a)b",
        r"\pX",
        r"\pL{1000}",
        "\ud800",
    ],
)
def test_what_is_refused(expression: str) -> None:
    with pytest.raises(ExpressionError):
        compile_expression(expression)


@pytest.mark.parametrize(
    "expression", ["(a+)+$", "(a|a)*c", "(a*)*c", "(.*)(.*)(.*)(.*)(.*)c", "(?:a?){500}c"]
)
def test_a_hostile_expression_takes_linear_time(expression: str) -> None:
    """Python's `re` takes years for the first ones."""
    began_s = time.process_time()
    assert compile_expression(expression).search("a" * 63 + "b") is None
    assert time.process_time() - began_s < 1


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require_expressions()
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(ExpressionsMissing, match=r"pip install 'pumpline\[auth\]'"):
        require_expressions()


def test_nsqd_does_not_import_the_library_before_it_is_needed() -> None:
    check = "import sys, pumpline.tools.nsqd, pumpline.nsqd.server; sys.exit('re2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
