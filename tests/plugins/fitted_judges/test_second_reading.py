"""A second reading: the pairs of an evaluation as a judge sees them that was fitted to other labels."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from light_farm import Make

from afarm import BuildContext, DataError, EvaluationInputs, Instruction, JudgedPair, Output, Pair, Preference
from afarm_plugins.fitted_judges.second_reading import SecondReading


def fitted(directory: Path, weight: float) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "judge.json").write_text(json.dumps({"format": 1, "features": {"length": weight}}), encoding="utf-8")
    return str(directory)


def no_model(name: str) -> Any:
    raise AssertionError(name)


def reading(directory: str) -> SecondReading:
    return SecondReading(None, directory, BuildContext(reward_model=no_model, source="the source"))


def judged(answers: list[tuple[str, str]], p2: float) -> EvaluationInputs:
    """Comparisons of a reference's answers with a system's, all decided alike."""
    pairs = [Pair(Instruction(f"Task {i}"), *texts) for i, texts in enumerate(answers)]
    rows = [JudgedPair(pair, Preference(pair.id, p2, "decided")) for pair in pairs]
    return EvaluationInputs("mine", [Output(pair.instruction, pair.output_2) for pair in pairs], judgements=rows)


def test_it_is_the_expected_win_rate_and_mirrors_with_the_sides(tmp_path: Path) -> None:
    by_length = reading(fitted(tmp_path / "by length", 1.0))
    answers = [("abc", "abcdefg"), ("abcdefghijklmno", "a"), ("same", "same")]
    # the feature is ln(1 + characters): utilities differ by ln 2, by -ln 8 and by nothing
    expected = [2 / 3, 1 / 9, 1 / 2]
    metrics = by_length.evaluate(judged(answers, 1.0)).metrics
    assert metrics["fitted_win_rate"] == pytest.approx(100 * sum(expected) / 3)
    assert metrics["fitted_difference"] == pytest.approx((math.log(2) - math.log(8)) / 3)
    assert metrics["agreement"] == 50.0  # of the two pairs that it does not hold for even
    assert metrics["n_total"] == 3
    swapped = by_length.evaluate(judged([(b, a) for a, b in answers], 0.0)).metrics
    assert swapped["fitted_win_rate"] == pytest.approx(100 - 100 * sum(expected) / 3)
    assert swapped["fitted_standard_error"] == pytest.approx(metrics["fitted_standard_error"])
    with pytest.raises(DataError, match="no pairs"):
        by_length.evaluate(judged([], 1.0))


def test_the_judge_itself_is_no_second_reading(farm: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitted(tmp_path / "one", 1.0), fitted(tmp_path / "other", 0.5)
    for who, evaluator, is_same in [
        ({"judge": {"*": "fitted:one"}}, "fitted:one", True),
        ({"judge": {"*": "fitted:one"}}, f"fitted:{tmp_path}/other/../one", True),
        ({"judge": {"*": "fitted"}}, "fitted", True),
        ({"evaluate": {"annotator": "fitted:./one"}}, "fitted:one", True),
        ({"evaluate": {"annotator": "fitted"}}, "fitted", True),
        ({"judge": {"*": "fitted:one"}}, "fitted:other", False),
        ({"evaluate": {"annotator": "fitted:other"}}, "fitted:one", False),
        ({"judge": {"*": "fitted:other"}}, "fitted", False),
        ({"judge": {"*": "counting", "strong": "fitted:one"}}, "fitted:one", False),
    ]:
        evaluate = {**who.get("evaluate", {}), "evaluators": ["win_rate", evaluator]}
        result = farm(**{**who, "evaluate": evaluate}).evaluate("nudge")
        told = [flag for flag in result.flags if "quote the win rate" in flag]
        assert bool(told) is is_same, (who, evaluator, result.flags)


def test_a_recipe_names_it_and_its_weights_are_in_the_evaluations_key(farm: Make, tmp_path: Path) -> None:
    spec = f"fitted:{fitted(tmp_path / 'second', 1.0)}"
    first = farm(evaluate={"evaluators": ["win_rate", spec]})
    result = first.evaluate("nudge")
    assert 0 < result.metric("fitted_win_rate") < 100
    assert f"fitted_win_rate {result.metric('fitted_win_rate'):.1f} % ± " in repr(result)
    assert 0 <= result.win_rate <= 100
    of_it, of_labels = result.by_instruction(spec), result.by_instruction("win_rate")
    assert statistics.fmean(of_it.values()) == pytest.approx(result.metric("fitted_win_rate"))
    assert statistics.fmean(of_labels.values()) == pytest.approx(result.win_rate)
    assert of_it.keys() == of_labels.keys() == {row.instruction.id for row in first.outputs("nudge")}
    fitted(tmp_path / "second", -1.0)
    changed = farm(evaluate={"evaluators": ["win_rate", spec]})
    assert changed.evaluate("nudge").metric("fitted_win_rate") != result.metric("fitted_win_rate")
