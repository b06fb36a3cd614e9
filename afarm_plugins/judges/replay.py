"""A judge that answers from stored annotations: published results recomputed without a call.

Rows are preferences (AlpacaEval's `annotations.json`, afarm's `preferences.jsonl`), or what an export of the ledger
holds: requests and their answers. A raw completion is given back as it is to the annotator that it was for, shown the
outputs in the same order; from any other row the preference is written in the answer format that is asked for, for the
annotator's own parser to read.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from afarm import (
    ANNOTATION,
    BuildContext,
    Capabilities,
    ChatRequest,
    Completion,
    DataError,
    Form,
    Instruction,
    Judge,
    JudgedPair,
    JudgeError,
    Price,
    Row,
    ShownPair,
    read_labelled_pairs,
    seeding,
    why_no_file,
)
from afarm.judging import SAMPLES_PER_VOTE, render
from afarm_plugins.judges.settings import ReplayConfig

T = TypeVar("T")

DRAW = 0.5
FORMATS = ("single", "list", "json", "labels")
"""The answer formats that a preference can be written in, beside "tokens"."""
ANSWER = Form("answer of the ledger", "request, text", [frozenset(("request", "text"))], lambda row, where, reading: ())
"""A row that holds no pair: `_answered` reads it."""
CHOICE_KEYS = frozenset(["message", "text", "logprobs", "finish_reason"])
"""Keys by which OpenAI's choice is told from the arguments of a function call."""
CALL_KEYS = frozenset(["name", "arguments"])
"""The keys of a function call."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One stored preference, with the completion that it was read from, where that is kept."""

    where: str
    row: JudgedPair
    raw: Completion | None

    def is_by_annotator(self, annotator: str) -> bool:
        return annotator in (self.row.annotator, self.row.preference.member)

    def first(self, comparison: ShownPair) -> float | None:
        """The probability that the output shown first is better; 0.5 for a draw, None for no answer."""
        if self.row.preference.outcome == "draw":
            return DRAW
        p2 = self.row.p2
        return None if p2 is None else 1 - p2 if comparison.first == self.row.pair.output_1 else p2


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of a ledger, to which annotator it was, and which sample (-1 if unknown)."""

    annotator: str
    sample_index: int
    completion: Completion


@dataclass(slots=True)
class Stored:
    """The contents of a file: preferences by pair id, and answers by a digest of their request."""

    judged: dict[str, list[Judged]] = field(default_factory=dict)
    answered: dict[str, list[Answered]] = field(default_factory=dict)


class ReplayJudge(Judge):
    """See the module. `spec` is the file. Whatever an annotator asks for is taken, since nothing is sent."""

    capabilities = Capabilities(
        chat=True, completion=True, temperature=True, logit_bias=True, logprobs=True, schema=True, tool=True
    )

    def __init__(self, spec: str, config: ReplayConfig | None, context: BuildContext | None = None):
        """Raises `DataError` where there is no such file."""
        self.config = config or ReplayConfig()
        self.path = Path(spec).expanduser()
        if problem := why_no_file(self.path) if spec else "no such file":
            raise DataError(f"{spec or 'replay'}: {problem}: --judge replay:FILE names one of stored annotations")

    @cached_property
    def identity(self) -> str:
        """The file's name, and a digest of its content and of the settings."""
        with self.path.open("rb") as handle:
            content = hashlib.file_digest(handle, "sha256").hexdigest()
        return f"replay:{self.path.name}@{seeding.digest(content, self.config.model_dump(mode='json'), length=12)}"

    @cached_property
    def stored(self) -> Stored:
        """The file's rows, read when first needed. Raises `DataError` naming the row that cannot be read."""
        return read_stored(self.path)

    def check(self, instructions: Sequence[Instruction]) -> list[str]:
        """Report a broken file, or one about other instructions, before anything runs."""
        try:
            stored = self.stored
        except DataError as error:
            return [str(error)]
        known = {judged.row.pair.instruction.id for rows in stored.judged.values() for judged in rows}
        has_some = not instructions or any(task.id in known for task in instructions)
        if has_some or not known or stored.answered or self.config.missing == "unparsed":
            return []
        return [
            f"{self.path} has annotations of none of the {len(instructions):,} instructions that are judged: name a "
            "file that has, or another judge"
        ]

    def price(self) -> Price:
        return Price(0.0, 0.0)

    async def complete(self, request: ChatRequest) -> Completion:
        """Raises `JudgeError` where the file does not hold what is asked, or the answer cannot be written."""
        request_digest = seeding.digest([[m.role, m.content] for m in request.messages], request.prompt)
        if answers := self.stored.answered.get(request_digest):
            own = [answer for answer in answers if answer.annotator == request.annotator] or answers
            return _nth(
                [answer for answer in own if answer.sample_index == request.sample_index] or own, request.sample_index
            ).completion
        if not self.stored.judged or not request.comparisons:
            return self._lacking(request, request.comparisons)
        real = [comparison for comparison in request.comparisons if comparison.pair_id]
        rows = {c.pair_id: judged for c in real if (judged := self._find(c, request))}
        if lacking := [c for c in real if c.pair_id not in rows]:
            return self._lacking(request, lacking)
        if len(real) == 1 and (raw := self._raw(rows[real[0].pair_id], real[0], request)):
            return raw
        # Dummies, which fill a batch, are answered with something: their answer is not read.
        verdicts = [rows[c.pair_id].first(c) if c.pair_id else 1.0 for c in request.comparisons]
        return _written(verdicts, request, str(self.path))

    def _find(self, comparison: ShownPair, request: ChatRequest) -> Judged | None:
        """The row about this pair: the annotator's own before others, and of several the one of this draw."""
        rows = self.stored.judged.get(comparison.pair_id)
        return (
            _nth([row for row in rows if row.is_by_annotator(request.annotator)] or rows, request.sample_index)
            if rows
            else None
        )

    def _lacking(self, request: ChatRequest, comparisons: Sequence[ShownPair]) -> Completion:
        """Answer a request about pairs that are not stored, as `missing` says."""
        if self.config.missing == "unparsed":
            return Completion("", price=0.0, finish_reason="missing")
        if self.stored.judged and not (request.comparisons and request.answer_format != "rating"):
            who = request.annotator if request.comparisons else "an instruction by itself"
            raise JudgeError(
                f"{self.path} holds preferences between two outputs, and {who} asks for none: name an "
                "annotator that compares, or an export of the ledger with its answers"
            )
        instruction = (
            comparisons[0].instruction if comparisons else Instruction(request.prompt or request.messages[-1].content)
        )
        instruction_is_known = any(
            row.row.pair.instruction.id == instruction.id for rows in self.stored.judged.values() for row in rows
        )
        raise JudgeError(
            f"{self.path} does not hold what {request.annotator or 'the annotator'} asks about "
            f"{instruction.instruction[:60]!r}"
            + (": it holds that instruction with other outputs" if instruction_is_known else "")
            + "; leave such pairs unparsed with --set replay.missing=unparsed, or name a file that has them"
        )

    def _raw(self, judged: Judged, comparison: ShownPair, request: ChatRequest) -> Completion | None:
        """Return the annotator's stored completion for this order. Raises `JudgeError` under a wrong seed."""
        raw = judged.raw
        if raw is None or not judged.is_by_annotator(request.annotator):
            return None
        pair, order = judged.row.pair, judged.row.preference.order
        if not order:
            key = f"is_switched_outputs{pair.instruction.instruction}{self.config.seed}"
            order = "21" if random.Random(key).choices([False, True])[0] else "12"
        if (order == "12") != (comparison.first == pair.output_1):
            return None
        p_stored, p_raw = judged.first(comparison), _parse_raw(raw, request)
        if p_stored is not None and p_raw is not None and (p_stored - 0.5) * (p_raw - 0.5) < 0:
            raise JudgeError(
                f"{judged.where}: the raw completion prefers one output and the preference the "
                f"other: was the file written with a seed other than {self.config.seed}? Name it with "
                "--set replay.seed=…"
            )
        return raw


def read_stored(path: Path) -> Stored:
    """Read the rows of `path`. Raises `DataError` without any, for a wrong one and for unclear labels."""
    stored = Stored()
    for where, row, judged in read_labelled_pairs(path, forms=(ANNOTATION, ANSWER)):
        for preference in judged:
            kept = Judged(where, preference, _completion(row.get("raw_completion"), where))
            stored.judged.setdefault(preference.pair.id, []).append(kept)
        if not judged:
            asked, answer = _answered(row, where)
            stored.answered.setdefault(asked, []).append(answer)
    if not stored.judged and not stored.answered:
        raise DataError(f"{path}: holds no rows")
    return stored


def _answered(row: Row, where: str) -> tuple[str, Answered]:
    """A digest of what was asked, and the answer as the ledger keeps it."""
    request = _object(row["request"], f"{where}: field 'request'")
    logprobs = row.get("logprobs")
    if isinstance(logprobs, str):
        logprobs = _parsed(logprobs, f"{where}: field 'logprobs'")
    if not isinstance(row["text"], str):
        raise DataError(f"{where}: field 'text' must be text, not {type(row['text']).__name__}")
    try:
        messages = [[m["role"], m["content"]] for m in request.get("messages", ())]
        request_digest = seeding.digest(messages, request.get("prompt", ""))
        positions = None if logprobs is None else tuple(dict(position) for position in logprobs)
        draw = int(request.get("draw", -1))
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{where}: is no answer as `afarm ledger --export` writes it: {error!r}") from error
    reason = str(row.get("finish_reason") or "")
    completion = Completion(row["text"], price=0.0, finish_reason=reason, logprobs=positions)
    return request_digest, Answered(str(row.get("annotator", "")), draw, completion)


def _completion(raw: Any, where: str) -> Completion | None:
    """Parse a raw completion of AlpacaEval: a text, the arguments of a function call, or OpenAI's choice."""
    if raw is None or raw != raw:  # NaN is how a data frame writes null
        return None
    if isinstance(raw, str) and raw.startswith("{") and "logprobs" in raw:
        raw = _object(raw, f"{where}: field 'raw_completion'")
    if isinstance(raw, str):
        return Completion(raw, price=0.0)
    if isinstance(raw, dict) and raw.keys() == CALL_KEYS:
        raw = raw["arguments"]
    if isinstance(raw, str | list) or (isinstance(raw, dict) and raw.keys().isdisjoint(CHOICE_KEYS)):
        return Completion(_arguments(raw), price=0.0)
    try:
        text = raw.get("text") or _content(raw["message"])
        if not isinstance(text, str):
            raise TypeError(f"its text is a {type(text).__name__}")
        content = (raw.get("logprobs") or {}).get("content")
        positions = (
            None
            if content is None
            else tuple(
                {likely["token"]: float(likely["logprob"]) for likely in position["top_logprobs"]}
                for position in content
            )
        )
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise DataError(
            f"{where}: field 'raw_completion' is neither a text nor a choice with 'text' and 'logprobs': {error!r}"
        ) from error
    return Completion(text, price=0.0, finish_reason=raw.get("finish_reason") or "", logprobs=positions)


def _content(message: Any) -> str:
    """The text of OpenAI's message, or the arguments of the function that it calls."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    calls += [message["function_call"]] if message.get("function_call") else []
    return message.get("content") or (_arguments(calls[0]["arguments"]) if calls else "")


def _arguments(given: Any) -> str:
    """The arguments of a function call, as the text that OpenAI sends."""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _object(value: Any, where: str) -> dict[str, Any]:
    parsed = _parsed(value, where) if isinstance(value, str) else value
    if not isinstance(parsed, dict):
        raise DataError(f"{where} must be an object, not {type(parsed).__name__}")
    return parsed


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where} is not valid JSON: {error}") from error


def _nth(rows: Sequence[T], draw: int) -> T:
    """The row of this sample, or the last if there are fewer: votes and re-asks are consecutive rows."""
    return rows[min(sum(divmod(draw, SAMPLES_PER_VOTE)), len(rows) - 1)]


# ------------------------------------------------------------------------------- verdicts, as annotators' parsers read


def _parse_raw(raw: Completion, request: ChatRequest) -> float | None:
    """Parse the label of a raw completion: 1 for the first output, 0 for the second, None if unclear."""
    if len(request.labels) < 2:
        return None
    first, second = request.labels[:2]
    if request.answer_format == "tokens":
        likeliest = raw.logprobs[-1] if raw.logprobs else {}
        p, q = (math.exp(likeliest.get(token, -math.inf)) for token in (first, second))
        return p / (p + q) if p + q else None
    return {first.strip(): 1.0, second.strip(): 0.0}.get(raw.text.strip())


def _written(verdicts: Sequence[float | None], request: ChatRequest, where: str) -> Completion:
    """An answer that says `verdicts`, each the probability that the first is better. Raises `JudgeError`."""
    if request.answer_format == "tokens":  # of a probability of 0, the token is not among the likeliest
        pairs = [[] if p is None else zip(request.labels, (p, 1 - p), strict=False) for p in verdicts]
        positions = tuple({token: math.log(q) for token, q in pair if q > 0} for pair in pairs)
        text = "".join(max(position, key=position.__getitem__) if position else "" for position in positions)
        return Completion(text, price=0.0, logprobs=positions)
    if request.answer_format not in FORMATS:
        raise JudgeError(
            f"{where} holds no answer to {request.annotator} itself, and a preference cannot be written as "
            f"{request.answer_format or 'it answers'!r}"
        )
    if DRAW in verdicts and (request.answer_format != "labels" or len(request.labels) < 3):
        raise JudgeError(f"{where} holds a draw, which the answers of {request.annotator} cannot say")
    if request.answer_format != "labels":
        choices = [None if p is None else p > DRAW for p in verdicts]
        return Completion(render(choices, request.answer_format), price=0.0)
    lines = ["" if p is None else request.labels[2 if p == DRAW else int(p < DRAW)] for p in verdicts]
    return Completion("\n".join(lines), price=0.0)
