"""AlpacaEval's seven completion parsers: from an answer to one value for each comparison of its batch.

A value is 1 or 2 for the better output as shown, a number between for a weighted verdict, and 0 or 1.5 for a draw;
anything else is no verdict. Each parser can also be turned round, to the `labels` that it reads as 1, 2 and a draw, so
that a judge that replays verdicts can write them. What alpaca_eval 0.6.6 does is followed, but for one thing: true and
false are no verdicts, though Python takes them for 1 and 0.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from afarm import Completion, did_you_mean
from afarm.judging import ParsedVerdict

UNREADABLE = (ValueError, SyntaxError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError)
"""Errors of parsing an odd answer. `RecursionError`, for deep nesting, is caught beside them."""

DRAWS = (0, 1.5)
MOST_MATCHES = 1_000
"""Matches above which an answer says nothing: each search goes through what is left of it."""
_FENCED = re.compile(r"```json(.*?)```", re.DOTALL)


def verdict(value: Any) -> ParsedVerdict:
    """The verdict that a parsed value stands for; None for what is no verdict."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if value in DRAWS:
        return "draw"
    return float(2 - value) if 1 <= value <= 2 else None


# ------------------------------------------------------------------------------------------------- the seven parsers


def regex_parser(answer: str, *, outputs_to_match: Mapping[Any, str]) -> list[Any]:
    """The keys of the patterns in the order of their matches: the earliest, then the next in the rest."""
    keys = []
    while matches := [(m.start(), m.end(), k) for k, p in outputs_to_match.items() if (m := re.search(p, answer))]:
        _, end, key = min(matches, key=lambda match: match[0])
        if not end:
            raise ValueError("a pattern matches nothing at all")
        keys.append(key)
        if len(keys) > MOST_MATCHES:
            raise ValueError(f"more than {MOST_MATCHES} matches")
        answer = answer[end:]
    return keys


def lmsys_parser(answer: str) -> list[Any]:
    """Two scores in the first line: which is higher."""
    try:
        first, second = map(float, answer.split("\n")[0].replace(",", " ").split(" "))
    except ValueError:
        return [None]
    return [0 if first == second else 1 if first > second else 2]


def ranking_parser(answer: Any, *, model_1_name: str = "model_1") -> list[Any]:
    """A list of {model, rank}: the rank of the model whose output is shown first."""
    try:
        rows = ast.literal_eval(answer) if isinstance(answer, str) else answer
        rank = next(row["rank"] for row in rows if row["model"] == model_1_name)
    except (*UNREADABLE, StopIteration, RecursionError):
        return [None]
    return [rank if rank in (1, 2) else None]


def json_parser(answer: str, *, annotation_key: str | None) -> list[Any]:
    """The values under a key of one object, or of each in a list; of the first fenced block, if any."""
    if "```json" in answer and (fenced := _FENCED.search(answer)):
        answer = fenced[1]
    loaded = json.loads(answer)
    objects = [loaded] if isinstance(loaded, dict) else loaded
    return [row if annotation_key is None else row[annotation_key] for row in objects]


def eval_parser(answer: str) -> list[Any]:
    """The answer as a Python literal."""
    value = ast.literal_eval(answer)
    return value if isinstance(value, list) else [value]


def logprob_parser(
    positions: Sequence[Mapping[str, float]],
    *,
    numerator_token: str,
    denominator_tokens: Sequence[str],
    is_binarize: bool = True,
    log_prob_index: Literal["batch"] | int = "batch",
) -> list[Any]:
    """2 − p(numerator) / Σ p(denominators) at one position of the answer, or at each.

    It is 1 or 2 with `is_binarize`. A token that is not among the likeliest has probability 0; the value is None if no
    token of interest is there.
    """

    def value(likeliest: Mapping[str, float]) -> float | None:
        p = {t: math.exp(likeliest[t]) for t in {numerator_token, *denominator_tokens} if t in likeliest}
        if not p:
            return None
        first = p.get(numerator_token, 0.0)
        if is_binarize:
            return 1 if all(first > p.get(t, 0) for t in {*denominator_tokens} - {numerator_token}) else 2
        return 2 - first / sum(p.get(t, 0) for t in denominator_tokens)

    return [value(at) for at in (positions if log_prob_index == "batch" else [positions[log_prob_index]])]


def pipeline_meta_parser(
    answer: Any, *, parsers_to_kwargs: Mapping[str, Mapping[str, Any] | None], is_squeeze: bool = True
) -> list[Any]:
    """A chain: each parser reads every value of the one before; a list of one value is that value."""
    (name, arguments), *rest = parsers_to_kwargs.items()
    values = PARSERS[name](answer, **(arguments or {}))
    if not rest:
        return values
    nested = [pipeline_meta_parser(value, parsers_to_kwargs=dict(rest), is_squeeze=is_squeeze) for value in values]
    return [value[0] if is_squeeze and len(value) == 1 else value for value in nested]


PARSERS: dict[str, Callable[..., list[Any]]] = {
    parser.__name__: parser
    for parser in (
        *(regex_parser, lmsys_parser, ranking_parser, json_parser, eval_parser),
        *(logprob_parser, pipeline_meta_parser),
    )
}


# --------------------------------------------------------------------------------------- one parser with its settings


@dataclass(frozen=True, slots=True)
class Parser:
    """A parser and its arguments, as an evaluator directory names them."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def reads_logprobs(self) -> bool:
        return self.name == "logprob_parser"

    def read(self, completion: Completion, size: int) -> list[ParsedVerdict]:
        """Parse `size` verdicts. With another number of them it cannot be told whose is whose: all are None."""
        try:
            answer = self._likeliest(completion) if self.reads_logprobs else completion.text
            # That package passes over an empty answer, whatever a pattern would make of it.
            values = PARSERS[self.name](answer, **self.arguments) if answer else []
        except (*UNREADABLE, RecursionError):
            values = []
        return [verdict(value) for value in values] if len(values) == size else [None] * size

    def mass(self, completion: Completion) -> float:
        """The least probability that the tokens of interest have at a position that is read, NaN without any."""
        tokens = {self.arguments["numerator_token"], *self.arguments["denominator_tokens"]}
        index = self.arguments.get("log_prob_index", "batch")
        positions = completion.logprobs or ()
        positions = positions if index == "batch" else positions[index:][:1]
        return min((sum(math.exp(at[t]) for t in tokens if t in at) for at in positions), default=math.nan)

    def _likeliest(self, completion: Completion) -> Sequence[Mapping[str, float]]:
        """The likeliest tokens at each position. If a judge gives none, the token it wrote is certain."""
        if completion.logprobs is not None:
            return completion.logprobs
        tokens = {self.arguments["numerator_token"], *self.arguments["denominator_tokens"]}
        if "top_logprobs" not in completion.degraded:
            return ()
        return [{token: 0.0} for token in tokens if completion.text.strip().endswith(token)][:1]

    def labels(self, size: int) -> tuple[str, ...]:
        """The texts that this parser reads as 1, as 2 and, if it can, as a draw; empty if unknown."""
        texts = [self._written(value) for value in (1, 2, *DRAWS)]
        if self.reads_logprobs:
            return tuple(text for text in texts[:2] if text) if None not in texts[:2] else ()
        readable = [
            text
            for text, value in zip(texts, (1, 2, *DRAWS), strict=True)
            if text is not None and self.read(Completion("\n".join([text] * size)), size) == [verdict(value)] * size
        ]
        return tuple(readable[:3]) if texts[0] in readable[:1] and texts[1] in readable[1:2] else ()

    def _written(self, value: float) -> str | None:
        """A text that says `value`, None where there is none to be found."""
        chained = self.name == "pipeline_meta_parser"
        chain = self.arguments["parsers_to_kwargs"] if chained else {self.name: self.arguments}
        written: Any = value
        for name, arguments in reversed(chain.items()):
            written = _WRITERS[name](written, **(arguments or {})) if name in _WRITERS else None
            if written is None:
                return None
        return written if isinstance(written, str) else repr(written)


def checked(name: str, arguments: Mapping[str, Any], last: bool = True) -> list[str]:
    """List the problems of a parser's name or arguments, each as "field: problem".

    `last` says that its values are preferences, and not what the next parser of a chain reads.
    """
    if name not in PARSERS:
        return [f"fn_completion_parser: there is no {name!r}.{did_you_mean(name, PARSERS)}"]
    parameters = list(inspect.signature(PARSERS[name]).parameters.values())[1:]
    field = "completion_parser_kwargs"
    problems = [
        f"{field}: {name} takes no {extra!r}.{did_you_mean(extra, [p.name for p in parameters]) or ' It takes none.'}"
        for extra in map(str, arguments)
        if extra not in {p.name for p in parameters}
    ]
    lacking = [p.name for p in parameters if p.default is p.empty and p.name not in arguments]
    problems += [f"{field}: {name} needs {missing!r}" for missing in lacking]
    if problems:
        return problems
    return [f"{field}: {problem}" for problem in _CHECKS[name](arguments, last)] if name in _CHECKS else []


def _check_regex(arguments: Mapping[str, Any], last: bool) -> list[str]:
    patterns = arguments["outputs_to_match"]
    if not isinstance(patterns, Mapping) or not patterns:
        return ["outputs_to_match must map 1 and 2 to patterns"]
    problems = []
    for key, pattern in patterns.items():
        if last and verdict(key) is None:
            problems.append(f"outputs_to_match: {key!r} is no preference: 1, 2, a number between, or 0 for a draw")
        try:
            with warnings.catch_warnings():  # of what a later Python may read otherwise: nothing a user can change
                warnings.simplefilter("ignore", FutureWarning)
                re.compile(pattern)
        except (re.error, TypeError) as error:
            problems.append(f"outputs_to_match: {key!r}: {pattern!r} is no pattern: {error}")
    return problems


def _check_logprob(arguments: Mapping[str, Any], last: bool) -> list[str]:
    tokens, index = arguments["denominator_tokens"], arguments.get("log_prob_index", "batch")
    problems = []
    if not isinstance(arguments["numerator_token"], str):
        problems.append("numerator_token must be text")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        problems.append("denominator_tokens must be a list of texts")
    if index != "batch" and (isinstance(index, bool) or not isinstance(index, int)):
        problems.append(f"log_prob_index must be batch or a whole number, not {index!r}")
    return problems


def _check_chain(arguments: Mapping[str, Any], last: bool) -> list[str]:
    chain = arguments["parsers_to_kwargs"]
    if not isinstance(chain, Mapping) or not chain:
        return ["parsers_to_kwargs must map parsers to their arguments"]
    problems = [
        f"parsers_to_kwargs: {problem}"
        for name, inner in chain.items()
        for problem in checked(str(name), inner or {}, last and name == list(chain)[-1])
    ]
    if "logprob_parser" in chain:
        problems.append("parsers_to_kwargs: logprob_parser reads no text, and so stands in no chain")
    return problems


_CHECKS: dict[str, Callable[[Mapping[str, Any], bool], list[str]]] = {
    "regex_parser": _check_regex,
    "logprob_parser": _check_logprob,
    "pipeline_meta_parser": _check_chain,
}


# ------------------------------------------------------------------------------------------------ parsers turned round


def _write_regex(value: Any, *, outputs_to_match: Mapping[Any, str]) -> str | None:
    pattern = outputs_to_match.get(value)
    return None if pattern is None else _literal(pattern)


def _literal(pattern: str) -> str:
    """A text that a simple pattern matches, without flags, anchors and optional parts, escapes undone."""
    text = re.sub(r"^\(\?[a-z]+\)|(?<!\\)[\^$]|\\[bB]", "", pattern)
    text = re.sub(r"(?<!\\)\((?:\?:)?((?:[^()\\]|\\.)*)\)", lambda group: max(group[1].split("|"), key=len), text)
    text = re.sub(r"(?:\\.|[^\\])[?*]", "", text).replace("\\n", "\n").replace("\\s", " ")
    return re.sub(r"\\(.)", r"\1", text)


def _write_ranking(value: Any, *, model_1_name: str = "model_1") -> list[dict[str, Any]] | None:
    other = "model_2" if model_1_name == "model_1" else f"not {model_1_name}"
    ranks = [{"model": model_1_name, "rank": value}, {"model": other, "rank": 3 - value}]
    return ranks if value in (1, 2) else None


def _write_logprob(value: Any, *, numerator_token: str, denominator_tokens: Sequence[str], **_: Any) -> str | None:
    others = [token for token in denominator_tokens if token != numerator_token]
    return {1: numerator_token, 2: others[0] if others else None}.get(value)


_WRITERS: dict[str, Callable[..., Any]] = {
    "regex_parser": _write_regex,
    "lmsys_parser": lambda value: {1: "2 1", 2: "1 2", 0: "1 1"}.get(value),
    "ranking_parser": _write_ranking,
    "json_parser": lambda value, annotation_key: json.dumps(
        value if annotation_key is None else {annotation_key: value}
    ),
    "eval_parser": lambda value: repr(value),
    "logprob_parser": _write_logprob,
}
