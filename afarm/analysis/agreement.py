"""What each figure about an annotator is. All are means over its own labels, with errors clustered by pair.

A label is one output or a draw; a weighted one is the output it leans to. Where a mode is tied, each of the tied labels
counts equally: the expectation of a draw among them. With k labels a pair of each annotator,

    agreement   one label against the mode of the people's; a person's against the mode of the others'
    bias        error of the annotator's mode against the people's mode; needs 3 labels a pair
    variance    error of one label against the mode of the annotator's others; needs 2 labels a pair
    longer      of labels that choose, where the outputs differ by over 30 characters: the share for the longer
    lists       of labels that choose, where exactly one output has a list: the share for the list
    first       2 - mean preference: the share for output_1, draws counted half
    first shown the same for the output shown first, where the file says which it was
    own family  of labels that choose, where exactly one output is by a model of the annotator's family: its share

Sources: Dubois et al. 2023 (AlpacaFarm), section 4; AlpacaEval's analysis of evaluators, at 4 labels a pair.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from afarm.analysis.labels import HUMANS, Label, by_pair
from afarm.evaluation.biases import family_of, family_of_judge
from afarm.evaluation.metrics import standard_error

SIGNIFICANT_LENGTH = 30
"""Characters by which two outputs must differ for one to be the longer."""
LABELS_FOR_BIAS = 3
"""A mode of two labels is either of them, and its error therefore that of one label."""
SYSTEMS_FOR_CORRELATION = 3

_ITEM = re.compile(r"\s*(?:[-*+•–]|\d{1,3}[.)]|[a-zA-Z][.)])\s+\S")


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean with its standard error (None for a single pair), over `n` labels; for the matrix, over `n` pairs."""

    value: float
    error: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Profile:
    """All figures of one annotator; None where its labels do not tell.

    Agreement, bias, variance and the unparsed share are percentages, price is US dollars and time seconds for 1,000
    labels, preferences are probabilities, correlations are those of systems' win rates with people's. `judges` are
    those that its labels name, `files` where they come from.
    """

    annotator: str
    pairs: int
    labels: int
    parsed: int
    agreement: Figure | None
    bias: Figure | None
    variance: Figure | None
    price: Figure | None
    seconds: Figure | None
    spearman: Figure | None
    pearson: Figure | None
    prefers_longer: Figure | None
    prefers_lists: Figure | None
    prefers_first: Figure | None
    prefers_first_shown: Figure | None
    prefers_own_family: Figure | None
    unparsed: Figure
    judges: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Profiles of all annotators, people first, and how often one label of each equals one of each other, in percent.

    The agreement of an annotator with itself is that of two of its labels of one pair.
    """

    profiles: tuple[Profile, ...]
    matrix: Mapping[tuple[str, str], Figure] = field(default_factory=dict)

    def agreement(self, one: str, other: str) -> Figure | None:
        return self.matrix.get((one, other)) or self.matrix.get((other, one))

    def notes(self) -> list[str]:
        """What must be known to read the figures: whose price is that of a part, and who comes from several files."""
        notes = [
            f"{p.annotator}: a price is known for {p.price.n if p.price else 0} of {p.labels} labels"
            + ("; $ per 1,000 is theirs." if p.price else ".")
            for p in self.profiles
            if any(other.price for other in self.profiles) and (p.price.n if p.price else 0) < p.labels
        ]
        return notes + [
            f"{p.annotator}: one annotator, from {len(p.files)} files ({', '.join(p.files)}); --by-file parts them."
            for p in self.profiles
            if p.annotator != HUMANS and len(p.files) > 1
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "annotators": [asdict(profile) for profile in self.profiles],
            "agreement": [{"annotators": list(names), **asdict(figure)} for names, figure in self.matrix.items()],
        }


def compare(labels: Mapping[str, Sequence[Label]], families: Mapping[str, str] | None = None) -> Comparison:
    """Everything that can be said of the annotators of `labels`, which has people's under `HUMANS` if there are any.

    `families` names the model family of annotators or systems whose names do not tell it.
    """
    pairs = {name: by_pair(given) for name, given in labels.items()}
    people = pairs.get(HUMANS, {})
    profiles = tuple(_profile(name, given, pairs[name], people, families or {}) for name, given in labels.items())
    names = list(labels)
    matrix: dict[tuple[str, str], Figure] = {}
    for one, other in [*((n, n) for n in names), *combinations(names, 2)]:
        if figure := mutual_agreement(pairs[one], pairs[other], one == other):
            matrix[one, other] = figure
    return Comparison(profiles, matrix)


def _profile(
    name: str,
    given: Sequence[Label],
    pairs: Mapping[str, Sequence[Label]],
    people: Mapping[str, Sequence[Label]],
    families: Mapping[str, str],
) -> Profile:
    own = _own_family(name, given, families) if name != HUMANS else None
    rho, r = _correlations(given, people) if name != HUMANS else (None, None)
    return Profile(
        annotator=name,
        pairs=len(pairs),
        labels=len(given),
        parsed=sum(label.p2 is not None for label in given),
        agreement=variance(pairs, agrees=True) if name == HUMANS else agreement(pairs, people),
        bias=bias(pairs, people, itself=name == HUMANS),
        variance=variance(pairs),
        price=mean(((x.pair_id, x.price) for x in given if x.price is not None), 1000),
        seconds=mean(((x.pair_id, x.seconds) for x in given if x.seconds is not None), 1000),
        spearman=rho,
        pearson=r,
        prefers_longer=prefers(given, longer),
        prefers_lists=prefers(given, the_list),
        prefers_first=mean((x.pair_id, 1 - x.p2) for x in given if x.p2 is not None),
        prefers_first_shown=mean(
            (x.pair_id, 1 - x.p2 if x.shown_first == 1 else x.p2)
            for x in given
            if x.p2 is not None and x.shown_first is not None
        ),
        prefers_own_family=prefers(given, lambda label: of_family(label, own, families)) if own else None,
        unparsed=mean(((x.pair_id, float(x.p2 is None)) for x in given), 100) or Figure(0.0, None, 0),
        judges=tuple(sorted({label.judge for label in given if label.judge})),
        files=tuple(sorted({label.file for label in given if label.file})),
    )


def _own_family(name: str, given: Sequence[Label], known: Mapping[str, str]) -> str | None:
    """Of the judges that were asked, where they are of one; of the annotator's name only where the labels name none."""
    called = {name, *(label.annotator for label in given)}
    for told in sorted(called & known.keys()):
        return known[told]
    if judges := {label.judge for label in given if label.judge}:
        found = {family_of_judge(judge, known) for judge in judges}
        return found.pop() if len(found) == 1 else None
    return family_of(name, known)


# ---------------------------------------------------------------------------------------------- means and modes


def mean(values: Iterable[tuple[str, float]], scale: float = 1.0) -> Figure | None:
    """The mean of (pair, value)s times `scale`, None of none. Values of one pair are not taken to be independent.

    With one value a pair the error is the usual standard deviation (ddof 1) over the root of n.
    """
    found = list(values)
    if not found:
        return None
    value = math.fsum(v for _, v in found) / len(found)
    error = standard_error([v for _, v in found], [pair for pair, _ in found])
    return Figure(scale * value, None if error is None else scale * error, len(found))


def mode(choices: Iterable[str | None]) -> dict[str, float]:
    """The most frequent choices, each with the chance that it is drawn among them; empty where nothing was read."""
    counts = Counter(choice for choice in choices if choice is not None)
    most = [choice for choice, count in counts.items() if count == max(counts.values())]
    return {choice: 1 / len(most) for choice in most}


def agreement(pairs: Mapping[str, Sequence[Label]], people: Mapping[str, Sequence[Label]]) -> Figure | None:
    """One label against the mode of the people's, in percent."""
    modes = {pair: mode(label.choice for label in people[pair]) for pair in pairs if pair in people}
    return mean(
        (
            (pair, modes[pair].get(label.choice, 0.0))
            for pair in modes
            if modes[pair]
            for label in pairs[pair]
            if label.choice is not None
        ),
        100,
    )


def bias(
    pairs: Mapping[str, Sequence[Label]], people: Mapping[str, Sequence[Label]], itself: bool = False
) -> Figure | None:
    """Error of the mode of an annotator's labels against the people's, in percent. People's own is 0 by definition."""
    values = []
    for pair in pairs.keys() & people.keys():
        read = [label.choice for label in pairs[pair] if label.choice is not None]
        theirs = mode(label.choice for label in people[pair])
        if len(read) >= LABELS_FOR_BIAS and theirs:
            own = mode(read)
            agrees = 1.0 if itself else math.fsum(chance * theirs.get(choice, 0.0) for choice, chance in own.items())
            values.append((pair, 1 - agrees))
    return mean(values, 100)


def variance(pairs: Mapping[str, Sequence[Label]], agrees: bool = False) -> Figure | None:
    """Error (or, if `agrees`, agreement) of each label against the mode of the same annotator's others, in percent."""
    values = []
    for pair, labels in pairs.items():
        read = [label.choice for label in labels if label.choice is not None]
        for i, choice in enumerate(read):
            others = mode([*read[:i], *read[i + 1 :]])
            if others:
                equal = others.get(choice, 0.0)
                values.append((pair, equal if agrees else 1 - equal))
    return mean(values, 100)


def mutual_agreement(
    one: Mapping[str, Sequence[Label]], other: Mapping[str, Sequence[Label]], itself: bool
) -> Figure | None:
    """How often one label equals another of the same pair, in percent, each pair counting once."""
    values = []
    for pair in one.keys() & other.keys():
        first = [label.choice for label in one[pair] if label.choice is not None]
        second = [label.choice for label in other[pair] if label.choice is not None]
        equal = [a == b for a, b in (combinations(first, 2) if itself else ((a, b) for a in first for b in second))]
        if equal:
            values.append((pair, sum(equal) / len(equal)))
    return mean(values, 100)


# -------------------------------------------------------------------------------------------------- preferences


def prefers(labels: Iterable[Label], which: Any) -> Figure | None:
    """The share of `labels` that choose the output that `which(label)` names (1 or 2, None for neither)."""
    chosen = ((x.pair_id, 2 if x.p2 > 0.5 else 1, which(x)) for x in labels if x.p2 is not None and x.p2 != 0.5)
    return mean((pair, float(choice == wanted)) for pair, choice, wanted in chosen if wanted is not None)


def longer(label: Label) -> int | None:
    """The output that is longer by more than `SIGNIFICANT_LENGTH` characters."""
    difference = len(label.output_2) - len(label.output_1)
    return None if abs(difference) <= SIGNIFICANT_LENGTH else 2 if difference > 0 else 1


def has_list(text: str) -> bool:
    """Whether two lines or more of `text` start as items do: with a bullet, a number or a letter."""
    return sum(_ITEM.match(line) is not None for line in text.split("\n")) > 1


def the_list(label: Label) -> int | None:
    """The output that has a list, where the other has none."""
    return _only(has_list(label.output_1), has_list(label.output_2))


def of_family(label: Label, family: str | None, known: Mapping[str, str]) -> int | None:
    """The output by a model of `family`, where the other's is known to be of another."""
    first, second = family_of(label.generator_1, known), family_of(label.generator_2, known)
    return None if first is None or second is None else _only(first == family, second == family)


def _only(first: bool, second: bool) -> int | None:
    return None if first == second else 1 if first else 2


# ------------------------------------------------------------------------------------------------ win rates


def win_rates(labels: Iterable[Label]) -> dict[str, float]:
    """The mean win rate of each system that did not take part in every pair, as a reference does; draws count half."""
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


def _correlations(given: Sequence[Label], people: Mapping[str, Sequence[Label]]) -> tuple[Figure | None, Figure | None]:
    """(Spearman's, Pearson's) correlation of systems' win rates with people's, over the pairs that both judged."""
    mine = win_rates(label for label in given if label.pair_id in people)
    judged = {label.pair_id for label in given if label.p2 is not None}
    theirs = win_rates(label for pair, labels in people.items() if pair in judged for label in labels)
    systems = sorted(mine.keys() & theirs.keys())
    if len(systems) < SYSTEMS_FOR_CORRELATION:
        return None, None
    a, b = [mine[s] for s in systems], [theirs[s] for s in systems]
    return correlation(ranks(a), ranks(b)), correlation(a, b)


def correlation(a: Sequence[float], b: Sequence[float]) -> Figure | None:
    """Pearson's r, None where one side does not vary."""
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    together = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    size = math.sqrt(math.fsum((x - mean_a) ** 2 for x in a) * math.fsum((y - mean_b) ** 2 for y in b))
    return Figure(together / size, None, len(a)) if size else None


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share their mean rank."""
    return [1 + sum(v < value for v in values) + (sum(v == value for v in values) - 1) / 2 for value in values]
