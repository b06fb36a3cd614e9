"""An evaluator directory as annotator: draws, batches, answers that cannot be read, and what labels record."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from evaluator_directories import COMPARE, LETTERS, RANK, batch_template, entry, weighted, write

from afarm.core.errors import ConfigError, JudgeError
from afarm.core.judge import Capabilities, ChatRequest, Completion
from afarm.core.records import Instruction, Pair, Preference
from afarm.testing import FakeJudgeClient, annotate_context, check_annotator, make_pairs
from afarm_plugins.alpaca_eval import AlpacaEvalConfig
from afarm_plugins.alpaca_eval.annotator import AlpacaEvalAnnotator, draw_like_alpaca_eval

FLIPS = [True, False, False, False, False, True, False, True]
MEMBERS = ["c", "c", "c", "c", "c", "b", "c", "c"]
"""What `random.Random(…).choices(…)` gives for "Task 0" to "Task 7" with seed 0, worked out apart from this code."""

EVERYTHING = Capabilities(chat=True, completion=True, logit_bias=True, logprobs=True, tool=True)


def annotator(spec: str, **settings: object) -> AlpacaEvalAnnotator:
    return AlpacaEvalAnnotator(AlpacaEvalConfig.model_validate(settings), spec)


def prefers(wanted: Callable[[str], bool]) -> Callable[[ChatRequest], str]:
    """A judge that names, for each comparison, the first output that is `wanted`."""

    def answer(request: ChatRequest) -> str:
        return "\n".join(request.labels[0 if wanted(c.first) else 1] for c in request.comparisons)

    return answer


def numbered(n: int) -> list[Pair]:
    return [Pair(Instruction(f"Task {i}"), f"good {i}", f"bad {i}") for i in range(n)]


def labels(made: AlpacaEvalAnnotator, pairs: list[Pair], ask: FakeJudgeClient, seed: int = 0) -> list[Preference]:
    return made.annotate(pairs, annotate_context(seed, ask))


def test_draws_are_those_of_pythons_generator_seeded_with_the_text() -> None:
    flips = [draw_like_alpaca_eval([False, True], "is_switched_outputs", f"Task {i}", 0) for i in range(8)]
    members = [draw_like_alpaca_eval(["a", "b", "c"], "annotator", f"Task {i}", 0) for i in range(8)]
    assert flips == FLIPS
    assert members == MEMBERS


def test_the_order_shown_is_the_drawn_one_and_the_label_is_turned_back(tmp_path: Path) -> None:
    ask = FakeJudgeClient(prefers(lambda output: output.startswith("good")))
    found = labels(annotator(write(tmp_path, {"mine": entry(**LETTERS)})), numbered(8), ask)
    assert [preference.order for preference in found] == ["21" if flip else "12" for flip in FLIPS]
    assert [request.comparisons[0].first.startswith("bad") for request in ask.sent] == FLIPS
    assert {preference.p2 for preference in found} == {0.0}


def test_pairs_with_an_input_and_without_share_no_prompt_of_two_templates(tmp_path: Path) -> None:
    files = {f"{form}.txt": batch_template(3) for form in ("with_inputs", "without_inputs")}
    files["with_inputs.txt"] = files["with_inputs.txt"].replace("{instruction}", "{instruction} ({input})")
    own = entry(batch_size=3, **LETTERS) | {
        "prompt_template": {"with_inputs": "mine/with_inputs.txt", "without_inputs": "mine/without_inputs.txt"}
    }
    pairs = [Pair(Instruction(f"Task {i}", "of it" * (i % 2)), f"good {i}", f"bad {i}") for i in range(6)]
    ask = FakeJudgeClient(prefers(lambda output: output.startswith("good")))
    found = labels(annotator(write(tmp_path, {"mine": own}, files)), pairs, ask)
    assert [preference.p2 for preference in found] == [0.0] * 6
    assert sorted(request.messages[0].content.count("(of it)") for request in ask.sent) == [0, 3]


def test_outputs_are_shown_as_they_come_where_the_directory_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, {"mine": entry(is_randomize_output_order=False, **LETTERS)})
    found = labels(annotator(path), numbered(12), FakeJudgeClient(prefers(lambda output: True)))
    assert {(preference.order, preference.p2) for preference in found} == {("12", 0.0)}


def test_the_order_can_hang_on_other_columns(tmp_path: Path) -> None:
    pairs = [Pair(Instruction("One task"), f"good {i}", f"bad {i}") for i in range(12)]
    orders = {}
    for name, columns in {"task": ["instruction"], "outputs": ["output_2", "instruction", "output_1"]}.items():
        path = write(tmp_path, {"mine": entry(random_seed_column=columns, **LETTERS)}, directory="mine")
        orders[name] = [p.order for p in labels(annotator(path), pairs, FakeJudgeClient(prefers(lambda output: True)))]
    assert len(set(orders["task"])) == 1, "all pairs of an instruction share its draw"
    expected = [
        draw_like_alpaca_eval([False, True], "is_switched_outputs", f"One taskgood {i}bad {i}", 0) for i in range(12)
    ]
    assert orders["outputs"] == ["21" if flip else "12" for flip in expected]
    assert len(set(orders["outputs"])) == 2


def test_the_member_is_the_drawn_one_and_is_named_in_the_label(tmp_path: Path) -> None:
    pool = {name: entry(**LETTERS) for name in ("a", "b", "c")}
    ask = FakeJudgeClient(prefers(lambda output: True))
    found = labels(annotator(write(tmp_path, pool)), numbered(8), ask)
    assert [preference.member for preference in found] == MEMBERS


def test_another_seed_of_the_run_asks_anew_and_another_seed_of_the_draws_draws_anew(tmp_path: Path) -> None:
    path = write(tmp_path, {"mine": entry(**LETTERS)})
    ask = FakeJudgeClient(prefers(lambda output: True))
    orders = [[p.order for p in labels(annotator(path), numbered(20), ask, seed)] for seed in (0, 1)]
    assert orders[0] == orders[1]
    assert len(ask.sent) == 40
    assert [p.order for p in labels(annotator(path, seed=5), numbered(20), ask)] != orders[0]
    pairwise = [[p.order for p in labels(annotator(path, draws="pair"), numbered(20), ask, seed)] for seed in (0, 1)]
    assert pairwise[0] != pairwise[1]


def test_weighted_labels_are_probabilities(tmp_path: Path) -> None:
    found = labels(annotator(write(tmp_path, {"w": weighted()})), numbered(4), Weighing())
    assert [p.p2 for p in found] == pytest.approx([0.2 if flip else 0.8 for flip in FLIPS[:4]])


class Weighing(FakeJudgeClient):
    """Finds the second output better with probability 0.8."""

    def __init__(self) -> None:
        super().__init__(lambda request: "M", EVERYTHING)

    def _complete(self, request: ChatRequest) -> Completion:
        return replace(super()._complete(request), logprobs=({"m": math.log(0.2), "M": math.log(0.8)},))


def test_a_batch_whose_answer_cannot_be_read_is_asked_again_pair_by_pair(tmp_path: Path) -> None:
    spoilt = "good 1"

    def answer(request: ChatRequest) -> str:
        if any(spoilt in (c.first, c.second) for c in request.comparisons):
            return "Output (a)"  # one verdict for three comparisons
        return prefers(lambda output: output.startswith("good"))(request)

    path = write(tmp_path, {"three": entry(batch_size=3, **LETTERS)}, {"prompt.txt": batch_template(3)})
    ask = FakeJudgeClient(answer)
    found = labels(annotator(path, max_reasks=1), numbered(5), ask)
    assert [p.outcome for p in found] == ["decided", "unparsed", "decided", "decided", "decided"]
    assert {p.p2 for p in found if p.outcome == "decided"} == {0.0}
    assert [[bool(c.pair_id) for c in request.comparisons] for request in ask.sent] == [
        *([True, True, True], [True, True, False]),
        *([True, False, False], [True, False, False], [True, False, False]),
    ]
    assert found[1].completion, "what could not be read is paid for, and kept"


def test_a_draw_is_a_draw_and_not_asked_again(tmp_path: Path) -> None:
    ask = FakeJudgeClient(lambda request: "5 5\nBoth are fine.")
    path = write(tmp_path, {"scores": entry(fn_completion_parser="lmsys_parser")})
    found = labels(annotator(path), numbered(3), ask)
    assert [(p.outcome, p.p2) for p in found] == [("draw", None)] * 3
    assert len(ask.sent) == 3
    assert labels(annotator(path), numbered(3), ask) == found
    assert len(ask.sent) == 3


def test_refusals_are_told_from_nonsense(tmp_path: Path) -> None:
    class Refusing(FakeJudgeClient):
        def _complete(self, request: ChatRequest) -> Completion:
            return replace(super()._complete(request), finish_reason="refusal")

    path = write(tmp_path, {"mine": entry(**RANK)})
    found = labels(annotator(path, max_reasks=0), numbered(2), Refusing(lambda request: "I would rather not."))
    assert [p.outcome for p in found] == ["refused"] * 2


def test_labels_flipped_by_alpaca_evals_coin_cost_nothing(tmp_path: Path) -> None:
    ask = FakeJudgeClient(prefers(lambda output: output.startswith("good")))
    pairs = numbered(400)
    found = labels(annotator(write(tmp_path, {"mine": entry(**LETTERS)}), p_label_flip=0.25), pairs, ask)
    noisy = [p for p in found if p.source == "noise"]
    assert len(ask.sent) + len(noisy) == 400
    assert 160 < len(noisy) < 240
    assert 0.4 < sum(p.p2 or 0 for p in noisy) / len(noisy) < 0.6
    expected = [
        draw_like_alpaca_eval([0, 1, 2], "noisy_preference", p.instruction.instruction, 0, [0.5, 0.25, 0.25])
        for p in pairs
    ]
    assert [p.p2 for p in noisy] == [value - 1 for value in expected if value]


def test_the_offline_judge_is_no_judge_here_and_the_error_names_one(tmp_path: Path) -> None:
    made = annotator(write(tmp_path, {"mine": entry(**LETTERS)}))
    ask = FakeJudgeClient(identity="offline:text_utility@0")
    for act in (made.annotate, made.plan):
        with pytest.raises(JudgeError, match="made for --judge openai:gpt-4-1106-preview"):
            act(numbered(1), annotate_context(0, ask))
    assert not ask.sent


def test_what_a_judge_cannot_take_is_in_every_label(tmp_path: Path) -> None:
    ask = FakeJudgeClient(lambda request: "M", Capabilities(chat=True))
    found = labels(annotator(write(tmp_path, {"w": weighted()})), numbered(2), ask)
    assert {preference.degraded for preference in found} == {("top_logprobs",)}


def test_the_identity_is_the_content_of_the_files_and_not_their_place(tmp_path: Path) -> None:
    own = {"mine": entry(**LETTERS)}
    first = annotator(write(tmp_path / "here", own)).identity
    assert annotator(write(tmp_path / "there", own)).identity == first
    assert annotator(write(tmp_path / "other", own, {"prompt.txt": COMPARE.replace("Task", "Job")})).identity != first
    warmer = {"mine": entry(asked={"temperature": 0.5}, **LETTERS)}
    assert annotator(write(tmp_path / "warm", warmer)).identity != first


def test_a_changed_template_asks_anew(tmp_path: Path) -> None:
    ask = FakeJudgeClient(prefers(lambda output: True))
    for text in (COMPARE, COMPARE, COMPARE.replace("Task", "Job")):
        labels(annotator(write(tmp_path, {"mine": entry(**LETTERS)}, {"prompt.txt": text})), numbered(3), ask)
    assert len(ask.sent) == 6


def test_a_directory_keeps_the_promises_of_an_annotator(tmp_path: Path) -> None:
    pool = {"a": entry(**LETTERS), "b": entry("two.txt", batch_size=2, **LETTERS)}
    path = write(tmp_path, pool, {"prompt.txt": COMPARE, "two.txt": batch_template(2)})
    check_annotator(annotator(path, draws="pair"))


def test_with_alpaca_evals_draws_labels_do_not_depend_on_the_order_of_pairs_or_on_restarts(tmp_path: Path) -> None:
    path = write(tmp_path, {"mine": entry(**LETTERS)})
    pairs = make_pairs([Instruction(f"Task {i}") for i in range(24)])
    straight = {p.pair_id: p for p in labels(annotator(path), pairs, FakeJudgeClient())}
    parts = [labels(annotator(path), pairs[i : i + 5][::-1], FakeJudgeClient()) for i in range(0, len(pairs), 5)]
    again = {p.pair_id: p for part in parts for p in part}
    assert {i: p.p2 for i, p in again.items()} == {i: p.p2 for i, p in straight.items()}


def test_a_wrong_directory_is_a_problem_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no evaluator directory"):
        annotator(str(tmp_path / "nowhere"))


def test_labels_name_their_judge_and_those_of_the_coin_none(tmp_path: Path) -> None:
    ask = FakeJudgeClient(prefers(lambda output: output.startswith("good")))
    made = annotator(write(tmp_path, {"mine": entry(**LETTERS)}), p_label_flip=0.25)
    found = labels(made, numbered(40), ask)
    assert {p.source: p.judge for p in found} == {"judge": ask.judge("strong"), "noise": ""}
