"""The part of afarm's own code that an artifact's key digests: what can change this kind of stage, and nothing else.

A comment edited in the report makes no artifact again, an edited evaluator trains nothing again, and an edit of the
backend never gives yesterday's policy. A test follows every import from the module of each kind of stage and holds
the table to it. The source of plugins is in the keys of the stages that use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from afarm.storage.disk import source_digest

PACKAGE = Path(__file__).parents[1]

_FOUNDATION = (
    *("core", "storage", "backend"),
    *("experiment/stage.py", "experiment/stage_code.py", "experiment/workspace.py", "experiment/processes.py"),
    *("experiment/components.py", "experiment/data.py", "experiment/recipe.py", "experiment/settings.py"),
)
_TRAINING = (*_FOUNDATION, "experiment/training_stages.py")
_SAMPLING = (*_FOUNDATION, "experiment/sampling_stages.py")
_LABELS = (*_FOUNDATION, "judging", "experiment/judges.py", "experiment/annotation.py")
_ANSWERS = (*_FOUNDATION, "judging", "experiment/judges.py", "experiment/llm_baselines.py")
_EVALUATION = (*_LABELS, "statistics", "evaluation", "experiment/evaluation_stages.py")
_COMPARISON = (*_EVALUATION, "comparison")

STAGE_CODE: Mapping[str, tuple[str, ...]] = {
    "base": _TRAINING,
    "train": _TRAINING,
    "fit-reward": _TRAINING,
    "sample": _SAMPLING,
    "outputs": _SAMPLING,
    "answers": _ANSWERS,
    "annotate": _LABELS,
    "evaluate": _EVALUATION,
    "compare": _COMPARISON,
    "decide": _COMPARISON,
    "stored annotations": _COMPARISON,
}
"""The rooms and modules that each kind of stage can reach, as paths below `afarm/`."""


@cache
def code_digest(stage: str, package: Path = PACKAGE) -> str:
    """Digest the code of afarm in `package` that the result of this kind of stage depends on."""
    return source_digest([package / part for part in STAGE_CODE[stage]])
