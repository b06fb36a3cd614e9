"""The prompts of one's own preferences as instructions, a part of them held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import ConfigError, DataError
from afarm_plugins.datasets import PromptsConfig
from afarm_plugins.datasets.prompts import Prompts


def prompts(path: Path, count: int = 200, **settings: Any) -> Prompts:
    rows = [{"prompt": f"prompt {n}", "chosen": f"good {n}", "rejected": "bad"} for n in range(count)]
    rows += [{"prompt": "prompt 1", "chosen": "another good one", "rejected": "bad"}]
    rows += [{"prompt": "prompt", "chosen": "", "rejected": "bad"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    return Prompts(PromptsConfig(path=str(path), **settings))


def test_each_prompt_is_in_one_split_with_its_first_chosen_answer(tmp_path: Path) -> None:
    dataset = prompts(tmp_path / "own.jsonl")
    splits = {split: dataset.load(split) for split in ("unlabeled", "validation", "evaluation")}
    everything = [row.instruction.instruction for rows in splits.values() for row in rows]
    assert sorted(everything) == sorted(f"prompt {n}" for n in range(200))
    assert {row.output for row in splits["unlabeled"]} == {""}
    assert 25 < len(splits["evaluation"]) < 60
    assert all(row.output == row.instruction.instruction.replace("prompt", "good") for row in splits["evaluation"])
    assert {row.generator for row in splits["evaluation"]} == {"chosen"}


def test_demonstrations_are_chosen_answers_if_they_get_a_share(tmp_path: Path) -> None:
    dataset = prompts(tmp_path / "own.jsonl", shares={"sft": 0.8, "evaluation": 0.2})
    assert len(dataset.load("sft")) > 140
    with pytest.raises(DataError, match=r"'unlabeled' gets none.*--set prompts\.shares\.unlabeled=0\.2"):
        dataset.load("unlabeled")
    with pytest.raises(DataError, match="there is no split 'preferences'"):
        dataset.load("preferences")


def test_all_problems_of_the_settings_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Prompts(PromptsConfig(shares={"preference": 0.9, "evaluation": 0.2, "x": 0}))
    said = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 4
    for part in ("prompts.shares.x: no such split", "not exceed 1", "--preferences FILE", "leave it out"):
        assert part in said
    with pytest.raises(ConfigError, match=r"prompts\.path: nowhere\.jsonl: no such file"):
        Prompts(PromptsConfig(path="nowhere.jsonl"))
    assert Prompts(PromptsConfig(path="hf:owner/name")).remote


def test_prompts_of_unpaired_feedback_have_an_output_with_a_thumb_up_if_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "thumbs.jsonl"
    rows = [
        {"prompt": f"prompt {n % 20}", "completion": f"answer {n}", "label": n >= 20 and n % 2 == 0} for n in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    read = Prompts(PromptsConfig(path=str(path), shares={"evaluation": 1.0})).load("evaluation")
    assert {row.instruction.instruction: row.output for row in read} == {
        f"prompt {n}": "" if n % 2 else f"answer {n + 20}" for n in range(20)
    }
