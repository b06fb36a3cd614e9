"""Evaluator directories in both orders and with several votes: batches, chains of parsers, weights, draws."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from evaluator_directories import COMPARE, LETTERS, batch_template, entry, weighted, write
from pydantic import ValidationError

from afarm.core.judge import Capabilities, ChatRequest, Completion, Judgement, JudgementKey, ShownPair
from afarm.core.records import Instruction, Pair, Preference
from afarm.core.seeding import digest, uniform
from afarm.testing import FakeJudgeClient, annotate_context, check_annotator
from afarm_plugins.alpaca_eval import AlpacaEvalConfig
from afarm_plugins.alpaca_eval.annotator import AlpacaEvalAnnotator

EVERYTHING = Capabilities(chat=True, completion=True, logit_bias=True, logprobs=True, tool=True)

CHAIN = {
    "fn_completion_parser": "pipeline_meta_parser",
    "completion_parser_kwargs": {"parsers_to_kwargs": {"json_parser": {"annotation_key": "ranks"}, "eval_parser": {}}},
}


def annotator(spec: str, **settings: object) -> AlpacaEvalAnnotator:
    return AlpacaEvalAnnotator(AlpacaEvalConfig.model_validate(settings), spec)


def labels(made: AlpacaEvalAnnotator, pairs: list[Pair], ask: FakeJudgeClient, seed: int = 0) -> list[Preference]:
    return made.annotate(pairs, annotate_context(seed, ask))


def numbered(n: int) -> list[Pair]:
    """The better output is first in the even ones."""
    sides = [("good", "bad"), ("bad", "good")]
    return [Pair(Instruction(f"Task {i}"), f"{sides[i % 2][0]} {i}", f"{sides[i % 2][1]} {i}") for i in range(n)]


def truth(pairs: list[Pair]) -> list[float]:
    return [float(pair.output_2.startswith("good")) for pair in pairs]


def letters(wanted: Callable[[ShownPair], bool | None]) -> Callable[[ChatRequest], str]:
    """A judge that says of each comparison whether the first is better; None: nothing of use."""
    said = {True: "Output (a)", False: "Output (b)", None: "Neither"}
    return lambda request: "\n".join(said[wanted(c) if c.pair_id else True] for c in request.comparisons)


def reads(comparison: ShownPair) -> bool:
    return comparison.first.startswith("good")


def by_lot(comparison: ShownPair) -> bool:
    return uniform(comparison.pair_id, comparison.order, comparison.sample_index) < 0.5


def compared(ask: FakeJudgeClient) -> list[ShownPair]:
    return [c for request in ask.sent for c in request.comparisons if c.pair_id]


@pytest.fixture
def batched(tmp_path: Path) -> str:
    return write(tmp_path, {"three": entry(batch_size=3, **LETTERS)}, {"prompt.txt": batch_template(3)})


# ------------------------------------------------------------------------------------------------ both orders


@pytest.mark.parametrize("drawn", [True, False])
def test_each_pair_is_seen_once_each_way_and_never_in_one_prompt(tmp_path: Path, drawn: bool) -> None:
    own = entry(batch_size=3, is_randomize_output_order=drawn, **LETTERS)
    path = write(tmp_path, {"three": own}, {"prompt.txt": batch_template(3)})
    pairs, ask = numbered(10), FakeJudgeClient(letters(reads))
    found = labels(annotator(path, both_orders=True), pairs, ask)
    assert [p.p2 for p in found] == truth(pairs)
    assert {p.order for p in found} == {"both"}
    assert all(len(p.completion.split(",")) == 2 for p in found)
    assert Counter((c.pair_id, c.first, c.second) for c in compared(ask)) == Counter(
        (p.id, *shown) for p in pairs for shown in ((p.output_1, p.output_2), (p.output_2, p.output_1))
    )
    asked = [[c.pair_id for c in request.comparisons if c.pair_id] for request in ask.sent]
    assert all(len(ids) == len(set(ids)) for ids in asked)
    assert sorted(map(len, asked)) == [1, 1, 3, 3, 3, 3, 3, 3]


def test_a_judge_that_looks_at_the_position_only_draws(batched: str) -> None:
    found = labels(annotator(batched, both_orders=True), numbered(7), FakeJudgeClient(letters(lambda c: True)))
    assert {(p.outcome, p.p2, p.source) for p in found} == {("draw", None, "judge")}


def test_an_order_that_stays_unreadable_leaves_its_pair_without_a_verdict(batched: str) -> None:
    pairs = numbered(9)
    odd = pairs[4].id
    ask = FakeJudgeClient(letters(lambda c: None if (c.pair_id, c.order) == (odd, "ba") else reads(c)))
    found = labels(annotator(batched, both_orders=True, max_reasks=1), pairs, ask)
    assert [(p.outcome, p.p2) for p in found] == [
        ("unparsed", None) if pair.id == odd else ("decided", p2) for pair, p2 in zip(pairs, truth(pairs), strict=True)
    ]
    # "Neither" is one verdict too few for its batch: its two companions are asked again too, each alone.
    again = [[c.pair_id for c in request.comparisons if c.pair_id] for request in ask.sent if request.sample_index == 1]
    assert sorted(map(len, again)) == [1, 1, 1]
    assert [odd] in again
    assert {c.order for c in compared(ask) if c.pair_id == odd and c.sample_index == 1} == {"ba"}


def test_an_order_that_is_refused_leaves_its_pair_refused(tmp_path: Path) -> None:
    class Refusing(FakeJudgeClient):
        def _complete(self, request: ChatRequest) -> Completion:
            reason = "refusal" if request.comparisons[0].order == "ab" else ""
            return replace(super()._complete(request), finish_reason=reason)

    ask = Refusing(letters(lambda c: None if c.order == "ab" else True))
    path = write(tmp_path, {"mine": entry(**LETTERS)})
    found = labels(annotator(path, both_orders=True, max_reasks=0), numbered(3), ask)
    assert [p.outcome for p in found] == ["refused"] * 3


def test_a_draw_in_one_order_counts_one_half_and_is_not_asked_again(tmp_path: Path) -> None:
    path = write(tmp_path, {"scores": entry(fn_completion_parser="lmsys_parser")})
    pairs = numbered(4)
    ask = FakeJudgeClient(lambda request: "5 5" if request.comparisons[0].order == "ab" else "9 1")
    found = labels(annotator(path, both_orders=True), pairs, ask)
    assert [p.p2 for p in found] == [0.75 if pair.is_canonical else 0.25 for pair in pairs]
    assert {p.p2 for p in found} == {0.25, 0.75}
    assert len(ask.sent) == 8
    tied = labels(annotator(path, both_orders=True), pairs, FakeJudgeClient(lambda request: "5 5"))
    assert {(p.outcome, p.p2) for p in tied} == {("draw", None)}


def test_a_chain_of_parsers_reads_batches_in_either_order(tmp_path: Path) -> None:
    def ranked(wanted: Callable[[ShownPair], bool]) -> Callable[[ChatRequest], str]:
        return lambda request: json.dumps([{"ranks": "1" if wanted(c) else "2"} for c in request.comparisons])

    path = write(tmp_path, {"chain": entry(batch_size=2, **CHAIN)}, {"prompt.txt": batch_template(2)})
    pairs, ask = numbered(6), FakeJudgeClient(ranked(reads))
    assert [p.p2 for p in labels(annotator(path, both_orders=True, votes=2), pairs, ask)] == truth(pairs)
    assert len(ask.sent) == 12
    biased = labels(annotator(path, both_orders=True), pairs, FakeJudgeClient(ranked(lambda c: False)))
    assert {p.outcome for p in biased} == {"draw"}


class Weighing(FakeJudgeClient):
    """Finds the first output better with the probability that `first` gives, in token probabilities."""

    def __init__(self, first: Callable[[ShownPair], float]):
        super().__init__(lambda request: "m", EVERYTHING)
        self.first = first

    def _complete(self, request: ChatRequest) -> Completion:
        p = self.first(request.comparisons[0])
        return replace(super()._complete(request), logprobs=({"m": math.log(p), "M": math.log(1 - p)},))


def test_weights_are_averaged_over_both_orders(tmp_path: Path) -> None:
    pairs = numbered(6)
    # 0.9 for the good one where it is first, 0.6 where it is second.
    ask = Weighing(lambda c: 0.9 if reads(c) else 0.4)
    found = labels(annotator(write(tmp_path, {"w": weighted()}), both_orders=True), pairs, ask)
    assert [p.p2 for p in found] == pytest.approx([0.75 if second else 0.25 for second in truth(pairs)])
    even = labels(annotator(write(tmp_path, {"w": weighted()}), both_orders=True), pairs, Weighing(lambda c: 0.8))
    assert {p.outcome for p in even} == {"draw"}


def test_weights_of_several_votes_are_averaged_or_counted(tmp_path: Path) -> None:
    pairs = numbered(6)
    ask = Weighing(
        lambda c: (
            {0: 0.9, 100: 0.2, 200: 0.7}[c.sample_index] if reads(c) else {0: 0.1, 100: 0.8, 200: 0.3}[c.sample_index]
        )
    )
    path = write(tmp_path, {"w": weighted()})
    means = labels(annotator(path, votes=3, vote="mean"), pairs, ask)
    assert [p.p2 for p in means] == pytest.approx([0.6 if second else 0.4 for second in truth(pairs)])
    assert [p.p2 for p in labels(annotator(path, votes=3), pairs, ask)] == truth(pairs)
    assert len(ask.sent) == 18


# ------------------------------------------------------------------------------------------------ votes


@pytest.mark.parametrize("both_orders", [False, True])
def test_more_votes_and_the_other_order_buy_only_what_is_missing(batched: str, both_orders: bool) -> None:
    pairs, ask = numbered(12), FakeJudgeClient(letters(by_lot))
    one = labels(annotator(batched), pairs, ask)
    three = labels(annotator(batched, votes=3, both_orders=both_orders), pairs, ask)
    assert len(compared(ask)) == 12 * 3 * (1 + both_orders)
    assert {c.sample_index for c in compared(ask)} == {0, 100, 200}
    assert [p.completion.split(",")[0] for p in three] == [p.completion for p in one]
    asked = len(ask.sent)
    assert labels(annotator(batched), pairs, ask) == one
    assert len(ask.sent) == asked


def test_what_was_learned_without_them_is_known_by_these_keys(tmp_path: Path) -> None:
    made = annotator(write(tmp_path, {"mine": entry(is_randomize_output_order=False, **LETTERS)}), votes=2)
    pair, ask = numbered(1)[0], FakeJudgeClient(letters(reads))
    who = digest(made.members["mine"].content, "fake", True, ())
    order = "ab" if pair.is_canonical else "ba"
    ask.learn({JudgementKey(who, pair.id, order, 0, 0): Judgement(0.0, completion="old")})
    [found] = labels(made, [pair], ask)
    assert [c.sample_index for c in compared(ask)] == [100]
    assert found.completion.startswith("old,")
    assert found.outcome == "draw", "the one that is known says the contrary"


def test_a_reask_of_one_vote_shifts_no_other(batched: str) -> None:
    pairs = numbered(7)
    odd = pairs[3].id
    calm, shaken = (
        FakeJudgeClient(letters(by_lot)),
        FakeJudgeClient(letters(lambda c: None if (c.pair_id, c.sample_index) == (odd, 100) else by_lot(c))),
    )
    for ask in (calm, shaken):
        labels(annotator(batched, votes=3, vote="mean"), pairs, ask)
    assert {c.sample_index for c in compared(calm) if c.pair_id == odd} == {0, 100, 200}
    assert {c.sample_index for c in compared(shaken) if c.pair_id == odd} == {0, 100, 101, 200}


def test_a_vote_that_stays_unreadable_is_left_out(batched: str) -> None:
    pairs = numbered(6)
    ask = FakeJudgeClient(letters(lambda c: None if c.sample_index < 100 else reads(c)))
    assert [p.p2 for p in labels(annotator(batched, votes=2), pairs, ask)] == truth(pairs)


def test_reasks_stay_below_the_draws_of_the_next_vote() -> None:
    assert AlpacaEvalConfig(max_reasks=99).max_reasks == 99
    with pytest.raises(ValidationError, match="less than 100"):
        AlpacaEvalConfig(max_reasks=100)


# ------------------------------------------------------------------------------------------------ and all of it


def test_labels_left_to_alpaca_evals_coin_are_asked_in_neither_order(batched: str) -> None:
    pairs, ask = numbered(60), FakeJudgeClient(letters(reads))
    found = labels(annotator(batched, both_orders=True, votes=2, p_label_flip=0.2), pairs, ask)
    noisy = {p.pair_id for p in found if p.source == "noise"}
    assert 10 < len(noisy) < 40
    assert Counter(c.pair_id for c in compared(ask)) == {p.id: 4 for p in pairs if p.id not in noisy}
    assert [p.p2 for p in found if p.pair_id not in noisy] == [
        p2 for pair, p2 in zip(pairs, truth(pairs), strict=True) if pair.id not in noisy
    ]


def test_the_plan_counts_every_order_and_vote_and_only_what_is_missing(batched: str) -> None:
    pairs, ask = numbered(6), FakeJudgeClient(letters(by_lot))
    everything = annotator(batched, both_orders=True, votes=3)
    assert len(everything.plan(pairs, annotate_context(0, ask))) == 12
    assert not ask.sent
    labels(annotator(batched), pairs, ask)
    planned = everything.plan(pairs, annotate_context(0, ask))
    sent = len(ask.sent)
    labels(everything, pairs, ask)
    assert len(ask.sent) - sent == len(planned)


@pytest.mark.parametrize("draws", ["alpaca_eval", "pair"])
def test_in_both_orders_swapping_the_outputs_mirrors_the_label_under_either_draw(batched: str, draws: str) -> None:
    pairs = numbered(20)
    made = annotator(batched, draws=draws, both_orders=True, votes=3, vote="mean")
    straight = labels(made, pairs, FakeJudgeClient(letters(by_lot)))
    mirrored = labels(made, [pair.swapped() for pair in pairs], FakeJudgeClient(letters(by_lot)))
    assert [p.outcome for p in mirrored] == [p.outcome for p in straight]
    for one, other in zip(straight, mirrored, strict=True):
        assert other.p2 == (None if one.p2 is None else pytest.approx(1 - one.p2))
    assert len({p.p2 for p in straight}) > 2


@pytest.mark.parametrize("both_orders", [False, True])
def test_a_pair_and_its_mirror_asked_together_have_each_their_own_label(tmp_path: Path, both_orders: bool) -> None:
    [pair] = numbered(1)
    path = write(tmp_path, {"mine": entry(**LETTERS)})
    found = labels(annotator(path, both_orders=both_orders), [pair, pair.swapped()], FakeJudgeClient(letters(reads)))
    assert [p.p2 for p in found] == [0.0, 1.0]


def test_a_directory_keeps_the_promises_of_an_annotator_in_both_orders_and_with_votes(tmp_path: Path) -> None:
    pool = {"a": entry(**LETTERS), "b": entry("two.txt", batch_size=2, **LETTERS)}
    path = write(tmp_path, pool, {"prompt.txt": COMPARE, "two.txt": batch_template(2)})
    check_annotator(annotator(path, draws="pair", both_orders=True, votes=2))
