"""Criteria: drawn up once an instruction, then each output is marked by them once and alone."""

import json
from collections import Counter

import pytest
from places import DOCS
from scripted_ask import make_pairs

from afarm.core.errors import DataError
from afarm.core.interfaces import AnnotateContext, EvaluationInputs
from afarm.core.records import Instruction, JudgedPair, Output, Pair
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
from afarm.testing import FakeJudgeClient, judge_context
from afarm_plugins.annotators.criteria import CriteriaAnnotator
from afarm_plugins.annotators.parsing import parse, parse_criteria
from afarm_plugins.annotators.settings import CriteriaConfig
from afarm_plugins.evaluators.pointwise import Pointwise
from afarm_plugins.judges.offline import OfflineJudge
from afarm_plugins.judges.settings import OfflineConfig

TASKS = [Instruction(f"Task {number}", "an input" if number % 2 else "") for number in range(4)]


def answer(request):
    """Two criteria that name the task; a mark by length, at most 7."""
    shown = request.comparisons[0]
    if request.answer_format == "criteria":
        return f"Here they are:\n1. Keeps to {shown.instruction.instruction}\n2. **Is short**"
    return str(min(len(shown.first), 7))


def annotator(**settings):
    return CriteriaAnnotator(CriteriaConfig(**settings))


def label(pairs, ask, seed=0, **settings):
    return annotator(**settings).annotate(pairs, AnnotateContext(seed, ask))


def pairs_of(output, reference="yyy"):
    return [Pair(task, reference, output) for task in TASKS]


def asked(ask):
    """How often each kind of question was sent: criteria by instruction, marks by output."""
    return Counter(
        r.comparisons[0].instruction.instruction if r.answer_format == "criteria" else r.comparisons[0].first
        for r in ask.sent
    )


def auxiliary(tmp_path, name="auxiliary.jsonl", texts=("one way", "another way"), tasks=TASKS):
    path = tmp_path / name
    rows = [Output(task, f"{text} {task.instruction}").to_row() for text in texts for task in tasks]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def text_of(request):
    return "\n".join(message.content for message in request.messages)


def test_the_better_mark_is_preferred_and_the_marks_stand_beside_the_label():
    task = TASKS[0]
    pairs = [Pair(task, "xx", "xxxxx"), Pair(task, "xxxxx", "xx"), Pair(task, "xx", "yy")]
    found = label(pairs, FakeJudgeClient(answer))
    assert [(p.p2, p.outcome, p.scores) for p in found] == [
        (1.0, "decided", (2.0, 5.0)),
        (0.0, "decided", (5.0, 2.0)),
        (None, "draw", (2.0, 2.0)),
    ]
    assert [p.pair_id for p in found] == [p.id for p in pairs]


def test_another_system_costs_its_own_outputs_and_no_more(tmp_path):
    ask, named = FakeJudgeClient(answer), auxiliary(tmp_path)
    label(pairs_of("xx"), ask, auxiliary=[named])
    assert asked(ask) == {**{task.instruction: 1 for task in TASKS}, "yyy": 4, "xx": 4}
    ask.sent.clear()
    label(pairs_of("xxxx"), ask, auxiliary=[named])
    assert asked(ask) == {"xxxx": 4}
    ask.sent.clear()
    label(pairs_of("xxxx"), ask, auxiliary=[named])
    assert ask.sent == []


def test_a_draft_shows_the_auxiliary_answers_and_a_mark_only_the_criteria_and_the_output(tmp_path):
    ask = FakeJudgeClient(answer)
    label([Pair(TASKS[1], "mine {{ x }}", "theirs")], ask, auxiliary=auxiliary(tmp_path), role="light", temperature=0.5)
    draft, *marks = sorted(ask.sent, key=lambda r: r.answer_format)
    for part in ("Task 1", "Input:\nan input", "one way Task 1", "another way Task 1"):
        assert part in text_of(draft)
    assert "mine" not in text_of(draft)
    assert "Task 0" not in text_of(draft)
    mine, theirs = sorted(marks, key=lambda r: r.comparisons[0].first)
    for part in ("Task 1", "an input", "1. Keeps to Task 1\n2. Is short", "mine {{ x }}"):
        assert part in text_of(mine)
    assert "theirs" not in text_of(mine)
    assert "one way" not in text_of(theirs)
    assert {(r.role, r.temperature, r.annotator) for r in ask.sent} == {("light", 0.5, "criteria")}
    assert [r.max_tokens for r in (draft, mine)] == [400, 20]


def test_as_many_auxiliary_answers_are_shown_as_asked_for_and_others_make_other_criteria(tmp_path):
    texts = [f"way {number} of" for number in range(6)]
    named = auxiliary(tmp_path, texts=texts)
    ask = FakeJudgeClient(answer)
    label(pairs_of("xx"), ask, auxiliary=named, n_auxiliary=2)
    drafts = {r.comparisons[0].instruction.instruction: text_of(r) for r in ask.sent if r.answer_format == "criteria"}
    shown = {task: {text for text in texts if f"{text} {task}" in draft} for task, draft in drafts.items()}
    assert {len(drawn) for drawn in shown.values()} == {2}
    assert len(set(map(frozenset, shown.values()))) > 1
    again = FakeJudgeClient(answer)
    turned = auxiliary(tmp_path, "turned.jsonl", texts[::-1])
    label(pairs_of("xx"), again, auxiliary=turned, n_auxiliary=2)
    assert sorted(map(text_of, again.sent)) == sorted(map(text_of, ask.sent))
    before = len(ask.sent)
    label(pairs_of("xx"), ask, auxiliary=[named, auxiliary(tmp_path, "more.jsonl", ["yet another"])], n_auxiliary=7)
    assert len(ask.sent) == 2 * before
    plain = annotator().identity
    assert plain == ""
    assert annotator(auxiliary=named).identity == annotator(auxiliary=turned).identity != plain


def test_without_auxiliary_answers_criteria_come_from_the_instruction_alone(tmp_path):
    ask = FakeJudgeClient(answer)
    other = auxiliary(tmp_path, tasks=[Instruction("Something else")])
    label(pairs_of("xx"), ask)
    before = len(ask.sent)
    assert not any("Answer 1" in text_of(r) for r in ask.sent)
    label(pairs_of("xx"), ask, auxiliary=other)
    assert len(ask.sent) == before


def test_criteria_that_cannot_be_read_are_asked_for_again_and_in_the_end_spoil_their_instruction_only():
    def spoilt(request):
        shown = request.comparisons[0]
        if request.answer_format == "criteria" and shown.instruction == TASKS[2] and shown.sample_index < fails:
            return "I would rather not say."
        return answer(request)

    fails, pairs = 1, pairs_of("xx")
    ask = FakeJudgeClient(spoilt)
    assert [p.outcome for p in label(pairs, ask)] == ["decided"] * 4
    assert asked(ask)["Task 2"] == 2
    fails, ask = 9, FakeJudgeClient(spoilt)
    found = label(pairs, ask, max_reasks=1)
    assert [p.outcome for p in found] == ["decided", "decided", "unparsed", "decided"]
    assert (found[2].scores, asked(ask)["Task 2"], asked(ask)["xx"]) == (None, 2, 3)
    sent = len(ask.sent)
    assert label(pairs, ask, max_reasks=1) == found
    assert len(ask.sent) == sent


def test_the_plan_is_what_would_be_sent(tmp_path):
    pairs, ask = make_pairs(10), FakeJudgeClient(answer)
    context = AnnotateContext(0, ask)
    made = annotator(auxiliary=auxiliary(tmp_path))

    def about(requests):
        return sorted((r.answer_format, r.comparisons[0].pair_id) for r in requests)

    planned = made.plan(pairs, context)
    assert ask.sent == []
    made.annotate(pairs, context)
    assert about(planned) == about(ask.sent)
    assert made.plan(pairs, context) == []
    further = [Pair(pair.instruction, pair.output_1, "something new") for pair in pairs]
    assert {r.comparisons[0].first for r in made.plan(further, context)} == {"something new"}
    assert made.annotate([], context) == made.plan([], context) == []


def test_criteria_drawn_up_otherwise_make_other_marks():
    def longer(request):
        return answer(request) + f" ({request.max_tokens})" if request.answer_format == "criteria" else answer(request)

    ask = FakeJudgeClient(longer)
    label(pairs_of("xx"), ask)
    before = len(ask.sent)
    label(pairs_of("xx"), ask, criteria_tokens=50)
    assert len(ask.sent) == 2 * before


def test_the_offline_judge_and_the_ledger_carry_it_to_a_mean_rating(tmp_path):
    """From two sets of outputs to the evaluator, twice: the second time nothing is bought."""
    outputs = [Output(task, f"an answer to {task.instruction}", "me") for task in TASKS]
    pairs = [Pair(o.instruction, "another", o.output, 0, "them", "me") for o in outputs]
    for calls in (12, 0):
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            ask = JudgeClient({"*": OfflineJudge("", OfflineConfig(), judge_context())}, ledger)
            try:
                labels = label(pairs, ask)
            finally:
                ask.close()
        assert ask.spend.calls == calls
        judged = [JudgedPair(pair, preference) for pair, preference in zip(pairs, labels, strict=True)]
        metrics = Pointwise().evaluate(EvaluationInputs("me", outputs, judgements=judged)).metrics
        assert 1 <= metrics["rating"] <= 7
        assert metrics["n_total"] == 4


def test_a_file_of_auxiliary_answers_that_is_missing_is_named():
    with pytest.raises(DataError, match=r"gone\.json: no such file"):
        label(pairs_of("xx"), FakeJudgeClient(answer), auxiliary="gone.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1. Right\n2. Short", ["Right", "Short"]),
        ("Sure:\n\n**1.** Names the year\n2) Says *why*\nThat is all.", ["Names the year", "Says *why"]),
        ("<think>1. no</think>1. Yes", ["Yes"]),
        ("1. Right\n3. Gone astray", ["Right"]),
        ("2. Second", []),
        ("Right and short", []),
        ("1.\n2.", []),
        ("", []),
        ("\n".join(f"{n}. criterion" for n in range(1, 30)), ["criterion"] * 10),
    ],
)
def test_criteria_are_the_lines_that_count_up_from_one(text, expected):
    assert parse_criteria(text) == expected
    assert parse(text, "criteria", 1) == [1.0 if expected else None]


def test_every_setting_is_documented():
    documentation = (DOCS / "guides" / "annotators.md").read_text(encoding="utf-8")
    section = documentation[documentation.index("## Ratings by criteria") :]
    assert [f for f in CriteriaConfig.model_fields if f"| `{f}` |" not in section] == []
