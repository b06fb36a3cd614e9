"""DPO and its relatives: losses by hand, the reference, invariances, and the optimum on a bandit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import bandit
import pytest
import torch
from pydantic import ValidationError
from tiny_models import Recorder, judged, make_context, make_instructions, make_policy, same_weights

from afarm import LoraConfig
from afarm.backend import CheckpointPolicy, join_and_pad, logprobs
from afarm.backend.adapters import merged_copy
from afarm.backend.batching import TokenBatch
from afarm.core.errors import DataError
from afarm.core.interfaces import MethodInputs
from afarm.core.records import JudgedPair
from afarm.core.seeding import uniform
from afarm_plugins.dpo import DPO, DPOConfig, dpo
from afarm_plugins.dpo.dpo import pair_examples, reference_logps


def config(**settings: Any) -> DPOConfig:
    defaults = {"learning_rate": 1e-3, "num_train_epochs": 1, "per_device_train_batch_size": 8, "save_steps": 0}
    return DPOConfig(**(defaults | settings))


def preferences(count: int = 40) -> list[JudgedPair]:
    """The output with w7 in it is better; which one that is, and how long they are, varies."""
    pairs = []
    for n, instruction in enumerate(make_instructions(count)):
        words = [f"w{10 + (n * 7 + j) % 20}" for j in range(1 + n % 5)]
        outputs = (" ".join(words), " ".join([*words[: n % 3], "w7"]))
        second = uniform(n) < 0.5
        pairs.append(judged(instruction, *(outputs if second else outputs[::-1]), 1.0 if second else 0.0))
    return pairs


def train(
    directory: Path, rows: list[JudgedPair], start: CheckpointPolicy | None = None, **settings: Any
) -> tuple[CheckpointPolicy, Recorder]:
    context, log = make_context(directory)
    inputs = MethodInputs(start or make_policy(), preferences=rows)
    return DPO(config(**settings)).train(inputs, context), log


def logps(policy: CheckpointPolicy, rows: list[JudgedPair]) -> torch.Tensor:
    """[pairs, (chosen, rejected)]."""
    return torch.tensor(reference_logps(policy, pair_examples(policy, rows, 512)[0], 64))


def test_processes_read_a_shard_of_the_reference_each(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rows = make_policy(), preferences(9)
    whole, examples = logps(policy, rows), pair_examples(policy, rows, 512)[0]
    monkeypatch.setattr(logprobs, "all_reduce_sum", lambda tensors: None)
    shards = []
    for rank in range(2):
        monkeypatch.setattr(logprobs, "shard", lambda all_rows, rank=rank: all_rows[rank::2])
        shards.append(torch.tensor(reference_logps(policy, examples, 2)))
        assert int((shards[rank] != 0).sum()) == 9
    torch.testing.assert_close(shards[0] + shards[1], whole)


# -------------------------------------------------------------------------------------------------- what it learns


@pytest.mark.parametrize(("loss_type", "value"), [("sigmoid", math.log(2)), ("hinge", 1.0), ("ipo", 25.0)])
def test_begins_as_its_reference_and_raises_the_chosen_and_lowers_the_rejected(
    tmp_path: Path, loss_type: str, value: float
) -> None:
    start, rows = make_policy(), preferences(8)
    trained, log = train(tmp_path, rows, start, loss_type=loss_type, learning_rate=1e-4, warmup_ratio=0)
    assert log.values("loss")[0] == pytest.approx(value, abs=1e-4 * value)
    assert log.values("rewards/chosen")[0] == pytest.approx(0, abs=1e-5)
    assert log.values("rewards/margins")[0] == pytest.approx(0, abs=1e-5)
    change = logps(trained, rows) - logps(start, rows)
    assert change[:, 0].mean() > 0.01
    assert change[:, 1].mean() < -0.01


def test_learns_the_preferences_and_logs_it_under_trls_names(tmp_path: Path) -> None:
    rows = preferences()
    trained, log = train(tmp_path, rows, num_train_epochs=8)
    assert log.values("loss")[-1] < 0.5 * math.log(2)
    assert log.values("rewards/accuracies")[-1] == 1
    margins = [c - r for c, r in zip(log.values("rewards/chosen"), log.values("rewards/rejected"), strict=True)]
    assert log.values("rewards/margins") == pytest.approx(margins, abs=1e-5)
    ratio = logps(trained, rows) - logps(make_policy(), rows)
    assert (ratio[:, 0] > ratio[:, 1]).float().mean() > 0.95


def test_soft_labels_lead_to_the_known_optimum_of_a_bandit(tmp_path: Path) -> None:
    # Labels by a Bradley–Terry model of the rewards: the optimum is the reference times exp(reward / β), up to how much
    # goes to answers at all, which no label speaks of
    start, beta = bandit.bandit_policy(), 0.5
    trained, _ = train(
        tmp_path,
        bandit.bandit_preferences(soft=True),
        start,
        beta=beta,
        num_train_epochs=80,
        per_device_train_batch_size=18,
        learning_rate=4e-3,
    )
    reference, found = bandit.answer_probabilities(start), bandit.answer_probabilities(trained)
    wanted = reference * (bandit.rewards() / beta).exp()
    share = found / found.sum(-1, keepdim=True)
    torch.testing.assert_close(share, wanted / wanted.sum(-1, keepdim=True), rtol=0.02, atol=0.005)


def test_ipo_stops_where_the_log_ratios_a_token_differ_by_one_half_of_one_over_beta(tmp_path: Path) -> None:
    [instruction] = make_instructions(1)
    rows, start = [judged(instruction, "w1 w2 w3 w4 w5", "w6", 0.0)], make_policy()  # of 6 tokens and of 2
    trained, _ = train(tmp_path, rows, start, loss_type="ipo", beta=0.5, num_train_epochs=60, learning_rate=3e-3)
    chosen, rejected = (logps(trained, rows) - logps(start, rows))[0].tolist()
    assert chosen / 6 - rejected / 2 == pytest.approx(1, abs=0.02)


# --------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("lora", [None, LoraConfig(r=4)])
def test_the_reference_is_the_start_and_stays_as_it_is(tmp_path: Path, lora: Any) -> None:
    start, rows = make_policy(), preferences(16)
    before = {name: weight.clone() for name, weight in start.model.state_dict().items()}
    expected = logps(start, rows)
    trained, log = train(tmp_path, rows, start, num_train_epochs=3, lora=lora, beta=0.3, per_device_train_batch_size=16)
    assert all(torch.equal(weight, before[name]) for name, weight in start.model.state_dict().items())
    assert merged_copy(trained.model).state_dict().keys() == before.keys()
    # in the third step: the reward is β (log π − log π_ref) with that very reference
    assert log.values("logps/chosen")[2] != pytest.approx(expected[:, 0].mean().item(), abs=1e-3)
    for side, name in enumerate(("chosen", "rejected")):
        reward = 0.3 * (log.values(f"logps/{name}")[2] - expected[:, side].mean().item())
        assert log.values(f"rewards/{name}")[2] == pytest.approx(reward, abs=1e-4)


def test_the_reference_of_adapters_is_the_model_with_them_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def look(trainer: Any) -> Any:
        start = make_policy()
        start.model = trainer.model
        seen["on"] = logps(start, preferences(8))
        with trainer.model.disable_adapter():
            seen["off"] = logps(start, preferences(8))
        return trained_model(trainer)

    trained_model = dpo.trained_model
    monkeypatch.setattr(dpo, "trained_model", look)
    trained, _ = train(tmp_path, preferences(8), lora=LoraConfig(r=4), num_train_epochs=4)
    torch.testing.assert_close(seen["off"], logps(make_policy(), preferences(8)))
    torch.testing.assert_close(seen["on"], logps(trained, preferences(8)), rtol=0, atol=1e-4)  # merged
    assert (seen["on"] - seen["off"]).abs().max() > 0.1


# ----------------------------------------------------------------------------------------------------- invariances


@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo"])
def test_how_a_step_is_cut_into_micro_batches_changes_nothing(tmp_path: Path, loss_type: str) -> None:
    # 27 pairs in steps of 8: the last step has 3, in micro-batches of 2 and 1, whose means weigh differently
    whole, log = train(tmp_path / "1", preferences(27), loss_type=loss_type)
    cut, cut_log = train(
        tmp_path / "2",
        preferences(27),
        loss_type=loss_type,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
    )
    assert same_weights(whole.model, cut.model, tolerance=1e-4)
    for name in ("loss", "rewards/margins", "logps/chosen"):
        assert cut_log.values(name) == pytest.approx(log.values(name), abs=1e-3), name


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckpointPolicy, Recorder]:
    """A training of `config()` on sixteen pairs, to be read only."""
    return train(tmp_path_factory.mktemp("sixteen"), preferences(16))


@pytest.mark.parametrize(("before", "after"), [(0, 9), (4, 0), (5, 3)])
def test_padding_of_either_side_and_any_amount_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sixteen: tuple[CheckpointPolicy, Recorder],
    before: int,
    after: int,
) -> None:
    plain, log = sixteen

    def widened(*given: Any) -> TokenBatch:
        batch, pads = join_and_pad(*given), (before, after)
        widen = torch.nn.functional.pad
        return TokenBatch(
            widen(batch.input_ids, pads, value=7), widen(batch.attention_mask, pads), widen(batch.response_mask, pads)
        )

    for module in (dpo, logprobs):
        monkeypatch.setattr(module, "join_and_pad", widened)
    padded, padded_log = train(tmp_path, preferences(16))
    assert same_weights(plain.model, padded.model, tolerance=1e-4)
    assert padded_log.values("rewards/margins") == pytest.approx(log.values("rewards/margins"), abs=1e-4)


def test_swapped_pairs_give_the_same_policy(tmp_path: Path) -> None:
    rows = preferences(24)
    swapped = [JudgedPair(r.pair.swapped(), r.preference.swapped()) for r in rows]
    one, two = train(tmp_path / "1", rows)[0], train(tmp_path / "2", swapped)[0]
    assert same_weights(one.model, two.model, tolerance=1e-5)


# ---------------------------------------------------------------------------------------------------- what is read


def test_tokens_are_those_the_policy_samples_with_and_the_eos_is_one_of_them(policy: CheckpointPolicy) -> None:
    rows = [judged(make_instructions(1)[0], "w1 w2", "w3", 0.2)]
    [example], cut = pair_examples(policy, rows, 512)
    [prompt] = policy.prompt_ids([rows[0].pair.instruction])
    assert cut == 0
    assert example["chosen"] == (prompt, [5 + 1, 5 + 2, 1])
    assert example["rejected"] == (prompt, [5 + 3, 1])
    assert example["p_chosen"] == 0.8


def test_the_log_probability_is_the_sum_over_the_response_and_its_end(policy: CheckpointPolicy) -> None:
    rows = [judged(make_instructions(1)[0], "w1 w2", "w3", 0.0)]
    [prompt] = policy.prompt_ids([rows[0].pair.instruction])
    ids = [*prompt, 5 + 1, 5 + 2, 1]
    with torch.no_grad():
        logprobs = policy.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = sum(logprobs[at - 1, ids[at]].item() for at in range(len(prompt), len(ids)))
    assert logps(policy, rows)[0, 0].item() == pytest.approx(expected, abs=1e-5)


def test_draws_and_unread_answers_are_counted_and_draws_kept_on_request(
    tmp_path: Path, sixteen: tuple[CheckpointPolicy, Recorder]
) -> None:
    rows = preferences(16)
    more = [
        judged(i, "w1", "w2", None, "draw" if n < 3 else "unparsed") for n, i in enumerate(make_instructions(60)[50:55])
    ]
    mixed, log = train(tmp_path / "1", [*rows, *more])
    assert same_weights(mixed.model, sixteen[0].model)
    assert [log.values(f"pairs_{kind}") for kind in ("decided", "draw", "unparsed", "left_out")] == [
        [16],
        [3],
        [2],
        [5],
    ]
    _, kept = train(tmp_path / "3", [*rows, *more], keep_draws=True)
    assert kept.values("pairs_left_out") == [2]


def test_nothing_to_learn_from_is_a_data_error_that_says_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dpo has nothing to learn from: 2 draw"):
        train(tmp_path, [judged(i, "w1", "w2", None) for i in make_instructions(2)])


def test_fewer_pairs_than_a_batch_make_one_step(tmp_path: Path) -> None:
    _, log = train(tmp_path, preferences(3), per_device_train_batch_size=64)
    assert len(log.values("loss")) == 1


def test_outputs_that_are_too_long_are_cut_and_counted(tmp_path: Path) -> None:
    _, log = train(tmp_path, preferences(16), max_length=6)
    assert 0 < log.values("outputs_cut")[0] < 32


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"beta": 0}, {"label_smoothing": 0.5}, {"loss_type": "kto"}):
        with pytest.raises(ValidationError):
            config(**wrong)
