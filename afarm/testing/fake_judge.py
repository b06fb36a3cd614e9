"""A fake `ask` that answers from a function, and remembers answers like the ledger."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from afarm.core.judge import Capabilities, ChatRequest, Completion, Judgement, JudgementKey
from afarm.core.seeding import uniform
from afarm.judging.degraded import unsupported
from afarm.judging.ledger import request_key
from afarm.judging.prompt_annotator import render

Answer = Callable[[ChatRequest], str]


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

    def stream(self, requests: Iterable[ChatRequest]) -> Generator[tuple[int, Completion], None, None]:
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

    def worst_case_price(self, request: ChatRequest) -> float | None:
        """Nothing: no answer costs anything."""
        return 0.0

    def asked_about(self) -> list[str]:
        """Return the pair ids in all requests sent, in order, without dummies."""
        return [c.pair_id for request in self.sent for c in request.comparisons if c.pair_id]
