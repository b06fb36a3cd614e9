"""Plots of studies: their files hold what is named, hostile names are text, and names stand beside their points."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from afarm import Bounded, Series, StudyPlot
from afarm.report import study_plots as plots
from afarm.report.study_plots import covered_area, distance_to, draw_plot, name_box, place_labels, point_places

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


def test_points_stand_where_their_values_say() -> None:
    [(one, two, three), [other]] = point_places(PLOT)
    assert two[0] - one[0] == pytest.approx(three[0] - two[0]), "decades are equally wide"
    assert two[1] < one[1] < three[1], "60, 50 and 40"
    assert other[0] == two[0]


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
    [name] = place_labels(replace(PLOT, series=named))
    assert (name.text, name.number) == ("llama", 1)


def test_texts_stand_side_by_side(tmp_path: Path) -> None:
    plot = replace(PLOT, series=[Series("a", ["linear", "cosine"], [Bounded(1), Bounded(1)], ["one", "two"])])
    [[one, two]] = point_places(plot)
    assert one[0] < two[0]
    assert ">cosine</text>" in svg(plot, tmp_path)


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


def test_names_of_near_points_do_not_lie_over_each_other() -> None:
    near = Series("", [1.0, 1.01, 1.02], [Bounded(50), Bounded(50.2), Bounded(50.4)], ["expert_iteration"] * 3, False)
    far = Series("", [0.1, 10], [Bounded(20), Bounded(90)])
    plot = replace(PLOT, series=[near, far])
    at = point_places(plot)
    boxes = [name_box(n.text, at[n.number][n.point], (n.dx, n.dy, n.anchor)) for n in place_labels(plot)]
    assert len(boxes) == 3
    for place, box in enumerate(boxes):
        assert covered_area(box, boxes[:place]) == 0


def test_a_name_is_nearest_to_its_own_point() -> None:
    """The free place left of a point may be right of its neighbour, and would name that one."""
    x = [52.6, 54.3, 54.8, 55.9, 58.0, 58.1]
    y = [Bounded(value) for value in (52.1, 52.7, 54.9, 55.4, 59.3, 61.6)]
    names = ["feedme", "dpo", "quark", "best_of_n", "expert_iteration", "ppo"]
    plot = replace(PLOT, series=[Series("", x, y, names, False), Series("", [38.0], [Bounded(27.5)])], log_x=False)
    at = dict(zip(names, point_places(plot)[0], strict=True))
    for n in place_labels(plot):
        box = name_box(n.text, at[n.text], (n.dx, n.dy, n.anchor))
        assert min(at, key=lambda name: distance_to(box, at[name])) == n.text


def test_colours_are_those_of_the_pages() -> None:
    css = (Path(plots.__file__).parent.parent / "report" / "page.css").read_text()
    light = css[: css.index("@media")]
    assert tuple(re.findall(r"--series-\d: (#\w+)", light)) == plots.COLOURS
