"""docs/python-api.md: everything that is public is explained (it is current: test_generated)."""

import inspect
import re

import pytest

from deploy.python_api import Documented, python_api_page, signature
from pumpline.client import Consumer, Producer


def test_a_method_without_a_docstring_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producer.publish, "__doc__", None)
    with pytest.raises(ValueError, match=r"Producer\.publish has no docstring"):
        list(Documented(Producer).markdown(set()))


@pytest.mark.parametrize("kind", [Producer, Consumer])
def test_every_option_is_explained(kind: type) -> None:
    documented = "\n".join(Documented(kind).markdown(set()))
    explained = set(re.findall(r"^\| `(\w+)` \|", documented, re.MULTILINE))
    given = set(inspect.signature(kind).parameters)
    assert given - {"topic", "channel"} <= explained


def test_signatures_have_annotations_of_the_source_and_values_of_defaults() -> None:
    def function(self: object, one: "str | int", *, two: int = 1 << 4, **more: str) -> None:
        pass

    assert signature(function, "f") == "f(one: 'str | int', *, two: int = 16, **more: str) -> None"


def test_headings_are_unique() -> None:
    headings = re.findall(r"^#+ (.*)$", python_api_page(), re.MULTILINE)
    assert len(headings) == len(set(headings))
