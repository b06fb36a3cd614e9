"""A kit that passes everything checks nothing: each of these components breaks one promise, and is caught at it.

Each kind has a sound component, which passes, and a table of its broken relatives: the members that they have instead.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from afarm.backend import CheckpointPolicy, world_size
from afarm.core.errors import DataError, JudgeError
from afarm.core.interfaces import (
    AnnotateContext,
    Annotator,
    Checkpoints,
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
from afarm.judging import JudgingConfig, PromptAnnotator, render
from afarm.testing import (
    ConformanceError,
    KeyedReward,
    check_annotator,
    check_dataset,
    check_evaluator,
    check_fitted_reward_model,
    check_judge,
    check_method,
    check_policy,
    check_reward_model,
    make_instructions,
    separable_preferences,
    tiny_policy,
)

C = TypeVar("C")
Broken = dict[str, tuple[type[Any], dict[str, Any], str]]
"""By case: a sound class, the members that break a promise, and the message about it."""


def broken(case: str, table: Broken) -> tuple[type[Any], str]:
    """The broken class of a case, and the message."""
    sound, members, promise = table[case]
    return type("".join(word.title() for word in case.split()), (sound,), members), promise


# ------------------------------------------------------------------------------------------------------ annotators


class Longer(Annotator):
    """Keeps every promise."""

    def judge(self, pair: Pair, seed: int) -> float:
        if len(pair.output_1) == len(pair.output_2):
            return 0.5
        return float(len(pair.output_2) > len(pair.output_1))

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        return [Preference(pair.id, self.judge(pair, context.seed)) for pair in pairs]


class Asks(Annotator):
    """A prompt annotator that keeps every promise."""

    def seed(self, context: AnnotateContext) -> int:
        return context.seed

    def shown(self, text: str) -> str:
        return text

    def prompt(self, first: str, second: str, pairs: Sequence[Pair]) -> str:
        return f"{first}\n{second}"

    def recall(self, keys: Sequence[JudgementKey], context: AnnotateContext) -> dict[JudgementKey, Judgement]:
        return context.ask.recall(keys)

    def read(self, text: str) -> Judgement:
        first = {"Output (a)": 1.0, "Output (b)": 0.0}.get(text.strip())
        return Judgement(first, "unparsed" if first is None else "decided")

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        preferences = []
        for pair in pairs:
            first, second = (self.shown(text) for text in pair.canonical)
            key = JudgementKey("asks", pair.id, "ab", context.seed)
            known = self.recall([key], context)
            if key not in known:
                request = ChatRequest(
                    "strong",
                    prompt=self.prompt(first, second, pairs),
                    comparisons=(ShownPair(pair.id, pair.instruction, first, second),),
                    answer_format="single",
                    seed=self.seed(context),
                )
                known = {key: self.read(context.ask([request])[0].text)}
                context.ask.learn(known)
            judgement = known[key]
            p2 = None
            if judgement.p_first_shown is not None:
                p2 = 1 - judgement.p_first_shown if pair.is_canonical else judgement.p_first_shown
            preferences.append(Preference(pair.id, p2, judgement.outcome))  # type: ignore[arg-type]
        return preferences


def advance_a_generator(self: Longer, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
    draws = random.Random(context.seed)
    return [Preference(p.id, float((draws.random() < 0.5) == p.is_canonical)) for p in pairs]


def reversed_judgement(judgement: Judgement) -> Judgement:
    first = judgement.p_first_shown
    return judgement if first is None else replace(judgement, p_first_shown=1 - first)


def turned_at_times(label: Preference) -> Preference:
    """Reversed for every second pair or so: an order that was drawn and not read."""
    turn = label.p2 is not None and uniform("order", label.pair_id) < 0.6
    return replace(label, p2=1 - label.p2) if turn else label  # type: ignore[operator]


ANNOTATORS: Broken = {
    "loses a pair": (
        Longer,
        {"annotate": lambda self, pairs, context: Longer.annotate(self, pairs, context)[1:]},
        "one Preference for each pair",
    ),
    "sorts its answers": (
        Longer,
        {"annotate": lambda self, *given: sorted(Longer.annotate(self, *given), key=lambda p: p.pair_id)},
        "in the order of the pairs",
    ),
    "likes the first": (Longer, {"judge": lambda self, pair, seed: 0.0}, "mirror"),
    "advances a generator": (Longer, {"annotate": advance_a_generator}, "in another order"),
    "asks with one seed": (Asks, {"seed": lambda self, context: 0}, "another seed"),
    "takes silence for a loss": (
        Asks,
        {"read": lambda self, text: Judgement(float(text == "Output (a)"))},
        "never a label",
    ),
    "reads labels in prose": (
        Asks,
        {"read": lambda self, text: Judgement(1.0) if "Output (a)" in text else Asks.read(self, text)},
        "never a label",
    ),
    "strips outputs": (Asks, {"shown": lambda self, text: text.strip()}, "unchanged"),
    # Buys anew whenever a pair has other companions: its prompt names how many pairs there are.
    "never recalls": (
        Asks,
        {
            "recall": lambda self, keys, context: {},
            "prompt": lambda self, first, second, pairs: f"{len(pairs)} pairs in all",
        },
        "asked about twice",
    ),
    "reads the opposite": (
        Asks,
        {"read": lambda self, text: reversed_judgement(Asks.read(self, text))},
        "labels must follow what the judge says: 25 of 25 say the opposite",
    ),
    "forgets which output was shown first": (
        Asks,
        {"annotate": lambda self, pairs, context: [turned_at_times(p) for p in Asks.annotate(self, pairs, context)]},
        "labels must follow what the judge says",
    ),
    "plans by asking": (
        Asks,
        {"plan": lambda self, pairs, context: self.annotate(pairs, context)[:0]},
        "plan must send nothing",
    ),
}


@pytest.mark.parametrize("annotator", [Longer(), Asks()])
def test_sound_annotators_pass(annotator: Annotator) -> None:
    check_annotator(annotator)


@pytest.mark.parametrize("case", ANNOTATORS)
def test_a_broken_annotator_is_caught(case: str) -> None:
    annotator, promise = broken(case, ANNOTATORS)
    with pytest.raises(ConformanceError, match=promise):
        check_annotator(annotator())


PREFERS = [("a longer one", "short"), ("the longest of all", "a longer one")]
"""As `Longer` has it."""


@pytest.mark.parametrize("annotator", [Longer(), Asks()])
def test_annotators_that_prefer_what_the_author_says_pass(annotator: Annotator) -> None:
    check_annotator(annotator, prefers=PREFERS)


@pytest.mark.parametrize(
    ("sound", "members", "answer"),
    [
        (Longer, {"judge": lambda self, pair, seed: 1 - Longer.judge(self, pair, seed)}, None),
        (Longer, {"judge": lambda self, pair, seed: 0.5}, None),
        (Asks, {"read": lambda self, text: reversed_judgement(Asks.read(self, text))}, None),
        (Asks, {}, lambda request: render([len(request.comparisons[0].first) < 13], "single")),
    ],
    ids=["reversed", "undecided", "read in reverse", "answers of its own"],
)
def test_labels_that_are_not_what_the_author_says_are_caught(sound: Any, members: Any, answer: Any) -> None:
    with pytest.raises(ConformanceError, match=r"must prefer the better one of each pair: \(output_1, output_2, p2\)"):
        check_annotator(type("Broken", (sound,), members)(), prefers=PREFERS, answer=answer)


class OwnFormat(PromptAnnotator):
    """A prompt annotator with an answer format of its own, and a plan that `times` repeats."""

    times = 1

    def render(self, pairs: Sequence[ShownPair]) -> str:
        return f"Longer? {pairs[0].instruction.instruction} {pairs[0].first} | {pairs[0].second}"

    def read(self, text: str, count: int) -> list[float | None]:
        return [{"left": 1.0, "right": 0.0}.get(text)]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        return [*super().plan(pairs, context)] * self.times


def left_if_longer(request: ChatRequest) -> str:
    shown = request.comparisons[0]
    return "left" if len(shown.first) > len(shown.second) else "right"


def test_an_annotator_with_a_format_of_its_own_is_checked_by_its_answers() -> None:
    own = OwnFormat(JudgingConfig(both_orders=True))
    check_annotator(own, answer=left_if_longer, prefers=PREFERS)
    with pytest.raises(ConformanceError, match="must prefer the better one"):
        check_annotator(own, answer=left_if_longer, prefers=[(worse, better) for better, worse in PREFERS])
    with pytest.raises(ConformanceError, match=r"a format of its own: check_annotator\(…, answer=…\)"):
        check_annotator(own)


@pytest.mark.parametrize("votes", [1, 3])
def test_a_plan_of_twice_the_requests_is_caught(votes: int) -> None:
    own: Any = type("PlansTwice", (OwnFormat,), {"times": 2})
    with pytest.raises(ConformanceError, match=r"plan must name the requests .*: \d+, and \d+ were sent"):
        check_annotator(own(JudgingConfig(votes=votes)), answer=left_if_longer)


def test_an_annotator_that_ignores_its_seed_is_caught_where_it_is_said_to_be_random() -> None:
    class IgnoresTheSeed(Longer):
        def judge(self, pair: Pair, seed: int) -> float:
            return float((uniform("draw", pair.id) < 0.5) == pair.is_canonical)

    check_annotator(IgnoresTheSeed())
    with pytest.raises(ConformanceError, match="another seed must give other draws"):
        check_annotator(IgnoresTheSeed(), is_random=True)


def test_an_annotator_that_fails_on_braces_is_caught() -> None:
    class ChokesOnBraces(Longer):
        def judge(self, pair: Pair, seed: int) -> float:
            pair.output_1.format(output_1=pair.output_1)
            return super().judge(pair, seed)

    with pytest.raises((KeyError, IndexError, ValueError)):
        check_annotator(ChokesOnBraces())


# ---------------------------------------------------------------------------------------------------------- judges


class SoundJudge(Judge):
    """Keeps every promise."""

    capabilities = Capabilities(chat=True)
    simulated = True
    name = "sound"
    asked = 0

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
        self.asked += 1
        self.check(request)
        return Completion(self.write(request), price=0.0)

    def worst_case_price(self, request: ChatRequest) -> float | None:
        return 0.0


async def charge_a_cent(self: SoundJudge, request: ChatRequest) -> Completion:
    return replace(await SoundJudge.complete(self, request), price=0.01)


async def leave_a_task(self: SoundJudge, request: ChatRequest) -> Completion:
    self.task = asyncio.get_running_loop().create_task(asyncio.sleep(60))  # type: ignore[attr-defined]
    return await SoundJudge.complete(self, request)


async def leave_a_connection(self: SoundJudge, request: ChatRequest) -> Completion:
    with socket.create_server(("127.0.0.1", 0)) as server:
        self.kept = await asyncio.open_connection(*server.getsockname())  # type: ignore[attr-defined]
    return await SoundJudge.complete(self, request)


async def connect(self: SoundJudge, request: ChatRequest) -> Completion:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
    return await SoundJudge.complete(self, request)


async def ramble(self: SoundJudge, request: ChatRequest) -> Completion:
    return replace(await SoundJudge.complete(self, request), output_tokens=request.max_tokens + 1)


def every_third_time(self: Any, request: ChatRequest, comparison: ShownPair) -> bool:
    self.count += 1
    return self.count % 3 == 1


JUDGES: Broken = {
    "is nameless": (SoundJudge, {"name": ""}, "identity must be a text"),
    "is moody": (SoundJudge, {"count": 0, "verdict": every_third_time}, "equal requests equally"),
    "shifts": (
        SoundJudge,
        {"identity": property(lambda self: f"shifting after {self.asked}")},
        "identity must not change",
    ),
    "is wordy": (
        SoundJudge,
        {"write": lambda self, request: f"After long thought: {SoundJudge.write(self, request)}."},
        "readably",
    ),
    "boasts": (
        SoundJudge,
        {"capabilities": Capabilities(chat=True, completion=True)},
        "declares completion and then refuses it",
    ),
    "ignores logit bias": (SoundJudge, {"check": lambda self, request: None}, "does not declare"),
    "leaves a task": (SoundJudge, {"complete": leave_a_task}, "close must end what the judge began"),
    "leaves a client open": (SoundJudge, {"complete": leave_a_connection}, "its client's connections are still open"),
    "waits": (SoundJudge, {"complete": connect}, "must not block the event loop, .*: socket.connect"),
    "rambles": (SoundJudge, {"complete": ramble}, "257 tokens came, above most_output_tokens: 256"),
    "is expensive": (SoundJudge, {"complete": charge_a_cent}, "above the worst case"),
}


def test_a_sound_judge_passes() -> None:
    check_judge(SoundJudge())


def test_a_judge_is_closed_in_the_loop_that_it_answered_in() -> None:
    """As a client of HTTP must be."""
    loops = []

    class Connected(SoundJudge):
        async def complete(self, request: ChatRequest) -> Completion:
            loops.append(asyncio.get_running_loop())
            return await super().complete(request)

        async def close(self) -> None:
            loops.append(asyncio.get_running_loop())

    check_judge(Connected())
    assert len(set(loops)) == 1
    loops.clear()
    Connected.simulated = False
    check_judge(Connected())
    assert len(loops) == 1, "it is closed where it has answered nothing"


@pytest.mark.parametrize("case", JUDGES)
def test_a_broken_judge_is_caught(case: str) -> None:
    judge, promise = broken(case, JUDGES)
    with pytest.raises(ConformanceError, match=promise):
        check_judge(judge())


# --------------------------------------------------------------------------------------------------- reward models


def score_the_batch(self: RewardModel, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
    """Standardise within the batch, so that a score depends on its companions."""
    mean = sum(map(len, outputs)) / max(len(outputs), 1)
    return [Score(len(output) - mean) for output in outputs]


REWARD_MODELS: Broken = {
    "scores the batch": (KeyedReward, {"score": score_the_batch}, "batch"),
    "scores by place": (
        KeyedReward,
        {"score": lambda self, instructions, outputs: [Score(float(i)) for i, _ in enumerate(outputs)]},
        "order of rows",
    ),
    "fails on the empty text": (
        KeyedReward,
        {"score": lambda self, instructions, outputs: [Score(float(len(output)) or math.nan) for output in outputs]},
        "finite",
    ),
    "loses the last": (
        KeyedReward,
        {"score": lambda self, *rows: KeyedReward.score(self, *rows)[:-1]},
        "one afarm.Score per row",
    ),
}


def test_a_sound_reward_model_passes() -> None:
    check_reward_model(KeyedReward())


@pytest.mark.parametrize("case", REWARD_MODELS)
def test_a_broken_reward_model_is_caught(case: str) -> None:
    model, promise = broken(case, REWARD_MODELS)
    with pytest.raises(ConformanceError, match=promise):
        check_reward_model(model())


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
            if outputs := j.chosen_rejected:
                for sign, text in zip((1.0, -1.0), outputs, strict=True):
                    for word in text.split():
                        weights[word] = weights.get(word, 0.0) + sign / len(judged)
        return weights

    @classmethod
    def fit(cls, preferences: Sequence[JudgedPair], start: Policy, config: Any, context: TrainContext) -> CountsWords:
        if not any(j.chosen_rejected for j in preferences):
            raise DataError("no pair is decided: nothing to learn from")
        return cls(cls.learn(preferences))

    def save(self, directory: Path) -> None:
        (directory / "weights.json").write_text(json.dumps(self.weights))

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> CountsWords:
        return cls(json.loads((directory / "weights.json").read_text()))


calls = itertools.count()


def fit_with_hidden_noise(cls: Any, preferences: Any, start: Any, config: Any, context: Any) -> CountsWords:
    fitted = CountsWords.fit(preferences, start, config, context)
    fitted.model = torch.nn.Linear(2, 2)  # type: ignore[attr-defined]  # random, and no score shows it
    return fitted


FITTED: Broken = {
    "learns the opposite": (
        CountsWords,
        {"learn": classmethod(lambda cls, judged: {w: -weight for w, weight in CountsWords.learn(judged).items()})},
        "not learned",
    ),
    "forgets when saved": (
        CountsWords,
        {"load": classmethod(lambda cls, directory, context: cls({"w1": 1.0}))},
        "saved and loaded",
    ),
    "learns from nothing": (
        CountsWords,
        {"fit": classmethod(lambda cls, preferences, *rest: cls(cls.learn(preferences)))},
        "draws only",
    ),
    "differs each time": (
        CountsWords,
        {"learn": classmethod(lambda cls, judged: {**CountsWords.learn(judged), "w31": -1.0 - next(calls)})},
        "equal seeds",
    ),
    "has other weights each time": (CountsWords, {"fit": classmethod(fit_with_hidden_noise)}, "equal seeds"),
}


def test_a_sound_fitted_reward_model_passes(tmp_path: Path) -> None:
    check_fitted_reward_model(CountsWords, None, tmp_path)


@pytest.mark.parametrize("case", FITTED)
def test_a_broken_fitted_reward_model_is_caught(case: str, tmp_path: Path) -> None:
    model, promise = broken(case, FITTED)
    with pytest.raises(ConformanceError, match=promise):
        check_fitted_reward_model(model, None, tmp_path)


def fit_and_log_a_share(cls: Any, preferences: Any, start: Any, config: Any, context: Any) -> CountsWords:
    context.log_metrics(1, {"loss": 1 / world_size()})
    return CountsWords.fit(preferences, start, config, context)


def test_a_reward_model_whose_processes_log_a_share_each_is_caught(tmp_path: Path) -> None:
    check_fitted_reward_model(CountsWords, None, tmp_path / "sound", preferences=separable_preferences(8), processes=2)
    shares: Any = type("Shares", (CountsWords,), {"fit": classmethod(fit_and_log_a_share)})
    with pytest.raises(ConformanceError, match=r"in 2 processes, .* step 1, loss: 1, not 0\.5"):
        check_fitted_reward_model(shares, None, tmp_path / "shares", processes=2)


# -------------------------------------------------------------------------------------------- methods and policies


class Nudge(Method):
    """Trains: adds keyed noise to the weights of a copy, in five steps with checkpoints. Keeps every promise."""

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

    def stop(self, step: int) -> None:
        raise KeyboardInterrupt(f"after step {step}")

    def metrics(self, step: int) -> dict[str, float]:
        return {"objective/kl": 0.1 * step, "time/step": random.random()}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        policy = self.policy(inputs)
        weight = policy.model.model.embed_tokens.weight
        with torch.no_grad():
            if latest := context.checkpoints.latest():
                weight.copy_(torch.load(latest[1] / "weight.pt"))
            for step in range(self.first_step(context), 5):
                weight += self.noise(weight, context.seed, step)
                saved = weight.clone()
                context.checkpoints.save(step + 1, lambda d, saved=saved: torch.save(saved, d / "weight.pt"))
                context.log_metrics(step + 1, self.metrics(step))
                if context.should_stop():
                    self.stop(step + 1)
                    break
        return policy


class WrappedPolicy(Policy):
    """A sampler around a checkpoint. Keeps every promise."""

    def __init__(self, inner: Policy):
        self.inner = inner

    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        yield from self.inner.sample(instructions, decoding, seed=seed)

    def save(self, directory: Path) -> None:
        self.inner.save(directory)

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> WrappedPolicy:
        return cls(CheckpointPolicy.load(directory, context))


class Wraps(Method):
    wrapper: type[Any] = WrappedPolicy

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        return self.wrapper(inputs.start)


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


def log_infinity(self: Nudge, inputs: MethodInputs, context: TrainContext) -> Policy:
    context.log_metrics(0, {"loss": math.inf})
    return Nudge.train(self, inputs, context)


class ForgetfulCheckpoints:
    """Saves, and finds nothing again."""

    def __init__(self, kept: Checkpoints):
        self.save = kept.save

    def latest(self) -> None:
        return None


def begin_again(self: Nudge, inputs: MethodInputs, context: TrainContext) -> Policy:
    return Nudge.train(self, inputs, replace(context, checkpoints=ForgetfulCheckpoints(context.checkpoints)))


def hide_random_weights(self: Nudge, inputs: MethodInputs) -> CheckpointPolicy:
    policy = Nudge.policy(self, inputs)
    policy.model.register_buffer("unused", torch.rand(3))  # no sample shows it
    return policy


def hide_them_in_the_start(self: Nudge, inputs: MethodInputs) -> CheckpointPolicy:
    assert isinstance(inputs.start, CheckpointPolicy)
    inputs.start.model.register_buffer("unused", torch.zeros(3))
    return Nudge.policy(self, inputs)


def go_on_when_done(self: Nudge, context: TrainContext) -> int:
    step = Nudge.first_step(self, context)
    return 4 if step == 5 else step


def wrapped(**members: Any) -> dict[str, Any]:
    return {"wrapper": type("Broken", (WrappedPolicy,), members)}


METHODS: Broken = {
    "complains about itself": (
        Nudge,
        {"check": lambda self, reward_model=None: ["these defaults cannot work"]},
        "check must find no problem",
    ),
    "needs the moon": (Nudge, {"needs": frozenset({"the moon"})}, "which no stage makes"),
    "trains the start itself": (Nudge, {"policy": lambda self, inputs: inputs.start}, "train a copy"),
    "changes weights of the start unseen": (Nudge, {"policy": hide_them_in_the_start}, "train a copy"),
    "draws from the global generator": (
        Nudge,
        {"noise": lambda self, weight, seed, step: 0.05 * torch.randn(weight.shape)},
        "equal seeds must train equal policies",
    ),
    "has other weights each time": (
        Nudge,
        {"policy": hide_random_weights},
        "equal seeds must train equal policies",
    ),
    # Loads the weights of the checkpoint and then does all steps again.
    "starts over on its checkpoint": (Nudge, {"first_step": lambda self, context: 0}, "killed and gone on with"),
    "goes on when it is done": (Nudge, {"first_step": go_on_when_done}, "at its very end"),
    "ends early when it should stop": (Nudge, {"stop": lambda self, step: None}, "must raise KeyboardInterrupt"),
    "logs at random": (
        Nudge,
        {"metrics": lambda self, step: {"objective/kl": random.random()}},
        "the metrics that it would have: step 1, objective/kl",
    ),
    "logs more when it goes on": (
        Nudge,
        {"metrics": lambda self, step: {f"from_{next(calls)}": 0.0}},
        r"the metrics that it would have: \[\(1",
    ),
    "logs infinity": (Nudge, {"train": log_infinity}, "finite number"),
    "returns the model": (
        Nudge,
        {"train": lambda self, *given: Nudge.train(self, *given).model},  # type: ignore[attr-defined]
        "must return an afarm.Policy",
    ),
    "samples backwards": (
        Wraps,
        wrapped(sample=lambda self, *given, seed: reversed([*WrappedPolicy.sample(self, *given, seed=seed)])),
        "in the order of instructions",
    ),
    "learns all steps again": (Nudge, {"train": begin_again}, "must not learn steps before it again"),
    "samples once": (
        Wraps,
        wrapped(sample=lambda self, rows, how, seed: WrappedPolicy.sample(self, rows, replace(how, n=1), seed=seed)),
        "n samples per instruction",
    ),
    "seeds by batch size": (
        Wraps,
        wrapped(
            sample=lambda self, rows, how, seed: WrappedPolicy.sample(
                self, rows, how, seed=seed + how.per_device_batch_size
            )
        ),
        "must not change samples",
    ),
    "forgets its temperature": (Wraps, {"wrapper": ForgetsItsTemperature}, "saved and loaded"),
    "samples hot and does not say so": (
        Wraps,
        wrapped(decoding=lambda self, default: replace(default, temperature=0.9)),
        r"Method\.decoding must say",
    ),
}


# ------------------------------------------------------------------------------- what it learns, asks and does together


class Says(WrappedPolicy):
    word = "w1"

    def sample(self, *given: Any, **named: Any) -> Iterator[Sample]:
        yield from (replace(sample, text=f"{self.word} {self.word}") for sample in super().sample(*given, **named))

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> WrappedPolicy:
        return cls(CheckpointPolicy.load(directory, context))


@pytest.mark.parametrize(("word", "is_right"), [("w1", True), ("w31", False)])
def test_a_method_that_lowers_what_it_should_raise_is_caught(word: str, is_right: bool, tmp_path: Path) -> None:
    method: Any = type("Speaks", (Wraps,), {"wrapper": type("Speaker", (Says,), {"word": word})})
    figure = {"learns": lambda text: text.split().count("w1") - text.split().count("w31")}
    with (
        nullcontext() if is_right else pytest.raises(ConformanceError, match=r"must raise what it learns: from \S+ it")
    ):
        check_method(method(), tmp_path / "asked", **figure)


class AsksAboutAll(Wraps):
    """And of the validation split, as to choose a checkpoint, which is planned without it."""

    needs = frozenset({"annotator", "unlabeled", "validation"})
    planned = slice(None)

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert inputs.annotate is not None
        for _ in range(2):  # what is asked again costs nothing
            inputs.annotate([Pair(task, "w1", f"w2 w{n}") for n, task in enumerate(inputs.unlabeled)])
        inputs.annotate([Pair(task, "w1", "w2") for task in inputs.validation], noiseless=True)
        return super().train(inputs, context)

    def plan_pairs(self, instructions: Any) -> Any:
        return [*instructions["unlabeled"], *instructions["unlabeled"]][self.planned]


@pytest.mark.parametrize(("planned", "is_near"), [(12, True), (8, False), (32, False)])
def test_a_plan_of_other_pairs_than_are_asked_about_is_caught(planned: int, is_near: bool, tmp_path: Path) -> None:
    method: Any = type("Plans", (AsksAboutAll,), {"planned": slice(planned)})
    told = f"plan_pairs must name what train has annotated, up to a third: {planned}, and 16 were asked"
    with nullcontext() if is_near else pytest.raises(ConformanceError, match=told):
        check_method(method(), tmp_path)


class AsksAJudge(Wraps):
    """About one output of each instruction; `reads` what it is told."""

    needs = frozenset({"judge", "unlabeled"})
    planned = slice(None)

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert inputs.judge is not None
        for _ in range(2):  # what is asked again costs nothing
            self.reads(inputs.judge.rate(inputs.unlabeled, ["w1"] * len(inputs.unlabeled)))
        return super().train(inputs, context)

    def reads(self, marks: Any) -> None:
        assert None in marks
        assert len(set(marks)) > 3

    def plan_judging(self, instructions: Any, judge: Any) -> None:
        tasks = [*instructions["unlabeled"], *instructions["unlabeled"]][self.planned]
        judge.rate(tasks, [""] * len(tasks))


@pytest.mark.parametrize(("planned", "is_near"), [(12, True), (8, False), (32, False)])
def test_a_plan_of_other_questions_than_a_judge_is_asked_is_caught(planned: int, is_near: bool, tmp_path: Path) -> None:
    method: Any = type("Plans", (AsksAJudge,), {"planned": slice(planned)})
    told = f"plan_judging must rate what train will, up to a third: {planned} questions are planned, and 16 were asked"
    with nullcontext() if is_near else pytest.raises(ConformanceError, match=told):
        check_method(method(), tmp_path)


def test_a_method_that_cannot_do_without_an_answer_is_caught(tmp_path: Path) -> None:
    method: Any = type("Trusts", (AsksAJudge,), {"reads": lambda self, marks: sum(marks)})
    with pytest.raises(TypeError, match="NoneType"):
        check_method(method(), tmp_path)


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_method_whose_processes_learn_a_share_each_is_caught(is_sound: bool, tmp_path: Path) -> None:
    share = {"noise": lambda self, *given: Nudge.noise(self, *given) / world_size()}
    method: Any = type("Shares", (Nudge,), {} if is_sound else share)
    told = r"the weights of 2 processes must be those of one, .*: they are 0\.\d+ apart"
    with nullcontext() if is_sound else pytest.raises(ConformanceError, match=told):
        check_method(method(), tmp_path, processes=2)


class LogsAShare(Nudge):
    """And learns as one process does."""

    def metrics(self, step: int) -> dict[str, float]:
        return {**super().metrics(step), "loss": 1.0 / world_size()}


def test_a_method_whose_processes_log_a_share_each_is_caught(tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match=r"in 2 processes, .* step 1, loss: 1, not 0\.5"):
        check_method(LogsAShare(), tmp_path, processes=2)


class IgnoresTheSeed(WrappedPolicy):
    def sample(self, *given: Any, seed: int) -> Iterator[Sample]:
        return super().sample(*given, seed=3)


def test_a_policy_that_ignores_the_seed_is_caught(tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match="another seed must give other samples"):
        check_policy(IgnoresTheSeed(tiny_policy()), tmp_path)


def test_sound_methods_pass_alone_or_together(tmp_path: Path) -> None:
    check_method(Wraps(), tmp_path / "one")
    check_method([Nudge(), Wraps()], tmp_path / "both")


@pytest.mark.parametrize("case", METHODS)
def test_a_broken_method_is_caught(case: str, tmp_path: Path) -> None:
    method, promise = broken(case, METHODS)
    with pytest.raises(ConformanceError, match=promise):
        check_method(method(), tmp_path)


def test_of_several_methods_the_broken_one_is_named(tmp_path: Path) -> None:
    method, promise = broken("needs the moon", METHODS)
    with pytest.raises(ConformanceError, match=f"NeedsTheMoon the second: .*{promise}"):
        check_method([Wraps(), method("the second")], tmp_path)


# ------------------------------------------------------------------------------------------ evaluators, data sets


class WinTable(Evaluator):
    """Keeps every promise."""

    needs = frozenset({"judgements"})
    calls = 0

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        self.calls += 1
        if not inputs.outputs or len(inputs.outputs) != len(inputs.judgements):
            raise DataError("not one judgement per output")
        for number, (judged, output) in enumerate(zip(inputs.judgements, inputs.outputs, strict=True)):
            if judged.pair.instruction.id != output.instruction.id:
                raise DataError(f"row {number}: the judgement is of another instruction")
        return Evaluation("wins", inputs.system, {"wins": sum(j.p2 == 1.0 for j in inputs.judgements)})


class Board(Evaluator):
    """Keeps every promise of one that evaluates all systems at once."""

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


def returning(sound: type[Evaluator], change: Any) -> dict[str, Any]:
    """An `evaluate` that changes the sound one's evaluation: `change(self, inputs, evaluation)`."""
    return {"evaluate": lambda self, inputs: replace(sound.evaluate(self, inputs), **change(self, inputs))}


def divide_by_nothing(self: WinTable, inputs: EvaluationInputs) -> Evaluation:
    share = sum(j.p2 == 1.0 for j in inputs.judgements) / len(inputs.outputs)
    return replace(WinTable.evaluate(self, inputs), metrics={"share": share})


def zip_what_there_is(self: WinTable, inputs: EvaluationInputs) -> Evaluation:
    both = list(zip(inputs.judgements, inputs.outputs, strict=False))
    return Evaluation("wins", inputs.system, {"wins": sum(j.p2 == 1.0 for j, _ in both)})


def play_against_itself(self: Board, inputs: EvaluationInputs) -> Evaluation:
    others = [j for j in inputs.judgements if j.pair.generator_1 != j.pair.generator_2]
    return Board.evaluate(self, replace(inputs, judgements=tuple(others)))


EVALUATORS: Broken = {
    "counts its calls": (
        WinTable,
        returning(WinTable, lambda self, inputs: {"metrics": {"wins": self.calls}}),
        "equal inputs",
    ),
    "returns a table": (
        WinTable,
        returning(WinTable, lambda self, inputs: {"metrics": {"wins": [1, 2]}}),
        r"flat JSON numbers: metric 'wins' is \[1, 2\]",
    ),
    "returns NaN": (
        WinTable,
        returning(WinTable, lambda self, inputs: {"metrics": {"wins": math.nan}}),
        "flat JSON numbers: metric 'wins' is nan",
    ),
    "zips what there is": (WinTable, {"evaluate": zip_what_there_is}, "must be a DataError"),
    "divides by nothing": (
        WinTable,
        {"evaluate": divide_by_nothing},
        "no outputs must be a DataError",
    ),
    "leaves one out": (
        Board,
        {"evaluate": lambda self, inputs: replace(e := Board.evaluate(self, inputs), rows=e.rows[1:])},
        "rows are one per system",
    ),
    "goes by the order": (
        Board,
        returning(Board, lambda self, inputs: {"metrics": {"first": inputs.judgements[0].pair.generator_2}}),
        "order of the judgements must not matter",
    ),
    "ranks nothing": (
        Board,
        {
            "evaluate": lambda self, inputs: (
                Board.evaluate(self, inputs) if inputs.judgements else Evaluation("board", "", {"n": 0})
            )
        },
        "no judgements must be a DataError",
    ),
    "plays against itself": (
        Board,
        {"evaluate": play_against_itself},
        "a system compared with itself must be a DataError",
    ),
}


@pytest.mark.parametrize("evaluator", [WinTable(), Board()])
def test_sound_evaluators_pass(evaluator: Evaluator) -> None:
    check_evaluator(evaluator)


@pytest.mark.parametrize("case", EVALUATORS)
def test_a_broken_evaluator_is_caught(case: str) -> None:
    evaluator, promise = broken(case, EVALUATORS)
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


def test_instructions_without_answers_that_are_others_are_caught() -> None:
    rows = make_instructions(4)

    class Hasty(TwoSplits):
        def instructions(self, split: str) -> list[Instruction]:
            return self.splits[split][:-1]

    with pytest.raises(ConformanceError, match="instructions\\('evaluation'\\) must return those of load"):
        check_dataset(Hasty({"evaluation": rows}))
