"""Promises of every reward model, and of fitted ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from afarm.core.errors import type_name
from afarm.core.interfaces import Policy, RewardModel
from afarm.core.records import Instruction, JudgedPair, Preference
from afarm.testing.conformance import as_in_a_run, naming, require, unless_refused
from afarm.testing.contexts import MetricsRecorder, train_context
from afarm.testing.examples import HOSTILE_TEXTS, make_instructions, separable_preferences
from afarm.testing.methods import check_processes, check_start_untouched
from afarm.testing.models import tiny_policy
from afarm.testing.training import check_goes_on, check_metrics, copy_weights, equal_weights

CLOSE = 1e-3
"""Tolerance for scores of one row in batches of other shapes, which change the last bits in float32."""


def check_reward_model(
    model: RewardModel, *, instructions: Sequence[Instruction] = (), outputs: Sequence[str] = ()
) -> None:
    """Check one finite score per row, whatever the batch and the order, for ordinary and hostile text.

    `instructions` and `outputs` are for a reward model that accepts no others. Raises `ConformanceError` naming the
    broken promise.
    """
    instructions = list(instructions) or make_instructions(12)
    own = bool(outputs)
    texts = list(outputs) or [" ".join(f"w{(3 * i + j) % 40}" for j in range(1 + i % 6)) for i in range(12)]
    rows = [(instructions[i % len(instructions)], text) for i, text in enumerate(texts)]
    found = values(model, rows)
    require(_close(values(model, rows[::-1])[::-1], found), "a score must not depend on the order of rows")
    alone = [values(model, [row])[0] for row in rows]
    require(_close(alone, found), "a score must not depend on what else is in the batch")
    require(_close(values(model, rows * 2), found * 2), "equal rows must have equal scores")
    require(values(model, []) == [], "no rows must give no scores")
    values(model, [(instructions[i % len(instructions)], text) for i, text in enumerate(HOSTILE_TEXTS)])
    if not own and make_instructions(1)[0] in instructions:
        values(model, [(Instruction(text or "empty", text), "w1 w2") for text in HOSTILE_TEXTS])


def check_fitted_reward_model(
    model: type[RewardModel],
    config: Any,
    directory: Path,
    *,
    start: Policy | None = None,
    preferences: Sequence[JudgedPair] = (),
    processes: int = 1,
) -> None:
    """Fit on tiny pairs and check that it learns, is repeatable and resumable, and can be saved.

    Scores, metrics and the weights of a reward model's `model` are compared. `config` is one or a list of several, each
    of which fits 64 tiny pairs in seconds (`tiny_config`); `start` is a `tiny_policy` by default. `preferences` are for
    one that learns from more than labels; better outputs must have the words of `separable_preferences`. With more than
    one of `processes`, so many forks fit it too, to equal weights and metrics. Writes into `directory`. Raises
    `ConformanceError` naming the broken promise.
    """
    configs = config if isinstance(config, list) else [config]
    for number, each in enumerate(configs):
        with naming(f"{model.__name__} {each}" if len(configs) > 1 else ""):
            pairs = preferences or [*separable_preferences(64), *_undecided(4)]
            _check_fitted(model, each, directory / str(number), start or tiny_policy(), pairs, processes)


def _check_fitted(
    model: type[RewardModel],
    config: Any,
    directory: Path,
    begin: Policy,
    preferences: Sequence[JudgedPair],
    processes: int,
) -> None:
    log = MetricsRecorder()

    def fit(judged: Sequence[JudgedPair], name: str) -> RewardModel:
        return model.fit(judged, begin, config, train_context(directory / name, log_metrics=log))

    with check_start_untouched(begin):
        fitted = fit(preferences, "fit")
    lines = [*log.lines]
    require(isinstance(fitted, RewardModel), "fit must return a RewardModel")
    check_reward_model(fitted)
    right = _accuracy(fitted, separable_preferences(64))
    require(right > 0.75, f"fitted to pairs that a word tells apart, it ranks {right:.0%} of them rightly: not learned")
    rows = [(j.pair.instruction, j.pair.output_1) for j in preferences]
    expected, trained = values(fitted, rows), copy_weights(fitted)

    def as_expected(other: RewardModel) -> bool:
        return _close(values(other, rows), expected) and equal_weights(copy_weights(other), trained)

    require(as_expected(fit(preferences, "again")), "equal seeds must fit equal reward models")
    check_metrics(lines)
    fit_again = partial(model.fit, preferences, begin, config)
    check_goes_on(fit_again, as_expected, lines, directory / "interrupted")
    if processes > 1:
        check_processes(fit_again, trained, lines, processes, directory)
    saved = directory / "saved"
    saved.mkdir()
    fitted.save(saved)
    loaded = model.load(saved, train_context(directory / "loading"))
    require(isinstance(loaded, RewardModel), f"load must return an afarm.RewardModel, not {type_name(loaded)}")
    require(_close(values(loaded, rows), expected), "a reward model that was saved and loaded must score the same")
    for name, useless in {"draws only": _undecided(8), "no preferences": []}.items():
        unfitted = unless_refused(partial(fit, useless, name.replace(" ", "_")), f"fit to {name}")
        require(unfitted is None, f"fit to {name} must be a DataError, not a reward model")


def values(model: RewardModel, rows: Sequence[tuple[Instruction, str]]) -> list[float]:
    """Score each (instruction, output): one finite score per row, spans inside their outputs."""
    with as_in_a_run():  # `RewardModel` checks its own promises
        scores = model.score([instruction for instruction, _ in rows], [output for _, output in rows])
    for (_, output), score in zip(rows, scores, strict=True):
        for begin, end, _ in score.spans or ():
            require(0 <= begin <= end <= len(output), "a span lies outside its output")
    return [score.value for score in scores]


def _close(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE) for a, b in zip(one, other, strict=True))


def _accuracy(model: RewardModel, judged: Sequence[JudgedPair]) -> float:
    first = values(model, [(j.pair.instruction, j.pair.output_1) for j in judged])
    second = values(model, [(j.pair.instruction, j.pair.output_2) for j in judged])
    right = [(two > one) == (j.p2 == 1.0) for j, one, two in zip(judged, first, second, strict=True)]
    return sum(right) / len(right)


def _undecided(count: int) -> list[JudgedPair]:
    """Make draws and unreadable answers, in turn."""
    judged = separable_preferences(2 * count)[count:]
    return [
        JudgedPair(j.pair, Preference(j.pair.id, None, "unparsed" if i % 4 == 3 else "draw"))
        for i, j in enumerate(judged)
    ]
