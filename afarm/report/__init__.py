"""The door for pages: self-contained HTML of runs, boards, annotators and studies, and their parts.

`build(run_dir)` writes a run's `report.html` and returns its path; `refresh(run_dir)` leaves a page that shows this run
already. `render_page` and the charts are what pages of plugins are made of.
"""

from afarm.report.annotators_page import COLUMNS, PREFERENCES
from afarm.report.charts import MAIN_CURVES, TRAIN, Chart, curve_charts, kept_step, plotly_script, proxy_chart
from afarm.report.diagram import HEIGHT, WIDTH, diagrams
from afarm.report.over_n import over_n_command, stored_over_n
from afarm.report.page_shell import render_page
from afarm.report.reward_model_charts import describe_held_out, held_out_charts
from afarm.report.run import curves_of, degraded, not_finite, training
from afarm.report.run_page import (
    PAGE,
    build,
    describe_annotators,
    describe_headline,
    describe_other_results,
    describe_win_rates,
    refresh,
)
from afarm.storage.text import code, markdown, one_line, visible

__all__ = [
    "COLUMNS",
    "HEIGHT",
    "MAIN_CURVES",
    "PAGE",
    "PREFERENCES",
    "TRAIN",
    "WIDTH",
    "Chart",
    "build",
    "code",
    "curve_charts",
    "curves_of",
    "degraded",
    "describe_annotators",
    "describe_headline",
    "describe_held_out",
    "describe_other_results",
    "describe_win_rates",
    "diagrams",
    "held_out_charts",
    "kept_step",
    "markdown",
    "not_finite",
    "one_line",
    "over_n_command",
    "plotly_script",
    "proxy_chart",
    "refresh",
    "render_page",
    "stored_over_n",
    "training",
    "visible",
]
