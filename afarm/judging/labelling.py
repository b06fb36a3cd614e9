"""Labelling with any annotator: identical outputs, label noise, and bounded chunks.

Label noise is a mixture (paper, section 3.2): with probability 2p a pair is left to a fair coin, so that a share p of
labels is flipped and those pairs need no call. All draws are keyed by the pair, so they do not depend on batching,
order or restarts, and swapping a pair's outputs mirrors them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from afarm.core.errors import attribute_failures, require_promise
from afarm.core.interfaces import AnnotateContext, Annotator
from afarm.core.records import JudgedPair, Pair, Preference
from afarm.core.seeding import uniform
from afarm.storage.record_fields import require_record

CHUNK = 8192
"""Pairs handed to an annotator at once.

Few enough to hold in memory, and so many that the end of a chunk, where few requests are in flight, does not count."""


PROMISE = "annotate must return one afarm.Preference per pair, in the order of the pairs"


def number_occurrences(pairs: Sequence[Pair]) -> list[Pair]:
    """Number the repeats of a pair in order, so that each has an id and is judged in its own right."""
    seen: dict[str, int] = {}
    numbered = []
    for pair in pairs:
        count = seen.get(pair.id, 0)
        seen[pair.id] = count + 1
        numbered.append(replace(pair, occurrence=count) if count else pair)
    return numbered


def rule_or_noise(pair: Pair, seed: int, label_noise: float) -> Preference | None:
    """The label of a pair that no annotator needs to see: identical outputs, or one left to the coin."""
    if pair.identical:
        return Preference(pair.id, None, "draw", "rule")
    if uniform(seed, "noise", pair.id) < 2 * label_noise:
        canonical_second_better = uniform(seed, "coin", pair.id) < 0.5
        return Preference(pair.id, float(canonical_second_better == pair.is_canonical), source="noise")
    return None


def annotate_in_chunks(
    pairs: Iterable[Pair],
    annotator: Annotator,
    name: str,
    context: AnnotateContext,
    label_noise: float = 0.0,
    chunk_size: int = CHUNK,
) -> Iterator[JudgedPair]:
    """Judge `pairs` in order, a chunk at a time, so that any number needs the memory of one chunk.

    Raises `PluginError` if the annotator fails, or does not return one preference per pair, in order.

    Args:
        pairs: The pairs, read as they are needed.
        annotator: The annotator; it sees no pair that needs none (`rule_or_noise`).
        name: The annotator's name, for the rows and for errors.
        context: The context, whose seed draws the label noise as well.
        label_noise: The share of labels that are flipped, from 0 to 0.5.
        chunk_size: Pairs per call of the annotator.
    """
    left = iter(pairs)
    while chunk := list(islice(left, chunk_size)):
        settled = [rule_or_noise(pair, context.seed, label_noise) for pair in chunk]
        open_pairs = [pair for pair, preference in zip(chunk, settled, strict=True) if preference is None]
        with attribute_failures("annotators", name, annotator):
            answers = list(annotator.annotate(open_pairs, context) or ()) if open_pairs else []
        for answer in answers:
            require_record(answer, Preference, "annotators", name, PROMISE, annotator)
        counted = f"{PROMISE}: {len(answers)} for {len(open_pairs)} pairs"
        require_promise(len(answers) == len(open_pairs), "annotators", name, counted, annotator)
        for number, (answer, pair) in enumerate(zip(answers, open_pairs, strict=True)):
            other = f"{PROMISE}: number {number} is of another pair"
            require_promise(answer.pair_id == pair.id, "annotators", name, other, annotator)
        remaining = iter(answers)
        for pair, preference in zip(chunk, settled, strict=True):
            yield JudgedPair(pair, preference or next(remaining), name)
