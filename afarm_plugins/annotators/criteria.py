"""`criteria`: each output scored alone from 1 to 7, by criteria that were drawn up once for its instruction.

    1. once an instruction: a few auxiliary answers are compared, and what matters in them becomes a list of criteria;
    2. once an output: it is marked by those criteria, with no other output in sight.

So a further system costs its own outputs and no more: the criteria and the reference's marks are in the ledger. The
auxiliary answers come from files of outputs (`criteria.auxiliary`), never from the pair at hand: criteria must not
depend on which systems are being compared. Without files the criteria are drawn up from the instruction alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from afarm import (
    AnnotateContext,
    Annotator,
    ChatRequest,
    Judgement,
    Pair,
    Preference,
    ShownPair,
    read_outputs,
    seeding,
)
from afarm.core.judge import CHARACTERS_PER_TOKEN
from afarm.judging.pairwise import Look, foresee, gather
from afarm_plugins.annotators import CriteriaConfig
from afarm_plugins.annotators.bound_prompt import assign
from afarm_plugins.annotators.parsing import parse_criteria
from afarm_plugins.annotators.prompt_library import Library, Member, environment
from afarm_plugins.annotators.ratings import ALONE, label_of, outputs_of

Criteria = Mapping[str, Sequence[str]]
"""The criteria by the id of their instruction."""


class CriteriaAnnotator(Annotator):
    """See the module. In the ledger a score is on the scale from 0 (the mark 1) to 1 (the mark 7)."""

    rates = True

    def __init__(self, config: CriteriaConfig):
        self.config = config
        self.drafting = self._member("criteria", "criteria", config.criteria_tokens)
        self.marking = self._member("criteria_rating", "rating", config.max_tokens)

    def _member(self, prompt: str, answer_format: str, max_tokens: int) -> Member:
        entry = {"prompt": prompt, "answer_format": answer_format, "max_tokens": max_tokens, "batch_size": 1}
        entry |= self.config.model_dump(include={"role", "temperature"})
        return Library("criteria", {"criteria": entry}, {}, environment()).member("criteria")

    @property
    def identity(self) -> str:
        """A digest of the auxiliary answers; empty without any."""
        answers = {i: sorted(found) for i, found in self._auxiliary.items()}
        return seeding.digest(sorted(answers.items())) if answers else ""

    @cached_property
    def _auxiliary(self) -> dict[str, set[str]]:
        """The distinct answers to each instruction, by its id. Raises `DataError` naming the file that is wrong."""
        found: dict[str, set[str]] = {}
        for path in self.config.auxiliary:
            for row in read_outputs(Path(path).expanduser()):
                found.setdefault(row.instruction.id, set()).add(row.output)
        return found

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """One preference a pair, in order; "unparsed" (or "refused") where criteria or a mark could not be read."""
        if not pairs:
            return []
        drafts = self._drafts(pairs, context)
        drafted = gather(drafts, self.config.max_reasks + 1, context)
        criteria = self._read(drafts, [i for i, found in drafted.items() if found.p_first_shown is not None], context)
        looks = self._looks(pairs, drafts, criteria, context)
        marks = gather(looks, self.config.max_reasks + 1, context)
        by = next(iter(drafts.values())).by

        def judged(pair: Pair, output: str) -> Judgement:
            i = pair.instruction.id
            return marks.get((i, output), drafted[i])

        return [label_of(pair, judged(pair, pair.output_1), judged(pair, pair.output_2), by) for pair in pairs]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """What `annotate` would send now; where criteria are to be shown, a text as long as they may be stands in."""
        if not pairs:
            return []
        drafts = self._drafts(pairs, context)
        stand_in = ["x" * (self.config.criteria_tokens * CHARACTERS_PER_TOKEN)]
        looks = self._looks(pairs, drafts, dict.fromkeys(drafts, stand_in), context)
        rounds = self.config.max_reasks + 1
        return foresee(drafts, rounds, context) + foresee(looks, rounds, context)

    def _drafts(self, pairs: Iterable[Pair], context: AnnotateContext) -> dict[str, Look]:
        """The question for criteria about each instruction, by its id."""
        instructions = {pair.instruction.id: pair.instruction for pair in pairs}
        shown, given = {}, {}
        for i, instruction in instructions.items():
            answers = self._drawn(i, context.seed)
            shown[i] = ShownPair(seeding.digest("criteria", i, answers), instruction, "", "", ALONE)
            given[shown[i].pair_id] = {"answers": answers}
        by = replace(assign(self.drafting, context.ask), given=given)
        return {i: Look(by, comparison) for i, comparison in shown.items()}

    def _drawn(self, instruction_id: str, seed: int) -> list[str]:
        """The auxiliary answers that are shown, in the order in which they are."""
        drawn = sorted(
            self._auxiliary.get(instruction_id, ()),
            key=lambda a: (seeding.uniform(seed, "auxiliary", instruction_id, a), a),
        )
        return drawn[: self.config.n_auxiliary]

    def _read(self, drafts: Mapping[str, Look], drafted: Sequence[str], context: AnnotateContext) -> Criteria:
        """The criteria of the instructions `drafted`. Their answers were all received: none is bought here."""
        found: dict[str, list[str]] = {}
        for reask in range(self.config.max_reasks + 1):
            waiting = [i for i in drafted if i not in found]
            questions = [drafts[i].question(reask, context.seed) for i in waiting]
            requests = [
                q.by.request([q.comparison], seed=q.key.seed, sample_index=q.key.sample_index) for q in questions
            ]
            for index, completion in context.ask.stream(requests):
                if criteria := parse_criteria(completion.text):
                    found[waiting[index]] = criteria
        return found

    def _looks(
        self, pairs: Sequence[Pair], drafts: Mapping[str, Look], criteria: Criteria, context: AnnotateContext
    ) -> dict[tuple[str, str], Look]:
        """Every output by itself, where its instruction has criteria; by the instruction's id and the output."""
        shown, given = {}, {}
        for instruction, output in outputs_of(pairs):
            draft = drafts[instruction.id]
            if instruction.id in criteria:
                mark_id = seeding.digest("marked", draft.shown.pair_id, output)
                shown[instruction.id, output] = ShownPair(mark_id, instruction, output, "", ALONE)
                given[mark_id] = {"criteria": criteria[instruction.id]}
        by = assign(self.marking, context.ask)
        # Another way to draw up criteria, or another judge that does, makes other marks.
        by = replace(
            by, given=given, fingerprint=seeding.digest(by.fingerprint, next(iter(drafts.values())).by.fingerprint)
        )
        return {slot: Look(by, comparison) for slot, comparison in shown.items()}
