"""The door to experiments: a plan made through it is the plan of the command."""

from __future__ import annotations

from light_farm import Make

from afarm.experiments import PlannedStage, plan_run


def test_a_plan_names_the_stages_of_a_run_and_what_they_would_buy(farm: Make) -> None:
    one = farm()
    stages = plan_run(one.workspace, "nudge")
    assert all(isinstance(stage, PlannedStage) for stage in stages)
    planned = {stage.kind: stage for stage in stages}
    assert 0 < planned["evaluate"].calls <= 10, "a call per pair whose outputs differ"
    assert not planned["train"].reused
    one.evaluate()
    assert all(stage.reused for stage in plan_run(one.workspace, "nudge"))
