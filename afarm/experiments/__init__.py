"""The door for making experiments: open a recipe, plan its stages, estimate and run them.

For plugins that make more than one run (studies, tuning), or that ask judges beside a run (probes, bundles). `Farm` in
`afarm` is the simpler way to make one.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afarm.core.errors import attribute_failures
    from afarm.core.plugins import Plugins, discover
    from afarm.core.registry import Component
    from afarm.evaluation.statistics.equal_means import equal_means
    from afarm.experiment.components import Components
    from afarm.experiment.dry_run import JudgeEstimate, PlannedStage, estimates, plan_run, reading_client
    from afarm.experiment.evaluation_stages import judges_behind
    from afarm.experiment.judges import stored_answers
    from afarm.experiment.method_comparison import named_methods, require_win_rate
    from afarm.experiment.opening import open_workspace
    from afarm.experiment.preflight import failures, judging_checks, run_checks
    from afarm.experiment.process_info import ProcessInfo
    from afarm.experiment.promises import requests_planned
    from afarm.experiment.recipe import BASED_ON, Settings, merge, read_recipe, resolve
    from afarm.experiment.run_record import final_kl, formula_judges, headline
    from afarm.experiment.settings import RunConfig
    from afarm.experiment.studies.progress import GridProgress
    from afarm.experiment.studies.record import PICTURES, STUDY, StudyRecord, read_study_record, write_study_record
    from afarm.experiment.studies.study import Answers
    from afarm.experiment.tasks import OWN_STAGES, Launched, Systems, identity, list_stages, task_graph
    from afarm.experiment.training_stages import require_method
    from afarm.experiment.workspace import Workspace, tell_once
    from afarm.judging.client import JudgeClient

_ON_FIRST_USE = {
    **dict.fromkeys(("attribute_failures",), "afarm.core.errors"),
    **dict.fromkeys(
        (
            "Plugins",
            "discover",
        ),
        "afarm.core.plugins",
    ),
    **dict.fromkeys(("Component",), "afarm.core.registry"),
    **dict.fromkeys(("equal_means",), "afarm.evaluation.statistics.equal_means"),
    **dict.fromkeys(("Components",), "afarm.experiment.components"),
    **dict.fromkeys(
        (
            "JudgeEstimate",
            "PlannedStage",
            "estimates",
            "plan_run",
            "reading_client",
        ),
        "afarm.experiment.dry_run",
    ),
    **dict.fromkeys(("judges_behind",), "afarm.experiment.evaluation_stages"),
    **dict.fromkeys(("stored_answers",), "afarm.experiment.judges"),
    **dict.fromkeys(
        (
            "named_methods",
            "require_win_rate",
        ),
        "afarm.experiment.method_comparison",
    ),
    **dict.fromkeys(("open_workspace",), "afarm.experiment.opening"),
    **dict.fromkeys(
        (
            "failures",
            "judging_checks",
            "run_checks",
        ),
        "afarm.experiment.preflight",
    ),
    **dict.fromkeys(("ProcessInfo",), "afarm.experiment.process_info"),
    **dict.fromkeys(("requests_planned",), "afarm.experiment.promises"),
    **dict.fromkeys(
        (
            "BASED_ON",
            "Settings",
            "merge",
            "read_recipe",
            "resolve",
        ),
        "afarm.experiment.recipe",
    ),
    **dict.fromkeys(
        (
            "final_kl",
            "formula_judges",
            "headline",
        ),
        "afarm.experiment.run_record",
    ),
    **dict.fromkeys(("RunConfig",), "afarm.experiment.settings"),
    **dict.fromkeys(("GridProgress",), "afarm.experiment.studies.progress"),
    **dict.fromkeys(
        (
            "PICTURES",
            "STUDY",
            "StudyRecord",
            "read_study_record",
            "write_study_record",
        ),
        "afarm.experiment.studies.record",
    ),
    **dict.fromkeys(("Answers",), "afarm.experiment.studies.study"),
    **dict.fromkeys(
        (
            "Launched",
            "OWN_STAGES",
            "Systems",
            "identity",
            "list_stages",
            "task_graph",
        ),
        "afarm.experiment.tasks",
    ),
    **dict.fromkeys(("require_method",), "afarm.experiment.training_stages"),
    **dict.fromkeys(
        (
            "Workspace",
            "tell_once",
        ),
        "afarm.experiment.workspace",
    ),
    **dict.fromkeys(("JudgeClient",), "afarm.judging.client"),
}
"""The names by their module, imported when first used."""

__all__ = [
    "BASED_ON",
    "OWN_STAGES",
    "PICTURES",
    "STUDY",
    "Answers",
    "Component",
    "Components",
    "GridProgress",
    "JudgeClient",
    "JudgeEstimate",
    "Launched",
    "PlannedStage",
    "Plugins",
    "ProcessInfo",
    "RunConfig",
    "Settings",
    "StudyRecord",
    "Systems",
    "Workspace",
    "attribute_failures",
    "discover",
    "equal_means",
    "estimates",
    "failures",
    "final_kl",
    "formula_judges",
    "headline",
    "identity",
    "judges_behind",
    "judging_checks",
    "list_stages",
    "merge",
    "named_methods",
    "open_workspace",
    "plan_run",
    "read_recipe",
    "read_study_record",
    "reading_client",
    "requests_planned",
    "require_method",
    "require_win_rate",
    "resolve",
    "run_checks",
    "stored_answers",
    "task_graph",
    "tell_once",
    "write_study_record",
]

if not TYPE_CHECKING:  # to a checker, a misspelt name stays an error

    def __getattr__(name: str) -> Any:
        if name not in _ON_FIRST_USE:
            raise AttributeError(f"module 'afarm.experiments' has no attribute {name!r}")
        return getattr(importlib.import_module(_ON_FIRST_USE[name]), name)


def __dir__() -> list[str]:
    return __all__
