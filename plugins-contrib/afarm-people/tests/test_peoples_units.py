"""`--people LABELS`: which label belongs to which pair and side, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from afarm_people.evaluator import PeoplesWinRates
from afarm_people.settings import PeoplesConfig

from afarm import BuildContext, DataError, Evaluation, EvaluationInputs, Instruction, JudgedPair, Pair, Preference

REFERENCE = "davinci"


def pair_of(number: int, system: str) -> Pair:
    texts = f"answer {number} of {REFERENCE}", f"answer {number} of {system}"
    return Pair(Instruction(f"task {number}"), *texts, generator_1=REFERENCE, generator_2=system)


def wins(system: str, number: int) -> float:
    """People let a win in 1 of 4 tasks, b in 3 of 4."""
    return float(number % 4 == 0) if system == "a" else float(number % 4 != 0)


def judged() -> list[JudgedPair]:
    """Verdicts that are wrong in every fifth task, of pairs without texts as boards hold them."""
    rows = []
    for number in range(60):
        for system in "abc":
            pair = pair_of(number, system)
            p2 = wins(system, number) if number % 5 else 1 - wins(system, number)
            bare = Pair(pair.instruction, "", "", generator_1=REFERENCE, generator_2=system)
            rows.append(JudgedPair(bare, Preference(pair.id, p2, "decided"), "judge"))
    return rows


def evaluate(
    tmp_path: Path, rows: list[dict[str, Any]], slight: Any = "plain", verdicts: list[JudgedPair] | None = None
) -> Evaluation:
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = PeoplesWinRates(
        PeoplesConfig(slight=slight), str(file), BuildContext(reward_model=lambda: pytest.fail("not asked"))
    )
    return made.evaluate(EvaluationInputs("", (), judgements=verdicts or judged()))


def label_rows(systems: str, numbers: range, turned: bool = False, **more: Any) -> list[dict[str, Any]]:
    rows = []
    for number in numbers:
        for system in systems:
            pair, win = pair_of(number, system), wins(system, number)
            if turned:
                pair, win = pair.swapped(), 1 - win
            label = Preference(pair.id, win, "decided", "human")
            rows.append({**JudgedPair(pair, label, "person-1").to_row(), **more})
    return rows


@pytest.mark.parametrize("turned", [False, True])
def test_labels_find_their_pair_and_side(tmp_path: Path, turned: bool) -> None:
    found = evaluate(tmp_path, label_rows("ab", range(40), turned, probability=40 / 60))
    a, b, c = sorted(found.rows, key=lambda row: str(row["system"]))
    assert found.metrics == {"reference": REFERENCE, "n_systems": 3, "n_labels": 80}
    assert a["people_low"] < 25 < a["people_high"]
    assert b["people_low"] < 75 < b["people_high"]
    assert (a["judge"], a["n_total"]) == (35.0, 40)
    assert c["people"] == c["judge"]
    assert "people_low" not in c
    assert str(c["flag"]).startswith("not checked, the judge's figure: none of its pairs is labelled")


def test_wrong_files_are_named(tmp_path: Path) -> None:
    rows = label_rows("ab", range(40))
    others = [{**row, "output_2": "another text"} for row in rows]
    with pytest.raises(DataError, match="none of its 40 labelled pairs is among those judged"):
        evaluate(tmp_path, others)
    with pytest.raises(DataError, match="'generator_1' and 'generator_2': afarm label --from-run"):
        evaluate(tmp_path, [{**row, "generator_1": ""} for row in rows])
    with pytest.raises(DataError, match=r"'probability' is 1\.5"):
        evaluate(tmp_path, label_rows("ab", range(40), probability=1.5))
    with pytest.raises(DataError, match="people labelled 20 of the judged pairs, too few"):
        evaluate(tmp_path, label_rows("ab", range(10)))


def test_a_label_of_the_same_response_by_another_system_counts(tmp_path: Path) -> None:
    found = evaluate(tmp_path, [{**row, "generator_2": "twin"} for row in label_rows("a", range(40))])
    a = next(row for row in found.rows if row["system"] == "a")
    assert a["n_total"] == 40
    assert a["people_low"] < 25 < a["people_high"]


@pytest.mark.parametrize(("slight", "rate", "labels"), [("plain", 25, 80), ("soft", 37.5, 80), ("drop", 50, 60)])
def test_slightly_counts_as_the_setting_says(tmp_path: Path, slight: str, rate: float, labels: int) -> None:
    """System a wins 10 of 40; of its 30 losses, 20 are slight (soft: each a quarter of a win)."""
    rows = label_rows("ab", range(40))
    lost = [row for row in rows if row["generator_2"] == "a" and row["preference"] == 1]
    for row in lost[:20]:
        row["strength"] = 0.5
    found = evaluate(tmp_path, rows, slight)
    [a] = [row for row in found.rows if row["system"] == "a"]
    assert found.metrics["n_labels"] == labels
    assert a["people_low"] < rate < a["people_high"]
    assert abs(a["people"] - rate) < 10  # dropped ones leave more to the calibration


def test_equal_responses_are_a_draw_to_people_too(tmp_path: Path) -> None:
    """Half of a's pairs equal the reference's, and nobody is asked: it wins a quarter of the others."""
    verdicts = judged()
    for number in range(60, 120):
        pair = Pair(Instruction(f"task {number}"), "", "", generator_1=REFERENCE, generator_2="a")
        verdicts.append(JudgedPair(pair, Preference(pair.id, None, "draw", "rule"), "judge"))
    rows = label_rows("ab", range(40))
    [without] = [row for row in evaluate(tmp_path, rows).rows if row["system"] == "a"]
    [a] = [row for row in evaluate(tmp_path, rows, verdicts=verdicts).rows if row["system"] == "a"]
    for end in ("people", "people_low", "people_high"):
        assert a[end] == pytest.approx((without[end] + 50) / 2, abs=0.1)
