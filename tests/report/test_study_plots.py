"""Plots of studies: well-formed, every point where its value says, hostile names escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from afarm import Bounded, Series, StudyPlot
from afarm.report import study_plots as plots
from afarm.report.study_plots import _axes, _box, _covered, _distance, as_svg, draw_plot, place_labels

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
    rich = Series("fit", [Bounded(0.2, 0.1, 0.3)], [Bounded(50)], ["one"], fit=[(0.1, 45), (0.3, 55)])
    draw_plot(replace(PLOT, series=[*PLOT.series, rich]), tmp_path / f"p.{ending}")
    assert (tmp_path / f"p.{ending}").read_bytes().startswith(begins)


def test_a_fit_is_drawn_instead_of_the_line_and_intervals_lie_across_too() -> None:
    series = Series("a", [Bounded(1, 0, 2), Bounded(3)], [Bounded(1), Bounded(2)], fit=[(1, 1), (2, 3), (3, 2)])
    plot = replace(PLOT, series=[series], log_x=False)
    svg = ElementTree.fromstring(as_svg(plot))
    [line] = [e for e in svg.iter() if e.tag.endswith("polyline")]
    x = [float(pair.split(",")[0]) for pair in (line.get("points") or "").split()]
    one, three = circles(as_svg(plot))
    assert x == [float(one.get("cx", "")), pytest.approx((x[0] + x[2]) / 2, abs=0.1), float(three.get("cx", ""))]
    [bar] = [e for e in svg.iter() if e.get("y1") == one.get("cy") and e.get("stroke-width")]
    low, high = float(bar.get("x1", "")), float(bar.get("x2", ""))
    assert (low + high) / 2 == pytest.approx(x[0], abs=0.1)
    assert high - low == pytest.approx(x[2] - x[0], abs=0.2), "2 long, as far as from 1 to 3"
    assert "beta 1 (0 to 2)" in as_svg(plot)


def test_a_fit_that_goes_beyond_the_points_stays_in_the_frame() -> None:
    """A curve is fitted to runs, which spread wider than the means that are shown."""
    series = Series("a", [1.0, 2.0], [Bounded(1), Bounded(2)], fit=[(0, 0), (3, 5)])
    svg = ElementTree.fromstring(as_svg(replace(PLOT, series=[series], log_x=False)))
    [line] = [e for e in svg.iter() if e.tag.endswith("polyline")]
    (left, bottom), (right, top) = (map(float, pair.split(",")) for pair in (line.get("points") or "").split())
    assert plots.LEFT <= left < right <= plots.WIDTH - plots.RIGHT
    assert plots.TOP <= top < bottom <= plots.HEIGHT - plots.BOTTOM


def test_the_diagonal_has_alike_axes() -> None:
    series = Series("a", [10.0, 20.0], [Bounded(40), Bounded(50)], joined=False)
    [line] = [
        e
        for e in ElementTree.fromstring(as_svg(replace(PLOT, series=[series], log_x=False, diagonal=True))).iter()
        if e.get("stroke-dasharray")
    ]
    assert float(line.get("x1", "")) == pytest.approx(64)
    assert float(line.get("x2", "")) == pytest.approx(640 - 168)
    assert float(line.get("y1", "")) == pytest.approx(400 - 52)
    assert float(line.get("y2", "")) == pytest.approx(36)


def test_names_of_near_points_do_not_lie_over_each_other() -> None:
    near = Series("", [1.0, 1.01, 1.02], [Bounded(50), Bounded(50.2), Bounded(50.4)], ["expert_iteration"] * 3, False)
    far = Series("", [0.1, 10], [Bounded(20), Bounded(90)])
    labels = place_labels(replace(PLOT, series=[near, far]))
    boxes = [_box(label) for label in labels]
    assert len(boxes) == 3
    for place, box in enumerate(boxes):
        assert _covered(box, boxes[:place]) == 0


def test_a_name_is_nearest_to_its_own_point() -> None:
    """The free place left of a point may be right of its neighbour, and would name that one."""
    x = [52.6, 54.3, 54.8, 55.9, 58.0, 58.1]
    y = [Bounded(value) for value in (52.1, 52.7, 54.9, 55.4, 59.3, 61.6)]
    names = ["feedme", "dpo", "quark", "best_of_n", "expert_iteration", "ppo"]
    plot = replace(PLOT, series=[Series("", x, y, names, False), Series("", [38.0], [Bounded(27.5)])], log_x=False)
    across, up = _axes(plot)
    at = {name: (across.pixel(x[n]), up.pixel(y[n].value)) for n, name in enumerate(names)}
    for label in place_labels(plot):
        assert min(at, key=lambda name: _distance(_box(label), at[name])) == label.name


def test_colours_are_those_of_the_pages() -> None:
    css = (Path(plots.__file__).parent.parent / "report" / "page.css").read_text()
    light = css[: css.index("@media")]
    assert tuple(re.findall(r"--series-\d: (#\w+)", light)) == plots.COLOURS
