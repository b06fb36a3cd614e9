"""The best checkpoint instead of the last, for every method that trains on preferences or rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_context, same_weights

from afarm import Pair, Preference, TrainContext, seeding
from afarm.backend.trl_bridge import FEWEST_CHECKPOINTS
from afarm.core.plugins import discover
from afarm.experiment.training_stages import CANDIDATES, candidates
from afarm.testing import tiny_inputs

SHORT = {"max_length": 40, "num_train_epochs": 5, "per_device_train_batch_size": 8, "learning_rate": 1e-2}
ON_POLICY = {
    "rollout_batch_size": 8,
    "mini_batch_size": 8,
    "response_length": 6,
    "max_prompt_length": 30,
    "warmup_steps": 0,
    "total_steps": 5,
    "save_steps": 1,
    "learning_rate": 1e-2,
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "dpo": SHORT,
    "feedme": SHORT,
    "reward_conditioning": SHORT,
    "expert_iteration": SHORT | {"n": 2, "response_length": 6},
    "quark": ON_POLICY | {"num_quantiles": 2},
    "ppo": ON_POLICY,
}


class Favourite:
    """Prefers the candidate of one step to the start's answers, and those to every other; notes what it was asked."""

    def __init__(self, place: int):
        self.place = place
        self.steps: list[str] = []
        self.answers: dict[str, list[str]] = {}

    def __call__(self, pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
        assert noiseless
        step = pairs[0].generator_2
        if step not in self.steps:
            self.steps.append(step)
        self.answers[step] = [pair.output_2 for pair in pairs]
        return [Preference(pair.id, float(self.steps.index(step) == self.place)) for pair in pairs]


def learn(name: str, inputs_annotate: Any, choice: str, context: TrainContext) -> Any:
    component = discover(check_configs=False).registry.get("methods", name)
    method = component.load()(component.settings({**METHODS[name], "checkpoint": choice}))
    inputs = tiny_inputs(method.needs)
    assert bool(inputs.validation) == (choice == "best")
    return method.train(replace(inputs, annotate=inputs_annotate) if choice == "best" else inputs, context)


def answers_of(policy: Any, name: str, context: TrainContext) -> list[str]:
    """What the policy says to the validation instructions, with the draws that candidates answered with."""
    inputs = tiny_inputs({"validation"})
    of_round = seeding.integer(context.seed, "expert_iteration", "train", 1)
    seed = seeding.integer(of_round if name == "expert_iteration" else context.seed, "validation", "candidate")
    return [sample.text for sample in policy.sample(inputs.validation, inputs.decoding, seed=seed)]


@pytest.mark.parametrize("name", METHODS)
def test_the_policy_is_that_of_the_candidate_that_won_most(tmp_path: Path, name: str) -> None:
    favourite = Favourite(2)
    run = make_context(tmp_path / "one")[0]
    chosen = learn(name, favourite, "best", run)
    assert len(favourite.steps) == 5
    assert answers_of(chosen, name, run) == favourite.answers[favourite.steps[2]]
    assert favourite.answers[favourite.steps[2]] != favourite.answers[favourite.steps[4]]


@pytest.mark.parametrize("name", ["feedme", "quark"])
def test_judging_changes_nothing_of_the_training(tmp_path: Path, name: str) -> None:
    judged = learn(name, Favourite(4), "best", make_context(tmp_path / "judged")[0])
    plain = learn(name, None, "last", make_context(tmp_path / "plain")[0])
    assert same_weights(judged.model, plain.model)


@pytest.mark.parametrize(("name", "stop_after"), [("dpo", 3), ("reward_conditioning", 4)])
def test_a_resumed_choice_is_that_of_an_unbroken_run(tmp_path: Path, name: str, stop_after: int) -> None:
    whole, broken = Favourite(1), Favourite(1)
    straight = learn(name, whole, "best", make_context(tmp_path / "straight")[0])
    steps = iter(range(1, 99))
    with pytest.raises(KeyboardInterrupt):
        learn(name, broken, "best", make_context(tmp_path / "broken", should_stop=lambda: next(steps) == stop_after)[0])
    resumed = learn(name, broken, "best", make_context(tmp_path / "broken")[0])
    assert broken.steps == whole.steps, "none is asked about twice, and none where the run was stopped"
    assert same_weights(resumed.model, straight.model)


@pytest.mark.parametrize("name", METHODS)
def test_what_it_needs_and_how_many_candidates_are_planned(name: str) -> None:
    component = discover(check_configs=False).registry.get("methods", name)
    best, last = (component.load()(component.settings({**METHODS[name], "checkpoint": c})) for c in ("best", "last"))
    assert best.needs - last.needs == {"validation", "annotator"}
    assert (candidates(best.config), candidates(last.config)) == (5, 0)
    assert CANDIDATES == FEWEST_CHECKPOINTS, "what is planned is what training compares"
