"""Answering from stored annotations: preferences in every answer format, raw completions, and what is not stored."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import DataError, JudgeError
from afarm.core.interfaces import AnnotateContext
from afarm.core.judge import ChatRequest, Completion, ShownPair
from afarm.core.records import Instruction, JudgedPair, Message, Pair, Preference
from afarm.judging.accounting import export
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
from afarm.testing import check_judge
from afarm_plugins.annotators.pool import PoolAnnotator
from afarm_plugins.annotators.settings import PoolConfig
from afarm_plugins.judges.replay import ReplayJudge
from afarm_plugins.judges.settings import ReplayConfig

PAIR = Pair(Instruction("Add 2 and 2."), "4", "5")


def stored(path: Path, *rows: Any) -> ReplayJudge:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return ReplayJudge(str(path), ReplayConfig())


def row(preference: float | None, pair: Pair = PAIR, **own: Any) -> dict[str, Any]:
    """A row as alpaca_eval writes it."""
    outputs = {"output_1": pair.output_1, "output_2": pair.output_2}
    return {"instruction": pair.instruction.instruction, **outputs, "preference": preference, **own}


def request(
    answer_format: str, *pairs: Pair, labels: Sequence[str] = (), annotator: str = "someone", **own: Any
) -> ChatRequest:
    """Each pair with its output_1 above its output_2."""
    shown = tuple(
        ShownPair(pair.id, pair.instruction, pair.output_1, pair.output_2, "ab" if pair.is_canonical else "ba")
        for pair in pairs or (PAIR,)
    )
    return ChatRequest(
        role="strong",
        comparisons=shown,
        answer_format=answer_format,
        labels=tuple(labels),
        annotator=annotator,
        messages=(Message("user", "Which one?"),),
        **own,
    )


def ask(judge: ReplayJudge, asked: ChatRequest) -> Completion:
    return asyncio.run(judge.complete(asked))


@pytest.mark.parametrize(
    ("asked", "first", "second"),
    [
        (request("single"), "Output (a)", "Output (b)"),
        (request("single", PAIR.swapped()), "Output (b)", "Output (a)"),
        (request("list"), "1. Output (a)", "1. Output (b)"),
        (request("labels", labels=["yes", "no"]), "yes", "no"),
        (request("labels", PAIR.swapped(), labels=["yes", "no", "both"]), "no", "yes"),
    ],
)
def test_a_preference_is_written_in_the_format_that_is_asked_for(
    asked: ChatRequest, first: str, second: str, tmp_path: Path
) -> None:
    assert ask(stored(tmp_path / "rows.jsonl", row(1)), asked).text == first
    assert ask(stored(tmp_path / "rows.jsonl", row(2)), asked).text == second
    assert ask(stored(tmp_path / "rows.jsonl", row(1.75)), asked).text == second
    assert ask(stored(tmp_path / "rows.jsonl", row(1)), asked).price == 0.0


def test_a_weighted_preference_is_written_as_token_probabilities(tmp_path: Path) -> None:
    judge = stored(tmp_path / "rows.jsonl", row(1.75))
    for pair, first in ((PAIR, 0.25), (PAIR.swapped(), 0.75)):
        completion = ask(judge, request("tokens", pair, labels=["m", "M"]))
        assert completion.logprobs is not None
        [likeliest] = completion.logprobs
        assert {t: math.exp(p) for t, p in likeliest.items()} == pytest.approx({"m": first, "M": 1 - first})
        assert completion.text == ("m" if first > 0.5 else "M")
    certain = ask(stored(tmp_path / "rows.jsonl", row(2)), request("tokens", labels=["m", "M"]))
    assert certain.logprobs == ({"M": 0.0},)


def test_draws_and_lost_answers_stay_what_they_are(tmp_path: Path) -> None:
    draw, lost = stored(tmp_path / "draw.jsonl", row(1.5)), stored(tmp_path / "lost.jsonl", row(None))
    assert ask(draw, request("labels", labels=["2 1", "1 2", "1 1"])).text == "1 1"
    half = ask(draw, request("tokens", labels=["m", "M"])).logprobs
    assert half == ({"m": math.log(0.5), "M": math.log(0.5)},)
    for cannot in (request("single"), request("labels", labels=["yes", "no"])):
        with pytest.raises(JudgeError, match="a draw, which the answers of someone cannot say"):
            ask(draw, cannot)
    assert "Output (" not in ask(lost, request("single")).text
    assert ask(lost, request("labels", labels=["yes", "no"])).text == ""
    assert ask(lost, request("tokens", labels=["m", "M"])).logprobs == ({},)


def test_a_format_of_its_own_without_labels_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="a preference cannot be written as 'rating'"):
        ask(stored(tmp_path / "rows.jsonl", row(1)), request("rating"))


def test_a_batch_is_answered_with_its_dummies(tmp_path: Path) -> None:
    other = Pair(Instruction("Another task"), "x", "y")
    judge = stored(tmp_path / "rows.jsonl", row(1), row(2, other))
    asked = request("list", PAIR, other)
    dummy = ShownPair("", Instruction("fill"), "-", "-")
    batch = ChatRequest(role="strong", comparisons=(*asked.comparisons, dummy), answer_format="list")
    assert ask(judge, batch).text.splitlines() == ["1. Output (a)", "2. Output (b)", "3. Output (a)"]


# ---------------------------------------------------------------------------------------------------- raw completions


def switched(instruction: str, seed: int = 0) -> bool:
    return random.Random(f"is_switched_outputs{instruction}{seed}").choices([False, True])[0]


STRAIGHT = next(f"Task {i}" for i in range(99) if not switched(f"Task {i}") and switched(f"Task {i}", 7))
TURNED = next(f"Task {i}" for i in range(99) if switched(f"Task {i}"))


def weighted(p: float) -> dict[str, Any]:
    """A choice of OpenAI's, with the two tokens' log-probabilities."""
    top = [{"token": t, "logprob": math.log(q), "bytes": []} for t, q in (("m", p), ("M", 1 - p))]
    return {"finish_reason": "length", "text": "m", "logprobs": {"content": [{"token": "m", "top_logprobs": top}]}}


@pytest.mark.parametrize(("instruction", "first_shown"), [(STRAIGHT, "4"), (TURNED, "5")])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_raw_completion_is_given_to_its_own_annotator_in_its_own_order(
    instruction: str, first_shown: str, as_text: bool, tmp_path: Path
) -> None:
    pair = Pair(Instruction(instruction), "4", "5")
    raw: Any = weighted(0.9)
    preference = 1.9 if first_shown == "5" else 1.1
    kept = row(preference, pair, annotator="weigher", raw_completion=json.dumps(raw) if as_text else raw)
    judge = stored(tmp_path / "rows.jsonl", kept)
    same = pair if first_shown == "4" else pair.swapped()
    given = ask(judge, request("tokens", same, labels=["m", "M"], annotator="weigher"))
    assert given.finish_reason == "length", "the stored completion itself"
    assert given.logprobs is not None
    assert given.logprobs[0] == pytest.approx({"m": math.log(0.9), "M": math.log(0.1)})
    for other in (
        request("tokens", same, labels=["m", "M"], annotator="another"),
        request("tokens", same.swapped(), labels=["m", "M"], annotator="weigher"),
    ):
        written = ask(judge, other)
        assert written.finish_reason == "", "written anew from the preference"
        assert written.logprobs is not None
        turned = other.comparisons[0].first != first_shown
        assert math.exp(written.logprobs[0]["m"]) == pytest.approx(0.1 if turned else 0.9)


def test_a_wrong_seed_is_an_error_and_not_half_of_the_labels_turned(tmp_path: Path) -> None:
    """Shown in the reverse order, the completion prefers the other output."""
    kept = row(1.9, Pair(Instruction(STRAIGHT), "4", "5"), annotator="weigher", raw_completion=weighted(0.9))
    judge = stored(tmp_path / "rows.jsonl", kept)
    asked = request("tokens", Pair(Instruction(STRAIGHT), "4", "5"), labels=["m", "M"], annotator="weigher")
    with pytest.raises(JudgeError, match=r"row 0 \(line 1\): .*--set replay.seed="):
        ask(judge, asked)
    right = ReplayJudge(str(tmp_path / "rows.jsonl"), ReplayConfig(seed=7))
    assert ask(right, asked).finish_reason == ""


def test_a_text_is_given_back_as_it_was(tmp_path: Path) -> None:
    kept = row(1, Pair(Instruction(STRAIGHT), "4", "5"), annotator="x", raw_completion="Output (a), since it is right.")
    judge = stored(tmp_path / "rows.jsonl", kept)
    asked = request("labels", Pair(Instruction(STRAIGHT), "4", "5"), labels=["Output (a)", "Output (b)"], annotator="x")
    assert ask(judge, asked).text == "Output (a), since it is right."


# ------------------------------------------------------------------------------------------------ what is not stored


def test_what_is_not_stored_is_an_error_that_says_what_is(tmp_path: Path) -> None:
    judge = stored(tmp_path / "rows.jsonl", row(1, Pair(Instruction("Task 0"), "4", "5")))
    with pytest.raises(
        JudgeError, match="does not hold what gpt4_4 asks about 'Task 1'; leave such pairs unparsed with --set repl"
    ):
        ask(judge, request("single", Pair(Instruction("Task 1"), "4", "5"), annotator="gpt4_4"))
    with pytest.raises(JudgeError, match="asks about 'Task 0': it holds that instruction with other outputs; "):
        ask(judge, request("single", Pair(Instruction("Task 0"), "4", "6")))


def test_what_is_not_stored_can_be_left_unparsed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    stored(path, row(2))
    judge = ReplayJudge(str(path), ReplayConfig(missing="unparsed"))
    given = ask(judge, request("single", Pair(Instruction("Unknown"), "a", "b")))
    assert (given.text, given.finish_reason) == ("", "missing")


def test_another_occurrence_of_a_pair_is_another_row(tmp_path: Path) -> None:
    twice = Pair(PAIR.instruction, PAIR.output_1, PAIR.output_2, occurrence=1)
    judge = stored(tmp_path / "rows.jsonl", row(1), row(2, occurrence=1))
    assert ask(judge, request("single")).text == "Output (a)"
    assert ask(judge, request("single", twice)).text == "Output (b)"


def test_of_several_rows_about_a_pair_the_annotators_own_is_taken_and_one_for_each_draw(tmp_path: Path) -> None:
    judge = stored(
        tmp_path / "rows.jsonl", row(1, annotator="a"), row(2, annotator="b"), row(1, annotator="b"), row(2, member="c")
    )
    assert ask(judge, request("single", annotator="a")).text == "Output (a)"
    assert [ask(judge, request("single", annotator="b", sample_index=draw)).text for draw in range(3)] == [
        *("Output (b)", "Output (a)", "Output (a)"),
    ]
    four = stored(tmp_path / "four.jsonl", row(1), row(2), row(1), row(2))
    votes = [ask(four, request("single", sample_index=draw)).text[8] for draw in (0, 100, 200, 300, 301)]
    assert votes == ["a", "b", "a", "b", "b"]
    assert ask(judge, request("single", annotator="c")).text == "Output (b)"


# --------------------------------------------------------------------------------------- files, and the whole way round


def test_preferences_of_afarm_are_read_back_by_the_pool(tmp_path: Path) -> None:
    """Our own file through prompts, parsers and ledger: every annotator of the pool reads back what is stored."""
    pairs = [Pair(Instruction(f"Task {i}", "" if i % 2 else "with this"), f"a {i}", f"b {i}") for i in range(60)]
    rows = [JudgedPair(pair, Preference(pair.id, float(i % 3 == 0)), "people") for i, pair in enumerate(pairs)]
    judge = stored(tmp_path / "preferences.jsonl", *(judged.to_row() for judged in rows))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        asker = JudgeClient({"*": judge}, ledger)
        found = PoolAnnotator(PoolConfig()).annotate(pairs, AnnotateContext(5, asker))
        assert asker.spend.dollars == 0
        asker.close()
    assert [preference.p2 for preference in found] == [judged.p2 for judged in rows]
    assert len({preference.member for preference in found}) > 8


def test_an_export_of_the_ledger_answers_the_same_questions(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Which one?", "name": ""}]
    answer = {"request": json.dumps({"messages": messages, "prompt": ""}), "annotator": "x", "text": "Output (b)"}
    spoken = {**answer, "annotator": "y", "text": "m", "logprobs": json.dumps([{"m": -0.1, "M": -2.0}])}
    judge = stored(tmp_path / "ledger.jsonl", answer, spoken)
    assert ask(judge, request("single", annotator="x")).text == "Output (b)"
    assert ask(judge, request("single", annotator="y")).logprobs == ({"m": -0.1, "M": -2.0},)
    with pytest.raises(JudgeError, match="does not hold what the annotator asks about 'Another question'"):
        ask(judge, ChatRequest(role="strong", prompt="Another question"))


def test_an_export_answers_each_draw_with_its_own_answer(tmp_path: Path) -> None:
    def answer(draw: int, text: str) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Which one?"}]
        return {"request": {"messages": messages, "draw": draw}, "annotator": "x", "text": text}

    judge = stored(tmp_path / "ledger.jsonl", answer(200, "c"), answer(0, "a"), answer(100, "b"))
    said = [ask(judge, request("single", annotator="x", sample_index=draw)).text for draw in (0, 100, 200)]
    assert said == ["a", "b", "c"]


def test_a_run_can_be_replayed_from_the_export_of_its_own_ledger(tmp_path: Path) -> None:
    pairs = [Pair(Instruction(f"Task {i}"), f"a {i}", f"b {i}") for i in range(30)]
    rows = [JudgedPair(pair, Preference(pair.id, float(i % 3 == 0))).to_row() for i, pair in enumerate(pairs)]
    labels = []
    judge = stored(tmp_path / "preferences.jsonl", *rows)
    for name in ("first", "again"):
        with Ledger(tmp_path / f"{name}.sqlite") as ledger:
            asker = JudgeClient({"*": judge}, ledger)
            labels.append(PoolAnnotator(PoolConfig()).annotate(pairs, AnnotateContext(5, asker)))
            asker.close()
            assert export(ledger, tmp_path / f"{name}.jsonl") > 0
        judge = ReplayJudge(str(tmp_path / "first.jsonl"), None)
    assert [p.p2 for p in labels[0]] == [float(i % 3 == 0) for i in range(30)]
    assert [(p.p2, p.member, p.order) for p in labels[1]] == [(p.p2, p.member, p.order) for p in labels[0]]


def test_gzipped_lists_are_read(tmp_path: Path) -> None:
    path = tmp_path / "annotations.json.gz"
    path.write_bytes(gzip.compress(json.dumps([row(2)]).encode()))
    assert ask(ReplayJudge(str(path), None), request("single")).text == "Output (b)"


def test_preferences_answer_neither_ratings_nor_instructions(tmp_path: Path) -> None:
    judge = stored(tmp_path / "rows.jsonl", row(1))
    with pytest.raises(JudgeError, match="holds preferences between two outputs, and ratings asks for none"):
        ask(judge, request("rating", Pair(PAIR.instruction, "4", ""), annotator="ratings"))
    with pytest.raises(JudgeError, match="an export of the ledger with its answers"):
        ask(judge, ChatRequest("strong", messages=(Message("user", "Add 2 and 2."),), annotator="(answers)"))


ARGUMENTS = {"concise_explanation": "M names the day.", "ordered_models": [{"model": "m", "rank": 1}]}


@pytest.mark.parametrize(
    "raw",
    [
        ARGUMENTS,
        {"message": {"content": None, "tool_calls": [{"function": {"arguments": json.dumps(ARGUMENTS)}}]}},
        {"message": {"content": "", "function_call": {"name": "rank", "arguments": json.dumps(ARGUMENTS)}}},
        {"message": {"content": "", "function_call": {"name": "rank", "arguments": ARGUMENTS}}},
        {"message": {"content": None, "tool_calls": [{"function": {"arguments": ARGUMENTS}}]}},
        {"name": "rank", "arguments": ARGUMENTS},
        {"name": "rank", "arguments": json.dumps(ARGUMENTS)},
    ],
)
def test_a_function_call_stored_as_an_object_is_its_arguments(raw: Any, tmp_path: Path) -> None:
    kept = row(1, Pair(Instruction(STRAIGHT), "4", "5"), annotator="x", raw_completion=raw)
    judge = stored(tmp_path / "rows.jsonl", kept)
    given = ask(judge, request("labels", Pair(Instruction(STRAIGHT), "4", "5"), labels=["m", "M"], annotator="x"))
    assert json.loads(given.text) == ARGUMENTS
    assert judge.check(()) == []


def test_the_identity_is_the_files_content_and_the_settings(tmp_path: Path) -> None:
    first = stored(tmp_path / "rows.jsonl", row(1)).identity
    assert first.startswith("replay:rows.jsonl@")
    assert ReplayJudge(str(tmp_path / "rows.jsonl"), ReplayConfig(missing="unparsed")).identity != first
    assert stored(tmp_path / "rows.jsonl", row(2)).identity != first
    assert stored(tmp_path / "rows.jsonl", row(1)).identity == first


def test_bad_files_are_named_with_row_and_field(tmp_path: Path) -> None:
    for spec in ("", str(tmp_path / "nothing.json")):
        with pytest.raises(DataError, match="no such file"):
            ReplayJudge(spec, None)
    for bad, said in [
        (
            {"a": 1},
            "is no annotation and no answer of the ledger, which has output_1, output_2, preference, or request",
        ),
        (row(7), "field 'preference' is 7"),
        (row(1, raw_completion={"logprobs": {"content": [{}]}, "text": "m"}), "field 'raw_completion'"),
        (row(1, raw_completion=5), "field 'raw_completion'"),
        (row(1, raw_completion={"message": {"content": [{"type": "text"}]}}), "field 'raw_completion'"),
        ({"request": "{", "text": "x"}, "field 'request' is not valid JSON"),
        (
            {"request": {"messages": 3}, "text": "x"},
            "is no answer as `afarm ledger --export` writes it",
        ),
        ({"request": {"messages": [{"role": "user"}]}, "text": "x"}, "is no answer as"),
        ({"request": {"prompt": "q"}, "text": "x", "logprobs": [3]}, "is no answer as"),
        ({"request": {"prompt": "q"}, "text": None}, "field 'text' must be text, not NoneType"),
    ]:
        judge = stored(tmp_path / "rows.jsonl", row(1), bad)
        with pytest.raises(DataError, match=rf"row 1 \(line 2\): {said}"):
            ask(judge, request("single"))
        [problem] = judge.check(())
        assert re.search(said, problem)
    one = stored(tmp_path / "rows.jsonl", row(1))
    assert one.check(()) == one.check([Instruction("another"), PAIR.instruction]) == []
    assert "has annotations of none of the 1 instructions that are judged" in one.check([Instruction("another")])[0]
    with pytest.raises(DataError, match="holds no rows"):
        ask(stored(tmp_path / "rows.jsonl"), request("single"))


def test_it_keeps_the_promises_of_a_judge(tmp_path: Path) -> None:
    judge = stored(tmp_path / "rows.jsonl", row(1))
    check_judge(judge)
    assert judge.worst_case_price(request("single")) == 0.0
    assert not judge.simulated
