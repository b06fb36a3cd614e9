"""What worker processes and commands import and read for light stages, for a process that they are forks of."""

from importlib import import_module

from afarm.core.plugins import discover
from afarm.evaluation.red_flags import patterns
from afarm.report.charts import pack, plotly_script
from afarm_plugins.annotators.prompt_library import load_member, shipped

for module in (
    "afarm.cli.compare",
    "afarm.cli.screens",
    "afarm.evaluation.statistics.intervals",
    "afarm.experiment.method_comparison",
    "afarm.report.run_page",
    "afarm.report.study_page",
    "afarm.cli.run",
    "afarm.experiment.tasks",
    "afarm_plugins.annotators.pool",
    "afarm_plugins.evaluators.reward",
    "afarm_plugins.evaluators.win_rate",
    "light_worker",
):
    import_module(module)
discover()
patterns()
for name in shipped().entries:
    load_member(name)
if plotly := plotly_script():
    pack(plotly)
