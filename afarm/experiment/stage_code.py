"""The part of afarm's own code that each kind of stage digests into its artifacts' keys.

It is what can change the result, and nothing else: a comment edited in the report makes no artifact again, an edit of
the evaluation trains nothing again, and an edit of the backend never gives yesterday's policy. A test follows every
import from the module of each kind of stage and holds the table to it. The source of plugins is in the keys of the
stages that use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from afarm.experiment.release_numbers import numbered
from afarm.storage.disk import source_digest, source_files

PACKAGE = Path(__file__).parents[1]

_FOUNDATION = (
    *("core", "storage", "backend", "experiment/__init__.py"),
    *("experiment/stage.py", "experiment/stage_code.py", "experiment/plugin_code.py", "experiment/processes.py"),
    "experiment/release_numbers.py",
    "experiment/process_info.py",
    *(
        "experiment/workspace.py",
        "experiment/components.py",
        "experiment/data.py",
        *("experiment/recipe.py", "experiment/config_files.py"),
    ),
    "experiment/own_preferences.py",
    *("experiment/settings.py", "experiment/return_checks.py", "experiment/setting_errors.py"),
)
_OWN_PREFERENCES = (*_FOUNDATION, "experiment/preferences.py")
_TRAINING = (*_FOUNDATION, "experiment/training_stages.py")
_SAMPLING = (*_FOUNDATION, "experiment/sampling_stages.py")
_JUDGING = (*_FOUNDATION, "judging", "experiment/judges.py")
_LABELS = (*_JUDGING, "experiment/annotation.py")
_MEASURING = (
    *("evaluation/__init__.py", "evaluation/biases.py", "evaluation/drift_log.py", "evaluation/judge_flags.py"),
    *("evaluation/matching.py", "evaluation/metrics.py", "evaluation/protocol.py", "evaluation/red_flags.py"),
    *("evaluation/who_judged.py", "evaluation/patterns.yaml"),
)
_EVALUATION = (*_LABELS, *_MEASURING, "experiment/evaluation_stages.py")
_COMPARISON = (*_EVALUATION, "experiment/comparison/__init__.py", "experiment/comparison/outputs.py")

STAGE_CODE: Mapping[str, tuple[str, ...]] = {
    "base": _TRAINING,
    "train": _TRAINING,
    "fit-reward": _TRAINING,
    "sample": _SAMPLING,
    "outputs": _SAMPLING,
    "answers": (*_JUDGING, "experiment/llm_baselines.py"),
    "annotate": _LABELS,
    "preferences": _OWN_PREFERENCES,
    "feedback": _OWN_PREFERENCES,
    "evaluate": _EVALUATION,
    "compare": _COMPARISON,
    "decide": (*_COMPARISON, "experiment/comparison/until_decided.py", "evaluation/statistics"),
    "stored annotations": (
        *(*_COMPARISON, "experiment/comparison/annotations.py", "evaluation/annotation_files.py"),
        "evaluation/spilled_rows.py",
    ),
}
"""The rooms and modules that each kind of stage can reach, as paths below `afarm/`."""


DOORS = "doors"
"""Stands for the code behind the doors, where stages are named."""

DOOR_CODE = (
    *("core", "storage", "judging", "backend"),
    *("evaluation/__init__.py", "evaluation/matching.py", "evaluation/metrics.py", "experiment/setting_errors.py"),
    *("experiment/plugin_code.py", "experiment/config_files.py"),
)
"""The code behind the doors that a third party's component may reach, whatever kind of stage uses it."""


@cache
def code_digest(stage: str, package: Path = PACKAGE) -> str:
    """Digest afarm's code in `package` that the results of a kind of stage, or of `DOORS`, depend on."""
    parts = DOOR_CODE if stage == DOORS else STAGE_CODE[stage]
    return source_digest({name: path for part in parts for name, path in source_files(package / part, package).items()})


def code_identity(stage: str) -> str:
    """Identify the code of a stage, or of `DOORS`, in keys: its number in a release, else its digest."""
    return numbered(stage) or code_digest(stage)
