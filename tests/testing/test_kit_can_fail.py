"""A kit that passes everything checks nothing: each of these components breaks one promise, and is caught at it."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from afarm.backend import CheckpointPolicy
from afarm.core.errors import DataError, JudgeError
from afarm.core.interfaces import (
    AnnotateContext,
    Annotator,
    Dataset,
    Decoding,
    EvaluationInputs,
    Evaluator,
    Method,
    MethodInputs,
    Policy,
    RewardModel,
    TrainContext,
)
from afarm.core.judge import Capabilities, ChatRequest, Completion, Judge, Judgement, JudgementKey, ShownPair
from afarm.core.records import Evaluation, Instruction, JudgedPair, Output, Pair, Preference, Sample, Score
from afarm.core.seeding import integer, uniform
from afarm.testing import (
    ConformanceError,
    KeyedReward,
    check_annotator,
    check_dataset,
    check_evaluator,
    check_fitted_reward_model,
    check_judge,
    check_method,
    check_reward_model,
    make_instructions,
    render,
)

# ------------------------------------------------------------------------------------------------------ annotators


class Longer(Annotator):
    """Keeps every promise."""

    def judge(self, pair: Pair, seed: int) -> float:
        if len(pair.output_1) == len(pair.output_2):
            return 0.5
        return float(len(pair.output_2) > len(pair.output_1))

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        return [Preference(pair.id, self.judge(pair, context.seed)) for pair in pairs]


class LosesAPair(Longer):
    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        return super().annotate(pairs, context)[1:]


class SortsItsAnswers(Longer):
    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        return sorted(super().annotate(pairs, context), key=lambda p: p.pair_id)


class LikesTheFirst(Longer):
    def judge(self, pair: Pair, seed: int) -> float:
        return 0.0


class AdvancesAGenerator(Longer):
    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        draws = random.Random(context.seed)
        return [Preference(p.id, float((draws.random() < 0.5) == p.is_canonical)) for p in pairs]


class IgnoresTheSeed(Longer):
    def judge(self, pair: Pair, seed: int) -> float:
        return float((uniform("draw", pair.id) < 0.5) == pair.is_canonical)


class ChokesOnBraces(Longer):
    def judge(self, pair: Pair, seed: int) -> float:
        pair.output_1.format(output_1=pair.output_1)
        return super().judge(pair, seed)


class Asks(Annotator):
    """A prompt annotator that keeps every promise; subclasses break one each."""

    salt = "asks"

    def seed(self, context: AnnotateContext) -> int:
        return context.seed

    def shown(self, text: str) -> str:
        return text

    def recall(self, keys: Sequence[JudgementKey], context: AnnotateContext) -> dict[JudgementKey, Judgement]:
        return context.ask.recall(keys)

    def read(self, text: str) -> Judgement:
        verdicts = {"Output (a)": 1.0, "Output (b)": 0.0}
        first = verdicts.get(text.strip())
        return Judgement(first, "unparsed" if first is None else "decided")

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        found = []
        for pair in pairs:
            first, second = (self.shown(text) for text in pair.canonical)
            key = JudgementKey(self.salt, pair.id, "ab", context.seed)
            known = self.recall([key], context)
            if key not in known:
                comparison = ShownPair(pair.id, pair.instruction, first, second)
                request = ChatRequest(
                    "strong",
                    prompt=f"{first}\n{second}",
                    comparisons=(comparison,),
                    answer_format="single",
                    seed=self.seed(context),
                )
                known = {key: self.read(context.ask([request])[0].text)}
                context.ask.learn(known)
            judgement = known[key]
            p2 = None
            if judgement.p_first_shown is not None:
                p2 = 1 - judgement.p_first_shown if pair.is_canonical else judgement.p_first_shown
            found.append(Preference(pair.id, p2, judgement.outcome))  # type: ignore[arg-type]
        return found


class AsksWithOneSeed(Asks):
    def seed(self, context: AnnotateContext) -> int:
        return 0


class TakesSilenceForALoss(Asks):
    def read(self, text: str) -> Judgement:
        return Judgement(float(text == "Output (a)"))


class ReadsLabelsInProse(Asks):
    def read(self, text: str) -> Judgement:
        return Judgement(1.0) if "Output (a)" in text else super().read(text)


class StripsOutputs(Asks):
    def shown(self, text: str) -> str:
        return text.strip()


class NeverRecalls(Asks):
    """Buys anew whenever a pair has other companions: its prompt names how many pairs it was given."""

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        found = []
        for pair in pairs:
            comparison = ShownPair(pair.id, pair.instruction, *pair.canonical)
            prompt = f"{len(pairs)} pairs in all"
            request = ChatRequest("strong", prompt=prompt, comparisons=(comparison,), answer_format="single")
            judgement = self.read(context.ask([replace(request, seed=context.seed)])[0].text)
            p2 = judgement.p_first_shown
            if p2 is not None and pair.is_canonical:
                p2 = 1 - p2
            found.append(Preference(pair.id, p2, judgement.outcome))  # type: ignore[arg-type]
        return found


class PlansByAsking(Asks):
    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> Sequence[ChatRequest]:
        self.annotate(pairs, context)
        return ()


@pytest.mark.parametrize("annotator", [Longer(), Asks()])
def test_sound_annotators_pass(annotator: Annotator) -> None:
    check_annotator(annotator)


@pytest.mark.parametrize(
    ("annotator", "promise"),
    [
        (LosesAPair(), "one Preference for each pair"),
        (SortsItsAnswers(), "in the order of the pairs"),
        (LikesTheFirst(), "mirror"),
        (AdvancesAGenerator(), "in another order"),
        (AsksWithOneSeed(), "another seed"),
        (TakesSilenceForALoss(), "never a label"),
        (ReadsLabelsInProse(), "never a label"),
        (StripsOutputs(), "unchanged"),
        (NeverRecalls(), "asked about twice"),
        (PlansByAsking(), "plan must send nothing"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Annotator) else "",
)
def test_a_broken_annotator_is_caught(annotator: Annotator, promise: str) -> None:
    with pytest.raises(ConformanceError, match=promise):
        check_annotator(annotator)


def test_an_annotator_that_ignores_its_seed_is_caught_where_it_is_said_to_be_random() -> None:
    check_annotator(IgnoresTheSeed())
    with pytest.raises(ConformanceError, match="another seed must give other draws"):
        check_annotator(IgnoresTheSeed(), is_random=True)


def test_an_annotator_that_fails_on_braces_is_caught() -> None:
    with pytest.raises((KeyError, IndexError, ValueError)):
        check_annotator(ChokesOnBraces())


# ---------------------------------------------------------------------------------------------------------- judges


class SoundJudge(Judge):
    """Keeps every promise."""

    capabilities = Capabilities(chat=True)
    simulated = True
    name = "sound"

    @property
    def identity(self) -> str:
        return self.name

    def verdict(self, request: ChatRequest, comparison: ShownPair) -> bool | None:
        return uniform(request.seed, comparison.pair_id, comparison.first, request.sample_index) < 0.5

    def check(self, request: ChatRequest) -> None:
        if request.prompt or request.favoured_tokens or request.penalised_tokens:
            raise JudgeError("sound takes chats without logit bias")

    def write(self, request: ChatRequest) -> str:
        return render([self.verdict(request, c) for c in request.comparisons], request.answer_format)

    async def complete(self, request: ChatRequest) -> Completion:
        self.check(request)
        return Completion(self.write(request), price=0.0)

    def worst_case_price(self, request: ChatRequest) -> float | None:
        return 0.0


class NamelessJudge(SoundJudge):
    name = ""


class MoodyJudge(SoundJudge):
    def __init__(self) -> None:
        self.asked = itertools.count()

    def verdict(self, request: ChatRequest, comparison: ShownPair) -> bool | None:
        return next(self.asked) % 3 == 0


class ShiftingJudge(SoundJudge):
    def __init__(self) -> None:
        self.asked = 0

    @property
    def identity(self) -> str:
        return f"shifting after {self.asked}"

    def write(self, request: ChatRequest) -> str:
        self.asked += 1
        return super().write(request)


class WordyJudge(SoundJudge):
    def write(self, request: ChatRequest) -> str:
        return f"After long thought: {super().write(request)}."


class BoastfulJudge(SoundJudge):
    capabilities = Capabilities(chat=True, completion=True)


class SwallowsWhatItCannotTake(SoundJudge):
    def check(self, request: ChatRequest) -> None:
        """Ignores logit bias instead of refusing it."""


class DearJudge(SoundJudge):
    async def complete(self, request: ChatRequest) -> Completion:
        return replace(await super().complete(request), price=0.01)


def test_a_sound_judge_passes() -> None:
    check_judge(SoundJudge())


@pytest.mark.parametrize(
    ("judge", "promise"),
    [
        (NamelessJudge, "identity must be a text"),
        (MoodyJudge, "equal requests equally"),
        (ShiftingJudge, "identity must not change"),
        (WordyJudge, "readably"),
        (BoastfulJudge, "declares completion and then refuses it"),
        (SwallowsWhatItCannotTake, "does not declare"),
        (DearJudge, "above the worst case"),
    ],
)
def test_a_broken_judge_is_caught(judge: type[SoundJudge], promise: str) -> None:
    with pytest.raises(ConformanceError, match=promise):
        check_judge(judge())


# --------------------------------------------------------------------------------------------------- reward models


class ScoresTheBatch(RewardModel):
    """Standardises within the batch, so that a score depends on its companions."""

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        mean = sum(map(len, outputs)) / max(len(outputs), 1)
        return [Score(len(output) - mean) for output in outputs]


class ScoresByPlace(RewardModel):
    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(float(i)) for i, _ in enumerate(outputs)]


class FailsOnTheEmptyText(RewardModel):
    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(float(len(output)) or math.nan) for output in outputs]


class LosesTheLast(KeyedReward):
    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return super().score(instructions, outputs)[:-1]


def test_a_sound_reward_model_passes() -> None:
    check_reward_model(KeyedReward())


@pytest.mark.parametrize(
    ("model", "promise"),
    [
        (ScoresTheBatch(), "batch"),
        (ScoresByPlace(), "order of rows"),
        (FailsOnTheEmptyText(), "finite"),
        (LosesTheLast(), "one score a row"),
    ],
)
def test_a_broken_reward_model_is_caught(model: RewardModel, promise: str) -> None:
    with pytest.raises(ConformanceError, match=promise):
        check_reward_model(model)


class CountsWords(RewardModel):
    """A reward model that learns: how much oftener each word stands in the preferred output. Keeps every promise."""

    def __init__(self, weights: dict[str, float]):
        self.weights = weights

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(sum(self.weights.get(word, 0.0) for word in output.split())) for output in outputs]

    @classmethod
    def learn(cls, judged: Sequence[JudgedPair]) -> dict[str, float]:
        weights: dict[str, float] = {}
        for j in judged:
            if found := j.chosen_rejected:
                for sign, text in zip((1.0, -1.0), found, strict=True):
                    for word in text.split():
                        weights[word] = weights.get(word, 0.0) + sign / len(judged)
        return weights

    @classmethod
    def fit(cls, preferences: Sequence[JudgedPair], start: Policy, config: Any, context: TrainContext) -> CountsWords:
        if not any(j.chosen_rejected for j in preferences):
            raise DataError("no pair is decided: nothing to learn from")
        return cls(cls.learn(preferences))

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "weights.json").write_text(json.dumps(self.weights))

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> CountsWords:
        return cls(json.loads((directory / "weights.json").read_text()))


class LearnsTheOpposite(CountsWords):
    @classmethod
    def learn(cls, judged: Sequence[JudgedPair]) -> dict[str, float]:
        return {word: -weight for word, weight in super().learn(judged).items()}


class ForgetsWhenSaved(CountsWords):
    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> CountsWords:
        return cls({"w1": 1.0})


class LearnsFromNothing(CountsWords):
    @classmethod
    def fit(cls, preferences: Sequence[JudgedPair], start: Policy, config: Any, context: TrainContext) -> CountsWords:
        return cls(cls.learn(preferences))


class DiffersEachTime(CountsWords):
    count = itertools.count()

    @classmethod
    def learn(cls, judged: Sequence[JudgedPair]) -> dict[str, float]:
        return {**super().learn(judged), "w31": -1.0 - next(cls.count)}


def test_a_sound_fitted_reward_model_passes(tmp_path: Path) -> None:
    check_fitted_reward_model(CountsWords, None, tmp_path)


@pytest.mark.parametrize(
    ("model", "promise"),
    [
        (LearnsTheOpposite, "not learned"),
        (ForgetsWhenSaved, "saved and loaded"),
        (LearnsFromNothing, "draws only"),
        (DiffersEachTime, "equal seeds"),
    ],
)
def test_a_broken_fitted_reward_model_is_caught(model: type[RewardModel], promise: str, tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match=promise):
        check_fitted_reward_model(model, None, tmp_path)


# -------------------------------------------------------------------------------------------- methods and policies


class Nudge(Method):
    """Trains: adds keyed noise to the weights of a copy, in four steps with checkpoints. Keeps every promise."""

    needs = frozenset({"unlabeled"})

    def policy(self, inputs: MethodInputs) -> CheckpointPolicy:
        assert isinstance(inputs.start, CheckpointPolicy)
        return inputs.start.copy()

    def noise(self, weight: torch.Tensor, seed: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(integer(seed, step) % 2**31)
        return 0.05 * torch.randn(weight.shape, generator=generator)

    def first_step(self, context: TrainContext) -> int:
        latest = context.checkpoints.latest()
        return latest[0] if latest else 0

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        policy = self.policy(inputs)
        weight = policy.model.model.embed_tokens.weight
        done = self.first_step(context)
        with torch.no_grad():
            if latest := context.checkpoints.latest():
                weight.copy_(torch.load(latest[1] / "weight.pt"))
            for step in range(done, 4):
                weight += self.noise(weight, context.seed, step)
                saved = weight.clone()
                context.checkpoints.save(step + 1, lambda d, saved=saved: torch.save(saved, d / "weight.pt"))
                context.log_metrics(step + 1, {"objective/kl": 0.1 * step})
        return policy


class ComplainsAboutItself(Nudge):
    def check(self, reward_model: type[RewardModel] | None = None) -> Sequence[str]:
        return ["these defaults cannot work"]


class NeedsTheMoon(Nudge):
    needs = frozenset({"the moon"})


class TrainsTheStartItself(Nudge):
    def policy(self, inputs: MethodInputs) -> CheckpointPolicy:
        assert isinstance(inputs.start, CheckpointPolicy)
        return inputs.start


class DrawsFromTheGlobalGenerator(Nudge):
    def noise(self, weight: torch.Tensor, seed: int, step: int) -> torch.Tensor:
        return 0.05 * torch.randn(weight.shape)


class StartsOverOnItsCheckpoint(Nudge):
    """Loads the weights of the checkpoint and then does all steps again."""

    def first_step(self, context: TrainContext) -> int:
        return 0


class LogsInfinity(Nudge):
    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        context.log_metrics(0, {"loss": math.inf})
        return super().train(inputs, context)


class ReturnsTheModel(Nudge):
    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        return super().train(inputs, context).model  # type: ignore[attr-defined, no-any-return]


class WrappedPolicy(Policy):
    """A sampler around a checkpoint; subclasses break a promise each."""

    def __init__(self, inner: Policy):
        self.inner = inner

    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        yield from self.inner.sample(instructions, decoding, seed=seed)

    def save(self, directory: Path) -> None:
        self.inner.save(directory)

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> WrappedPolicy:
        return cls(CheckpointPolicy.load(directory, context))


class SamplesBackwards(WrappedPolicy):
    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        yield from reversed(list(super().sample(instructions, decoding, seed=seed)))


class SamplesOnce(WrappedPolicy):
    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        yield from super().sample(instructions, replace(decoding, n=1), seed=seed)


class SeedsByBatchSize(WrappedPolicy):
    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        yield from super().sample(instructions, decoding, seed=seed + decoding.per_device_batch_size)


class ForgetsItsTemperature(WrappedPolicy):
    """Samples hot until it is saved, and cold after it is loaded."""

    def __init__(self, inner: Policy, temperature: float = 3.0):
        super().__init__(inner)
        self.temperature = temperature

    def decoding(self, default: Decoding) -> Decoding:
        return replace(default, temperature=self.temperature)

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> WrappedPolicy:
        return cls(CheckpointPolicy.load(directory, context), temperature=0.0)


class SamplesHotAndDoesNotSaySo(WrappedPolicy):
    def decoding(self, default: Decoding) -> Decoding:
        return replace(default, temperature=0.9)


class Wraps(Method):
    def __init__(self, wrapper: type[WrappedPolicy]):
        self.wrapper = wrapper

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        return self.wrapper(inputs.start)


@pytest.mark.parametrize("method", [Nudge(), Wraps(WrappedPolicy)])
def test_a_sound_method_passes(method: Method, tmp_path: Path) -> None:
    check_method(method, tmp_path)


@pytest.mark.parametrize(
    ("method", "promise"),
    [
        (ComplainsAboutItself(), "check must find no problem"),
        (NeedsTheMoon(), "which no stage makes"),
        (TrainsTheStartItself(), "train a copy"),
        (DrawsFromTheGlobalGenerator(), "equal seeds must train equal policies"),
        (StartsOverOnItsCheckpoint(), "killed and gone on with"),
        (LogsInfinity(), "finite number"),
        (ReturnsTheModel(), "must return an afarm.Policy"),
        (Wraps(SamplesBackwards), "in the order of instructions"),
        (Wraps(SamplesOnce), "n samples an instruction"),
        (Wraps(SeedsByBatchSize), "must not change samples"),
        (Wraps(ForgetsItsTemperature), "saved and loaded"),
        (Wraps(SamplesHotAndDoesNotSaySo), r"Method\.decoding must say"),
    ],
    ids=lambda value: getattr(value, "wrapper", type(value)).__name__ if isinstance(value, Method) else "",
)
def test_a_broken_method_is_caught(method: Method, promise: str, tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match=promise):
        check_method(method, tmp_path)


# ------------------------------------------------------------------------------------------ evaluators, data sets


class WinTable(Evaluator):
    """Keeps every promise."""

    needs = frozenset({"judgements"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        if not inputs.outputs or len(inputs.outputs) != len(inputs.judgements):
            raise DataError("not one judgement an output")
        for number, (judged, output) in enumerate(zip(inputs.judgements, inputs.outputs, strict=True)):
            if judged.pair.instruction.id != output.instruction.id:
                raise DataError(f"row {number}: the judgement is of another instruction")
        return Evaluation("wins", inputs.system, {"wins": sum(j.p2 == 1.0 for j in inputs.judgements)})


class CountsItsCalls(WinTable):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        self.calls += 1
        return replace(super().evaluate(inputs), metrics={"wins": self.calls})


class ReturnsATable(WinTable):
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        return replace(super().evaluate(inputs), metrics={"wins": [1, 2]})  # type: ignore[dict-item]


class ReturnsNaN(WinTable):
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        return replace(super().evaluate(inputs), metrics={"wins": math.nan})


class ZipsWhatThereIs(WinTable):
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        both = list(zip(inputs.judgements, inputs.outputs, strict=False))
        return Evaluation("wins", inputs.system, {"wins": sum(j.p2 == 1.0 for j, _ in both)})


class DividesByNothing(WinTable):
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        share = sum(j.p2 == 1.0 for j in inputs.judgements) / len(inputs.outputs)
        return replace(super().evaluate(inputs), metrics={"share": share})


def test_a_sound_evaluator_passes() -> None:
    check_evaluator(WinTable())


@pytest.mark.parametrize(
    ("evaluator", "promise"),
    [
        (CountsItsCalls, "equal inputs"),
        (ReturnsATable, "flat number"),
        (ReturnsNaN, "JSON has no such"),
        (ZipsWhatThereIs, "must be a DataError"),
        (DividesByNothing, "no outputs must be a DataError"),
    ],
)
def test_a_broken_evaluator_is_caught(evaluator: type[Evaluator], promise: str) -> None:
    with pytest.raises(ConformanceError, match=promise):
        check_evaluator(evaluator())


class Board(Evaluator):
    """Keeps every promise of one that looks at all systems at once."""

    needs = frozenset({"judgements"})
    many = True

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        won: dict[str, float] = {}
        for number, judged in enumerate(inputs.judgements):
            one, two = judged.pair.generator_1, judged.pair.generator_2
            if one == two:
                raise DataError(f"judgement {number} is of one system")
            won[one] = won.get(one, 0.0) + (judged.p2 == 0.0)
            won[two] = won.get(two, 0.0) + (judged.p2 == 1.0)
        if not won:
            raise DataError("no judgements")
        rows = tuple({"system": name, "wins": won[name]} for name in sorted(won))
        return Evaluation("board", inputs.system, {"n": len(inputs.judgements)}, rows)


class LeavesOneOut(Board):
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        found = super().evaluate(inputs)
        return replace(found, rows=found.rows[1:])


class GoesByTheOrder(Board):
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        found = super().evaluate(inputs)
        return replace(found, metrics={"first": inputs.judgements[0].pair.generator_2})


class RanksNothing(Board):
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        return super().evaluate(inputs) if inputs.judgements else Evaluation("board", "", {"n": 0})


class PlaysAgainstItself(Board):
    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        apart = [j for j in inputs.judgements if j.pair.generator_1 != j.pair.generator_2]
        return super().evaluate(replace(inputs, judgements=tuple(apart)))


def test_a_sound_evaluator_of_boards_passes() -> None:
    check_evaluator(Board())


@pytest.mark.parametrize(
    ("evaluator", "promise"),
    [
        (LeavesOneOut, "rows are one a system"),
        (GoesByTheOrder, "order of the judgements must not matter"),
        (RanksNothing, "no judgements must be a DataError"),
        (PlaysAgainstItself, "a system compared with itself must be a DataError"),
    ],
)
def test_a_broken_evaluator_of_boards_is_caught(evaluator: type[Evaluator], promise: str) -> None:
    with pytest.raises(ConformanceError, match=promise):
        check_evaluator(evaluator())


class TwoSplits(Dataset):
    """Keeps every promise, unless its splits overlap."""

    def __init__(self, splits: dict[str, list[Instruction]]):
        self.splits = splits

    def load(self, split: str) -> list[Output]:
        if split not in self.splits:
            raise DataError(f"no split {split!r}")
        return [Output(instruction, "") for instruction in self.splits[split]]


def test_data_sets_that_overlap_repeat_or_are_empty_are_caught() -> None:
    rows = make_instructions(20)
    check_dataset(TwoSplits({"preference": rows[:10], "evaluation": rows[10:]}))
    for splits, promise in [
        ({"preference": rows[:11], "evaluation": rows[10:]}, "disjoint"),
        ({"preference": [*rows[:10], rows[0]]}, "twice"),
        ({"preference": []}, "empty"),
        ({"sft": rows}, "demonstration"),
        ({}, "none of the splits"),
    ]:
        with pytest.raises(ConformanceError, match=promise):
            check_dataset(TwoSplits(splits))
