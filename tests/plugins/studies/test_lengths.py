"""Lengths: means, choices and bands worked by hand, and real outputs whose lengths are published."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from places import SHARED_DATA

from afarm import Findings, FinishedRun, Instruction, JudgedPair, Pair, Preference, StudyRequest
from afarm_plugins.studies.lengths import BANDS, Lengths, PairLengths
from afarm_plugins.studies.settings import LengthsConfig

REAL = SHARED_DATA / "alpaca_eval"
SYSTEMS = ["gpt-3.5-turbo-0301", "alpaca-farm-ppo-human", "text_davinci_001"]


def table(found: Findings, name: str) -> dict[str, dict[str, Any]]:
    """The rows of a table by their first cell."""
    [one] = [table for table in found.tables if table.name == name]
    return {str(row[0]): dict(zip(one.columns, row, strict=True)) for row in one.rows}


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no AlpacaEval at {SHARED_DATA}")
def test_real_outputs_have_their_published_lengths() -> None:
    with (REAL / "leaderboard.alpaca_eval_gpt4.csv").open() as file:
        published = {row[""]: float(row["avg_length"]) for row in csv.DictReader(file)}
    files = [str(REAL / f"annotations.alpaca_eval_gpt4.{name}.json.gz") for name in SYSTEMS]
    found = Lengths(LengthsConfig(annotations=files)).analyse([])
    rows = table(found, "lengths")
    assert [int(rows[name]["characters"].value) for name in SYSTEMS] == [published[name] for name in SYSTEMS]
    bands = table(found, "by-length")
    assert sum(row["pairs"] for row in bands.values()) == sum(row["pairs"] for row in rows.values())
    assert bands["over twice"]["alpaca-farm-ppo-human"].low > bands["under half"]["alpaca-farm-ppo-human"].high
    assert "Spearman's ρ 1.00" in found.notes[-1]


def judged(number: int, before: int, after: int, win: float | None) -> JudgedPair:
    pair = Pair(Instruction(f"task {number}"), "a" * before, "b" * after)
    return JudgedPair(pair, Preference(pair.id, win, "decided" if win is not None else "unparsed"))


def test_lengths_choices_and_bands_are_counted() -> None:
    study = Lengths(LengthsConfig(methods="ppo,dpo", difference=10))
    of_ppo = [(100, 150, 1.0), (100, 105, 0.0), (100, 40, 1.0), (100, 300, None), (0, 20, 1.0)]
    pairs = [judged(number, *one) for number, one in enumerate(of_ppo)]
    lost = Pair(Instruction("task 9"), "a" * 100, "")
    pairs.append(JudgedPair(lost, Preference(lost.id, 0.0, source="rule")))
    grid = study.grid(StudyRequest("ppo", (1,)))
    found = study.analyse([FinishedRun(grid[0], "run", {}, pairs=lambda: pairs)])
    [row] = table(found, "lengths").values()
    assert (row["pairs"], row["reference's characters"], row["characters"].value) == (5, 80, 123)
    assert row["times"] == 123 / 80
    assert row["win rate"].value == 75, "of the four with a verdict"
    assert row["prefers the longer, %"].value == pytest.approx(200 / 3), "105 is not longer than 100"
    bands = table(found, "by-length")
    assert {band: row["ppo"] and row["ppo"].value for band, row in bands.items()} == {
        "under half": 100,
        "half to 0.8": None,
        "0.8 to 1.25": 0,
        "1.25 to twice": 100,
        "over twice": 100,
    }
    assert study.analyse([]) == Findings()


def test_several_seeds_have_an_interval_over_seeds_and_an_instruction_counts_once() -> None:
    study = Lengths(LengthsConfig(methods="ppo"))
    runs = study.grid(StudyRequest("ppo", (1, 2, 3)))
    finished = [
        FinishedRun(
            run, run.label, {}, pairs=lambda run=run: [judged(1, 100, 100 * run.seed, 0.0), judged(2, 100, 100, 1.0)]
        )
        for run in runs
    ]
    found = study.analyse(finished)
    row = table(found, "lengths")["ppo"]
    assert (row["characters"].value, row["characters"].low) == (
        150,
        pytest.approx(150 - 4.3027 * 50 / 3**0.5, abs=0.01),
    )
    assert table(found, "by-length")["0.8 to 1.25"]["ppo"].value == 50, "task 2 counts once, though it came thrice"


@pytest.mark.parametrize(("before", "after", "band"), [(0, 0, 2), (0, 1, 4), (10, 0, 0), (10, 20, 4), (10, 8, 2)])
def test_a_band_is_told_by_relative_length(before: int, after: int, band: int) -> None:
    assert PairLengths(1, "x", before, after, None).band == BANDS[band]
