from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import make_context, make_instructions, make_policy

from afarm.backend import CheckpointPolicy, TorchRewardModel
from afarm.config import Config, setting
from afarm.errors import ModelError
from afarm.interfaces import Decoding, MethodInputs, RewardModel
from afarm.records import Instruction, Score
from afarm_plugins.best_of_n import BestOfNConfig
from afarm_plugins.best_of_n.best_of_n import BestOfN, BestOfNPolicy

DECODING = Decoding(temperature=0.7, max_new_tokens=6, per_device_batch_size=8)


class WordConfig(Config):
    word: str = setting("w7", "the word that is counted")


class CountsAWord(RewardModel):
    """A reward model of text alone, with a config and nothing to save."""

    def __init__(self, config: WordConfig):
        self.config = config

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(float(o.split().count(self.config.word)) + len(o) / 1000) for o in outputs]


def fitted(policy: CheckpointPolicy) -> TorchRewardModel:
    torch.manual_seed(5)
    model = TorchRewardModel.classifier_from(policy, head_std=1.0).eval()
    return TorchRewardModel(model, policy.tokenizer, policy.template, policy.backend)


def test_picks_the_highest_of_the_policys_own_n_samples(policy: CheckpointPolicy) -> None:
    instructions = make_instructions(7)
    reward_model = fitted(policy)
    for n in (1, 3, 20):
        best = list(BestOfNPolicy(policy, reward_model, n).sample(instructions, DECODING, seed=4))
        all_samples = list(policy.sample(instructions, replace(DECODING, temperature=1.0, n=n), seed=4))
        assert len(best) == 7
        for k, chosen in enumerate(best):
            candidates = all_samples[k * n : (k + 1) * n]
            rewards = reward_model.score_samples(candidates)
            assert chosen.token_ids == candidates[rewards.index(max(rewards))].token_ids
            assert chosen.score == pytest.approx(max(rewards), abs=1e-5)


def test_a_text_only_reward_model_scores_the_text(policy: CheckpointPolicy) -> None:
    reward_model = CountsAWord(WordConfig())
    best = list(BestOfNPolicy(policy, reward_model, 30).sample(make_instructions(4), DECODING, seed=0))
    for instruction, sample in zip(make_instructions(4), best, strict=True):
        assert sample.score == reward_model.score([instruction], [sample.text])[0].value
        assert "w7" in sample.text.split()


def test_batches_change_nothing(policy: CheckpointPolicy) -> None:
    best_of = BestOfNPolicy(policy, fitted(policy), 5)
    instructions = make_instructions(6)
    expected = [s.token_ids for s in best_of.sample(instructions, DECODING, seed=1)]
    for size in (1, 3, 100):
        decoding = replace(DECODING, per_device_batch_size=size)
        assert [s.token_ids for s in best_of.sample(instructions, decoding, seed=1)] == expected


def test_several_samples_are_each_the_best_of_their_own(policy: CheckpointPolicy) -> None:
    reward_model = CountsAWord(WordConfig())
    instructions = make_instructions(3)
    two = list(BestOfNPolicy(policy, reward_model, 4).sample(instructions, replace(DECODING, n=2), seed=0))
    of_eight = list(BestOfNPolicy(policy, reward_model, 8).sample(instructions, DECODING, seed=0))
    assert len(two) == 6
    for k, best in enumerate(of_eight):
        assert best.score == max(two[2 * k].score or 0, two[2 * k + 1].score or 0)


def test_samples_stream_before_the_last_instruction_is_drawn(policy: CheckpointPolicy) -> None:
    forwards = 0

    def count(*_: object) -> None:
        nonlocal forwards
        forwards += 1

    policy.model.model.embed_tokens.register_forward_hook(count)
    best_of = BestOfNPolicy(policy, CountsAWord(WordConfig()), 64)
    stream = best_of.sample(make_instructions(10), replace(DECODING, max_new_tokens=1), seed=0)
    next(stream)
    assert forwards == 8  # 64 samples, 8 a batch


def test_decodes_at_its_own_temperature(policy: CheckpointPolicy) -> None:
    best_of = BestOfNPolicy(policy, CountsAWord(WordConfig()), 2, temperature=0.9)
    assert best_of.decoding(DECODING) == replace(DECODING, temperature=0.9)


def test_saved_with_a_fitted_reward_model_it_reloads_to_the_same_samples(tmp_path: Path) -> None:
    policy = make_policy()
    best_of = BestOfNPolicy(policy, fitted(policy), 4, temperature=0.8)
    best_of.save(tmp_path)
    again = BestOfNPolicy.load(tmp_path, make_context(tmp_path)[0])
    instructions = make_instructions(5)
    assert list(again.sample(instructions, DECODING, seed=2)) == list(best_of.sample(instructions, DECODING, seed=2))
    assert again.temperature == 0.8


def test_saved_with_a_reward_model_of_text_it_is_built_again_from_its_config(tmp_path: Path) -> None:
    best_of = BestOfNPolicy(make_policy(), CountsAWord(WordConfig(word="w9")), 4)
    best_of.save(tmp_path)
    again = BestOfNPolicy.load(tmp_path, make_context(tmp_path)[0])
    assert isinstance(again.reward_model, CountsAWord)
    assert again.reward_model.config.word == "w9"


def test_a_card_that_names_something_else_is_refused(tmp_path: Path) -> None:
    BestOfNPolicy(make_policy(), CountsAWord(WordConfig()), 4).save(tmp_path)
    card = tmp_path / "best_of_n.json"
    card.write_text(card.read_text().replace("test_best_of_n:CountsAWord", "subprocess:Popen"))
    with pytest.raises(ModelError, match="subprocess:Popen"):
        BestOfNPolicy.load(tmp_path, make_context(tmp_path)[0])


def test_the_method_wraps_what_it_was_given(tmp_path: Path) -> None:
    policy, reward_model = make_policy(), CountsAWord(WordConfig())
    context, _ = make_context(tmp_path)
    made = BestOfN(BestOfNConfig(n=3)).train(MethodInputs(policy, reward_model=reward_model), context)
    assert (made.policy, made.reward_model, made.n, made.temperature) == (policy, reward_model, 3, 1.0)
