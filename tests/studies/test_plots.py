"""Plots of studies: well-formed, every point where its value says, hostile names escaped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from afarm import Bounded, Series, StudyPlot
from afarm.studies.plots import as_svg, draw_plot

PLOT = StudyPlot(
    "p",
    "Win rate by beta",
    "beta",
    "win rate",
    [
        Series("a", [0.01, 0.1, 1.0], [Bounded(50, 45, 55), Bounded(60), Bounded(40, 30, 50)]),
        Series("<script>", [0.1], [Bounded(55)]),
    ],
    log_x=True,
)


def circles(svg: str) -> list[ElementTree.Element]:
    """The points, without those of the legend."""
    return [e for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("circle") and len(e)]


def test_points_stand_where_their_values_say() -> None:
    one, two, three, other = circles(as_svg(PLOT))
    x = [float(circle.get("cx", "")) for circle in (one, two, three)]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)  # decades are equally wide
    assert float(two.get("cy", "")) < float(one.get("cy", "")) < float(three.get("cy", ""))
    assert 0 < float(other.get("cx", "")) - x[1] < 6, "beside it, so that neither hides the other"
    assert one[0].text == "a: beta 0.01, win rate 50 (45 to 55)"


def test_names_are_text_and_no_markup() -> None:
    assert "<script>" not in as_svg(PLOT)
    assert "&lt;script&gt;" in as_svg(PLOT)


def test_points_of_one_name_and_place_are_named_once() -> None:
    named = [Series(name, [1.0], [Bounded(y)], ["llama"], False) for name, y in (("a", 50), ("b", 60))]
    svg = as_svg(replace(PLOT, series=named))
    assert svg.count(">llama</text>") == 1
    assert len(circles(svg)) == 2


def test_texts_stand_side_by_side() -> None:
    plot = replace(PLOT, series=[Series("a", ["linear", "cosine"], [Bounded(1), Bounded(1)], ["one", "two"])])
    one, two = circles(as_svg(plot))
    assert float(one.get("cx", "")) < float(two.get("cx", ""))
    assert ">cosine</text>" in as_svg(plot)


@pytest.mark.parametrize("series", [[], [Series("a", [1.0], [Bounded(0.0)])]])
def test_a_plot_of_nothing_and_of_one_point_can_be_drawn(series: list[Series]) -> None:
    ElementTree.fromstring(as_svg(replace(PLOT, series=series)))


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_matplotlib_draws_the_other_formats(ending: str, begins: bytes, tmp_path: Path) -> None:
    draw_plot(PLOT, tmp_path / f"p.{ending}")
    assert (tmp_path / f"p.{ending}").read_bytes().startswith(begins)
