"""Which form of the kernels is used; what they do is in the property tests."""

import sys

import pytest

from pumpline.core.messages import _kernels_py, kernels

KERNELS = (
    "unfilled",
    "pubs",
    "publishes_by_line",
    "message",
    "skip_messages",
    "mpub",
    "answers",
    "touches",
    "redeliveries",
    "locate",
    "fin_commands",
    "body_bytes",
    "mpub_command",
)


def test_the_plain_form_is_used_when_asked_for() -> None:
    form, compiled = kernels._load("python")
    assert (form, compiled) == (_kernels_py, False)


def test_the_plain_form_is_used_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pumpline.core.messages._kernels", raising=False)
    monkeypatch.setitem(sys.modules, "pumpline.core.messages._kernels", None)
    assert kernels._load("auto") == (_kernels_py, False)
    with pytest.raises(ImportError, match="PUMPLINE_KERNELS=require, but the compiled kernels"):
        kernels._load("require")


def test_an_unknown_choice_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ImportError, match="'fast': expected one of auto, require, python"):
        kernels._load("fast")


@pytest.mark.skipif(not kernels.compiled, reason="the compiled kernels are not built")
def test_the_compiled_form_is_preferred_and_complete() -> None:
    form, compiled = kernels._load("auto")
    assert compiled
    assert kernels._load("require") == (form, True)
    for name in KERNELS:
        assert callable(getattr(form, name))
        assert getattr(form, name) is not getattr(_kernels_py, name)
