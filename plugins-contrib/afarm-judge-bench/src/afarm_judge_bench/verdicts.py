"""Verdicts of judges: from afarm's annotators, in both orders, or read from stored answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from afarm import AnnotateContext, Annotator, ConfigError, DataError, Pair
from afarm.experiments import Workspace, requests_planned, stored_answers
from afarm.judging import PairwiseAnnotator, annotate_in_chunks, per_label
from afarm_judge_bench.items import Group, Verdict


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
    scores: tuple[tuple[float, ...], ...] = ()
    notes: tuple[str, ...] = field(default=())


def plan_verdicts(workspace: Workspace, name: str, pairs: Sequence[Pair], context: AnnotateContext) -> list[object]:
    """List the requests that `ask_verdicts` would send now."""
    annotator = _open(workspace, name)
    open_pairs = [pair for pair in pairs if not pair.identical]
    contexts = [replace(context, order=order) for order in ("12", "21")]
    return [one for shown in contexts for one in requests_planned(annotator, name, open_pairs, shown)]


def ask_verdicts(workspace: Workspace, name: str, shown_as: str, pairs: Sequence[Pair]) -> Verdicts:
    """Have an annotator judge pairs, in both orders if it shows them to a judge, itself or as a jury.

    What the ledger has is not asked for again, so a killed command goes on. Raises `JudgeError` and `BudgetError` as
    asking does.
    """
    context = AnnotateContext(workspace.seed("judge bench"), workspace.judges.client, workspace.progress)
    annotator = _open(workspace, name)
    first = list(annotate_in_chunks(pairs, annotator, name, replace(context, order="12")))
    second = first
    if any(row.preference.completion for row in first):  # it asks judges: a jury in the other order, or one that rates
        second = list(annotate_in_chunks(pairs, annotator, name, replace(context, order="21")))
    both = list(zip(first, second, strict=True))
    orders = 2 if any(a.preference.completion != b.preference.completion for a, b in both) else 0
    labels = [row.preference for row in (*first, *second)]
    members = {key: label.member for label in labels for key in label.completion.split(",") if key}
    asked = {label.judge for label in labels} - {""}
    if members and not asked:  # a jury's verdict is of several
        asked = {judge.identity for judge in workspace.judges.answering([name]).values()}
    keys, notes = [*members], tuple[str, ...]()
    if isinstance(annotator, PairwiseAnnotator):
        keys += _recall_reasks(annotator, pairs, context)
        notes = _note_missing(workspace, annotator, members)
    found = Verdicts(shown_as, tuple((a.win, b.win) for a, b in both), orders, tuple(sorted(asked)), notes=notes)
    return _with_costs(workspace, found, keys)


def _open(workspace: Workspace, name: str) -> Annotator:
    """Open an annotator that shows one order, and gives what judges say: no coin of a calibration."""
    annotator = workspace.components.annotator(name)
    if isinstance(annotator, PairwiseAnnotator):
        annotator.config = annotator.config.model_copy(update={"both_orders": False})
        annotator.annotate = partial(PairwiseAnnotator.annotate, annotator)  # type: ignore[method-assign]
    return annotator


def _recall_reasks(annotator: PairwiseAnnotator, pairs: Sequence[Pair], context: AnnotateContext) -> list[str]:
    """Return the keys of answers in the ledger that were asked for again: they were paid as well."""
    drawn = annotator.present([pair for pair in pairs if not pair.identical], context)
    shown = per_label(drawn, annotator.config.model_copy(update={"both_orders": True})).values()
    attempts = range(annotator.config.max_reasks + 1)
    draws = [one.draw(attempt, context.seed).key for one in shown for attempt in attempts]
    return [answer.completion for answer in context.ask.recall(draws).values()] if draws else []


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
