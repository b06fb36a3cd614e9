"""Targets from pairs beyond which output is better, and their faults. No torch."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from afarm import DataError, JudgedPair, did_you_mean
from afarm_rewards import HeadsConfig

logger = logging.getLogger(__name__)

SCORE = "score"
"""The name, among attributes, of a pair's scores."""
PLAIN = {"margin": 0.0, "scaled": 1.0, "ordinal": 1.0}
"""The strength with which each loss is that of Bradley–Terry."""
NO_STRENGTH = (
    "files of preferences have it in 'strength', 'margin', 'overall_preference', or as 'score_chosen' and "
    "'score_rejected'; of judges, --annotator ratings gives scores, and --votes 5 --vote mean gives votes"
)
NO_NUMBERS = (
    "files of preferences have them as 'score_chosen' and 'score_rejected', 'helpfulness_chosen' and "
    "'helpfulness_rejected' and so on; of judges, --annotator ratings gives scores"
)


def numbers(judged: JudgedPair, name: str) -> tuple[float, float] | None:
    """Return the finite numbers of output 1 and output 2 under a name; None if one is lacking."""
    preference = judged.preference
    attributes = {attribute: (one, two) for attribute, one, two in preference.attributes}
    both = preference.scores if name == SCORE else attributes.get(name)
    return both if both and all(map(math.isfinite, both)) else None


def strength_of(judged: JudgedPair, source: str) -> float | None:
    """Return by how much a pair's preferred output is better, by one source; None if it does not say."""
    p2, strength, scores = judged.p2, judged.preference.strength, numbers(judged, SCORE)
    if source == "votes":  # a coin's label looks like votes that all agree
        return None if p2 is None or judged.preference.source in ("noise", "rule") else abs(2 * p2 - 1)
    if source == "scores":
        return scores and abs(scores[1] - scores[0])
    return abs(strength) if strength is not None and math.isfinite(strength) else None


def with_strengths(
    pairs: Sequence[JudgedPair], config: HeadsConfig
) -> tuple[list[JudgedPair], list[float], dict[str, float]]:
    """Return the pairs to learn from, what each one's strength is to the loss, and counts as metrics.

    Labels of pairs whose strength is a share of votes become certain: the votes are not counted twice. Raises
    `DataError` naming a pair without strength, unless `on_missing` says what to do with it.
    """
    if config.loss == "bradley_terry":
        return list(pairs), [1.0] * len(pairs), {}
    learner, source = config.section, str(config.strength)
    if source == "auto":
        split = any(judged.p2 not in (0, 0.5, 1) for judged in pairs)
        known = (one for one in ("strength", "scores") if any(strength_of(j, one) is not None for j in pairs))
        source = next(known, "votes" if split else "strength")
    strengths = [strength_of(judged, source) for judged in pairs]
    lacking = [judged for judged, strength in zip(pairs, strengths, strict=True) if strength is None]
    _deal_with(lacking, pairs, config, f"strength ({source})", NO_STRENGTH)
    if lacking and config.on_missing == "plain":
        logger.warning(
            "%s: %d of %d pairs have no strength, and count as in Bradley–Terry; %s",
            learner, len(lacking), len(pairs), NO_STRENGTH,
        )  # fmt: skip
    said = [strength for strength in strengths if strength is not None]
    if len(said) > 1 and min(said) == max(said):
        logger.warning("%s: all %d strengths (%s) are equal (%g), so they do not distinguish the pairs", learner,
                       len(said), source, said[0])  # fmt: skip
    strongest = max(said, default=1.0) or 1.0
    scale = 1 / strongest if config.loss == "ordinal" else config.strength_scale
    kept, used = list[JudgedPair](), list[float]()
    for judged, strength in zip(pairs, strengths, strict=True):
        if strength is not None or config.on_missing == "plain":
            kept.append(_certain(judged) if source == "votes" else judged)
            used.append(PLAIN[config.loss] if strength is None else strength * scale)
    counts = {"pairs_without_strength": float(len(lacking)), "mean_strength": sum(used) / len(used)}
    return kept, used, counts


def _certain(judged: JudgedPair) -> JudgedPair:
    p2 = judged.p2
    return judged if p2 in (None, 0.5) else replace(judged, preference=replace(judged.preference, p2=float(p2 > 0.5)))


def with_numbers(
    pairs: Sequence[JudgedPair], config: HeadsConfig
) -> tuple[list[JudgedPair], dict[str, float], dict[str, float]]:
    """Return the pairs that have all numbers to predict, the weight of each number, and counts as metrics.

    Raises `DataError` for a name that no pair has, pairs that lack one (unless these are dropped), and numbers that are
    all equal.
    """
    learner = config.section
    found = dict.fromkeys(name for judged in pairs for name, *_ in judged.preference.attributes)
    known = [*([SCORE] if any(judged.preference.scores for judged in pairs) else []), *found]
    weights = config.weights or dict.fromkeys(found, 1.0)
    if not weights:
        scores = f"; their scores are learned by --set '{learner}.weights={{score: 1}}'" if known else ""
        raise DataError(f"{learner}: none of {len(pairs)} pairs has attributes{scores}; {NO_NUMBERS}")
    for name in weights:
        if name not in known:
            there = f"They have {', '.join(known)}" if known else "They have no numbers at all"
            raise DataError(
                f"{learner}: none of {len(pairs)} pairs has {name!r} for both outputs.{did_you_mean(name, known)} "
                f"{there}; {NO_NUMBERS}"
            )
    lacking = [judged for judged in pairs if any(numbers(judged, name) is None for name in weights)]
    gaps = {name: sum(numbers(judged, name) is None for judged in pairs) for name in weights}
    named = ", ".join(f"{name} ({count})" for name, count in gaps.items() if count)
    _deal_with(lacking, pairs, config, f"number for both outputs in {named}", NO_NUMBERS)
    kept = [judged for judged in pairs if all(numbers(judged, name) is not None for name in weights)]
    for name in weights:
        values = {value for judged in kept for value in numbers(judged, name) or ()}
        if len(values) == 1:
            raise DataError(
                f"{learner}: {name!r} is {values.pop():g} for each output of all {len(kept)} pairs, which teaches "
                f"nothing: leave it out of {learner}.weights"
            )
    return kept, weights, {"pairs_without_numbers": float(len(lacking))}


def _deal_with(
    lacking: Sequence[JudgedPair], pairs: Sequence[JudgedPair], config: HeadsConfig, what: str, mend: str
) -> None:
    """Raise `DataError` for pairs that lack what is learned from, unless `on_missing` takes them."""
    if not lacking or config.on_missing == "plain" or (config.on_missing == "drop" and len(lacking) < len(pairs)):
        return
    first = lacking[0].pair.instruction.instruction
    ways = f"--set {config.section}.on_missing=drop leaves such pairs out" if len(lacking) < len(pairs) else mend
    raise DataError(
        f"{config.section}: {len(lacking)} of {len(pairs)} pairs have no {what}, the first of them for the prompt "
        f"{first!r:.80}: {ways}"
    )
