"""Plots of studies: their files hold what is named, hostile names are text, and names stand beside their points."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

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


def test_series_without_names_have_no_legend_and_no_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    draw_plot(replace(PLOT, series=[series._replace(name="") for series in PLOT.series]), tmp_path / "p.svg")
    assert [str(each.message) for each in recwarn.list if each.category is UserWarning] == []
    assert caplog.records == []


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


def test_a_name_is_nearest_to_its_own_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The free place left of a point may be right of its neighbour, and would name that one."""
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: [drawn.append(self), save(self, *args, **more)])
    x = [52.6, 54.3, 54.8, 55.9, 58.0, 58.1]
    y = [52.1, 52.7, 54.9, 55.4, 59.3, 61.6]
    names = ["feedme", "dpo", "quark", "best_of_n", "expert_iteration", "ppo"]
    series = [Series("", x, list(map(Bounded, y)), names, False), Series("", [38.0], [Bounded(27.5)])]
    draw_plot(replace(PLOT, series=series, log_x=False), tmp_path / "p.png")
    [axes] = drawn[0].axes
    at = dict(zip(names, axes.transData.transform(list(zip(x, y, strict=True))), strict=True))
    assert [text.get_text() for text in axes.texts] == names
    for text in axes.texts:
        box = text.get_window_extent()

        def distance(name: str, box: Bbox = box) -> float:
            left, up = at[name]
            return math.hypot(max(box.x0 - left, 0, left - box.x1), max(box.y0 - up, 0, up - box.y1))

        assert min(names, key=distance) == text.get_text()


def test_colours_are_those_of_the_pages() -> None:
    css = (Path(plots.__file__).parent.parent / "report" / "page.css").read_text()
    light = css[: css.index("@media")]
    assert tuple(re.findall(r"--series-\d: (#\w+)", light)) == plots.COLOURS
