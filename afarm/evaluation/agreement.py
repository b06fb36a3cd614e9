"""Agreement, bias, variance, price and preferences of annotators, with errors clustered by pair.

A label is one output or a draw; a weighted one is the output it leans to. If a mode is tied, each of the tied labels
counts equally: the expectation of a draw among them. With k labels per pair of each annotator,

    agreement   one label against the mode of the people's; a person's against the mode of the others'
    bias        error of the annotator's mode against the people's mode; needs 3 labels per pair
    variance    error of one label against the mode of the annotator's others; needs 2 labels per pair
    longer      of labels that choose, if the outputs differ by over 30 characters: the share for the longer
    lists       of labels that choose, if exactly one output has a list: the share for the list
    first       2 - mean preference: the share for output_1, draws counted half
    first shown the same for the output shown first, if the file says which it was
    own family  of labels that choose, if exactly one output is by a model of the annotator's family: its share

Sources: Dubois et al. 2023 (AlpacaFarm), section 4; AlpacaEval's analysis of evaluators, at 4 labels per pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from statistics import multimode

from afarm.evaluation.biases import exactly_one, family_of_judge, find_family, longer, with_list
from afarm.evaluation.labels import HUMANS, Label, by_pair
from afarm.evaluation.metrics import Estimate, clustered_mean, pearson, rank_transform

LABELS_FOR_BIAS = 3
"""The mode of two labels is either of them, so its error would be that of one label."""
SYSTEMS_FOR_CORRELATION = 3


@dataclass(frozen=True, slots=True)
class Profile:
    """All estimates for one annotator; None if its labels do not tell.

    Agreement, bias, variance and the unparsed share are percentages; price is in US dollars and time in seconds, per
    1,000 labels; preferences are probabilities; correlations compare systems' win rates with people's. `judges` are the
    judges that its labels name, `files` the files they come from.
    """

    annotator: str
    pairs: int
    labels: int
    parsed: int
    agreement: Estimate | None
    bias: Estimate | None
    variance: Estimate | None
    price: Estimate | None
    seconds: Estimate | None
    spearman: Estimate | None
    pearson: Estimate | None
    prefers_longer: Estimate | None
    prefers_lists: Estimate | None
    prefers_first: Estimate | None
    prefers_first_shown: Estimate | None
    prefers_own_family: Estimate | None
    unparsed: Estimate
    judges: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("agreement", "agreement, %", 1),
    ("bias", "bias, %", 1),
    ("variance", "variance, %", 1),
    ("unparsed", "unparsed, %", 1),
    ("price", "$ per 1,000", 2),
    ("seconds", "s per 1,000", 0),
    ("spearman", "Spearman", 2),
    ("pearson", "Pearson", 2),
    ("prefers_longer", "prefers longer", 2),
    ("prefers_lists", "prefers lists", 2),
    ("prefers_first", "prefers first in row", 2),
    ("prefers_first_shown", "prefers first shown", 2),
    ("prefers_own_family", "prefers own family", 2),
)
"""The columns of tables of annotators: the field of `Profile`, its heading and its decimals."""
PREFERENCES = ("prefers_longer", "prefers_lists", "prefers_first", "prefers_first_shown", "prefers_own_family")
"""The fields that show what annotators prefer."""


@dataclass(frozen=True, slots=True)
class AnnotatorReport:
    """Profiles of all annotators, people first, and their mutual agreement in percent.

    An annotator's agreement with itself compares two of its labels of one pair.
    """

    profiles: tuple[Profile, ...]
    matrix: Mapping[tuple[str, str], Estimate] = field(default_factory=dict)

    def agreement(self, one: str, other: str) -> Estimate | None:
        return self.matrix.get((one, other)) or self.matrix.get((other, one))


def compare_annotators(
    labels: Mapping[str, Sequence[Label]], families: Mapping[str, str] | None = None
) -> AnnotatorReport:
    """Compare the annotators of `labels`, people's being under `HUMANS` if there are any.

    `families` names the model family of annotators or systems whose names do not tell it.
    """
    choices = {
        name: {
            pair: [label.choice for label in group if label.choice is not None]
            for pair, group in by_pair(annotator_labels).items()
        }
        for name, annotator_labels in labels.items()
    }
    people = choices.get(HUMANS, {})
    profiles = tuple(
        _profile(name, annotator_labels, choices[name], labels.get(HUMANS, ()), people, families or {})
        for name, annotator_labels in labels.items()
    )
    names = list(labels)
    matrix: dict[tuple[str, str], Estimate] = {}
    for one, other in [*((n, n) for n in names), *combinations(names, 2)]:
        if estimate := mutual_agreement(choices[one], choices[other], one == other):
            matrix[one, other] = estimate
    return AnnotatorReport(profiles, matrix)


def _profile(
    name: str,
    labels: Sequence[Label],
    pairs: Choices,
    people_labels: Sequence[Label],
    people: Choices,
    families: Mapping[str, str],
) -> Profile:
    family = _own_family(name, labels, families) if name != HUMANS else None
    spearman, r = _correlations(labels, people_labels) if name != HUMANS else (None, None)

    def by_own_family(label: Label) -> int | None:
        first, second = find_family(label.generator_1, families), find_family(label.generator_2, families)
        return None if first is None or second is None else exactly_one(first == family, second == family)

    return Profile(
        annotator=name,
        pairs=len(pairs),
        labels=len(labels),
        parsed=sum(label.p2 is not None for label in labels),
        agreement=variance(pairs, agrees=True) if name == HUMANS else agreement_with_people(pairs, people),
        bias=bias(pairs, people, itself=name == HUMANS),
        variance=variance(pairs),
        price=clustered_mean(((x.pair_id, x.price) for x in labels if x.price is not None), 1000),
        seconds=clustered_mean(((x.pair_id, x.seconds) for x in labels if x.seconds is not None), 1000),
        spearman=spearman,
        pearson=r,
        prefers_longer=prefers(labels, lambda label: longer(label.output_1, label.output_2)),
        prefers_lists=prefers(labels, lambda label: with_list(label.output_1, label.output_2)),
        prefers_first=clustered_mean((x.pair_id, 1 - x.p2) for x in labels if x.p2 is not None),
        prefers_first_shown=clustered_mean(
            (x.pair_id, 1 - x.p2 if x.shown_first == 1 else x.p2)
            for x in labels
            if x.p2 is not None and x.shown_first is not None
        ),
        prefers_own_family=prefers(labels, by_own_family) if family else None,
        unparsed=clustered_mean(((x.pair_id, float(x.p2 is None)) for x in labels), 100) or Estimate(0.0, None, 0),
        judges=tuple(sorted({label.judge for label in labels if label.judge})),
        files=tuple(sorted({label.file for label in labels if label.file})),
    )


def _own_family(name: str, labels: Sequence[Label], families: Mapping[str, str]) -> str | None:
    """The family of the judges that were asked, if it is one; without judges, the name's."""
    names = {name, *(label.annotator for label in labels)}
    for named in sorted(names & families.keys()):
        return families[named]
    if judges := {label.judge for label in labels if label.judge}:
        judge_families = {family_of_judge(judge, families) for judge in judges}
        return judge_families.pop() if len(judge_families) == 1 else None
    return find_family(name, families)


Choices = Mapping[str, Sequence[str]]
"""An annotator's choices by pair, those that could be read."""


def mode(choices: Iterable[str]) -> dict[str, float]:
    """The most frequent choices, each with its chance in a draw among them; empty without labels."""
    most = multimode(choices)
    return {choice: 1 / len(most) for choice in most}


def agreement_with_people(pairs: Choices, people: Choices) -> Estimate | None:
    """Agreement of one label with the mode of the people's, in percent."""
    modes = {pair: theirs for pair in pairs if (theirs := mode(people.get(pair, ())))}
    return clustered_mean(
        ((pair, theirs.get(choice, 0.0)) for pair, theirs in modes.items() for choice in pairs[pair]), 100
    )


def bias(pairs: Choices, people: Choices, itself: bool = False) -> Estimate | None:
    """Error of the mode of an annotator's labels against the people's, in percent.

    People's own is 0 by definition.
    """
    values = []
    for pair in pairs.keys() & people.keys():
        theirs = mode(people[pair])
        if len(pairs[pair]) >= LABELS_FOR_BIAS and theirs:
            own = mode(pairs[pair])
            agrees = 1.0 if itself else math.fsum(chance * theirs.get(choice, 0.0) for choice, chance in own.items())
            values.append((pair, 1 - agrees))
    return clustered_mean(values, 100)


def variance(pairs: Choices, agrees: bool = False) -> Estimate | None:
    """Error (or agreement) of each label against the mode of the same annotator's others, in percent."""
    values = []
    for pair, choices in pairs.items():
        for i, choice in enumerate(choices):
            others = mode([*choices[:i], *choices[i + 1 :]])
            if others:
                equal = others.get(choice, 0.0)
                values.append((pair, equal if agrees else 1 - equal))
    return clustered_mean(values, 100)


def mutual_agreement(one: Choices, other: Choices, itself: bool) -> Estimate | None:
    """The share of label pairs that are equal, in percent, each pair of outputs counting once."""
    values = []
    for pair in one.keys() & other.keys():
        equal = [a == b for a, b in (combinations(one[pair], 2) if itself else product(one[pair], other[pair]))]
        if equal:
            values.append((pair, sum(equal) / len(equal)))
    return clustered_mean(values, 100)


def prefers(labels: Iterable[Label], feature: Callable[[Label], int | None]) -> Estimate | None:
    """The share of `labels` that choose the output that `feature(label)` names (1 or 2, None for neither)."""
    choices = ((x.pair_id, 2 if x.p2 > 0.5 else 1, feature(x)) for x in labels if x.p2 is not None and x.p2 != 0.5)
    return clustered_mean((pair, float(choice == wanted)) for pair, choice, wanted in choices if wanted is not None)


def win_rates(labels: Iterable[Label]) -> dict[str, float]:
    """Mean win rates of the systems that are not in every pair, as a reference is; draws count half."""
    wins: dict[str, list[float]] = {}
    seen: dict[str, set[str]] = {}
    pairs: set[str] = set()
    for label in labels:
        if label.p2 is None or not label.generator_1 or not label.generator_2:
            continue
        pairs.add(label.pair_id)
        for system, won in ((label.generator_1, 1 - label.p2), (label.generator_2, label.p2)):
            wins.setdefault(system, []).append(won)
            seen.setdefault(system, set()).add(label.pair_id)
    return {system: math.fsum(won) / len(won) for system, won in wins.items() if seen[system] != pairs}


def _correlations(labels: Sequence[Label], people: Sequence[Label]) -> tuple[Estimate | None, Estimate | None]:
    """Spearman's and Pearson's correlation of win rates with people's, over the pairs that both judged."""
    by_people = {label.pair_id for label in people}
    annotator_rates = win_rates(label for label in labels if label.pair_id in by_people)
    judged = {label.pair_id for label in labels if label.p2 is not None}
    people_rates = win_rates(label for label in people if label.pair_id in judged)
    systems = sorted(annotator_rates.keys() & people_rates.keys())
    if len(systems) < SYSTEMS_FOR_CORRELATION:
        return None, None
    a, b = [annotator_rates[s] for s in systems], [people_rates[s] for s in systems]
    return pearson(rank_transform(a), rank_transform(b)), pearson(a, b)
