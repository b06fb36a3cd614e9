"""Pairs of sampled responses: their labels, their log-probabilities, and the losses of DPO's family.

Shapes: B responses in a rollout, P pairs of them, b pairs in a batch.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from afarm import Instruction, Pair, Sample, TrainingError
from afarm.backend import (
    Diverged,
    Training,
    all_reduce_by_name,
    join_and_pad,
    length_sorted_batches,
    response_logprobs,
    score,
    shard,
)
from afarm_online import OnlineConfig

ENOUGH = 20
"""Pairs of one step of which it is no accident that the annotator has labelled none."""


# ------------------------------------------------------------------------------------------------------------- labels


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """The rows of two responses to one prompt, and how likely the first is the better one.

    `weight` is 1, or 0 if nobody could say: `p` is then ½.
    """

    first: int
    second: int
    p: float
    weight: float = 1.0


Verdict = tuple[int, int, float | str]
"""Two rows, and the probability that the first is better; "undecided" or "unread" without one."""


def label_pairs(
    training: Training, step: int, prompts: Sequence[int], samples: Sequence[Sample], *, soft: bool = False
) -> tuple[list[LabelledPair], dict[str, float]]:
    """Pair B responses within their groups, and have the pairs labelled: (P pairs, metrics).

    The `group_size` responses to one prompt are consecutive; `prompts` [B] are indices, as from `rollout`. For the
    annotator each two are a pair, else the best and the worst of a group. Responses of equal text are undecided, and
    nobody is asked about them. P depends on the config alone, so that several processes get equal shares. With `soft` a
    reward model's `p` is σ of the difference of scores (Bradley and Terry); that of ratings and rankings is 0 or 1.

    Raises `TrainingError` if the annotator can label none of many, and `Diverged` if a score is not finite.
    """
    size, tasks = training.config.group_size, [training.prompts[number] for number in prompts]
    groups = [range(first, first + size) for first in range(0, len(samples), size)]
    metrics: dict[str, float] = {}
    if training.config.labels == "annotator":
        verdicts = ask_annotator(training, step, tasks, samples, [(a, a + 1) for group in groups for a in group[::2]])
    else:
        marks = mark_responses(training, step, prompts, tasks, samples)
        known = [mark for mark in marks if not math.isnan(mark)]
        metrics = {"objective/scores": sum(known) / max(1, len(known)), "objective/unjudged": len(marks) - len(known)}
        soft = soft and training.config.labels == "reward_model"  # ratings and places are no log odds
        verdicts = [compare_extremes(marks, group, soft=soft) for group in groups]
    pairs, outcomes = [], Counter[str]()
    for first, second, verdict in verdicts:
        if samples[first].text == samples[second].text:
            verdict = "equal"
        outcomes["decided" if isinstance(verdict, float) else verdict] += 1
        decided = (verdict, 1.0) if isinstance(verdict, float) else (0.5, 0.0)
        pairs.append(LabelledPair(first, second, *decided))
    counts = {f"pairs/{name}": float(outcomes[name]) for name in ("decided", "undecided", "equal", "unread")}
    return pairs, {**metrics, **counts}


def ask_annotator(
    training: Training,
    step: int,
    tasks: Sequence[Instruction],
    samples: Sequence[Sample],
    rows: Sequence[tuple[int, int]],
) -> list[Verdict]:
    """Have the run's annotator label the pairs of these rows, but those of equal text."""
    annotate, section = training.inputs.annotate, training.config.section
    assert annotate is not None  # named in `needs`
    pairs = [
        Pair(
            tasks[first],
            samples[first].text,
            samples[second].text,
            finish_reason_1=samples[first].finish_reason,
            finish_reason_2=samples[second].finish_reason,
        )
        for first, second in rows
    ]
    labels = iter(annotate([pair for pair in pairs if not pair.identical]))
    verdicts, answered, unread = list[Verdict](), 0, Counter[str]()
    for (first, second), pair in zip(rows, pairs, strict=True):
        label = None if pair.identical else next(labels)
        if label is None or label.outcome == "draw":
            verdicts.append((first, second, "undecided"))
        elif label.p2 is None:
            verdicts.append((first, second, "unread"))
            unread[label.outcome] += 1
        else:
            verdicts.append((first, second, 1 - label.p2))
        answered += label is not None and label.source != "noise" and label.outcome not in unread
    if not answered and unread.total() >= ENOUGH:
        raise TrainingError(
            f"{section} stops at step {step + 1}: the annotator could label none of the {unread.total()} pairs that it "
            f"was asked about ({', '.join(unread)}). 'afarm ledger' shows what the judge said; choose another one with "
            "--judge, or another --annotator"
        )
    return verdicts


def mark_responses(
    training: Training, step: int, prompts: Sequence[int], tasks: Sequence[Instruction], samples: Sequence[Sample]
) -> list[float]:
    """Mark B responses each: score, rating, or minus the place in a ranking; NaN if unreadable."""
    config, judge, size = training.config, training.inputs.judge, training.config.group_size
    if config.labels == "reward_model":
        scores = score(training, prompts, samples)
        if not all(map(math.isfinite, scores)):
            raise Diverged(config, step + 1, "a reward is not a finite number")
        return scores
    assert judge is not None  # named in `needs`
    texts = [sample.text for sample in samples]
    if config.labels == "rating":
        marks = judge.rate(tasks, texts, rubric=config.rubric)
    else:
        groups = [texts[first : first + size] for first in range(0, len(texts), size)]
        ranked = judge.rank(tasks[::size], groups, rubric=config.rubric)
        marks = [-place if places else None for places in ranked for place in places or [0.0] * size]
    return [math.nan if mark is None else mark for mark in marks]


def compare_extremes(marks: Sequence[float], group: Sequence[int], *, soft: bool) -> Verdict:
    """Pair the best and the worst of a group by their marks, in the order of their rows."""
    known = [row for row in group if not math.isnan(marks[row])]
    if len(known) < 2:
        return group[0], group[1], "unread"
    best, worst = max(known, key=lambda row: (marks[row], -row)), min(known, key=lambda row: (marks[row], -row))
    if marks[best] == marks[worst]:
        return group[0], group[1], "undecided"
    first, second = sorted((best, worst))
    p = 1 / (1 + math.exp(min(700.0, marks[second] - marks[first]))) if soft else float(first == best)
    return first, second, p


# ------------------------------------------------------------------------------------------------------------- losses


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Pairs that are read together, b of them.

    All tensors but `p` and `weight` [b] are [2, b], the first responses first. `logps` are log π(y|x), summed over
    tokens, with gradient, and `reference` those of the start policy.
    """

    logps: Tensor
    reference: Tensor
    p: Tensor
    weight: Tensor

    @property
    def ratios(self) -> Tensor:
        """log π(y|x)/π₀(y|x)."""
        return self.logps - self.reference


def read_pairs(
    training: Training, samples: Sequence[Sample], reference: Tensor, pairs: Sequence[LabelledPair]
) -> Iterator[PairBatch]:
    """Read this process's share of a minibatch's pairs, in batches that fit in memory, the longest first.

    `reference` [B] are the start policy's log-probabilities of the samples.
    """
    config, own, device = training.config, shard(pairs), training.context.backend.device
    lengths = [len(samples[row].prompt_ids) + len(samples[row].token_ids) for row in range(len(samples))]
    longest = [max(lengths[pair.first], lengths[pair.second]) for pair in own]
    for places in length_sorted_batches(longest, max(1, config.per_device_train_batch_size // 2)):
        picked = [own[place] for place in places]
        rows = [pair.first for pair in picked] + [pair.second for pair in picked]
        prompts, responses = [samples[row].prompt_ids for row in rows], [samples[row].token_ids for row in rows]
        batch = join_and_pad(prompts, responses, training.policy.pad_id, device)
        tensors = batch.input_ids, batch.attention_mask, batch.response_mask
        logps = response_logprobs(training.policy.model, *tensors, temperature=config.temperature).sum(1)
        labels = torch.tensor([(pair.p, pair.weight) for pair in picked], device=device)
        yield PairBatch(logps.view(2, -1), reference[rows].view(2, -1), *labels.T)


LOSSES: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "sigmoid": lambda margin, beta: -F.logsigmoid(beta * margin),
    "ipo": lambda margin, beta: (margin - 1 / (2 * beta)) ** 2,
    "hinge": lambda margin, beta: torch.relu(1 - beta * margin),
}
"""Losses [b] of pairs whose first response is better, from h = log ratio of the first − of the second, and β.

sigmoid: Rafailov et al. 2023, eq. 7. ipo: Azar et al. 2023, eq. 17. hinge: Zhao et al. 2023, on log ratios.
"""


def pair_losses(ratios: Tensor, p: Tensor, loss_type: str, beta: float) -> Tensor:
    """Compute the loss [b] of pairs from log ratios [2, b] and labels `p` [b] that may be soft.

    It is the expectation over both orders, p · l(h) + (1 − p) · l(−h).
    """
    loss, margin = LOSSES[loss_type], ratios[0] - ratios[1]
    return p * loss(margin, beta) + (1 - p) * loss(-margin, beta)


def note_pairs(sums: defaultdict[str, Any], config: OnlineConfig, batch: PairBatch, losses: Tensor) -> None:
    """Add to `sums` those over decided pairs of `losses` [b] and of TRL's metrics; "pairs" counts them."""
    logps, ratios = batch.logps.detach(), batch.ratios.detach()
    turned = batch.p < 0.5
    better, worse = (torch.where(turned, *both) for both in ((ratios[1], ratios[0]), (ratios[0], ratios[1])))
    values = {
        "loss/dpo": losses.detach(),
        "rewards/chosen": config.kl_coef * better,
        "rewards/rejected": config.kl_coef * worse,
        "rewards/margins": config.kl_coef * (better - worse),
        "rewards/accuracies": (better > worse).float(),
        "logps/chosen": torch.where(turned, logps[1], logps[0]),
        "logps/rejected": torch.where(turned, logps[0], logps[1]),
        "pairs": torch.ones_like(losses.detach()),
    }
    for name, of in values.items():
        sums[name] += (batch.weight * of).sum()


def mean_over_pairs(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """Turn what `note_pairs` has summed in all processes into means; empty if no pair was decided."""
    totals = {name: float(total) for name, total in all_reduce_by_name(sums).items()}
    count = totals.pop("pairs", 0.0)
    return {name: total / count for name, total in totals.items()} if count else {}


def describe_samples(samples: Sequence[Sample], logps: Tensor, kl: float) -> dict[str, float]:
    """Describe the policy's responses as metrics; `logps` [B] are log π(y|x)."""
    return {
        "objective/kl": kl,
        "objective/entropy": -float(logps.mean()),
        "objective/length": fmean(len(sample.token_ids) for sample in samples),
        "val/num_eos_tokens": sum(sample.finish_reason == "stop" for sample in samples),
    }
