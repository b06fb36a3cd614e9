"""Rankings of several answers, in every form that data sets have, are pairs of each answer with each that is worse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import DataError
from afarm.core.records import Instruction, Message
from afarm.storage.conversations import Unusable
from afarm.storage.labelled_pairs import own_preferences

ASK = "Name a colour."
BEST_FIRST = [("Red.", "Puce."), ("Red.", "Loud."), ("Puce.", "Loud.")]
USER = {"role": "user", "content": ASK}


def read(tmp_path: Path, *rows: dict[str, Any]) -> tuple[list[Any], Unusable]:
    path, unusable = tmp_path / "own.jsonl", Unusable()
    path.write_text("\n".join(map(json.dumps, rows)))
    return list(own_preferences(path, unusable)), unusable


def message(id: str, parent: str | None, text: str, role: str = "assistant", rank: int | None = None) -> dict[str, Any]:
    return {"message_id": id, "parent_id": parent, "text": text, "role": role, "rank": rank, "lang": "en"}


RANKINGS: dict[str, list[dict[str, Any]]] = {
    "Nectar": [
        {
            "prompt": f"\n\nHuman: {ASK}\n\nAssistant: ",
            "answers": [
                {"answer": text, "model": "m", "rank": rank}
                for text, rank in (("Loud.", 7.0), ("Red.", 1.0), ("Puce.", 2.0))
            ],
        }
    ],
    "UltraFeedback": [
        {
            "instruction": ASK,
            "completions": [
                {"response": "Puce.", "overall_score": 6.5, "fine-grained_score": 9},
                {"response": "Loud.", "overall_score": "1"},
                {"response": "Red.", "overall_score": 8},
                {"response": "of nobody's", "overall_score": None},
            ],
        }
    ],
    "distilabel": [{"instruction": ASK, "generations": ["Puce.", "Loud.", "Red."], "ratings": [3, 1.5, 5]}],
    "ranks beside": [{"prompt": ASK, "responses": ["Puce.", "Loud.", "Red."], "rank": [2, 3, 1]}],
    "messages": [
        {"messages": [USER], "completions": [{"role": "assistant", "content": c, "reward": r} for c, r in
                                             (("Puce.", 0.1), ("Loud.", -4), ("Red.", 2))]}
    ],
    "LLaMA-Factory": [{"instruction": ASK, "input": "", "output": ["Red.", "Puce.", "Loud."]}],
    "OpenAssistant": [
        message("a", "p", "Loud.", rank=2),
        message("p", None, ASK, "prompter"),
        message("b", "p", "Red.", rank=0),
        message("c", "p", "Puce.", rank=1),
        message("unranked", "p", "Grey."),
        {**message("taken back", "p", "Black.", rank=3), "deleted": True},
        message("q", "b", "Why?", "prompter", rank=0),
        message("alone", "q", "Because.", rank=0),
        message("not a number", "q", "So.", rank=float("nan")),  # type: ignore[arg-type]
        message("q2", "b", "Really?", "prompter", rank=1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", RANKINGS)
def test_each_answer_is_better_than_each_that_is_ranked_worse(form: str, tmp_path: Path) -> None:
    judged, unusable = read(tmp_path, *RANKINGS[form])
    assert sorted(row.chosen_rejected for row in judged) == sorted(BEST_FIRST)
    assert {row.pair.instruction for row in judged} == {Instruction(ASK)}
    assert unusable.rows == 0


def test_a_deeper_message_of_a_tree_has_the_turns_before_it_in_its_prompt(tmp_path: Path) -> None:
    further = [message("r", "q", "It is warm.", rank=1), message("s", "q", "No.", rank=2)]
    judged, _ = read(tmp_path, *RANKINGS["OpenAssistant"], *further)
    assert judged[-1].pair.instruction == Instruction(
        "Why?", messages=(Message("user", ASK), Message("assistant", "Red."))
    )
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, further)))
    with pytest.raises(
        DataError, match=r"row 0 \(line 1\): the message 'q' that it answers is not in the file: field 'prompt'"
    ):
        list(own_preferences(path))


def test_equal_ranks_are_draws_and_answers_without_any_are_not_guessed(tmp_path: Path) -> None:
    judged, unusable = read(
        tmp_path,
        {"prompt": ASK, "answers": [{"text": "a", "rank": 1}, {"text": "b", "rank": 1}, {"text": "c", "rank": 2}]},
        {"prompt": ASK, "generations": ["a", "b"]},
        {"prompt": ASK, "generations": ["a", "b"], "ratings": [1]},
        {"prompt": ASK, "answers": [{"text": "a", "rank": 1}, {"text": "b", "rank": "N/A"}]},
        {"prompt": ASK, "output": ["a"]},
    )
    assert [row.preference.outcome for row in judged] == ["draw", "decided", "decided"]
    assert unusable.rows == 4
    assert unusable.examples[0].endswith(
        "field 'generations' has 0 answers with a 'rank' (lower is better), a 'rating' or a 'score' (higher is "
        "better); a ranking needs two"
    )


def test_the_answers_may_be_a_message_each_behind_a_chat(tmp_path: Path) -> None:
    sides = {"chosen": {"from": "gpt", "value": "Red."}, "rejected": {"from": "gpt", "value": "Loud."}}
    texts = {"chosen": "Red.", "rejected": "Loud."}
    chat = [{"from": "human", "value": ASK}]
    judged, _ = read(
        tmp_path, {"conversations": chat, **sides}, {"messages": [USER], **sides}, {"messages": [USER], **texts}
    )
    assert {row.chosen_rejected for row in judged} == {("Red.", "Loud.")}
    assert {row.pair.instruction for row in judged} == {Instruction(ASK)}


def test_ratings_of_answers_are_scores_and_attributes_of_their_pairs(tmp_path: Path) -> None:
    aspects = [{"helpfulness": {"Rating": rating}, "truth": {"Rating": "N/A"}} for rating in ("5", "4")]
    ultra = {"prompt": ASK, "completions": [
        {"response": text, "overall_score": score, "annotations": aspect}
        for text, score, aspect in zip(("Red.", "Loud."), (8.5, 3), aspects, strict=True)
    ]}  # fmt: skip
    [judged], _ = read(tmp_path, ultra)
    assert sorted(judged.preference.scores) == [3, 8.5]
    [(name, *both)] = judged.preference.attributes
    assert (name, sorted(both)) == ("helpfulness", [4, 5])

    steer = [{"prompt": ASK, "response": text, "helpfulness": helpful, "verbosity": 1} for text, helpful in
             (("Red.", 4), ("Loud.", 2))]  # fmt: skip
    judged, _ = read(tmp_path, *steer, {**steer[0], "prompt": "alone"}, *[{**row, "prompt": "even"} for row in
                     (steer[0], {**steer[1], "helpfulness": 4})])  # fmt: skip
    assert [row.preference.outcome for row in judged] == ["decided", "draw"]
    assert judged[0].chosen_rejected == ("Red.", "Loud.")
    assert [sorted(name for name, *_ in row.preference.attributes) for row in judged] == [
        ["helpfulness", "verbosity"]
    ] * 2
    assert judged[1].preference.scores == (4, 4)
