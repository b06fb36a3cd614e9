"""When a length-controlled figure is flagged, when its error is withheld, and that it holds where it is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from afarm.cli.screens import result_row
from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Instruction, JudgedPair, Output, Pair, Preference
from afarm.core.seeding import uniform
from afarm_plugins.evaluators import LengthControlledConfig
from afarm_plugins.evaluators.length_checks import error_and_warnings
from afarm_plugins.evaluators.length_controlled import LengthControlled
from afarm_plugins.evaluators.length_glm import Rows, length_feature, sampling_error, solve
from afarm_plugins.evaluators.win_rate import WinRate

Judged = tuple[int, int, float]
"""Characters of the reference's output and of the system's, and what that has of the win."""


def inputs(rows: Sequence[Judged], lost: int = 0) -> EvaluationInputs:
    """A judged output for each of `rows`, and instructions `lost` for want of one."""
    judged = []
    for number, (theirs, mine, p2) in enumerate(rows):
        pair = Pair(Instruction(f"instruction {number}"), "y" * theirs, "x" * mine, 0, "them", "me")
        judged.append(JudgedPair(pair, Preference(pair.id, p2)))
    for number in range(lost):
        pair = Pair(Instruction(f"lost {number}"), "y" * 900, "", 0, "them", "me")
        judged.append(JudgedPair(pair, Preference(pair.id, 0.0, source="rule")))
    outputs = [Output(row.pair.instruction, row.pair.output_2) for row in judged]
    return EvaluationInputs("me", outputs, judgements=judged)


def metrics(rows: Sequence[Judged], lost: int = 0) -> dict[str, Any]:
    return dict(LengthControlled().evaluate(inputs(rows, lost)).metrics)


def rows(n: int, won: float, longer: int = 0) -> list[Judged]:
    """Keyed draws: `won` of them, whatever the length, which is within 100 characters of `longer` more than mine."""
    gaps = [longer + round(200 * (uniform("gap", i) - 0.5)) for i in range(n)]
    return [(500 + gap, 500, float(uniform("won", i) < won)) for i, gap in enumerate(gaps)]


def test_many_outcomes_of_both_kinds_on_both_sides_of_equal_length_raise_no_doubt() -> None:
    found = metrics(rows(300, 0.7))
    assert found["lc_warning"] is None
    assert found["lc_sampling_error"] == pytest.approx(2.65, abs=0.2)  # 100 * sqrt(0.7 * 0.3 / 300)


@pytest.mark.parametrize(("won", "word"), [(1.0, "lost"), (0.0, "won")])
def test_outcomes_all_of_one_kind_have_no_error_and_say_why(won: float, word: str) -> None:
    found = metrics([(500 + i, 530, won) for i in range(60)])
    assert found["lc_sampling_error"] is None
    assert found["lc_warning"] == (
        f"0 of 60 instructions {word}, and 10 of either outcome are needed: "
        "the penalty decides the figure, and no error holds"
    )


def test_where_no_error_holds_the_published_one_is_not_given_instead(tmp_path: Path) -> None:
    table = tmp_path / "difficulty.csv"
    table.write_text("instruction,difficulty\n" + "".join(f"instruction {i},{i % 3 - 1}\n" for i in range(90)))
    evaluator = LengthControlled(LengthControlledConfig(difficulty=str(table)))
    errors = ("lc_sampling_error", "lc_standard_error")
    sure = evaluator.evaluate(inputs([(480 + i, 510, float(i % 2)) for i in range(90)])).metrics
    assert all(sure[name] is not None for name in errors)
    unsure = evaluator.evaluate(inputs([(480 + i, 510, float(i % 10 == 0)) for i in range(60)])).metrics
    assert str(unsure["lc_warning"]).startswith("6 of 60 instructions won, and 15 of either outcome are needed")
    assert all(unsure[name] is None for name in errors)


def test_a_figure_of_which_the_penalty_leaves_nothing_is_not_given() -> None:
    few = [(500 + 30 * i, 500, float(i % 2)) for i in range(5)]
    found = metrics(few)
    assert (found["length_controlled_winrate"], found["lc_sampling_error"]) == (None, None)
    lost = "the penalty leaves nothing of judgements of which 40.0 % were won: no figure is defined"
    assert found["lc_warning"].endswith(f"no error holds; {lost}")
    result = {"evaluator": "length_controlled", "reference": "r", "metrics": found}
    assert result_row(result, "r") == ("length_controlled", "not defined")
    assert metrics([(500, 500, 0.5)] * 5)["length_controlled_winrate"] == pytest.approx(50), "draws alone are a figure"


def test_outcomes_that_length_decides_have_no_error() -> None:
    found = metrics([(500 + 10 * i, 800, float(i < 30)) for i in range(60)])
    assert found["lc_sampling_error"] is None
    assert found["lc_warning"].startswith("2 coefficients tell won from lost too well")


def test_a_figure_far_from_the_lengths_that_were_seen_is_flagged_and_beyond_all_has_no_error(
    recwarn: pytest.WarningsRecorder,
) -> None:
    some = metrics([*rows(100, 0.5, longer=300), *[(400, 500, 1.0), (400, 500, 0.0)] * 3])
    assert some["lc_warning"].startswith("the reference's output is longer on all but 6 of 106 instructions")
    assert some["lc_sampling_error"] > 0
    none = metrics(rows(100, 0.5, longer=-300))
    assert none["lc_warning"].startswith(
        "the system's output is longer on all 100 instructions: the figure is extrapolated; no error holds so far out"
    )
    assert none["length_controlled_winrate"] is None
    assert none["lc_sampling_error"] is None
    assert not recwarn.list  # of a solver that does not converge


def test_a_figure_that_the_penalty_moves_says_from_where() -> None:
    # 53 of 100 won, which is as well explained by nothing.
    found = metrics(rows(100, 0.5))
    assert found["length_controlled_winrate"] == 50.0
    assert found["lc_warning"].startswith("in this fit the penalty moves the figure from 53.8 to 50.0 %: it pulls")
    assert found["lc_sampling_error"] == pytest.approx(5, abs=0.1)


def test_an_instruction_without_an_output_is_lost_in_the_win_rate_and_has_no_length() -> None:
    judged = rows(300, 0.7)
    whole, short = metrics(judged), metrics(judged, lost=10)
    assert short.pop("lc_warning").startswith("10 instructions without an output are left out")
    assert whole.pop("lc_warning") is None
    assert short == whole
    plain = WinRate().evaluate(inputs(judged, lost=10)).metrics
    assert (plain["n_total"], plain["avg_length"]) == (310, 500)
    assert plain["avg_length_reference"] == WinRate().evaluate(inputs(judged)).metrics["avg_length_reference"]
    nothing = WinRate().evaluate(inputs([], lost=3)).metrics
    assert (nothing["win_rate"], nothing["avg_length"], nothing["avg_length_reference"]) == (0.0, None, None)


def simulated(rate: float, n: int, runs: int) -> tuple[list[bool], int]:
    """Whether the truth lies within 1.96 errors, of fits that have one, and how many have none."""
    holds, without = [], 0
    for random in (np.random.default_rng([run, n]) for run in range(runs)):
        gap = random.normal(1, 1, n)
        won = (random.random(n) < expit(logit(rate) - np.tanh(gap))).astype(float)
        features = np.stack([np.ones(n), length_feature(gap)], axis=1)
        judged, equal = Rows(features, won, np.ones(n), np.arange(n)), features * [1, 0]
        found = solve(judged, 2.78)
        error, _ = error_and_warnings(found, sampling_error(found, judged, None, equal), judged, judged, gap, equal)
        without += error is None
        if error is not None:
            holds.append(abs(float(expit(found[0])) - rate) < 1.96 * error)
    return holds, without


def test_the_error_holds_where_it_is_given_and_is_withheld_where_wins_are_rare() -> None:
    holds, without = simulated(0.3, 200, 80)
    assert np.mean(holds) >= 0.9  # 0.95 of 600
    assert without < 10
    assert simulated(0.03, 60, 15)[1] > 12
