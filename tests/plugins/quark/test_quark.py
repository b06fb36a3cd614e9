"""Quark: its quantiles and loss by hand, its invariances, its solution of a bandit, resuming and stopping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from bandit import ANSWERS, INSTRUCTIONS, OTHER, REWARDS, BanditReward, answer_probabilities, bandit_policy, kl_to
from nan_reward import turns_nan
from pydantic import ValidationError
from tiny_models import DiskCheckpoints, Recorder, make_context, make_instructions, make_policy, same_weights

from afarm import LoraConfig
from afarm.backend import CheckpointPolicy, Training, join_and_pad, response_logprobs, save_if_due
from afarm.core.errors import DataError, TrainingError
from afarm.core.interfaces import Decoding, MethodInputs, RewardModel, TrainContext
from afarm.core.records import Instruction, Score
from afarm.testing.models import tiny_reward_model
from afarm_plugins.quark import Quark, QuarkConfig
from afarm_plugins.quark import quark as module
from afarm_plugins.quark.quark import Rollout, TrainingExample, quantile_bins, quark_loss

SMALL: dict[str, Any] = {
    "total_steps": 4,
    "rollout_batch_size": 10,
    "mini_batch_size": 5,
    "per_device_train_batch_size": 64,
    "per_device_rollout_batch_size": 64,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
    "response_length": 6,
    "max_prompt_length": 30,
    "save_steps": 100,
}


def config(**changes: Any) -> QuarkConfig:
    return QuarkConfig(**{**SMALL, **changes})


def inputs_for(start: CheckpointPolicy, reward_model: RewardModel | None = None) -> MethodInputs:
    return MethodInputs(start, reward_model=reward_model or tiny_reward_model(start), unlabeled=make_instructions(12))


def train(context: TrainContext, inputs: MethodInputs | None = None, **changes: Any) -> CheckpointPolicy:
    policy = Quark(config(**changes)).train(inputs or inputs_for(make_policy()), context)
    assert isinstance(policy, CheckpointPolicy)
    return policy


def gradients(training: Training) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in training.trained.items() if p.grad is not None}


@dataclass
class Step:
    """What a step sampled, the pool's scores and their quantiles, the minibatches that it learned from, its KL."""

    rollouts: list[Rollout]
    scores: torch.Tensor
    bins: torch.Tensor
    minibatches: list[list[TrainingExample]] = field(default_factory=list)


@dataclass
class Watched:
    """A training that was looked at while it ran."""

    training: Training = field(init=False)
    steps: list[Step] = field(default_factory=list)


def watch(
    context: TrainContext,
    inputs: MethodInputs | None = None,
    before: Callable[[Training], object] = lambda training: None,
    **changes: Any,
) -> Watched:
    """Train and look at it; `before` it, the training may be changed."""
    watched = Watched()
    start, measure, read = module.start_quark, module.pool_metrics, module.read_divergence

    def start_watched(*args: Any) -> Any:
        started = start(*args)
        watched.training = started[0]
        before(watched.training)
        return started

    def measure_watched(training: Training, rollouts: list[Rollout], scores: Any, bins: Any) -> dict[str, float]:
        watched.steps.append(Step(rollouts, scores, bins))
        return measure(training, rollouts, scores, bins)

    def read_watched(training: Training, minibatch: list[TrainingExample], *, learn: bool) -> Any:
        if learn:
            watched.steps[-1].minibatches.append(minibatch)
        return read(training, minibatch, learn=learn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "start_quark", start_watched)
        patch.setattr(module, "pool_metrics", measure_watched)
        patch.setattr(module, "read_divergence", read_watched)
        train(context, inputs, **changes)
    return watched


# ------------------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("scores", "quantiles", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
        ([0.3, -1.0, 2.5, 0.0], 2, [1, 0, 1, 0]),
        ([1, 2, 3, 4, 5, 6, 7], 3, [0, 0, 1, 1, 2, 2, 2]),  # ⌈3m/7⌉ − 1 for m = 1 … 7
        ([0, 1, 1, 1, 2, 2], 3, [0, 1, 1, 1, 2, 2]),  # ties share the best of the quantiles they span
        ([0, 0, 0, 1], 4, [2, 2, 2, 3]),
        ([5, 5, 5, 5], 4, [3, 3, 3, 3]),  # nothing to tell them apart
        ([1, 2, 3], 5, [1, 3, 4]),  # fewer scores than quantiles
        ([7], 3, [2]),
    ],
)
def test_quantiles_worked_by_hand(scores: list[float], quantiles: int, expected: list[int]) -> None:
    assert quantile_bins(torch.tensor(scores, dtype=torch.float64), quantiles).tolist() == expected


def test_quantiles_do_not_depend_on_the_order_of_scores() -> None:
    scores = torch.tensor([3.0, 1.0, 1.0, 2.0, 2.0, 2.0, 5.0, 4.0])
    order = torch.tensor([6, 2, 0, 5, 3, 7, 1, 4])
    assert torch.equal(quantile_bins(scores[order], 3), quantile_bins(scores, 3)[order])


def test_the_loss_worked_by_hand() -> None:
    """Two responses, of two tokens and of one: 1 + 2 + 3 of likelihood, ½ · (0.2 + 0.4 + 0.6) of KL, 0.1 · 6 back."""
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])
    kl = torch.tensor([[0.2, 0.4], [0.6, 0.0]])
    entropy = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    assert float(quark_loss(logprobs, kl, entropy, 0.5, 0.1)) == pytest.approx(6 + 0.6 - 0.6)


# ---------------------------------------------------------------------------------------------------- invariances


@pytest.mark.parametrize(("variant", "vocabulary"), [("top", 45), ("all", 45), ("all", 48), ("all", 60)])
def test_the_gradient_equals_one_written_out_row_by_row(tmp_path: Path, variant: str, vocabulary: int) -> None:
    """No batches, no pads, no chunks: each example on its own, from whole softmaxes.

    Some models have room in their vocabulary, into which control tokens fit with nothing to make larger.
    """
    settings: dict[str, Any] = {"variant": variant, "kl_coef": 0.3, "entropy_coef": 0.1, "mini_batch_size": 10}
    watched = watch(
        make_context(tmp_path)[0], inputs_for(make_policy(vocab_size=vocabulary)), total_steps=1, **settings
    )
    training, examples = watched.training, watched.steps[0].minibatches[0]
    policy, reference = training.policy.model, training.start.model
    control_ids = training.policy.tokenizer.convert_tokens_to_ids(list(training.policy.control_tokens))
    kept = [token for token in range(vocabulary) if token not in control_ids]
    for parameter in training.trained.values():  # away from the reference, so that the KL takes part
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    assert len(examples) == (2 if variant == "top" else 10)
    module.read_divergence(training, examples, learn=True)
    found = gradients(training)
    training.optimizer.zero_grad(set_to_none=False)
    total, tokens = torch.zeros(()), 0
    for example in examples:
        ids, response = [*example.prompt, *example.response], list(example.response)
        logits = policy(torch.tensor([ids])).logits[0, len(example.prompt) - 1 : -1]
        plain = torch.tensor([[*example.reference_prompt, *example.response]])
        start = reference(plain).logits[0, len(example.reference_prompt) - 1 : -1].detach()
        p, q = logits[:, kept].softmax(-1), start[:, kept].softmax(-1)
        total = total - logits.log_softmax(-1)[range(len(response)), response].sum()
        total = total + 0.3 * (p * (p / q).log()).sum() + 0.1 * (p * p.log()).sum()
        tokens += len(response)
    (total / tokens).backward()
    torch.testing.assert_close(found, gradients(training), rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckpointPolicy, Recorder]:
    """A training whose minibatches are not cut."""
    context, log = make_context(tmp_path_factory.mktemp("whole"))
    return train(context, variant="all"), log


@pytest.mark.parametrize("size", [1, 2])
def test_how_a_minibatch_is_cut_for_memory_changes_nothing(
    tmp_path: Path, whole: tuple[CheckpointPolicy, Recorder], size: int
) -> None:
    one, log = whole
    cut, cut_log = make_context(tmp_path)
    two = train(cut, variant="all", per_device_train_batch_size=size, per_device_rollout_batch_size=size)
    assert same_weights(one.model, two.model, tolerance=1e-5)
    for (_, a), (_, b) in zip(log.lines, cut_log.lines, strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-4)


def test_another_seed_gives_another_policy(tmp_path: Path) -> None:
    one = train(make_context(tmp_path / "1")[0])
    other = train(make_context(tmp_path / "2", seed=1)[0])
    assert not same_weights(one.model, other.model)


def test_gradient_checkpointing_changes_nothing_and_recomputes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train(make_context(tmp_path / "1")[0])
    calls: list[bool] = []
    in_each: list[int] = []
    begin, look = module.begin_update, module.watch_kl

    def hook(training: Training) -> None:
        layer = training.policy.model.model.layers[0].self_attn
        layer.register_forward_hook(lambda *_: calls.append(layer.training))

    monkeypatch.setattr(module, "begin_update", lambda *args: (calls.clear(), begin(*args))[1])
    monkeypatch.setattr(module, "watch_kl", lambda *args: (in_each.append(len(calls)), look(*args))[1])
    watched = watch(make_context(tmp_path / "2")[0], before=hook, gradient_checkpointing=True)
    assert in_each == [2 * 2 + 1] * 4  # two passes over one minibatch, each computed twice, and a look at the KL
    assert not any(calls)  # attention drops nothing
    assert same_weights(plain.model, watched.training.policy.model, tolerance=1e-5)


# ------------------------------------------------------------------------------------------------------- collecting


def test_rewards_are_of_the_sampled_tokens_behind_a_prompt_without_control(tmp_path: Path) -> None:
    watched = watch(make_context(tmp_path)[0], variant="all", total_steps=2)
    reward_model = tiny_reward_model(make_policy())
    for rollout in watched.steps[1].rollouts:
        [prompt] = make_policy().prompt_ids([watched.training.prompts[rollout.prompt]])
        closed = [*rollout.response] if rollout.ended else [*rollout.response, 1]
        assert rollout.score == pytest.approx(reward_model.score_ids([[*prompt, *closed]])[0], abs=1e-4)
        assert max(rollout.response) < 45  # no control token was sampled


def test_the_first_step_samples_the_start_policy_and_later_ones_ask_for_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controls: list[str] = []
    sample = CheckpointPolicy.sample

    def recorded(self: CheckpointPolicy, *args: Any, **kwargs: Any) -> Any:
        controls.append(self.template.control)
        return sample(self, *args, **kwargs)

    monkeypatch.setattr(CheckpointPolicy, "sample", recorded)
    trained = train(make_context(tmp_path)[0], variant="all", total_steps=3, rollout_batch_size=6, num_quantiles=3)
    assert controls[0] == ""
    assert set(controls[1:]) == {"<|reward_2|>"}
    assert trained.template.control == "<|reward_2|>"
    assert trained.control_tokens == ("<|reward_0|>", "<|reward_1|>", "<|reward_2|>")


def test_each_example_of_all_quantiles_stands_behind_the_token_of_its_own(tmp_path: Path) -> None:
    context, _ = make_context(tmp_path)
    [step] = watch(context, variant="all", num_quantiles=5, mini_batch_size=10, total_steps=1).steps
    assert torch.equal(step.bins, quantile_bins(step.scores, 5))
    by_response = {
        rollout.response: 45 + quantile for rollout, quantile in zip(step.rollouts, step.bins.tolist(), strict=True)
    }
    examples = step.minibatches[0]
    assert len({example.prompt[0] for example in examples}) == 5
    for example in examples:
        assert example.prompt == [by_response[tuple(example.response)], *example.reference_prompt]


def test_top_learns_from_the_best_quantile_and_adds_no_token(tmp_path: Path) -> None:
    context, log = make_context(tmp_path)
    watched = watch(context, total_steps=1)
    [step] = watched.steps
    best = sorted(rollout.score for rollout in step.rollouts)[-2:]
    learned = {tuple(example.response) for minibatch in step.minibatches for example in minibatch}
    assert learned == {rollout.response for rollout in step.rollouts if rollout.score in best}
    assert watched.training.policy.control_tokens == ()
    assert log.values("quark/quantile_4") == [pytest.approx(sum(best) / 2)]
    assert log.values("objective/scores") == [pytest.approx(sum(a.score for a in step.rollouts) / 10)]


def test_a_kept_pool_grows_and_a_pass_over_it_does_not(tmp_path: Path) -> None:
    kept, reset = (
        watch(make_context(tmp_path / pool)[0], variant="all", pool=pool, total_steps=3) for pool in ("keep", "reset")
    )
    assert [len(watched.steps[2].scores) for watched in (kept, reset)] == [30, 10]
    assert [len(minibatch) for minibatch in kept.steps[2].minibatches] == [5, 5, 5, 5]


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    context, log = make_context(tmp_path)
    train(context, max_prompt_length=6, total_steps=1)
    lengths = [len(ids) for ids in make_policy().prompt_ids(make_instructions(12))]
    assert log.values("data/prompts_left_out") == [sum(n > 6 for n in lengths)]
    assert 0 < log.values("data/prompts_left_out")[0] < 12
    with pytest.raises(DataError, match=r"at most 2 tokens .*quark\.max_prompt_length"):
        train(context, max_prompt_length=2)


# ----------------------------------------------------------------------------------------------------------- learning

BANDIT: dict[str, Any] = {
    "total_steps": 12,
    "rollout_batch_size": 48,
    "num_generations": 16,  # one batch is sampled
    "mini_batch_size": 48,
    "learning_rate": 1e-2,
    "response_length": 2,
    "num_quantiles": 8,
}


def solve(directory: Path, **changes: Any) -> tuple[CheckpointPolicy, CheckpointPolicy, Recorder]:
    start = bandit_policy()
    context, log = make_context(directory)
    inputs = MethodInputs(start, reward_model=BanditReward(), unlabeled=INSTRUCTIONS)
    return start, train(context, inputs, **{**BANDIT, **changes}), log


def test_without_a_penalty_the_best_answer_gets_all_probability(tmp_path: Path) -> None:
    start, trained, log = solve(tmp_path, kl_coef=0.0)
    assert kl_to(answer_probabilities(start), answer_probabilities(trained)) > 1
    best = answer_probabilities(trained)[:, ANSWERS.index("w12")]
    assert float(best.min()) > 0.95
    assert log.values("objective/scores")[-1] > 0.9 > log.values("objective/scores")[0]


def test_a_large_penalty_holds_the_policy_to_its_start(tmp_path: Path) -> None:
    start, held, log = solve(tmp_path, kl_coef=20.0)
    assert kl_to(answer_probabilities(start), answer_probabilities(held)) < 0.05
    assert log.values("objective/kl")[-1] < 0.2


def test_the_penalised_solution_is_where_likelihood_and_kl_balance(tmp_path: Path) -> None:
    """With all probability of the best answer b learned from, −log π(b) + β·KL(π ‖ π₀) is least at a known π.

    For one binary choice it is found by a search over π(b); what Quark reaches from its samples lies near it.
    """
    beta = 1.0
    start, trained, _ = solve(tmp_path, kl_coef=beta, total_steps=16)
    reference = answer_probabilities(start)[:, ANSWERS.index("w12")].mean()
    grid = torch.linspace(0.001, 0.999, 999)
    kl = grid * (grid / reference).log() + (1 - grid) * ((1 - grid) / (1 - reference)).log()
    optimum = float(grid[(-grid.log() + beta * kl).argmin()])
    reached = float(answer_probabilities(trained)[:, ANSWERS.index("w12")].mean())
    assert float(reference) < 0.2
    assert reached == pytest.approx(optimum, abs=0.08)


def test_the_token_of_the_best_quantile_asks_for_more_than_that_of_the_worst(tmp_path: Path) -> None:
    _, best, log = solve(tmp_path, variant="all", pool="keep", kl_coef=0.0)

    def expected_reward(policy: CheckpointPolicy) -> float:
        values = torch.tensor([REWARDS[answer] - OTHER for answer in ANSWERS])
        return float((answer_probabilities(policy) * values).sum(-1).mean()) + OTHER

    assert expected_reward(best) > expected_reward(best.controlled("<|reward_0|>")) + 0.5
    assert log.values("quark/quantile_7")[-1] >= log.values("quark/quantile_1")[-1]


def test_the_end_of_sequence_is_learned(tmp_path: Path) -> None:
    """A start that would rather go on learns to end where its best responses do."""
    start = bandit_policy()
    with torch.no_grad():
        start.model.lm_head.weight[1] *= 0.5

    def end_probability(policy: CheckpointPolicy) -> float:
        given = join_and_pad(policy.prompt_ids(INSTRUCTIONS), [[5 + 12, 1]] * 3, policy.pad_id)
        with torch.no_grad():
            found = response_logprobs(policy.model, given.input_ids, given.attention_mask, given.response_mask)
        return float(found[:, 1].exp().mean())

    context, _ = make_context(tmp_path)
    inputs = MethodInputs(start, reward_model=BanditReward(), unlabeled=INSTRUCTIONS)
    trained = train(context, inputs, **{**BANDIT, "kl_coef": 0.0})
    assert end_probability(trained) > 0.97 > end_probability(start) + 0.01


class Constant(RewardModel):
    """Likes everything equally."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(0.25) for _ in outputs]


def test_a_constant_reward_is_said_and_puts_everything_into_the_best_quantile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context, log = make_context(tmp_path)
    train(context, inputs_for(make_policy(), Constant()))
    assert caplog.text.count("each of the first 10 responses has the reward 0.25") == 1
    assert log.values("quark/learned_from") == [10.0] * 4
    assert log.values("quark/quantile_4") == [0.25] * 4
    assert log.values("objective/scores_std") == [0.0] * 4
    assert log.values("quark/quantile_0") == []


def test_lora_trains_adapters_and_control_tokens_and_reloads(tmp_path: Path) -> None:
    context, _ = make_context(tmp_path)
    start = make_policy()
    trained = train(context, inputs_for(start), variant="all", lora=LoraConfig(r=2), learning_rate=1e-2)
    trained.save(tmp_path / "saved")
    loaded = CheckpointPolicy.load(tmp_path / "saved", context)
    old, new = start.model.get_input_embeddings().weight, loaded.model.get_input_embeddings().weight
    assert torch.equal(new[:45], old)
    assert len({tuple(row.tolist()) for row in new[45:]}) == 5  # they start as one and the same
    decoding, instructions = Decoding(max_new_tokens=6), make_instructions(4)
    for one, two in zip(
        loaded.sample(instructions, decoding, seed=2), trained.sample(instructions, decoding, seed=2), strict=True
    ):
        assert one.token_ids == two.token_ids
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)


# ---------------------------------------------------------------------------------------------- going on and stopping


def test_what_is_not_finite_stops_training_and_the_last_checkpoint_counts(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rollout_batch_size": 6, "mini_batch_size": 3}
    start = make_policy()
    context, log = make_context(tmp_path / "kept")
    kept = train(context, inputs_for(start, turns_nan(start)), save_steps=1, **settings)
    stops = iter([False, True])
    stopped, before = make_context(tmp_path / "two", should_stop=lambda: next(stops))
    with pytest.raises(KeyboardInterrupt):
        train(stopped, inputs_for(start, turns_nan(start)), **settings)
    _, checkpoint = stopped.checkpoints.latest() or (0, tmp_path)
    state = torch.load(checkpoint / "trainer.pt")
    for name, parameter in kept.model.named_parameters():
        assert torch.equal(parameter, state["weights"][f"policy.{name}"])
    assert [step for step, _ in before.lines] == [1, 2]
    assert log.lines[-1] == (3, {"stopped/not_finite": 3, "last/kl": state["kl"]})
    context, _ = make_context(tmp_path / "lost")
    with pytest.raises(TrainingError, match=r"Quark diverged at step 3: a score.*quark\.learning_rate=0\.0005"):
        train(context, inputs_for(start, turns_nan(start)), **settings)


def test_a_kl_beyond_the_limit_stops_training(tmp_path: Path) -> None:
    context, log = make_context(tmp_path)
    train(context, total_steps=10, learning_rate=5e-3, warmup_steps=5, max_kl=4.0, save_steps=1)
    last = log.lines[-1][1]
    assert last["stopped/max_kl"] == log.lines[-1][0]
    assert 0 < last["last/kl"] <= 4.0
    assert max(log.values("objective/kl")) <= 4.0
    assert isinstance(context.checkpoints, DiskCheckpoints)
    assert context.checkpoints.saved[-1] == log.lines[-1][0] - 1


def test_a_step_that_goes_beyond_the_limit_by_itself_is_never_kept(tmp_path: Path) -> None:
    one_update = {"rollout_batch_size": 6, "mini_batch_size": 6, "num_epochs": 1, "warmup_steps": 0}
    with pytest.raises(TrainingError, match=r"Quark diverged at step 1: the KL .* nats, more than quark\.max_kl \(4\)"):
        train(make_context(tmp_path)[0], learning_rate=0.5, max_kl=4.0, save_steps=1, **one_update)


def test_the_kl_that_is_reported_is_that_of_what_is_returned(tmp_path: Path) -> None:
    context, log = make_context(tmp_path)
    one_update = {"rollout_batch_size": 6, "mini_batch_size": 6, "num_epochs": 1, "warmup_steps": 0}
    train(context, total_steps=1, learning_rate=5e-3, **one_update)
    assert log.values("objective/kl") == [pytest.approx(0, abs=1e-5)]  # read before the only update
    assert log.values("last/kl")[0] > 0.01


def test_a_gradient_that_is_not_finite_is_never_applied(tmp_path: Path) -> None:
    found: list[Training] = []

    def spoil(training: Training) -> None:  # the reference alone: what is trained is a copy
        found.append(training)
        training.start.model.lm_head.weight.data[7] = float("inf")

    context, _ = make_context(tmp_path)
    with pytest.raises(TrainingError, match="norm of the gradient is nan"):
        watch(context, inputs_for(make_policy(), Constant()), before=spoil, total_steps=1)
    [training] = found
    assert same_weights(training.policy.model, make_policy().model)
    next(iter(training.trained.values())).data[0] = float("nan")
    with pytest.raises(TrainingError, match="a weight is not a finite number"):
        save_if_due(training, 1)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    train(make_context(tmp_path)[0])
    with pytest.raises(TrainingError, match="other settings"):
        train(make_context(tmp_path)[0], lora=LoraConfig(r=2))


def test_more_responses_in_a_rollout_than_prompts_are_further_draws(tmp_path: Path) -> None:
    inputs = MethodInputs(make_policy(), reward_model=Constant(), unlabeled=make_instructions(2))
    [step] = watch(make_context(tmp_path)[0], inputs, total_steps=1).steps
    assert [rollout.prompt for rollout in step.rollouts].count(0) == 5
    assert len({rollout.response for rollout in step.rollouts}) > 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"mini_batch_size": 600},
        {"warmup_steps": 390},
        {"num_quantiles": 1},
        {"variant": "best"},
        {"lora": {"dropout": 0.1}},
    ],
)
def test_settings_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        QuarkConfig(**wrong)
