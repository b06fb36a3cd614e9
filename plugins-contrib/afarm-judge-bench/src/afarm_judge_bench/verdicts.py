"""Verdicts of judges: from afarm's annotators, in both orders, or read from stored answers."""

from __future__ import annotations

from collections.abc import Sequence
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
    the judge knows no order: it rates each output alone. `keys` are those of its answers in the ledger, `judges` are
    its identities. `scores` are those of each group's answers, for sets that are scored so.
    """

    name: str
    pairs: tuple[tuple[Verdict, Verdict], ...] = ()
    orders: int = 2
    judges: tuple[str, ...] = ()
    dollars: float | None = None
    seconds: float | None = None
    scores: tuple[tuple[float, ...], ...] = ()
    notes: tuple[str, ...] = field(default=())


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
    return [*requests_planned(annotator, name, [pair for pair in pairs if not pair.identical], context)]


def ask_verdicts(workspace: Workspace, name: str, shown_as: str, pairs: Sequence[Pair]) -> Verdicts:
    """Have an annotator judge pairs, in both orders if it shows them to a judge.

    What the ledger has is not asked for again, so a killed command goes on. Raises `JudgeError` and `BudgetError` as
    asking does.
    """
    context = AnnotateContext(workspace.seed("judge bench"), workspace.judges.client, workspace.progress)
    annotator = workspace.components.annotator(name)
    if isinstance(annotator, PairwiseAnnotator):
        verdicts, keys, judges = _ask_both_orders(name, annotator, pairs, context)
        return _with_costs(workspace, Verdicts(shown_as, verdicts, judges=judges), keys)
    judged = list(annotate_in_chunks(pairs, annotator, name, context))
    wins = tuple((row.win, row.win) for row in judged)
    keys = [key for row in judged for key in row.preference.completion.split(",") if key]
    asked = tuple(sorted({row.preference.judge for row in judged} - {""}))
    return _with_costs(workspace, Verdicts(shown_as, wins, 0, asked), keys)


def _ask_both_orders(
    name: str, annotator: PairwiseAnnotator, pairs: Sequence[Pair], context: AnnotateContext
) -> tuple[tuple[tuple[Verdict, Verdict], ...], list[str], tuple[str, ...]]:
    config = annotator.config
    with attribute_failures("annotators", name, annotator):
        slots = _presentations(pairs, annotator, context)
        answers = collect_judgements(slots, config.max_reasks + 1, context)
    votes: dict[tuple[int, str], list[Verdict]] = {}
    for (number, order, _), answer in answers.items():
        first = TIE if answer.outcome == "draw" else answer.p_first_shown
        verdict = first if first is None or order == "21" else 1 - first
        votes.setdefault((number, order), []).append(verdict)

    def count(number: int, order: str) -> Verdict:
        return TIE if pairs[number].identical else _count(votes[number, order], config.vote)

    verdicts = tuple((count(number, "12"), count(number, "21")) for number in range(len(pairs)))
    keys = [answer.completion for answer in answers.values()]
    return verdicts, keys, tuple(sorted({shown.prompt.judge for shown in slots.values()} - {""}))


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
    return replace(found, dollars=dollars, seconds=seconds)


def ask_scores(workspace: Workspace, name: str, shown_as: str, groups: Sequence[Group]) -> Verdicts:
    """Score each answer of each group alone, by an annotator that rates.

    Raises `ConfigError` for one that compares, and `DataError` if a rating cannot be read.
    """
    context = AnnotateContext(workspace.seed("judge bench"), workspace.judges.client, workspace.progress)
    annotator = workspace.components.annotator(name)
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
