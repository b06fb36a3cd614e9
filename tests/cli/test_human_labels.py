"""`afarm evaluate --annotations … --humans …`: a few human labels and many simulated ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from said import Afarm

N, LABELLED = 200, 60


def rows(generator: str, preferences: list[float], swapped: bool = False) -> list[dict[str, Any]]:
    """People's labels often have the system first: then 1 is a win."""
    found = []
    for number, preference in enumerate(preferences):
        names = ("the reference", generator)
        sides = {"generator_1": names[swapped], "generator_2": names[not swapped]}
        sides |= {"output_1": "ab"[swapped], "output_2": "ab"[not swapped]}
        value = 3 - preference if swapped else preference
        found.append({"instruction": f"task {number}", "preference": value, "annotator": "someone", **sides})
    return found


def write(path: Path, *boards: list[dict[str, Any]]) -> str:
    path.write_text(json.dumps([row for board in boards for row in board]))
    return str(path)


@pytest.fixture
def people() -> list[float]:
    return [1 + float(number * 7 % 10 < 4) for number in range(N)]  # the system wins 40%


@pytest.fixture
def judge(people: list[float]) -> list[float]:
    return [max(preference, 1 + float(n % 3 == 0)) for n, preference in enumerate(people)]  # and flatters it


def test_a_win_rate_by_people_from_both_kinds_of_labels(
    afarm: Afarm, tmp_path: Path, people: list[float], judge: list[float]
) -> None:
    simulated = write(tmp_path / "simulated.json", rows("mine", judge), rows("other", judge))
    human = write(tmp_path / "human.json", rows("mine", people[:LABELLED], swapped=True) * 2)
    said = afarm("evaluate", simulated, "--annotations", "--humans", human, "--reference", "the reference", "--json")
    assert said.code == 0, said.err
    assert "Without labels by people, judged alone: other" in said.err
    mine, other = said.json["systems"]
    assert [row["evaluator"] for row in other["results"]] == ["win_rate"]
    assert other["metrics"]["win_rate"] == mine["metrics"]["win_rate"] == pytest.approx(60, abs=1), "the judge's"
    (found,) = (row["metrics"] for row in mine["results"] if row["evaluator"] == "prediction_powered")
    assert (found["n_human"], found["n_simulated"]) == (LABELLED, N - LABELLED)
    assert found["judge"] == pytest.approx(60, abs=1)
    assert found["people"] == pytest.approx(40)
    assert found["prediction_powered_low"] < 40 < found["prediction_powered_high"] < found["judge"]
    assert found["prediction_powered_se"] < found["people_se"]
    assert found["saved"] > 0
    record = json.loads((Path(mine["report"]).parent / "run.json").read_text())
    assert record["results"] == mine["results"]
    assert "prediction_powered" in Path(mine["report"]).read_text()
    shown = afarm("evaluate", simulated, "--annotations", "--humans", human, "--reference", "the reference").out
    assert f"Win rate by people: {found['prediction_powered']:.1f} %" in shown
    assert f"{found['saved']} need no human label" in shown
    assert "mine" in afarm("leaderboard").out


def test_other_labels_of_people_are_another_result(
    afarm: Afarm, tmp_path: Path, people: list[float], judge: list[float]
) -> None:
    simulated = write(tmp_path / "simulated.json", rows("mine", judge))
    found = []
    for labels in (people[:LABELLED], [3 - p for p in people[:LABELLED]]):
        human = write(tmp_path / "human.json", rows("mine", labels))
        said = afarm("evaluate", simulated, "--annotations", "--humans", human, "--json")
        found.append(said.json["results"][1]["metrics"]["people"])
    assert found == pytest.approx([40, 60])


def test_what_does_not_fit_together_says_so(
    afarm: Afarm, tmp_path: Path, people: list[float], judge: list[float]
) -> None:
    simulated = write(tmp_path / "simulated.json", rows("mine", judge))
    few = write(tmp_path / "few.json", rows("mine", people[:5]))
    other = write(tmp_path / "other.json", rows("theirs", people))
    wrong = write(tmp_path / "wrong.json", [{**rows("mine", [1])[0], "preference": 7}])
    for file, part in {
        few: "5 instructions have human and simulated labels; at least 10",
        other: "people compared 'theirs' with 'the reference', and the judge 'mine' with 'the reference': no pair",
        wrong: "wrong.json: row 0: field 'preference' is 7",
    }.items():
        said = afarm("evaluate", simulated, "--annotations", "--humans", file)
        assert (said.code, said.out) == (1, "")
        assert part in said.err
    said = afarm("evaluate", simulated, "--humans", few)
    assert (said.code, "--annotations FILE" in said.err) == (1, True)


@pytest.mark.parametrize(("swapped", "field"), [(False, 1), (False, 2), (True, 1), (True, 2)])
def test_labels_about_other_outputs_are_refused_or_left_out_and_counted(
    swapped: bool, field: int, afarm: Afarm, tmp_path: Path, people: list[float], judge: list[float]
) -> None:
    simulated = write(tmp_path / "simulated.json", rows("mine", judge))
    labels = rows("mine", people[:LABELLED], swapped)
    labels[7][f"output_{field}"] = "an older answer"
    human = write(tmp_path / "human.json", labels)
    asked = ["evaluate", simulated, "--annotations", "--humans", human, "--json"]
    said = afarm(*asked)
    assert (said.code, said.out) == (1, "")
    assert f"{human}: row 7: field 'output_{field}': people labelled another output to 'task 7'" in said.err
    skipped = afarm(*asked, "--on-missing", "skip")
    assert skipped.code == 0, skipped.err
    assert skipped.json["results"][1]["metrics"]["n_human"] == LABELLED - 1
    assert "mine: 1 label by people left out, about other outputs" in skipped.err
