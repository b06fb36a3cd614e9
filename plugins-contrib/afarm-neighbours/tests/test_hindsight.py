"""Chain of Hindsight: sequences, the loss by hand, hidden tokens, the kit's verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from afarm_neighbours import ChainOfHindsight, ChainOfHindsightConfig
from afarm_neighbours.hindsight import encode_chains, hidden_tokens, train_hindsight

from afarm import ConfigError, DataError, JudgedPair, LoraConfig, MethodInputs, Output, Preference
from afarm.backend import CheckpointPolicy
from afarm.testing import (
    MetricsRecorder,
    check_method,
    make_instructions,
    separable_preferences,
    tiny_config,
    tiny_policy,
    train_context,
)

# The tiny vocabulary has w0 to w39, and no other word.
WORDS = {"good_text": "w20 w21", "bad_text": "w22"}


def goodness(text: str) -> float:
    """Words of the better outputs of `separable_preferences`, less those of the worse."""
    words = text.split()
    return sum(words.count(word) for word in ("w1", "w2")) - sum(words.count(word) for word in ("w31", "w32"))


def config_of(**settings: Any) -> ChainOfHindsightConfig:
    return ChainOfHindsightConfig.model_validate({**WORDS, **settings}, context={"section": "chain_of_hindsight"})


def test_it_keeps_the_promises_of_a_method(tmp_path: Path) -> None:
    config = tiny_config(ChainOfHindsightConfig, control="token", mask_ratio=0.2, demonstration_weight=0.5)
    assert ChainOfHindsight(config).needs == {"preferences", "demonstrations"}
    check_method(ChainOfHindsight(config), tmp_path, learns=goodness)


def test_a_pair_is_two_sequences_whose_phrases_and_prompts_are_not_learned() -> None:
    policy, [judged] = tiny_policy(), separable_preferences(1)
    (first, second), cut = encode_chains(policy, "w20 w21", "w22", [judged], config_of())
    words = policy.tokenizer.convert_tokens_to_ids
    better, worse = (
        [*policy.tokenizer(text, add_special_tokens=False).input_ids, policy.tokenizer.eos_token_id]
        for text in (judged.pair.output_2, judged.pair.output_1)
    )
    [prompt] = policy.prompt_ids([judged.pair.instruction])
    good, bad = words(["w20", "w21"]), words(["w22"])
    assert first[0] == [*bad, *prompt, *worse, *good, *better]
    assert second[0] == [*good, *prompt, *better, *bad, *worse]
    assert first[1] == [0] * (1 + len(prompt)) + [1] * len(worse) + [0] * 2 + [2] * len(better)
    assert second[1] == [0] * (2 + len(prompt)) + [2] * len(better) + [0] + [1] * len(worse)
    assert cut == 0
    [(ids, kinds)], cut = encode_chains(policy, "w20", "w22", [judged], config_of(order="worse_first", max_length=12))
    assert (len(ids), len(kinds), cut) == (12, 12, 1)
    assert ids[0] == bad[0]  # the phrase stays where the prompt is cut


@pytest.mark.parametrize("mask_ratio", [0.0, 0.9])
def test_the_first_loss_is_the_mean_negative_log_likelihood_of_outputs(mask_ratio: float, tmp_path: Path) -> None:
    """Each sequence by itself, whole logits, a mask of its own that hides columns from later rows."""
    start, pairs, context = tiny_policy(), separable_preferences(5), train_context(tmp_path)
    tasks = make_instructions(12)[8:]
    demonstrations = [Output(task, "w3 w4") for task in tasks]
    config = config_of(mask_ratio=mask_ratio, demonstration_weight=0.5, learning_rate=1e-9, warmup_ratio=0.0)
    log = MetricsRecorder()
    inputs = MethodInputs(start, preferences=pairs, demonstrations=demonstrations)
    train_hindsight(config, inputs, train_context(tmp_path, log_metrics=log))

    sequences, _ = encode_chains(start, "w20 w21", "w22", pairs, config)
    for task in tasks:
        [[prompt, response]] = start.encode([task], ["w3 w4"], 64)[0]
        sequences.append(([*prompt, *response], [0] * len(prompt) + [3] * len(response)))
    summed, weights, of_good = 0.0, 0.0, []
    for number, (ids, kinds) in enumerate(sequences):
        hidden = hidden_tokens(context.seed, 0, number, len(ids), mask_ratio)
        sees = torch.ones(len(ids), len(ids)).tril().bool() & ~torch.tensor(hidden).bool()
        with torch.no_grad():
            logits = start.model(input_ids=torch.tensor([ids]), attention_mask=sees[None, None]).logits[0].double()
        for place in range(1, len(ids)):
            nll = -float(torch.log_softmax(logits[place - 1], -1)[ids[place]])
            weight = [0.0, 1.0, 1.0, 0.5][kinds[place]]
            summed, weights = summed + weight * nll, weights + weight
            of_good += [nll] if kinds[place] == 2 else []
    assert log.lines[0][1]["loss"] == pytest.approx(summed / weights, abs=1e-5)
    assert log.lines[0][1]["loss/good"] == pytest.approx(sum(of_good) / len(of_good), abs=1e-5)
    assert any(hidden_tokens(context.seed, 0, n, 30, mask_ratio) != [0] * 30 for n in range(9)) == bool(mask_ratio)


def test_a_share_of_the_tokens_up_to_the_setting_is_hidden_and_never_the_first() -> None:
    drawn = [hidden_tokens(1, step, number, 400, 0.1) for step in range(4) for number in range(25)]
    shares = [sum(hidden) / 400 for hidden in drawn]
    assert max(shares) < 0.15
    assert sum(shares) / len(shares) == pytest.approx(0.05, abs=0.01)  # the mean of a share from 0 to 0.1
    assert not any(hidden[0] for hidden in drawn)
    assert drawn[0] == hidden_tokens(1, 0, 0, 400, 0.1) != drawn[1]


def train(directory: Path, pairs: list[JudgedPair], **settings: Any) -> CheckpointPolicy:
    context = train_context(directory)
    return train_hindsight(config_of(learning_rate=5e-3, **settings), MethodInputs(tiny_policy(), pairs), context)


def test_how_a_step_is_cut_changes_nothing_and_the_policy_asks_for_good_outputs(tmp_path: Path) -> None:
    pairs = separable_preferences(13)
    whole = train(tmp_path / "1", pairs, per_device_train_batch_size=8, mask_ratio=0.3)
    cut = train(tmp_path / "2", pairs, per_device_train_batch_size=2, gradient_accumulation_steps=4, mask_ratio=0.3)
    for one, other in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert whole.template.control == "w20 w21"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"good_text": "unknown", "bad_text": "words"}, "reads 'unknown' and 'words' as the same tokens"),
        ({"good_text": "w1", "bad_text": "w1"}, "are the same: nothing would tell good from bad"),
    ],
)
def test_phrases_that_are_one_are_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, ValueError), match=said):
        train(tmp_path, separable_preferences(3), **settings)


def test_without_a_better_output_there_is_nothing_to_learn_and_adapters_learn_no_new_token(tmp_path: Path) -> None:
    draws = [JudgedPair(row.pair, Preference(row.pair.id, None, "draw")) for row in separable_preferences(3)]
    with pytest.raises(DataError, match="chain_of_hindsight has nothing to learn from: 3 draw"):
        train(tmp_path, draws)
    [said] = ChainOfHindsight(config_of(control="token", lora=LoraConfig(r=4))).check()
    assert "--set chain_of_hindsight.control=text" in said
    assert ChainOfHindsight(config_of(lora=LoraConfig(r=4))).check() == ()
