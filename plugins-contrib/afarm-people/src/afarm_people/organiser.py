"""Figures for the organiser: throughput, agreement, cost, open pairs, people who stand out."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from afarm_people.rules import Project
from afarm_people.store import CHECK, GOLD, Labelled, Person

ENOUGH = 20
"""Labels from which a person's habits are judged."""
RARE = 0.001
"""The probability below which chance is no explanation."""
ATTENTIVE = 0.9
"""How often a person who pays attention answers a check as known."""
HARDEST, UNSURE = 5, 0.25
"""How many pairs are shown on which people are least sure, and the chance of another answer from which they count."""
HASTE = 1 / 3
"""The share of the others' median time below which a person is fast."""


def describe_project(project: Project) -> dict[str, Any]:
    """Return what the organiser's page shows, by name."""
    store, rules, labels = project.store, project.rules, project.store.labels()
    everybodys = store.labels(with_discarded=True)
    of_person = defaultdict[int, list[Labelled]](list)
    for one in everybodys:
        of_person[one.person].append(one)
    agreed, (mean, compared), ratings = agreement(labels), mean_agreement(labels), rate_people(labels)
    figures = [
        {**_figures(project, person, of_person, labels, agreed), "rating": ratings.raters.get(person.id)}
        for person in store.people()
    ]
    pairs = {one.pair.id: one.pair for one in labels}
    hour = time.time() - 3600
    return {
        "people": figures,
        "counts": project.summary(),
        "each": rules.each,
        "last_hour": sum(one.labelled > hour for one in everybodys),
        "spent_hours": sum(one.seconds for one in everybodys) / 3600,
        "cost": rules.pay * len(everybodys),
        "pay": rules.pay,
        "agreement": mean if compared else None,
        "compared": compared,
        "alpha": ratings.alpha,
        "hard": [(pairs[id], difficulty) for id, difficulty in ratings.hard[:HARDEST] if difficulty >= UNSURE],
        "decision": project.decision,
        "until_decided": rules.until_decided,
        "has_gold": store.count_pairs(GOLD) > 0,
        "has_checks": store.count_pairs(CHECK) > 0,
        "is_open": rules.is_open,
    }


def agreement(labels: Iterable[Labelled]) -> dict[int, tuple[float, int]]:
    """Sum, for each person, the share of others who chose the same side of a pair, over pairs with others.

    With the sum comes the number of those pairs. A tie agrees by half with either side.
    """
    of_pair = defaultdict[str, list[Labelled]](list)
    for one in labels:
        of_pair[one.pair.id].append(one)
    found: dict[int, tuple[float, int]] = {}
    for given in of_pair.values():
        for one in given if len(given) > 1 else ():
            same = fmean(1 - abs(one.win - other.win) for other in given if other is not one)
            total, count = found.get(one.person, (0.0, 0))
            found[one.person] = total + same, count + 1
    return found


@dataclass(frozen=True, slots=True)
class Ratings:
    """Krippendorff's `alpha`, raters' (ability, mean kappa), and pairs' difficulty, worst first.

    Raters are known by number, and the judge by None. All are of pairs that two people labelled or more.
    """

    alpha: float | None
    raters: Mapping[int | None, tuple[float, float]]
    hard: Sequence[tuple[str, float]]


def rate_people(labels: Iterable[Labelled], judge: Mapping[str, float] | None = None) -> Ratings:
    """Rate people, and a judge beside them, whose wins are by pair: those with at least `ENOUGH` labels.

    Sides of every other pair are turned: if one side were always better, neither alpha nor an ability could tell
    agreement from a habit.
    """
    of_pair = defaultdict[str, dict[int, int]](dict)
    for one in labels:
        of_pair[one.pair.id][one.person] = round(2 * one.win)
    shared = {id: given for id, given in of_pair.items() if len(given) > 1}
    if not shared:
        return Ratings(None, {}, ())
    from afarm_people.raters import estimate_truth, krippendorffs_alpha, mean_kappa

    people = sorted({person for given in shared.values() for person in given})
    votes = [[given.get(person, -1) for given in shared.values()] for person in people]
    beside = [[round(2 * judge[id]) if id in judge else -1 for id in shared]] if judge is not None else []
    table = np.asarray(votes + beside)
    table[:, 1::2] = np.where(table[:, 1::2] < 0, -1, 2 - table[:, 1::2])
    n = len(people)
    alpha, of_people = krippendorffs_alpha(table[:n]), estimate_truth(table[:n], rounds=50)
    kappas = [*mean_kappa(table[:n]), *mean_kappa(table)[n:]]
    abilities = [*of_people.ability, *map(of_people.rate, table[n:])]  # a judge's votes are no part of its measure
    enough = (table >= 0).sum(1) >= ENOUGH
    rated = zip([*people, *[None for _ in beside]], abilities, kappas, enough, strict=True)
    raters = {rater: (float(ability), float(kappa)) for rater, ability, kappa, is_enough in rated if is_enough}
    hard = sorted(zip(shared, of_people.difficulty.tolist(), strict=True), key=lambda one: -one[1])
    return Ratings(None if math.isnan(alpha) else alpha, raters, hard)


def mean_agreement(labels: Iterable[Labelled]) -> tuple[float, int]:
    """The mean of all people's agreement, and the number of labels that it is of."""
    found = agreement(labels).values()
    count = sum(count for _, count in found)
    return (sum(total for total, _ in found) / count if count else 0.0), count


def _figures(
    project: Project,
    person: Person,
    of_person: Mapping[int, Sequence[Labelled]],
    labels: Sequence[Labelled],
    agreed: Mapping[int, tuple[float, int]],
) -> dict[str, Any]:
    """Return a person's figures: `agreed` of `compared` is `agreement`; pairs are (some, of all)."""
    given, pay = of_person.get(person.id, ()), project.rules.pay
    spent = sum(one.seconds for one in given)
    sides = [one.choice if one.shown == "12" else -one.choice for one in given if one.choice]
    first = sum(side < 0 for side in sides), len(sides)
    mine, compared = agreed.get(person.id, (0.0, 0))
    others, among = mean_agreement(one for one in labels if one.person != person.id)
    checks = project.known_answers(person, CHECK)
    seconds = median(one.seconds for one in given) if given else None
    pace = [median(one.seconds for one in theirs) for other, theirs in of_person.items() if other != person.id]
    flags = []
    if first[1] >= ENOUGH and 2 * tail(min(first[0], first[1] - first[0]), first[1], 0.5) < RARE:
        place = "first" if first[0] * 2 > first[1] else "second"
        flags.append(f"prefers the response shown {place} in {max(first[0], first[1] - first[0])} of {first[1]}")
    if compared >= ENOUGH and among and tail(math.floor(mine), compared, others) < RARE:
        flags.append(
            f"agrees with others on {100 * mine / compared:.0f} %, they with each other on {100 * others:.0f} %"
        )
    if checks[1] and tail(checks[0], checks[1], ATTENTIVE) < 10 * RARE:
        flags.append(f"{checks[0]} of {checks[1]} attention checks right")
    if len(given) >= ENOUGH and pace and seconds is not None and seconds < HASTE * median(pace):
        flags.append(f"takes {seconds:.0f} s a label, others {median(pace):.0f} s")
    paid = {"pay": pay * len(given), "hourly": pay * len(given) / spent * 3600 if spent and pay else None}
    graded = {"gold": project.known_answers(person, GOLD), "checks": checks}
    about = {"person": person, "labels": len(given), "seconds": seconds, "flags": flags}
    return {**about, **paid, **graded, "first": first, "agreed": mine, "compared": compared}


def tail(successes: int, trials: int, probability: float) -> float:
    """The probability of at most so many successes: a binomial's lower tail."""
    terms = (math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(successes + 1))
    return min(1.0, sum(terms))
