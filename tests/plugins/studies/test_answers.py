"""The sentences that studies begin with."""

from __future__ import annotations

import pytest

from afarm import Bounded, FinishedRun, StudyRun, StudyTable
from afarm_plugins.studies.boards import say_agreement
from afarm_plugins.studies.over_optimization import FITTED, JOINED, OverOptimization
from afarm_plugins.studies.over_seeds import say_highest
from afarm_plugins.studies.settings import OverOptimizationConfig

COLUMNS = {"method": "", "seeds": "d", "win rate": ".1f"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], ""),
        ([["ppo", 1, Bounded(60.0, 55.0, 65.0)]], ""),
        ([["ppo", 1, None], ["dpo", 1, None]], ""),
        (
            [["dpo", 1, Bounded(50.0, 45.0, 54.9)], ["ppo", 1, Bounded(60.0, 55.0, 65.0)]],
            "ppo has the highest win rate, 60.0 (55.0 to 65.0); clearly ahead.",
        ),
        (
            [["ppo", 1, Bounded(60.0, 55.0, 65.0)], ["dpo", 1, Bounded(56.0, 51.0, 61.0)], ["sft", 1, None]],
            "ppo has the highest win rate, 60.0 (55.0 to 65.0); not clearly apart from it: dpo.",
        ),
        (
            [["ppo", 1, Bounded(60.0)], ["dpo", 1, Bounded(10.0, 9.0, 11.0)]],
            "ppo has the highest win rate, 60.0; not clearly apart from it: dpo.",
        ),
    ],
)
def test_a_study_names_the_highest_and_those_near_it(rows: list[list[object]], said: str) -> None:
    assert say_highest(StudyTable("t", "t", COLUMNS, rows)) == said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rho", "said"),
    [
        (None, ""),
        (
            Bounded(0.9, 0.7, 1.0),
            "gpt35 ranks 5 systems nearly as people do (rank correlation 0.90, 95 % 0.70 to 1.00).",
        ),
        (Bounded(0.5), "gpt35 ranks 5 systems partly as people do (rank correlation 0.50)."),
        (Bounded(-0.5), "gpt35 ranks 5 systems otherwise than people do (rank correlation -0.50)."),
    ],
)
def test_rankings_say_how_far_a_rater_agrees(rho: Bounded | None, said: str) -> None:
    assert say_agreement("gpt35", "people do", 5, rho) == said


@pytest.mark.parametrize(
    ("reaches", "seeds", "over", "lines"),
    [([1, 4, 16], [1], "instructions", JOINED), ([1, 4, 16, 64], [1, 2], "seeds", FITTED)],
)
def test_captions_say_what_was_drawn(reaches: list[int], seeds: list[int], over: str, lines: str) -> None:
    runs = [
        FinishedRun(
            StudyRun("best_of_n", seed, {"labels": "pool", "reach": reach}),
            f"{reach}-{seed}",
            {"win_rate": 50.0 + 10 * (reach == 4) + seed / 10, "win_rate_low": 40.0, "win_rate_high": 70.0},
        )
        for reach in reaches
        for seed in seeds
    ]
    found = OverOptimization(OverOptimizationConfig(methods="best_of_n")).analyse(runs)
    assert found.tables[0].title == f"Figures by reach, with 95% intervals over {over}"
    assert [note for note in (JOINED, FITTED) if note in found.notes] == [lines]
    assert found.answer.startswith("best_of_n learning from pool wins most at a reach of 4: 60.")
    assert ("not clearly" in found.answer) == (len(seeds) == 1)
