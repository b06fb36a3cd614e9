from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import DiskCheckpoints, make_context, make_instructions, make_policy, same_weights
from torch.utils._python_dispatch import TorchDispatchMode

from afarm import LoraConfig
from afarm.backend import CheckpointPolicy, join_and_pad, response_logprobs
from afarm.backend import sft as supervised
from afarm.backend.sft import labelled
from afarm.core.errors import DataError, TrainingError
from afarm.core.interfaces import Decoding, MethodInputs
from afarm.core.records import Output
from afarm_plugins.sft import SFT, SFTConfig, SFTOnAllSplits, Untuned


def config(**settings: Any) -> SFTConfig:
    return SFTConfig(
        **({"learning_rate": 1e-2, "num_train_epochs": 2, "per_device_train_batch_size": 8, "save_steps": 0} | settings)
    )


def demonstrations(count: int = 40) -> list[Output]:
    """Say the instruction's last word twice."""
    return [Output(i, f"{i.instruction.split()[-1]} {i.instruction.split()[-1]}") for i in make_instructions(count)]


def train(tmp_path: Path, start: CheckpointPolicy | None = None, **settings: Any) -> CheckpointPolicy:
    context, _ = make_context(tmp_path)
    start = start or make_policy()
    return SFT(config(**settings)).train(MethodInputs(start, demonstrations=demonstrations()), context)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> CheckpointPolicy:
    """A training of `config()` as it stands, to be read only."""
    return train(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> CheckpointPolicy:
    """The same at a tenth of the rate, where sums in another order show less."""
    return train(tmp_path_factory.mktemp("slow"), learning_rate=1e-3)


def likelihood(policy: CheckpointPolicy, rows: list[Output]) -> float:
    """Mean log-probability of a response with its end-of-sequence token."""
    examples, _ = policy.template.encode([r.instruction for r in rows], [r.output for r in rows], 512)
    batch = join_and_pad([p for p, _ in examples], [r for _, r in examples], policy.pad_id)
    with torch.no_grad():
        logprobs = response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
    return float(logprobs.sum(-1).mean())


def test_the_prompt_is_masked_and_the_eos_is_trained(policy: CheckpointPolicy) -> None:
    rows = demonstrations(2)
    examples, cut = policy.template.encode([r.instruction for r in rows], [r.output for r in rows], 512)
    assert cut == 0
    row = labelled(*examples[1])
    assert row["input_ids"] == [3, 5 + 1, 5 + 0, 5 + 1, 4, 5 + 1, 5 + 1, 1]
    assert row["labels"] == [-100] * 5 + [5 + 1, 5 + 1, 1]


def end_logprobs(policy: CheckpointPolicy, rows: list[Output]) -> torch.Tensor:
    """The log-probability of the end-of-sequence token after each response."""
    examples, _ = policy.template.encode([r.instruction for r in rows], [r.output for r in rows], 512)
    batch = join_and_pad([p for p, _ in examples], [r for _, r in examples], policy.pad_id)
    with torch.no_grad():
        logprobs = response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
    return logprobs[range(len(rows)), [len(r) - 1 for _, r in examples]]


def test_the_end_of_sequence_becomes_more_probable(plain: CheckpointPolicy) -> None:
    change = end_logprobs(plain, demonstrations()) - end_logprobs(make_policy(), demonstrations())
    assert change.mean() > 1


@pytest.mark.parametrize(("before", "after"), [(0, 7), (5, 2)])
def test_padding_of_either_side_and_any_amount_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: CheckpointPolicy, before: int, after: int
) -> None:
    collator = supervised.SFTTrainer.get_train_dataloader

    def widened(trainer: Any) -> Any:
        inner = trainer.data_collator

        def collate(rows: Any) -> Any:
            batch, pads = inner(rows), (before, after)
            fill = {"input_ids": 7, "labels": -100, "attention_mask": 0}
            return {k: torch.nn.functional.pad(v, pads, value=fill[k]) for k, v in batch.items() if k in fill}

        trainer.data_collator = collate
        return collator(trainer)

    monkeypatch.setattr(supervised.SFTTrainer, "get_train_dataloader", widened)
    assert same_weights(slow.model, train(tmp_path, learning_rate=1e-3).model, tolerance=1e-4)


def test_learns_the_demonstrations_and_to_stop(tmp_path: Path) -> None:
    start = make_policy()
    before = {name: weight.clone() for name, weight in start.model.state_dict().items()}
    trained = train(tmp_path, start, num_train_epochs=12, learning_rate=2e-2)
    assert likelihood(trained, demonstrations()) > likelihood(start, demonstrations()) + 5
    samples = list(trained.sample(make_instructions(40), Decoding(temperature=0, max_new_tokens=8), seed=0))
    assert sum(s.finish_reason == "stop" for s in samples) > 35
    assert all(torch.equal(weight, before[name]) for name, weight in start.model.state_dict().items())


def test_logs_each_steps_loss_and_what_was_cut(tmp_path: Path) -> None:
    context, log = make_context(tmp_path)
    SFT(config(max_length=6)).train(MethodInputs(make_policy(), demonstrations=demonstrations()), context)
    assert [step for step, metrics in log.lines if "loss" in metrics] == list(range(1, 11))
    assert log.values("loss")[-1] < log.values("loss")[0]
    long = [d for d in demonstrations() if len(d.instruction.instruction.split()) + 2 + 3 > 6]
    assert log.values("examples_cut") == [len(long)]


def test_the_first_loss_is_minus_the_mean_logprob_of_response_tokens(tmp_path: Path) -> None:
    start = make_policy()
    rows = demonstrations(8)
    context, log = make_context(tmp_path)
    SFT(config(num_train_epochs=1)).train(MethodInputs(start, demonstrations=rows), context)
    assert log.values("loss")[0] == pytest.approx(-likelihood(start, rows) / 3, abs=1e-3)  # two words and EOS each


class LargestLogits(TorchDispatchMode):
    """The most logits that any tensor made meanwhile holds; its head's `weight` [V, H], transposed, is none."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.size, self.head, self.largest = len(weight), weight.T.shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor) and tensor.shape[-1:] == (self.size,) and tensor.shape != self.head:
                self.largest = max(self.largest, tensor.numel())
        return made


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)])
def test_logits_never_exist_for_a_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: Any) -> None:
    monkeypatch.setattr("afarm.backend.logprobs.CPU_LOGITS_BUDGET", 4 * 977)
    start = make_policy(vocab_size=977)
    with LargestLogits(start.model.lm_head.weight) as seen:
        train(tmp_path, start, num_train_epochs=1, lora=lora)
    assert 977 < seen.largest <= 4 * 977


def test_another_seed_gives_other_weights(tmp_path: Path, plain: CheckpointPolicy) -> None:
    context, _ = make_context(tmp_path, seed=1)
    other = SFT(config()).train(MethodInputs(make_policy(), demonstrations=demonstrations()), context)
    assert not same_weights(plain.model, other.model)


def test_accumulation_gives_the_weights_of_the_whole_batch(tmp_path: Path, slow: CheckpointPolicy) -> None:
    split = train(tmp_path, learning_rate=1e-3, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert same_weights(slow.model, split.model, tolerance=1e-4)


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)])
def test_gradient_checkpointing_recomputes_layers_and_changes_nothing(tmp_path: Path, lora: Any) -> None:
    computed: list[str] = []
    with torch.nn.modules.module.register_module_forward_pre_hook(lambda m, _: computed.append(type(m).__name__)):
        plain = train(tmp_path / "1", lora=lora, num_train_epochs=1)
        once = computed.count("LlamaMLP")
        recomputed = train(tmp_path / "2", lora=lora, num_train_epochs=1, gradient_checkpointing=True)
    assert computed.count("LlamaMLP") == 3 * once
    assert same_weights(plain.model, recomputed.model, tolerance=1e-5)


@pytest.mark.parametrize("target_modules", ["all-linear", ["q_proj", "v_proj"]])
def test_lora_learns_on_the_starts_own_weights_and_saves_a_plain_model(tmp_path: Path, target_modules: Any) -> None:
    start = make_policy()
    lora = LoraConfig(r=4, target_modules=target_modules)
    trained = train(tmp_path, start, num_train_epochs=10, lora=lora)
    assert likelihood(trained, demonstrations()) > likelihood(start, demonstrations()) + 1
    weights = {weight.data_ptr() for weight in trained.model.parameters()}
    assert weights >= {weight.data_ptr() for weight in start.model.parameters()}, "no second copy"
    trained.save(tmp_path / "saved")
    again = trained.backend.load_policy(tmp_path / "saved")
    assert again.model.state_dict().keys() == start.model.state_dict().keys()
    assert likelihood(again, demonstrations()) == pytest.approx(likelihood(trained, demonstrations()), abs=1e-5)


def test_a_copy_of_the_trained_policy_runs_its_own_weights(plain: CheckpointPolicy) -> None:
    # TRL binds a forward to the very model it trained: a deep copy that kept it would run the original's weights
    copied = plain.copy()
    with torch.no_grad():
        for weight in copied.model.parameters():
            weight.zero_()
    ids = torch.tensor([[3, 5, 4]])
    assert copied.model(ids).logits.abs().max() == 0
    assert plain.model(ids).logits.abs().max() > 0


def test_stopped_between_checkpoints_it_leaves_one_of_its_last_step(tmp_path: Path) -> None:
    asked = 0

    def stop_after_four() -> bool:
        nonlocal asked
        asked += 1
        return asked >= 4

    context, _ = make_context(tmp_path, should_stop=stop_after_four)
    with pytest.raises(KeyboardInterrupt):
        SFT(config(save_steps=3)).train(MethodInputs(make_policy(), demonstrations=demonstrations()), context)
    latest = context.checkpoints.latest()
    assert latest is not None
    assert latest[0] == 4


def test_a_loss_that_is_not_finite_stops_and_names_step_and_checkpoint(tmp_path: Path) -> None:
    context, log = make_context(tmp_path)
    with pytest.raises(TrainingError, match=r"step \d+.*checkpoint of step \d+ is kept.*sft\.learning_rate"):
        SFT(config(learning_rate=1e30, max_grad_norm=1e30, warmup_ratio=0.5, save_steps=1)).train(
            MethodInputs(make_policy(), demonstrations=demonstrations()), context
        )
    latest = context.checkpoints.latest()
    assert latest is not None
    assert latest[0] == max(step for step, metrics in log.lines if "loss" in metrics)
    assert all(math.isfinite(loss) for loss in log.values("loss"))


def test_checkpoints_are_published_whole_and_scratch_is_removed(tmp_path: Path) -> None:
    context, _ = make_context(tmp_path)
    SFT(config(save_steps=4)).train(MethodInputs(make_policy(), demonstrations=demonstrations()), context)
    assert isinstance(context.checkpoints, DiskCheckpoints)
    assert context.checkpoints.saved == [2, 4, 6, 8, 10], "a fifth of the stage, for it is less than asked for"
    assert not (tmp_path / "trainer").exists()


def test_no_demonstrations_is_a_data_error_that_says_what_to_choose(tmp_path: Path) -> None:
    empty = [replace(d, output="") for d in demonstrations(3)]
    context, _ = make_context(tmp_path)
    with pytest.raises(DataError, match="3 rows"):
        SFT(config()).train(MethodInputs(make_policy(), demonstrations=empty), context)


def test_fewer_demonstrations_than_a_batch_make_one_step(tmp_path: Path) -> None:
    context, log = make_context(tmp_path)
    rows = demonstrations(3)
    SFT(config(num_train_epochs=1, per_device_train_batch_size=64)).train(
        MethodInputs(make_policy(), demonstrations=rows), context
    )
    assert len(log.values("loss")) == 1


def test_sft_on_all_splits_is_sft_on_what_it_is_given_and_names_itself_in_advice(
    tmp_path: Path, plain: CheckpointPolicy
) -> None:
    context, log = make_context(tmp_path / "all")
    assert SFTOnAllSplits.needs == {"all_demonstrations"}
    inputs = MethodInputs(make_policy(), demonstrations=demonstrations())
    trained = SFTOnAllSplits(config()).train(inputs, context)
    assert same_weights(trained.model, plain.model)
    assert log.values("examples") == [40]
    with pytest.raises(TrainingError, match=r"--set sft_all\.learning_rate"):
        SFTOnAllSplits(config(learning_rate=1e30, max_grad_norm=1e30, warmup_ratio=0.5)).train(inputs, context)


def test_the_untuned_base_is_the_model_as_it_is(tmp_path: Path) -> None:
    start = make_policy()
    context, log = make_context(tmp_path)
    assert Untuned().train(MethodInputs(start), context) is start
    assert Untuned.begins_with == "base"
    assert log.lines == []


@pytest.mark.parametrize("scheduler", ["linear", "cosine", "constant_with_warmup"])
def test_the_learning_rate_starts_above_0_and_falls_as_the_scheduler_says(tmp_path: Path, scheduler: str) -> None:
    context, log = make_context(tmp_path)
    settings = config(warmup_ratio=0.2, lr_scheduler_type=scheduler, num_train_epochs=2)
    SFT(settings).train(MethodInputs(make_policy(), demonstrations=demonstrations()), context)
    rates = [line["learning_rate"] / 1e-2 for _, line in log.lines if "learning_rate" in line]
    warmed = {  # ten steps, of which two warm up
        "linear": [1 - i / 8 for i in range(8)],
        "cosine": [(1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)],
        "constant_with_warmup": [1.0] * 8,
    }
    assert rates == pytest.approx([1 / 3, 2 / 3, *warmed[scheduler]])


def test_a_single_step_learns(tmp_path: Path) -> None:
    start = make_policy()
    context, _ = make_context(tmp_path)
    rows = demonstrations(4)
    trained = SFT(config(num_train_epochs=1)).train(MethodInputs(start, demonstrations=rows), context)
    assert likelihood(trained, rows) > likelihood(start, rows)
