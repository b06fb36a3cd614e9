"""Expert iteration: what it keeps of its samples, its solution of a bandit, rounds, and resuming in any of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bandit import ANSWERS, INSTRUCTIONS, BanditReward, answer_probabilities, bandit_policy
from pydantic import ValidationError
from tiny_models import make_context, make_instructions, make_policy, same_weights

from afarm import LoraConfig
from afarm.backend import CheckpointPolicy
from afarm.backend.rollouts import sample_scorer
from afarm.core.errors import DataError
from afarm.core.interfaces import Decoding, MethodInputs, RewardModel, TrainContext
from afarm.core.records import Instruction, Score
from afarm.testing.models import tiny_reward_model
from afarm_plugins.expert_iteration import ExpertIteration, ExpertIterationConfig, expert_iteration
from afarm_plugins.expert_iteration.expert_iteration import pick_winners, read_winners, round_summary

SMALL: dict[str, Any] = {
    "n": 3,
    "response_length": 6,
    "max_length": 40,
    "per_device_rollout_batch_size": 8,
    "per_device_train_batch_size": 4,
    "num_train_epochs": 1,
    "learning_rate": 1e-3,
    "save_steps": 2,
}


def config(**changes: Any) -> ExpertIterationConfig:
    return ExpertIterationConfig(**{**SMALL, **changes})


def inputs_for(start: CheckpointPolicy, reward_model: RewardModel | None = None) -> MethodInputs:
    return MethodInputs(start, reward_model=reward_model or tiny_reward_model(start), unlabeled=make_instructions(12))


def train(context: TrainContext, inputs: MethodInputs | None = None, **changes: Any) -> CheckpointPolicy:
    policy = ExpertIteration(config(**changes)).train(inputs or inputs_for(make_policy()), context)
    assert isinstance(policy, CheckpointPolicy)
    return policy


class Constant(RewardModel):
    """Likes everything equally."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(0.25) for _ in outputs]


class ByLength(RewardModel):
    """Likes long answers, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        self.asked += len(outputs)
        return [Score(float(len(output))) for output in outputs]


# --------------------------------------------------------------------------------------------------------- sampling


def test_the_best_of_n_is_kept_with_what_is_known_of_all_n() -> None:
    policy = make_policy()
    reward_model, instructions = tiny_reward_model(policy), make_instructions(5)
    decoding = Decoding(max_new_tokens=6, n=4, per_device_batch_size=7)
    winners = list(pick_winners(policy, sample_scorer(reward_model, policy), instructions, decoding, seed=3))
    samples = list(policy.sample(instructions, decoding, seed=3))
    scores = reward_model.score_samples(samples)
    assert len(winners) == 5
    for number, winner in enumerate(winners):
        own = slice(4 * number, 4 * number + 4)
        assert winner.token_ids == samples[own][scores[own].index(max(scores[own]))].token_ids
        assert winner.score == pytest.approx(max(scores[own]), abs=1e-5)
        assert winner.mean_score == pytest.approx(sum(scores[own]) / 4, abs=1e-5)
        assert winner.distinct == len({sample.text for sample in samples[own]}) / 4


def test_equal_rewards_keep_the_sample_drawn_first() -> None:
    policy, decoding = make_policy(), Decoding(max_new_tokens=6, n=4)
    winners = pick_winners(policy, sample_scorer(Constant(), policy), make_instructions(3), decoding, seed=0)
    firsts = list(policy.sample(make_instructions(3), decoding, seed=0))[::4]
    assert [w.token_ids for w in winners] == [s.token_ids for s in firsts]


def test_samples_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first winner is there before the second instruction is sampled, and none but it is held."""
    policy, asked = make_policy(), ByLength()
    decoding = Decoding(max_new_tokens=2, n=64, per_device_batch_size=8)
    winners = pick_winners(policy, sample_scorer(asked, policy), make_instructions(6), decoding, 0)
    next(winners)
    assert asked.asked == 64


def test_a_round_sums_up_what_it_found() -> None:
    made = [
        expert_iteration.Winner("a b", (3, 4), (6, 7, 1), "stop", 2.0, 1.0, 0.5),
        expert_iteration.Winner("a b", (3, 5, 4), (6, 7), "length", 4.0, 0.0, 1.0),
    ]
    assert round_summary(made) == {
        "objective/best_scores": 3.0,
        "objective/scores": 0.5,
        "objective/gain": 2.5,
        "objective/length": 2.5,
        "objective/distinct": 0.75,
        "objective/distinct_best": 0.5,
        "val/num_eos_tokens": 1,
    }


def test_prompts_that_leave_no_room_are_left_out_and_counted(tmp_path: Path) -> None:
    context, log = make_context(tmp_path)
    train(context, max_length=12)
    lengths = [len(ids) for ids in make_policy().prompt_ids(make_instructions(12))]
    assert log.values("data/prompts_left_out") == [sum(n > 6 for n in lengths)]
    assert log.values("examples") == [sum(n <= 6 for n in lengths)]
    with pytest.raises(DataError, match=r"at most 1 tokens .*expert_iteration\.max_length"):
        train(context, max_length=7)


# --------------------------------------------------------------------------------------------------------- learning


def test_the_very_tokens_that_were_sampled_are_learned_with_no_end_where_they_were_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Sequence[int], Sequence[int]]] = []

    def recorded(policy: CheckpointPolicy, examples: Any, *rest: Any, **named: Any) -> CheckpointPolicy:
        seen.extend(examples)
        return policy

    monkeypatch.setattr(expert_iteration, "fit_supervised", recorded)
    context, _ = make_context(tmp_path)
    train(context, response_length=8)
    winners = read_winners(tmp_path / "best_responses" / "round-1")
    assert seen == [(w.prompt_ids, w.token_ids) for w in winners]
    assert [list(prompt) for prompt, _ in seen] == make_policy().prompt_ids(make_instructions(12))
    assert {w.finish_reason for w in winners} == {"stop", "length"}
    for winner in winners:
        assert (winner.token_ids[-1] == 1) == (winner.finish_reason == "stop")


def test_a_bandits_best_answer_gets_most_of_the_probability(tmp_path: Path) -> None:
    """With n samples the best answer, of probability p, is among them with 1 − (1 − p)ⁿ: what SFT on them learns."""
    start = bandit_policy()
    more = [Instruction(f"{i.instruction} {'w39 ' * k}".strip()) for i in INSTRUCTIONS for k in (0, 1, 2, 3, 4, 5)]
    context, log = make_context(tmp_path)
    inputs = MethodInputs(start, reward_model=BanditReward(), unlabeled=more)
    settings: dict[str, Any] = {"n": 64, "response_length": 2, "num_train_epochs": 15, "learning_rate": 5e-3}
    settings |= {"per_device_rollout_batch_size": 64, "per_device_train_batch_size": 18, "save_steps": 0}
    trained = train(context, inputs, **settings)
    best = answer_probabilities(trained)[:, ANSWERS.index("w12")]
    assert float(answer_probabilities(start)[:, ANSWERS.index("w12")].max()) < 0.2
    assert float(best.min()) > 0.9
    assert log.values("objective/gain")[0] > 0.3


class Short(RewardModel):
    """Likes short answers."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(-float(len(output))) for output in outputs]


def test_the_end_of_sequence_is_learned(tmp_path: Path) -> None:
    start = make_policy()
    trained = train(make_context(tmp_path)[0], inputs_for(start, Short()), num_train_epochs=10, n=8, learning_rate=5e-3)

    def ended(policy: CheckpointPolicy) -> int:
        samples = policy.sample(make_instructions(40), Decoding(max_new_tokens=6), seed=1)
        return sum(sample.finish_reason == "stop" for sample in samples)

    assert ended(trained) >= 2 * ended(start) > 0


@pytest.mark.parametrize(("pool", "learned_from"), [("replace", [12, 12]), ("accumulate", [12, 24])])
def test_rounds_sample_the_policy_of_the_one_before_and_train_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str, learned_from: list[int]
) -> None:
    begun: list[CheckpointPolicy] = []
    fit = expert_iteration.fit_supervised

    def recorded(policy: CheckpointPolicy, *rest: Any, **named: Any) -> CheckpointPolicy:
        begun.append(policy.copy())
        return fit(policy, *rest, **named)

    monkeypatch.setattr(expert_iteration, "fit_supervised", recorded)
    context, log = make_context(tmp_path)
    train(context, rounds=2, pool=pool, learning_rate=3e-2)
    assert len(begun) == 2
    assert all(same_weights(policy.model, make_policy().model) for policy in begun)
    assert log.values("round") == [1, 2]
    assert log.values("examples") == learned_from
    first, second = (read_winners(tmp_path / "best_responses" / f"round-{number}") for number in (1, 2))
    assert [w.prompt_ids for w in first] == [w.prompt_ids for w in second]
    assert [w.token_ids for w in first] != [w.token_ids for w in second]
    steps = [step for step, metrics in log.lines if "loss" in metrics]
    assert steps == list(range(1, len(steps) + 1))


def test_one_sample_is_nothing_special_and_a_constant_reward_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context, log = make_context(tmp_path)
    train(context, inputs_for(make_policy(), Constant()), n=1)
    assert caplog.text.count("teaches nothing") == 1
    assert log.values("objective/gain") == [0.0]
    assert log.values("objective/distinct") == [1.0]


# ------------------------------------------------------------------------------------------------------------ resuming


class Kill(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> CheckpointPolicy:
    """Two rounds of all weights that nothing kills."""
    return train(make_context(tmp_path_factory.mktemp("whole"))[0], rounds=2, pool="accumulate", lora=None)


@pytest.mark.parametrize(
    ("killed_at", "lora", "sampled"),
    [(1, None, [1, 2]), (4, LoraConfig(r=2), [2]), (5, None, [2]), (6, None, [2]), (9, None, [])],
)
def test_killed_at_any_line_of_the_log_it_ends_as_it_would_have(
    tmp_path: Path, uninterrupted: CheckpointPolicy, killed_at: int, lora: Any, sampled: list[int]
) -> None:
    """Two rounds, each of: sampling, steps with a checkpoint after each second and the last, and the end.

    What is in the log up to the checkpoint is kept there, so a round that was `sampled` is not logged again.
    """
    settings: dict[str, Any] = {"rounds": 2, "pool": "accumulate", "lora": lora}
    whole = train(make_context(tmp_path / "whole")[0], **settings) if lora else uninterrupted
    context, _ = make_context(tmp_path / "cut")
    lines = 0

    def kill(step: int, metrics: Any) -> None:
        nonlocal lines
        lines += 1
        if lines == killed_at:
            raise Kill

    with pytest.raises(Kill):
        train(replace(context, log_metrics=kill), **settings)
    reward_model = tiny_reward_model(make_policy())
    context, log = make_context(tmp_path / "cut")
    again = train(context, inputs_for(make_policy(), reward_model), **settings)
    assert same_weights(again.model, whole.model)
    assert log.values("round") == sampled


def test_killed_while_sampling_it_samples_the_rest_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_iteration, "PROMPTS_PER_FILE", 5)
    whole = train(make_context(tmp_path / "whole")[0], inputs_for(make_policy(), ByLength()))
    stopped, _ = make_context(tmp_path / "cut", should_stop=lambda: True)
    asked = ByLength()
    with pytest.raises(KeyboardInterrupt):
        train(stopped, inputs_for(make_policy(), asked))
    assert asked.asked == 5 * 3
    context, log = make_context(tmp_path / "cut")
    again = train(context, inputs_for(make_policy(), asked))
    assert asked.asked == 12 * 3
    assert same_weights(again.model, whole.model)
    assert len(log.values("round")) == 1


@pytest.mark.parametrize("wrong", [{"response_length": 512}, {"n": 0}, {"rounds": 0}, {"pool": "reset"}])
def test_settings_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ExpertIterationConfig(**wrong)
