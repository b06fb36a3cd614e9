"""Annotators with a prompt of their own: `render` writes it, `read` parses the answer."""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from afarm.core.errors import PluginError
from afarm.core.interfaces import AnnotateContext
from afarm.core.judge import Capabilities, ChatRequest, Completion, Judgement, ShownPair
from afarm.core.records import Instruction, Message, Pair
from afarm.core.seeding import digest
from afarm.judging.pairwise import (
    JudgePrompt,
    JudgingConfig,
    PairwiseAnnotator,
    ParsedVerdict,
    Presentation,
    build_judgements,
    draw_order,
    show_pair,
)
from afarm.storage.record_fields import plain_number

PROBES = (
    ShownPair("", Instruction("Name a fish."), "Eel.", "An oak."),
    ShownPair("", Instruction("Shorten this.", "A long text."), "A text.", ""),
)
"""Pairs that a prompt is rendered for to see whether it has changed. Their requests are never sent."""


class PromptAnnotator(PairwiseAnnotator):
    """The base of annotators with one prompt. Write `render` and `read`, set the attributes that differ.

    Votes, both orders (`JudgingConfig`), batches of `batch_size` pairs per prompt, re-asks of what could not be read,
    judgements stored in the ledger and estimates of cost come with it. Register the class with `config=JudgingConfig`,
    or a subclass of it with settings of your own: they are in `self.config`.

    An edit of the plugin's code or of what `render` writes never reuses an old judgement; the paid answers to prompts
    that are still the same are read again, and not bought again.
    """

    name: str = ""
    """Its name in the accounts; the class's name unless set."""
    role: str = "strong"
    """The family role of its judge: strong, light, completion or one of your own (`--judge ROLE=…`)."""
    batch_size: int = 1
    """Pairs per prompt. `render` gets as many, or fewer."""
    max_tokens: int = 256
    """The longest answer, in tokens: what a budget reserves."""
    typical_tokens: int = 0
    """Tokens of a usual answer, for estimates of cost; 0: by `answer_format`, or 25 per pair in a format of its own."""
    temperature: float = 1.0
    top_p: float = 1.0
    schema: Mapping[str, Any] | None = None
    """The JSON schema of an answer, for judges that take one. The prompt asks for the format too."""
    answer_format: str = ""
    """The format that the prompt asks for, so that simulated judges can answer.

    "single", "list" or "json" as `render` writes them, or "labels": one of `labels` per line."""
    labels: tuple[str, ...] = ()
    """For "labels": the words for the first output, for the second and, if it can be said, for a draw."""

    def __init__(self, config: JudgingConfig | None = None):
        self.config = config or JudgingConfig()

    @abstractmethod
    def render(self, pairs: Sequence[ShownPair]) -> str | Sequence[Message]:
        """Write the prompt about 1 to `batch_size` pairs.

        A pair has an `instruction`, and its outputs `first` and `second` as they are to be shown. A text is sent as one
        user message, or as the text to complete to a judge that does not chat.
        """

    @abstractmethod
    def read(self, text: str, count: int) -> Sequence[ParsedVerdict]:
        """Parse the answer to a prompt about `count` pairs: one verdict per pair, in order.

        A verdict is the probability that the output shown first is better (1.0 or 0.0 if it is just named), "draw", or
        None if the answer does not say. With another number of verdicts, all are taken as unreadable.
        """

    def request(self, pairs: Sequence[ShownPair], capabilities: Capabilities) -> ChatRequest:
        """Build the request about `pairs` for a judge with `capabilities`; override it to set more parameters."""
        prompt = self.render(pairs)
        is_text = isinstance(prompt, str)
        messages = (Message("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
        completes = is_text and not capabilities.chat
        return ChatRequest(
            role=self.role,
            messages=() if completes else messages,
            prompt=messages[0].content if completes else "",
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            schema=self.schema,
            comparisons=tuple(pairs),
            answer_format=self.answer_format,
            labels=self.labels,
            annotator=self.name or type(self).__name__,
            typical_tokens=self.typical_tokens,
        )

    def present(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Presentation]:
        """Each pair in an order drawn for it."""
        if not pairs:
            return []
        prompt = self._bind(context)
        ids = [pair.id for pair in pairs]
        return [
            Presentation(prompt, show_pair(pair, draw_order(context.seed, pair_id), pair_id))
            for pair, pair_id in zip(pairs, ids, strict=True)
        ]

    def _bind(self, context: AnnotateContext) -> JudgePrompt:
        """Bind the prompt to its role's judge. Raises `JudgeError` if there is none, or it lacks a parameter."""
        judge, capabilities = context.ask.judge(self.role), context.ask.capabilities(self.role)
        probes = [self.request([probe], capabilities) for probe in PROBES]
        degraded = context.ask.degraded(probes[0])
        settings = self.config.model_dump(mode="json", exclude=set(JudgingConfig.model_fields))
        code = (self._sources(), self.source)
        sent = [{name: v for name, v in asdict(p).items() if name != "typical_tokens"} for p in probes]
        parts = (code, sent, settings, self.identity, judge, degraded)
        return RenderedPrompt(
            name=probes[0].annotator,
            batch_size=self.batch_size,
            fingerprint=digest(*parts),
            degraded=degraded,
            judge=judge,
            annotator=self,
            capabilities=capabilities,
        )

    def _sources(self) -> list[str]:
        """The modules that its class is written in or, in a notebook, `render` and `read`."""
        classes = type(self).__mro__[: type(self).__mro__.index(PromptAnnotator)]
        modules = [module for written in classes if (module := inspect.getmodule(written))]
        ways: tuple[Sequence[Any], ...] = modules, (type(self).render, type(self).read)
        for parts in ways:
            with suppress(OSError, TypeError):
                return [inspect.getsource(part) for part in parts]
        return []


@dataclass(frozen=True, slots=True)
class RenderedPrompt(JudgePrompt):
    """A `PromptAnnotator`'s prompt bound to its judge."""

    annotator: PromptAnnotator
    capabilities: Capabilities

    def request(self, pairs: Sequence[ShownPair], *, seed: int, sample_index: int) -> ChatRequest:
        return replace(self.annotator.request(pairs, self.capabilities), seed=seed, sample_index=sample_index)

    def read(self, completion: Completion, count: int) -> list[Judgement]:
        verdicts = list(map(plain_number, self.annotator.read(completion.text, count)))
        if len(verdicts) != count:  # whose verdict is whose cannot be told
            verdicts = [None] * count
        for verdict in verdicts:
            is_probability = isinstance(verdict, int | float) and 0 <= verdict <= 1
            if not (verdict is None or verdict == "draw" or is_probability):
                raise PluginError(
                    f'{self.name}.read must return probabilities from 0 to 1, "draw" or None, not {verdict!r}'
                )
        return build_judgements(completion, verdicts)


FirstIsBetter = bool | None
"""None for an answer without a verdict."""

_LABEL: dict[FirstIsBetter, str] = {True: "Output (a)", False: "Output (b)", None: "I cannot choose."}
_REASON: dict[FirstIsBetter, str] = {
    True: "The first output serves the instruction better.",
    False: "The second output serves the instruction better.",
    None: "I cannot choose.",
}


def render(verdicts: Sequence[FirstIsBetter], answer_format: str, labels: Sequence[str] = ()) -> str:
    """Write verdicts as a judge does, in one of the eight answer formats.

    "single": `Output (a)` or `Output (b)`. "list": such lines, numbered from 1. "json": objects with `index` (from 1),
    `explanation` and the boolean `first_is_better`. "rating", of one output: 6 for True, 2 for False, or the last and
    the first of `labels`. "ranking", of single outputs: those of True first. "critique", of one output: a sentence.
    "criteria", of an instruction: two numbered lines. "labels": the first of `labels` for True, the second for False,
    one per line. Raises `ValueError` for others.
    """
    if answer_format == "labels":
        return "\n".join(_LABEL[None] if verdict is None else labels[not verdict] for verdict in verdicts)
    if answer_format == "single":
        return _LABEL[verdicts[0]]
    if answer_format == "rating":
        worst, *_, best = labels or ("2", "6")
        return {True: best, False: worst, None: _LABEL[None]}[verdicts[0]]
    if answer_format == "ranking":
        ranked = sorted(range(len(verdicts)), key=lambda i: not verdicts[i])
        return _LABEL[None] if None in verdicts else " > ".join(str(1 + i) for i in ranked)
    if answer_format == "critique":
        return {True: "It serves the instruction well.", False: "It misses the instruction.", None: ""}[verdicts[0]]
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
    known = "single, list, json, rating, ranking, critique, criteria, labels"
    raise ValueError(f"unknown answer format {answer_format!r}; known: {known}")
