"""Two runs compared: what was set otherwise, and whether the label changed, the policy, or the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair, Pair, Preference
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.storage.rows import write_rows
from afarm.storage.runs import find_run
from afarm_plugins.view.run_diff import diff_runs

ONE = EvaluationProtocol("pool", reference="sft", judges={"*": "openai:x"})


def run(directory: Path, name: str, rows: list[JudgedPair], protocol: EvaluationProtocol = ONE, **more: Any) -> Path:
    path = directory / "runs" / name
    path.mkdir(parents=True)
    result = {"system": "ppo", "reference": "sft", "evaluator": "win_rate", "protocol": protocol.to_row()}
    record = {"name": name, "results": [{**result, "metrics": more.pop("metrics", {"win_rate": 50.0})}], **more}
    (path / "run.json").write_text(json.dumps(record))
    write_rows(path / "outputs.jsonl", (row.to_row() for row in rows))
    return path


def judged(task: int, output: str, p2: float | None, reference: str = "old") -> JudgedPair:
    pair = Pair(Instruction(f"task {task}"), reference, output, 0, "sft", "ppo")
    return JudgedPair(pair, Preference(pair.id, p2, "unparsed" if p2 is None else "decided"))


def test_each_instruction_has_one_reason_and_the_reasons_add_up(tmp_path: Path) -> None:
    before = [judged(0, "a", 1.0), judged(1, "a", 1.0), judged(2, "a", 0.0), judged(3, "a", 0.0), judged(4, "a", 1.0)]
    now = [
        judged(0, "a", 1.0),  # nothing
        judged(1, "a", 0.0),  # the label
        judged(2, "b", 1.0),  # the policy
        judged(3, "b", 0.0),  # the policy, and no flip
        judged(4, "a", 0.5, "new"),  # the reference
    ]
    found = diff_runs(run(tmp_path, "one", before), run(tmp_path, "two", now))
    parts = {reason: (p.changed, p.flips, p.points) for reason, p in found.contributions.items()}
    assert parts == {"label": (1, 1, -20.0), "policy": (2, 1, 20.0), "reference": (1, 1, -10.0)}
    assert found.difference == pytest.approx(sum(p.points for p in found.contributions.values()))
    assert found.shared == 5
    assert [(c.instruction, c.reason, c.flip) for c in found.changes] == [
        ("task 1", "label", True),
        ("task 2", "policy", True),
        ("task 3", "policy", False),
        ("task 4", "reference", True),
    ]
    gaps = [0, -1, 1, 0, -0.5]
    mean = sum(gaps) / 5
    error = 100 * (sum((g - mean) ** 2 for g in gaps) / 4 / 5) ** 0.5
    assert found.standard_error == pytest.approx(error)


def test_instructions_and_labels_that_one_run_lacks_are_counted_and_left_out(tmp_path: Path) -> None:
    before = [judged(0, "a", 1.0), judged(1, "a", 1.0), judged(2, "a", 1.0)]
    now = [judged(1, "a", None), judged(2, "a", 0.0), judged(3, "a", 0.0), judged(4, "a", 1.0)]
    found = diff_runs(run(tmp_path, "one", before), run(tmp_path, "two", now))
    assert (found.shared, found.only_first, found.only_second) == (1, 1, 2)
    assert (found.difference, found.standard_error) == (-100.0, None)
    assert found.contributions["label"].flips == 2
    assert found.contributions["label"].points == -100.0


def test_repeats_of_an_instruction_are_paired_in_turn(tmp_path: Path) -> None:
    before = [judged(0, "a", 1.0), judged(0, "b", 1.0)]
    found = diff_runs(run(tmp_path, "one", before), run(tmp_path, "two", [judged(0, "a", 1.0), judged(0, "b", 0.0)]))
    assert found.shared == 2
    assert [change.reason for change in found.changes] == ["label"]


def test_several_labels_of_an_instruction_are_no_surer_than_one(tmp_path: Path) -> None:
    before, now = [judged(i, "a", 1.0) for i in range(4)], [judged(i, "a", i % 2) for i in range(4)]
    once = diff_runs(run(tmp_path, "one", before), run(tmp_path, "two", now))
    thrice = diff_runs(run(tmp_path, "three", before * 3), run(tmp_path, "four", now * 3))
    assert once.standard_error == pytest.approx(100 / 12**0.5)
    assert (thrice.shared, thrice.difference) == (12, once.difference)
    assert thrice.standard_error == pytest.approx(once.standard_error)


def test_settings_versions_stages_and_judging_are_told(tmp_path: Path) -> None:
    def stages(key: str) -> list[dict[str, str]]:
        return [{"stage": "sft", "key": "same"}, {"stage": "train ppo", "key": key * 12}]

    one = run(
        tmp_path, "one", [], config={"seed": 1, "ppo": {"kl_coef": 0.1}}, versions={"torch": "2.12"}, stages=stages("a")
    )
    two = run(
        tmp_path,
        "two",
        [],
        EvaluationProtocol("pool", reference="sft", judges={"*": "openai:y"}),
        config={"seed": 1, "ppo": {"kl_coef": 0.2}},
        versions={"torch": "2.13"},
        stages=[*stages("b"), {"stage": "annotate", "key": "new"}],
        metrics={"win_rate": 55.0, "n_total": 3},
    )
    found = diff_runs(one, two)
    assert found.settings == ("ppo.kl_coef: 0.1 → 0.2",)
    assert found.versions == ("torch: 2.12 → 2.13",)
    assert found.stages == ("train ppo: aaaaaaaa → bbbbbbbb", "annotate: only in the second")
    assert found.incomparable == ("different judges (*: openai:x, *: openai:y)",)
    assert found.metrics == (("win_rate.win_rate", 50.0, 55.0), ("win_rate.n_total", None, 3.0))
    assert diff_runs(one, one).settings == ()
    assert json.loads(json.dumps(found.to_row()))["runs"] == ["one", "two"]


def test_a_run_is_found_by_name_directory_or_record(tmp_path: Path) -> None:
    path = run(tmp_path, "mine", [])
    assert find_run("mine", tmp_path) == find_run(str(path), Path("x")) == find_run(str(path / "run.json"), Path("x"))
    assert find_run("min", tmp_path).name == "mine", "the only one that begins so"
    with pytest.raises(DataError, match=r"no run 'mien'.*Did you mean 'mine'"):
        find_run("mien", tmp_path)


def test_a_record_that_is_none_is_named(tmp_path: Path) -> None:
    path = run(tmp_path, "mine", [])
    (path / "run.json").write_text("[]")
    with pytest.raises(DataError, match=r"run\.json: is no record of a run"):
        diff_runs(path, path)
