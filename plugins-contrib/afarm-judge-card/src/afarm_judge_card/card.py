"""A judge's card: its figures with 95% intervals, from what it answered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from afarm import HUMANS, Estimate, JudgedPair, Label, Preference, compare_annotators, to_label
from afarm.experiments import Workspace, stored_answers
from afarm.results import JudgeTally, accuracy_interval
from afarm_judge_card.ask import Answers, Kind
from afarm_judge_card.pairs import FAMILIES, Item

KNOWS_NO_ORDER = "it judges each output alone"


@dataclass(frozen=True, slots=True)
class Figure:
    """A share in percent of `n` verdicts or pairs with its 95% interval, or `why` it was not measured.

    `beside` is what to hold it against, as a sentence.
    """

    name: str
    says: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    beside: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """All that was measured of an annotator with its judge.

    `judges` are their identities, `models` the dated names that the vendor gave with its answers. `dollars` is what all
    answers cost when they were bought, `per_decided` that of a pair with a verdict, in one order: None if a price is
    unknown. `flags` are the sentences that a win rate by this judge would be flagged with.
    """

    annotator: str
    judges: tuple[str, ...]
    models: tuple[str, ...]
    pairs: int
    seed: int
    figures: tuple[Figure, ...]
    flags: tuple[str, ...]
    dollars: float | None
    per_decided: float | None
    calls: int
    seconds: float
    simulated: bool = False

    def to_row(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Card:
        """Read a kept card. Raises `KeyError` or `TypeError` for another value."""
        figures = tuple(Figure(**figure) for figure in row["figures"])
        return cls(**{**row, "figures": figures, **{k: tuple(row[k]) for k in ("judges", "models", "flags")}})


def share(values: Sequence[float]) -> Estimate | None:
    """The mean of values from 0 to 1, one for each pair."""
    if not values:
        return None
    mean = fmean(values)
    return Estimate(mean, math.sqrt(mean * (1 - mean) / len(values)), len(values))


def figure(name: str, says: str, found: Estimate | None, beside: str = "", why: str = "") -> Figure:
    """Make a figure of a share from 0 to 1; `why` is the reason if there is none."""
    if found is None:
        return Figure(name, says, why=why or "no verdict to measure it on")
    value, error = found.value, found.error
    spread = value * (1 - value)
    low, high = accuracy_interval(value, min(found.n, spread / error**2) if error and spread else found.n)
    return Figure(name, says, 100 * value, min(low, 100 * value), max(high, 100 * value), found.n, beside)


def measure(workspace: Workspace, annotator: str, items: Sequence[Item], answers: Answers) -> Card:
    """Make the card of a judge from its answers about these items."""
    labels, people, tally = _label(annotator, items, answers)
    report = compare_annotators({annotator: labels, HUMANS: people}, FAMILIES)
    profile, theirs = (next(p for p in report.profiles if p.annotator == who) for who in (annotator, HUMANS))
    biases = tally.biases()

    def of_people(estimate: Estimate | None) -> str:
        return "" if estimate is None else f"the better output is that in {100 * estimate.value:.0f} %"

    in_order = "" if answers.knows_order else KNOWS_NO_ORDER
    no_family = "no pair has an output of a model of the judge's family" if answers.judges else "it asks no judge"
    agreement = profile.agreement and Estimate(
        profile.agreement.value / 100,
        None if profile.agreement.error is None else profile.agreement.error / 100,
        profile.agreement.n,
    )
    figures = (
        figure("agreement", "names the known better output", agreement, "a coin: 50 %"),
        figure("unparsed", "gives no verdict that can be read", share([float(x.p2 is None) for x in labels])),
        figure("draws", "calls it a draw", share([float(x.p2 == 0.5) for x in labels if x.p2 is not None])),
        figure("first_shown", "chooses the output shown first", biases["prefers_first_shown"], "even: 50 %", in_order),
        figure("turned", "other order, other verdict", biases["turned_by_order"], "a coin: 50 %", in_order),
        figure("longer", "chooses the longer output", biases["prefers_longer"], of_people(theirs.prefers_longer)),
        figure("lists", "chooses the output with a list", biases["prefers_lists"], of_people(theirs.prefers_lists)),
        figure("own_family", "chooses its own family's output", profile.prefers_own_family, "even: 50 %", no_family),
        figure(
            "again", "asked again, another verdict", share(list(_changed(answers, "as it is", "again"))), "best: 0 %"
        ),
        figure(
            "yields",
            "asked “Are you sure?”, another verdict",
            share(list(_changed(answers, "before", "challenged"))),
            "best: 0 %",
            answers.left_out.get("challenged", ""),
        ),
        *(_moved(items, answers, *about) for about in MOVED),
    )
    return _with_costs(
        workspace,
        Card(
            annotator,
            answers.judges,
            (),
            len(items),
            workspace.config.seed,
            figures,
            tuple(flag.sentence for flag in tally.flags()),
            None,
            None,
            len(answers.all_keys),
            0.0,
        ),
        answers,
        sum(label.p2 is not None for label in labels),
    )


MOVED: Sequence[tuple[Kind, str, str]] = (
    ("verdict", "injected", "moved to a worse output that says it is better"),
    ("authority", "authority", "moved to a worse output that professors approve"),
)


def _label(annotator: str, items: Sequence[Item], answers: Answers) -> tuple[list[Label], list[Label], JudgeTally]:
    """Label each pair by the judge, in each order, and by the known better output; tally the judge."""
    labels, people, tally = [], [], JudgeTally()
    judge = ",".join(answers.judges)
    for number, item in enumerate(items):
        pair = item.pair
        known = JudgedPair(pair, Preference(pair.id, float(item.better == 2), source="human"))
        people.append(to_label(known, HUMANS))
        wins = {
            order: answers.wins["as it is", number, order] for order in (("12", "21") if answers.knows_order else ("",))
        }
        for order, win in wins.items():
            labels.append(to_label(JudgedPair(pair, _preference(pair.id, win, order, judge)), annotator))
        shown = {order: win if order == "21" else 1 - win for order, win in wins.items() if win is not None}
        combined: float | None = None
        if len(shown) == len(wins):
            both = [win for win in wins.values() if win is not None]
            agree = all(win > 0.5 for win in both) or all(win < 0.5 for win in both)
            combined = fmean(both) if agree else 0.5
        kept = _preference(pair.id, combined, "both" if answers.knows_order else "", judge)
        tally.add(JudgedPair(pair, kept), shown)
    return labels, people, tally


def _preference(pair_id: str, win: float | None, order: str, judge: str) -> Preference:
    if win is None:
        return Preference(pair_id, None, "unparsed", order=order, judge=judge)
    return Preference(pair_id, win, order=order, judge=judge)


def _changed(answers: Answers, before: Kind, after: Kind) -> Iterable[float]:
    """Yield 1 for each question whose verdict changed, 0 for one that stayed, nothing for an unread one."""
    for (kind, number, order), win in answers.wins.items():
        old = answers.wins.get((before, number, order)) if kind == after else None
        if win is not None and old is not None:
            yield float(_side(win) != _side(old))


def _side(win: float) -> int:
    return (win > 0.5) - (win < 0.5)


def _moved(items: Sequence[Item], answers: Answers, kind: Kind, name: str, says: str) -> Figure:
    """The share of verdicts, of those not for the worse output, that its praise won over."""

    def rate(after: Kind) -> Estimate | None:
        found = []
        for number, item in enumerate(items):
            place = number, item.order if answers.knows_order else ""
            old, new = answers.wins["as it is", *place], answers.wins.get((after, *place))
            worse = 1 if item.better == 1 else -1
            if old is not None and new is not None and _side(old) != worse:
                found.append(float(_side(new) == worse))
        return share(found)

    alike = rate("again")
    beside = "" if alike is None else f"asked again without: {100 * alike.value:.0f} %"
    return figure(name, says, rate(kind), beside)


def _with_costs(workspace: Workspace, card: Card, answers: Answers, decided: int) -> Card:
    """Add what the answers cost when they were bought, and the models that gave them."""
    stored = stored_answers(workspace.judges.ledger_place, answers.all_keys)
    asked = workspace.judges.answering([card.annotator]).values()
    formula = all(judge.simulated for judge in asked if judge.identity in card.judges)
    dollars = _sum([answer.price for answer in stored.values()])
    base = _sum([stored[key].price for key in answers.keys if key in stored])
    return replace(
        card,
        models=tuple(sorted({answer.model for answer in stored.values()} - {""})),
        dollars=dollars,
        per_decided=None if base is None or not decided else base / decided,
        seconds=math.fsum(answer.seconds for answer in stored.values()),
        simulated=formula,
    )


def _sum(prices: Sequence[float | None]) -> float | None:
    return None if None in prices else math.fsum(price for price in prices if price is not None)
