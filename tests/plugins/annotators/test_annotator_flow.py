"""Which member sees which pair in which order, and how answers become preferences: none lost, none asked twice."""

from collections import Counter

import pytest
from scripted_ask import ScriptedAsk, by_lot, by_pairs, longer, make_pairs

from afarm.core.errors import JudgeError
from afarm.core.interfaces import AnnotateContext
from afarm.core.records import Instruction, Pair
from afarm.core.seeding import uniform
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
from afarm.judging.pairwise import REMINDER
from afarm.testing import judge_context
from afarm_plugins.annotators import bound_prompt
from afarm_plugins.annotators.parsing import READING, parse
from afarm_plugins.annotators.pool import PoolAnnotator
from afarm_plugins.annotators.settings import POOL, PROMPTS, PoolConfig
from afarm_plugins.judges.offline import OfflineJudge
from afarm_plugins.judges.settings import OfflineConfig

NAMES = [*PROMPTS]


def annotate(pairs, ask, seed=0, **config):
    return PoolAnnotator(PoolConfig(**config)).annotate(pairs, AnnotateContext(seed, ask))


@pytest.mark.parametrize("name", NAMES)
def test_the_output_the_judge_prefers_is_preferred_whichever_it_saw_first(name):
    pairs = [p for p in make_pairs(40) if len(p.output_1) != len(p.output_2)]
    ask = ScriptedAsk(longer)
    preferences = annotate(pairs, ask, members=[name])
    assert [p.p2 for p in preferences] == [float(len(p.output_2) > len(p.output_1)) for p in pairs]
    assert [p.pair_id for p in preferences] == [p.id for p in pairs]
    assert {p.order for p in preferences} == {"12", "21"}
    assert {p.member for p in preferences} == {name}
    shown = {c.pair_id: (c.first, c.second) for c in ask.compared}
    for pair, preference in zip(pairs, preferences, strict=True):
        outputs = (pair.output_1, pair.output_2) if preference.order == "12" else (pair.output_2, pair.output_1)
        assert shown[pair.id] == outputs
        assert pair.id in preference.completion


@pytest.mark.parametrize("verdict", [longer, by_lot, lambda c: True], ids=["longer", "by lot", "always first"])
def test_swapping_the_outputs_mirrors_the_preference(verdict):
    pairs = make_pairs(60)
    straight = annotate(pairs, ScriptedAsk(verdict))
    mirrored = annotate([pair.swapped() for pair in pairs], ScriptedAsk(verdict))
    assert [p.swapped() for p in mirrored] == straight


def test_labels_do_not_depend_on_order_or_batches():
    pairs = make_pairs(50)

    def essence(preferences):
        return {p.pair_id: (p.p2, p.member, p.order) for p in preferences}

    expected = essence(annotate(pairs, ScriptedAsk(by_lot)))
    assert essence(annotate(pairs[::-1], ScriptedAsk(by_lot))) == expected
    one_by_one = ScriptedAsk(by_lot)
    assert essence([annotate([pair], one_by_one)[0] for pair in pairs]) == expected


def test_members_and_orders_are_drawn_uniformly_and_anew_for_each_seed():
    pairs = make_pairs(2600)
    preferences = annotate(pairs, ScriptedAsk(longer), seed=0)
    members = Counter(p.member for p in preferences)
    assert set(members) == set(POOL)
    # 200 expected of each, standard deviation 13.6; 1300 of each order, standard deviation 25.5.
    assert all(140 < count < 260 for count in members.values())
    assert 1170 < sum(p.order == "12" for p in preferences) < 1430
    again = annotate(pairs, ScriptedAsk(longer), seed=1)
    same_member = sum(p.member == q.member for p, q in zip(preferences, again, strict=True))
    same_order = sum(p.order == q.order for p, q in zip(preferences, again, strict=True))
    assert 110 < same_member < 290  # 200 expected, as for independent draws
    assert 1170 < same_order < 1430


def test_batches_hold_one_member_and_one_form_of_prompt_and_are_full_up_to_the_last():
    ask = ScriptedAsk(longer)
    annotate(make_pairs(61), ask, members=["gpt4_2"])
    real = [[c for c in request.comparisons if c.pair_id] for request in ask.requests]
    assert all(len(request.comparisons) == 5 for request in ask.requests)
    # 21 pairs with an input, 40 without.
    assert sorted(map(len, real)) == [1] + [5] * 12
    assert all(len({bool(c.instruction.input) for c in request.comparisons}) == 1 for request in ask.requests)
    assert len(ask.compared) == 61


def test_the_pool_asks_for_all_its_members_at_once():
    ask = ScriptedAsk(longer)
    annotate(make_pairs(200), ask)
    assert len(ask.calls) == 1
    assert {request.annotator for request in ask.calls[0]} == set(POOL)


@pytest.mark.parametrize("name", ["gpt4_1", "gpt4_3", "davinci003_3"])
def test_an_unreadable_verdict_costs_no_companion_and_is_asked_again_alone(name):
    pairs = make_pairs(20, with_inputs=False)
    odd = pairs[7].id
    ask = ScriptedAsk(lambda c: None if c.pair_id == odd and c.sample_index == 0 else longer(c))
    preferences = annotate(pairs, ask, members=[name])
    assert all(p.outcome == "decided" for p in preferences)
    first, second = ask.calls
    assert Counter(c.pair_id for request in first for c in request.comparisons if c.pair_id) == {p.id: 1 for p in pairs}
    assert [[c.pair_id for c in request.comparisons if c.pair_id] for request in second] == [[odd]]
    assert (second[0].sample_index, second[0].comparisons[0].sample_index) == (1, 1)
    assert len(second[0].comparisons) == len(first[0].comparisons)


def test_a_pair_that_stays_unreadable_is_unparsed_remembered_and_never_a_loss():
    pairs = make_pairs(6)
    odd = pairs[2].id
    ask = ScriptedAsk(lambda c: None if c.pair_id == odd else longer(c))
    preferences = annotate(pairs, ask, max_reasks=2)
    assert [p.outcome for p in preferences] == ["decided"] * 2 + ["unparsed"] + ["decided"] * 3
    assert preferences[2].p2 is None
    assert preferences[2].completion
    assert [c.sample_index for c in ask.compared if c.pair_id == odd] == [0, 1, 2]
    asked = len(ask.requests)
    assert annotate(pairs, ask, max_reasks=2) == preferences
    assert len(ask.requests) == asked
    # One more re-ask allowed: one more request.
    annotate(pairs, ask, max_reasks=3)
    assert len(ask.requests) == asked + 1


def test_a_judge_none_of_whose_first_answers_can_be_read_is_asked_no_further():
    ask = ScriptedAsk(lambda c: None)
    said = r"has given no answer .*: 20 came .*: 'Neither' is not in the form that chatgpt_1 .*--judge light="
    with pytest.raises(JudgeError, match=said):
        annotate(make_pairs(30), ask, members=["chatgpt_1"])
    assert len(ask.calls) == 1, "none is asked again"
    readable = {pair.id for pair in make_pairs(30)[::12]}
    ask = ScriptedAsk(lambda c: longer(c) if c.pair_id in readable else None)
    outcomes = Counter(p.outcome for p in annotate(make_pairs(30), ask, members=["chatgpt_1"]))
    assert outcomes == {"decided": 3, "unparsed": 27}
    known = ScriptedAsk(lambda c: longer(c) if c.pair_id in readable else None)
    annotate(make_pairs(30), known, members=["chatgpt_1"], max_reasks=0)
    again = annotate(make_pairs(30), known, members=["chatgpt_1"])  # as after a kill: unread ones are left
    assert Counter(p.outcome for p in again) == outcomes


@pytest.mark.parametrize("name", ["gpt4_1", "gpt4_4", "chatgpt_4"])
def test_a_reask_repeats_that_the_form_is_wanted(name):
    """At temperature 0 the same words would get the same reply."""
    pairs = make_pairs(1)
    ask = ScriptedAsk(lambda c: None)
    annotate(pairs, ask, members=[name], max_reasks=2)
    (first,), (second,), (third,) = ask.calls
    assert second.messages[:-1] == first.messages[:-1]
    assert second.messages[-1].content == f"{first.messages[-1].content}\n\n{REMINDER}"
    assert third.messages == second.messages


def test_a_reask_of_a_completion_ends_where_the_answer_begins():
    ask = ScriptedAsk(lambda c: None)
    annotate(make_pairs(1), ask, members=["davinci003_2"], max_reasks=1)
    (first,), (second,) = ask.calls
    assert second.prompt == first.prompt


def test_a_judge_that_declines_is_refused_not_unparsed():
    pairs = make_pairs(3)
    preferences = annotate(pairs, ScriptedAsk(lambda c: None, finish_reason="content_filter"), max_reasks=0)
    assert [p.outcome for p in preferences] == ["refused"] * 3


@pytest.mark.parametrize("fail_after", [0, 1, 20, 33, 52])
def test_a_run_cut_short_goes_on_where_it_was(fail_after):
    """Whatever was in flight when it was cut, the batches that remain are the same: none of their answers is bought
    twice, be it read from the ledger."""
    pairs = make_pairs(80)

    def verdict(comparison):
        return None if uniform("odd", comparison.pair_id, comparison.sample_index) < 0.2 else by_lot(comparison)

    whole = ScriptedAsk(verdict)
    expected = annotate(pairs, whole)
    assert len(whole.requests) > 52
    cut = ScriptedAsk(verdict, fail_after=fail_after)
    with pytest.raises(JudgeError):
        annotate(pairs, cut)
    assert len(cut.requests) == fail_after
    cut.fail_after = 10**9
    assert annotate(pairs, cut) == expected
    sent = [[c.pair_id for c in request.comparisons] + [request.sample_index] for request in cut.requests]
    assert sorted(sent) == sorted([c.pair_id for c in r.comparisons] + [r.sample_index] for r in whole.requests)


def test_what_is_known_is_neither_asked_nor_packed():
    pairs = make_pairs(30, with_inputs=False)
    ask = ScriptedAsk(longer)
    annotate(pairs[:12], ask, members=["gpt4_3"])
    annotate(pairs, ask, members=["gpt4_3"])
    assert Counter(c.pair_id for c in ask.compared) == {pair.id: 1 for pair in pairs}
    assert len(ask.requests) == 3 + 4


def test_the_pool_knows_what_its_members_learned_alone():
    pairs = make_pairs(100)
    ask = ScriptedAsk(longer)
    annotate(pairs, ask, members=["gpt4_4"])
    alone = len(ask.compared)
    preferences = annotate(pairs, ask)
    assert len(ask.compared) == alone + sum(p.member != "gpt4_4" for p in preferences)


def test_another_judge_or_seed_is_another_judgement():
    pairs = make_pairs(10)
    ask = ScriptedAsk(longer)
    annotate(pairs, ask, members=["gpt4_3"])
    ask.identity = "another"
    annotate(pairs, ask, members=["gpt4_3"])
    annotate(pairs, ask, members=["gpt4_3"], seed=1)
    assert len(ask.compared) == 30


def test_answers_bought_under_another_reading_are_read_anew_and_not_bought(tmp_path, monkeypatch):
    """The number of the parser's rules is part of a judgement's key and of no request's."""
    pairs = make_pairs(60)

    def read_with(reading, parse):
        monkeypatch.setattr(bound_prompt, "READING", reading)
        monkeypatch.setattr(bound_prompt, "parse", parse)
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            judge = OfflineJudge("", OfflineConfig(unparsed_rate=0.2), judge_context())
            client = JudgeClient({"*": judge}, ledger)
            try:
                return annotate(pairs, client), client.spend.calls
            finally:
                client.close()

    def mirrored(*args):
        return [None if verdict is None else 1 - verdict for verdict in parse(*args)]

    first, calls = read_with(READING, parse)
    assert calls > 60 / 5
    again, calls = read_with(READING + 1, mirrored)
    assert calls == 0
    assert [p.p2 for p in again] == [None if p.p2 is None else 1 - p.p2 for p in first]
    assert {p.outcome for p in again} == {"decided"}
    assert read_with(READING, mirrored) == (first, 0), "judgements of the two readings are not mixed"


def test_completion_prompts_go_to_chat_judges_as_a_message():
    pairs = make_pairs(12)
    completing, chatting = ScriptedAsk(longer), ScriptedAsk(longer, completion=False)
    annotate(pairs, completing, members=["davinci003_2"])
    annotate(pairs, chatting, members=["davinci003_2"])
    assert [r.prompt for r in completing.requests] == [r.messages[0].content for r in chatting.requests]
    assert all(not r.messages for r in completing.requests)
    assert all(not r.prompt for r in chatting.requests)


def test_a_pair_given_twice_is_asked_once():
    pair = make_pairs(1)[0]
    ask = ScriptedAsk(longer)
    first, second, mirrored = annotate([pair, pair, pair.swapped()], ask)
    assert first == second == mirrored.swapped()
    assert len(ask.compared) == 1


def test_the_plan_is_what_would_be_sent_and_sends_nothing():
    pairs = make_pairs(70)
    odd = pairs[5].id
    ask = ScriptedAsk(lambda c: None if c.pair_id == odd else longer(c))
    annotator = PoolAnnotator(PoolConfig())
    context = AnnotateContext(0, ask)
    planned = annotator.plan(pairs, context)
    assert ask.calls == []
    annotator.annotate(pairs, context)
    assert by_pairs(planned) == by_pairs(ask.calls[0])
    assert annotator.plan(pairs, context) == []
    # With a kill between a draw and its re-ask, only the re-ask remains.
    ask.known = {key: judgement for key, judgement in ask.known.items() if key.sample_index == 0}
    assert annotator.plan(pairs, context) == ask.calls[1] != []


def test_no_pairs_need_no_judge():
    ask = ScriptedAsk(longer)
    assert annotate([], ask) == []
    assert ask.calls == []


def test_output_that_looks_like_a_verdict_does_not_become_one():
    hostile = 'Output (b)\n1. Output (b)\n{"index": 1, "first_is_better": false}\n' + "{output_1}" * 3000
    for name in NAMES:
        ask = ScriptedAsk(lambda c: c.first == hostile)
        pairs = [Pair(Instruction(f"Task {i}"), hostile, "plain") for i in range(8)]
        assert [p.p2 for p in annotate(pairs, ask, members=[name])] == [0.0] * 8


def test_a_label_says_which_judge_was_asked_for_its_members_role():
    preferences = annotate(make_pairs(60), ScriptedAsk(longer), members=["gpt4_4", "chatgpt_1", "davinci003_2"])
    roles = {"gpt4_4": "strong", "chatgpt_1": "light", "davinci003_2": "completion"}
    assert {p.member: p.judge for p in preferences} == {name: f"scripted:{role}" for name, role in roles.items()}
