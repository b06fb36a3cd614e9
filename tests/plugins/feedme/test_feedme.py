"""FeedME: SFT on the preferred outputs, and what that comes to on a bandit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bandit
import pytest
import torch
from tiny_models import Recorder, judged, make_context, make_instructions, make_policy, same_weights

from afarm.backend import CheckpointPolicy
from afarm.core.errors import DataError
from afarm.core.interfaces import MethodInputs
from afarm.core.records import JudgedPair, Output
from afarm_plugins.feedme import FeedME, FeedMEConfig
from afarm_plugins.sft import SFT, SFTConfig

SMALL: dict[str, Any] = {
    "learning_rate": 3e-3,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 8,
    "save_steps": 0,
}


def train(
    directory: Path, rows: list[JudgedPair], start: CheckpointPolicy | None = None, **settings: Any
) -> tuple[CheckpointPolicy, Recorder]:
    context, log = make_context(directory)
    inputs = MethodInputs(start or make_policy(), preferences=rows)
    return FeedME(FeedMEConfig(**(SMALL | settings))).train(inputs, context), log


def preferences(count: int = 24) -> list[JudgedPair]:
    return [
        judged(i, f"w{n % 9} w20", f"w{10 + n % 7}", (1.0, 0.0, 0.8, 0.4)[n % 4])
        for n, i in enumerate(make_instructions(count))
    ]


def test_it_is_sft_on_the_preferred_outputs_a_soft_label_counting_by_its_side(tmp_path: Path) -> None:
    rows = preferences()
    preferred = [
        Output(r.pair.instruction, r.pair.output_2 if n % 4 in (0, 2) else r.pair.output_1) for n, r in enumerate(rows)
    ]
    context, _ = make_context(tmp_path / "sft")
    by_sft = SFT(SFTConfig(**SMALL)).train(MethodInputs(make_policy(), demonstrations=preferred), context)
    trained, log = train(tmp_path / "feedme", rows)
    assert same_weights(trained.model, by_sft.model)
    assert log.values("examples") == [24]


def test_a_policy_that_imitates_winners_gives_each_answer_as_often_as_it_won(tmp_path: Path) -> None:
    # of the six pairs, w12 wins 3, w11 2, w10 1 and w13 none: that is the optimum whatever the policy was before
    trained, log = train(
        tmp_path,
        bandit.bandit_preferences(),
        bandit.bandit_policy(),
        num_train_epochs=60,
        learning_rate=6e-3,
        per_device_train_batch_size=18,
    )
    wins = torch.tensor([1 / 6, 2 / 6, 3 / 6, 0.0]).expand(3, 4)
    torch.testing.assert_close(bandit.answer_probabilities(trained), wins, rtol=0, atol=0.02)
    assert log.values("loss")[-1] < log.values("loss")[0]


def test_the_end_of_sequence_is_trained(tmp_path: Path) -> None:
    start, rows = make_policy(), [judged(i, "w5 w6", "w7", 0.0) for i in make_instructions(16)]
    trained, _ = train(tmp_path, rows, start, num_train_epochs=6)
    [prompt] = start.prompt_ids([rows[0].pair.instruction])
    ids = torch.tensor([[*prompt, 5 + 5, 5 + 6]])
    with torch.no_grad():
        before, after = (p.model(ids).logits[0, -1].log_softmax(-1)[1] for p in (start, trained))
    assert after > before + 1


def test_draws_even_labels_and_unread_answers_are_left_out_and_counted(tmp_path: Path) -> None:
    instructions = make_instructions(60)[50:56]
    outcomes: list[tuple[float | None, str]] = [(None, "draw")] * 3 + [(None, "unparsed"), (0.5, "decided")]
    more = [judged(i, "w1", "w2", p2, outcome) for i, (p2, outcome) in zip(instructions, outcomes, strict=False)]
    mixed, log = train(tmp_path / "1", [*preferences(), *more])
    clean, _ = train(tmp_path / "2", preferences())
    assert same_weights(mixed.model, clean.model)
    assert [log.values(f"pairs_{k}") for k in ("decided", "draw", "unparsed", "left_out")] == [[25], [3], [1], [5]]
    assert log.values("examples") == [24]


def test_an_output_that_won_twice_is_two_examples(tmp_path: Path) -> None:
    [row] = preferences(1)
    _, log = train(tmp_path, [row, row])
    assert log.values("examples") == [2]


def test_no_decided_pair_is_a_data_error_that_says_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="feedme has nothing to learn from: 2 draw"):
        train(tmp_path, [judged(i, "w1", "w2", None) for i in make_instructions(2)])


def test_examples_that_are_too_long_are_cut_and_counted(tmp_path: Path) -> None:
    _, log = train(tmp_path, preferences(), max_length=6)
    assert 0 < log.values("examples_cut")[0] < 24
