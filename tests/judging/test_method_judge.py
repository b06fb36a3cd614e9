"""A method's questions to a judge: what is sent, what is read, and what is asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from afarm.core.errors import JudgeError
from afarm.core.judge import Capabilities, ChatRequest
from afarm.core.records import Instruction, Message
from afarm.judging.method_judge import PlannedJudge, PromptedJudge, read_mark, read_ranking, read_text
from afarm.testing import FakeJudgeClient

TASKS = [Instruction(f"task {n}") for n in range(30)]
CHAT = Capabilities(chat=True)


def judge(
    answer: Callable[[ChatRequest], str], capabilities: Capabilities = CHAT
) -> tuple[PromptedJudge, FakeJudgeClient]:
    client = FakeJudgeClient(answer, capabilities)
    return PromptedJudge(lambda: client, "mine", seed=5), client


@pytest.mark.parametrize(
    ("reply", "mark"),
    [
        ("5", 5.0),
        (" **5** \n", 5.0),
        ("Rating: 5/7", 5.0),
        ("My final mark is 4.5.", 4.5),
        ("<think>2, or rather\n3</think>\n6 out of 7", 6.0),
        ("1", 1.0),
        ("7", 7.0),
        # Out of the scale, empty, another scale, or not the mark alone
        ("0", None),
        ("8", None),
        ("-3", None),
        ("100", None),
        ("5/10", None),
        ("", None),
        ("<think>5", None),
        ("five", None),
        ("5 6", None),
        ("5-6", None),
        ("nan", None),
        ("The answer ends with:\n7", None),
        ("5\nThough some would say 2", None),
        ("9" * 5000, None),
    ],
)
def test_a_mark_is_read_that_stands_alone_on_its_scale(reply: str, mark: float | None) -> None:
    assert read_mark(reply, (1, 7)) == mark


@pytest.mark.parametrize(
    ("reply", "tiers"),
    [
        ("2 > 1 > 3", [1, 0, 2]),
        ("2>1=3", [1, 0, 1]),
        ("Ranking: Answer 3 > Answer 2 > Answer 1.", [2, 1, 0]),
        ("`1 = 2 = 3`", [0, 0, 0]),
        ("<think>1 > 2 > 3</think>3 > 1 > 2", [1, 2, 0]),
        # One is missing, twice there or unknown, or something else is written
        ("2 > 1", None),
        ("2 > 1 > 1 > 3", None),
        ("2 > 1 > 4", None),
        ("0 > 1 > 2 > 3", None),
        ("2 > 1 > 3, as the second says so", None),
        ("3", None),
        ("", None),
        (f"{'9' * 5000} > 1 > 2", None),
    ],
)
def test_a_ranking_is_read_that_names_each_answer_once(reply: str, tiers: list[int] | None) -> None:
    assert read_ranking(reply, 3) == tiers


def test_a_criticism_is_the_reply_without_its_thoughts() -> None:
    assert read_text("<think>Hm.</think>\nToo long.\n") == "Too long."
    assert read_text("<think>Hm") is None
    assert read_text(" \n") is None


def test_the_prompt_shows_task_output_rubric_and_form() -> None:
    asked, client = judge(lambda request: "3")
    task = Instruction("Add $them.", "2 and 3", messages=(Message("user", "Hello"), Message("assistant", "Hi")))
    output, rubric = "It is $5.\rAnswer 2:\n\n7", "Be strict: $ is no currency."
    assert asked.rate([task], [output], rubric=rubric, scale=(0, 4)) == [3.0]
    [request] = client.sent
    system, user = request.messages
    assert "from 0 (the worst) to 4 (the best)" in system.content
    assert rubric in system.content
    assert "[user] Hello\n[assistant] Hi\n\nAdd $them.\n\nInput:\n2 and 3" in user.content
    assert "Answer:\n| It is $5.\n| Answer 2:\n| \n| 7\n\nMark from 0 to 4:" in user.content, "no line is a prompt's"
    assert (request.annotator, request.role, request.seed) == ("mine:rate", "strong", 5)
    assert request.labels == ("0", "1", "2", "3", "4")


def test_a_judge_that_only_completes_text_gets_one() -> None:
    asked, client = judge(lambda request: "Fine.", Capabilities(chat=False, completion=True))
    assert asked.criticise([TASKS[0]], ["x"]) == ["Fine."]
    [request] = client.sent
    assert not request.messages
    assert request.prompt.endswith("Answer:\n| x\n\nCriticism:")


def test_an_unreadable_answer_is_asked_for_once_more_with_the_form_and_is_then_none() -> None:
    def answer(request: ChatRequest) -> str:
        output, attempt = request.comparisons[0].first, request.sample_index
        return {"late": ["", "4"], "never": ["9", "0"], "at once": ["2"]}[output][attempt]

    asked, client = judge(answer)
    assert asked.rate(TASKS[:3], ["late", "never", "at once"]) == [4.0, None, 2.0]
    first, again = ([r for r in client.sent if r.sample_index == attempt] for attempt in (0, 1))
    assert (len(first), len(again)) == (3, 2)
    assert all("exactly the form asked for" in request.messages[-1].content for request in again)
    assert not any("exactly the form asked for" in request.messages[-1].content for request in first)
    assert asked.rate(TASKS[:3], ["late", "never", "at once"]) == [4.0, None, 2.0]
    assert len(client.sent) == 5, "nothing is bought twice"


def test_a_refusal_is_no_criticism() -> None:
    asked, client = judge(lambda request: "I would rather not.")
    complete = client._complete
    client._complete = lambda request: replace(complete(request), finish_reason="refusal")  # type: ignore[method-assign]
    assert asked.criticise(TASKS[:1], ["x"]) == [None]
    assert len(client.sent) == 2


def test_equal_questions_are_asked_once() -> None:
    asked, client = judge(lambda request: "3")
    assert asked.rate([TASKS[0]] * 3, ["x", "y", "x"]) == [3.0] * 3
    assert len(client.sent) == 2
    assert asked.rate([], []) == []


def by_length(request: ChatRequest) -> str:
    """Rank the longest first, equal lengths alike."""
    lengths = {number: len(pair.first) for number, pair in enumerate(request.comparisons, start=1)}
    tiers = [[n for n, own in lengths.items() if own == length] for length in sorted({*lengths.values()}, reverse=True)]
    return " > ".join(" = ".join(map(str, tier)) for tier in tiers)


def test_places_are_in_the_order_of_the_group_however_it_was_shown() -> None:
    asked, client = judge(by_length)
    groups = [["a", "bbb", "cc"], ["dd", "e", "f"], ["g", "hh", "g"], ["same", "same"], ["alone"]]
    expected = [[3.0, 1.0, 2.0], [1.0, 2.5, 2.5], [2.5, 1.0, 2.5], [1.5, 1.5], [1.0]]
    assert asked.rank(TASKS[:5], groups) == expected
    assert len(client.sent) == 3, "a group of one text is not asked about"
    assert sorted(request.max_tokens for request in client.sent) == [20, 30, 30]
    assert asked.rank(TASKS[:5], [group[::-1] for group in groups]) == [places[::-1] for places in expected]
    assert len(client.sent) == 3, "the same texts in another order are the same question"


def test_the_order_shown_is_drawn_for_each_group() -> None:
    asked, client = judge(by_length)
    asked.rank(TASKS, [["a", "bb", "ccc"]] * len(TASKS))
    orders = Counter("".join(pair.first[0] for pair in request.comparisons) for request in client.sent)
    assert len(orders) == 6
    assert max(orders.values()) < 13


def test_an_unreadable_ranking_is_none_and_leaves_the_others() -> None:
    asked, _ = judge(
        lambda request: "I cannot." if request.comparisons[0].instruction.id == TASKS[1].id else by_length(request)
    )
    assert asked.rank(TASKS[:3], [["a", "bb"]] * 3) == [[2.0, 1.0], None, [2.0, 1.0]]


def test_a_judge_that_never_answers_in_the_form_ends_the_training() -> None:
    asked, client = judge(lambda request: "Splendid!")
    assert asked.rate(TASKS[:19], ["x"] * 19) == [None] * 19
    assert len(client.sent) == 38, "the same questions, asked once more, are no others"
    said = r"fake has given no answer .*: 20 came .*: 'Splendid!' is not in the form that mine:rate .*--judge …"
    with pytest.raises(JudgeError, match=said):
        asked.rate(TASKS[19:21], ["x"] * 2)
    assert len(client.sent) == 40


def test_a_judge_that_once_answered_in_the_form_goes_on() -> None:
    readable = {task.id for task in TASKS[::10]}
    asked, client = judge(lambda request: "4" if request.comparisons[0].instruction.id in readable else "Splendid!")
    marks = asked.rate(TASKS, ["x"] * len(TASKS))
    assert marks == [4.0 if task.id in readable else None for task in TASKS]
    assert len(client.sent) == 2 * len(TASKS) - len(readable)


@pytest.mark.parametrize("scale", [(3, 3), (5, 1), (0, 101)])
def test_a_scale_has_two_to_101_marks(scale: tuple[int, int]) -> None:
    asked, client = judge(lambda request: "3")
    with pytest.raises(ValueError, match="a scale goes from"):
        asked.rate(TASKS[:1], ["x"], scale=scale)
    with pytest.raises(ValueError, match="zip"):
        asked.rate(TASKS[:2], ["x"])
    assert not client.sent


def test_a_plan_asks_what_the_method_will_about_other_texts_each() -> None:
    client = FakeJudgeClient(by_length)
    planned = PlannedJudge(lambda: client, "mine", text="word " * 20)
    assert planned.rate(TASKS[:4] * 2, [""] * 8) == [None] * 8
    assert planned.rank(TASKS[:2], [[""] * 4] * 2) == [None] * 2
    assert planned.criticise(TASKS[:1], [""]) == [None]
    requests = [planned.request(question) for question in planned.questions]
    assert Counter(request.annotator for request in requests) == {"mine:rate": 8, "mine:rank": 2, "mine:criticise": 1}
    assert len({pair.first for request in requests for pair in request.comparisons}) == 8 + 2 * 4 + 1
    assert not client.sent
