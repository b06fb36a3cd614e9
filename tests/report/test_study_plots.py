"""Plots of studies: their files hold what is named, hostile names are text, and names stand beside their points."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from afarm import Bounded, Series, StudyPlot
from afarm.report import study_plots as plots
from afarm.report.study_plots import draw_plot, name_sides

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


def svg(plot: StudyPlot, directory: Path) -> str:
    draw_plot(plot, directory / "p.svg")
    text = (directory / "p.svg").read_text("utf-8")
    ElementTree.fromstring(text)
    return text


def test_names_are_text_whatever_they_say(tmp_path: Path) -> None:
    hostile = replace(PLOT, title="\x1b[2J", x_title=r"$\frac$ per 1,000", y_title="judge, $")
    text = svg(hostile, tmp_path)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert r"\x1b[2J" in text
    assert r"$\frac$ per 1,000" in text


def test_equal_plots_are_equal_files(tmp_path: Path) -> None:
    assert svg(PLOT, tmp_path) == svg(PLOT, tmp_path)


def test_points_of_one_name_and_place_are_named_once() -> None:
    named = [Series(name, [1.0], [Bounded(y)], ["llama"], False) for name, y in (("a", 50), ("b", 60))]
    assert list(name_sides(replace(PLOT, series=named))) == [(1, 0)]


def test_texts_stand_side_by_side(tmp_path: Path) -> None:
    plot = replace(PLOT, series=[Series("a", ["linear", "cosine"], [Bounded(1), Bounded(1)], ["one", "two"])])
    text = svg(plot, tmp_path)
    assert text.index(">linear</text>") < text.index(">cosine</text>")


RICH = Series("fit", [Bounded(0.2, 0.1, 0.3)], [Bounded(50)], ["one"], fit=[(0.1, 45), (0.3, 55)])


@pytest.mark.parametrize(
    "series", [[], [Series("a", [1.0], [Bounded(0.0)])], [Series("a", [1.0], [Bounded(2.0)]), RICH]]
)
@pytest.mark.parametrize("diagonal", [False, True])
def test_a_plot_of_nothing_of_one_point_and_of_all_parts_can_be_drawn(
    series: list[Series], diagonal: bool, tmp_path: Path
) -> None:
    svg(replace(PLOT, series=series, diagonal=diagonal), tmp_path)


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_other_formats_are_drawn_too(ending: str, begins: bytes, tmp_path: Path) -> None:
    draw_plot(replace(PLOT, series=[*PLOT.series, RICH]), tmp_path / f"p.{ending}")
    assert (tmp_path / f"p.{ending}").read_bytes().startswith(begins)


def test_names_of_neighbours_stand_on_different_sides_of_their_points() -> None:
    near = Series("", [1.02, 1.0, 1.01], [Bounded(50), Bounded(50.2), Bounded(50.4)], ["c", "a", "b"], False)
    sides = name_sides(replace(PLOT, series=[near, Series("", [0.1, 10], [Bounded(20), Bounded(90)])]))
    assert [point for _, point in sides] == [1, 2, 0]
    a, b, c = sides.values()
    assert a != b != c


def test_colours_are_those_of_the_pages() -> None:
    css = (Path(plots.__file__).parent.parent / "report" / "page.css").read_text()
    light = css[: css.index("@media")]
    assert tuple(re.findall(r"--series-\d: (#\w+)", light)) == plots.COLOURS
