"""Judges: requests, completions, capabilities, prices, and the metered way to them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from afarm.core.records import Instruction, Message

CHARACTERS_PER_TOKEN = 4
"""An estimate for English text under today's tokenizers."""
MESSAGE_TOKENS = 16
"""An upper bound on the tokens that a chat format adds per message, and per conversation."""


@dataclass(frozen=True, slots=True)
class ShownPair:
    """One comparison as a judge is shown it: `first` above `second`.

    Carried beside the prompt, never sent. `order` names which of the pair's outputs, in canonical order, is shown first
    ("ab" or "ba"); dummies that pad a batch have an empty `pair_id`.
    """

    pair_id: str
    instruction: Instruction
    first: str
    second: str
    order: str = "ab"
    sample_index: int = 0


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that an answer must call. Its arguments, as JSON, are the answer's text."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to a judge LLM.

    Sent: `messages` (a chat) or `prompt` (text completion), the sampling parameters, `favoured_tokens` and
    `penalised_tokens` (texts for a logit bias, tokenised for the judge in use), a JSON `schema` that holds a judge with
    structured output to the format (and is left out elsewhere: the prompt asks for the format as well), a `tool` to
    call, and `top_logprobs`, the number of likeliest tokens to give per position. Unsent: the family `role` the user
    maps to a judge, the structured `comparisons` and the `answer_format` ("list", "single", "json", "criteria", or of
    outputs alone "rating", "ranking" or "critique"), which the offline judge reads instead of parsing the prompt; the
    `labels` of a format of its own, one per line ("labels") or one per token ("tokens"): what is written for the first
    output, for the second and, if that can be said, for a draw; for a "rating" its marks, the worst first;
    `typical_tokens` of an answer, for estimates, where its format does not tell (0); the `likelihood` that it is sent;
    `annotator` for the accounts; `seed` and `sample_index`, which tell independent samples apart.
    """

    role: str
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    favoured_tokens: tuple[str, ...] = ()
    penalised_tokens: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    tool: Tool | None = None
    top_logprobs: int = 0
    comparisons: tuple[ShownPair, ...] = ()
    answer_format: str = ""
    labels: tuple[str, ...] = ()
    annotator: str = ""
    seed: int = 0
    sample_index: int = 0
    typical_tokens: int = 0
    likelihood: float = 1.0


@dataclass(frozen=True, slots=True)
class Completion:
    """A judge's answer as received. `price` is in US dollars, None if unknown.

    `logprobs` are, if they were asked for, the likeliest tokens at each position of the answer with their natural
    log-probabilities. `degraded` names the parameters that the judge could not take and was not sent, `key` is the
    ledger's: both are set by afarm.
    """

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    price: float | None = None
    finish_reason: str = ""
    model: str = ""
    seconds: float = 0.0
    key: str = ""
    logprobs: tuple[Mapping[str, float], ...] | None = None
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The label parsed from an answer about one comparison, in the order it was shown.

    `p_first_shown` is the probability that the output shown first is better; None unless `outcome` is "decided".
    """

    p_first_shown: float | None
    outcome: str = "decided"
    completion: str = ""


@dataclass(frozen=True, slots=True)
class JudgementKey:
    """The identity of a judgement. `annotator` is a fingerprint of prompt, parameters and judge."""

    annotator: str
    pair_id: str
    order: str
    seed: int
    sample_index: int = 0


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens. `batch` is the share of it that a batch endpoint charges."""

    input: float
    output: float
    cached_input: float | None = None
    batch: float = 0.5

    def of(self, input_tokens: int, output_tokens: int, cached_input_tokens: int = 0) -> float:
        """Compute US dollars. `cached_input_tokens`, a part of `input_tokens`, may have a lower price."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = input_tokens - cached_input_tokens
        return (fresh * self.input + cached_input_tokens * cached + output_tokens * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The request parameters a judge accepts. Any other is an error that says so.

    Without `system`, the text of system turns is sent before the user's. Without `alone` it compares two outputs only:
    it neither rates, ranks nor criticises those that are shown alone.
    """

    chat: bool = True
    completion: bool = False
    temperature: bool = True
    logit_bias: bool = False
    logprobs: bool = False
    schema: bool = False
    tool: bool = False
    batch: bool = False
    system: bool = True
    alone: bool = True


class Judge(ABC):
    """The LLM behind a prompt annotator. Built as `Class(spec, config, context)`.

    `spec` is the text after the name in `--judge name:spec`. Only afarm's engine calls a judge, so no plugin can pay
    twice.
    """

    capabilities: Capabilities = Capabilities()
    """Of the class, or of the instance if they depend on the model."""
    simulated: ClassVar[bool] = False
    """True if answers come from a stated formula instead of a language model: every report says so."""
    agreement: str = ""
    """How often it is known to agree with people, as a clause that screens and reports show beside its figures."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The name the ledger files answers under, such as "openai:gpt-5". All that changes answers is in it."""

    @abstractmethod
    async def complete(self, request: ChatRequest) -> Completion:
        """Answer one request. Await `afarm.judging.answer_lost` before sending one again.

        Raises `JudgeError` if no answer was received, with `charged=False` if surely none was charged for;
        `afarm.judging.SlowDown` to be asked again; `afarm.judging.RequestRefused` if it does not take the request.
        """

    async def submit(self, requests: Sequence[ChatRequest]) -> str:
        """Submit a batch to the vendor and return its id. Raises `JudgeError` if it was not accepted."""
        raise NotImplementedError(f"{self.identity} has no batch endpoint")

    async def collect(self, batch_id: str) -> Sequence[Completion | None] | None:
        """Fetch a batch's answers, None per failed one; None while it runs. `JudgeError` if it is unknown."""
        raise NotImplementedError(f"{self.identity} has no batch endpoint")

    def count_tokens(self, request: ChatRequest) -> int:
        """Count the input tokens of `request`, for estimates; roughly if the judge has no tokenizer at hand."""
        text = request.prompt + "".join(message.content for message in request.messages)
        return math.ceil(len(text) / CHARACTERS_PER_TOKEN)

    def most_output_tokens(self, request: ChatRequest) -> int:
        """Return the length of the longest possible answer in tokens, hidden reasoning included."""
        return request.max_tokens

    def worst_case_price(self, request: ChatRequest) -> float | None:
        """Bound the price of `request` in US dollars; None if prices are unknown. Reserved while in flight.

        By default one token per byte of the prompt, since no tokenizer gives more, and `MESSAGE_TOKENS` per message.
        """
        price = self.price()
        if price is None:
            return None
        text = request.prompt + "".join(message.content + message.name for message in request.messages)
        most = len(text.encode(errors="surrogatepass")) + MESSAGE_TOKENS * (1 + len(request.messages))
        return price.of(most, self.most_output_tokens(request))

    def price(self) -> Price | None:
        """Return this judge's price; None if it is unknown."""
        return None

    def check(self, instructions: Sequence[Instruction]) -> Sequence[str]:
        """List problems with judging answers to these, one sentence each, before anything runs."""
        return ()

    def check_access(self) -> Sequence[str]:
        """List what is missing to send any request, such as a key. Plans and estimates do not call this."""
        return ()

    async def close(self) -> None:  # noqa: B027  (most judges hold nothing open)
        """Release connections."""


class Ask(Protocol):
    """The metered way to judges: cached in the ledger, within the budget, concurrent.

    Safe inside a running event loop.
    """

    def __call__(self, requests: Sequence[ChatRequest]) -> list[Completion]:
        """Return one completion per request, in order. Answers already paid for are not bought again.

        Raises `JudgeError` if a judge cannot answer and `BudgetError` if the next request could exceed the budget; all
        answers before that are in the ledger.
        """
        ...

    def stream(self, requests: Iterable[ChatRequest]) -> Generator[tuple[int, Completion], None, None]:
        """Yield (number of the request, completion) as answers arrive, in bounded memory.

        Requests are taken from the iterable as slots become free, so that as many as allowed are in flight throughout.
        A caller that stops early closes it, and pays for requests in flight only.
        """
        ...

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        """Look up which of these judgements are in the ledger."""
        ...

    def learn(self, judgements: Mapping[JudgementKey, Judgement]) -> None:
        """Store judgements, so that a later batch with other companions does not buy them again."""
        ...

    def judge(self, role: str) -> str:
        """Return the identity of the judge that answers for `role`, for fingerprints."""
        ...

    def capabilities(self, role: str) -> Capabilities:
        """Return the capabilities of the judge that answers for `role`."""
        ...

    def degraded(self, request: ChatRequest) -> tuple[str, ...]:
        """List the parameters of `request` that its judge does not accept and the user lets it drop.

        Raises `JudgeError` naming judge, annotator and parameters if not.
        """
        ...

    def worst_case_price(self, request: ChatRequest) -> float | None:
        """Return the most that `request` can cost in US dollars; None if its judge's prices are unknown."""
        ...
