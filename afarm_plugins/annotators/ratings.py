"""`ratings`: each output scored alone from 1 to 7; the better score is preferred, equal ones are a draw.

Scoring alone and comparing side by side disagree often: worth having both. An output that stands in several pairs is
scored once, since a score is filed under the instruction and the output, not under the pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from afarm.interfaces import AnnotateContext, Annotator
from afarm.judges import ChatRequest, Comparison, Judgement, JudgementKey
from afarm.keyed import digest
from afarm.records import Instruction, Pair, Preference
from afarm_plugins.annotators import RatingsConfig
from afarm_plugins.annotators.members import Library, environment
from afarm_plugins.annotators.questions import Assigned, Pose, Question, assign, foresee, gather

ALONE = "alone"
"""The order under which scores are filed: nothing else is shown."""


class RatingsAnnotator(Annotator):
    """See the module. In the ledger a score is on the scale from 0 (the mark 1) to 1 (the mark 7)."""

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
        slots = _slots(pairs, by, context)
        answers = gather(slots, self.config.max_reasks + 1, context)
        return [
            _label(
                pair,
                answers[_id(pair.instruction, pair.output_1)][1],
                answers[_id(pair.instruction, pair.output_2)][1],
                by,
            )
            for pair in pairs
        ]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """What `annotate` would send now: the outputs that have no score yet."""
        if not pairs:
            return []
        slots = _slots(pairs, assign(self.member, context.ask), context)
        return foresee(slots, self.config.max_reasks + 1, context)


def _id(instruction: Instruction, output: str) -> str:
    return digest("rated", instruction.id, output)


def _slots(pairs: Sequence[Pair], by: Assigned, context: AnnotateContext) -> dict[str, Pose]:
    return {
        _id(pair.instruction, output): _pose(pair.instruction, output, by, context.seed)
        for pair in pairs
        for output in (pair.output_1, pair.output_2)
    }


def _pose(instruction: Instruction, output: str, by: Assigned, seed: int) -> Pose:
    rated = _id(instruction, output)

    def pose(reask: int) -> Question:
        shown = Comparison(rated, instruction, output, "", ALONE, reask)
        key = JudgementKey(by.fingerprint, rated, ALONE, seed, reask)
        return Question(key, shown, by, batch=reask, again=reask > 0)

    return pose


def _label(pair: Pair, one: Judgement, two: Judgement, by: Assigned) -> Preference:
    outcome, p2 = "decided", None
    if one.first is None or two.first is None:
        outcome = "refused" if "refused" in (one.outcome, two.outcome) else "unparsed"
    elif one.first == two.first:
        outcome = "draw"
    else:
        p2 = float(two.first > one.first)
    return Preference(
        pair_id=pair.id,
        p2=p2,
        outcome=outcome,  # type: ignore[arg-type]
        completion=",".join(dict.fromkeys([one.completion, two.completion])),
        degraded=by.degraded,
    )
