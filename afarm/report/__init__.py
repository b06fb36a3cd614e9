"""The door for pages: self-contained HTML of runs, boards, annotators and studies, and their parts.

`build(run_dir)` writes a run's `report.html` and returns its path; `refresh(run_dir)` leaves a page that shows this run
already. `render_page` and the charts are what pages of plugins are made of.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afarm.report.annotators_page import COLUMNS, PREFERENCES
    from afarm.report.charts import MAIN_CURVES, TRAIN, Chart, curve_charts, plotly_script, proxy_chart, selected_step
    from afarm.report.diagram import HEIGHT, WIDTH, diagrams
    from afarm.report.over_n import over_n_command, stored_over_n
    from afarm.report.page_shell import render_page
    from afarm.report.reward_model_charts import chart_held_out, describe_held_out
    from afarm.report.run import degraded, group_curves, not_finite, training
    from afarm.report.run_page import (
        PAGE,
        build,
        describe_annotators,
        describe_headline,
        describe_other_results,
        describe_win_rates,
        refresh,
    )
    from afarm.report.study_files import ShownStudy
    from afarm.report.study_page import write_study
    from afarm.report.study_plots import can_draw
    from afarm.report.study_tables import short_text
    from afarm.storage.text import code, markdown, one_line, visible

_ON_FIRST_USE = {
    **dict.fromkeys(
        (
            "COLUMNS",
            "PREFERENCES",
        ),
        "afarm.report.annotators_page",
    ),
    **dict.fromkeys(
        (
            "Chart",
            "MAIN_CURVES",
            "TRAIN",
            "curve_charts",
            "selected_step",
            "plotly_script",
            "proxy_chart",
        ),
        "afarm.report.charts",
    ),
    **dict.fromkeys(
        (
            "HEIGHT",
            "WIDTH",
            "diagrams",
        ),
        "afarm.report.diagram",
    ),
    **dict.fromkeys(
        (
            "over_n_command",
            "stored_over_n",
        ),
        "afarm.report.over_n",
    ),
    **dict.fromkeys(("render_page",), "afarm.report.page_shell"),
    **dict.fromkeys(
        (
            "describe_held_out",
            "chart_held_out",
        ),
        "afarm.report.reward_model_charts",
    ),
    **dict.fromkeys(
        (
            "group_curves",
            "degraded",
            "not_finite",
            "training",
        ),
        "afarm.report.run",
    ),
    **dict.fromkeys(
        (
            "PAGE",
            "build",
            "describe_annotators",
            "describe_headline",
            "describe_other_results",
            "describe_win_rates",
            "refresh",
        ),
        "afarm.report.run_page",
    ),
    **dict.fromkeys(("ShownStudy",), "afarm.report.study_files"),
    **dict.fromkeys(("write_study",), "afarm.report.study_page"),
    **dict.fromkeys(("can_draw",), "afarm.report.study_plots"),
    **dict.fromkeys(("short_text",), "afarm.report.study_tables"),
    **dict.fromkeys(
        (
            "code",
            "markdown",
            "one_line",
            "visible",
        ),
        "afarm.storage.text",
    ),
}
"""The names by their module, imported when first used."""

__all__ = [
    "COLUMNS",
    "HEIGHT",
    "MAIN_CURVES",
    "PAGE",
    "PREFERENCES",
    "TRAIN",
    "WIDTH",
    "Chart",
    "ShownStudy",
    "build",
    "can_draw",
    "chart_held_out",
    "code",
    "curve_charts",
    "degraded",
    "describe_annotators",
    "describe_headline",
    "describe_held_out",
    "describe_other_results",
    "describe_win_rates",
    "diagrams",
    "group_curves",
    "markdown",
    "not_finite",
    "one_line",
    "over_n_command",
    "plotly_script",
    "proxy_chart",
    "refresh",
    "render_page",
    "selected_step",
    "short_text",
    "stored_over_n",
    "training",
    "visible",
    "write_study",
]

if not TYPE_CHECKING:  # to a checker, a misspelt name stays an error

    def __getattr__(name: str) -> Any:
        if name not in _ON_FIRST_USE:
            raise AttributeError(f"module 'afarm.report' has no attribute {name!r}")
        return getattr(importlib.import_module(_ON_FIRST_USE[name]), name)


def __dir__() -> list[str]:
    return __all__
