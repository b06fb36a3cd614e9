"""Conformance of annotators: promises that hold whatever they prefer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from afarm.core.interfaces import Annotator
from afarm.core.judge import ChatRequest
from afarm.core.records import Instruction, Pair, Preference
from afarm.judging.ledger import request_key
from afarm.judging.prompt_annotator import render
from afarm.testing.conformance import require
from afarm.testing.contexts import annotate_context
from afarm.testing.examples import HOSTILE_TEXTS, make_instructions, make_pairs
from afarm.testing.fake_judge import Answer, FakeJudgeClient, first_at_random, unreadable

Label = tuple[float | None, str]


def check_annotator(
    annotator: Annotator,
    *,
    instructions: Sequence[Instruction] = (),
    outputs: Sequence[str] = (),
    answer: Answer | None = None,
    is_random: bool = False,
    prefers: Sequence[tuple[str, str]] = (),
) -> None:
    """Check the promises of an annotator.

    One preference per pair in order, keyed draws, mirrored labels of swapped pairs, hostile text unchanged, unreadable
    answers without a label, no answer bought twice, a plan of just the requests that are sent, and labels that follow
    what the judge says. Raises `ConformanceError` naming the broken promise.

    Args:
        annotator: The annotator.
        instructions: At least 12 distinct ones, for an annotator that accepts no others.
        outputs: Likewise.
        answer: From a request to a judge's answer, for an annotator with its own answer format.
        is_random: Labels differ by seed though no judge is asked.
        prefers: Outputs (better, worse) that it must label so. A judge that it asks names the better one, by `answer`
            or in the annotator's `answer_format`.
    """
    instructions = list(instructions) or make_instructions(24)
    pairs = make_pairs(instructions, outputs)
    _check_verdicts(annotator, pairs, answer, prefers)
    answer = answer or first_at_random
    asks_a_judge = _check_labels(annotator, pairs, answer)
    _check_swapping(annotator, pairs, answer)
    _check_seeds(annotator, pairs, answer, is_random, asks_a_judge)
    _check_hostile_text(annotator, instructions, answer)
    if asks_a_judge:
        _check_unreadable_answers(annotator, pairs)
        _check_nothing_is_asked_twice(annotator, pairs, answer)
    _check_plan(annotator, pairs, answer)


def labels(annotator: Annotator, pairs: Sequence[Pair], ask: FakeJudgeClient, seed: int = 0) -> dict[str, Label]:
    """Return (p2, outcome) by pair id, after checking that there is one preference per pair, in order."""
    preferences = annotator.annotate(pairs, annotate_context(seed, ask))
    require(
        all(isinstance(p, Preference) for p in preferences)
        and [p.pair_id for p in preferences] == [pair.id for pair in pairs],
        f"annotate must return one Preference for each pair, in the order of the pairs: got {len(preferences)} for "
        f"{len(pairs)} pairs, or in another order",
    )
    require(
        annotator.rates or all(p.scores is None for p in preferences),
        "an annotator whose labels have scores says `rates`",
    )
    return {p.pair_id: (None if p.p2 is None else round(p.p2, 9), p.outcome) for p in preferences}


def _check_labels(annotator: Annotator, pairs: Sequence[Pair], answer: Answer) -> bool:
    """Check that labels depend on the pair alone. Returns True if a judge was asked."""
    ask = FakeJudgeClient(answer)
    expected = labels(annotator, pairs, ask)
    ways: dict[str, Callable[[FakeJudgeClient], dict[str, Label]]] = {
        "asked once more": lambda ask: labels(annotator, pairs, ask),
        "in another order": lambda ask: labels(annotator, pairs[::-1], ask),
        "one at a time": lambda ask: _merged(annotator, [[pair] for pair in pairs], ask),
        "in parts of five": lambda ask: _merged(annotator, [pairs[i : i + 5] for i in range(0, len(pairs), 5)], ask),
    }
    for way, get in ways.items():
        require(get(FakeJudgeClient(answer)) == expected, f"equal seeds must give equal labels, but not so {way}")
    require(labels(annotator, [], FakeJudgeClient(answer)) == {}, "no pairs must give no preferences")
    return bool(ask.sent)


def _check_verdicts(
    annotator: Annotator, pairs: Sequence[Pair], answer: Answer | None, prefers: Sequence[tuple[str, str]]
) -> None:
    """Check labels against `prefers`, or against the verdicts of a judge that goes by the alphabet."""
    texts = sorted({text for pair in pairs for text in pair.canonical})
    good = {better for better, _ in prefers} or {*texts[len(texts) // 2 :]}
    if prefers:
        pairs = [Pair(pairs[0].instruction, better, worse) for better, worse in prefers]

    def is_better(text: str, other: str) -> bool:
        return text in good if not other else (text, other) in prefers if prefers else text > other

    def name_better(request: ChatRequest) -> str:
        require(request.answer_format != "", "it asks for a format of its own: check_annotator(…, answer=…) writes it")
        verdicts = [is_better(shown.first, shown.second) for shown in request.comparisons]
        return render(verdicts, request.answer_format, request.labels)

    for shown in (pairs, [pair.swapped() for pair in pairs]) if prefers or answer is None else ():
        ask, wrong = FakeJudgeClient(answer or name_better), []
        read = labels(annotator, shown, ask)
        for pair in shown:
            p2 = read[pair.id][0]
            of_better = 0.5 if p2 is None else p2 if is_better(pair.output_2, pair.output_1) else 1 - p2
            if of_better < 0.5 or (prefers and of_better == 0.5):
                wrong.append((pair.output_1, pair.output_2, p2))
        require(
            not (prefers and wrong), f"it must prefer the better one of each pair: (output_1, output_2, p2) {wrong}"
        )
        fit = not ask.sent or len(wrong) < 0.4 * len(shown)  # it may have noise
        require(fit, f"labels must follow what the judge says: {len(wrong)} of {len(shown)} say the opposite")


def _merged(annotator: Annotator, parts: Sequence[Sequence[Pair]], ask: FakeJudgeClient) -> dict[str, Label]:
    return {pair_id: label for part in parts for pair_id, label in labels(annotator, part, ask).items()}


def _check_swapping(annotator: Annotator, pairs: Sequence[Pair], answer: Answer) -> None:
    straight = labels(annotator, pairs, FakeJudgeClient(answer))
    swapped = labels(annotator, [pair.swapped() for pair in pairs], FakeJudgeClient(answer))
    for pair_id, (p2, outcome) in straight.items():
        mirrored = (None if p2 is None else round(1 - p2, 9), outcome)
        require(
            swapped[pair_id] == mirrored,
            f"swapping a pair's outputs must mirror its label: {(p2, outcome)} became {swapped[pair_id]}",
        )


def _check_seeds(annotator: Annotator, pairs: Sequence[Pair], answer: Answer, is_random: bool, asked: bool) -> None:
    if is_random:
        by_seed = [labels(annotator, pairs, FakeJudgeClient(answer), seed) for seed in range(8)]
        require(
            any(f != by_seed[0] for f in by_seed), "another seed must give other draws: eight seeds gave equal labels"
        )
    if asked:
        keys = []
        for seed in (0, 1):
            ask = FakeJudgeClient(answer)
            labels(annotator, pairs, ask, seed)
            keys.append({request_key(request, "fake") for request in ask.sent})
        require(
            not keys[0] & keys[1],
            "another seed must ask anew: put context.seed into ChatRequest.seed, or the ledger returns the old answers",
        )


def _check_hostile_text(annotator: Annotator, instructions: Sequence[Instruction], answer: Answer) -> None:
    texts = [(instructions[i % len(instructions)], text) for i, text in enumerate(HOSTILE_TEXTS)]
    # Hostile instructions only if the annotator accepts any instruction.
    hostile = make_instructions(1)[0] in instructions
    pairs = [
        Pair(Instruction(f"{text} {i.instruction}", text) if hostile else i, text, f"plain {number}")
        for number, (i, text) in enumerate(texts)
    ]
    ask = FakeJudgeClient(answer)
    labels(annotator, pairs, ask)
    by_id = {pair.id: pair for pair in pairs}
    for request in ask.sent:
        for shown in request.comparisons:
            if shown.pair_id in by_id:
                pair = by_id[shown.pair_id]
                require(
                    sorted([shown.first, shown.second]) == list(pair.canonical)
                    and shown.instruction.id == pair.instruction.id,
                    f"a request's comparisons must carry the outputs unchanged, and {pair.output_1[:40]!r} was not",
                )


def _check_unreadable_answers(annotator: Annotator, pairs: Sequence[Pair]) -> None:
    answers: dict[str, Answer] = {
        "nothing": lambda request: "",
        "prose": unreadable,
        "a broken object": lambda request: '[{"index": 1, "first_is_better":',
        "a long tail": lambda request: "so on and so forth " * 2000,
    }
    some = pairs[:4]  # of 20, none of which can be read, the judge would be at fault
    for name, answer in answers.items():
        ask = FakeJudgeClient(answer)
        read = labels(annotator, some, ask)
        require(
            set(read.values()) <= {(None, "unparsed"), (None, "refused")},
            f'an answer that cannot be read ({name}: {answer(ask.sent[0])[:60]!r}) must make an "unparsed" preference, '
            "never a label",
        )
        sent = len(ask.sent)
        labels(annotator, some, ask)
        require(len(ask.sent) == sent, "what could not be read is paid for: asking again with the same seed must not")
    if any(not request.answer_format for request in ask.sent):
        return  # only its author can write its format
    spoilt = pairs[3].id

    def one_without_a_verdict(request: ChatRequest) -> str:
        verdicts = [None if c.pair_id == spoilt else True for c in request.comparisons]
        return render(verdicts, request.answer_format, request.labels)

    read = labels(annotator, pairs, FakeJudgeClient(one_without_a_verdict))
    unread = {pair_id for pair_id, (_, outcome) in read.items() if outcome in ("unparsed", "refused")}
    lost = unread - {spoilt}
    require(not lost, f"one unreadable verdict cost {len(lost)} other pairs of its batch theirs")


def _check_nothing_is_asked_twice(annotator: Annotator, pairs: Sequence[Pair], answer: Answer) -> None:
    ask = FakeJudgeClient(answer)
    first = pairs[: len(pairs) // 2]
    labels(annotator, first, ask)
    before = len(ask.sent)
    labels(annotator, pairs[::-1], ask)
    again = {c.pair_id for request in ask.sent[before:] for c in request.comparisons} & {pair.id for pair in first}
    require(
        not again,
        f"{len(again)} pairs were asked about twice: look judgements up with context.ask.recall before packing "
        "prompts, and store them with context.ask.learn",
    )


def _check_plan(annotator: Annotator, pairs: Sequence[Pair], answer: Answer) -> None:
    ask = FakeJudgeClient(answer)
    planned = annotator.plan(pairs, annotate_context(0, ask))
    require(not ask.sent, "plan must send nothing")
    if planned:
        labels(annotator, pairs, ask)
        planned_pairs = {c.pair_id for request in planned for c in request.comparisons if c.pair_id}
        are_sent = planned_pairs == set(ask.asked_about()) and len(planned) == len(ask.sent)
        sent = f"{len(planned)}, and {len(ask.sent)} were sent"
        require(are_sent, f"plan must name the requests that annotate sends: {sent}")
