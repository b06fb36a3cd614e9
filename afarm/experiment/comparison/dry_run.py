"""The plan of a comparison of outputs: if it is stored already, and what judges would be asked."""

from __future__ import annotations

from afarm.experiment.comparison.outputs import OutputComparison
from afarm.experiment.dry_run import JudgeEstimate, PlannedStage, find_or_explain, priced


def plan_comparison(comparison: OutputComparison) -> PlannedStage:
    """Plan the one stage of a comparison, priced from its own prompts."""
    workspace, stage = comparison.workspace, comparison.stage()
    artifact, why = find_or_explain(workspace, stage, {})
    judges: tuple[JudgeEstimate, ...] = ()
    if artifact is None:
        noise = workspace.config.evaluate.label_noise
        judges = priced(workspace, "evaluate", comparison.pairs, comparison.annotator, noise)
    return PlannedStage(stage.kind, stage.label, artifact is not None, why, judges)
