"""The share of labels that a rubric explains, beside what explains them without one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from afarm import NORMAL_95, AnnotateContext, Bounded, standard_error
from afarm.results import win_rate_interval
from afarm_rubrics.checklist import ChecklistConfig, check, list_outputs
from afarm_rubrics.labels import Labels
from afarm_rubrics.rubric import Criterion, score
from afarm_rubrics.weights import fit_slope, pair_loss

EVEN = 1e-9
RANDOM_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Checked:
    """Labels, the criteria of each pair, and what its two outputs meet of them, None where that is unread."""

    labels: Labels
    criteria: Sequence[Sequence[Criterion]]
    met: Sequence[Sequence[Sequence[bool | None]]]

    @property
    def gaps(self) -> list[float | None]:
        """By how much output 2 scores higher, for each pair; None where a criterion with a weight is unread."""
        found: list[float | None] = []
        for criteria, (first, second) in zip(self.criteria, self.met, strict=True):
            is_read = not any(one.weight and None in both for one, *both in zip(criteria, first, second, strict=True))
            scores = [score(criteria, list(map(bool, met))) for met in (first, second)]
            found.append(scores[1] - scores[0] if is_read else None)
        return found

    @property
    def differences(self) -> list[list[float]]:
        """Output 2's criteria met less output 1's, by pair and criterion; 0 where either is unread."""
        return [
            [0.0 if None in both else float(bool(both[1])) - float(bool(both[0])) for both in zip(*row, strict=True)]
            for row in self.met
        ]


def check_labels(
    labels: Labels, criteria: Sequence[Sequence[Criterion]], config: ChecklistConfig, context: AnnotateContext
) -> Checked:
    """Ask which criteria the outputs of labelled pairs meet. Raises as `context.ask` does."""
    answers = check(list_outputs(labels.pairs, criteria), config, context)
    met = [
        [[answers[pair.instruction.id, text, one.text] for one in own] for text in (pair.output_1, pair.output_2)]
        for pair, own in zip(labels.pairs, criteria, strict=True)
    ]
    return Checked(labels, criteria, met)


@dataclass(frozen=True, slots=True)
class Explained:
    """The share of labels, in percent, that something explains: ties and what is unread count half.

    `ahead` is by how many points the rubric is ahead of it, None of the rubric itself. `log_loss` is in nats a label,
    None without a probability; a coin's is 0.693.
    """

    name: str
    share: Bounded
    ties: int
    unread: int
    log_loss: float | None
    ahead: Bounded | None


@dataclass(frozen=True, slots=True)
class CriterionRow:
    """A criterion: the share of outputs that meet it, and the pairs of which one output alone does.

    `right` is the share, in percent, of these pairs whose preferred output is the one that meets it, or that does not
    if its weight is below 0. `proposed` counts the proposals that say so.
    """

    text: str
    weight: float
    met: float
    apart: int
    right: Bounded | None
    proposed: int = 0


def credit(values: Sequence[float | None], second: Sequence[bool]) -> list[float]:
    """Return 1 for each label that a value's sign explains, 0 if it says the opposite, else 0.5."""
    return [
        0.5 if value is None or abs(value) < EVEN else float((value > 0) == is_second)
        for value, is_second in zip(values, second, strict=True)
    ]


def share(credits: Sequence[float], tasks: Sequence[str]) -> Bounded:
    """Return the mean in percent, with an interval that is clustered by instruction."""
    value, error = 100 * fmean(credits), standard_error(credits, tasks)
    known = {"win_rate": value, "standard_error": None if error is None else 100 * error, "n_total": len(set(tasks))}
    return Bounded(value, *(win_rate_interval(known) or (None, None)))


def explain(
    name: str,
    labels: Labels,
    values: Sequence[float | None],
    slope: float | None = None,
    rubric: Sequence[float] | None = None,
    credits: Sequence[float] | None = None,
) -> Explained:
    """Measure what explains labels by the sign of its values, or by `credits` if they are given.

    `slope` is the log odds of output 2 for each unit of `values`, if known; `rubric` is the credit of the rubric.
    """
    tasks = [pair.instruction.id for pair in labels.pairs]
    mine, losses, ahead = credits or credit(values, labels.second), list[float](), None
    if slope is not None:
        losses = [
            pair_loss(slope * (value or 0.0), second) for value, second in zip(values, labels.second, strict=True)
        ]
    if rubric is not None:
        gained = [100 * (one - other) for one, other in zip(rubric, mine, strict=True)]
        half = NORMAL_95 * (standard_error(gained, tasks) or 0.0)
        ahead = Bounded(fmean(gained), fmean(gained) - half, fmean(gained) + half)
    ties = sum(value is not None and abs(value) < EVEN for value in values)
    return Explained(name, share(mine, tasks), ties, values.count(None), fmean(losses) if losses else None, ahead)


def longer(labels: Labels) -> list[float]:
    """Return 1 if output 2 is longer, in characters, −1 if output 1 is, 0 if neither."""
    lengths = [(len(pair.output_1), len(pair.output_2)) for pair in labels.pairs]
    return [float((second > first) - (second < first)) for first, second in lengths]


def baselines(train: Labels, test: Labels, rubric: Sequence[float]) -> list[Explained]:
    """Measure what needs no judge: the longer output, and the place that is better more often in `train`."""
    found = []
    for name, of_train, of_test in (
        ("the longer output", longer(train), longer(test)),
        ("the usual place", [1.0] * len(train.pairs), [1.0] * len(test.pairs)),
    ):
        slope = fit_slope(of_train, train.second)
        turned = [value if slope >= 0 else -value for value in of_test]
        found.append(explain(name, test, turned, abs(slope), rubric))
    return found


def random_principles(checked: Checked, size: int, seed: int, rubric: Sequence[float]) -> Explained:
    """Measure `size` candidates that are drawn, and count 1 each: the mean of 200 draws."""
    draw, second, rows = random.Random(seed), checked.labels.second, checked.differences
    chosen = [draw.sample(range(len(rows[0])), size) for _ in range(RANDOM_DRAWS)]
    drawn = [credit([sum(row[n] for n in numbers) for row in rows], second) for numbers in chosen]
    credits = [fmean(column) for column in zip(*drawn, strict=True)]
    return explain(f"{size} random principles", checked.labels, (), rubric=rubric, credits=credits)


def rate_criteria(checked: Checked, proposed: dict[str, int] | None = None) -> list[CriterionRow]:
    """Measure each criterion by itself, the heaviest first."""
    seen: dict[str, tuple[Criterion, list[bool], list[tuple[float, str]]]] = {}
    labels = checked.labels
    for pair, second, own, met in zip(labels.pairs, labels.second, checked.criteria, checked.met, strict=True):
        for one, *both in zip(own, *met, strict=True):
            _, outputs, apart = seen.setdefault(one.text, (one, [], []))
            outputs += [value for value in both if value is not None]
            if sorted(map(str, both)) == ["False", "True"]:
                apart.append((float((both[1] == second) == (one.weight >= 0)), pair.instruction.id))
    rows = []
    for one, outputs, apart in seen.values():
        right = share(*zip(*apart, strict=True)) if apart else None
        met_by = 100 * fmean(outputs) if outputs else 0.0
        rows.append(CriterionRow(one.text, one.weight, met_by, len(apart), right, (proposed or {}).get(one.text, 0)))
    return sorted(rows, key=lambda row: -abs(row.weight))
