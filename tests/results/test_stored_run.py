"""Stored runs, read through the door: labels, votes, answers, figures and costs of a light run."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from light_farm import light_farm

from afarm import DataError, PluginError, results
from afarm.experiment import run_record
from afarm.results import StoredRun


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stored")
    with light_farm(made, "pool.both_orders=true", start="model") as farm:
        run_record.record(farm.workspace, "nudge", farm.evaluate(), "afarm run", time.time())
    return made / "out"


@pytest.fixture
def run(directory: Path) -> StoredRun:
    [run] = results.open_runs(directory)
    return run


def test_a_run_is_opened_by_its_name_and_by_its_path(run: StoredRun, directory: Path) -> None:
    assert results.open_run(run.name, directory).directory == run.directory
    assert results.open_run(run.directory / "run.json").name == run.name
    with pytest.raises(DataError, match="no run 'toy'"):
        results.open_run("toy", directory)
    with pytest.raises(DataError, match="no such directory"):
        results.open_runs(directory / "nowhere")


def test_outputs_are_the_pairs_of_the_main_comparison(run: StoredRun) -> None:
    rows, judged = run.outputs(), run.judgements()
    assert len(rows) == len(judged) == 10
    assert [row["output_2"] for row in rows] == [row.pair.output_2 for row in judged]
    assert all(row.win is not None for row in judged)


def test_every_label_of_a_judge_has_its_votes_and_its_answers(run: StoredRun) -> None:
    asked = {row.pair.id for row in (*run.labels(), *run.judgements()) if row.preference.source == "judge"}
    assert asked
    votes = run.votes()
    assert {vote["pair_id"] for vote in votes} == asked
    assert all(sum(vote["pair_id"] == pair for vote in votes) == 2 for pair in asked), "both orders"
    answers = run.answers()
    assert {vote["completion"] for vote in votes} == answers.keys()
    assert all(answer.price == 0.001 for answer in answers.values())


def test_figures_and_costs_are_those_of_the_record(run: StoredRun) -> None:
    [figures] = [row for row in run.figures() if row["evaluator"] == "win_rate"]
    assert figures["win_rate"] == run.record.results[0].metrics["win_rate"]
    costs = {row["kind"]: row for row in run.costs()}
    assert costs["evaluate"]["dollars"] == pytest.approx(0.001 * costs["evaluate"]["calls"])
    assert costs["train"]["calls"] == 0


def test_the_labels_of_a_method_that_learns_from_none_are_empty(run: StoredRun) -> None:
    assert (run.labels() == []) == (run.record.stage("annotate") is None)


def test_rows_labels_and_answers_become_frames(run: StoredRun) -> None:
    frame = results.to_frame(run.judgements())
    assert list(frame["preference"]) == [row.to_row()["preference"] for row in run.judgements()]
    assert results.to_frame(run.costs())["seconds"].notna().all()
    assert set(results.to_frame(run.answers().values())["price"]) == {0.001}


def test_without_pandas_the_command_that_installs_it_is_named(run: StoredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(PluginError, match="pip install pandas"):
        results.to_frame(run.costs())


def test_reading_writes_nothing_and_needs_no_ledger(run: StoredRun, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.output_dir, copy)
    for file in copy.glob("ledger.sqlite*"):
        file.unlink()
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    moved = results.open_run(run.name, copy)
    assert (moved.votes(), moved.answers()) == ([], {})
    assert len(moved.judgements()) == 10
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_a_deleted_artifact_is_named(run: StoredRun, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.output_dir, copy)
    moved = results.open_run(run.name, copy)
    shutil.rmtree(moved.artifact("evaluate nudge against base"))
    with pytest.raises(DataError, match="is gone; the run's command makes it again"):
        moved.judgements()
    with pytest.raises(DataError, match="has no stage 'nothing', only: "):
        moved.artifact("nothing")
