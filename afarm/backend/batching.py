"""Batches: usable pairs, padded tensors, and rows of like length together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal, NamedTuple

import torch

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Prompts and responses, joined and right-padded: three tensors [B, T], two int64 and a boolean mask.

    Prompt and response are contiguous, so positions are the same whatever shares the batch.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    response_mask: torch.Tensor


def pad(
    sequences: Sequence[Sequence[int]],
    pad_id: int,
    side: Literal["left", "right"] = "right",
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad `sequences` on `side` to (input_ids, attention_mask), both int64 [B, T] with T the longest."""
    width = max(map(len, sequences), default=0)
    ids = torch.full((len(sequences), width), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        start = width - len(sequence) if side == "left" else 0
        ids[row, start : start + len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        mask[row, start : start + len(sequence)] = 1
    return ids.to(device), mask.to(device)


def join_and_pad(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    pad_id: int,
    device: torch.device | str = "cpu",
) -> TokenBatch:
    """Join each prompt with its response and right-pad. The response mask leaves out prompts and pads."""
    ids, mask = pad([[*p, *r] for p, r in zip(prompts, responses, strict=True)], pad_id, "right", device)
    starts = torch.tensor([len(p) for p in prompts], device=device).reshape(-1, 1)
    response_mask = (torch.arange(ids.shape[1], device=device) >= starts) & mask.bool()
    return TokenBatch(ids, mask, response_mask)


def length_sorted_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Sort row indices into batches of at most `batch_size`, longest first: lack of memory shows at once."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


class Side(NamedTuple):
    """The chosen or the rejected outputs of pairs: their texts, and whether each ended by itself."""

    texts: list[str]
    ended: list[bool]


def chosen_and_rejected(pairs: Sequence[JudgedPair]) -> tuple[Side, Side]:
    """Split pairs that all have a preferred output into the chosen and the rejected outputs."""
    sides = Side([], []), Side([], [])
    for judged in pairs:
        assert judged.p2 is not None  # there is a preferred output
        outputs = list(zip((judged.pair.output_1, judged.pair.output_2), judged.pair.ended, strict=True))
        for side, (text, ended) in zip(sides, outputs[::-1] if judged.p2 > 0.5 else outputs, strict=True):
            side.texts.append(text)
            side.ended.append(ended)
    return sides


def count_cut_prompts(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], policy: Any, max_length: int
) -> dict[str, float]:
    """Count rows (prompt, response) with one token of the prompt, as a metric with a warning; {} for none."""
    limit, least = policy.longest(max_length), 1 + len(policy.template.control_ids)
    cut = sum(len(prompt) <= least and len(prompt) + len(response) >= limit for prompt, response in rows)
    if not cut:
        return {}
    said = "%d of %d outputs fill max_length (%d tokens) and are learned from without their prompts: raise it"
    logger.warning(said, cut, len(rows), limit)
    return {"prompts_cut_to_nothing": float(cut)}


def hold_out(pairs: Sequence[JudgedPair], fraction: float, draw: Callable[[str], Any]) -> tuple[list[int], list[int]]:
    """Return the places of the pairs to train on and to hold out: a `fraction` of instructions, never all.

    Those are held out for whose id `draw` returns the least.
    """
    ranked = sorted({judged.pair.instruction.id for judged in pairs}, key=draw)
    ids = {*ranked[: min(round(fraction * len(ranked)), len(ranked) - 1)]}
    is_held = [judged.pair.instruction.id in ids for judged in pairs]
    return [place for place, held in enumerate(is_held) if not held], list(compress(range(len(pairs)), is_held))


def usable_pairs(
    preferences: Sequence[JudgedPair],
    usable: Callable[[JudgedPair], object],
    learner: str,
    start: Any = None,
    max_length: int = 0,
) -> tuple[list[JudgedPair], dict[str, float]]:
    """Select the pairs for which `usable` is true; also count all pairs, as metrics.

    With the policy `start`, pairs with a better output that are equal when cut to `max_length` tokens are left out too,
    as draws. Counts are `pairs_left_out` and one per outcome (`pairs_decided` …); if there are any,
    `pairs_equal_after_cut` and `prompts_cut_to_nothing`. Raises `DataError`, naming the `learner`, if no pair is left.
    """
    outcomes = Counter(judged.preference.outcome for judged in preferences)
    kept = [judged for judged in preferences if usable(judged)]
    if not kept:
        seen = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()) or "no preferences at all"
        raise DataError(
            f"{learner} has nothing to learn from: {seen}. "
            "Check the annotator's answers, or choose another with --annotator"
        )
    counts = {f"pairs_{outcome}": float(n) for outcome, n in sorted(outcomes.items())}
    if start is not None:
        first, second, _ = start.encode_pairs(kept, max_length)
        differ = [one != two or judged.p2 is None for one, two, judged in zip(first, second, kept, strict=True)]
        if not any(differ):
            raise DataError(
                f"{learner} has nothing to learn from: the outputs of each of its {len(kept)} pairs are equal when "
                f"cut to {max_length} tokens; raise its max_length, or take pairs that differ earlier"
            )
        kept = list(compress(kept, differ))
        equal = {"pairs_equal_after_cut": float(differ.count(False))} if False in differ else {}
        counts |= {**equal, **count_cut_prompts([*first, *second], start, max_length)}
    return kept, {**counts, "pairs_left_out": float(len(preferences) - len(kept))}
