"""Outputs that the length limit cut off: what ended is closed by the end-of-sequence token, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_context, make_instructions, make_policy

from afarm.core.interfaces import MethodInputs
from afarm.core.records import JudgedPair, Output, Preference, Sample
from afarm.experiment.annotation import adjacent_pairs
from afarm.storage.rows import read_preferences, write_rows
from afarm_plugins.dpo import DPO, DPOConfig
from afarm_plugins.dpo import dpo as dpo_module
from afarm_plugins.feedme import FeedME, FeedMEConfig
from afarm_plugins.feedme import feedme as feedme_module
from afarm_plugins.reward_conditioning import RewardConditioning, RewardConditioningConfig
from afarm_plugins.reward_conditioning import reward_conditioning as conditioning_module
from afarm_plugins.reward_model import RewardModelConfig
from afarm_plugins.reward_model import bradley_terry as reward_module
from afarm_plugins.reward_model.bradley_terry import BradleyTerryRewardModel

EOS = 1
SETTINGS: dict[str, Any] = {"num_train_epochs": 1, "per_device_train_batch_size": 8, "save_steps": 0}


class CapturedError(Exception):
    """What was handed to training."""


def preferences(directory: Path, reasons: tuple[str, str] = ("stop", "length")) -> list[JudgedPair]:
    """Pairs as a run makes, stores and reads them; the second output, of two words, wins every other pair."""
    outputs = [
        Output(i, text, "sft", {"finish_reason": reason})
        for i in make_instructions(4)
        for text, reason in zip(("w1", "w2 w3"), reasons, strict=True)
    ]
    pairs = adjacent_pairs(outputs, 2)
    rows = [JudgedPair(pair, Preference(pair.id, float(n % 2))) for n, pair in enumerate(pairs)]
    write_rows(directory / "preferences.jsonl", [row.to_row() for row in rows])
    return read_preferences(directory / "preferences.jsonl")


def captured(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, place: int, train: Any) -> list[Any]:
    def stop(*given: Any, **more: Any) -> None:
        raise CapturedError(given[place])

    monkeypatch.setattr(module, name, stop)
    with pytest.raises(CapturedError) as caught:
        train()
    return list(caught.value.args[0])


def closed(response: list[int]) -> bool:
    return response[-1] == EOS


def is_first(response: list[int]) -> bool:
    return response[0] == 6  # w1: the only word of the first output


def test_feedme_and_reward_conditioning_close_what_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = MethodInputs(make_policy(), preferences=preferences(tmp_path))
    methods: list[tuple[Any, Any, int]] = [
        (feedme_module, FeedME(FeedMEConfig(**SETTINGS)), 4),
        (conditioning_module, RewardConditioning(RewardConditioningConfig(**SETTINGS)), 8),
    ]
    for module, method, count in methods:
        context, _ = make_context(tmp_path / module.__name__)
        examples = captured(monkeypatch, module, "fit_supervised", 1, lambda m=method, c=context: m.train(inputs, c))
        responses = [response for _, response in examples]
        assert len(responses) == count
        assert {is_first(r) for r in responses} == {True, False}
        assert [closed(r) for r in responses] == [is_first(r) for r in responses], module.__name__


def test_dpo_closes_what_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = MethodInputs(make_policy(), preferences=preferences(tmp_path))
    context, _ = make_context(tmp_path / "dpo")
    method = DPO(DPOConfig(**SETTINGS))
    examples = captured(monkeypatch, dpo_module, "reference_logps", 1, lambda: method.train(inputs, context))
    responses = [example[side][1] for example in examples for side in ("chosen", "rejected")]
    assert len(responses) == 8
    assert [closed(r) for r in responses] == [is_first(r) for r in responses]


def test_the_reward_model_closes_what_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, _ = make_context(tmp_path / "reward")
    config = RewardModelConfig(**SETTINGS, eval_fraction=0.0)
    rows = preferences(tmp_path)
    examples = captured(
        monkeypatch, reward_module, "fit_member", 2,
        lambda: BradleyTerryRewardModel.fit(rows, make_policy(), config, context),
    )  # fmt: skip
    # "chosen" is TRL's name for the second outputs here
    assert [closed(e["chosen_ids"]) for e in examples] == [False] * 4
    assert [closed(e["rejected_ids"]) for e in examples] == [True] * 4


@pytest.mark.parametrize("reasons", [("stop", "length"), ("stop", "stop")])
def test_a_reward_model_reads_samples_as_the_outputs_it_was_fitted_to(tmp_path: Path, reasons: tuple[str, str]) -> None:
    context, _ = make_context(tmp_path / "reward")
    policy, config = make_policy(), RewardModelConfig(**SETTINGS, learning_rate=1e-2)
    model = BradleyTerryRewardModel.fit(preferences(tmp_path, reasons), policy, config, context)
    model.save(tmp_path / "saved")
    loaded = BradleyTerryRewardModel.load(tmp_path / "saved", context)
    [instruction] = make_instructions(1)
    [prompt] = policy.prompt_ids([instruction])
    cut = Sample("w2 w3", tuple(prompt), (7, 8), finish_reason="length")
    ended = Sample("w2 w3", tuple(prompt), (7, 8, EOS), finish_reason="stop")
    left_open, with_end = model.score_ids([[*prompt, 7, 8], [*prompt, 7, 8, EOS]])
    for reader in (model, loaded):
        assert reader.score_samples([ended]) == [pytest.approx(with_end, abs=1e-5)]
        expected = left_open if "length" in reasons else with_end
        assert reader.score_samples([cut]) == [pytest.approx(expected, abs=1e-5)]
        output = Output(instruction, "w2 w3", details={"finish_reason": "length"})
        assert reader.score_outputs([output])[0].value == pytest.approx(expected, abs=1e-5)
        assert reader.score([instruction], ["w2 w3"])[0].value == pytest.approx(with_end, abs=1e-5)


def test_finish_reasons_are_stored_and_no_part_of_a_pairs_id(tmp_path: Path) -> None:
    [row, *_] = preferences(tmp_path)
    assert (row.pair.finish_reason_1, row.pair.finish_reason_2) == ("stop", "length")
    assert row.pair.ended == (True, False)
    assert row.pair.swapped().ended == (False, True)
    stored = row.to_row()
    del stored["finish_reason_1"], stored["finish_reason_2"]  # a file of before
    old = JudgedPair.from_row(stored)
    assert old.pair.id == row.pair.id
    assert old.pair.ended == (True, True)
    assert "finish_reason_1" not in old.to_row()
