"""Many simulated labels and a few human ones."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import ppi_py
import pytest
from numpy.typing import NDArray

from afarm import DataError, EvaluationInputs, Instruction, JudgedPair, Output, Pair, Preference
from afarm_plugins.evaluators.prediction_powered import PredictionPowered, plus_four_mean, prediction_powered

Floats = NDArray[np.float64]
N, LABELLED = 800, 60


def labels(run: int, right: float = 0.85, flattered: float = 0.3) -> tuple[Floats, Floats]:
    """People's wins, 60% in truth, of the first 60 instructions, and a judge's of all, who flatters the system."""
    random = np.random.default_rng([run, 11])
    people = (random.random(N) < 0.6).astype(float)
    judge = np.where(random.random(N) < right, people, random.random(N) < 0.5)
    judge = np.where(random.random(N) < flattered, 1.0, judge)
    people[LABELLED:] = math.nan
    return people, judge


def test_the_estimate_is_the_librarys() -> None:
    people, judge = labels(0)
    y, guess, rest = people[:LABELLED], judge[:LABELLED], judge[LABELLED:]
    found = prediction_powered(people, judge)
    assert found.combined.value == pytest.approx(ppi_py.ppi_mean_pointestimate(y, guess, rest).item())
    low, high = ppi_py.ppi_mean_ci(y, guess, rest, alpha=0.05)
    assert found.combined.error == pytest.approx(
        (high - low).item() / 2 / 1.959964 * math.sqrt(LABELLED / (LABELLED - 2)), rel=1e-5
    )
    assert (found.n_human, found.n_simulated) == (LABELLED, N - LABELLED)


def test_the_order_of_instructions_does_not_matter() -> None:
    people, judge = labels(1)
    moved = np.random.default_rng(0).permutation(N)
    assert prediction_powered(people[moved], judge[moved]).combined.value == pytest.approx(
        prediction_powered(people, judge).combined.value
    )


def test_a_judge_that_says_what_people_say_is_as_good_as_people() -> None:
    people = (np.random.default_rng(2).random(N) < 0.6).astype(float)
    some = np.where(np.arange(N) < 100, people, math.nan)
    found = prediction_powered(some, people)
    assert found.trust == pytest.approx(1 / (1 + 100 / 700), rel=0.1)
    assert found.effective > 600


@pytest.mark.parametrize("constant", [True, False])
def test_a_useless_judge_costs_next_to_nothing(constant: bool) -> None:
    people, _ = labels(3)
    judge = np.full(N, 0.8) if constant else (np.random.default_rng(12).random(N) < 0.8).astype(float)
    found = prediction_powered(people, judge)
    assert found.effective - found.n_human <= 5
    assert found.combined.error < 1.05 * found.human.error
    if constant:
        assert found.trust == 0
        assert found.combined.value == pytest.approx(found.human.value)


def test_where_people_labelled_everything_their_mean_stands() -> None:
    people = np.array([1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1.0])
    found = prediction_powered(people, np.ones(11))
    assert found.combined == plus_four_mean(people)
    assert (found.n_simulated, found.effective) == (0, 11)


def test_people_who_agree_throughout_are_not_sure_to_go_on() -> None:
    """25 of 25 won: the labels do not spread, and an interval from their spread alone would be a point."""
    people, judge = np.r_[np.ones(25), np.full(75, math.nan)], np.arange(100) % 2.0
    found = prediction_powered(people, judge)
    assert found.combined == found.human == plus_four_mean(np.ones(25))
    assert found.combined.low < 0.95
    assert (found.n_simulated, found.trust, found.effective) == (75, 0.0, 25.0)


def test_too_few_human_labels_are_an_error() -> None:
    people, judge = labels(4)
    people[9:] = math.nan
    with pytest.raises(DataError, match="9 instructions have human and simulated labels; at least 10"):
        prediction_powered(people, judge)


def test_it_covers_with_a_biased_judge_whose_own_interval_does_not() -> None:
    """400 data sets; binomial error 1.1. The judge's mean is far off in all of them, and helps all the same."""
    combined, judge_alone, narrower = [], [], []
    for run in range(400):
        found = prediction_powered(*labels(run))
        combined.append(found.combined.low <= 0.6 <= found.combined.high)
        judge_alone.append(found.simulated.low <= 0.6 <= found.simulated.high)
        narrower.append(found.combined.error < found.human.error)
    assert np.mean(combined) >= 0.95 - 3 * 0.011
    assert np.mean(judge_alone) < 0.05
    assert np.mean(narrower) > 0.9


def test_the_library_does_not_silence_the_warnings_of_the_process() -> None:
    code = """
import warnings, numpy as np
from afarm_plugins.evaluators.prediction_powered import prediction_powered
before = list(warnings.filters)
prediction_powered(np.r_[np.arange(20) % 2, np.full(20, np.nan)], np.arange(40) % 3 / 2)
assert warnings.filters == before, warnings.filters
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def judged(values: list[float], each: int = 1) -> list[JudgedPair]:
    pairs = [Pair(Instruction(f"task {task}"), "one", "two", 0, "reference", "a") for task in range(len(values))]
    return [
        JudgedPair(pair, Preference(pair.id, value))
        for pair, value in zip(pairs, values, strict=True)
        for _ in range(each)
    ]


def test_labels_of_one_instruction_are_averaged_and_figures_are_percent() -> None:
    random = np.random.default_rng(0)
    truth = (random.random(400) < 0.4).astype(float)
    simulated = judged([float(v) for v in np.maximum(truth, random.random(400) < 0.3)])
    outputs = [Output(row.pair.instruction, "two", "a") for row in simulated]
    people = judged([float(v) for v in truth[:80]], each=3)
    evaluation = PredictionPowered().evaluate(EvaluationInputs("a", outputs, judgements=simulated, human=people))
    found: dict[str, Any] = dict(evaluation.metrics)
    assert (found["n_human"], found["n_simulated"]) == (80, 320)
    assert found["prediction_powered_low"] <= 100 * truth.mean() <= found["prediction_powered_high"]
    assert found["people"] == pytest.approx(100 * truth[:80].mean())
    assert found["judge_low"] > 100 * truth.mean()
    assert found["saved"] == math.floor(found["effective"]) - 80 > 20
