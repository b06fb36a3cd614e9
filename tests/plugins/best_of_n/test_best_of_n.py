from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from bandit import ANSWERS, INSTRUCTIONS, BanditReward, answer_probabilities, bandit_policy, rewards
from nan_reward import turns_nan
from tiny_models import make_context, make_instructions, make_policy

from afarm.backend import CheckpointPolicy, TorchRewardModel
from afarm.core.config import Config, setting
from afarm.core.errors import DataError, ModelError, PluginError, TrainingError
from afarm.core.interfaces import BuildContext, Decoding, MethodInputs, Policy, RewardModel, TrainContext
from afarm.core.records import Instruction, Output, Sample, Score
from afarm_plugins.best_of_n.best_of_n import BestOfNPolicy
from afarm_plugins.best_of_n.method import BestOfN, BestOfNConfig
from afarm_plugins.best_of_n.subsets import Winners, best_of, kl_bound

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
    model = TorchRewardModel.make_classifier(policy, head_std=1.0).eval()
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


class Falters(Policy):
    """A policy that yields what `samples` returns."""

    def __init__(self, samples: Callable[[], Iterator[Sample]]):
        self.samples = samples

    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        yield from self.samples()

    def save(self, directory: Path) -> None: ...

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> Falters:
        raise NotImplementedError


def fails() -> Iterator[Sample]:
    yield Sample("a")
    raise KeyError("missing")


@pytest.mark.parametrize(
    ("samples", "broken"),
    [
        (fails, r" failed: KeyError: 'missing' \(best_of_n/test_best_of_n\.py:\d+\)"),
        (lambda: iter([Sample("a")]), ": sample must yield 4 .*: 3 instructions gave 1 and not 12"),
        (lambda: repeat(Sample("a")), ": sample must yield 4 .*: 3 instructions gave more than 12"),
        (lambda: iter(["a"]), ": sample must yield 4 afarm.Sample per instruction, not str"),
    ],
)
def test_a_fault_of_the_policy_inside_is_its_own(samples: Callable[[], Any], broken: str) -> None:
    best = BestOfNPolicy(Falters(samples), CountsAWord(WordConfig()), 4)
    with pytest.raises(PluginError, match=f"^policy 'test_best_of_n:Falters'{broken}"):
        list(best.sample(make_instructions(3), DECODING, seed=0))


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
    stream = best_of.sample(make_instructions(10), replace(DECODING, max_new_tokens=2), seed=0)
    next(stream)
    assert forwards == 1 + 8  # the prompt once, then the second token of 64 samples, 8 a batch


def test_decodes_at_its_own_temperature(policy: CheckpointPolicy) -> None:
    best_of = BestOfNPolicy(policy, CountsAWord(WordConfig()), 2, temperature=0.9)
    method = BestOfN(BestOfNConfig(n=2, temperature=0.9))
    assert best_of.decoding(DECODING) == method.decoding(DECODING) == replace(DECODING, temperature=0.9)


def test_saved_with_a_reward_model_of_text_it_is_built_again_from_its_config(tmp_path: Path) -> None:
    best_of = BestOfNPolicy(make_policy(), CountsAWord(WordConfig(word="w9")), 4)
    best_of.save(tmp_path)
    again = BestOfNPolicy.load(tmp_path, make_context(tmp_path)[0])
    assert isinstance(again.reward_model, CountsAWord)
    assert again.reward_model.config.word == "w9"


class CountsLetters(RewardModel):
    """One that takes nothing at all, as the toy world's gold."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(float(len(output))) for output in outputs]


class CountsTheWordOfItsSpec(CountsLetters):
    def __init__(self, config: WordConfig, spec: str, context: BuildContext):
        self.config, self.word = config, spec


def test_a_reward_model_that_was_not_fitted_is_built_again_as_a_run_builds_it(tmp_path: Path) -> None:
    with_spec = CountsTheWordOfItsSpec(WordConfig(word="w9"), "w3", BuildContext(lambda name: with_spec))
    with_spec.spec = "w3"  # as a run notes it
    for number, model in enumerate([CountsLetters(), with_spec]):
        (tmp_path / str(number)).mkdir()
        BestOfNPolicy(make_policy(), model, 2).save(tmp_path / str(number))
        again = BestOfNPolicy.load(tmp_path / str(number), make_context(tmp_path)[0]).reward_model
        assert type(again) is type(model)
    assert isinstance(again, CountsTheWordOfItsSpec)
    assert (again.word, again.config.word) == ("w3", "w9")


class KeepsItsWord(CountsLetters):
    """One that is fitted, and saves itself into a directory that exists, as the interface promises."""

    def __init__(self, word: str):
        self.word = word

    def save(self, directory: Path) -> None:
        (directory / "word.txt").write_text(self.word)

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> KeepsItsWord:
        return cls((directory / "word.txt").read_text())


def test_a_reward_model_without_a_checkpoint_of_transformers_is_saved_too(tmp_path: Path) -> None:
    BestOfNPolicy(make_policy(), KeepsItsWord("w3"), 2).save(tmp_path)
    again = BestOfNPolicy.load(tmp_path, make_context(tmp_path)[0]).reward_model
    assert isinstance(again, KeepsItsWord)
    assert again.word == "w3"


def test_a_card_that_names_something_else_is_refused(tmp_path: Path) -> None:
    BestOfNPolicy(make_policy(), CountsAWord(WordConfig()), 4).save(tmp_path)
    card = tmp_path / "best_of_n.json"
    card.write_text(card.read_text().replace("test_best_of_n:CountsAWord", "subprocess:Popen"))
    with pytest.raises(ModelError, match="subprocess:Popen"):
        BestOfNPolicy.load(tmp_path, make_context(tmp_path)[0])


def test_the_method_wraps_what_it_was_given(tmp_path: Path) -> None:
    policy, reward_model = make_policy(), CountsAWord(WordConfig())
    context, log = make_context(tmp_path)
    made = BestOfN(BestOfNConfig(n=3)).train(MethodInputs(policy, reward_model=reward_model), context)
    assert (made.policy, made.reward_model, made.n, made.temperature) == (policy, reward_model, 3, 1.0)
    assert log.values("objective/kl_bound") == [pytest.approx(1.098612 - 2 / 3, abs=1e-6)]


def test_kl_bound_by_hand() -> None:
    assert kl_bound(1) == 0
    assert kl_bound(2) == pytest.approx(0.693147 - 0.5, abs=1e-6)
    assert kl_bound(16) == pytest.approx(2.772589 - 0.9375, abs=1e-6)


class Counting(Policy):
    """Yields numbers as texts, and notes how many were taken."""

    def __init__(self) -> None:
        self.taken = 0

    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        for _ in instructions:
            for number in range(decoding.n):
                self.taken += 1
                yield Sample(str(number))

    def save(self, directory: Path) -> None:
        raise NotImplementedError

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> Counting:
        raise NotImplementedError


class Last(RewardModel):
    """Likes what was drawn last, and notes how much it was given at once."""

    def __init__(self) -> None:
        self.most = 0

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        self.most = max(self.most, len(outputs))
        return [Score(float(o)) for o in outputs]


class Alike(RewardModel):
    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(0.25)] * len(outputs)


def test_memory_does_not_grow_with_n() -> None:
    peaks = {}
    for n in (64, 4096):
        policy, reward_model = Counting(), Last()
        best_of = BestOfNPolicy(policy, reward_model, n)
        list(best_of.sample(make_instructions(1), DECODING, seed=0))  # what is made once
        tracemalloc.start()
        [first, second] = best_of.sample(make_instructions(2), DECODING, seed=0)
        peaks[n] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (first.text, second.score) == (str(n - 1), n - 1)
        assert (reward_model.most, policy.taken) == (DECODING.per_device_batch_size, 3 * n)
    assert peaks[4096] < 2 * peaks[64]


def test_equal_rewards_go_to_the_sample_drawn_first() -> None:
    [best] = BestOfNPolicy(Counting(), Alike(), 50).sample(make_instructions(1), DECODING, seed=0)
    assert (best.text, best.score) == ("0", 0.25)


class Few(RewardModel):
    """Likes the third sample of the first group."""

    def __init__(self) -> None:
        self.scored = 0

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        before, self.scored = self.scored, self.scored + len(outputs)
        return [Score(float(before + number == 2)) for number in range(len(outputs))]


@pytest.mark.parametrize("keep_scores", [False, True])
def test_groups_with_equal_rewards_are_counted_and_named_if_they_are_half(
    keep_scores: bool, caplog: pytest.LogCaptureFixture
) -> None:
    best_of = BestOfNPolicy(Counting(), Few(), 4, keep_scores=keep_scores)
    assert [sample.text for sample in best_of.sample(make_instructions(1), DECODING, seed=0)] == ["2"]
    assert (best_of.counted, caplog.text) == ({"equal_rewards": 0}, "")
    best_of = BestOfNPolicy(Counting(), Few(), 4, keep_scores=keep_scores)
    assert [sample.text for sample in best_of.sample(make_instructions(3), DECODING, seed=0)] == ["2", "0", "0"]
    assert best_of.counted == {"equal_rewards": 2}
    assert "best of 4: in 2 of 3 groups all rewards are equal" in caplog.text
    one = BestOfNPolicy(Counting(), Alike(), 1, keep_scores=keep_scores)
    assert len(list(one.sample(make_instructions(3), DECODING, seed=0))) == 3
    assert one.counted == {"equal_rewards": 0}


def test_best_of_one_is_the_policy_at_that_temperature(policy: CheckpointPolicy) -> None:
    instructions = make_instructions(5)
    plain = policy.sample(instructions, replace(DECODING, temperature=1.0), seed=3)
    best = BestOfNPolicy(policy, fitted(policy), 1).sample(instructions, DECODING, seed=3)
    assert [s.token_ids for s in best] == [s.token_ids for s in plain]


def test_a_reward_model_with_another_tokenizer_scores_the_text(policy: CheckpointPolicy) -> None:
    other = make_policy(seed=1)
    other.tokenizer.add_tokens(["more"])
    reward_model = fitted(other)
    assert not reward_model.reads_tokens_of(policy)
    for i, best in zip(
        make_instructions(4),
        BestOfNPolicy(policy, reward_model, 6).sample(make_instructions(4), DECODING, seed=0),
        strict=True,
    ):
        assert best.score == pytest.approx(reward_model.score([i], [best.text])[0].value, abs=1e-5)


def test_every_smaller_n_is_told_from_one_run(policy: CheckpointPolicy) -> None:
    reward_model, instructions = fitted(policy), make_instructions(6)
    made = BestOfNPolicy(policy, reward_model, 40, keep_scores=True).sample(instructions, DECODING, seed=4)
    rows = [Output(i, s.text, "best_of_n", s.details) for i, s in zip(instructions, made, strict=True)]
    for row in rows:
        assert len(row.details["scores"]) == 40
        assert len(row.details["bests"]) < 15  # about ln 40 + 0.6, not 40
    for n in (1, 2, 7, 40):
        alone = BestOfNPolicy(policy, reward_model, n).sample(instructions, DECODING, seed=4)
        for told, sample in zip(best_of(rows, n), alone, strict=True):
            assert told.output == sample.text
            assert told.details["score"] == pytest.approx(sample.score, abs=1e-5)
            assert told.generator == f"best-of-{n}"
    with pytest.raises(DataError, match=r"raise best_of_n\.n"):
        best_of(rows, 41)
    with pytest.raises(DataError, match="keep_scores"):
        best_of([Output(instructions[0], "w1")], 1)


def test_winners_by_hand() -> None:
    winners, scored = Winners(), [(Sample("a"), 1.0), (Sample("b"), 0.5), (Sample("c"), 1.0), (Sample("d"), 3.0)]
    assert list(winners.watch(scored)) == scored
    assert winners.details() == {"scores": [1.0, 0.5, 1.0, 3.0], "bests": [[1, "a"], [4, "d"]]}


@pytest.mark.parametrize("n", [2, 5])
def test_the_bandits_winners_follow_the_law_of_the_best_of_n(n: int) -> None:
    """P(best is a) = F(a)^n − F(below a)^n, with F the policy's distribution over rewards."""
    policy, draws = bandit_policy(), 400
    drawn = BestOfNPolicy(policy, BanditReward(), n).sample(
        INSTRUCTIONS, Decoding(n=draws, max_new_tokens=2, per_device_batch_size=512), seed=0
    )
    texts = [sample.text for sample in drawn]
    for i, probabilities in enumerate(answer_probabilities(policy)):
        below, kl = float(1 - probabilities.sum()), 0.0  # what is no answer has the least reward
        for answer in rewards().argsort().tolist():
            up_to = below + float(probabilities[answer])
            expected = up_to**n - below**n
            found = texts[i * draws : (i + 1) * draws].count(ANSWERS[answer]) / draws
            assert found == pytest.approx(expected, abs=4 * (expected * (1 - expected) / draws) ** 0.5)
            kl += expected * math.log(expected / float(probabilities[answer]))
            below = up_to
        assert kl < kl_bound(n)


def test_a_reward_that_is_not_a_number_is_an_error_that_names_the_instruction(policy: CheckpointPolicy) -> None:
    one, two, three = make_instructions(3)  # one batch of scores each, and the third is NaN
    decoding = Decoding(max_new_tokens=4, per_device_batch_size=4)
    samples = BestOfNPolicy(policy, turns_nan(policy), 4).sample([one, two, three], decoding, seed=0)
    assert [next(samples).score, next(samples).score] != [None, None]
    with pytest.raises(TrainingError, match=f"a response to '{three.instruction}' is not a number"):
        next(samples)


class NotANumber(RewardModel):
    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(math.nan) for _ in outputs]


def test_a_score_of_a_text_that_is_not_a_number_names_the_reward_model(policy: CheckpointPolicy) -> None:
    samples = BestOfNPolicy(policy, NotANumber(), 4).sample(make_instructions(1), DECODING, seed=0)
    with pytest.raises(PluginError, match=r"reward model '\w+:NotANumber' failed: .* must be a finite number, not nan"):
        next(samples)


def test_policies_and_reward_models_are_told_in_a_line() -> None:
    policy = make_policy()
    line = "CheckpointPolicy(LlamaForCausalLM, "
    assert repr(policy).startswith(line)
    assert repr(policy).endswith(" parameters, float32 on cpu, prompts chat)")
    best = BestOfNPolicy(policy, fitted(policy), 16)
    assert repr(best).startswith(f"BestOfNPolicy(best of 16 from {line}")
    assert "TorchRewardModel(LlamaForSequenceClassification, " in repr(best)
