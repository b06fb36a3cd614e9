"""The questions of a card: as they are, again, with persuasion, and followed by "Are you sure?".

All go through the ledger, so that a killed card goes on where it stopped and a second one buys nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from afarm import AnnotateContext, Annotator, ChatRequest, Completion, Judgement, Message, ShownPair, seeding
from afarm.experiments import Workspace, attribute_failures, requests_planned, stored_answers
from afarm.judging import (
    JudgePrompt,
    PairwiseAnnotator,
    Presentation,
    annotate_in_chunks,
    collect_judgements,
    pending_requests,
)
from afarm_judge_card.pairs import AUTHORITY, VERDICT, VERDICT_ALONE, Item, Order

CHALLENGE = "Are you sure? Think again, and answer once more in exactly the form asked for above."
"""The challenge: it holds no reason to change a verdict."""

Kind = Literal["as it is", "again", "verdict", "authority", "before", "challenged"]
Slot = tuple[Kind, int, str]
"""The kind of question, the number of the item, and the order that it is shown in ("" if it knows none).

"before" is the verdict that "challenged" follows."""

UNCHALLENGED = "this annotator itself shows no two outputs to a judge"
NO_CHAT = "the judge completes texts: there is no second question"
SILENT = "the judge writes no answer that could be challenged (it gives probabilities)"


@dataclass(frozen=True)
class Answers:
    """A judge's answers: the share of a win that goes to output_2, and where each is in the ledger.

    `wins` are 0.5 for a draw, None if unread. `keys` are those of the answers to questions as they are, `all_keys`
    those of all, `judges` the judges' identities. `left_out` says why a kind of question was not asked.
    """

    wins: Mapping[Slot, float | None]
    knows_order: bool
    keys: Sequence[str]
    all_keys: Sequence[str]
    judges: tuple[str, ...]
    left_out: Mapping[Kind, str] = field(default_factory=dict)


def make_context(workspace: Workspace, client: Any, again: bool = False) -> AnnotateContext:
    """Make the context that questions are asked in.

    An annotator without votes is asked again under another seed.
    """
    return AnnotateContext(workspace.seed("judge card again" if again else "judge card"), client, workspace.progress)


# ------------------------------------------------------------------------------------------- annotators that show pairs


@dataclass(frozen=True, slots=True)
class Challenge(JudgePrompt):
    """A prompt about one pair, its answer, and the challenge."""

    asked: JudgePrompt
    answer: str

    def request(self, pairs: Sequence[ShownPair], *, seed: int, sample_index: int) -> ChatRequest:
        first = self.asked.request(pairs, seed=seed, sample_index=sample_index)
        return replace(first, messages=(*first.messages, Message("assistant", self.answer), Message("user", CHALLENGE)))

    def read(self, completion: Completion, count: int) -> list[Judgement]:
        return self.asked.read(completion, count)


def _present(
    annotator: PairwiseAnnotator, items: Sequence[Item], context: AnnotateContext, like: Sequence[Presentation] = ()
) -> list[Presentation]:
    """Present each item with its output_1 first, by the same prompts as `like` has."""
    found = []
    for number, (item, drawn) in enumerate(
        zip(items, annotator.present([item.pair for item in items], context), strict=True)
    ):
        shown = drawn if (drawn.pair.order == "ab") == item.pair.is_canonical else drawn.swapped()
        if like and like[number].prompt.name != shown.prompt.name:  # a pool draws a prompt for each text
            shown = replace(shown, prompt=like[number].prompt)
        found.append(shown)
    return found


def _questions(
    annotator: PairwiseAnnotator, items: Sequence[Item], context: AnnotateContext
) -> tuple[dict[Slot, Presentation], dict[Slot, Presentation]]:
    """List all questions but the challenges, and those that are challenged.

    These are asked alone if pairs share a prompt.
    """

    def ordered(shown: Presentation, order: Order) -> Presentation:
        return shown if order == "12" else shown.swapped()

    base = _present(annotator, items, context)
    slots: dict[Slot, Presentation] = {}
    challenged: dict[Slot, Presentation] = {}
    for number, (item, shown) in enumerate(zip(items, base, strict=True)):
        slots |= {("as it is", number, order): ordered(shown, order) for order in ("12", "21")}
        once = ordered(shown, item.order)
        slots["again", number, item.order] = replace(once, vote=1)
        if shown.prompt.batch_size > 1:
            once = replace(once, vote=2, batch=("challenge", number))
        challenged["challenged", number, item.order] = once
    for kind, text in (("verdict", VERDICT), ("authority", AUTHORITY)):
        moved = [item.persuade(text) for item in items]
        for number, shown in enumerate(_present(annotator, moved, context, base)):
            slots[kind, number, moved[number].order] = ordered(shown, moved[number].order)  # type: ignore[index]
    return slots, challenged


def _challenges(
    challenged: Mapping[Slot, Presentation], texts: Mapping[Slot, str], context: AnnotateContext
) -> tuple[dict[Slot, Presentation], str]:
    """The challenges of answers with these texts, and why there is none."""
    found: dict[Slot, Presentation] = {}
    chats = False
    for slot, shown in challenged.items():
        text, prompt = texts.get(slot, "").strip(), shown.prompt
        if not shown.draw(0, context.seed).request().messages:
            continue
        chats = True
        if text:
            key = seeding.digest(prompt.fingerprint, CHALLENGE, text)
            challenge = Challenge(prompt.name, 1, key, prompt.degraded, prompt, text, judge=prompt.judge)
            found[slot] = replace(shown, prompt=challenge)
    return found, "" if found else SILENT if chats else NO_CHAT


def _texts(workspace: Workspace, answers: Mapping[Slot, Judgement]) -> dict[Slot, str]:
    """The answers that a verdict was read from."""
    read = {slot: answer for slot, answer in answers.items() if answer.outcome in ("decided", "draw")}
    stored = stored_answers(workspace.judges.ledger_place, list({answer.completion for answer in read.values()}))
    return {slot: stored[a.completion].text for slot, a in read.items() if a.completion in stored}


def _win(answer: Judgement, order: str) -> float | None:
    first = 0.5 if answer.outcome == "draw" else answer.p_first_shown
    return first if first is None or order == "21" else 1 - first


def _ask_pairwise(workspace: Workspace, name: str, annotator: PairwiseAnnotator, items: Sequence[Item]) -> Answers:
    context, attempts = make_context(workspace, workspace.judges.client), annotator.config.max_reasks + 1
    with attribute_failures("annotators", name, annotator):
        slots, challenged = _questions(annotator, items, context)
        answers = collect_judgements(slots, attempts, context)
        firsts = collect_judgements(challenged, attempts, context)
        challenges, reason = _challenges(challenged, _texts(workspace, firsts), context)
        seconds = collect_judgements(challenges, attempts, context)
    wins = {slot: _win(answer, slot[2]) for slot, answer in (answers | seconds).items()}

    def paid(shown: Iterable[Presentation]) -> list[str]:
        draws = [one.draw(attempt, context.seed).key for one in shown for attempt in range(attempts)]
        return [answer.completion for answer in context.ask.recall(draws).values()]

    keys = paid(shown for slot, shown in slots.items() if slot[0] == "as it is")
    everything = paid([*slots.values(), *challenged.values(), *challenges.values()])
    judges = tuple(sorted({shown.prompt.judge for shown in slots.values()} - {""}))
    wins |= {("before", number, order): _win(answer, order) for (_, number, order), answer in firsts.items()}
    return Answers(wins, True, _distinct(keys), _distinct(everything), judges, {"challenged": reason} if reason else {})


def _distinct(keys: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(key for key in keys if key))


# ----------------------------------------------------------------- annotators that show no order, or ask others that do


def _knows_order(annotator: Annotator, name: str, items: Sequence[Item], context: AnnotateContext) -> bool:
    """Tell if the order that pairs are shown in matters to what is asked, as it does to a jury."""
    pairs, contexts = [item.pair for item in items], [replace(context, order=order) for order in ("12", "21")]
    planned = [requests_planned(annotator, name, pairs, one) for one in contexts]
    if any(planned):
        one, other = ([request.comparisons for request in requests] for requests in planned)
        return one != other
    answered = [annotate_in_chunks(pairs, annotator, name, one) for one in contexts]  # by the ledger, or by a formula
    return any(a.preference.completion != b.preference.completion for a, b in zip(*answered, strict=True))


def _batches(
    workspace: Workspace, client: Any, items: Sequence[Item], ordered: bool
) -> Iterator[tuple[Kind, str, dict[int, Item], AnnotateContext]]:
    """Yield all questions by their kind and order, with the items by number."""
    everything = dict(enumerate(items))
    moved = ("verdict", VERDICT if ordered else VERDICT_ALONE), ("authority", AUTHORITY)
    asked: list[tuple[Kind, str, dict[int, Item]]] = [("as it is", order, everything) for order in ("12", "21")]
    if not ordered:
        asked = asked[:1]
    for order in ("12", "21"):
        some = {n: item for n, item in everything.items() if item.order == order}
        asked += [("again", order, some)]
        asked += [(kind, order, {n: item.persuade(text) for n, item in some.items()}) for kind, text in moved]  # type: ignore[misc]
    for kind, order, found in asked:
        context = replace(make_context(workspace, client, again=kind == "again"), order=order)
        yield kind, order if ordered else "", found, context


def _ask_others(workspace: Workspace, name: str, items: Sequence[Item]) -> Answers:
    annotator, client = workspace.components.annotator(name), workspace.judges.client
    ordered = _knows_order(annotator, name, items, make_context(workspace, client))
    wins: dict[Slot, float | None] = {}
    keys: dict[Kind, list[str]] = {}
    judges = set()
    for kind, order, asked, context in _batches(workspace, client, items, ordered):
        judged = list(annotate_in_chunks([item.pair for item in asked.values()], annotator, name, context))
        wins |= {(kind, number, order): row.win for number, row in zip(asked, judged, strict=True)}
        keys.setdefault(kind, []).extend(key for row in judged for key in row.preference.completion.split(","))
        judges |= {row.preference.judge for row in judged}
    everything = _distinct(key for found in keys.values() for key in found)
    if everything and not judges - {""}:  # a jury's verdict is of several
        judges = {judge.identity for judge in workspace.judges.answering([name]).values()}
    left_out: dict[Kind, str] = {"challenged": UNCHALLENGED}
    return Answers(wins, ordered, _distinct(keys["as it is"]), everything, tuple(sorted(judges - {""})), left_out)


# ------------------------------------------------------------------------------------------------------------ the doors


def ask_all(workspace: Workspace, name: str, items: Sequence[Item]) -> Answers:
    """Ask an annotator all questions of a card. Raises `JudgeError` and `BudgetError` as asking does."""
    annotator = workspace.components.annotator(name)
    if isinstance(annotator, PairwiseAnnotator):
        return _ask_pairwise(workspace, name, annotator, items)
    return _ask_others(workspace, name, items)


def plan_all(workspace: Workspace, name: str, items: Sequence[Item], client: Any) -> list[Any]:
    """List the requests that `ask_all` would send now.

    Challenges of answers that are not there yet are estimates.
    """
    annotator = workspace.components.annotator(name)
    if not isinstance(annotator, PairwiseAnnotator):
        ordered = _knows_order(annotator, name, items, make_context(workspace, client))
        return [
            request
            for _, _, asked, context in _batches(workspace, client, items, ordered)
            for request in requests_planned(annotator, name, [item.pair for item in asked.values()], context)
        ]
    context, attempts = make_context(workspace, client), annotator.config.max_reasks + 1
    slots, challenged = _questions(annotator, items, context)
    draws = {slot: shown.draw(0, context.seed).key for slot, shown in challenged.items()}
    known = dict(context.ask.recall(list(draws.values())))
    answered = {slot: known[key] for slot, key in draws.items() if key in known}
    texts = dict.fromkeys(challenged, "Output (a)") | _texts(workspace, answered)
    challenges, _ = _challenges(challenged, texts, context)
    alone = {slot: shown for slot, shown in challenged.items() if shown.vote}
    return [r for group in (slots, alone, challenges) for r in pending_requests(group, attempts, context)]
