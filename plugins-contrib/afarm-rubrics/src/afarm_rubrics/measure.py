"""The share of labels that a rubric explains, beside what explains them without one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from afarm import AnnotateContext, Bounded, standard_error
from afarm.results import win_rate_interval
from afarm_rubrics.checklist import ChecklistConfig, check
from afarm_rubrics.labels import Labels
from afarm_rubrics.rubric import EVEN, Criterion, score
from afarm_rubrics.weights import pair_loss, refit

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
    judged = check(labels.pairs, criteria, config, context)
    is_met = {slot: None if (p := one.p_first_shown) is None else p == 1 for slot, one in judged.items()}
    met = [
        [[is_met[pair.instruction.id, text, one.text] for one in own] for text in (pair.output_1, pair.output_2)]
        for pair, own in zip(labels.pairs, criteria, strict=True)
    ]
    return Checked(labels, criteria, met)


@dataclass(frozen=True, slots=True)
class Explained:
    """The share of labels, in percent, that something explains: ties and what is unread count half.

    `ahead` is by how many points the rubric is ahead of it, from −100 to 100, None of the rubric itself. `log_loss` is
    in nats a label, None without a probability; a coin's is 0.693.
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
    """Return the mean in percent, with an interval that is clustered by task."""
    value, error = 100 * fmean(credits), standard_error(credits, tasks)
    known = {"win_rate": value, "standard_error": None if error is None else 100 * error, "n_total": len(set(tasks))}
    return Bounded(value, *(win_rate_interval(known) or (None, None)))


def explain(
    name: str,
    labels: Labels,
    values: Sequence[float | None],
    slope: float | None = None,
    rubric: Sequence[float] | None = None,
) -> Explained:
    """Measure what explains labels by the sign of its values.

    `slope` is the log odds of output 2 for each unit of `values`, if known; `rubric` is the credit of the rubric.
    """
    mine, loss = credit(values, labels.second), None
    if slope is not None:
        loss = fmean(pair_loss(slope * (value or 0.0), is_2) for value, is_2 in zip(values, labels.second, strict=True))
    ties = sum(value is not None and abs(value) < EVEN for value in values)
    ahead = None if rubric is None else lead(rubric, mine, labels)
    return Explained(name, share(mine, labels.tasks), ties, values.count(None), loss, ahead)


def lead(rubric: Sequence[float], other: Sequence[float], labels: Labels) -> Bounded:
    """Return by how many points the first are ahead, with an interval clustered by task."""
    value, *ends = share([(1 + one - two) / 2 for one, two in zip(rubric, other, strict=True)], labels.tasks)
    return Bounded(2 * value - 100, *(None if end is None else 2 * end - 100 for end in ends))


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
        sign = 1.0 if fmean(credit(of_train, train.second)) >= 0.5 else -1.0
        found.append(explain(name, test, [sign * value for value in of_test], rubric=rubric))
    return found


def random_principles(train: Checked, test: Checked, size: int, seed: int, rubric: Sequence[float]) -> Explained:
    """Measure `size` candidates drawn and weighed as the rubric's are: the mean of 200 draws."""
    import numpy as np

    draw, x, of_test = random.Random(seed), np.asarray(train.differences), np.asarray(test.differences)
    credits = np.zeros((RANDOM_DRAWS, len(of_test)))
    for row in credits:
        chosen = draw.sample(range(x.shape[1]), size)
        row[:] = credit(of_test[:, chosen] @ refit(x[:, chosen], train.labels.second), test.labels.second)
    means, labels = credits.mean(axis=0).tolist(), test.labels
    ahead = lead(rubric, means, labels)
    return Explained(f"{size} random principles", share(means, labels.tasks), 0, 0, None, ahead)


def rate_criteria(checked: Checked, proposed: dict[str, int] | None = None) -> list[CriterionRow]:
    """Measure each criterion by itself, the heaviest first."""
    seen: dict[str, tuple[Criterion, list[bool], list[tuple[float, str]]]] = {}
    both_labels = checked.labels.tasks, checked.labels.second
    for task, second, own, met in zip(*both_labels, checked.criteria, checked.met, strict=True):
        for one, *both in zip(own, *met, strict=True):
            _, outputs, apart = seen.setdefault(one.text, (one, [], []))
            outputs += [value for value in both if value is not None]
            if sorted(map(str, both)) == ["False", "True"]:
                apart.append((float((both[1] == second) == (one.weight >= 0)), task))
    rows = []
    for one, outputs, apart in seen.values():
        right = share(*zip(*apart, strict=True)) if apart else None
        met_by = 100 * fmean(outputs) if outputs else 0.0
        rows.append(CriterionRow(one.text, one.weight, met_by, len(apart), right, (proposed or {}).get(one.text, 0)))
    return sorted(rows, key=lambda row: -abs(row.weight))
