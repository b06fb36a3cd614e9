"""A rubric from labels: proposals, what outputs meet, weights, and the held-out labels explained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from afarm import AnnotateContext, ChatRequest, DataError, read_config_file, write_whole
from afarm.judging import annotate_in_chunks
from afarm_rubrics import measure
from afarm_rubrics.checklist import ChecklistConfig, plan_checks
from afarm_rubrics.labels import Labels
from afarm_rubrics.measure import CriterionRow, Explained, check_labels, credit, explain
from afarm_rubrics.proposals import merge, proposal_requests, propose
from afarm_rubrics.rubric import Criterion, Induced, Rubric, RubricFile, points
from afarm_rubrics.weights import DIGITS, fit_weights

STAND_IN = "The answer says what was asked for, in words that its reader knows"
"""Stands for a principle that is not proposed yet, in plans."""


@dataclass(frozen=True)
class Report:
    """The share of `pairs` labels that a rubric explains, the rubric first, and its criteria.

    `criteria` are measured on the pairs that were learned from, if there are any (`learned_from`); `notes` are
    sentences. Of an induction, `kept` are the criteria with a weight, and `log_loss` is that of `fit_weights`.
    """

    pairs: int
    explained: tuple[Explained, ...]
    criteria: tuple[CriterionRow, ...]
    notes: tuple[str, ...]
    learned_from: int = 0
    kept: tuple[Criterion, ...] = ()
    log_odds: float = 0.0
    log_loss: float | None = None


@dataclass(frozen=True)
class Asking:
    """The size of an induction, its checklist's settings, and an annotator to compare with."""

    proposals: int
    candidates: int
    config: ChecklistConfig
    baseline: str = ""
    annotator: Any = None


def plan_induction(train: Labels, test: Labels, asking: Asking, context: AnnotateContext) -> list[ChatRequest]:
    """List the requests of an induction, with stand-ins for principles that are not proposed yet."""
    stand_ins = [Criterion(text=f"{STAND_IN} ({number}).") for number in range(asking.candidates)]
    pairs = [*train.pairs, *test.pairs]
    requests = proposal_requests(train, asking.proposals, asking.config, context)
    requests += plan_checks(pairs, [stand_ins] * len(pairs), asking.config, context)
    return requests + (list(asking.annotator.plan(test.pairs, context)) if asking.annotator else [])


def induce(train: Labels, test: Labels, asking: Asking, context: AnnotateContext) -> Report:
    """Induce a rubric from `train` and measure it on `test`. Raises as `context.ask` does.

    Its criteria are empty if no candidate explains the labels that are learned from.
    """
    proposals, unread = propose(proposal_requests(train, asking.proposals, asking.config, context), context)
    candidates = merge(proposals, asking.candidates)
    if not candidates:
        raise DataError(f"{train.source}: the judge has proposed no principle in words: choose another with --judge")
    tested = [Criterion(text=text) for text in candidates]
    of_train, of_test = (
        check_labels(labels, [tested] * len(labels.pairs), asking.config, context) for labels in (train, test)
    )
    weights, loss = fit_weights(of_train.differences, train.second, train.tasks)
    weighted = [Criterion(text=one.text, weight=w) for one, w in zip(tested, weights, strict=True)]
    kept = sorted((one for one in weighted if one.weight), key=lambda one: -abs(one.weight))
    of_train, of_test = (replace(one, criteria=[weighted] * len(one.criteria)) for one in (of_train, of_test))
    log_odds = round(points(weighted), DIGITS) if kept else 0.0
    mine = credit(of_test.gaps, test.second)
    explained = [explain("the rubric", test, of_test.gaps, log_odds)]
    explained += [measure.random_principles(of_train, of_test, len(kept), context.seed, mine)] if kept else []
    explained += measure.baselines(train, test, mine)
    if asking.annotator:
        judged = annotate_in_chunks(test.pairs, asking.annotator, asking.baseline, context)
        wins = [None if row.win is None else row.win - 0.5 for row in judged]
        explained.append(explain(f"the judge without a rubric ({asking.baseline})", test, wins, rubric=mine))
    notes = [f"{len(proposals)} proposals make {len(candidates)} candidates."]
    notes += [f"{unread} replies with proposals could not be read."] if unread else []
    notes += [f"{train.ties} pairs without a better output were left out."] if train.ties else []
    notes += verdicts(explained) if kept else []
    rows = tuple(measure.rate_criteria(of_train, candidates))
    found = len(test.pairs), tuple(explained), rows, tuple(notes), len(train.pairs), tuple(kept)
    return Report(*found, log_odds, loss)


def score_labels(rubric: Rubric, labels: Labels, config: ChecklistConfig, context: AnnotateContext) -> Report:
    """Measure any rubric on labels: what it and the longer output explain, and each criterion."""
    checked = check_labels(labels, [rubric.of(pair.instruction) for pair in labels.pairs], config, context)
    mine = credit(checked.gaps, labels.second)
    found = [
        explain("the rubric", labels, checked.gaps, rubric.file.log_odds),
        explain("the longer output", labels, measure.longer(labels), rubric=mine),
    ]
    rows, notes = measure.rate_criteria(checked), verdicts(found)
    if not any(row.met for row in rows):
        notes.append(f"No output meets any of the {len(rows)} criteria: the rubric says nothing about these pairs.")
    return Report(len(labels.pairs), tuple(found), tuple(rows), tuple(notes))


def verdicts(found: Sequence[Explained]) -> list[str]:
    """Say if the rubric, the first, explains more than a coin, and than the others."""
    rubric, *others = found
    low, high = rubric.share.low, rubric.share.high
    is_open = low is None or high is None or low <= 50 <= high
    against = ", which says the opposite of them" if rubric.share.value < 50 else ""
    verdict = ", no more than a coin as far as they tell" if is_open else against
    lines = [f"The rubric explains {write_share(rubric)} of the labels{verdict}."]
    alike = [one.name for one in others if one.ahead and (one.ahead.low or 0) <= 0]
    return lines + ([f"It is not clearly ahead of {', '.join(alike)}."] if alike else [])


def check_output(path: Path) -> None:
    """Raise `DataError` if no rubric can be written there, or one written by hand would go."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise DataError(f"{path}: no file can be written there; choose another with -o")
    if path.exists() and read_config_file(path, RubricFile).induced is None:
        raise DataError(f"{path} was not written by `induce` (no field `induced`); choose another file with -o")


def write_rubric(path: Path, made: Report, about: Induced, source: str) -> None:
    """Write a rubric's file, with what it explains as comments above."""
    first, *others = made.explained
    said = [f"Induced from {Path(source).name}: {made.learned_from} pairs learned from, {made.pairs} held out."]
    said.append(f"Of the held-out labels it explains {write_share(first)}.")
    said += [f"{one.name}: {write_share(one)}" for one in others]
    names = [one.name for one in made.kept]
    listed: list[dict[str, Any]] = [{"text": one.text, "weight": one.weight} for one in made.kept]
    for number, row in enumerate(listed, start=1):
        if names.count(names[number - 1]) > 1:  # texts that begin alike
            row["name"] = f"{number}. {names[number - 1]}"
    content = {"criteria": listed, "log_odds": made.log_odds, "induced": about.model_dump()}
    comments = "".join(f"# {' '.join(line.split())}\n" for line in said)
    text = comments + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    write_whole(path, text, "choose another file with -o; what was asked is kept, so the rubric costs nothing again")


def write_share(one: Explained) -> str:
    """Write a share in percent with its interval."""
    low, high = one.share.low, one.share.high
    return f"{one.share.value:.1f} %" + ("" if low is None or high is None else f" ({low:.1f} to {high:.1f})")
