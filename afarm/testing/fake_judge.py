"""A fake `ask` that answers from a function, and remembers answers like the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from afarm.core.judge import Capabilities, ChatRequest, Completion, Judgement, JudgementKey
from afarm.core.seeding import uniform
from afarm.judging.degraded import unsupported
from afarm.judging.ledger import request_key

Answer = Callable[[ChatRequest], str]
FirstIsBetter = bool | None
"""None for an answer without a verdict."""

_LABEL: dict[FirstIsBetter, str] = {True: "Output (a)", False: "Output (b)", None: "I cannot choose."}
_REASON: dict[FirstIsBetter, str] = {
    True: "The first output serves the instruction better.",
    False: "The second output serves the instruction better.",
    None: "I cannot choose.",
}


def render(verdicts: Sequence[FirstIsBetter], answer_format: str, labels: Sequence[str] = ()) -> str:
    """Write verdicts as a judge does, in one of the six answer formats.

    "single": `Output (a)` or `Output (b)`. "list": such lines, numbered from 1. "json": objects with `index` (from 1),
    `explanation` and the boolean `first_is_better`. "rating", of one output: 6 for True, 2 for False. "criteria", of an
    instruction: two numbered lines. "labels": the first of `labels` for True, the second for False, one per line.
    Raises `ValueError` for others.
    """
    if answer_format == "labels":
        return "\n".join(_LABEL[None] if verdict is None else labels[not verdict] for verdict in verdicts)
    if answer_format == "single":
        return _LABEL[verdicts[0]]
    if answer_format == "rating":
        return {True: "6", False: "2", None: _LABEL[None]}[verdicts[0]]
    if answer_format == "criteria":
        return _LABEL[None] if verdicts[0] is None else "1. It answers the instruction.\n2. It is correct."
    if answer_format == "list":
        return "\n".join(f"{i}. {_LABEL[verdict]}" for i, verdict in enumerate(verdicts, start=1))
    if answer_format == "json":
        objects = [
            {"index": i, "explanation": _REASON[verdict], "first_is_better": verdict}
            for i, verdict in enumerate(verdicts, start=1)
        ]
        return json.dumps(objects)
    raise ValueError(f"unknown answer format {answer_format!r}; known: single, list, json, rating, criteria, labels")


def first_at_random(request: ChatRequest) -> str:
    """Prefer either output at random, keyed by seed, annotator, pair, order and draw."""
    verdicts = [
        uniform(request.seed, "fake judge", request.annotator, c.pair_id, c.order, c.sample_index) < 0.5
        for c in request.comparisons
    ]
    return render(verdicts, request.answer_format, request.labels)


def unreadable(request: ChatRequest) -> str:
    """Answer in prose without a verdict, though it names both labels."""
    return "Well. Output (a) has its merits, and so does Output (b); {it} [depends"


class FakeJudgeClient:
    """Implements `afarm.Ask` in memory. `answer` maps a request to the text of its completion.

    `sent` lists the requests that were sent: as with the ledger, no answer is bought twice.
    """

    def __init__(
        self,
        answer: Answer = first_at_random,
        capabilities: Capabilities = Capabilities(chat=True, completion=True, logit_bias=True),  # noqa: B008  (frozen)
        identity: str = "fake",
    ):
        self.answer = answer
        self.sent: list[ChatRequest] = []
        self._capabilities = capabilities
        self._identity = identity
        self._completions: dict[str, Completion] = {}
        self._judgements: dict[JudgementKey, Judgement] = {}

    def __call__(self, requests: Sequence[ChatRequest]) -> list[Completion]:
        """See `afarm.core.judge.Ask.__call__`."""
        return [self._complete(request) for request in requests]

    def stream(self, requests: Iterable[ChatRequest]) -> Iterator[tuple[int, Completion]]:
        """See `afarm.core.judge.Ask.stream`. Answers come in reverse."""
        landed = [(index, self._complete(request)) for index, request in enumerate(requests)]
        yield from reversed(landed)

    def _complete(self, request: ChatRequest) -> Completion:
        key = request_key(request, self._identity)
        if key not in self._completions:
            self.sent.append(request)
            self._completions[key] = Completion(self.answer(request), price=0.0, key=key)
        return self._completions[key]

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        """See `afarm.core.judge.Ask.recall`."""
        return {key: self._judgements[key] for key in keys if key in self._judgements}

    def learn(self, judgements: Mapping[JudgementKey, Judgement]) -> None:
        """See `afarm.core.judge.Ask.learn`."""
        self._judgements.update(judgements)

    def judge(self, role: str) -> str:
        """The same identity for every role."""
        return self._identity

    def capabilities(self, role: str) -> Capabilities:
        """The same capabilities for every role."""
        return self._capabilities

    def degraded(self, request: ChatRequest) -> tuple[str, ...]:
        """The parameters of `request` that the capabilities do not cover; it is always allowed."""
        return unsupported(request, self._capabilities)

    def asked_about(self) -> list[str]:
        """Return the pair ids in all requests sent, in order, without dummies."""
        return [c.pair_id for request in self.sent for c in request.comparisons if c.pair_id]
