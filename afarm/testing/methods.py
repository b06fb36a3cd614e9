"""What every method must do, and every policy that one returns."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from afarm.core.interfaces import Decoding, Method, MethodInputs, Policy, TrainContext
from afarm.core.records import Instruction, Sample
from afarm.testing.conformance import require
from afarm.testing.contexts import MetricsRecorder, load_context, train_context
from afarm.testing.examples import make_instructions
from afarm.testing.models import tiny_inputs

T = TypeVar("T")

NEEDS = {"preferences", "reward_model", "annotator", "demonstrations", "all_demonstrations", "unlabeled", "validation"}
"""What a run can give a method."""

CLOSE = 1e-4
"""How far log-probabilities and scores of one sample may lie apart after a round trip through a file."""


def check_method(method: Method, directory: Path, *, inputs: MethodInputs | None = None) -> None:
    """Train on tiny inputs and check what comes of it: repeatable, resumable, kept, and with nothing else changed.

    The method's config should end in seconds (`tiny_config`). `inputs` are `tiny_inputs(method.needs)` unless given.
    Writes into `directory`. Raises `ConformanceError` naming the promise that is broken.
    """
    require(list(method.check()) == [], f"check must find no problem in this config: {list(method.check())}")
    unknown = set(method.needs) - NEEDS
    require(not unknown, f"needs {sorted(unknown)}, which no stage makes; known: {sorted(NEEDS)}")
    given = tiny_inputs(method.needs) if inputs is None else inputs
    metrics = MetricsRecorder()
    with check_start_untouched(given.start), _check_reward_model_untouched(given):
        policy = method.train(given, train_context(directory / "first", log_metrics=metrics))
    require(isinstance(policy, Policy), f"train must return an afarm.Policy, not a {type(policy).__name__}")
    _check_metrics(metrics)
    check_policy(policy, directory / "policy")
    expected = draw(policy)
    again = method.train(given, train_context(directory / "second"))
    require(_equal(draw(again), expected), "equal seeds must train equal policies")
    default = Decoding(temperature=0.35)
    promised, found = method.decoding(default), policy.decoding(default)
    require(promised == found, f"Method.decoding must say what its policy's will: {promised}, not {found}")
    resumed = train_killed_and_resumed(lambda context: method.train(given, context), directory / "killed")
    if resumed is not None:
        require(_equal(draw(resumed), expected), "killed and gone on with, training must end as it would have")


def check_policy(policy: Policy, directory: Path) -> None:
    """Check that samples come in order, depend on nothing but seed and instruction, and survive `save` and `load`."""
    instructions = make_instructions(5)
    decoding = policy.decoding(Decoding(max_new_tokens=6, n=2, per_device_batch_size=4))
    require(isinstance(decoding, Decoding), "decoding must return an afarm.Decoding")
    expected = draw(policy)
    require(_equal(draw(policy), expected), "equal seeds must give equal samples")
    one_row = draw(policy, per_device_batch_size=1)
    require(_equal(one_row, expected), "per_device_batch_size bounds memory: it must not change samples")
    for i, instruction in enumerate(instructions):
        alone = draw(policy, [instruction])
        require(
            _equal(alone, expected[2 * i : 2 * i + 2]),
            "samples must come in the order of instructions, n of each, and not depend on the others: an instruction "
            "alone was answered differently",
        )
    require(draw(policy, []) == [], "no instructions must give no samples")
    policy.save(directory / "saved")
    loaded = type(policy).load(directory / "saved", load_context(directory / "loading"))
    require(_equal(draw(loaded), expected), "a policy that was saved and loaded must sample the same")


def draw(
    policy: Policy, instructions: Sequence[Instruction] | None = None, per_device_batch_size: int = 4
) -> list[Sample]:
    """Two samples of each instruction with a fixed seed, after checking that there are as many as were asked for."""
    chosen = make_instructions(5) if instructions is None else instructions
    decoding = policy.decoding(Decoding(max_new_tokens=6, n=2, per_device_batch_size=per_device_batch_size))
    samples = list(itertools.islice(policy.sample(chosen, decoding, seed=3), 2 * len(chosen) + 1))
    require(
        len(samples) == 2 * len(chosen) and all(isinstance(s, Sample) for s in samples),
        f"sample must give n samples an instruction: {len(chosen)} instructions with n = 2 gave {len(samples)}",
    )
    return samples


@contextmanager
def check_start_untouched(start: Policy) -> Iterator[None]:
    """Check that the block leaves `start` as it was: it is the KL reference, and other methods start from it too."""
    before = draw(start)
    yield
    require(draw(start) == before, "training must not change the policy it starts from: train a copy")


@contextmanager
def _check_reward_model_untouched(inputs: MethodInputs) -> Iterator[None]:
    model, instructions = inputs.reward_model, make_instructions(3)
    before = None if model is None else list(model.score(instructions, ["w1", "w2 w3", "w4"]))
    yield
    after = None if model is None else list(model.score(instructions, ["w1", "w2 w3", "w4"]))
    require(before == after, "training must not change the reward model")


class Killed(BaseException):
    """Stands for a kill: nothing in between may catch it."""


class _KillingRecorder(MetricsRecorder):
    """Raises `Killed` in place of the line numbered `at`."""

    def __init__(self, at: int):
        super().__init__()
        self.at = at

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        if len(self.lines) == self.at:
            raise Killed
        super().__call__(step, metrics)


def train_killed_and_resumed(train: Callable[[TrainContext], T], directory: Path) -> T | None:
    """What `train` returns when it was killed as it logged its third line, and called again on the same directory.

    None where it ends before it logs so much, and there is nothing to resume.
    """
    try:
        train(train_context(directory, log_metrics=_KillingRecorder(2)))
    except Killed:
        return train(train_context(directory))
    return None


def _check_metrics(metrics: MetricsRecorder) -> None:
    steps = [step for step, _ in metrics.lines]
    require(steps == sorted(steps), f"metrics must be logged in the order of steps, not {steps}")
    for step, line in metrics.lines:
        for name, value in line.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            require(number, f"step {step}: metric {name!r} must be a finite number, not {value!r}")
        json.dumps(line)


def _equal(one: Sequence[Sample], other: Sequence[Sample]) -> bool:
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Sample, other: Sample) -> bool:
    """The same text and tokens; log-probabilities and scores up to rounding."""
    without: dict[str, Any] = {"logprobs": None, "score": None}
    if replace(one, **without) != replace(other, **without):
        return False
    ours, theirs = [one.score or 0.0, *(one.logprobs or ())], [other.score or 0.0, *(other.logprobs or ())]
    return len(ours) == len(theirs) and all(
        math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE) for a, b in zip(ours, theirs, strict=True)
    )
