"""`ratings`: each output scored alone from 1 to 7; the better score is preferred, equal ones are a draw.

Scoring alone and comparing side by side disagree often: worth having both. An output that stands in several pairs is
scored once, since a score is filed under the instruction and the output, not under the pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from afarm import AnnotateContext, Annotator, ChatRequest, Instruction, Judgement, Pair, Preference, ShownPair, seeding
from afarm.judging.pairwise import JudgePrompt, Look, foresee, gather
from afarm_plugins.annotators import RatingsConfig
from afarm_plugins.annotators.bound_prompt import Assigned, assign
from afarm_plugins.annotators.parsing import mark
from afarm_plugins.annotators.prompt_library import Library, environment

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
        """One preference a pair, in order; "unparsed" (or "refused") where either output got no readable score."""
        if not pairs:
            return []
        by = assign(self.member, context.ask)
        answers = gather(_looks(pairs, by), self.config.max_reasks + 1, context)
        return [
            label_of(
                pair,
                answers[_id(pair.instruction, pair.output_1)],
                answers[_id(pair.instruction, pair.output_2)],
                by,
            )
            for pair in pairs
        ]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """What `annotate` would send now: the outputs that have no score yet."""
        if not pairs:
            return []
        looks = _looks(pairs, assign(self.member, context.ask))
        return foresee(looks, self.config.max_reasks + 1, context)


def _id(instruction: Instruction, output: str) -> str:
    return seeding.digest("rated", instruction.id, output)


def _looks(pairs: Sequence[Pair], by: Assigned) -> dict[str, Look]:
    """Every output by itself."""
    rated = {_id(instruction, output): (instruction, output) for instruction, output in outputs_of(pairs)}
    return {i: Look(by, ShownPair(i, instruction, output, "", ALONE)) for i, (instruction, output) in rated.items()}


def outputs_of(pairs: Sequence[Pair]) -> list[tuple[Instruction, str]]:
    """Each output of `pairs` once, with its instruction."""
    found = {(pair.instruction.id, o): pair.instruction for pair in pairs for o in (pair.output_1, pair.output_2)}
    return [(instruction, output) for (_, output), instruction in found.items()]


def label_of(pair: Pair, one: Judgement, two: Judgement, by: JudgePrompt) -> Preference:
    """The label that follows from the marks of a pair's outputs, and the marks beside it (from 1 to 7)."""
    outcome, p2, marks = "decided", None, None
    if one.p_first_shown is None or two.p_first_shown is None:
        outcome = "refused" if "refused" in (one.outcome, two.outcome) else "unparsed"
    else:
        marks = mark(one.p_first_shown), mark(two.p_first_shown)
        outcome, p2 = ("draw", None) if marks[0] == marks[1] else ("decided", float(marks[1] > marks[0]))
    return Preference(
        pair_id=pair.id,
        p2=p2,
        outcome=outcome,  # type: ignore[arg-type]
        completion=",".join(dict.fromkeys([one.completion, two.completion])),
        degraded=by.degraded,
        judge=by.judge,
        scores=marks,
    )
