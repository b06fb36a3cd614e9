"""Who judged, in words: of rows of labels, and of a protocol."""

from __future__ import annotations

from typing import Any

import pytest

from afarm.evaluation.protocol import EvaluationProtocol
from afarm.evaluation.who_judged import who_judged

REAL = "openai:gpt-4o"
OTHER = "openai-compatible:Qwen/Qwen3-8B@http://localhost:8000/v1"
FORMULA = "offline:gold@0123456789ab"
OWN = "acme:rule"
JUDGES = {REAL: False, OTHER: False, FORMULA: True, OWN: True}


def label(judge: str = "", member: str = "gpt4_1", **fields: Any) -> dict[str, Any]:
    return {"judge": judge, "member": member, "annotator": "pool", "completion": "key", "source": "judge", **fields}


@pytest.mark.parametrize(
    ("rows", "judges", "said"),
    [
        ([label(REAL), label(REAL)], JUDGES, "openai:gpt-4o with prompt gpt4_1"),
        ([label(REAL), label(REAL, "chatgpt_1")], JUDGES, "openai:gpt-4o with 2 prompts of pool"),
        ([label(OTHER)], JUDGES, f"{OTHER} with prompt gpt4_1"),
        ([label(f"local:qwen@{'a' * 12}")], {}, "local:qwen with prompt gpt4_1"),
        ([label(REAL, "")], JUDGES, "openai:gpt-4o with prompt pool"),
        ([label(FORMULA), label(FORMULA, "davinci003_2")], JUDGES, "the formula offline:gold"),
        ([label("fitted:people@0123456789ab")], {}, "the formula fitted:people"),
        ([label(OWN)], JUDGES, "the formula acme:rule"),
        ([label(FORMULA), label(REAL)], JUDGES, "openai:gpt-4o with prompt gpt4_1, the formula offline:gold"),
        ([label(REAL), label(OTHER)], JUDGES, f"{OTHER} with prompt gpt4_1, {REAL} with prompt gpt4_1"),
        ([label("", "jury")], {REAL: False, OTHER: False}, f"{OTHER} with prompt jury, {REAL} with prompt jury"),
        ([label("", "", annotator="crowd", completion="")], JUDGES, "crowd"),
        ([label("", "", annotator="fitted", completion="")], {}, "the formula fitted"),
        ([label("", "", annotator="alpaca_eval_gpt4", completion="")], {}, "alpaca_eval_gpt4"),
        ([label("", "", source="human", completion="")], JUDGES, "people"),
        ([label(source="noise"), label(source="rule")], JUDGES, ""),
        ([], JUDGES, ""),
    ],
)
def test_the_judge_is_named_before_its_prompt_and_a_formula_by_its_own_name(
    rows: list[dict[str, Any]], judges: dict[str, bool], said: str
) -> None:
    assert who_judged(rows, judges) == said


@pytest.mark.parametrize(
    ("judges", "said"),
    [
        ({"*": REAL}, "judged by openai:gpt-4o with annotator gpt4_4, against ref"),
        ({"*": FORMULA}, "judged by the formula offline:gold, against ref"),
        (
            {"strong": FORMULA, "light": REAL},
            "judged by openai:gpt-4o, the formula offline:gold with annotator gpt4_4, against ref",
        ),
        ({}, "judged by gpt4_4, against ref"),
    ],
)
def test_a_board_is_headed_by_its_judge(judges: dict[str, str], said: str) -> None:
    assert EvaluationProtocol("gpt4_4", judges=judges, reference="ref").sentence() == said
