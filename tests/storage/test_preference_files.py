"""Preferences in every form that users have them, and what is wrong with a row said with how to mend it."""

from __future__ import annotations

import csv
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import SHARED_DATA

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair, Message, Pair, Preference, Row
from afarm.storage.conversations import Unusable, UnusableError
from afarm.storage.label_scales import LabelReader
from afarm.storage.labelled_pairs import PREFERENCES, own_preferences, read_row
from afarm.storage.rows import read_preferences

SYSTEM, USER, ASSISTANT = Message("system", "Be brief."), Message("user", "Hi."), Message("assistant", "Hello.")
ASK = "Name a colour."
HISTORY = "\n\nHuman: Hi.\n\nAssistant: Hello.\n\nHuman: Name a colour.\n\nAssistant:"


def judged_row(row: Row, where: str, name: str = "") -> JudgedPair:
    [judged] = read_row(row, where, LabelReader(where, "", name, average=True), PREFERENCES)
    return judged


def turns(*texts: str, roles: tuple[str, str] = ("user", "assistant"), names: tuple[str, str] = ("role", "content")):
    return [{names[0]: roles[n % 2], names[1]: text} for n, text in enumerate(texts)]


CHAT = ("Hi.", "Hello.", ASK)

FORMS: dict[str, dict[str, Any]] = {
    "TRL, texts": {"prompt": ASK, "chosen": "Red.", "rejected": "Loud."},
    "TRL, messages": {
        "prompt": turns(*CHAT),
        "chosen": [{"role": "assistant", "content": "Red."}],
        "rejected": [{"role": "assistant", "content": "Loud."}],
    },
    "TRL, implicit prompt": {"chosen": turns(*CHAT, "Red."), "rejected": turns(*CHAT, "Loud.")},
    "UltraFeedback": {"prompt": ASK, "chosen": turns(ASK, "Red."), "rejected": turns(ASK, "Loud."), "score_chosen": 8},
    "HH-RLHF": {"chosen": f"{HISTORY} Red.", "rejected": f"{HISTORY} Loud."},
    "HH-RLHF with the prompt apart": {"prompt": HISTORY, "chosen": " Red.", "rejected": " Loud."},
    "ShareGPT's names": {
        "chosen": turns(*CHAT, "Red.", roles=("human", "gpt"), names=("from", "value")),
        "rejected": turns(*CHAT, "Loud.", roles=("human", "gpt"), names=("from", "value")),
    },
    "a question": {"question": ASK, "system": "Be brief.", "chosen": "Red.", "rejected": "Loud."},
    "Alpaca's fields": {"instruction": ASK, "input": "warm", "chosen": "Red.", "rejected": "Loud.", "dataset": "d"},
    "AlpacaFarm": {"instruction": ASK, "input": "warm", "output_1": "Loud.", "output_2": "Red.", "preference": 2},
    "a transcript judged": {"instruction": HISTORY, "output_1": "Red.", "output_2": "Loud.", "preference": 1},
    "Chatbot Arena, chats": {
        "conversation_a": turns(ASK, "Loud."),
        "conversation_b": turns(ASK, "Red."),
        "winner": "model_b",
        "judge": "arena_user_7",
    },
    "Chatbot Arena, lists": {
        "prompt": json.dumps([ASK]),
        "response_a": json.dumps(["Red."]),
        "response_b": json.dumps(["Loud."]),
        "winner_model_a": 1,
        "winner_model_b": 0,
        "winner_tie": 0,
    },
    "LLMBar": {"input": ASK, "output_1": "Loud.", "output_2": "Red.", "label": 2},
}
MULTI_TURN = Instruction(ASK, messages=(USER, ASSISTANT))
WARM = Instruction(ASK, "warm")


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_the_same_preference(form: str) -> None:
    judged = judged_row(FORMS[form], "f: row 0", "me")
    assert judged.chosen_rejected == ("Red.", "Loud.")
    expected = {
        "TRL, texts": Instruction(ASK),
        "UltraFeedback": Instruction(ASK),
        "LLMBar": Instruction(ASK),
        "Chatbot Arena, chats": Instruction(ASK),
        "Chatbot Arena, lists": Instruction(ASK),
        "a question": Instruction(ASK, messages=(SYSTEM,)),
        "Alpaca's fields": Instruction(ASK, "warm", "d"),
        "AlpacaFarm": WARM,
    }
    assert judged.pair.instruction == expected.get(form, MULTI_TURN)
    assert judged.annotator == "me"


@pytest.mark.parametrize(
    ("further", "agrees"),
    [
        ({"preference": 2}, False),
        ({"preference": "2.0"}, False),
        ({"preference": 0}, False),
        ({"preference": 1}, True),
        ({"preference": None}, True),
        ({"preference": "harmless"}, True),
        ({"output_1": "Loud.", "output_2": "Red.", "preference": 1}, False),
        ({"output_1": "Loud.", "output_2": "Red.", "preference": 2}, True),
        ({"output_1": "of another", "output_2": "pair", "preference": 2}, True),
    ],
)
def test_chosen_and_rejected_beside_a_preference_that_says_otherwise_are_refused(further: Row, agrees: bool) -> None:
    row = {**FORMS["TRL, texts"], **further}
    if agrees:
        assert judged_row(row, "f: row 0").chosen_rejected == ("Red.", "Loud.")
        return
    with pytest.raises(UnusableError, match=r"f: row 0: field 'preference' is .*, which contradicts 'chosen'"):
        judged_row(row, "f: row 0")


@pytest.mark.parametrize(
    ("further", "read"),
    [
        ({"score_chosen": 8, "score_rejected": 3}, "decided"),
        ({"score_chosen": 5, "score_rejected": 5.0}, "draw"),
        (
            {"chosen_rating": "3", "rejected_rating": "7"},
            "'chosen_rating' is 3 and 'rejected_rating' 7, which contradicts",
        ),
        ({"rating_chosen": 4, "rating_rejected": 4}, "draw"),
        ({"chosen_reward": -1.5, "rejected_reward": 0.5}, "'chosen_reward' is -1.5 and 'rejected_reward' 0.5, which"),
        ({"chosen_rank": 2, "rejected_rank": 1}, "'chosen_rank' is 2 and 'rejected_rank' 1, which contradicts"),
        ({"chosen_rank": 1, "rejected_rank": 2}, "decided"),
        ({"chosen_avg_score": 2, "rejected_avg_score": 2, "chosen_score": 3, "rejected_score": 1}, "draw"),
        ({"score_chosen": 5, "score_rejected": None}, "decided"),
        ({"score_chosen": float("nan"), "score_rejected": 7}, "decided"),
        ({"chosen-rating": 4.0, "rejected-rating": 5.0}, "'chosen-rating' is 4 and 'rejected-rating' 5, which"),
        ({"chosenScore": 4.0, "rejectedScore": 4}, "draw"),
        ({"chosen_length": 3, "rejected_length": 9, "chosen_score": 4}, "decided"),
        ({"status": "tie", "rating": [9.0, 9.0]}, "draw"),
        ({"status": "unchanged"}, "decided"),
        ({"winner": "Tie (bothbad)"}, "draw"),
        ({"preference": "tie"}, "draw"),
        ({"label": "draw"}, "draw"),
        ({"outcome": "draw"}, "draw"),
        ({"status": "equal"}, "draw"),
        ({"winner": "rejected"}, "'winner' is 'rejected', which contradicts"),
        ({"margin": -2}, "'margin' is -2, which contradicts 'chosen' and 'rejected'; leave out what is wrong"),
        ({"score_diff": "-0.5"}, "'score_diff' is -0.5, which contradicts"),
        ({"rank_delta": 1}, "'rank_delta' is 1, which contradicts"),
        ({"reward_margin": 0.0}, "draw"),
        ({"margin": 2}, "decided"),
        ({"length_margin": -2}, "decided"),
        ({"scores": [3, 8]}, r"'scores\[0\]' is 3 and 'scores\[1\]' 8, which contradicts"),
        ({"scores": [3, 8], "generations": ["Loud.", "Red. "]}, "decided"),
        ({"scores": [8, 3], "generations": ["Loud.", "Red. "]}, r"'scores\[0\]' is 8 and 'scores\[1\]' 3, which"),
        ({"rating": [3, 8], "order": ["rejected", "chosen"]}, "decided"),
        # as distilabel's are that it swapped: `order` is by what was chosen before
        ({"rating": [3, 8], "order": ["chosen", "rejected"], "generations": ["Loud.", "Red."]}, "decided"),
        (
            {"rating": [8, 3], "order": ["rejected", "chosen"]},
            r"'rating\[chosen\]' is 3 and 'rating\[rejected\]' 8, which",
        ),
        ({"score_1": 3, "score_2": 8}, "'score_1' is 3 and 'score_2' 8, which contradicts"),
        ({"score_1": 3, "score_2": 8, "output_1": "Loud.", "output_2": "Red."}, "decided"),
        ({"score_1": 3, "score_2": 8, "output_1": "of another", "output_2": "pair"}, "decided"),
    ],
)
def test_scores_and_ties_beside_chosen_and_rejected_are_heeded(further: Row, read: str) -> None:
    row = {**FORMS["TRL, texts"], **further}
    if read in ("decided", "draw"):
        judged = judged_row(row, "f: row 0")
        assert judged.preference.outcome == read
        assert judged.chosen_rejected == (None if read == "draw" else ("Red.", "Loud."))
        assert JudgedPair.from_row(judged.to_row()).preference.outcome == read
    else:
        with pytest.raises(UnusableError, match=f"f: row 0: {read}"):
            judged_row(row, "f: row 0")


ANSWERS = {"instruction": ASK, "output_1": "Red.", "output_2": "Loud."}
JUDGED = {
    "chosen and rejected": FORMS["TRL, texts"],
    "a label": {**ANSWERS, "preference": 1},
    "a label by words": {"prompt": ASK, "response_1": "Red.", "response_2": "Loud.", "label": "1"},
    "a vote": {**FORMS["Chatbot Arena, lists"], "model_a": "x", "model_b": "y"},
}


@pytest.mark.parametrize(
    ("further", "is_final"),
    [
        ({"status": "discarded"}, False),
        ({"status": "Pending"}, False),
        ({"status": "in progress"}, False),
        ({"status": "rejected"}, False),
        ({"annotation_status": "to be reviewed"}, False),
        ({"preference.responses.status": ["discarded", "draft"]}, False),
        ({"preference.responses.status": ["discarded", "submitted"]}, True),
        ({"was_cancelled": True}, False),
        ({"was_cancelled": False}, True),
        ({"skipped": "True"}, False),
        ({"deleted": True}, False),
        ({"completed": False}, False),
        ({"status": "completed"}, True),
        ({"status": "Validated"}, True),
        ({"status": "swapped"}, True),
        ({"status": ""}, True),
        ({"status": None}, True),
        ({"status": 200}, True),
        ({"draft": "a text"}, True),
        ({"ignored": ["a", "b"]}, True),
    ],
)
@pytest.mark.parametrize("form", JUDGED)
def test_a_row_that_says_it_is_not_final_is_no_verdict(form: str, further: Row, is_final: bool) -> None:
    if is_final:
        assert judged_row({**JUDGED[form], **further}, "f: row 0").chosen_rejected == ("Red.", "Loud.")
        return
    [name] = further
    with pytest.raises(UnusableError, match=rf"f: row 0: '{name}' is .*, so the label is not final; take the row out"):
        judged_row({**JUDGED[form], **further}, "f: row 0")


def test_a_row_without_a_verdict_need_not_be_final() -> None:
    assert judged_row({**ANSWERS, "preference": None, "status": "pending"}, "").preference.outcome == "unparsed"


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ({"score_1": 2, "score_2": 9.5}, "'score_1' is 2 and 'score_2' 9.5"),
        ({"score_1": 9.5, "score_2": 2}, ""),
        ({"score_1": 4, "score_2": 4}, "'score_1' is 4 and 'score_2' 4"),
        ({"scoreA": "2", "scoreB": "9"}, "'scoreA' is 2 and 'scoreB' 9"),
        ({"output_1_rating": 1, "output_2_rating": 3}, "'output_1_rating' is 1 and 'output_2_rating' 3"),
        ({"reward_0": 1, "reward_1": 3}, "'reward_0' is 1 and 'reward_1' 3"),
        ({"rank_left": 2, "rank_right": 1}, "'rank_left' is 2 and 'rank_right' 1"),
        ({"score_chosen": 1, "score_rejected": 3}, "'score_chosen' is 1 and 'score_rejected' 3"),
        ({"scores": [2, 9]}, r"'scores\[0\]' is 2 and 'scores\[1\]' 9"),
        ({"scores": "[2, 9]"}, r"'scores\[0\]' is 2 and 'scores\[1\]' 9"),
        ({"scores": {"model_a": 2, "model_b": 9}}, r"'scores\[model_a\]' is 2 and 'scores\[model_b\]' 9"),
        ({"scores": [9, 2]}, ""),
        ({"scores": [2, 9, 1]}, ""),
        ({"scores": [2, None]}, ""),
        ({"scores": "[" * 100_000}, ""),
        ({"scores": [2, 9], "order": [{"a": 1}, None]}, ""),
        ({"length_1": 2, "length_2": 9, "score_a": 3, "margin": "wide"}, ""),
        ({"winner": "model_b"}, "'winner' is 'model_b'"),
        ({"winner": "response_1"}, ""),
        ({"outcome": "tie"}, "'outcome' is 'tie'"),
        ({"status": "equal"}, "'status' is 'equal'"),
    ],
)
def test_scores_and_winners_that_contradict_the_label_are_named(further: Row, said: str) -> None:
    for form in ("a label", "a label by words"):
        row = {**JUDGED[form], **further}
        if not said:
            assert judged_row(row, "f: row 0").chosen_rejected == ("Red.", "Loud.")
            continue
        with pytest.raises(UnusableError, match=rf"f: row 0: {said}, which contradicts '(preference|label)' "):
            judged_row(row, "f: row 0")


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\u2028", "\u2029", "\x85", "\v", "\f"])
def test_transcripts_are_split_whatever_their_line_ends(end: str) -> None:
    history = HISTORY.replace("\n", end)
    chats = {"chosen": f"{history} Red.", "rejected": f"{history} Loud."}
    for row in (
        chats,
        {"prompt": ASK, **chats},
        {"prompt": f" {ASK}{end}", **chats},
        {"prompt": history, "chosen": "Red.", "rejected": "Loud."},
    ):
        assert judged_row(row, "f: row 0").chosen_rejected == ("Red.", "Loud.")
        assert judged_row(row, "f: row 0").pair.instruction == MULTI_TURN
    alone = [f"Human: {ASK}{end}Assistant: {text}" for text in ("Red.", "Loud.")]
    with pytest.raises(UnusableError, match="holds the prompt too, as a transcript"):
        judged_row({"prompt": ASK, "chosen": alone[0], "rejected": alone[1]}, "f: row 0")
    said = f"{history} Red.{end}Human: that is no turn, as no line is blank"
    assert judged_row({**chats, "chosen": said}, "f: row 0").pair.instruction == MULTI_TURN


@pytest.mark.parametrize("marks", [("Human:", "Assistant:"), ("User:", "Bot:"), ("Q:", "A:"), ("[Human]:", "[AI]:")])
def test_a_transcript_that_is_not_read_as_one_is_no_answer_to_its_own_prompt(marks: tuple[str, str]) -> None:
    chats = [f"{marks[0]} {ASK}\n{marks[1]} {text}" for text in ("Red.", "Loud.")]
    with pytest.raises(UnusableError, match="row 0: field 'chosen': holds the prompt too, as a transcript; write the"):
        judged_row({"prompt": ASK, "chosen": chats[0], "rejected": chats[1]}, "f: row 0")
    asked = {"prompt": "One line\r\nand a café", "rejected": "\n\nHuman: no\n\nAssistant: Loud."}
    with pytest.raises(UnusableError, match="holds the prompt too"):
        judged_row({**asked, "chosen": f"{marks[0]} One line\nand a cafe\u0301\n{marks[1]} Red."}, "f: row 0")
    said = f"{ASK} That is easy:\n{marks[1]} Red."
    judged = judged_row({"prompt": ASK, "chosen": said, "rejected": "Loud."}, "f: row 0")
    assert judged.chosen_rejected == (said, "Loud.")


@pytest.mark.parametrize("name", ["response_", "response", "output_"])
def test_outputs_numbered_from_0_are_not_read_as_the_two_numbered_1_and_2(name: str) -> None:
    row = {"prompt": "p", f"{name}0": "x", f"{name}1": "y", f"{name}2": "z", "label": 1}
    with pytest.raises(DataError, match=f"field '{name}0' is an output too; call the two compared {name}1 and"):
        judged_row(row, "f.jsonl: row 7")


def test_the_better_output_is_first_as_often_as_second() -> None:
    rows = [{"prompt": f"p{n}", "chosen": "a good one", "rejected": "bad"} for n in range(400)]
    judged = [judged_row(row, "") for row in rows]
    assert all(row.chosen_rejected == ("a good one", "bad") for row in judged)
    assert 160 < sum(row.p2 == 1 for row in judged) < 240
    assert judged == [judged_row(row, "") for row in rows], "and always the same one"


@pytest.mark.parametrize(
    ("votes", "win"),
    [
        ((1, 1, 2), 1 / 3),
        ((2, 2, 2), 1.0),
        ((1, 1, 0), 1 / 6),
        ((1, 2, 0), None),
        ((0, 0, 0), None),
        (("2", "", None), 1),
    ],
)
def test_several_peoples_labels_become_their_mean(votes: tuple[Any, ...], win: float | None) -> None:
    labels = {f"annotator{n}": vote for n, vote in enumerate(votes, start=1)}
    judged = judged_row({"instruction": "i", "response1": "x", "response2": "y", **labels}, "f: row 0")
    assert (judged.preference.outcome, judged.preference.source) == ("draw" if win is None else "decided", "human")
    assert judged.p2 == pytest.approx(win) if win is not None else judged.p2 is None


CHATS = FORMS["Chatbot Arena, chats"]
LISTS = FORMS["Chatbot Arena, lists"]


@pytest.mark.parametrize(
    ("row", "p2"),
    [
        ({**CHATS, "winner": "model_a"}, 0.0),
        ({**CHATS, "winner": "tie"}, None),
        ({**CHATS, "winner": "tie (bothbad)"}, None),
        ({**CHATS, "winner": "both_bad"}, None),
        ({**CHATS, "conversation_a": json.dumps(CHATS["conversation_a"])}, 1.0),
        ({**LISTS, "winner_model_a": "0", "winner_model_b": "1", "winner_tie": "0"}, 1.0),
        ({**LISTS, "winner_model_a": 0.0, "winner_tie": 1.0}, None),
        ({**LISTS, "response_b": LISTS["response_a"]}, None),
        ({**LISTS, "prompt": "[sic] no list", "response_a": "Red.", "response_b": ["Loud."]}, 0.0),
    ],
)
def test_a_vote_of_the_arena_says_which_model_won(row: dict[str, Any], p2: float | None) -> None:
    judged = judged_row({**row, "model_a": "llama", "model_b": "gpt"}, "f: row 0")
    assert (judged.p2, judged.preference.outcome) == (p2, "draw" if p2 is None else "decided")
    assert (judged.pair.generator_1, judged.pair.generator_2) == ("llama", "gpt")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({**LISTS, "response_b": "[null]"}, "field 'response_b' must be a list of texts"),
        ({**LISTS, "response_b": '["a", "b"]'}, "field 'response_b' has 2 answers to 1 prompts"),
        ({**LISTS, "response_b": '[" "]'}, r"turn 1 \(assistant\) is empty"),
        ({**LISTS, "winner_model_a": 0}, "one of winner_model_a, winner_model_b, winner_tie must be 1, and 0 are"),
        (
            {**CHATS, "conversation_a": turns("a", "b", "c", "d"), "conversation_b": turns("a", "x", "c", "d")},
            "a vote on two chats of 2 answers each, which share no prompt",
        ),
        ({**CHATS, "conversation_a": turns(ASK)}, "must end with the assistant's turn"),
    ],
)
def test_a_vote_that_cannot_be_learned_from_is_left_out(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnusableError, match=problem):
        judged_row(row, "f: row 0")


@pytest.mark.parametrize(
    ("label", "p2", "outcome"),
    [
        *((1, 0, "decided"), (2.0, 1, "decided"), (1.25, 0.25, "decided"), ("2", 1, "decided")),
        *((1.5, None, "draw"), (0, None, "draw"), (None, None, "unparsed"), (float("nan"), None, "unparsed")),
    ],
)
def test_labels_are_alpaca_evals(label: Any, p2: float | None, outcome: str) -> None:
    row = {"instruction": "i", "output_1": "x", "output_2": "y", "preference": label}
    judged = judged_row(row, "f: row 0")
    assert (judged.p2, judged.preference.outcome) == (p2, outcome)


def test_afarms_own_preferences_are_read_as_they_are(tmp_path: Path) -> None:
    pair = Pair(Instruction("i", messages=(USER, ASSISTANT)), "x", "", 2, "a", "b")
    own = JudgedPair(pair, Preference(pair.id, 0.25, source="noise", member="m"), "pool")
    (tmp_path / "p.jsonl").write_text(json.dumps(own.to_row()))
    assert list(own_preferences(tmp_path / "p.jsonl")) == [own] == read_preferences(tmp_path / "p.jsonl")


def test_equal_outputs_are_a_draw_and_repeats_keep_their_labels(tmp_path: Path) -> None:
    row = {"prompt": "p", "chosen": "x", "rejected": "y"}
    rows = [row, row, {**row, "chosen": "y", "rejected": "x"}, {**row, "rejected": "x"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    judged = list(own_preferences(tmp_path / "p.jsonl"))
    assert [j.chosen_rejected for j in judged] == [("x", "y"), ("x", "y"), ("y", "x"), None]
    assert (judged[3].preference.outcome, judged[3].preference.source) == ("draw", "rule")
    assert len({j.preference.pair_id for j in judged}) == 4
    assert all(j.preference.pair_id == j.pair.id for j in judged)


def notes_on(path: Path, *rows: dict[str, Any]) -> list[str]:
    path.write_text("\n".join(map(json.dumps, rows)))
    notes: list[str] = []
    assert len(list(own_preferences(path, notes=notes))) == len(rows), "odd labels are labels"
    return [note.removeprefix(f"{path}: ") for note in notes]


def test_pairs_labelled_both_ways_are_counted_however_their_outputs_stand(tmp_path: Path) -> None:
    def row(task: str, first: str, second: str, label: float) -> dict[str, Any]:
        return {"instruction": task, "output_1": first, "output_2": second, "preference": label}

    rows = [
        *(row("as it is", "x", "y", 1), row("as it is", "x", "y", 2)),
        *(row("swapped", "x", "y", 1), row("swapped", "y", "x", 1), row("swapped", "x", "y", 1)),
        *(row("agreed", "x", "y", 1), row("agreed", "y", "x", 2)),
        *(row("drawn", "x", "y", 1), row("drawn", "x", "y", 0)),
        row("once", "x", "y", 1.25),
    ]
    said = "4 pairs are labelled more than once, 2 of them with opposite labels (5 rows): each label counts as one"
    assert notes_on(tmp_path / "p.jsonl", *rows) == [said]
    numbered = [{**row("own numbers", "x", "y", n + 1), "occurrence": n} for n in range(2)]
    assert "1 pair is labelled more than once, 1 of them with" in notes_on(tmp_path / "p.jsonl", *numbered)[0]
    sides = ({"prompt": "p", "chosen": a, "rejected": b} for a, b in ("xy", "yx"))
    assert "1 of them with opposite labels (2 rows)" in notes_on(tmp_path / "p.jsonl", *sides)[0]
    assert notes_on(tmp_path / "p.jsonl", rows[0], *rows[5:6]) == []


def test_labels_that_all_prefer_one_side_are_told(tmp_path: Path) -> None:
    def rows(*labels: float) -> list[dict[str, Any]]:
        return [
            {"instruction": f"i{n}", "output_1": "x", "output_2": "y", "preference": label}
            for n, label in enumerate(labels)
        ]

    [note] = notes_on(tmp_path / "p.jsonl", *rows(*[1] * 11, 1.25, 0))
    assert note == (
        "all 12 labels prefer the first output: unless the better one was put there on purpose, they are wrong"
    )
    assert "prefer the second output" in notes_on(tmp_path / "p.jsonl", *rows(*[2] * 10))[0]
    assert notes_on(tmp_path / "p.jsonl", *rows(*[1] * 9)) == [], "which happens by chance"
    assert notes_on(tmp_path / "p.jsonl", *rows(*[1] * 11, 2)) == []
    trl = [{"prompt": f"p{n}", "chosen": "x", "rejected": "y"} for n in range(12)]
    assert notes_on(tmp_path / "p.jsonl", *trl) == [], "whose columns say it on purpose"


def test_a_table_has_chats_as_json(tmp_path: Path) -> None:
    with (tmp_path / "p.csv").open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["chosen", "rejected"])
        writer.writerow([json.dumps(turns(*CHAT, "Red.")), json.dumps(turns(*CHAT, "Loud."))])
        writer.writerow([json.dumps(turns(*CHAT, "Red.")), json.dumps(turns("Loud."))])
    rows = own_preferences(tmp_path / "p.csv")
    assert next(rows).pair.instruction == MULTI_TURN
    with pytest.raises(UnusableError, match=r"p\.csv: line 3: field 'rejected': must end with the assistant's turn"):
        next(rows)


CODE = '[{"id": 1}, {"id": 2}]'
BROKEN = '[{"role": "user", "content": "cut o'


@pytest.mark.parametrize("text", [CODE, "[{x}]", "[{", '[{"id": 1', "[ { not JSON", 'As JSON: [{"role": "user"}]'])
def test_a_text_that_only_looks_like_json_is_a_text(text: str, tmp_path: Path) -> None:
    with (tmp_path / "p.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([["prompt", "chosen", "rejected"], [text, text, "no"], ["p", "yes", text]])
    pairs = list(own_preferences(tmp_path / "p.csv"))
    assert [judged.chosen_rejected for judged in pairs] == [(text, "no"), ("yes", text)]
    assert pairs[0].pair.instruction == Instruction(text)


@pytest.mark.parametrize("write", [json.dumps, repr])
def test_a_chat_written_as_text_is_a_chat_in_any_format(write: Callable[[Any], str], tmp_path: Path) -> None:
    chats = {"chosen": write(turns(*CHAT, "Red.")), "rejected": write(turns(*CHAT, "Loud."))}
    assert judged_row(chats, "f: row 0").pair.instruction == MULTI_TURN
    assert judged_row({**chats, "prompt": write(turns(*CHAT))}, "f: row 0").pair.instruction == MULTI_TURN
    texts = {"prompt": "p", "chosen": "a", "rejected": "b"}
    for field in texts:
        with pytest.raises(UnusableError, match=f"field '{field}': begins like a list of messages and is none that"):
            judged_row({**texts, field: BROKEN}, "f: row 0")


def test_an_input_beside_a_prompt_goes_below_it() -> None:
    for row in ({"prompt": ASK}, {"question": ASK}, {"instruction": ASK}, {"prompt": turns(ASK)}):
        for answers in ({"chosen": "a", "rejected": "b"}, {"output_1": "a", "output_2": "b", "preference": 1}):
            judged = judged_row({**row, **answers, "input": "warm"}, "f: row 0")
            assert judged.pair.instruction == WARM, row
    alone = {"input": ASK, "chosen": "a", "rejected": "b"}
    assert judged_row(alone, "f: row 0").pair.instruction == Instruction(ASK), "LLMBar's is the prompt"


@pytest.mark.parametrize(
    "turn",
    [{"role": "tool", "content": "42"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
)
def test_turns_of_tools_are_not_learned_from(turn: dict[str, Any]) -> None:
    start = [*turns("a"), turn]
    row = {side: [*start, {"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
    with pytest.raises(
        UnusableError, match=r"f: row 7: field 'chosen': turn 1: is a tool's or calls one; take the row"
    ):
        judged_row(row, "f: row 7")


def test_contents_in_parts_of_text_are_joined() -> None:
    ask = {"role": "user", "content": [{"type": "text", "text": ASK}]}
    row = {side: [ask, {"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
    assert judged_row(row, "f: row 0").pair.instruction == Instruction(ASK)


def test_an_input_that_a_data_frame_left_empty_is_none() -> None:
    row = {"prompt": ASK, "input": float("nan"), "chosen": "Red.", "rejected": "Loud."}
    assert judged_row(row, "f: row 0").pair.instruction == Instruction(ASK)


def test_equal_outputs_are_a_draw_whatever_their_label() -> None:
    row = {"instruction": "i", "output_1": "same", "output_2": "same", "preference": 1}
    preference = judged_row(row, "f: row 0").preference
    assert (preference.outcome, preference.source, preference.p2) == ("draw", "rule", None)


def test_memory_holds_no_rows_that_were_read(tmp_path: Path) -> None:
    """100,000 rows of 1.4 KB take 6 s and what their digests need; measured in docs/notes/benchmarks.md."""
    path = tmp_path / "many.jsonl"
    with path.open("w") as handle:
        for n in range(4000):
            handle.write(json.dumps({"prompt": f"p{n}", "chosen": "x" * 2000, "rejected": f"{n}" * 500}) + "\n")
    next(iter(own_preferences(path)))  # what is imported once
    tracemalloc.start()
    assert sum(1 for _ in own_preferences(path)) == 4000
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4_000_000 < path.stat().st_size / 3


# ----------------------------------------------------------------------------------- rows that cannot be learned from

UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "an empty answer": (
        {"prompt": "p", "chosen": " ", "rejected": "y"},
        "field 'chosen': turn 1 (assistant) is empty; write its text, or take the row out",
    ),
    "an empty turn": (
        {"chosen": turns("a", "", "b", "c"), "rejected": turns("a", "", "b", "d")},
        "field 'chosen': turn 1 (assistant) is empty; write its text, or take the row out",
    ),
    "an empty prompt": (
        {"prompt": "", "chosen": "x", "rejected": "y"},
        "field 'prompt' is empty; write the prompt, or take the row out",
    ),
    "a blank instruction": (
        {"instruction": " ", "output_1": "x", "output_2": "y", "preference": 1},
        "field 'instruction' is blank; write the prompt, or take the row out",
    ),
    "one role twice": (
        {"chosen": f"{HISTORY} Red.\n\nAssistant: Blue.", "rejected": f"{HISTORY} Loud."},
        "field 'chosen': turn 4 is the assistant's after the assistant's; let user and assistant alternate (join "
        "neighbours of one role), after one system turn at most",
    ),
    "a late system turn": (
        {"chosen": [*turns("a"), {"role": "system", "content": "s"}, *turns("x", roles=("assistant", ""))]}
        | {"rejected": turns("a", "y")},
        "field 'chosen': turn 1 is the system's after the user's; let user and assistant alternate (join neighbours of "
        "one role), after one system turn at most",
    ),
    "no user": (
        {"chosen": turns("x", roles=("assistant", "user")), "rejected": turns("y", roles=("assistant", "user"))},
        "field 'chosen': begins with the assistant's turn; put the user's before it",
    ),
    "no answer": (
        {"chosen": turns("a"), "rejected": turns("a", "y")},
        "field 'chosen': must end with the assistant's turn, which is the answer",
    ),
    "prompts that differ": (
        {"chosen": turns("a", "b", "c", "x"), "rejected": turns("a", "B", "c", "y")},
        "'chosen' and 'rejected' differ in turn 1, before their last answer; give both the same prompt",
    ),
    "chats of other lengths": (
        {"chosen": turns("a", "x"), "rejected": turns("a", "x", "c", "y")},
        "'chosen' and 'rejected' differ in turn 1, before their last answer; give both the same prompt",
    ),
    "another prompt apart": (
        {"prompt": "p", "chosen": turns("a", "x"), "rejected": turns("a", "y")},
        "field 'chosen': holds a whole chat without the prompt of field 'prompt'; let them agree, or take the column "
        "'prompt' out",
    ),
    "a number for a prompt": (
        {"prompt": 3, "chosen": "x", "rejected": "y"},
        "field 'prompt' must be text or a list of messages, not int",
    ),
    "no answer at all": (
        {"prompt": "p", "chosen": None, "rejected": "y"},
        "field 'chosen' must be text or a list of messages, not NoneType",
    ),
    "a prompt that is null": (
        {"prompt": None, "chosen": "x", "rejected": "y"},
        "field 'prompt' is empty; write the prompt, or take the row out",
    ),
    "an instruction that is null": (
        {"instruction": None, "output_1": "x", "output_2": "y", "preference": 1},
        "field 'instruction' is null; write the prompt, or take the row out",
    ),
    "an input that is a number": (
        {"instruction": "i", "input": 3.5, "chosen": "x", "rejected": "y"},
        "field 'instruction': field 'input' must be text, not float",
    ),
    "content that is null": (
        {"chosen": turns("a", None), "rejected": turns("a", "y")},  # type: ignore[arg-type]
        "field 'chosen': turn 1: 'content' is null; write its text, or take the row out",
    ),
    "an output that is no text": (
        {"instruction": "i", "response1": True, "response2": "y", "annotator1": 1},
        "field 'response1' must be text, not bool; write it in quotes",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_row_that_cannot_be_learned_from_says_why_and_how_to_mend_it(case: str) -> None:
    row, said = UNUSABLE[case]
    with pytest.raises(UnusableError) as caught:
        judged_row(row, "f.jsonl: row 7")
    place, _, rest = str(caught.value).partition("f.jsonl: row 7: ")
    assert (place, rest) == ("", said)


def test_such_rows_are_counted_with_the_first_of_each_kind(tmp_path: Path) -> None:
    good = {"prompt": "p", "chosen": "x", "rejected": "y"}
    rows = [good, UNUSABLE["an empty answer"][0], good, UNUSABLE["an empty turn"][0], UNUSABLE["no answer"][0]]
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    left_out = Unusable()
    assert len(list(own_preferences(path, left_out))) == 2
    assert left_out.rows == 3
    assert [example.partition(": row ")[2][0] for example in left_out.examples] == ["1", "4"]
    with pytest.raises(UnusableError, match=r"row 1 \(line 2\): field 'chosen'"):
        list(own_preferences(path))


# ------------------------------------------------------------------------------------------------ files of other shape

NO_PREFERENCE: dict[str, tuple[dict[str, Any], str]] = {
    "a label of other values": (
        {"instruction": "i", "output_1": "x", "output_2": "y", "preference": "left"},
        "field 'preference' is 'left'; a label is 1 or 2 for the better output",
    ),
    "a label out of range": (
        {"instruction": "i", "response1": "x", "response2": "y", "annotator2": 3},
        "field 'annotator2' is 3; a label is 1 or 2 for the better output",
    ),
    "a label of many digits": (
        {"instruction": "i", "output_1": "x", "output_2": "y", "preference": 10**400},
        f"field 'preference' is 1{'0' * 79}…; a label is 1 or 2",
    ),
    "a truth as a label": (
        {"instruction": "i", "output_1": "x", "output_2": "y", "label": True},
        "field 'label' is True; a label is 1 or 2",
    ),
    "annotations without labels": (
        {"instruction": "i", "output_1": "x", "output_2": "y"},
        "has no label; call its column 'preference', with 1 or 2 for the better output",
    ),
    "annotations without outputs": (
        {"instruction": "i", "preference": 1},
        "its fields are 'instruction', 'preference'. These look like instructions without outputs: put a better and a",
    ),
    "outputs": (
        {"instruction": "i", "output": "x"},
        "one system's outputs: put a better and a worse answer to each into 'chosen' and 'rejected'; as demonstrations "
        "they train by afarm sft --data f.jsonl",
    ),
    "unpaired feedback": (
        {"prompt": "p", "completion": "x", "label": True},
        "These look like unpaired feedback (TRL's KTO)",
    ),
    "chats": ({"messages": turns("a", "b")}, "These look like demonstrations"),
    "a leaderboard": ({"name": "x", "win_rate": 3.0}, "These look like a leaderboard: afarm leaderboard f.jsonl"),
    "anything": ({"a": 1}, "is no preference, which has prompt, chosen, rejected (or whole chats in the two)"),
    "texts without a prompt": (
        {"chosen": "The sky is blue.", "rejected": "The sky is loud."},
        "field 'chosen' is a text without turns, and the row has no prompt; add the column 'prompt'",
    ),
    "a role unknown": (
        {"chosen": turns("a", "b", roles=("usr", "assistant")), "rejected": turns("a", "c")},
        "field 'chosen': turn 0: 'role' is 'usr'; it must be system, user or assistant. Did you mean 'user'?",
    ),
    "content of parts": (
        {"chosen": [{"role": "user", "content": [{"text": "a"}]}], "rejected": turns("a", "c")},
        "field 'chosen': turn 0: 'content' must be text, not list",
    ),
    "capitals": (
        {"Prompt": "p", "Chosen": "x", "Rejected": "y"},
        "These look like preferences to train on, in TRL's form: afarm fit-reward --preferences f.jsonl, if its names "
        "were in lower case: rename them",
    ),
    "a winner of another name": (
        {"conversation_a": turns("a", "b"), "conversation_b": turns("a", "c"), "winner": "left"},
        "field 'winner' is 'left'; it must be one of model_a, model_b, tie, tied, draw, equal, tie (bothbad)",
    ),
    "another column for the label": (
        {"instruction": "i", "output_1": "x", "output_2": "y", "winner": "a"},
        "has no label; call its column 'preference', with 1 or 2 for the better output (other words by --labels",
    ),
}


@pytest.mark.parametrize("case", NO_PREFERENCE)
def test_what_is_no_preference_is_named_for_what_it_looks_like(case: str) -> None:
    row, said = NO_PREFERENCE[case]
    with pytest.raises(DataError) as caught:
        judged_row(row, "f.jsonl: row 7")
    assert str(caught.value).startswith("f.jsonl: row 7: ")
    assert said in str(caught.value)
    assert "afarm evaluate" not in str(caught.value), "who reads preferences trains"
    assert not isinstance(caught.value, UnusableError), "the file is wrong, not this row of it"


# -------------------------------------------------------------------------------------------------------- real data


@pytest.mark.skipif(not (SHARED_DATA / "hh_rlhf").is_dir(), reason=f"no HH-RLHF at {SHARED_DATA}")
def test_hh_rlhf_is_read_but_for_thirteen_rows_that_no_one_could_learn_from() -> None:
    left_out = Unusable()
    judged = list(own_preferences(SHARED_DATA / "hh_rlhf" / "harmless_base_test.jsonl.gz", left_out))
    assert (len(judged), left_out.rows) == (2299, 13)
    assert len(left_out.examples) == 3, "empty answers, and two of the assistant's turns in a row on either side"
    assert sum(not row.pair.instruction.messages for row in judged) == 658
    assert max(len(row.pair.instruction.messages) for row in judged) == 34
    assert 1080 < sum(row.p2 == 1 for row in judged) < 1220


@pytest.mark.skipif(not (SHARED_DATA / "pandalm").is_dir(), reason=f"no PandaLM at {SHARED_DATA}")
def test_pandalms_three_people_are_read_but_for_outputs_that_are_no_text() -> None:
    left_out = Unusable()
    judged = list(own_preferences(SHARED_DATA / "pandalm" / "testset-v1.json.gz", left_out))
    assert (len(judged), left_out.rows, len(left_out.examples)) == (993, 6, 1)
    weights = {round(row.p2, 3) for row in judged if row.p2 is not None}
    assert weights == {0.0, 0.167, 0.333, 0.667, 0.833, 1.0}
    assert {row.preference.source for row in judged} == {"human"}


RESPONSES = {"response1": "Red.", "response2": "Loud."}
CHOSEN_ROW = FORMS["TRL, texts"]
ANNOTATED = {"output_1": "Red.", "output_2": "Loud.", "instruction": ASK, "preference": 1}
NUMBERS: list[tuple[Row, float | None, tuple[float, float] | None, dict[str, tuple[float, float]]]] = [
    ({"context": turns(*CHAT), **RESPONSES, "overall_preference": -3}, 3.0, None, {}),
    ({"prompt": ASK, **RESPONSES, "preference_strength": "-1"}, 1.0, None, {}),
    ({**CHOSEN_ROW, "margin": 2.5}, 2.5, None, {}),
    ({**CHOSEN_ROW, "score_chosen": 8.5, "score_rejected": 3}, None, (8.5, 3.0), {}),
    ({**CHOSEN_ROW, "chosen_rank": 1, "rejected_rank": 2}, None, None, {}),
    ({**CHOSEN_ROW, "helpful_chosen": 4, "helpful_rejected": "1"}, None, None, {"helpful": (4.0, 1.0)}),
    ({**CHOSEN_ROW, "helpful_chosen": float("nan"), "helpful_rejected": 1, "helpful_1": 3}, None, None, {}),
    ({**ANNOTATED, "strength": 0.5, "rating_1": "7", "rating_2": 2}, 0.5, (7.0, 2.0), {}),
    ({**ANNOTATED, "verbosity_1": 2, "verbosity_2": 9}, None, None, {"verbosity": (2.0, 9.0)}),
    ({**RESPONSES, "instruction": ASK, "annotator1": 1, "annotator2": 1}, None, None, {}),
]


@pytest.mark.parametrize(("row", "strength", "scores", "attributes"), NUMBERS)
def test_what_a_row_says_in_numbers_is_kept_for_the_right_output(
    row: Row, strength: float | None, scores: tuple[float, float] | None, attributes: dict[str, tuple[float, float]]
) -> None:
    judged = judged_row(row, "f: row 0")
    assert judged.chosen_rejected == ("Red.", "Loud.")
    assert JudgedPair.from_row(judged.to_row()) == judged
    first = judged if judged.pair.output_1 == "Red." else JudgedPair(judged.pair.swapped(), judged.preference.swapped())
    kept = first.preference
    assert (kept.strength, kept.scores) == (strength, scores)
    assert {name: (better, worse) for name, better, worse in kept.attributes} == attributes


def test_helpsteers_labels_are_draws_at_0_and_errors_outside_their_scale() -> None:
    row = {"context": turns(*CHAT), **RESPONSES, "overall_preference": 0}
    assert judged_row(row, "f: row 0").preference.outcome == "draw"
    with pytest.raises(DataError, match=r"'overall_preference' is 4; it must lie between -3 .* and 3"):
        judged_row({**row, "overall_preference": 4}, "f: row 0")
