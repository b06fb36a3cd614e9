"""Language feedback: what the policy is asked, what it learns, money, the kit's verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from afarm_neighbours import LanguageFeedback, LanguageFeedbackConfig, language_feedback

from afarm import BudgetError, ChatRequest, DataError, Decoding, Instruction, MethodInputs, Sample
from afarm.testing import (
    MetricsRecorder,
    check_method,
    make_instructions,
    scripted_judge,
    tiny_config,
    tiny_inputs,
    tiny_policy,
    train_context,
)
from afarm.testing.processes import train_together


def has_w1(text: str) -> bool:
    return "w1" in text.split()


def judge_by_w1(request: ChatRequest) -> str:
    """Criticise by one word, and rank texts that say w1 above all others."""
    if request.answer_format == "critique":
        return "w1"
    best = [str(n) for n, pair in enumerate(request.comparisons, start=1) if has_w1(pair.first)]
    rest = [str(n) for n in range(1, 1 + len(request.comparisons)) if str(n) not in best]
    return " > ".join(filter(None, [" = ".join(best), " = ".join(rest)]))


def make(**settings: Any) -> LanguageFeedback:
    config = tiny_config(LanguageFeedbackConfig, **{"n": 4, "response_length": 8, **settings})
    assert isinstance(config, LanguageFeedbackConfig)
    return LanguageFeedback(config)


def inputs_with(answer: Callable[[ChatRequest], str]) -> MethodInputs:
    return MethodInputs(tiny_policy(), unlabeled=make_instructions(12), judge=scripted_judge(answer))


def refine(directory: Path, answer: Callable[[ChatRequest], str]) -> list[language_feedback.Refinement]:
    """Return what is learned, of a judge that answers so; from disk what is there."""
    inputs = inputs_with(answer)
    return list(
        language_feedback.refine(make().config, tiny_policy(), inputs.unlabeled, inputs, train_context(directory))
    )


def test_it_keeps_the_promises_of_a_method(tmp_path: Path) -> None:
    """One in eight of the scripted judge's answers cannot be read; what it is asked is what was planned."""
    check_method(make(n=2, num_prompts=12, response_length=4), tmp_path)
    by_reward = make(choose_by="reward_model")
    assert by_reward.needs == {"judge", "unlabeled", "reward_model"}


def test_a_reward_model_reads_refinements_as_answers_to_the_prompt_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = set[tuple[int, ...]]()

    def scorer(*models: object) -> Callable[..., list[float]]:
        def score(tasks: Sequence[Instruction], samples: Sequence[Sample]) -> list[float]:
            read.update(sample.prompt_ids for sample in samples)
            return [float(len(sample.token_ids)) for sample in samples]

        return score

    monkeypatch.setattr(language_feedback, "sample_scorer", scorer)
    method = make(choose_by="reward_model")
    inputs = tiny_inputs(method.needs)
    context = train_context(tmp_path)
    kept = list(language_feedback.refine(method.config, tiny_policy(), inputs.unlabeled, inputs, context))
    assert len(kept) > 10
    assert read <= {tuple(ids) for ids in tiny_policy().prompt_ids(inputs.unlabeled)}


def test_each_of_two_processes_scores_half_of_the_refinements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, start, tasks = make(choose_by="reward_model").config, tiny_policy(), make_instructions(3)
    inputs, counts = tiny_inputs({"reward_model"}), list[int]()
    groups = [list(start.sample([task], Decoding(1.0, max_new_tokens=6, n=3), seed=0)) for task in tasks]

    def scorer(*models: object) -> Callable[..., list[float]]:
        def score(owners: Sequence[Instruction], samples: Sequence[Sample]) -> list[float]:
            counts.append(len(samples))
            return [float(len(sample.token_ids)) for sample in samples]

        return score

    def rank(context: Any) -> list[Any]:
        return [language_feedback.rank_groups(config, [(task, 0, 0) for task in tasks], groups, start, inputs), counts]

    monkeypatch.setattr(language_feedback, "sample_scorer", scorer)
    assert train_together(rank, 2, tmp_path) == [rank(None)[0], [5]]


def test_the_answer_itself_is_never_learned(tmp_path: Path) -> None:
    answers = dict[str, str]()

    def answer_first(request: ChatRequest) -> str:
        task = request.comparisons[0].instruction.id
        if request.answer_format == "critique":
            answers[task] = request.comparisons[0].first
            return "w1"
        first = [str(n) for n, pair in enumerate(request.comparisons, start=1) if pair.first == answers[task]]
        rest = [str(n) for n in range(1, 1 + len(request.comparisons)) if str(n) not in first]
        return " > ".join(filter(None, [" = ".join(first), " = ".join(rest)]))

    kept = refine(tmp_path, answer_first)
    assert not any(one.is_better for one in kept)
    assert sum(one.text != one.answer for one in kept) > 8


def test_the_best_refinement_is_learned_as_an_answer_to_the_prompt_alone(tmp_path: Path) -> None:
    method, log = make(learning_rate=0.01, num_train_epochs=3), MetricsRecorder()
    policy = method.train(inputs_with(judge_by_w1), train_context(tmp_path, log_metrics=log))
    logged, kept = log.lines[0][1], refine(tmp_path, judge_by_w1)
    start, tasks = tiny_policy(), make_instructions(12)
    assert logged["objective/refined"] == 1
    assert [one.prompt_ids for one in kept] == start.prompt_ids(tasks)
    chosen = sum(has_w1(one.text) for one in kept)
    assert chosen > sum(has_w1(one.answer) for one in kept)
    assert logged["objective/better"] == sum(one.is_better for one in kept) / 12
    for one in kept:
        assert one.is_better == (has_w1(one.text) and not has_w1(one.answer))
        assert one.text == start.tokenizer.decode(one.token_ids, skip_special_tokens=True)
    before, after = (
        sum(has_w1(text) for text in of.generate(tasks, temperature=0.7, max_new_tokens=8)) for of in (start, policy)
    )
    assert after > before


def test_the_policy_is_shown_task_answer_and_criticism() -> None:
    task = Instruction("Add.", "2 and 2")
    asked = language_feedback.ask_for_refinement(make().config, task, "5 is $5", "It is 4, not $answer.")
    assert asked.input == ""
    for part in ("Add.\n\n2 and 2", "5 is $5", "It is 4, not $answer."):
        assert part in asked.instruction


def test_answers_without_a_criticism_are_left_out_and_only_better_refinements_if_asked(tmp_path: Path) -> None:
    def half(request: ChatRequest) -> str:
        silent = request.answer_format == "critique" and int(request.comparisons[0].pair_id, 16) % 2
        return "" if silent else judge_by_w1(request)

    assert 0 < len(refine(tmp_path / "half", half)) < 12

    def all_equal(request: ChatRequest) -> str:
        shown = " = ".join(str(1 + n) for n in range(len(request.comparisons)))
        return judge_by_w1(request) if request.answer_format == "critique" else shown

    with pytest.raises(DataError, match=r"of 12 answers 12 were criticised .* no refinement was ranked above"):
        make(learn="better").train(inputs_with(all_equal), train_context(tmp_path / "equal"))


def test_what_a_killed_training_has_refined_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_feedback, "PROMPTS_AT_ONCE", 4)
    asked: list[str] = []

    def within(budget: int) -> Callable[[ChatRequest], str]:
        def answer(request: ChatRequest) -> str:
            if len(asked) >= budget:
                raise BudgetError("the budget is used up")
            asked.append(str(request.comparisons[0].pair_id) + request.answer_format)
            return judge_by_w1(request)

        return answer

    with pytest.raises(BudgetError):
        refine(tmp_path / "killed", within(10))
    first = asked[:8]  # both questions about 4 prompts
    del asked[:]
    kept = refine(tmp_path / "killed", within(100))
    assert not {*first} & {*asked}
    assert kept == refine(tmp_path / "whole", judge_by_w1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"refine_text": "Do better: $task $answer"}, r"must hold \$task, \$answer, \$criticism"),
        ({"refine_text": "$task $answer $criticism for $5"}, "and no other word behind"),
        ({"response_length": 512}, "leaves no room for a prompt"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LanguageFeedbackConfig(**settings)
