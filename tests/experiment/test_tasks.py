"""Stages as tasks: which there are, in which order, and that a machine makes only what the command meant."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from light_farm import Make

from afarm.core.errors import BudgetError
from afarm.experiment import tasks
from afarm.experiment.launching.launcher import Outcome, StageTask, TaskEvent
from afarm.experiment.tasks import Systems, execute, restore_error, task_graph
from afarm_plugins.local_workers.launcher import LocalLauncher


def systems(farm: Make, *names: str, **choices: object) -> Systems:
    return [(name, farm(method=name, **choices).workspace) for name in names]


def by_id(laid_out: Systems) -> dict[str, StageTask]:
    return {task.id: task for task in task_graph(laid_out, "account").tasks}


def test_stages_that_systems_share_are_one_task(farm: Make) -> None:
    found = by_id(systems(farm, "nudge", "direct"))
    assert len(found) == 12
    assert found["train nudge"].after == ("sft", "fit-reward")
    assert found["train direct"].after == ("sft", "annotate")
    assert found["base"].after == ()


def test_equal_names_of_other_seeds_and_settings_are_tasks_of_their_own(farm: Make) -> None:
    found = by_id(
        [
            *systems(farm, "nudge", seed=1),
            *systems(farm, "nudge", seed=2),
            ("nudge", farm("nudge.skill=0.9", seed=2).workspace),
        ]
    )
    trained = [name for name in found if name.startswith("train nudge")]
    assert trained[:2] == ["train nudge, seed 1", "train nudge, seed 2"]
    assert len(trained) == 3
    assert len([name for name in found if name.startswith("sft")]) == 2


def test_what_is_there_is_no_task(farm: Make) -> None:
    laid_out = systems(farm, "nudge")
    farm().sample()
    found = by_id(laid_out)
    assert found.keys().isdisjoint({"base", "sft", "sample"})
    assert found["annotate"].after == ()


def test_what_asks_about_the_same_asks_in_one_processs_order(farm: Make) -> None:
    """A pair of two evaluations would be in two calls if both asked at once."""
    found = by_id([*systems(farm, "nudge", "direct", "online", seed=1), *systems(farm, "direct", seed=2)])
    assert found["evaluate nudge against sft, seed 1"].behind == ()
    assert found["evaluate direct against sft, seed 1"].behind == ("evaluate nudge against sft, seed 1",)
    assert found["train online, seed 1"].behind == ("annotate, seed 1",)
    assert found["evaluate direct against sft, seed 2"].behind == (), "another seed draws its own orders and members"


def test_needs_follow_from_the_stage(farm: Make) -> None:
    found = by_id(systems(farm, "online", "nudge"))
    assert {name for name, task in found.items() if task.needs.asks} == {
        "annotate",
        "train online",
        "evaluate online against sft",
        "evaluate nudge against sft",
    }
    assert not found["base"].needs.gpus
    assert found["train nudge"].needs.gpus == 1
    on_cpus = by_id(systems(farm, "nudge", backend={"device": "cpu"}))
    assert not any(task.needs.gpus for task in on_cpus.values())


def test_a_judge_llm_that_answers_is_asked_and_needs_no_gpu(farm: Make) -> None:
    needs = by_id([("writing:9", farm().workspace)])["outputs writing:9"].needs
    assert (needs.asks, needs.gpus) == (True, 0)


def test_only_what_trains_has_several_processes(farm: Make) -> None:
    graph = task_graph(systems(farm, "nudge"), "account", processes=4)
    several = {task.id: task.needs.processes for task in graph.tasks if task.needs.processes > 1}
    assert several == {"sft": 4, "fit-reward": 4, "train nudge": 4}


def test_a_task_can_be_pickled(farm: Make) -> None:
    graph = task_graph(systems(farm, "nudge"), "account")
    assert pickle.loads(pickle.dumps(graph.tasks)) == list(graph.tasks)


def test_the_width_is_what_can_run_at_once(farm: Make) -> None:
    one, two = (task_graph(systems(farm, *methods), "account") for methods in (["nudge"], ["nudge", "hot"]))
    many = LocalLauncher(spec="99")
    assert one.most_at_once(many, one.tasks) < two.most_at_once(many, two.tasks)


@pytest.fixture
def first(farm: Make, monkeypatch: pytest.MonkeyPatch) -> StageTask:
    """The first task of a run."""
    monkeypatch.setattr(tasks, "_plugins", lambda *chosen: farm().workspace.components.plugins)
    return task_graph(systems(farm, "nudge"), "account").tasks[0]


def heard(task: StageTask) -> tuple[Outcome, list[TaskEvent]]:
    events: list[TaskEvent] = []
    return execute(task, events.append), events


def test_a_machine_with_another_plugin_is_named(first: StageTask) -> None:
    outcome, events = heard(replace(first, source={**first.source, "afarm": "another"}))
    assert events[0].news == "started"
    assert outcome.error_type == "ConfigError"
    assert "has another afarm, plugin, data set or model" in outcome.error
    assert "afarm. Install the same on every machine" in outcome.error


def test_a_machine_that_reads_other_settings_is_named(first: StageTask) -> None:
    outcome, _ = heard(replace(first, farm=replace(first.farm, run={**first.farm.run, "novel": 1})))
    assert "has another afarm" in outcome.error


def test_a_machine_with_other_libraries_is_noted(first: StageTask) -> None:
    _, events = heard(replace(first, farm=replace(first.farm, versions={"python": "2.7"})))
    [noted] = [event.text for event in events if event.news == "noted"]
    assert "for 2.7: its results may differ" in noted


def test_a_machine_that_does_not_see_the_output_directory_is_named(first: StageTask, tmp_path: Path) -> None:
    outcome, _ = heard(replace(first, farm=replace(first.farm, output_dir=str(tmp_path / "elsewhere"))))
    assert outcome.error_type == "StoreError"
    assert f"sees no directory {tmp_path / 'elsewhere'}: share it with every machine" in outcome.error


def test_an_outcome_gives_its_error_back() -> None:
    error = restore_error(Outcome("annotate", place="m2", error="it is spent", error_type="BudgetError"))
    assert isinstance(error, BudgetError)
    assert str(error) == "it is spent (in annotate, on m2)"
