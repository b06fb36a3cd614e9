"""Verdicts of judges: from afarm's annotators, in both orders, or read from stored answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from afarm import AnnotateContext, ConfigError, DataError, Pair
from afarm.experiments import Workspace, attribute_failures, requests_planned, stored_answers
from afarm.judging import PairwiseAnnotator, Presentation, annotate_in_chunks, collect_judgements, pending_requests
from afarm_judge_bench.items import TIE, Group, Verdict


@dataclass(frozen=True)
class Verdicts:
    """A judge's verdicts of all items, in their order.

    `pairs` has the verdict with the file's first output shown first, and the one with it shown second, both in the
    pair's own terms (1.0: its second output is better). `orders` is 1 if only the file's order was judged, and 0 if
    the judge knows no order: both verdicts go by the same answers. `keys` are those of its answers in the ledger,
    `judges` are its identities. `scores` are those of each group's answers, for sets that are scored so.
    """

    name: str
    pairs: tuple[tuple[Verdict, Verdict], ...] = ()
    orders: int = 2
    judges: tuple[str, ...] = ()
    dollars: float | None = None
    seconds: float | None = None
    calls: int = 0
    scores: tuple[tuple[float, ...], ...] = ()
    notes: tuple[str, ...] = field(default=())


def _context(workspace: Workspace) -> AnnotateContext:
    return AnnotateContext(workspace.seed("judge bench"), workspace.judges.client, workspace.progress)


Slot = tuple[int, str, int]
"""Number of the pair, the order in which it is shown ("12" or "21"), and the vote."""


def _presentations(
    pairs: Sequence[Pair], annotator: PairwiseAnnotator, context: AnnotateContext
) -> dict[Slot, Presentation]:
    """List every vote in both orders, of the pairs that are not settled by rule."""
    open_pairs = [number for number, pair in enumerate(pairs) if not pair.identical]
    slots: dict[Slot, Presentation] = {}
    for number, drawn in zip(open_pairs, annotator.present([pairs[n] for n in open_pairs], context), strict=True):
        for shown in (drawn, drawn.swapped()):
            order = "12" if (shown.pair.order == "ab") == pairs[number].is_canonical else "21"
            slots |= {(number, order, vote): replace(shown, vote=vote) for vote in range(annotator.config.votes)}
    return slots


def plan_verdicts(workspace: Workspace, name: str, pairs: Sequence[Pair], context: AnnotateContext) -> list[object]:
    """List the requests that `ask_verdicts` would send now."""
    annotator = workspace.components.annotator(name)
    if isinstance(annotator, PairwiseAnnotator):
        attempts = annotator.config.max_reasks + 1
        return [*pending_requests(_presentations(pairs, annotator, context), attempts, context)]
    open_pairs = [pair for pair in pairs if not pair.identical]
    each = (requests_planned(annotator, name, open_pairs, replace(context, order=order)) for order in ("12", "21"))
    return [request for requests in each for request in requests]


def ask_verdicts(workspace: Workspace, name: str, shown_as: str, pairs: Sequence[Pair]) -> Verdicts:
    """Have an annotator judge pairs, in both orders if it shows them to a judge, itself or as a jury.

    What the ledger has is not asked for again, so a killed command goes on. Raises `JudgeError` and `BudgetError` as
    asking does.
    """
    annotator, context = workspace.components.annotator(name), _context(workspace)
    if isinstance(annotator, PairwiseAnnotator):
        return _ask_both_orders(workspace, name, shown_as, annotator, pairs)
    first = list(annotate_in_chunks(pairs, annotator, name, replace(context, order="12")))
    second = first
    if any(row.preference.completion for row in first):  # it asks judges: a jury in the other order, or one that rates
        second = list(annotate_in_chunks(pairs, annotator, name, replace(context, order="21")))
    both = list(zip(first, second, strict=True))
    orders = 2 if any(a.preference.completion != b.preference.completion for a, b in both) else 0
    keys = [key for row in (*first, *second) for key in row.preference.completion.split(",") if key]
    asked = {row.preference.judge for row in first} - {""}
    if keys and not asked:  # a jury's verdict is of several
        asked = {judge.identity for judge in workspace.judges.answering([name]).values()}
    wins = tuple((a.win, b.win) for a, b in both)
    return _with_costs(workspace, Verdicts(shown_as, wins, orders, tuple(sorted(asked))), keys)


def _ask_both_orders(
    workspace: Workspace, name: str, shown_as: str, annotator: PairwiseAnnotator, pairs: Sequence[Pair]
) -> Verdicts:
    config, context = annotator.config, _context(workspace)
    attempts = config.max_reasks + 1
    with attribute_failures("annotators", name, annotator):
        slots = _presentations(pairs, annotator, context)
        answers = collect_judgements(slots, attempts, context)
    votes: dict[tuple[int, str], list[Verdict]] = {}
    for (number, order, _), answer in answers.items():
        first = TIE if answer.outcome == "draw" else answer.p_first_shown
        verdict = first if first is None or order == "21" else 1 - first
        votes.setdefault((number, order), []).append(verdict)

    def count(number: int, order: str) -> Verdict:
        return TIE if pairs[number].identical else _count(votes[number, order], config.vote)

    verdicts = tuple((count(number, "12"), count(number, "21")) for number in range(len(pairs)))
    judges = tuple(sorted({shown.prompt.judge for shown in slots.values()} - {""}))
    members = {answers[slot].completion: shown.prompt.name for slot, shown in slots.items()}
    notes = _note_missing(workspace, annotator, members)
    every = [shown.draw(attempt, context.seed).key for shown in slots.values() for attempt in range(attempts)]
    keys = [answer.completion for answer in context.ask.recall(every).values()]  # re-asks were paid as well
    return _with_costs(workspace, Verdicts(shown_as, verdicts, judges=judges, notes=notes), keys)


def _note_missing(workspace: Workspace, annotator: PairwiseAnnotator, members: Mapping[str, str]) -> tuple[str, ...]:
    """Count answers without the log-probabilities that are read; `members` are their prompts by key."""
    stored = stored_answers(workspace.judges.ledger_place, list(members)) if members else {}
    masses = [annotator.verdict_mass(members[key], answer) for key, answer in stored.items()]
    missing = sum(mass is not None and math.isnan(mass) for mass in masses)
    if not missing:
        return ()
    return (
        f"{missing} of {len(masses)} answers came without the log-probabilities that verdicts are read from: name a "
        "judge that gives them, or go by what it writes (--set NAME.capabilities.logprobs=false --allow-degraded)",
    )


def _count(votes: Sequence[Verdict], rule: str) -> Verdict:
    """Make one verdict of the votes in one order, as labels are made of votes."""
    cast = [vote for vote in votes if vote is not None]
    if len(cast) < 2 or rule == "mean":
        return sum(cast) / len(cast) if cast else None
    lead = sum((vote > TIE) - (vote < TIE) for vote in cast)
    return float(lead > 0) if lead else TIE


def _with_costs(workspace: Workspace, found: Verdicts, keys: Sequence[str]) -> Verdicts:
    """Add what the answers cost when they were bought, by this command or an earlier one."""
    distinct = list(dict.fromkeys(keys))
    answers = stored_answers(workspace.judges.ledger_place, distinct) if distinct else {}
    prices = [answer.price for answer in answers.values()]
    dollars = None if None in prices else sum(price for price in prices if price is not None)
    seconds = sum(answer.seconds for answer in answers.values()) if answers else None
    return replace(found, dollars=dollars, seconds=seconds, calls=len(distinct))


def ask_scores(workspace: Workspace, name: str, shown_as: str, groups: Sequence[Group]) -> Verdicts:
    """Score each answer of each group alone, by an annotator that rates.

    Raises `ConfigError` for one that compares, and `DataError` if a rating cannot be read.
    """
    annotator, context = workspace.components.annotator(name), _context(workspace)
    if not annotator.rates:
        raise ConfigError(
            [
                f"RewardBench 2 needs a score of each answer, and {shown_as} compares two: name a reward model "
                "(--reward-model NAME), or an annotator that rates (--annotator ratings)"
            ]
        )
    pairs = [replace(pair, occurrence=number) for number, group in enumerate(groups) for pair in group.pairs]
    judged = list(annotate_in_chunks(pairs, annotator, name, context))
    rows = iter(judged)
    scores = []
    for group in groups:
        rated = [next(rows).preference for _ in group.pairs]
        if unread := [one for one in rated if one.scores is None and one.source != "rule"]:
            raise DataError(f"{group.place}: {len(unread)} ratings of {shown_as} cannot be read: raise max_reasks")
        first = next(one.scores[0] for one in rated if one.scores)
        scores.append((first, *(one.scores[1] if one.scores else first for one in rated)))
    keys = [key for row in judged for key in row.preference.completion.split(",") if key]
    asked = tuple(sorted({row.preference.judge for row in judged} - {""}))
    return _with_costs(workspace, Verdicts(shown_as, orders=0, judges=asked, scores=tuple(scores)), keys)


def score_by_model(workspace: Workspace, name: str, groups: Sequence[Group]) -> Verdicts:
    """Score each answer of each group by a reward model without fitting, or a fitted one's directory."""
    model = workspace.components.reward_model(name)
    tasks = [group.pairs[0].instruction for group in groups for _ in group.texts]
    values = iter([score.value for score in model.score(tasks, [text for group in groups for text in group.texts])])
    scores = tuple(tuple(next(values) for _ in group.texts) for group in groups)
    return Verdicts(f"reward:{name}", orders=0, scores=scores)
