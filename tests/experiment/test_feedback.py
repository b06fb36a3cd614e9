"""Unpaired feedback, outputs with a thumb each: as its own file, and made of an annotator's pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from light_farm import Make
from light_plugin import RAN, CountingJudge, Thumbs

from afarm.core.errors import ConfigError
from afarm.core.records import Feedback
from afarm.experiment.dry_run import plan_run


def write(directory: Path, *rows: Mapping[str, Any]) -> str:
    path = directory / "thumbs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def thumbs(directory: Path, count: int = 6) -> str:
    return write(directory, *({"prompt": f"prompt {n}", "completion": "word", "label": n < 4} for n in range(count)))


def test_a_method_that_needs_feedback_learns_from_a_file_of_thumbs_and_asks_nobody(farm: Make, tmp_path: Path) -> None:
    one = farm(preferences=thumbs(tmp_path))
    one.train("thumbs")
    assert [*one.workspace.history] == ["base", "feedback", "sft", "train thumbs"]
    assert "thumbs 4 of 6" in RAN
    assert CountingJudge.asked == 0
    summary = one.workspace.history["feedback"].artifact.meta["summary"]
    assert (summary["rows"], summary["outcomes"], summary["members"]) == (6, {"up": 4, "down": 2}, {"thumbs": 6})
    assert Thumbs.learned[0] == Feedback(Thumbs.learned[0].instruction, "word", True, "thumbs")
    again = farm(preferences=thumbs(tmp_path))
    again.train("thumbs")
    assert again.workspace.history["train thumbs"].reused


def test_the_pairs_of_an_annotator_give_a_thumb_up_and_one_down_each(farm: Make) -> None:
    one = farm()
    one.train("thumbs")
    assert [*one.workspace.history] == ["base", "sft", "sample", "annotate", "train thumbs"]
    decided = [judged for judged in one.annotate() if judged.chosen_rejected]
    assert len(decided) > 1
    said = [(one.output, one.label) for one in Thumbs.learned]
    assert said == [item for d in decided for item in zip(d.chosen_rejected or (), (True, False), strict=True)]


def test_the_plan_counts_thumbs(farm: Make, tmp_path: Path) -> None:
    one = farm(preferences=thumbs(tmp_path), method="thumbs")
    planned = plan_run(one.workspace, "thumbs")
    assert [stage.kind for stage in planned] == ["base", "feedback", "train", "train", "outputs", "outputs", "evaluate"]
    assert planned[1].pairs.endswith("6 outputs with a thumb used (4 thumbs up, 2 thumbs down); left out: none")


@pytest.mark.parametrize("label", [True, False])
def test_thumbs_of_one_label_are_refused_before_anything_is_made(farm: Make, tmp_path: Path, label: bool) -> None:
    rows = [{"prompt": f"p{i}", "completion": f"c{i}", "label": label} for i in range(3)]
    with pytest.raises(ConfigError, match=f"all 3 thumbs are {'up' if label else 'down'}: add rows of the other label"):
        farm(preferences=write(tmp_path, *rows), method="thumbs").train("thumbs")


def test_a_run_on_thumbs_fits_no_reward_model_and_says_which_figures_it_lacks(farm: Make, tmp_path: Path) -> None:
    told: list[str] = []
    result = farm(preferences=thumbs(tmp_path), method="thumbs", notify=told.append).evaluate("thumbs")
    assert result.win_rate >= 0
    assert not any("fit-reward" in what for what in RAN)
    [said] = [note for note in told if "no reward model" in note]
    assert "so the figures of reward are left out" in said


@pytest.mark.parametrize("learner", ["direct", "nudge", "annotate"])
def test_what_learns_from_pairs_refuses_thumbs_and_names_the_methods_that_take_them(
    learner: str, farm: Make, tmp_path: Path
) -> None:
    one = farm(preferences=thumbs(tmp_path))
    with pytest.raises(ConfigError, match=r"(?s)unpaired feedback.*takes pairs.*--method thumbs learns from it"):
        one.annotate() if learner == "annotate" else one.train(learner)
    assert RAN == [], "before anything is trained"


def test_rows_that_are_evaluated_on_or_unlabelled_are_left_out_and_odd_labels_are_told(
    farm: Make, tmp_path: Path
) -> None:
    good = {"prompt": "p", "completion": "word", "label": True}
    bad = {**good, "label": False}
    source = write(tmp_path, good, bad, {**good, "label": None}, {**good, "prompt": "evaluation 1"})
    told: list[str] = []
    one = farm(preferences=source, notify=told.append)
    one.train("thumbs")
    summary = one.workspace.history["feedback"].artifact.meta["summary"]
    assert {name: summary[name] for name in ("rows", "rows_evaluated_on", "rows_unlabelled")} == {
        "rows": 2,
        "rows_evaluated_on": 1,
        "rows_unlabelled": 1,
    }
    assert any("1 output has thumbs of both kinds (2 rows): each counts" in note for note in told)
    with pytest.raises(
        ConfigError, match="all its preferences answer instructions that are evaluated on or have no lab"
    ):
        farm(preferences=write(tmp_path, {**good, "label": None})).train("thumbs")
