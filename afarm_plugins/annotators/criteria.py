"""`criteria`: each output scored alone from 1 to 7, by criteria drawn up once per instruction.

    1. once per instruction: a few auxiliary answers are compared, and what matters in them becomes a list of criteria;
    2. once per output: it is marked by those criteria, with no other output in sight.

So a further system costs its own outputs and no more: the criteria and the reference's marks are in the ledger. The
auxiliary answers come from files of outputs (`criteria.auxiliary`), never from the pair at hand: criteria must not
depend on which systems are being compared. Without files the criteria are drawn up from the instruction alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from afarm import AnnotateContext, Annotator, ChatRequest, Judgement, Pair, Preference, ShownPair, read_outputs, seeding
from afarm.judging import Presentation, collect_judgements, pending_requests
from afarm_plugins.annotators.bound_prompt import bind
from afarm_plugins.annotators.parsing import parse_criteria
from afarm_plugins.annotators.prompt_library import Library, PoolMember, environment
from afarm_plugins.annotators.ratings import ALONE, compare_ratings, list_outputs
from afarm_plugins.annotators.settings import CriteriaConfig

USUAL_CRITERION = "It says what was asked for, in words that the reader of this task is at home with, and no more."
"""Stands for a criterion that is not drawn up yet, in plans."""

Criteria = Mapping[str, Sequence[str]]
"""The criteria by the id of their instruction."""


class CriteriaAnnotator(Annotator):
    """See the module. In the ledger a score is on the scale from 0 (the mark 1) to 1 (the mark 7)."""

    rates = True

    def __init__(self, config: CriteriaConfig):
        self.config = config
        self.drafting = self._member("criteria", "criteria", config.criteria_tokens)
        self.marking = self._member("criteria_rating", "rating", config.max_tokens)

    def _member(self, prompt: str, answer_format: str, max_tokens: int) -> PoolMember:
        entry = {"prompt": prompt, "answer_format": answer_format, "max_tokens": max_tokens, "batch_size": 1}
        entry |= self.config.model_dump(include={"role", "temperature"})
        return Library("criteria", {"criteria": entry}, {}, environment()).member("criteria")

    @property
    def identity(self) -> str:
        """A digest of the auxiliary answers; empty without any."""
        answers = {i: sorted(outputs) for i, outputs in self._auxiliary.items()}
        return seeding.digest(sorted(answers.items())) if answers else ""

    @cached_property
    def _auxiliary(self) -> dict[str, set[str]]:
        """The distinct answers to each instruction, by its id. Raises `DataError` naming a bad file."""
        answers: dict[str, set[str]] = {}
        for path in self.config.auxiliary:
            for row in read_outputs(Path(path).expanduser()):
                answers.setdefault(row.instruction.id, set()).add(row.output)
        return answers

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """Label pairs by their outputs' marks; "unparsed" or "refused" without readable criteria or marks."""
        if not pairs:
            return []
        attempts = self.config.max_reasks + 1
        drafts = self._drafts(pairs, context)
        drafted = collect_judgements(drafts, attempts, context)
        readable = [i for i, judgement in drafted.items() if judgement.p_first_shown is not None]
        criteria = self._read_criteria(drafts, readable, context)
        marks = collect_judgements(self._markings(pairs, drafts, criteria, context), attempts, context)
        prompt = next(iter(drafts.values())).prompt

        def judged(pair: Pair, output: str) -> Judgement:
            i = pair.instruction.id
            return marks.get((i, output), drafted[i])

        return [
            compare_ratings(pair, judged(pair, pair.output_1), judged(pair, pair.output_2), prompt) for pair in pairs
        ]

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """List the requests `annotate` would send now, with criteria of the usual length as a stand-in."""
        if not pairs:
            return []
        attempts = self.config.max_reasks + 1
        drafts = self._drafts(pairs, context)
        stand_in = [USUAL_CRITERION] * 4
        markings = self._markings(pairs, drafts, dict.fromkeys(drafts, stand_in), context)
        return pending_requests(drafts, attempts, context) + pending_requests(markings, attempts, context)

    def _drafts(self, pairs: Iterable[Pair], context: AnnotateContext) -> dict[str, Presentation]:
        instructions = {pair.instruction.id: pair.instruction for pair in pairs}
        shown, fields = {}, {}
        for i, instruction in instructions.items():
            places = {a: seeding.uniform(context.seed, "auxiliary", i, a) for a in self._auxiliary.get(i, ())}
            answers = sorted(places, key=lambda a: (places[a], a))[: self.config.n_auxiliary]
            shown[i] = ShownPair(seeding.digest("criteria", i, answers), instruction, "", "", ALONE)
            fields[shown[i].pair_id] = {"answers": answers}
        prompt = replace(bind(self.drafting, context.ask), fields=fields)
        return {i: Presentation(prompt, pair) for i, pair in shown.items()}

    def _read_criteria(
        self, drafts: Mapping[str, Presentation], drafted: Sequence[str], context: AnnotateContext
    ) -> Criteria:
        """The criteria of the instructions `drafted`. Their answers were all received: none is bought here."""
        criteria: dict[str, list[str]] = {}
        for attempt in range(self.config.max_reasks + 1):
            waiting = [i for i in drafted if i not in criteria]
            requests = [drafts[i].draw(attempt, context.seed).request() for i in waiting]
            for index, completion in context.ask.stream(requests):
                if lines := parse_criteria(completion.text):
                    criteria[waiting[index]] = lines
        return criteria

    def _markings(
        self, pairs: Sequence[Pair], drafts: Mapping[str, Presentation], criteria: Criteria, context: AnnotateContext
    ) -> dict[tuple[str, str], Presentation]:
        """Every output by itself whose instruction has criteria; by the instruction's id and the output."""
        shown, fields = {}, {}
        for instruction, output in list_outputs(pairs):
            draft = drafts[instruction.id]
            if instruction.id in criteria:
                mark_id = seeding.digest("marked", draft.pair.pair_id, output)
                shown[instruction.id, output] = ShownPair(mark_id, instruction, output, "", ALONE)
                fields[mark_id] = {"criteria": criteria[instruction.id]}
        prompt = bind(self.marking, context.ask)
        # Another way to draw up criteria, or another judge that does, makes other marks.
        drafting = next(iter(drafts.values())).prompt.fingerprint
        prompt = replace(prompt, fields=fields, fingerprint=seeding.digest(prompt.fingerprint, drafting))
        return {slot: Presentation(prompt, pair) for slot, pair in shown.items()}
