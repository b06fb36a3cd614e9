"""`ratings`: each output scored alone from 1 to 7. The better score is preferred, equal ones draw.

Scoring alone and comparing side by side disagree often: worth having both. An output that stands in several pairs is
scored once, since a score is filed under the instruction and the output, not under the pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from afarm import AnnotateContext, Annotator, ChatRequest, Instruction, Judgement, Pair, Preference, ShownPair, seeding
from afarm.judging import JudgePrompt, Presentation, collect_judgements, pending_requests
from afarm_plugins.annotators.bound_prompt import BoundPrompt, bind
from afarm_plugins.annotators.parsing import mark
from afarm_plugins.annotators.prompt_library import Library, environment
from afarm_plugins.annotators.settings import RatingsConfig

ALONE = "alone"
"""The order under which scores are filed: nothing else is shown."""


class RatingsAnnotator(Annotator):
    """See the module. In the ledger a score is on the scale from 0 (the mark 1) to 1 (the mark 7)."""

    rates = True

    def __init__(self, config: RatingsConfig):
        self.config = config
        entry = {"prompt": "rating", "answer_format": "rating", "batch_size": 1}
        entry |= config.model_dump(include={"role", "max_tokens", "temperature"})
        self.member = Library("ratings", {"ratings": entry}, {}, environment()).member("ratings")

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """Label each pair from its outputs' scores; "unparsed" (or "refused") if either got no readable score."""
        if not pairs:
            return []
        prompt = bind(self.member, context.ask)
        answers = collect_judgements(_presentations(pairs, prompt), self.config.max_reasks + 1, context)
        return [
            compare_ratings(
                pair,
                answers[_id(pair.instruction, pair.output_1)],
                answers[_id(pair.instruction, pair.output_2)],
                prompt,
            )
            for pair in pairs
        ]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """The requests that `annotate` would send now: about the outputs that have no score yet."""
        if not pairs:
            return []
        presentations = _presentations(pairs, bind(self.member, context.ask))
        return pending_requests(presentations, self.config.max_reasks + 1, context)


def _id(instruction: Instruction, output: str) -> str:
    return seeding.digest("rated", instruction.id, output)


def _presentations(pairs: Sequence[Pair], prompt: BoundPrompt) -> dict[str, Presentation]:
    outputs = {_id(instruction, output): (instruction, output) for instruction, output in list_outputs(pairs)}
    return {
        output_id: Presentation(prompt, ShownPair(output_id, instruction, output, "", ALONE))
        for output_id, (instruction, output) in outputs.items()
    }


def list_outputs(pairs: Sequence[Pair]) -> list[tuple[Instruction, str]]:
    outputs = {(pair.instruction.id, o): pair.instruction for pair in pairs for o in (pair.output_1, pair.output_2)}
    return [(instruction, output) for (_, output), instruction in outputs.items()]


def compare_ratings(pair: Pair, first: Judgement, second: Judgement, prompt: JudgePrompt) -> Preference:
    """Derive a pair's label from the judgements of its two outputs; `scores` are their marks, 1 to 7."""
    outcome, p2, marks = "decided", None, None
    if first.p_first_shown is None or second.p_first_shown is None:
        outcome = "refused" if "refused" in (first.outcome, second.outcome) else "unparsed"
    else:
        marks = mark(first.p_first_shown), mark(second.p_first_shown)
        outcome, p2 = ("draw", None) if marks[0] == marks[1] else ("decided", float(marks[1] > marks[0]))
    return Preference(
        pair_id=pair.id,
        p2=p2,
        outcome=outcome,  # type: ignore[arg-type]
        completion=",".join(dict.fromkeys([first.completion, second.completion])),
        degraded=prompt.degraded,
        judge=prompt.judge,
        scores=marks,
    )
