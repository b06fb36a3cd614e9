"""The door for making experiments: open a recipe, plan its stages, estimate and run them.

For plugins that make more than one run (studies, tuning), or that ask judges beside a run (probes, bundles). `Farm` in
`afarm` is the simpler way to make one.
"""

from afarm.experiment.dry_run import PlannedStage, estimates, plan_run, reading_client
from afarm.experiment.evaluation_stages import judges_behind
from afarm.experiment.preflight import judging_checks, run_checks
from afarm.experiment.promises import requests_planned
from afarm.experiment.workspace import Workspace

__all__ = [
    "PlannedStage",
    "Workspace",
    "estimates",
    "judges_behind",
    "judging_checks",
    "plan_run",
    "reading_client",
    "requests_planned",
    "run_checks",
]
