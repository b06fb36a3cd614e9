"""Promises of every method, and of every policy that one returns."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from afarm.core.errors import type_name
from afarm.core.interfaces import Decoding, Method, MethodInputs, Policy, TrainContext
from afarm.core.records import Instruction, Pair, Preference, Sample
from afarm.judging.method_judge import PlannedJudge, PromptedJudge, Question
from afarm.testing.conformance import naming, require
from afarm.testing.contexts import MetricsRecorder, train_context
from afarm.testing.examples import make_instructions
from afarm.testing.models import tiny_inputs
from afarm.testing.processes import train_together
from afarm.testing.training import (
    Line,
    check_goes_on,
    check_metrics,
    check_same_lines,
    check_untouched,
    copy_weights,
    equal_weights,
)

CLOSE = 1e-4
"""Tolerance for scores and log-probabilities computed in batches of other sizes."""

APART = 1e-3
"""Tolerance for weights that several processes learn: they sum in another order."""

NEEDS = {"preferences", "feedback", "reward_model", "annotator", "judge", "demonstrations", "all_demonstrations"}
NEEDS |= {"unlabeled", "validation"}
"""The inputs that a run can give a method."""


def check_method(
    method: Method | Sequence[Method],
    directory: Path,
    *,
    inputs: MethodInputs | None = None,
    learns: Callable[[str], float] | None = None,
    processes: int = 1,
) -> None:
    """Train on tiny inputs and check that training is repeatable, resumable and changes nothing else.

    Samples, metrics and the weights of a policy's `model` are compared, the pairs that are asked about with
    `plan_pairs`, and the questions to a judge with `plan_judging`. Writes into `directory`. Raises `ConformanceError`
    naming the broken promise.

    Args:
        method: One or several, such as a class under several configs that end in seconds (`tiny_config`).
        directory: An empty directory.
        inputs: What to train on (default: `tiny_inputs(method.needs)`).
        learns: A figure of an output that training must raise: its mean over samples, above the start's.
        processes: If more than 1, so many forks of this process train too, and must end with equal weights and metrics.
    """
    methods = [method] if isinstance(method, Method) else list(method)
    for number, each in enumerate(methods):
        with naming(f"{type(each).__name__} {getattr(each, 'config', '')}" if len(methods) > 1 else ""):
            _check_method(each, directory / str(number), inputs, learns, processes)


def _check_method(
    method: Method,
    directory: Path,
    inputs: MethodInputs | None,
    learns: Callable[[str], float] | None,
    processes: int,
) -> None:
    require(list(method.check()) == [], f"check must find no problem in this config: {list(method.check())}")
    unknown = set(method.needs) - NEEDS
    require(not unknown, f"needs {sorted(unknown)}, which no stage makes; known: {sorted(NEEDS)}")
    inputs = tiny_inputs(method.needs) if inputs is None else inputs
    log = MetricsRecorder()
    model, broken = inputs.reward_model, "training must not change the reward model"

    def read_scores() -> object:
        return None if model is None else list(model.score(make_instructions(3), ["w1", "w2 w3", "w4"]))

    asked: dict[str, Instruction] = {}

    def annotate(pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
        asked.update((pair.id, pair.instruction) for pair in pairs)
        return inputs.annotate(pairs, noiseless=noiseless) if inputs.annotate else []

    with check_start_untouched(inputs.start), check_untouched(model, broken, read_scores):
        judge = RecordedJudge(inputs.judge) if isinstance(inputs.judge, PromptedJudge) else None
        recorded = replace(inputs, annotate=annotate if inputs.annotate else None, judge=judge or inputs.judge)
        policy = method.train(recorded, train_context(directory / "first", log_metrics=log))
    require(isinstance(policy, Policy), f"train must return an afarm.Policy, not a {type(policy).__name__}")
    check_metrics(log.lines)
    check_policy(policy, directory / "policy")
    samples, trained = draw(policy), copy_weights(policy)

    def as_expected(other: Policy) -> bool:
        return _equal(draw(other), samples) and equal_weights(copy_weights(other), trained)

    again = method.train(inputs, train_context(directory / "second"))
    require(as_expected(again), "equal seeds must train equal policies")
    default = Decoding(temperature=0.35)
    promised, actual = method.decoding(default), policy.decoding(default)
    require(promised == actual, f"Method.decoding must say what its policy's will: {promised}, not {actual}")
    check_goes_on(lambda context: method.train(inputs, context), as_expected, log.lines, directory / "interrupted")
    given = {"sft": [row.instruction for row in inputs.demonstrations], "preference": []}
    given |= {"unlabeled": list(inputs.unlabeled), "validation": list(inputs.validation)}
    planned, learned = len(method.plan_pairs(given)), sum(i not in inputs.validation for i in asked.values())
    broken = "plan_pairs must name what train has annotated, up to a third"
    require(_is_near(planned, learned), f"{broken}: {planned}, and {learned} were asked")
    if judge:
        plan = PlannedJudge(judge.ask, judge.name)
        method.plan_judging(given, plan)
        expected, found = Counter(question.kind for question in plan.questions), Counter(judge.kinds.values())
        for kind in expected | found:
            broken = f"plan_judging must {kind} what train will, up to a third: {expected[kind]} questions are planned"
            require(_is_near(expected[kind], found[kind]), f"{broken}, and {found[kind]} were asked")
    if learns:
        before, after = (fmean(learns(s.text) for s in draw(p, make_instructions(32))) for p in (inputs.start, policy))
        require(after > before, f"training must raise what it learns: from {before:.4g} it went to {after:.4g}")
    if processes > 1:
        check_processes(lambda context: method.train(inputs, context), trained, log.lines, processes, directory)


def check_processes(
    train: Callable[[TrainContext], object],
    trained: Mapping[str, Any],
    expected: Sequence[Line],
    processes: int,
    directory: Path,
) -> None:
    """Check that several processes end with the weights `trained` of one, and log the `expected` lines."""

    def train_and_copy(context: TrainContext) -> Any:
        kept = MetricsRecorder()
        return copy_weights(train(replace(context, log_metrics=kept))), kept.lines

    several, lines = train_together(train_and_copy, processes, directory / "together")
    apart = max((float((several[path] - weight).abs().max()) for path, weight in trained.items()), default=0.0)
    broken = f"the weights of {processes} processes must be those of one, up to rounding: they are {apart:.2g}"
    require(apart < APART, f"{broken} apart. Draw the same rows in all, and sum gradients and metrics over them")
    check_same_lines(lines, expected, f"in {processes} processes", 0.01)


class RecordedJudge(PromptedJudge):
    """Asks as `given` does, and keeps the kind of each question by its id."""

    def __init__(self, given: PromptedJudge):
        super().__init__(given.ask, given.name, given.role, given.seed)
        self.given, self.kinds = given, dict[str, str]()

    def collect(self, questions: Sequence[Question]) -> list[Any]:
        self.kinds |= {question.id: question.kind for question in questions}
        return self.given.collect(questions)


def _is_near(planned: int, asked: int) -> bool:
    return 3 * abs(planned - asked) <= max(planned, asked)


def check_policy(policy: Policy, directory: Path) -> None:
    """Check that samples are in order, depend on seed and instruction alone, and survive saving."""
    instructions = make_instructions(4)
    decoding = policy.decoding(Decoding(max_new_tokens=3, n=2, per_device_batch_size=4))
    require(isinstance(decoding, Decoding), "decoding must return an afarm.Decoding")
    expected = draw(policy)
    require(_equal(draw(policy), expected), "equal seeds must give equal samples")
    differs = decoding.temperature == 0 or any(not _equal(draw(policy, seed=seed), expected) for seed in (4, 5))
    require(differs, "another seed must give other samples")
    for size in (1, 3, 100):
        batches = draw(policy, per_device_batch_size=size)
        require(_equal(batches, expected), "per_device_batch_size bounds memory: it must not change samples")
    for i, instruction in enumerate(instructions):
        alone = draw(policy, [instruction])
        require(
            _equal(alone, expected[2 * i : 2 * i + 2]),
            "samples must come in the order of instructions, n of each, and not depend on the others: an instruction "
            "alone was answered differently",
        )
    require(draw(policy, []) == [], "no instructions must give no samples")
    saved = directory / "saved"
    saved.mkdir(parents=True)
    policy.save(saved)
    loaded = type(policy).load(saved, train_context(directory / "loading"))
    require(isinstance(loaded, Policy), f"load must return an afarm.Policy, not {type_name(loaded)}")
    require(_equal(draw(loaded), expected), "a policy that was saved and loaded must sample the same")


def draw(
    policy: Policy, instructions: Sequence[Instruction] | None = None, per_device_batch_size: int = 4, seed: int = 3
) -> list[Sample]:
    """Draw two samples per instruction with a fixed seed, and check that there are as many."""
    chosen = make_instructions(4) if instructions is None else instructions
    decoding = policy.decoding(Decoding(max_new_tokens=3, n=2, per_device_batch_size=per_device_batch_size))
    samples = list(itertools.islice(policy.sample(chosen, decoding, seed=seed), 2 * len(chosen) + 1))
    require(
        len(samples) == 2 * len(chosen) and all(isinstance(s, Sample) for s in samples),
        f"sample must give n samples per instruction: {len(chosen)} instructions with n = 2 gave {len(samples)}",
    )
    return samples


def check_start_untouched(start: Policy) -> AbstractContextManager[None]:
    """Check that the block does not change `start`, the KL's reference and other methods' start too."""
    broken = "training must not change the policy it starts from: train a copy"
    return check_untouched(start, broken, lambda: draw(start))


def _equal(one: Sequence[Sample], other: Sequence[Sample]) -> bool:
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Sample, other: Sample) -> bool:
    """Compare text and tokens exactly, log-probabilities and scores up to rounding."""
    without: dict[str, Any] = {"logprobs": None, "score": None}
    if replace(one, **without) != replace(other, **without):
        return False
    ours, theirs = [one.score or 0.0, *(one.logprobs or ())], [other.score or 0.0, *(other.logprobs or ())]
    return len(ours) == len(theirs) and all(
        math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE) for a, b in zip(ours, theirs, strict=True)
    )
