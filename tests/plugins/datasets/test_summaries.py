"""Texts to summarise, in the forms that public data sets have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import DataError
from afarm_plugins.datasets import SummariesConfig
from afarm_plugins.datasets.summaries import Summaries


def summaries(path: Path, rows: list[dict[str, Any]], **settings: Any) -> Summaries:
    path.write_text("\n".join(map(json.dumps, rows)))
    return Summaries(SummariesConfig(path=str(path), **{"shares": {"sft": 1.0}, **settings}))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"post": "I lost it.", "summary": "Lost."}, "I lost it."),
        ({"article": "I lost it.", "highlights": "Lost."}, "I lost it."),
        ({"prompt": "POST: I lost it.\n\nTL;DR:", "completion": " Lost."}, "POST: I lost it."),
        ({"title": "A ring", "post": "I lost it.", "tldr": "Lost."}, "A ring\n\nI lost it."),
        (
            {
                "info": {"post": "I lost it.", "title": "A ring", "subreddit": "advice"},
                "summaries": [{"text": "A ring."}, {"text": "Lost."}],
                "choice": 1,
            },
            "A ring\n\nI lost it.",
        ),
    ],
)
def test_texts_are_the_input_of_one_task_and_summaries_the_output(
    row: dict[str, Any], text: str, tmp_path: Path
) -> None:
    [found] = summaries(tmp_path / "posts.jsonl", [row, {**row, "title": "A ring"}][:1], instruction="Sum up.").load(
        "sft"
    )
    assert (found.instruction.instruction, found.instruction.input, found.output) == ("Sum up.", text, "Lost.")


def test_texts_without_a_summary_are_prompts_and_no_demonstrations(tmp_path: Path) -> None:
    rows = [{"text": f"Text {n}."} for n in range(50)] + [{"text": " "}, {"text": "Text 3."}]
    dataset = summaries(tmp_path / "posts.jsonl", rows, shares={"sft": 0.5, "unlabeled": 0.5})
    assert 10 < len(dataset.load("unlabeled")) < 40
    with pytest.raises(DataError, match=r"'sft' gets none of its rows; give it a share \(--set summaries.shares.sft"):
        dataset.load("sft")


def test_fields_may_be_named_and_what_is_missing_is_said(tmp_path: Path) -> None:
    rows = [{"words": "I lost it.", "short": "Lost."}]
    [found] = summaries(tmp_path / "a.jsonl", rows, text="words", summary="short").load("sft")
    assert (found.instruction.input, found.output) == ("I lost it.", "Lost.")
    with pytest.raises(DataError, match=r"a\.jsonl: row 0.* has no text; its fields are 'words', 'short'"):
        summaries(tmp_path / "a.jsonl", rows).load("sft")
    with pytest.raises(DataError, match=r"has no field 'word'\. Did you mean 'words'"):
        summaries(tmp_path / "a.jsonl", rows, text="word").load("sft")
    with pytest.raises(DataError, match="field 'words' must be text, not int"):
        summaries(tmp_path / "a.jsonl", [{"words": 1}], text="words").load("sft")
