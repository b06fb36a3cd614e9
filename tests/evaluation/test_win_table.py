"""Judgements as a table."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from places import SHARED_DATA

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair, Pair, Preference
from afarm.evaluation.statistics.intervals import mean
from afarm.evaluation.win_table import wins
from afarm.storage.rows import read_preferences

Won = float | str
DATA = SHARED_DATA / "alpaca_eval"


def judged(system: str, task: int, won: Won, reference: str = "reference") -> JudgedPair:
    pair = Pair(Instruction(f"task {task}"), "one", "two", 0, reference, system)
    decided = isinstance(won, float | int)
    outcome = "decided" if decided else won
    return JudgedPair(pair, Preference(pair.id, float(won) if decided else None, outcome))  # type: ignore[arg-type]


def board(*rows: tuple[str, int, Won]) -> list[JudgedPair]:
    return [judged(*row) for row in rows]


def test_wins_of_systems_by_instruction() -> None:
    found = wins(board(("a", 0, 1), ("b", 1, 0.25), ("a", 1, "draw"), ("b", 0, "unparsed")))
    assert (found.reference, found.systems, found.unusable) == ("reference", ("a", "b"), (0, 1))
    assert found.instructions == (Instruction("task 0").id, Instruction("task 1").id)
    np.testing.assert_array_equal(found.table, [[1, 0.5], [np.nan, 0.25]])


def test_several_judgements_of_an_instruction_are_a_cluster() -> None:
    found = wins(board(("a", 0, 1), ("a", 0, 0), ("a", 1, 1), ("a", 0, 1)))
    np.testing.assert_allclose(found.table, [[2 / 3, 1]])
    np.testing.assert_array_equal(found.judgements, [[3, 1]])
    values, instructions = found.labels("a")
    assert (values.tolist(), instructions.tolist()) == ([1, 0, 1, 1], [0, 0, 1, 0])


def test_a_system_without_an_answer_is_there_and_empty() -> None:
    found = wins(board(("a", 0, "refused"), ("b", 0, 1)))
    assert found.unusable == (1, 0)
    assert np.isnan(found.row("a")).all()
    assert not len(found.labels("a")[0])


def test_tasks_that_differ_in_their_data_set_only_are_one() -> None:
    row = judged("a", 0, 1)
    other = Pair(Instruction("task 0", dataset="koala"), "one", "two", 0, "reference", "b")
    found = wins([row, JudgedPair(other, Preference(other.id, 0.0))])
    assert found.table.tolist() == [[1], [0]]


def test_two_references_are_no_board() -> None:
    rows = [judged("a", 0, 1), judged("b", 0, 1, "other")]
    with pytest.raises(DataError, match=r"'a' was compared with 'reference' and 'b' with 'other'"):
        wins(rows)
    with pytest.raises(DataError, match="there are no judgements"):
        wins([])


def test_an_unknown_system_is_named_with_its_neighbours() -> None:
    with pytest.raises(DataError, match="Did you mean 'alpaca'"):
        wins([judged("alpaca", 0, 1)]).row("alpacca")


def test_two_tables_share_systems_and_instructions_in_one_order() -> None:
    one = wins(board(("a", 0, 1), ("b", 1, 0), ("c", 2, 1), ("a", 1, 0)))
    two = wins(board(("c", 2, 0), ("a", 1, 1), ("a", 0, 0)))
    mine, theirs = one.shared(two)
    np.testing.assert_array_equal(mine, [[1, 0, np.nan], [np.nan, np.nan, 1]])
    np.testing.assert_array_equal(theirs, [[0, 1, np.nan], [np.nan, np.nan, 0]])


def test_rows_are_read_once_as_they_come() -> None:
    def rows() -> Iterator[JudgedPair]:
        yield from (judged("a", task, 1) for task in range(3))

    assert wins(rows()).table.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("annotator", ["alpaca_eval_gpt4", "weighted_gpt4_turbo"])
def test_means_and_errors_are_the_published_ones(annotator: str) -> None:
    files = sorted(DATA.glob(f"annotations.{annotator}.*.json.gz"))
    if not files:
        pytest.skip(f"no {DATA}")
    with (DATA / f"leaderboard.{annotator}.csv").open(encoding="utf-8") as handle:
        published = {row[""]: row for row in csv.DictReader(handle)}
    found = wins(row for file in files for row in read_preferences(file))
    assert len(found.systems) == len(files)
    for system in found.systems:
        estimate = mean(*found.labels(system))
        assert 100 * estimate.value == pytest.approx(float(published[system]["win_rate"]), abs=1e-9)
        assert 100 * (estimate.error or 0) == pytest.approx(float(published[system]["standard_error"]), abs=1e-9)
        assert estimate.n == int(float(published[system]["n_total"]))


@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("afarm.evaluation.statistics", "scipy"),
        ("afarm.evaluation.statistics", "numpy"),
        ("afarm.evaluation.win_table", "numpy"),
    ],
)
def test_what_is_not_installed_is_named_with_the_command_that_installs_it(module: str, missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
from afarm.core.errors import PluginError
try:
    import {module}
except PluginError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"need {missing!r}" in done.stderr
    assert "pip install 'afarm[evaluation]'" in done.stderr
    assert "Traceback" not in done.stderr
