"""Self-judging: the log odds against whole logits, what is learned, the kit's verdict."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from afarm_neighbours import PTrueConfig, SelfRewardConfig
from afarm_neighbours.self_judging import FittedSelfJudge, PTrue, SelfReward, judge_prompts

from afarm import (
    BuildContext,
    ConfigError,
    DataError,
    Instruction,
    JudgedPair,
    Message,
    ModelError,
    Preference,
    seeding,
)
from afarm.backend import Backend, hold_out
from afarm.testing import (
    MetricsRecorder,
    check_fitted_reward_model,
    check_reward_model,
    make_instructions,
    separable_preferences,
    tiny_config,
    tiny_policy,
    train_context,
)

WORDS = {"yes": "w5 w6", "no": "w7"}


def no_reward_model(name: str) -> Any:
    raise NotImplementedError(name)


def test_a_judge_that_learns_keeps_the_promises_of_a_reward_model(tmp_path: Path) -> None:
    config = tiny_config(SelfRewardConfig, judge_text="$task w4 $answer", yes="w5", no="w6")
    check_fitted_reward_model(SelfReward, config, tmp_path)


def test_the_reward_is_the_log_odds_of_yes_whatever_shares_the_batch() -> None:
    policy, tasks, texts = tiny_policy(), make_instructions(5), ["w1", "w2 w3", "", "w1 w1 w1 w1", "w9"]
    judge = FittedSelfJudge(PTrueConfig(**WORDS, per_device_batch_size=2), policy)
    scores = [score.value for score in judge.score(tasks, texts)]
    end = policy.tokenizer.eos_token_id
    words = policy.tokenizer.convert_tokens_to_ids
    for prompt, score in zip(judge_prompts(judge.config, policy, tasks, texts), scores, strict=True):
        summed = []
        for reply in ([*words(["w5", "w6"]), end], [*words(["w7"]), end]):
            with torch.no_grad():
                logits = policy.model(input_ids=torch.tensor([[*prompt, *reply]])).logits[0].double()
            places = range(len(prompt) - 1, len(prompt) + len(reply) - 1)
            summed.append(sum(float(torch.log_softmax(logits[p], -1)[t]) for p, t in zip(places, reply, strict=True)))
        assert score == pytest.approx(summed[0] - summed[1], abs=1e-5)
    check_reward_model(judge)


def test_the_question_shows_turns_task_and_answer() -> None:
    policy = tiny_policy()
    task = Instruction("w1", "w2", messages=(Message("user", "w3"), Message("assistant", "w4")))
    config = PTrueConfig(judge_text="w10 $task w11 $answer w12", **WORDS)
    [ids] = judge_prompts(config, policy, [task], ["w5"])
    shown = policy.tokenizer.decode(ids).split()
    assert [word for word in shown if word.startswith("w")] == ["w10", "w3", "w4", "w1", "w2", "w11", "w5", "w12"]


def test_as_it_is_the_policy_is_measured_on_all_pairs_and_learns_nothing(tmp_path: Path) -> None:
    start, log = tiny_policy(), MetricsRecorder()
    config = SelfRewardConfig(learn=False, **WORDS)
    fitted = SelfReward.fit(separable_preferences(20), start, config, train_context(tmp_path, log_metrics=log))
    assert isinstance(fitted, FittedSelfJudge)
    assert fitted.policy is start
    [(_, metrics)] = log.lines
    assert metrics["eval_pairs"] == 20
    assert 0 <= metrics["eval_accuracy"] <= 1
    draws = [JudgedPair(row.pair, Preference(row.pair.id, None, "draw")) for row in separable_preferences(3)]
    with pytest.raises(DataError, match="self_reward has nothing to learn from: 3 draw"):
        SelfReward.fit(draws, start, config, train_context(tmp_path))


@pytest.mark.parametrize(("count", "fraction", "measured"), [(20, 0.05, 1), (20, 0.5, 10), (1, 0.9, 0), (8, 0.0, 0)])
def test_a_share_of_the_instructions_is_held_out_and_never_learned(count: int, fraction: float, measured: int) -> None:
    pairs = separable_preferences(count)
    assert len({judged.pair.instruction.id for judged in pairs}) == count
    for seed in range(20):
        parts = hold_out(pairs, fraction, partial(seeding.uniform, seed))
        learned, held_out = ([pairs[place] for place in part] for part in parts)
        assert (len(learned), len(held_out)) == (count - measured, measured)
        assert not {judged.pair.id for judged in learned} & {judged.pair.id for judged in held_out}


def test_a_model_in_a_directory_scores_as_it_does_in_memory(tmp_path: Path) -> None:
    policy, tasks = tiny_policy(), make_instructions(3)
    (tmp_path / "model").mkdir()
    policy.save(tmp_path / "model")
    context = BuildContext(no_reward_model, backend=lambda: Backend())
    expected = FittedSelfJudge(PTrueConfig(**WORDS), policy).score(tasks, ["w1", "w2", "w3"])
    for place in (tmp_path, tmp_path / "model"):  # an artifact, or the model in it
        judge = PTrue(PTrueConfig(**WORDS), str(place), context)
        assert [s.value for s in judge.score(tasks, ["w1", "w2", "w3"])] == pytest.approx([s.value for s in expected])
        assert judge.identity
    assert PTrue(PTrueConfig(), str(tmp_path), context).score([], []) == []


def test_what_cannot_judge_is_refused(tmp_path: Path) -> None:
    context = BuildContext(no_reward_model)
    with pytest.raises(ConfigError, match="name the model after a colon"):
        PTrue(PTrueConfig(), "", context)
    with pytest.raises(ModelError, match="p_true:"):
        PTrue(PTrueConfig(), str(tmp_path / "nothing"), context)
    with pytest.raises(ConfigError, match="reads 'yes' and 'no' as the same tokens"):
        FittedSelfJudge(PTrueConfig(), tiny_policy()).score(make_instructions(1), ["w1"])
    with pytest.raises(ValueError, match=r"judge_text must hold \$task, \$answer"):
        PTrueConfig(judge_text="is $answer good?")
