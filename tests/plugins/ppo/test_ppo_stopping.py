"""PPO: which checkpoint is kept, how the KL is held, when a rollout or the training is left."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bandit
import pytest
import torch
from test_ppo import (
    BACKEND,
    INSTRUCTIONS,
    SMALL,
    Run,
    assert_same_weights,
    inputs_for,
    started,
    tiny_policy,
    tiny_reward_model,
    train,
)

from afarm import LoraConfig
from afarm.backend import (
    CheckpointPolicy,
    CheckpointSelection,
    Diverged,
    PromptTemplate,
    TorchRewardModel,
    Training,
    rollout,
    score,
)
from afarm.core.errors import TrainingError
from afarm.core.interfaces import Decoding, MethodInputs, PairLabels, Policy, RewardModel, TrainContext
from afarm.core.records import Instruction, Pair, Preference, Sample, Score
from afarm.experiment import pipeline
from afarm.experiment.dry_run import plan_run
from afarm.experiment.farm import Farm
from afarm.experiment.training_stages import candidates
from afarm.testing.models import tiny_tokenizer
from afarm_plugins.ppo import PPO, PPOConfig, ppo

VALIDATION = [Instruction(f"{word} five") for word in ("one", "two", "three", "four")]
DECODING = Decoding(temperature=0.7, max_new_tokens=6)


class Says(Policy):
    """Answers each instruction with its part of a text, and remembers how it was asked."""

    def __init__(self, *answers: str):
        self.answers = answers
        self.asked: list[tuple[Decoding, int]] = []

    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        self.asked.append((decoding, seed))
        return (Sample(answer) for _, answer in zip(instructions, self.answers, strict=True))

    def save(self, directory: Path) -> None: ...

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> Policy:
        return cls()


def longer(pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
    """The longer output wins, equally long ones draw, and where one is "?" the answer cannot be read."""
    found = []
    for pair in pairs:
        if "?" in (pair.output_1, pair.output_2):
            found.append(Preference(pair.id, None, "unparsed"))
        elif len(pair.output_1) == len(pair.output_2):
            found.append(Preference(pair.id, None, "draw"))
        else:
            found.append(Preference(pair.id, float(len(pair.output_2) > len(pair.output_1))))
    return found


def selection(directory: Path, *answers: str) -> tuple[CheckpointSelection, Says]:
    start = Says(*answers)
    inputs = MethodInputs(start, validation=VALIDATION[: len(answers)], annotate=longer, decoding=DECODING)
    return CheckpointSelection(inputs, Run(directory).context), start


# ------------------------------------------------------------------------------------------------- choosing by win rate


def test_the_win_rate_counts_draws_as_halves_and_leaves_out_what_was_not_read(tmp_path: Path) -> None:
    chosen, _ = selection(tmp_path, "aa", "aa", "aa", "aa")
    found = chosen.compare(5, Says("aaa", "aa", "a", "?"), kl=1.5)  # a win, a draw, a loss, and nothing
    assert found["validation/win_rate"] == 50.0
    assert found["validation/standard_error"] == pytest.approx(100 * statistics.stdev([1, 0.5, 0]) / math.sqrt(3))
    assert found["validation/length"] == 7 / 4
    found = chosen.compare(10, Says("aaa", "aa", "aaa", "?"))
    assert (found["best/step"], found["last/step"], found["last/win_rate"]) == (10, 10, pytest.approx(250 / 3))
    found = chosen.compare(15, Says("a", "a", "a", "a"))
    assert (found["best/step"], found["best/win_rate"]) == (10, pytest.approx(250 / 3))
    assert (found["last/step"], found["last/win_rate"]) == (15, 0.0)


def test_of_equal_win_rates_the_earliest_is_the_best_and_it_brings_its_kl(tmp_path: Path) -> None:
    chosen, _ = selection(tmp_path, "a", "a")
    for step in (1, 2, 3):
        found = chosen.compare(step, Says("aa", "aa"), kl=10.0 * step)
    assert (found["best/step"], found["best/kl"], found["last/step"]) == (1, 10.0, 3)


def test_the_start_answers_once_and_candidates_share_their_draws(tmp_path: Path) -> None:
    chosen, start = selection(tmp_path, "a", "b")
    candidates = [Says("a", "c"), Says("d", "b")]
    for step, candidate in enumerate(candidates):
        chosen.compare(step, candidate)
    (first,), (second,) = candidates[0].asked, candidates[1].asked
    assert first == second
    assert start.asked == [(DECODING, start.asked[0][1])]
    assert start.asked[0][1] != first[1]
    assert first[0] == DECODING


def test_what_was_saved_goes_on_without_asking_the_start_again(tmp_path: Path) -> None:
    one, _ = selection(tmp_path, "a", "b")
    one.compare(1, Says("aa", "bb"))
    checkpoints = one.context.checkpoints
    checkpoints.save(1, lambda directory: one.save(1, {"w": torch.ones(2)}, directory))
    one.compare(2, Says("a", "b"))
    checkpoints.save(2, lambda directory: one.save(2, {"w": torch.zeros(2)}, directory))
    two, start = selection(tmp_path, "a", "b")
    two.load(tmp_path / "checkpoints/2")
    assert two.candidates == one.candidates
    assert two.best_weights()["w"].tolist() == [1, 1]
    assert two.compare(3, Says("aa", "b"))["validation/win_rate"] == 75.0
    assert start.asked == []


def test_one_pair_has_no_standard_error(tmp_path: Path) -> None:
    chosen, _ = selection(tmp_path, "a")
    assert "validation/standard_error" not in chosen.compare(1, Says("aa"))


def test_no_readable_judgement_is_an_error_that_names_the_step(tmp_path: Path) -> None:
    chosen, _ = selection(tmp_path, "?", "?")
    with pytest.raises(TrainingError, match="step 7: none of the 2 validation pairs"):
        chosen.compare(7, Says("a", "b"))


# ------------------------------------------------------------------------------------------------ PPO's best checkpoint


def prefers(wins: dict[int, float], asked: list[int] | None = None) -> PairLabels:
    """An annotator that gives the candidate of each step this share of a win, whatever it wrote."""

    def annotate(pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
        assert noiseless, "label noise would choose"
        step = int(pairs[0].generator_2)
        if asked is not None:
            asked.append(step)
        return [Preference(pair.id, wins[step]) for pair in pairs]

    return annotate


def judged_inputs(annotate: PairLabels) -> MethodInputs:
    return replace(inputs_for(tiny_policy()), validation=VALIDATION, annotate=annotate, decoding=DECODING)


BEST: dict[str, Any] = {"total_steps": 5, "save_steps": 2, "checkpoint": "best", "mini_batch_size": 6}
"""Candidates are steps 2, 4 and 5."""


LORA = LoraConfig(r=2)


@pytest.mark.parametrize(
    ("best", "networks"),
    [
        (2, {}),
        (5, {}),
        (4, {"lora": LORA, "layout": "shared", "shared_value": "adapter", "value_init": "sft"}),
    ],
)
def test_the_policy_of_the_best_step_is_returned(tmp_path: Path, best: int, networks: dict[str, Any]) -> None:
    asked: list[int] = []
    wins = {2: 0.5, 4: 0.5, 5: 0.5} | {best: 0.75}
    run = Run(tmp_path / "best")
    chosen = train(tmp_path, run, judged_inputs(prefers(wins, asked)), **networks, **BEST)
    assert asked == [2, 4, 5]
    assert (run.metrics[-1]["best/step"], run.metrics[-1]["best/win_rate"]) == (best, 75.0)
    assert (run.metrics[-1]["last/step"], run.metrics[-1]["last/win_rate"]) == (5, 100 * wins[5])
    # The KL of what was kept: that of the samples which it drew itself, for the step after it or at the end.
    its_kl = run.metrics[best]["objective/kl"] if best < 5 else run.metrics[-1]["last/kl"]
    assert run.metrics[-1]["best/kl"] == its_kl > 0
    # The same training without any judging, stopped at that step.
    plain = Run(tmp_path / "plain", stop_after=best)
    settings = {**BEST, **networks, "checkpoint": "last"}
    if best < 5:
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, plain, **settings)
    else:
        train(tmp_path, plain, **settings)
    weights = torch.load(tmp_path / f"plain/checkpoints/{best}/trainer.pt")["weights"]
    trained = {f"policy.{name}": p for name, p in chosen.model.named_parameters() if p.requires_grad}
    assert trained.keys() == {name for name in weights if name.startswith("policy.")}
    for name, parameter in trained.items():
        assert torch.equal(parameter, weights[name])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, CheckpointPolicy]:
    """A choice of step 2, which nothing interrupts."""
    directory = tmp_path_factory.mktemp("straight")
    straight = Run(directory)
    return straight, train(directory, straight, judged_inputs(prefers({2: 0.75, 4: 0.5, 5: 0.5})), **BEST)


def test_a_resumed_choice_equals_an_uninterrupted_one(
    tmp_path: Path, uninterrupted: tuple[Run, CheckpointPolicy]
) -> None:
    annotate = prefers({2: 0.75, 4: 0.5, 5: 0.5})
    straight, one = uninterrupted
    stopped, resumed = Run(tmp_path / "resumed", stop_after=3), Run(tmp_path / "resumed")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, stopped, judged_inputs(annotate), **BEST)
    two = train(tmp_path, resumed, judged_inputs(annotate), **BEST)
    assert_same_weights(one.model, two.model)
    assert stopped.metrics + resumed.metrics == straight.metrics
    again = Run(tmp_path / "resumed")  # killed after the last step, before its result was stored
    assert_same_weights(one.model, train(tmp_path, again, judged_inputs(annotate), **BEST).model)
    assert again.metrics == []


def test_two_sets_of_policy_weights_are_kept_at_most(uninterrupted: tuple[Run, CheckpointPolicy]) -> None:
    directory = uninterrupted[0].context.directory
    kept = sorted(str(path.relative_to(directory)) for path in (directory / "checkpoints").rglob("*.*"))
    assert kept == [f"checkpoints/5/{name}" for name in ("best.pt", "selection.json", "trainer.pt")]


def test_choosing_by_win_rate_needs_what_it_is_chosen_by_and_says_how_much() -> None:
    best, last = PPO(PPOConfig()), PPO(PPOConfig(checkpoint="last"))
    assert best.needs - last.needs == {"validation", "annotator"}
    assert PPO.needs == last.needs
    assert candidates(best.config) == 20  # 390 / 20 and the last step
    assert candidates(PPOConfig(**{**SMALL, **BEST})) == 3
    assert candidates(last.config) == 0


# -------------------------------------------------------------------------------------------------- holding the KL


def test_a_kl_beyond_the_limit_stops_and_the_best_checkpoint_before_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"total_steps": 9, "save_steps": 1, "kl_coef": 0.0, "checkpoint": "best"}
    run, always = Run(tmp_path), prefers({step: 1 / step for step in range(1, 10)})
    kept = train(tmp_path, run, judged_inputs(always), max_kl=0.8, **settings)
    last = run.metrics[-1]
    assert last == {"step": last["step"], "stopped/max_kl": last["step"]}
    assert 2 < last["step"] < 9
    assert all(metrics["objective/kl"] <= 0.8 for metrics in run.metrics[:-1])
    assert "more than ppo.max_kl (0.8)" in caplog.text
    first = Run(tmp_path / "first", stop_after=1)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, first, judged_inputs(always), **settings)
    weights = torch.load(tmp_path / "first/checkpoints/1/trainer.pt")["weights"]
    assert torch.equal(kept.model.lm_head.weight, weights["policy.lm_head.weight"])


def test_the_policy_that_exceeded_the_limit_is_not_what_is_kept(tmp_path: Path) -> None:
    settings = {"total_steps": 9, "save_steps": 1, "kl_coef": 0.0}
    run = Run(tmp_path / "run")
    kept = train(tmp_path, run, max_kl=0.8, **settings)
    found_at = int(run.metrics[-1]["stopped/max_kl"])  # in what was sampled for this step, by the policy before it
    plain = Run(tmp_path / "plain", stop_after=found_at - 2)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, plain, **settings)
    weights = torch.load(tmp_path / f"plain/checkpoints/{found_at - 2}/trainer.pt")["weights"]
    assert torch.equal(kept.model.lm_head.weight, weights["policy.lm_head.weight"])


def test_the_last_policy_is_looked_at_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def watched(training: Training, step: int, kl: float) -> None:
        if step == 3:  # nothing is learned from these samples
            raise Diverged(training.config, step + 1, "far away", "max_kl")

    monkeypatch.setattr(ppo, "watch_kl", watched)
    run = Run(tmp_path / "run")
    kept = train(tmp_path, run, total_steps=3, save_steps=1)
    assert run.metrics[-1]["stopped/max_kl"] == 4
    weights = torch.load(tmp_path / "run/checkpoints/2/trainer.pt")["weights"]
    assert torch.equal(kept.model.lm_head.weight, weights["policy.lm_head.weight"])


def test_a_kl_beyond_the_limit_before_any_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"ppo\.max_kl \(1\)\. Try"):
        train(tmp_path, total_steps=9, learning_rate=0.02, kl_coef=0.0, max_kl=1.0)


def test_the_adaptive_coefficient_follows_the_kl_and_is_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"total_steps": 6, "kl_controller": "adaptive", "kl_target": 0.05, "kl_horizon": 60}
    settings["mini_batch_size"] = 12
    straight = Run(tmp_path / "straight")
    one = train(tmp_path, straight, **settings)
    coefficients = [metrics["objective/kl_coef"] for metrics in straight.metrics]
    assert coefficients[:2] == pytest.approx([0.1, 0.1 * (1 - 0.2 * 12 / 60)])  # the KL of the start is 0
    for metrics, now, then in zip(straight.metrics, coefficients, coefficients[1:], strict=False):
        assert (metrics["objective/kl"] > 0.05) == (then > now)
        assert metrics["objective/non_score_reward"] == pytest.approx(-now * metrics["objective/kl"], abs=1e-6)
    assert coefficients[-1] > min(coefficients)
    stopped, resumed = Run(tmp_path / "resumed", stop_after=3), Run(tmp_path / "resumed")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, stopped, **settings)
    assert_same_weights(one.model, train(tmp_path, resumed, **settings).model)
    assert stopped.metrics + resumed.metrics == straight.metrics


def test_passes_end_where_the_policy_has_moved_far_from_the_one_that_sampled(tmp_path: Path) -> None:
    free, wide, narrow = Run(tmp_path / "free"), Run(tmp_path / "wide"), Run(tmp_path / "narrow")
    one = train(tmp_path, free, total_steps=1)
    two = train(tmp_path, wide, total_steps=1, target_approx_kl=100.0)
    assert_same_weights(one.model, two.model)
    assert wide.metrics[0]["policy/skipped_minibatches"] == 0
    train(tmp_path, narrow, total_steps=1, target_approx_kl=1e-9)
    assert narrow.metrics[0]["policy/skipped_minibatches"] == 5  # of 2 passes of 3: the first has not moved yet
    assert narrow.metrics[0]["policy/approxkl_avg"] == pytest.approx(0, abs=1e-9)
    assert narrow.metrics[0]["policy/approxkl_avg"] < free.metrics[0]["policy/approxkl_avg"]


# -------------------------------------------------------------------------------------------------------- bad input


def test_a_constant_reward_is_said_and_ends_with_finite_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Constant(RewardModel):
        def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> Sequence[Score]:
            return [Score(3.0) for _ in outputs]

    run = Run(tmp_path)
    inputs = MethodInputs(tiny_policy(), reward_model=Constant(), unlabeled=INSTRUCTIONS)
    train(tmp_path, run, inputs, value_init="sft", total_steps=4)
    assert "responses has the reward 3" in caplog.text
    for metrics in run.metrics:
        assert metrics["objective/scores_std"] == 0
        assert all(math.isfinite(value) for value in metrics.values())
    caplog.clear()
    train(tmp_path / "other")
    assert "first rollout" not in caplog.text


def test_a_batch_of_one_and_more_than_there_are_prompts_both_train(tmp_path: Path) -> None:
    for name, size in (("one", 1), ("many", 40)):
        run = Run(tmp_path / name)
        train(tmp_path, run, rollout_batch_size=size, mini_batch_size=size, total_steps=3)
        assert [metrics["episode"] for metrics in run.metrics] == [size, 2 * size, 3 * size]
        assert all(math.isfinite(value) for metrics in run.metrics for value in metrics.values())


def other_tokens() -> TorchRewardModel:
    """A reward model over words of its own."""
    tokenizer = tiny_tokenizer()
    policy = tiny_policy()
    policy.model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    other = CheckpointPolicy(policy.model, tokenizer, PromptTemplate("chat", tokenizer), BACKEND)
    return tiny_reward_model(other)


def test_a_reward_model_with_another_tokenizer_gets_the_text_or_is_refused_with_the_setting(tmp_path: Path) -> None:
    model = other_tokens()
    inputs = MethodInputs(tiny_policy(), reward_model=model, unlabeled=INSTRUCTIONS)
    with pytest.raises(TrainingError, match=r"policy's tokens.*ppo\.value_init=sft"):
        train(tmp_path, inputs=inputs)
    training, _ = started(tmp_path, inputs, value_init="sft")
    prompts, samples = rollout(training, 0)
    instructions = [training.prompts[prompt] for prompt in prompts]
    expected = [scored.value for scored in model.score(instructions, [sample.text for sample in samples])]
    assert score(training, prompts, samples) == pytest.approx(expected)
    assert max(expected) > min(expected)


def test_prompts_that_are_left_out_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, total_steps=1, max_prompt_length=7)
    left_out = sum(len(ids) > 7 for ids in tiny_policy().prompt_ids(INSTRUCTIONS))
    assert f"{left_out} of 15 unlabeled instructions have prompts of more than 7 tokens" in caplog.text


def test_a_plan_counts_the_comparisons_that_choosing_buys_and_the_key_holds_what_they_hang_on(tmp_path: Path) -> None:
    settings = ["rows.validation=10", "annotate.annotator=chatgpt_1", "ppo.total_steps=12", "ppo.save_steps=5"]
    settings.append("ppo.checkpoint=best")

    def farm(*more: str) -> Farm:
        return Farm("toy", settings=[*settings, *more], output_dir=tmp_path)

    def key(made: Farm) -> object:
        return pipeline.train(made.workspace, "ppo").key_fields

    unjudged = "ppo.checkpoint=last"
    best, last = farm(), farm(unjudged)
    for made, least, most in ((best, 10, 3 * 10), (last, 0, 0)):  # of three checkpoints' outputs some are alike
        train_ppo = next(stage for stage in plan_run(made.workspace, "ppo") if stage.label == "train ppo")
        assert least <= train_ppo.calls <= most
    assert key(farm("evaluate.temperature=0.5")) != key(best) != key(farm("rows.validation=9"))
    assert key(farm("evaluate.temperature=0.5", unjudged)) == key(last) == key(farm(unjudged, "rows.validation=9"))


def test_a_bandit_of_several_answers_ends_at_its_tilted_policy(tmp_path: Path) -> None:
    """Two tokens, the answer and its end: the optimum is π_start · exp(reward / β), normalised, answer by answer."""
    beta = 0.5
    start = bandit.bandit_policy()
    inputs = MethodInputs(start, reward_model=bandit.BanditReward(), unlabeled=bandit.INSTRUCTIONS)
    before = bandit.answer_probabilities(start)
    optimum = bandit.tilted(before, beta)
    settings = {"rollout_batch_size": 120, "mini_batch_size": 120, "total_steps": 14, "learning_rate": 4e-3}
    settings |= {"num_generations": 40, "per_device_rollout_batch_size": 120}  # one batch is sampled
    trained = train(tmp_path, None, inputs, response_length=2, kl_coef=beta, value_init="sft", **settings)
    reached = bandit.answer_probabilities(trained)
    assert bandit.kl_to(optimum, reached) < 0.01 < bandit.kl_to(optimum, before) / 4
    assert float((reached - optimum).abs().max()) < 0.1
