"""PPO on tiny random models: its invariances, its optimum on a bandit, resuming and stopping."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from nan_reward import turns_nan
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from afarm import LoraConfig
from afarm.backend import (
    Backend,
    CheckpointPolicy,
    PromptTemplate,
    TorchRewardModel,
    Training,
    device,
    kl_estimates,
    logprobs,
    minibatches,
    on_policy,
    response_logprobs,
    rollout,
    save_if_due,
)
from afarm.backend.batching import TokenBatch, join_and_pad
from afarm.backend.rollouts import prompt_order
from afarm.core.config import BackendConfig
from afarm.core.errors import ConfigError, DataError, TrainingError
from afarm.core.interfaces import MethodInputs, RewardModel, TrainContext
from afarm.core.records import Instruction, Score
from afarm.experiment.farm import Farm
from afarm_plugins.ppo import PPO, PPOConfig
from afarm_plugins.ppo import ppo as module

WORDS = ["<pad>", "<eos>", "<unk>", "user:", "answer:", "good", "bad", "one", "two", "three", "four", "five"]
TEMPLATE = "{% for m in messages %}user: {{ m['content'] }} {% endfor %}answer:"
BACKEND = Backend(BackendConfig(device="cpu"))
INSTRUCTIONS = [Instruction(" ".join(WORDS[7 : 8 + n % 5] * (1 + n // 5))) for n in range(15)]


def tiny_policy(seed: int = 0) -> CheckpointPolicy:
    """A random Llama over twelve words, whose weights are large enough for responses to differ."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            initializer_range=0.4,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
        )
    )
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", chat_template=TEMPLATE
    )
    return CheckpointPolicy(model, tokenizer, PromptTemplate("chat", tokenizer), BACKEND)


def tiny_reward_model(policy: CheckpointPolicy) -> TorchRewardModel:
    torch.manual_seed(7)
    model = TorchRewardModel.make_classifier(policy, head_std=0.3)
    return TorchRewardModel(model, policy.tokenizer, policy.template, BACKEND, mean=0.2, std=1.5)


class Likes(RewardModel):
    """Reads text only: 1 for a response that is this word, else 0."""

    def __init__(self, word: str):
        self.word = word

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> Sequence[Score]:
        return [Score(float(output == self.word)) for output in outputs]


class Folder:
    """Checkpoints on disk, the newest only."""

    def __init__(self, directory: Path):
        self.directory = directory

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        old = list(self.directory.glob("[0-9]*"))
        beside = self.directory / "unfinished"
        beside.mkdir(parents=True)
        write(beside)
        beside.rename(self.directory / str(step))
        for directory in old:
            shutil.rmtree(directory)

    def latest(self) -> tuple[int, Path] | None:
        found = sorted(self.directory.glob("[0-9]*"), key=lambda d: int(d.name))
        return (int(found[-1].name), found[-1]) if found else None


class Run:
    """A context and what was logged through it."""

    def __init__(self, directory: Path, seed: int = 0, stop_after: int | None = None):
        self.metrics: list[dict[str, float]] = []
        self.context = TrainContext(
            seed,
            directory,
            BACKEND,
            Folder(directory / "checkpoints"),
            self.log,
            should_stop=lambda: len(self.metrics) == stop_after,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if not (self.metrics and self.metrics[-1]["step"] == step):
            self.metrics.append({"step": step})
        self.metrics[-1] |= metrics


SMALL: dict[str, Any] = {
    "total_steps": 2,
    "rollout_batch_size": 12,
    "mini_batch_size": 5,
    "per_device_train_batch_size": 64,
    "per_device_rollout_batch_size": 64,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
    "kl_coef": 0.1,
    "response_length": 8,
    "max_prompt_length": 30,
    "save_steps": 100,
    "checkpoint": "last",
}


def inputs_for(start: CheckpointPolicy) -> MethodInputs:
    return MethodInputs(start, reward_model=tiny_reward_model(start), unlabeled=INSTRUCTIONS)


def train(
    directory: Path, run: Run | None = None, inputs: MethodInputs | None = None, **changes: Any
) -> CheckpointPolicy:
    run = run or Run(directory)
    policy = PPO(PPOConfig(**{**SMALL, **changes})).train(inputs or inputs_for(tiny_policy()), run.context)
    assert isinstance(policy, CheckpointPolicy)
    return policy


def started(directory: Path, inputs: MethodInputs | None = None, **changes: Any) -> tuple[Training, Any]:
    """The training as it begins, and its value model."""
    config = PPOConfig(**{**SMALL, **changes})
    return module.start_ppo(config, inputs or inputs_for(tiny_policy()), Run(directory).context)


def gradients(training: Training) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in training.trained.items() if p.grad is not None}


@dataclass
class FirstStep:
    """The first step of a training up to its first optimiser step, which is of all rows and is not taken."""

    training: Training = field(init=False)
    value: Any = field(init=False)
    rollout: module.ValuedRollout = field(init=False)
    metrics: dict[str, float] = field(init=False)
    gradients: dict[str, torch.Tensor] = field(init=False)

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        return [sample.prompt_ids for sample in self.rollout.samples]

    @property
    def responses(self) -> list[tuple[int, ...]]:
        return [sample.token_ids for sample in self.rollout.samples]


class EnoughSeen(Exception):
    """Ends a training that was looked at."""


def first_step(
    directory: Path,
    inputs: MethodInputs | None = None,
    before: Callable[[Training], object] = lambda training: None,
    before_learning: Callable[[Training], object] = lambda training: None,
    **changes: Any,
) -> FirstStep:
    """Begin a training, and look at it; `before` it, and between collecting and learning, weights may be moved."""
    seen = FirstStep()
    start, measure, begin = module.start_ppo, module.rollout_metrics, module.begin_update

    def start_seen(*args: Any) -> tuple[Training, Any]:
        seen.training, seen.value = start(*args)
        before(seen.training)
        return seen.training, seen.value

    def measure_seen(training: Training, collected: module.ValuedRollout, *args: Any) -> dict[str, float]:
        seen.rollout, seen.metrics = collected, measure(training, collected, *args)
        return dict(seen.metrics)

    def begin_seen(training: Training, step: int) -> float:
        before_learning(training)
        return begin(training, step)

    def step_not_taken(training: Training, step: int) -> float:
        seen.gradients = gradients(training)
        raise EnoughSeen

    whole = {"mini_batch_size": changes.get("rollout_batch_size", SMALL["rollout_batch_size"])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "start_ppo", start_seen)
        patch.setattr(module, "rollout_metrics", measure_seen)
        patch.setattr(module, "begin_update", begin_seen)
        patch.setattr(module, "optimizer_step", step_not_taken)
        with pytest.raises(EnoughSeen):
            train(directory, inputs=inputs, **{**whole, **changes})
    return seen


def assert_same_weights(one: torch.nn.Module, two: torch.nn.Module, **tolerance: float) -> None:
    torch.testing.assert_close(dict(one.state_dict()), dict(two.state_dict()), **(tolerance or {"rtol": 0, "atol": 0}))


# ---------------------------------------------------------------------------------------------- what a token is charged


@pytest.mark.parametrize(("penalty", "charged"), [("k1", [0.3, -0.2, 0.0, 0.5]), ("clamped", [0.3, 0.0, 0.0, 0.5])])
def test_a_token_is_charged_its_log_ratio_or_that_clamped_at_0(
    tmp_path: Path, penalty: str, charged: list[float]
) -> None:
    run, settings = Run(tmp_path / "run"), {"kl_penalty": penalty, "kl_coef": 2.0, "whiten_rewards": "none"}
    config = PPOConfig(**{**SMALL, **settings})
    ratios, mask = torch.tensor([[0.3, -0.2, 0.0, 0.5]]), torch.ones(1, 4, dtype=torch.bool)
    kl = kl_estimates(ratios, torch.zeros(1, 4), mask)
    rewards = module.shape_rewards(config, config.kl_coef, torch.tensor([1.0]), kl, mask)
    torch.testing.assert_close(rewards, -2 * torch.tensor([charged]) + torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    train(tmp_path, run, total_steps=3, **settings)
    logged = run.metrics[-1]
    lacking = logged["objective/non_score_reward"] - -2 * logged["objective/kl"]
    assert (abs(lacking) < 1e-5) == (penalty == "k1")
    assert lacking < 1e-5, "clamped, the penalty exceeds the KL"


# ------------------------------------------------------------------------------------------------------- invariances


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, CheckpointPolicy]:
    """A training of `SMALL` as it stands."""
    directory = tmp_path_factory.mktemp("plain")
    run = Run(directory)
    return run, train(directory, run)


def test_how_a_minibatch_is_cut_for_memory_changes_nothing(tmp_path: Path, plain: tuple[Run, CheckpointPolicy]) -> None:
    (whole, one), cut = plain, Run(tmp_path)
    sizes = {"per_device_train_batch_size": 3, "per_device_rollout_batch_size": 1}  # of 5 and 2 rows, and of 12
    two = train(tmp_path, cut, **sizes)
    assert_same_weights(one.model, two.model, rtol=0, atol=5e-6)  # sums in another order
    for a, b in zip(whole.metrics, cut.metrics, strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5)


def widened(batch: TokenBatch, before: int, after: int) -> TokenBatch:
    """The same rows with pad columns on either side, whose token is one that means something."""
    pads = (before, after)
    return TokenBatch(
        torch.nn.functional.pad(batch.input_ids, pads, value=WORDS.index("good")),
        torch.nn.functional.pad(batch.attention_mask, pads),
        torch.nn.functional.pad(batch.response_mask, pads),
    )


@pytest.mark.parametrize(("before", "after"), [(0, 9), (4, 0), (5, 3)])
def test_padding_of_either_side_and_any_amount_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    plain = first_step(tmp_path / "plain")
    for reader in (logprobs, on_policy):
        monkeypatch.setattr(reader, "join_and_pad", lambda *given: widened(join_and_pad(*given), before, after))
    padded = first_step(tmp_path / "padded")
    assert plain.metrics == pytest.approx(padded.metrics, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(plain.gradients, padded.gradients, rtol=1e-4, atol=1e-6)


def test_the_update_equals_one_written_out_row_by_row(tmp_path: Path) -> None:
    """No batches, no pads, no chunks: each response on its own, from full softmaxes, in plain loops."""

    def move(training: Training) -> None:  # away from π_old, so that ratios and clipping take part
        for parameter in training.trained.values():
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))

    step = first_step(tmp_path, before_learning=move, value_head_init="reward_model", gamma=0.9, lam=0.8)
    training, rollout, config, value_model = step.training, step.rollout, step.training.config, step.value

    def logprobs(model: torch.nn.Module, row: int) -> torch.Tensor:
        prompt, response = step.prompts[row], step.responses[row]
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1)[range(len(response)), list(response)]

    rows = range(len(step.prompts))
    with torch.no_grad():
        old = [logprobs(tiny_policy().model, i) for i in rows]  # the policy of the first rollout is the start
    all_rewards = torch.cat(
        [torch.tensor([0.0] * (len(o) - 1) + [float(rollout.scores[i])]) for i, o in enumerate(old)]
    )
    deviation = all_rewards.std(correction=0)
    collected = []
    for i in rows:
        n, values = len(old[i]), rollout.values[i]
        rewards = [0.0] * (n - 1) + [float(rollout.scores[i] / deviation)]
        deltas = [
            rewards[t] + config.gamma * (float(values[t + 1]) if t + 1 < n else 0.0) - float(values[t])
            for t in range(n)
        ]
        collected.append(
            [sum((config.gamma * config.lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(n)]
        )
    flat = torch.tensor([a for row in collected for a in row])
    loss = torch.zeros(())
    for i in rows:
        advantages = torch.tensor(collected[i])
        returns = advantages + rollout.values[i, : len(advantages)]
        advantages = (advantages - flat.mean()) / flat.std(correction=0)
        ratio = (logprobs(training.policy.model, i) - old[i]).exp()
        prompt, response = step.prompts[i], step.responses[i]
        value = value_model(torch.tensor([[*prompt, *response]]), use_cache=False, output_hidden_states=True)
        new = value_model.score(value.hidden_states[-1])[0, len(prompt) - 1 : -1, 0]
        before = rollout.values[i, : len(response)]
        near = before + (new - before).clamp(-config.cliprange_value, config.cliprange_value)
        loss = loss - torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()
        loss = loss + config.vf_coef * 0.5 * torch.maximum((new - returns) ** 2, (near - returns) ** 2).sum()
    training.optimizer.zero_grad()
    (loss / len(flat)).backward()
    torch.testing.assert_close(step.gradients, gradients(training), rtol=1e-3, atol=1e-5)


def test_the_ratio_starts_at_one_and_the_kl_at_zero(tmp_path: Path) -> None:
    run = Run(tmp_path)
    train(tmp_path, run, total_steps=1, mini_batch_size=12, num_ppo_epochs=1, temperature=0.7)
    metrics = run.metrics[0]
    assert metrics["val/ratio"] == pytest.approx(1, abs=1e-6)
    assert metrics["policy/approxkl_avg"] == pytest.approx(0, abs=1e-9)
    assert metrics["policy/clipfrac_avg"] == 0
    assert metrics["objective/kl"] == pytest.approx(0, abs=1e-5)
    assert metrics["loss/policy_avg"] == pytest.approx(0, abs=1e-6)  # whitened advantages have mean 0


def test_gradient_checkpointing_changes_nothing(tmp_path: Path, plain: tuple[Run, CheckpointPolicy]) -> None:
    recomputed = train(tmp_path, gradient_checkpointing=True)
    assert_same_weights(plain[1].model, recomputed.model, rtol=0, atol=1e-6)


def test_gradient_checkpointing_recomputes_after_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, step_taken = module.start_ppo, module.optimizer_step
    calls: list[bool] = []
    at_steps: list[int] = []

    def watched(*args: Any) -> tuple[Training, Any]:
        training, value = start(*args)
        attention = training.policy.model.model.layers[0].self_attn
        attention.register_forward_hook(lambda *_: calls.append(attention.training))
        return training, value

    def counted(training: Training, step: int) -> float:
        at_steps.append(len(calls))
        return step_taken(training, step)

    monkeypatch.setattr(module, "start_ppo", watched)
    monkeypatch.setattr(module, "optimizer_step", counted)
    train(tmp_path, total_steps=2, gradient_checkpointing=True)
    assert len(at_steps) == 2 * 2 * 3  # 2 steps × 2 passes × 3 minibatches
    in_one_step = [after - before for before, after in pairwise(at_steps)]
    assert set(in_one_step[:5] + in_one_step[6:]) == {2}  # each computed twice, after the second sampling too
    assert not any(calls)  # attention drops nothing


def test_side_by_side_on_two_cores_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policies = []
    for cores in (1, 4):
        monkeypatch.setattr(device, "_cores", lambda cores=cores: cores * torch.get_num_threads())
        policies.append(train(tmp_path / str(cores), lora=LoraConfig(r=2)))
    assert_same_weights(policies[0].model, policies[1].model, rtol=0.0, atol=0.0)


def test_another_seed_gives_another_policy(tmp_path: Path, plain: tuple[Run, CheckpointPolicy]) -> None:
    other = train(tmp_path, Run(tmp_path, seed=1))
    assert not torch.equal(plain[1].model.lm_head.weight, other.model.lm_head.weight)


# ------------------------------------------------------------------------------------------------------- collecting


def test_scores_are_of_the_sampled_tokens_not_of_text_tokenised_again(tmp_path: Path) -> None:
    step = first_step(tmp_path)
    model, tokenizer = tiny_reward_model(tiny_policy()), tiny_policy().tokenizer
    # What was cut off is closed with the end token: the reward model knows no other last token.
    closed = [r if r[-1] == 1 else [*r, 1] for r in step.responses]
    assert closed != list(step.responses)
    expected = model.score_ids([[*p, *r] for p, r in zip(step.prompts, closed, strict=True)])
    assert step.rollout.scores.tolist() == pytest.approx(expected, abs=1e-5)
    texts = [tokenizer.decode(r, skip_special_tokens=True) for r in step.responses]
    again = [tokenizer(t, add_special_tokens=False).input_ids for t in texts]
    # Special tokens in mid-response and missing ends do not survive the way through text: it would have shown.
    assert any(list(r) != [*a, 1] for r, a in zip(step.responses, again, strict=True))


def test_pads_stand_after_responses_and_the_end_token_is_trained(tmp_path: Path) -> None:
    step = first_step(tmp_path, response_length=20)
    assert step.rollout.mask.sum(1).tolist() == [len(r) for r in step.responses]
    assert step.metrics["objective/length"] == sum(map(len, step.responses)) / 12
    ended = [row for row, response in enumerate(step.responses) if response[-1] == 1]
    assert 0 < step.metrics["val/num_eos_tokens"] == len(ended)
    for row in ended:
        assert step.rollout.mask[row, len(step.responses[row]) - 1]
    for values in (step.rollout.logprobs, step.rollout.values, step.rollout.advantages, step.rollout.returns):
        assert (values[~step.rollout.mask] == 0).all()


def test_log_probabilities_are_those_of_the_temperature_sampled_at(tmp_path: Path) -> None:
    step = first_step(tmp_path, temperature=0.5)
    model = tiny_policy().model
    for row, (prompt, response) in enumerate(zip(step.prompts, step.responses, strict=True)):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        expected = (logits / 0.5).log_softmax(-1)[range(len(response)), list(response)]
        torch.testing.assert_close(step.rollout.logprobs[row, : len(response)], expected, rtol=0, atol=1e-5)
    assert step.metrics["objective/entropy"] == pytest.approx(-float(step.rollout.logprobs.sum()) / 12, abs=1e-4)


def test_a_response_that_was_cut_off_pays_the_penalty(tmp_path: Path) -> None:
    free, fined = first_step(tmp_path / "free"), first_step(tmp_path / "fined", missing_eos_penalty=2.5)
    cut_off = torch.tensor([response[-1] != 1 for response in fined.responses])
    assert cut_off.any()
    torch.testing.assert_close(fined.rollout.scores, free.rollout.scores - 2.5 * cut_off)
    assert fined.metrics["objective/scores"] == pytest.approx(float(fined.rollout.scores.mean()))


def test_the_value_of_a_state_starts_as_the_reward_of_what_was_read(tmp_path: Path) -> None:
    step = first_step(tmp_path, value_head_init="reward_model")
    model = tiny_reward_model(tiny_policy())
    for row, (prompt, response) in enumerate(zip(step.prompts, step.responses, strict=True)):
        read = [[*prompt, *response[:t]] for t in range(len(response))]
        assert step.rollout.values[row, : len(response)].tolist() == pytest.approx(model.score_ids(read), abs=1e-5)


def test_a_fresh_value_head_says_zero(tmp_path: Path) -> None:
    step = first_step(tmp_path)
    assert (step.rollout.values == 0).all()
    assert step.metrics["val/explained_variance"] == pytest.approx(0, abs=1e-6)


def test_advantages_are_standardised_over_the_rollout_or_the_minibatch(
    tmp_path: Path, plain: tuple[Run, CheckpointPolicy]
) -> None:
    step = first_step(tmp_path / "first")
    over_all = step.rollout.advantages[step.rollout.mask]
    assert float(over_all.mean()) == pytest.approx(0, abs=1e-6)
    assert float(over_all.std(correction=0)) == pytest.approx(1, abs=1e-4)
    rows = [0, 3, 4]
    part = module.whiten_rows(step.rollout.advantages, step.rollout.mask, rows)
    assert float(part[step.rollout.mask].std(correction=0)) < 1
    assert float(part[rows][step.rollout.mask[rows]].std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert float(step.rollout.advantages[rows][step.rollout.mask[rows]].mean()) != pytest.approx(0, abs=1e-3)
    parts = train(tmp_path / "parts", whiten_advantages="minibatch")
    assert not torch.equal(plain[1].model.lm_head.weight, parts.model.lm_head.weight)


def test_metrics_carry_the_names_of_trl_and_add_up(plain: tuple[Run, CheckpointPolicy]) -> None:
    run, _ = plain
    names = "objective/kl objective/entropy objective/scores objective/rlhf_reward objective/non_score_reward"
    names += " policy/approxkl_avg policy/clipfrac_avg loss/policy_avg loss/value_avg val/clipfrac_avg val/ratio"
    names += " val/num_eos_tokens lr episode objective/length objective/kl_k2 objective/kl_k3 objective/kl_coef"
    names += " objective/scores_std policy/skipped_minibatches"
    assert [m["step"] for m in run.metrics] == [1, 2]
    for metrics in run.metrics:
        assert set(names.split()) <= metrics.keys()
        assert all(math.isfinite(value) for value in metrics.values())
        total = metrics["objective/scores"] + metrics["objective/non_score_reward"]
        assert metrics["objective/rlhf_reward"] == pytest.approx(total, abs=1e-5)
        assert metrics["objective/non_score_reward"] == pytest.approx(-0.1 * metrics["objective/kl"], abs=1e-5)
    assert [m["episode"] for m in run.metrics] == [12, 24]
    assert [m["lr"] for m in run.metrics] == pytest.approx([1e-3, 5e-4])


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    train(tmp_path, run, max_prompt_length=7)
    lengths = [len(ids) for ids in tiny_policy().prompt_ids(INSTRUCTIONS)]
    assert run.metrics[0]["data/prompts_left_out"] == sum(n > 7 for n in lengths) > 0
    with pytest.raises(DataError, match=r"at most 2 tokens .*ppo\.max_prompt_length"):
        train(tmp_path, max_prompt_length=2)


def test_each_pass_takes_every_prompt_once_in_an_order_of_its_own() -> None:
    drawn: dict[int, list[int]] = {}
    for step in range(7):
        batch = prompt_order(10, step, 4, 5, "ppo")
        assert sum(len(rows) for _, rows in batch) == 4
        for number, rows in batch:
            drawn.setdefault(number, []).extend(rows)
    assert sorted(drawn[0]) == sorted(drawn[1]) == list(range(10))
    assert drawn[0] != drawn[1]
    assert prompt_order(10, 3, 4, 5, "ppo") != prompt_order(10, 3, 4, 6, "ppo")


def test_a_prompt_that_a_step_meets_twice_gets_two_draws(tmp_path: Path) -> None:
    one = MethodInputs(tiny_policy(), reward_model=Likes("good"), unlabeled=INSTRUCTIONS[:1])
    _, samples = rollout(started(tmp_path, one, value_init="sft")[0], 0)
    assert len({sample.token_ids for sample in samples}) > 6


def test_every_epoch_trains_on_every_row_once(tmp_path: Path) -> None:
    training, _ = started(tmp_path)
    batches = [rows for epoch in range(2) for rows in minibatches(training, 0, epoch, 12)]
    assert [len(rows) for rows in batches] == [5, 5, 2, 5, 5, 2]
    first, second = [*chain(*batches[:3])], [*chain(*batches[3:])]
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    assert batches[:3] != minibatches(training, 1, 0, 12)


# ----------------------------------------------------------------------------------------------------------- learning


def first_token_probabilities(policy: CheckpointPolicy, word: str) -> torch.Tensor:
    """The probability of `word` after each prompt, [B]."""
    with torch.no_grad():
        last = [policy.model(torch.tensor([ids])).logits[0, -1] for ids in policy.prompt_ids(INSTRUCTIONS)]
    return torch.stack(last).softmax(-1)[:, WORDS.index(word)]


@pytest.mark.parametrize("whiten_rewards", ["shift", "none"])  # scaled: a bandit of several answers
def test_a_bandit_ends_near_its_regularised_optimum(tmp_path: Path, whiten_rewards: str) -> None:
    """One token, reward 1 for one word: the optimum of each prompt is π_ref·exp(reward / β), normalised."""
    start, beta = tiny_policy(), 0.5
    inputs = MethodInputs(start, reward_model=Likes("good"), unlabeled=INSTRUCTIONS)
    p = first_token_probabilities(start, "good")
    optimum = p * math.exp(1 / beta) / (1 - p + p * math.exp(1 / beta))
    settings = {"rollout_batch_size": 120, "mini_batch_size": 120, "total_steps": 30, "learning_rate": 7e-3}
    settings |= {"num_generations": 8, "per_device_rollout_batch_size": 120}  # one batch is sampled
    run = Run(tmp_path)
    trained = train(
        tmp_path,
        run,
        inputs,
        response_length=1,
        kl_coef=beta,
        value_init="sft",
        whiten_rewards=whiten_rewards,
        **settings,
    )
    reached = first_token_probabilities(trained, "good")
    assert float((reached - optimum).abs().mean()) < 0.06 < float((optimum - p).abs().mean()) / 2
    kl = optimum * (optimum / p).log() + (1 - optimum) * ((1 - optimum) / (1 - p)).log()
    assert run.metrics[-1]["objective/kl"] == pytest.approx(float(kl.mean()), abs=0.15)


def test_a_long_response_earns_its_score_too(tmp_path: Path) -> None:
    """With several tokens and a reward model that reads tokens, the mean score goes up and the KL with it."""
    run = Run(tmp_path)
    train(tmp_path, run, total_steps=10, rollout_batch_size=60, mini_batch_size=60, learning_rate=1e-2, kl_coef=0.05)
    scores = [metrics["objective/scores"] for metrics in run.metrics]
    assert sum(scores[-3:]) / 3 > scores[0] + 0.2
    assert run.metrics[-1]["objective/kl"] > 0.5


def test_lora_trains_adapters_only_and_reloads(tmp_path: Path) -> None:
    inputs = inputs_for(tiny_policy())
    trained = train(tmp_path / "run", inputs=inputs, lora=LoraConfig(r=4), learning_rate=1e-2)
    assert isinstance(inputs.start, CheckpointPolicy)
    base = {name.replace(".base_layer", ""): p for name, p in trained.model.get_base_model().named_parameters()}
    for name, parameter in inputs.start.model.named_parameters():
        assert torch.equal(base[name], parameter)
    trained.save(tmp_path / "saved")
    loaded = CheckpointPolicy.load(tmp_path / "saved", Run(tmp_path).context)
    batch = join_and_pad([[3, 7, 4]], [[5, 6, 8, 1]], 0)

    def logprobs(policy: CheckpointPolicy) -> torch.Tensor:
        with torch.no_grad():
            return response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)

    torch.testing.assert_close(logprobs(loaded), logprobs(trained))
    assert (logprobs(trained) - logprobs(inputs.start)).abs().max() > 1e-3


# ----------------------------------------------------------------------------------------------- several responses


def test_several_responses_per_prompt_are_consecutive_draws(tmp_path: Path) -> None:
    training, _ = started(tmp_path, num_generations=4)
    prompts, samples = rollout(training, 0)
    assert len(samples) == 12
    assert [prompts[row] for row in (0, 4, 8)] == [prompts[row] for row in (3, 7, 11)]
    assert len(set(prompts)) == 3
    for first in (0, 4, 8):
        assert len({sample.token_ids for sample in samples[first : first + 4]}) > 1
    encoded = training.policy.prompt_ids([training.prompts[prompt] for prompt in prompts])
    assert [tuple(ids) for ids in encoded] == [sample.prompt_ids for sample in samples]


# ---------------------------------------------------------------------------------------------- going on and stopping


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    one, again = train(tmp_path), Run(tmp_path)
    assert_same_weights(one.model, train(tmp_path, again).model)
    assert again.metrics == []


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(TrainingError, match="other settings"):
        train(tmp_path, total_steps=3, lora=LoraConfig(r=2))


def test_a_score_that_is_not_a_number_stops_and_keeps_the_last_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, settings = Run(tmp_path / "nan"), {"total_steps": 5, "save_steps": 1, "value_init": "sft"}
    start = tiny_policy()
    inputs = MethodInputs(start, reward_model=turns_nan(start), unlabeled=INSTRUCTIONS)
    kept = train(tmp_path, run, inputs, **settings)
    assert run.metrics[-1] == {"step": 3, "stopped/not_finite": 3}
    assert "step 3: a score or a log-probability is not a finite number" in caplog.text
    assert "--set ppo.learning_rate=0.0005" in caplog.text
    # The samples without a score are those of step 2's policy: step 1's is the last that is known to be sound.
    before = Run(tmp_path / "before", stop_after=1)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, before, replace(inputs, reward_model=turns_nan(start)), **settings)
    weights = torch.load(tmp_path / "before/checkpoints/1/trainer.pt")["weights"]
    for name, parameter in kept.model.named_parameters():
        assert torch.equal(parameter, weights[f"policy.{name}"])


def test_a_score_that_is_not_a_number_before_any_checkpoint_is_an_error(tmp_path: Path) -> None:
    start = tiny_policy()
    inputs = MethodInputs(start, reward_model=turns_nan(start), unlabeled=INSTRUCTIONS)
    with pytest.raises(TrainingError, match=r"step 3: .*ppo\.learning_rate=0\.0005"):
        train(tmp_path, inputs=inputs, total_steps=5, value_init="sft")
    assert Folder(tmp_path / "checkpoints").latest() is None


def test_a_gradient_that_is_not_a_number_spoils_no_weight_and_is_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, value = started(tmp_path)
    monkeypatch.setattr(module, "start_ppo", lambda *args: (training, value))
    monkeypatch.setattr(module, "whiten", lambda values, mask: torch.where(mask, float("inf"), values))
    with pytest.raises(TrainingError, match="step 1: the norm of the gradient is nan"):
        train(tmp_path)
    assert all(torch.isfinite(p).all() for p in training.trained.values())
    next(iter(training.trained.values())).data[0] = float("nan")
    with pytest.raises(TrainingError, match="a weight is not a finite number"):
        save_if_due(training, 2)
    assert Folder(tmp_path / "checkpoints").latest() is None


def test_a_reward_model_without_a_trunk_is_refused_when_planning(tmp_path: Path) -> None:
    method = PPO(PPOConfig())
    assert method.check() == method.check(TorchRewardModel) == PPO(PPOConfig(value_init="sft")).check(Likes) == ()
    [problem] = method.check(Likes)
    assert "Likes has no backbone" in problem
    assert "--set ppo.value_init=sft" in problem
    with pytest.raises(ConfigError, match=r"^ppo: GoldReward has no backbone"):
        Farm("toy", method="ppo", reward_model="gold", output_dir=tmp_path)
    Farm("toy", method="quark", reward_model="gold", output_dir=tmp_path).close()


def test_a_text_reward_model_without_a_trunk_names_the_setting(tmp_path: Path) -> None:
    inputs = MethodInputs(tiny_policy(), reward_model=Likes("good"), unlabeled=INSTRUCTIONS)
    with pytest.raises(TrainingError, match=r"ppo\.value_init=sft"):
        train(tmp_path, inputs=inputs)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mini_batch_size": 600},
        {"warmup_steps": 390},
        {"value_init": "sft", "value_head_init": "reward_model"},
        {"num_generations": 3},
        {"kl_controller": "adaptive", "kl_coef": 0},
        {"kl_controller": "adaptive", "kl_horizon": 500},
        {"kl_coeff": 0.1},
        {"lora": {"dropout": 0.1}},
    ],
)
def test_settings_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PPOConfig(**wrong)
