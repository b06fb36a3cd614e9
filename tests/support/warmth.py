"""What commands of the pipeline import and read, for a process that they are forks of."""

from importlib import import_module

from afarm.core.plugins import discover
from afarm.evaluation.red_flags import patterns
from afarm.report.charts import pack, plotly_script

for module in (
    "afarm.cli.compare",
    "afarm.cli.evaluate",
    "afarm.cli.run",
    "afarm.cli.screens",
    "afarm.evaluation.statistics.intervals",
    "afarm.experiment.tasks",
    "afarm.report.run_page",
    "afarm_plugins.annotators.pool",
    "afarm_plugins.evaluators.reward",
    "afarm_plugins.evaluators.win_rate",
):
    import_module(module)
discover()
patterns()
if plotly := plotly_script():
    pack(plotly)
