"""Both orders, and several votes: what they ask, what they reuse, and how judgements become one label."""

import math
from collections import Counter
from functools import partial

import pytest
from scripted_ask import ScriptedAsk, by_lot, longer, make_pairs

from afarm.core.interfaces import AnnotateContext
from afarm.core.judge import Completion
from afarm.core.records import JudgedPair, Preference
from afarm.core.seeding import uniform
from afarm.judging.pairwise import combine_orders, combine_votes
from afarm_plugins.annotators.pool import PoolAnnotator
from afarm_plugins.annotators.settings import PoolConfig

Verdict = partial(Preference, "pair")
ONE, TWO, DRAW = Verdict(0.0), Verdict(1.0), Verdict(None, "draw")
UNPARSED, REFUSED = Verdict(None, "unparsed"), Verdict(None, "refused")


def annotate(pairs, ask, seed=0, **config):
    return PoolAnnotator(PoolConfig(**config)).annotate(pairs, AnnotateContext(seed, ask))


@pytest.mark.parametrize(
    ("verdicts", "label"),
    [
        ([ONE], ONE),
        ([Verdict(0.5)], Verdict(0.5)),
        ([UNPARSED], UNPARSED),
        ([ONE, ONE], ONE),
        ([TWO, TWO], TWO),
        ([ONE, TWO], DRAW),
        ([TWO, ONE], DRAW),
        ([Verdict(0.5), Verdict(1.0)], Verdict(0.75)),
        ([Verdict(0.25), Verdict(0.75)], DRAW),
        ([Verdict(0.3), Verdict(0.7 + 1e-12)], DRAW),  # even but for rounding
        ([ONE, UNPARSED], UNPARSED),
        ([REFUSED, TWO], REFUSED),
        ([UNPARSED, REFUSED], REFUSED),
        ([DRAW, DRAW], DRAW),
        ([ONE, DRAW], Verdict(0.25)),
        ([DRAW, Verdict(0.9)], Verdict(0.7)),
        ([DRAW, UNPARSED], UNPARSED),
    ],
)
def test_two_orders_agree_or_draw(verdicts, label):
    assert combine_orders(verdicts) == label


@pytest.mark.parametrize(
    ("verdicts", "majority", "mean"),
    [
        ([Verdict(0.7)], Verdict(0.7), Verdict(0.7)),
        ([DRAW], DRAW, DRAW),
        ([TWO, TWO, ONE], TWO, Verdict(2 / 3)),
        ([ONE, ONE, TWO], ONE, Verdict(1 / 3)),
        ([TWO, ONE], DRAW, Verdict(0.5)),
        ([TWO, DRAW, DRAW], TWO, Verdict(2 / 3)),
        ([TWO, ONE, DRAW], DRAW, Verdict(0.5)),
        ([DRAW, DRAW, DRAW], DRAW, DRAW),
        ([TWO, UNPARSED, UNPARSED], TWO, TWO),
        ([UNPARSED, DRAW], DRAW, DRAW),
        ([UNPARSED, UNPARSED], UNPARSED, UNPARSED),
        ([UNPARSED, REFUSED], REFUSED, REFUSED),
        ([Verdict(0.75), Verdict(0.5), Verdict(0.75)], TWO, Verdict(2 / 3)),
        ([Verdict(0.75), Verdict(0.25), Verdict(0.25)], ONE, Verdict(1.25 / 3)),
    ],
)
def test_votes_are_counted_by_hand(verdicts, majority, mean):
    assert combine_votes(verdicts, "majority") == majority
    assert combine_votes(verdicts, "mean") == mean


def test_in_both_orders_each_pair_is_seen_twice_once_each_way_and_never_in_one_prompt():
    pairs = make_pairs(40)
    ask = ScriptedAsk(longer)
    preferences = annotate(pairs, ask, both_orders=True)
    seen = Counter((c.pair_id, c.first) for c in ask.compared)
    expected = [(p.id, output) for p in pairs for output in (p.output_1, p.output_2)]
    assert seen == Counter(expected)
    for request in ask.requests:
        real = [c.pair_id for c in request.comparisons if c.pair_id]
        assert len(real) == len(set(real))
    assert {p.order for p in preferences} == {"both"}
    assert all(len(p.completion.split(",")) == 2 for p in preferences)


def test_a_judge_that_looks_at_the_position_only_draws_and_one_that_reads_does_not():
    pairs = [p for p in make_pairs(40) if len(p.output_1) != len(p.output_2)]
    positional = annotate(pairs, ScriptedAsk(lambda c: True), both_orders=True)
    assert {(p.outcome, p.p2, p.source) for p in positional} == {("draw", None, "judge")}
    reading = annotate(pairs, ScriptedAsk(longer), both_orders=True)
    assert [p.p2 for p in reading] == [float(len(p.output_2) > len(p.output_1)) for p in pairs]


def test_both_orders_reuse_what_one_order_learned():
    pairs = make_pairs(30)
    ask = ScriptedAsk(longer)
    annotate(pairs, ask)
    annotate(pairs, ask, both_orders=True)
    assert len(ask.compared) == 60


@pytest.mark.parametrize("both_orders", [False, True])
def test_more_votes_reuse_the_fewer(both_orders):
    pairs = make_pairs(30)
    ask = ScriptedAsk(by_lot)
    one = annotate(pairs, ask, both_orders=both_orders)
    asked = len(ask.compared)
    three = annotate(pairs, ask, both_orders=both_orders, votes=3)
    assert len(ask.compared) == 3 * asked
    assert annotate(pairs, ask, both_orders=both_orders, votes=1) == one
    assert len(ask.compared) == 3 * asked
    assert [p.completion.split(",")[0] for p in three] == [p.completion.split(",")[0] for p in one]


def test_votes_are_independent_draws_of_the_same_member_in_the_same_order():
    pairs = make_pairs(300)
    ask = ScriptedAsk(by_lot)
    means = annotate(pairs, ask, votes=3, vote="mean")
    counts = Counter(round(p.p2 * 3) for p in means)
    # Of fair and independent votes, 1/8, 3/8, 3/8 and 1/8; at 300, standard deviations of 5.7 and 8.4.
    assert abs(counts[0] - 37.5) < 25
    assert abs(counts[1] - 112.5) < 35
    assert abs(counts[2] - 112.5) < 35
    shown = Counter((c.pair_id, c.order) for c in ask.compared)
    assert set(shown.values()) == {3}
    who = {(c.pair_id, request.annotator) for request in ask.requests for c in request.comparisons if c.pair_id}
    assert len(who) == 300


def test_majority_and_mean_of_the_same_votes():
    pairs = make_pairs(60)
    ask = ScriptedAsk(by_lot)
    means = annotate(pairs, ask, votes=3, vote="mean")
    asked = len(ask.requests)
    majorities = annotate(pairs, ask, votes=3)
    assert len(ask.requests) == asked
    assert [p.p2 for p in majorities] == [float(p.p2 > 0.5) for p in means]


def test_a_reask_of_one_vote_shifts_no_other():
    pairs = make_pairs(20)
    odd = pairs[4].id
    calm = ScriptedAsk(by_lot)
    expected = annotate(pairs, calm, votes=3, vote="mean")
    first_unreadable = ScriptedAsk(lambda c: None if (c.pair_id, c.sample_index) == (odd, 0) else by_lot(c))
    found = annotate(pairs, first_unreadable, votes=3, vote="mean")
    assert [p for p in found if p.pair_id != odd] == [p for p in expected if p.pair_id != odd]

    def of_later_votes(ask):
        return {c.sample_index for c in ask.compared if c.pair_id == odd} - {0, 1}

    assert of_later_votes(first_unreadable) == of_later_votes(calm) == {100, 200}
    assert {c.sample_index for c in first_unreadable.compared if c.pair_id == odd} == {0, 1, 100, 200}


def test_a_vote_that_stays_unreadable_is_left_out_and_an_order_that_does_spoils_its_pair():
    pairs = [p for p in make_pairs(12) if len(p.output_1) != len(p.output_2)]
    ask = ScriptedAsk(lambda c: None if c.sample_index < 100 else longer(c))
    assert [p.p2 for p in annotate(pairs, ask, votes=2)] == [float(len(p.output_2) > len(p.output_1)) for p in pairs]
    ask = ScriptedAsk(lambda c: None if c.order == "ba" else longer(c))
    assert {p.outcome for p in annotate(pairs, ask, both_orders=True)} == {"unparsed"}


@pytest.mark.parametrize("vote", ["majority", "mean"])
def test_swapping_the_outputs_mirrors_the_label(vote):
    pairs = make_pairs(60)
    settings = {"both_orders": True, "votes": 3, "vote": vote}
    straight = annotate(pairs, ScriptedAsk(by_lot), **settings)
    mirrored = annotate([pair.swapped() for pair in pairs], ScriptedAsk(by_lot), **settings)
    assert [(p.outcome, p.member) for p in mirrored] == [(p.outcome, p.member) for p in straight]
    for one, other in zip(straight, mirrored, strict=True):
        assert other.p2 == (None if one.p2 is None else pytest.approx(1 - one.p2, abs=1e-12))
    assert len({p.p2 for p in straight}) > 2


def test_the_plan_counts_every_order_and_vote_and_only_what_is_missing():
    pairs = make_pairs(20)
    ask = ScriptedAsk(by_lot)
    annotator = PoolAnnotator(PoolConfig(members=["gpt4_4"], both_orders=True, votes=3))
    assert len(annotator.plan(pairs, AnnotateContext(0, ask))) == 120
    annotate(pairs, ask, members=["gpt4_4"], votes=2)
    assert len(annotator.plan(pairs, AnnotateContext(0, ask))) == 80
    assert len(ask.requests) == 40


def test_a_mean_of_votes_is_a_soft_label_in_the_file_and_disagreement_a_draw():
    (pair,) = make_pairs(1)
    (mean,) = annotate([pair], ScriptedAsk(lambda c: c.sample_index == 0), votes=4, vote="mean")
    row = JudgedPair(pair, mean, "pool").to_row()
    saw_1_first = mean.order == "12"
    assert row["preference"] == (1.75 if saw_1_first else 1.25)
    (draw,) = annotate([pair], ScriptedAsk(lambda c: True), both_orders=True)
    row = JudgedPair(pair, draw, "pool").to_row()
    assert (row["preference"], row["outcome"], row["order"]) == (1.5, "draw", "both")
    assert JudgedPair.from_row(row).preference == draw


# ------------------------------------------------------------------------------------------------ label probabilities


class Probabilities(ScriptedAsk):
    """A judge that answers with the log-probabilities of the two labels."""

    def answer(self, r):
        first = self.verdict(r.comparisons[0])
        found = first if isinstance(first, dict) else {"Output (a)": math.log(first), "Output (b)": math.log(1 - first)}
        return Completion("Output (a)", finish_reason="probabilities", logprobs=(found,), key=r.comparisons[0].pair_id)


def a_float(comparison):
    return 0.05 + 0.9 * uniform("p", comparison.pair_id, comparison.order)


def test_probabilities_of_the_labels_are_a_float_preference():
    pairs = make_pairs(20)
    ask = Probabilities(a_float)
    preferences = annotate(pairs, ask, members=["chatgpt_4"])
    shown = {c.pair_id: c for c in ask.compared}
    for preference in preferences:
        first = a_float(shown[preference.pair_id])
        assert preference.p2 == pytest.approx(1 - first if preference.order == "12" else first, abs=1e-12)
    assert annotate(pairs, ask, members=["chatgpt_4"]) == preferences
    assert len(ask.requests) == 20


def test_probabilities_are_shares_of_the_two_labels_alone_and_averaged_over_both_orders():
    pairs = make_pairs(8)
    unnormalised = {"Output (a)": math.log(0.03), "Output (b)": math.log(0.01)}
    preferences = annotate(pairs, Probabilities(lambda c: unnormalised), members=["gpt4_4"])
    assert [p.p2 for p in preferences] == [pytest.approx(0.25 if p.order == "12" else 0.75) for p in preferences]
    ask = Probabilities(a_float)
    both = annotate(pairs, ask, members=["gpt4_4"], both_orders=True)
    for pair, preference in zip(pairs, both, strict=True):
        seen = {c.first: a_float(c) for c in ask.compared if c.pair_id == pair.id}
        assert preference.p2 == pytest.approx((1 - seen[pair.output_1] + seen[pair.output_2]) / 2)
    assert {p.outcome for p in annotate(pairs, Probabilities(lambda c: 0.8), both_orders=True)} <= {"draw", "unparsed"}


@pytest.mark.parametrize(
    ("logprobs", "p"),
    [
        ({"Output (a)": 0.0, "Output (b)": -math.inf}, 1.0),
        ({"Output (a)": -800.0, "Output (b)": -801.0}, 1 / (1 + math.exp(-1))),
        ({"Output (a)": -0.1}, None),
        ({}, None),
        ({"Output (a)": -math.inf, "Output (b)": -math.inf}, None),
        ({"Output (a)": math.nan, "Output (b)": -1.0}, None),
    ],
)
def test_odd_probabilities(logprobs, p):
    (pair,) = make_pairs(1)
    (preference,) = annotate([pair], Probabilities(lambda c: logprobs), members=["gpt4_4"], max_reasks=0)
    if p is None:
        assert preference.outcome == "unparsed"
    else:
        assert preference.p2 == pytest.approx(1 - p if preference.order == "12" else p)


@pytest.mark.parametrize("name", ["gpt4_3", "chatgpt_2"])
def test_formats_that_are_no_single_label_have_no_probabilities(name):
    preferences = annotate(make_pairs(6), Probabilities(a_float), members=[name], max_reasks=0)
    assert {p.outcome for p in preferences} == {"unparsed"}


def test_labels_say_what_the_judge_could_not_take_and_are_another_judgement():
    pairs = make_pairs(5)
    ask = ScriptedAsk(longer)
    assert {p.degraded for p in annotate(pairs, ask, members=["gpt4_4"])} == {()}
    ask.lacks = ("temperature", "logit_bias")
    degraded = annotate(pairs, ask, members=["gpt4_4"])
    assert {p.degraded for p in degraded} == {("temperature", "logit_bias")}
    assert len(ask.compared) == 10
    row = JudgedPair(pairs[0], degraded[0], "gpt4_4").to_row()
    assert JudgedPair.from_row(row).preference.degraded == ("temperature", "logit_bias")


@pytest.mark.parametrize("order", ["12", "21"])
def test_a_context_may_ask_for_one_order_of_all_pairs(order):
    """A judge that names the first: the label is the output that the order puts there."""
    pairs, ask, annotator = make_pairs(30), ScriptedAsk(lambda shown: True), PoolAnnotator(PoolConfig())
    planned = annotator.plan(pairs, AnnotateContext(0, ask, order=order))
    labels = annotator.annotate(pairs, AnnotateContext(0, ask, order=order))
    assert {(label.order, label.p2) for label in labels} == {(order, float(order == "21"))}
    assert {request.comparisons for request in planned} == {request.comparisons for request in ask.requests}
    drawn = annotator.annotate(pairs, AnnotateContext(0, ask))
    assert {label.order for label in drawn} == {"12", "21"}
    assert [label for label in drawn if label.order == order] == [
        label for label, other in zip(labels, drawn, strict=True) if other.order == order
    ]
