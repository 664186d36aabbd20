"""The demo's picture: round numbers on its axes, a line for each name, the kill marked."""

from xml.etree import ElementTree

import pytest

from pumpline.tools.demo.picture import Outage, Sample, chart, round_step

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("highest", "step"),
    [(1, 0.2), (6, 1), (7, 2), (21.4, 5), (24_000, 5_000), (25_004, 5_000), (35_000, 10_000)],
)
def test_axes_are_marked_at_round_numbers(highest: float, step: float) -> None:
    assert round_step(highest) == pytest.approx(step)


def drawn(outage: Outage | None) -> ElementTree.Element:
    samples = [
        Sample(0.0, (0, 0, 0)),
        Sample(8.0, (16_000, 15_900, 15_000)),
        Sample(14.0, (25_004,) * 3),
    ]
    text = chart("a & b", "by a test", ("sent", "received", "kept"), samples, outage)
    return ElementTree.fromstring(text)


def texts(picture: ElementTree.Element) -> list[str | None]:
    return [element.text for element in picture.iter(f"{SVG}text")]


def test_the_picture_has_a_line_for_each_name_and_marks_the_kill() -> None:
    picture = drawn(Outage(4.0, 8.5, "kill -9", "back"))
    assert len(picture.findall(f"{SVG}polyline")) == 3
    shown = texts(picture)
    assert {"a & b", "sent", "received", "kept", "kill -9", "back", "seconds"} <= {*shown}
    assert {"0", "5,000", "10,000", "25,000", "30,000"} <= {*shown}
    assert {"5", "10"} <= {*shown}  # of 14 seconds
    assert "14" not in shown
    assert picture.find(f"{SVG}rect[@class='dead']") is not None


def test_without_a_kill_nothing_is_marked() -> None:
    picture = drawn(None)
    assert "kill -9" not in texts(picture)
    assert picture.find(f"{SVG}rect[@class='dead']") is None


def test_a_demo_that_was_over_at_once_has_a_picture_too() -> None:
    assert chart("t", "", ("sent",), [], None).endswith("</svg>\n")
