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
        sides = {"generator_1": names[swapped], "generator_2": names[not swapped], "output_1": "a", "output_2": "b"}
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
    [found] = said.json["systems"]
    assert (found["system"], found["n_human"], found["n_simulated"]) == ("mine", LABELLED, N - LABELLED)
    assert found["simulated"]["value"] == pytest.approx(60, abs=1)
    assert found["human"]["value"] == pytest.approx(40)
    assert found["combined"]["low"] < 40 < found["combined"]["high"] < found["simulated"]["value"]
    assert found["combined"]["error"] < found["human"]["error"]
    assert found["saved"] > 0
    shown = afarm("evaluate", simulated, "--annotations", "--humans", human, "--reference", "the reference").out
    assert f"mine: win rate by people {found['combined']['value']:.1f} %" in shown
    assert f"{found['saved']} need no human label" in shown


def test_what_does_not_fit_together_says_so(
    afarm: Afarm, tmp_path: Path, people: list[float], judge: list[float]
) -> None:
    simulated = write(tmp_path / "simulated.json", rows("mine", judge))
    few = write(tmp_path / "few.json", rows("mine", people[:5]))
    other = write(tmp_path / "other.json", rows("theirs", people))
    mixed = write(tmp_path / "mixed.json", rows("mine", people[:20]), rows("mine", people[20:40], swapped=True))
    wrong = write(tmp_path / "wrong.json", [{**rows("mine", [1])[0], "preference": 7}])
    for file, part in {
        few: "5 instructions have human and simulated labels; at least 10",
        other: "people labelled 'theirs' and the judge 'mine': no system is in both",
        mixed: "(--reference NAME)",
        wrong: "wrong.json: row 0: field 'preference' is 7",
    }.items():
        said = afarm("evaluate", simulated, "--annotations", "--humans", file)
        assert (said.code, said.out) == (1, "")
        assert part in said.err
    said = afarm("evaluate", simulated, "--humans", few)
    assert (said.code, "--annotations FILE" in said.err) == (1, True)
