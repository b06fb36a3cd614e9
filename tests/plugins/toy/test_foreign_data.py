"""Data of another language than the toy world's: refused before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import ConfigError
from afarm.experiment.farm import Farm

OTHER_JUDGE = {"judge": "fitted", "evaluate": {"evaluators": ["win_rate"]}}
"""Nothing but the data set and the model is the toy world's then."""


def write(path: Path, task: str) -> dict[str, dict[str, Any]]:
    """Write files of one task in several words, and return the choices that name them."""
    nouns = ("cat", "dog", "fox", "goat", "fig", "plum", "oak", "drum")
    tasks = [task.format(noun) for noun in nouns]
    pairs = [{"prompt": text, "chosen": "it is soft.", "rejected": "no."} for text in tasks]
    rows = [{"instruction": text, "output": "it is soft."} for text in tasks]
    for name, content in (("pairs", pairs), ("rows", rows)):
        (path / f"{name}.json").write_text(json.dumps(content))
    pairs_file, rows_file = str(path / "pairs.json"), str(path / "rows.json")
    few = dict.fromkeys(("sft", "preference", "unlabeled", "validation", "evaluation"), "all")
    return {
        "preferences": {"preferences": pairs_file, "method": "dpo"},
        "eval_set": {"eval_set": rows_file, "rows": {"evaluation": len(nouns)}},
        "data": {"dataset": "files", "files": dict.fromkeys(few, rows_file), "rows": few},
    }


@pytest.mark.parametrize("named", ["preferences", "eval_set", "data"])
@pytest.mark.parametrize("choices", [{}, OTHER_JUDGE, {"dataset": "toy", "recipe": "toy-full"}])
def test_text_of_another_language_is_refused_and_the_recipe_for_it_named(
    named: str, choices: dict[str, Any], tmp_path: Path
) -> None:
    given = {**choices, **write(tmp_path, "What does one feed a {}?")[named]}
    if evaluate := choices.get("evaluate"):
        given["evaluate"] = evaluate
    with pytest.raises(ConfigError) as caught:
        Farm(**{"recipe": "toy", **given}, output_dir=tmp_path / "out")
    [problem] = caught.value.problems
    assert "the toy world does not know the instruction 'What does one feed a cat?'" in problem
    assert "afarm run --recipe smol --model MODEL" in problem
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("named", ["preferences", "eval_set"])
def test_its_own_language_is_taken(named: str, tmp_path: Path) -> None:
    given = write(tmp_path, "Give the opposite of round and tame, then describe the {}.")[named]
    Farm("toy", **given, output_dir=tmp_path / "out").close()
