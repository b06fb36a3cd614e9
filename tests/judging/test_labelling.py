"""What every annotator gets for free: rule draws, label noise, bounded chunks, and nothing that hangs on batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from afarm.core.errors import PluginError
from afarm.core.interfaces import AnnotateContext, Annotator
from afarm.core.records import Instruction, JudgedPair, Pair, Preference
from afarm.core.seeding import uniform
from afarm.judging.labelling import CHUNK, annotate_in_chunks, rule_or_noise
from afarm.testing import annotate_context

SAME = Pair(Instruction("i"), "equal", "equal")


class Keyed(Annotator):
    """Prefers either output by a draw for the pair, mirrored with it. `seen` holds what it was handed, by call."""

    def __init__(self) -> None:
        self.seen: list[list[Pair]] = []

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        self.seen.append(list(pairs))
        return [
            Preference(pair.id, float((uniform(context.seed, pair.id) < 0.5) == pair.is_canonical)) for pair in pairs
        ]


def pairs_of(count: int) -> list[Pair]:
    return [Pair(Instruction(f"instruction {i}"), f"one {i}", f"two {i}") for i in range(count)]


def labelled(
    pairs: Sequence[Pair],
    noise: float = 0.0,
    seed: int = 0,
    annotator: Annotator | None = None,
    chunk_size: int = CHUNK,
) -> Any:
    return list(annotate_in_chunks(pairs, annotator or Keyed(), "keyed", annotate_context(seed), noise, chunk_size))


def test_identical_outputs_are_a_draw_by_rule_that_no_annotator_sees() -> None:
    annotator = Keyed()
    (judged,) = labelled([SAME], noise=0.5, annotator=annotator)
    assert judged == JudgedPair(SAME, Preference(SAME.id, None, "draw", "rule"), "keyed")
    assert annotator.seen == [], "with nothing to ask, the annotator is not called"


def test_a_quarter_of_noise_leaves_half_of_the_pairs_to_a_fair_coin_and_asks_about_the_rest() -> None:
    annotator = Keyed()
    pairs = pairs_of(4000)
    judged = labelled(pairs, 0.25, annotator=annotator)
    noisy = [j for j in judged if j.preference.source == "noise"]
    # Binomial: 4000 at 0.5 has a standard deviation of 31.6, and the 2000 coins one of 22.4.
    assert abs(len(noisy) - 2000) < 5 * 31.6
    assert abs(sum(j.p2 for j in noisy) - len(noisy) / 2) < 5 * 22.4
    clean = {j.preference.pair_id: j.p2 for j in labelled(pairs)}
    flipped = sum(j.p2 != clean[j.preference.pair_id] for j in judged)
    assert abs(flipped - 1000) < 5 * 27.4
    asked = [pair.id for call in annotator.seen for pair in call]
    assert asked == [j.preference.pair_id for j in judged if j.preference.source == "judge"]


@pytest.mark.parametrize(("noise", "share"), [(0.0, 0.0), (0.175, 0.35), (0.35, 0.7), (0.5, 1.0)])
def test_the_share_of_pairs_left_to_the_coin_is_twice_the_noise(noise: float, share: float) -> None:
    found = sum(rule_or_noise(pair, 1, noise) is not None for pair in pairs_of(4000)) / 4000
    assert found == pytest.approx(share, abs=0.04 * (0 < share < 1))


def test_more_noise_keeps_the_pairs_that_less_noise_took() -> None:
    pairs = pairs_of(500)
    little, much = ({p.id for p in pairs if rule_or_noise(p, 1, noise)} for noise in (0.1, 0.3))
    assert little < much


def test_labels_depend_on_no_order_batch_or_partition() -> None:
    pairs, size = pairs_of(600), 400
    whole = {j.pair.id: j for j in labelled(pairs, 0.25, chunk_size=size)}
    shuffled = pairs[:]
    random.Random(1).shuffle(shuffled)
    assert {j.pair.id: j for j in labelled(shuffled, 0.25, chunk_size=size)} == whole
    parts = labelled(pairs[:7], 0.25) + labelled(pairs[7:100], 0.25) + labelled(pairs[100:], 0.25, chunk_size=size)
    assert {j.pair.id: j for j in parts} == whole
    assert [j.pair for j in labelled(shuffled, 0.25, chunk_size=size)] == shuffled


def test_swapped_pairs_get_mirrored_labels_and_another_seed_independent_ones() -> None:
    pairs = pairs_of(1000)
    labels = [j.p2 for j in labelled(pairs, 0.25)]
    assert [1 - j.p2 for j in labelled([p.swapped() for p in pairs], 0.25)] == labels
    other = [j.p2 for j in labelled(pairs, 0.25, seed=1)]
    assert abs(sum(a == b for a, b in zip(labels, other, strict=True)) - 500) < 5 * 15.9
    noisy = [[rule_or_noise(pair, seed, 0.25) is not None for pair in pairs] for seed in (0, 1)]
    assert abs(sum(a == b for a, b in zip(*noisy, strict=True)) - 500) < 5 * 15.9


def test_occurrences_of_one_pair_are_judged_in_their_own_right() -> None:
    pair = pairs_of(1)[0]
    p2s = [j.p2 for j in labelled([replace(pair, occurrence=i) for i in range(400)], 0.25)]
    assert abs(sum(p2s) - 200) < 5 * 10


def test_pairs_are_read_and_judged_a_chunk_at_a_time() -> None:
    annotator, read = Keyed(), 0

    def streamed(pairs: list[Pair]) -> Any:
        nonlocal read
        for pair in pairs:
            read += 1
            yield pair

    judged = annotate_in_chunks(streamed(pairs_of(3 * 64)), annotator, "keyed", annotate_context(), chunk_size=64)
    next(judged)
    assert read == 64
    assert sum(1 for _ in judged) == 3 * 64 - 1
    assert [len(call) for call in annotator.seen] == [64] * 3
    read = 0
    next(annotate_in_chunks(streamed([SAME] * (CHUNK + 1)), annotator, "keyed", annotate_context()))
    assert read == CHUNK, "a hundred thousand pairs must not be held in memory"


class Wrong(Keyed):
    def __init__(self, how: str):
        super().__init__()
        self.how = how

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        right = super().annotate(pairs, context)
        wrong: dict[str, Any] = {
            "reversed": right[::-1],
            "short": right[:-1],
            "long": [*right, right[0]],
            "none": None,
            "numbers": [1.0 for _ in right],
        }
        return wrong[self.how]  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["reversed", "short", "long", "none", "numbers"])
def test_an_annotator_that_breaks_its_promise_is_named(how: str) -> None:
    with pytest.raises(PluginError, match=r"'keyed': annotate must return one afarm\.Preference per pair"):
        labelled(pairs_of(3), annotator=Wrong(how))
