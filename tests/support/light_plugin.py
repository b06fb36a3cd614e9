"""A plugin with a whole experiment in it that needs no torch: policies are a number, and better ones say more words.

`RAN` lists what was really done, in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from afarm.core.config import Config, OnPolicyConfig, setting
from afarm.core.errors import TrainingError
from afarm.core.hooks import Register, hookimpl
from afarm.core.interfaces import (
    BuildContext,
    Dataset,
    Decoding,
    EvaluationInputs,
    Evaluator,
    Method,
    MethodInputs,
    MethodJudge,
    Policy,
    RewardModel,
    TrainContext,
)
from afarm.core.judge import Capabilities, ChatRequest, Completion, Judge
from afarm.core.records import Evaluation, Feedback, Instruction, JudgedPair, Output, Pair, Sample, Score
from afarm.core.seeding import uniform
from afarm.judging import render

RAN: list[str] = []


class NumbersConfig(Config):
    count: int = setting(12, "instructions in each split")


class Numbers(Dataset):
    def __init__(self, config: NumbersConfig):
        self.config = config

    def load(self, split: str) -> list[Output]:
        return [
            Output(Instruction(f"{split} {i}", "", "numbers"), " ".join(["word"] * (1 + i % 3)), "people")
            for i in range(self.config.count)
        ]


class WordPolicy(Policy):
    """Says one to four words, more of them with more `skill` and a higher temperature."""

    def __init__(self, skill: float, temperature: float | None = None):
        self.skill = skill
        self.temperature = temperature

    def decoding(self, default: Decoding) -> Decoding:
        return default if self.temperature is None else replace(default, temperature=self.temperature)

    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        RAN.append(f"sample {len(instructions)}x{decoding.n} at {decoding.temperature:g}")
        for instruction in instructions:
            for number in range(decoding.n):
                words = 1 + int(4 * uniform(seed, instruction.id, number) * (self.skill + decoding.temperature))
                yield Sample(" ".join(["word"] * words), finish_reason="stop")

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "policy.json").write_text(json.dumps([self.skill, self.temperature]))

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> WordPolicy:
        return cls(*json.loads((directory / "policy.json").read_text()))


class WordReward(RewardModel):
    """Likes words, each as much as the preferences do."""

    def __init__(self, weight: float):
        self.weight = weight

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return [Score(self.weight * len(output.split())) for output in outputs]

    @classmethod
    def fit(cls, preferences: Sequence[JudgedPair], start: Policy, config: Any, context: TrainContext) -> WordReward:
        RAN.append(f"fit-reward {len(preferences)}")
        context.log_metrics(1, {"loss": 0.5})
        return cls(1.0)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "weight.json").write_text(json.dumps(self.weight))

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> WordReward:
        return cls(json.loads((directory / "weight.json").read_text()))


class TeachConfig(Config):
    skill: float = setting(0.5, "how much better the policy becomes", ge=0)
    batch: int = setting(8, "memory only", changes_result=False)


class Teach(Method):
    """Adds `skill`, in three steps with a checkpoint after each; `dies_after` plays a failure."""

    dies_after: int = 99
    measures_kl = True

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert isinstance(inputs.start, WordPolicy)
        newest = context.checkpoints.latest()
        for step in range(newest[0] + 1 if newest else 1, 4):
            RAN.append(f"{type(self).__name__} step {step}")
            context.log_metrics(step, {"objective/kl": step / 10})
            context.checkpoints.save(step, lambda directory: (directory / "x").write_text("state") and None)
            if step == self.dies_after:
                raise TrainingError(f"the loss is NaN at step {step}")
        return WordPolicy(inputs.start.skill + self.config.skill)


class Sft(Teach):
    needs = frozenset({"demonstrations"})


class Nudge(Teach):
    needs = frozenset({"reward_model", "unlabeled"})


class Direct(Teach):
    needs = frozenset({"preferences"})

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert all(judged.chosen_rejected is not None or judged.p2 is None for judged in inputs.preferences)
        return super().train(inputs, context)


class Thumbs(Teach):
    """Learns from unpaired feedback."""

    needs = frozenset({"feedback"})
    learned: ClassVar[list[Feedback]] = []

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert not inputs.preferences
        Thumbs.learned = [*inputs.feedback]
        RAN.append(f"thumbs {sum(one.label for one in inputs.feedback)} of {len(inputs.feedback)}")
        return super().train(inputs, context)


class Hot(Teach):
    """Wraps the start policy in one that samples at a temperature of its own, as best-of-n does."""

    needs = frozenset({"reward_model"})

    def decoding(self, default: Decoding) -> Decoding:
        return replace(default, temperature=1.0)

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert isinstance(inputs.start, WordPolicy)
        context.log_metrics(1, {})
        return WordPolicy(inputs.start.skill, temperature=1.0)


class Online(Teach):
    """Asks the run's annotator about a pair of its own."""

    needs = frozenset({"annotator", "unlabeled"})

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert inputs.annotate is not None
        (preference,) = inputs.annotate([Pair(inputs.unlabeled[0], "word", "word word word")])
        RAN.append(f"online {preference.outcome}")
        return super().train(inputs, context)


class StepwiseConfig(OnPolicyConfig):
    method_name: ClassVar[str] = "Stepwise"

    total_steps: int = setting(5, "steps", gt=0)
    warmup_steps: int = setting(0, "steps")


class Stepwise(Method):
    """Asks the run's annotator in each step about a pair of samples of as many instructions."""

    needs = frozenset({"annotator", "unlabeled"})
    together = 10

    def plan_pairs(self, instructions: Mapping[str, Sequence[Instruction]]) -> list[Instruction]:
        unlabeled, steps = instructions["unlabeled"], self.config.total_steps
        return [unlabeled[n % len(unlabeled)] for n in range(self.together * steps)]

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert inputs.annotate is not None
        asked, size = self.plan_pairs({"unlabeled": inputs.unlabeled}), self.together
        for step in range(self.config.total_steps):
            tasks = asked[size * step : size * (step + 1)]
            texts = [s.text for s in inputs.start.sample(tasks, Decoding(n=2), seed=step)]
            inputs.annotate([Pair(*pair) for pair in zip(tasks, texts[::2], texts[1::2], strict=True)])
        context.log_metrics(1, {})
        return WordPolicy(0.5)


class Asks(Teach):
    """Rates, ranks and criticises what it makes up in each step; its skill follows from all that is said."""

    needs = frozenset({"judge", "unlabeled"})
    steps: int = 3

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        assert inputs.judge is not None
        newest = context.checkpoints.latest()
        done, skill = (newest[0], float((newest[1] / "x").read_text())) if newest else (0, 0.0)
        for step in range(done + 1, self.steps + 1):
            tasks, groups = inputs.unlabeled, [[f"{step} {n}" for n in range(4)] for _ in inputs.unlabeled]
            firsts = [group[0] for group in groups]
            skill += sum(mark or 0.0 for mark in inputs.judge.rate(tasks, firsts)) / 100
            skill += sum(places[0] for places in inputs.judge.rank(tasks, groups) if places) / 100
            skill += sum(len(said or "") for said in inputs.judge.criticise(tasks, firsts)) / 1000
            context.log_metrics(step, {"skill": skill})
            context.checkpoints.save(step, lambda directory, now=skill: (directory / "x").write_text(str(now)) and None)
            RAN.append(f"asks step {step}")
            if step == self.dies_after:
                raise TrainingError(f"the loss is NaN at step {step}")
        return WordPolicy(skill)

    def plan_judging(self, instructions: Mapping[str, Sequence[Instruction]], judge: MethodJudge) -> None:
        tasks = instructions["unlabeled"]
        for _ in range(self.steps):
            judge.rate(tasks, [""] * len(tasks))
            judge.rank(tasks, [[""] * 4] * len(tasks))
            judge.criticise(tasks, [""] * len(tasks))


class Needy(Teach):
    needs = frozenset({"reward_modell"})


class Diverges(Teach):
    needs = frozenset({"preferences"})

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        raise TrainingError("step 3: the loss is [nan]")


class CountingJudge(Judge):
    """Prefers more words, at a tenth of a cent. `asked` counts comparisons over all instances."""

    capabilities = Capabilities(chat=True, completion=True, logit_bias=True)
    asked = 0

    def __init__(self, spec: str, config: None, context: BuildContext):
        self.spec = spec

    @property
    def identity(self) -> str:
        return f"counting:{self.spec}"

    async def complete(self, request: ChatRequest) -> Completion:
        CountingJudge.asked += sum(bool(c.pair_id) for c in request.comparisons)
        verdicts = [len(c.first.split()) >= len(c.second.split()) for c in request.comparisons]
        return Completion(render(verdicts, request.answer_format), 100, 10, price=0.001)

    def worst_case_price(self, request: ChatRequest) -> float:
        return 0.001


class WritingJudge(Judge):
    """A model that writes: as many words as its spec says, and nothing where the instruction ends with 0. `asked` are
    the requests."""

    asked: list[ChatRequest] = []

    def __init__(self, spec: str, config: None, context: BuildContext):
        self.spec = spec
        self.capabilities = Capabilities(chat=not spec.startswith("text"), completion=True)

    @property
    def identity(self) -> str:
        return f"writing:{self.spec}"

    async def complete(self, request: ChatRequest) -> Completion:
        WritingJudge.asked.append(request)
        asked = request.messages[-1].content if request.messages else request.prompt
        words = 0 if asked.endswith(" 0") else int("".join(c for c in self.spec if c.isdigit()))
        return Completion(" ".join(["word"] * words), 10, words, price=0.01, finish_reason="stop")

    def worst_case_price(self, request: ChatRequest) -> float:
        return 0.01


@hookimpl
def register_datasets(register: Register) -> None:
    register("numbers", Numbers, config=NumbersConfig)


@hookimpl
def register_methods(register: Register) -> None:
    for method in (Sft, Nudge, Direct, Thumbs, Hot, Online, Asks, Needy, Diverges):
        register(method.__name__.lower(), method, config=TeachConfig)
    register("stepwise", Stepwise, config=StepwiseConfig)


class WordsSaid(Evaluator):
    """Mean words of the outputs: a figure without a difference from the reference's."""

    needs = frozenset({"judgements"})

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        counts = [len(output.output.split()) for output in inputs.outputs]
        return Evaluation("words_said", inputs.system, {"words_said": sum(counts) / len(counts)})


@hookimpl
def register_evaluators(register: Register) -> None:
    register("words_said", WordsSaid)


class LightEngine:
    """A sampling engine whose version a test sets. Nothing samples by it: the policies here are their own."""

    takes_whole_weights = False
    runs_here = True
    version = "light 1"

    def __init__(self, config: None, spec: str, context: BuildContext):
        self.spec = spec

    def sampler(self, policy: Any) -> Any:
        raise NotImplementedError


@hookimpl
def register_samplers(register: Register) -> None:
    register("light", LightEngine, spec="URL")


@hookimpl
def register_reward_models(register: Register) -> None:
    register("words", WordReward)
    register("more_words", WordReward)


@hookimpl
def register_judges(register: Register) -> None:
    register("counting", CountingJudge)
    register("writing", WritingJudge)
