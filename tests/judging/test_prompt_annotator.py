"""An annotator as a stranger writes it: `render` and `read`, from `afarm` and `afarm.judging` alone."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_judges import ScriptedJudge

from afarm import Instruction, Message, Pair, PluginError, ShownPair, setting
from afarm.core.judge import Capabilities, Judgement
from afarm.judging import JudgingConfig, ParsedVerdict, PromptAnnotator, annotate_in_chunks
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
from afarm.testing import FakeJudgeClient, annotate_context, check_annotator, make_instructions, make_pairs, unreadable


class Impatient(PromptAnnotator):
    """Several pairs per prompt, answered by one numbered line each."""

    role = "light"
    batch_size = 3
    max_tokens = 30
    answer_format = "list"

    def render(self, pairs: Sequence[ShownPair]) -> str:
        tasks = [
            f"{n}. Task: {pair.instruction.instruction} {pair.instruction.input}\n"
            f"Output (a): {pair.first}\nOutput (b): {pair.second}"
            for n, pair in enumerate(pairs, start=1)
        ]
        return "Which is sooner read? Answer each task with a line such as `1. Output (a)`.\n\n" + "\n".join(tasks)

    def read(self, text: str, count: int) -> list[ParsedVerdict]:
        letters = dict(re.findall(r"^(\d+)\. Output \(([ab])\)$", text, re.MULTILINE))
        return [{"a": 1.0, "b": 0.0}.get(letters.get(str(n), "")) for n in range(1, count + 1)]


class Letters(PromptAnnotator):
    """One pair per chat, in labels of its own that can say a draw."""

    answer_format = "labels"
    labels = ("first", "second", "same")

    def render(self, pairs: Sequence[ShownPair]) -> list[Message]:
        [pair] = pairs
        task = f"{pair.instruction.instruction}\n\n{pair.first}\n---\n{pair.second}"
        return [Message("system", "Answer first, second or same."), Message("user", task)]

    def read(self, text: str, count: int) -> list[ParsedVerdict]:
        verdicts: dict[str, ParsedVerdict] = {"first": 1.0, "second": 0.0, "same": "draw"}
        return [verdicts.get(text.strip())]


PAIRS = make_pairs(make_instructions(24))[:24]


@pytest.mark.parametrize("annotator", [Impatient, Letters])
@pytest.mark.parametrize(
    "settings", [{}, {"both_orders": True}, {"votes": 3, "vote": "mean"}, {"both_orders": True, "votes": 2}]
)
def test_two_methods_make_an_annotator_that_keeps_every_promise(
    annotator: type[PromptAnnotator], settings: dict[str, Any]
) -> None:
    check_annotator(annotator(JudgingConfig(**settings)))


def test_pairs_share_prompts_and_votes_and_orders_do_not() -> None:
    ask = FakeJudgeClient()
    annotator = Impatient(JudgingConfig(both_orders=True, votes=2))
    planned = annotator.plan(PAIRS, annotate_context(0, ask))
    annotator.annotate(PAIRS, annotate_context(0, ask))
    assert len(planned) == len(ask.sent) == 4 * 8
    assert {len(request.comparisons) for request in ask.sent} == {3}
    assert all(len({(c.order, c.sample_index) for c in request.comparisons}) <= 2 for request in ask.sent)
    for request in ask.sent:
        assert len({c.pair_id for c in request.comparisons}) == 3
    assert {request.sample_index for request in ask.sent} == {0, 100}
    request = ask.sent[0]
    assert (request.role, request.max_tokens, request.annotator, request.seed) == ("light", 30, "Impatient", 0)
    assert annotator.plan(PAIRS, annotate_context(0, ask)) == []


def test_what_cannot_be_read_is_asked_again_alone() -> None:
    ask = FakeJudgeClient(unreadable)
    labels = Impatient(JudgingConfig(max_reasks=1)).annotate(PAIRS[:12], annotate_context(0, ask))
    assert {label.outcome for label in labels} == {"unparsed"}
    assert [len(request.comparisons) for request in ask.sent] == [3] * 4 + [1] * 12


def test_draws_and_probabilities_become_labels_in_the_pairs_own_order() -> None:
    class Says(Letters):
        def read(self, text: str, count: int) -> list[ParsedVerdict]:
            return ["draw"] if "same" in text else [float(text)]

    pairs = [Pair(Instruction(f"Task {i}."), "aa", "b") for i in range(20)]
    same = Says().annotate(pairs, annotate_context(0, FakeJudgeClient(lambda request: "same")))
    assert {(label.outcome, label.p2) for label in same} == {("draw", None)}
    torn = FakeJudgeClient(lambda request: "0.75" if request.comparisons[0].first == "aa" else "0.25")
    labels = Says().annotate(pairs, annotate_context(0, torn))
    assert {(label.outcome, label.p2, label.member) for label in labels} == {("decided", 0.25, "Says")}
    assert {label.order for label in labels} == {"12", "21"}


def test_a_probability_of_numpy_is_one() -> None:
    class Says(Letters):
        def read(self, text: str, count: int) -> list[ParsedVerdict]:
            return [np.float32(0.75)]  # type: ignore[list-item]

    [label] = Says().annotate(PAIRS[:1], annotate_context(0, FakeJudgeClient()))
    assert label.p2 in (0.25, 0.75)
    assert type(label.p2) is float


def test_with_another_number_of_verdicts_none_can_be_told_whose_it_is() -> None:
    class Short(Impatient):
        def read(self, text: str, count: int) -> list[ParsedVerdict]:
            return [1.0]

    ask = FakeJudgeClient()
    labels = Short(JudgingConfig(max_reasks=0)).annotate(PAIRS, annotate_context(0, ask))
    assert {label.outcome for label in labels} == {"unparsed"}
    decided = Short(JudgingConfig()).annotate(PAIRS, annotate_context(0, ask))  # alone, one verdict is theirs
    assert {label.outcome for label in decided} == {"decided"}


@pytest.mark.parametrize("wrong", [7.0, -0.5, float("nan"), "first"])
def test_a_verdict_that_is_no_probability_is_an_error_of_the_plugin(wrong: Any) -> None:
    class Wrong(Letters):
        def read(self, text: str, count: int) -> list[ParsedVerdict]:
            return [wrong]

    context = annotate_context(0, FakeJudgeClient())
    with pytest.raises(PluginError, match=r"Wrong\.read must return probabilities from 0 to 1"):
        list(annotate_in_chunks(PAIRS, Wrong(), "pkg/wrong", context))


def test_a_refusal_is_told_from_an_answer_that_cannot_be_read() -> None:
    class Refusing(FakeJudgeClient):
        def _complete(self, request):  # type: ignore[no-untyped-def]
            from dataclasses import replace

            return replace(super()._complete(request), finish_reason="refusal")

    [label] = Letters(JudgingConfig(max_reasks=0)).annotate(
        PAIRS[:1], annotate_context(0, Refusing(lambda request: "No."))
    )
    assert label.outcome == "refused"


def test_a_text_is_completed_by_a_judge_that_does_not_chat() -> None:
    ask = FakeJudgeClient(capabilities=Capabilities(chat=False, completion=True))
    Impatient().annotate(PAIRS[:3], annotate_context(0, ask))
    [request] = ask.sent
    assert not request.messages
    assert request.prompt.startswith("Which is")


def test_settings_of_its_own_ask_anew_and_votes_do_not() -> None:
    class Config(JudgingConfig):
        persona: str = setting("a critic", "who judges")

    class Persona(Letters):
        def render(self, pairs: Sequence[ShownPair]) -> list[Message]:
            return [Message("system", getattr(self.config, "persona", "nobody")), *super().render(pairs)]

    ask = FakeJudgeClient()
    context = annotate_context(0, ask)
    Persona(Config()).annotate(PAIRS, context)
    assert len(Persona(Config(votes=2)).plan(PAIRS, context)) == len(PAIRS)
    Persona(Config(votes=2)).annotate(PAIRS, context)
    assert len(ask.sent) == 2 * len(PAIRS)
    assert len(Persona(Config(persona="a poet")).plan(PAIRS, context)) == len(PAIRS)


MODULE = """
import sys
from pathlib import Path
from afarm.judging import PromptAnnotator
from afarm.testing import annotate_context, make_instructions, make_pairs
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
sys.path += sys.argv[1:3]
from scripted_judges import ScriptedJudge
from stranger import Stranger

judge = ScriptedJudge(log=Path(sys.argv[2]) / "asked")
judge.capabilities = type(judge.capabilities)(chat=False, completion=True)
with Ledger(Path(sys.argv[2]) / "ledger.sqlite") as ledger:
    ask = JudgeClient({"*": judge}, ledger)
    labels = Stranger().annotate(make_pairs(make_instructions(6))[:6], annotate_context(0, ask))
    ask.close()
print({label.p2 if label.order == "12" else 1 - label.p2 for label in labels})
"""
STRANGER = """
from afarm.judging import PromptAnnotator

class Stranger(PromptAnnotator):
    def render(self, pairs):
        return "Which?" + pairs[0].instruction.instruction + pairs[0].first + "/" + pairs[0].second

    def read(self, text, count):
        return [1.0]
"""


def test_another_way_to_read_answers_reads_them_again_and_buys_none(tmp_path: Path) -> None:
    def run() -> str:
        support = Path(__file__).parents[1] / "support"
        command = [sys.executable, "-c", MODULE, str(support), str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def asked() -> int:
        return len((tmp_path / "asked").read_text().splitlines())

    (tmp_path / "stranger.py").write_text(STRANGER)
    assert run() == "{0.0}"
    assert asked() == 6
    (tmp_path / "stranger.py").write_text(STRANGER.replace("[1.0]", "[0.25]"))
    assert run() == "{0.75}"
    assert asked() == 6
    (tmp_path / "stranger.py").write_text(STRANGER.replace("Which?", "Whether?"))
    run()
    assert asked() == 12


def test_the_judge_must_take_what_the_prompt_needs(tmp_path: Path) -> None:
    class Cold(Letters):
        temperature = 0.0

    judge = ScriptedJudge()
    judge.capabilities = Capabilities(temperature=False)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ask = JudgeClient({"*": judge}, ledger)
        with pytest.raises(Exception, match="takes no temperature, which Cold asks for"):
            Cold().annotate(PAIRS, annotate_context(0, ask))
        ask.close()
    assert judge.asked == []


def test_a_judgement_names_its_answer() -> None:
    from afarm.core.judge import Completion
    from afarm.judging import build_judgements

    answer = Completion("", key="k")
    assert build_judgements(answer, [0.0, "draw", None]) == [
        Judgement(0.0, "decided", "k"),
        Judgement(None, "draw", "k"),
        Judgement(None, "unparsed", "k"),
    ]
