"""The door for pages: self-contained HTML of runs, boards, annotators and studies, and their parts.

`build(run_dir)` writes a run's `report.html` and returns its path; `refresh(run_dir)` leaves a page that shows this run
already. `render_page` and the charts are what pages of plugins are made of.
"""

from typing import TYPE_CHECKING

from afarm.core import open_door

if TYPE_CHECKING:
    from afarm.evaluation.agreement import COLUMNS as COLUMNS
    from afarm.evaluation.agreement import PREFERENCES as PREFERENCES
    from afarm.evaluation.run_stages import degraded as degraded
    from afarm.evaluation.run_stages import not_finite as not_finite
    from afarm.report.charts import MAIN_CURVES as MAIN_CURVES
    from afarm.report.charts import TRAIN as TRAIN
    from afarm.report.charts import Chart as Chart
    from afarm.report.charts import chart_held_out as chart_held_out
    from afarm.report.charts import curve_charts as curve_charts
    from afarm.report.charts import describe_held_out as describe_held_out
    from afarm.report.charts import plotly_script as plotly_script
    from afarm.report.charts import proxy_chart as proxy_chart
    from afarm.report.charts import selected_step as selected_step
    from afarm.report.charts import stored_over_n as stored_over_n
    from afarm.report.comparison_findings import frontier_plot as frontier_plot
    from afarm.report.diagram import HEIGHT as HEIGHT
    from afarm.report.diagram import WIDTH as WIDTH
    from afarm.report.diagram import diagrams as diagrams
    from afarm.report.page_shell import render_page as render_page
    from afarm.report.run import group_curves as group_curves
    from afarm.report.run import over_n_command as over_n_command
    from afarm.report.run import stage_figures as stage_figures
    from afarm.report.run import training as training
    from afarm.report.run_page import PAGE as PAGE
    from afarm.report.run_page import build as build
    from afarm.report.run_page import describe_annotators as describe_annotators
    from afarm.report.run_page import describe_headline as describe_headline
    from afarm.report.run_page import describe_other_results as describe_other_results
    from afarm.report.run_page import describe_win_rates as describe_win_rates
    from afarm.report.run_page import refresh as refresh
    from afarm.report.side_by_side import VERDICTS as VERDICTS
    from afarm.report.side_by_side import row_verdict as row_verdict
    from afarm.report.study_page import ShownStudy as ShownStudy
    from afarm.report.study_page import write_comparison as write_comparison
    from afarm.report.study_page import write_study as write_study
    from afarm.report.study_plots import can_draw as can_draw
    from afarm.report.study_tables import cell_text as cell_text
    from afarm.storage.text import code as code
    from afarm.storage.text import markdown as markdown
    from afarm.storage.text import one_line as one_line
    from afarm.storage.text import visible as visible
else:
    __all__, __getattr__, __dir__ = open_door(__name__)
