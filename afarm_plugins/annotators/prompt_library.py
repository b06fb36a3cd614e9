"""Prompt annotators as data: the entries of `members.yaml`, their templates, their requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar

import jinja2
import jinja2.meta
from jinja2.sandbox import SecurityError
from pydantic import ValidationError, model_validator

from afarm import (
    ChatRequest,
    Config,
    ConfigError,
    Instruction,
    Message,
    ShownPair,
    did_you_mean,
    explain_validation_error,
    foreign_templates,
    seeding,
    setting,
)
from afarm_plugins.annotators.shipped import PACKAGE, shipped_yaml

LISTING_FIELDS = ("summary", "in_pool")
"""Fields of `members.yaml` that describe a prompt to people and change nothing that is sent."""

C = TypeVar("C", bound=Config)


def dummy(with_input: bool) -> ShownPair:
    """Fill a batch up to its size. Its answer is not read."""
    return ShownPair("", Instruction("(left blank: answer Output (a))", "-" if with_input else ""), "-", "-")


class PromptSpec(Config):
    """One entry of `members.yaml`."""

    role: str = setting(..., "the family role that the user maps to a judge: strong, light or completion")
    kind: Literal["chat", "completion"] = setting("chat", "whether the template writes turns or one text to complete")
    prompt: str = setting(..., "the template, a file under prompts/ without its ending")
    answer_format: Literal["single", "list", "json", "rating", "criteria"] = setting(..., "how the answer is written")
    batch_size: int = setting(..., "comparisons in one prompt; fewer are filled up with dummies", ge=1)
    max_tokens: int = setting(..., "the longest answer in tokens", ge=1)
    temperature: float = setting(1.0, "sampling temperature", ge=0)
    top_p: float = setting(1.0, "nucleus sampling", gt=0, le=1)
    demonstrations: list[list[str]] = setting([], "names in demonstrations.yaml, in rounds judged together")
    verdicts: dict[str, Literal["a", "b"]] = setting({}, "own answers to demonstrations, where they differ")
    persona: str = setting("", "who the judge is to be")
    favour: list[str] = setting([], "answers to make likelier, by logit bias")
    avoid: list[str] = setting([], "hedges to make unlikely, by logit bias")

    @model_validator(mode="after")
    def _one_answer_for_one_comparison(self) -> PromptSpec:
        if self.answer_format in ("single", "rating", "criteria") and self.batch_size > 1:
            raise ValueError(f"batch_size: an answer of the format {self.answer_format!r} is about one comparison: 1")
        return self


class FewShotExample(Config):
    """One entry of `demonstrations.yaml`: a comparison that prompts show solved."""

    instruction: str = setting(..., "the task, in a conversation the user's last message")
    input: str = setting("", "the material it works on")
    messages: list[dict[Literal["role", "content"], str]] = setting([], "the earlier turns of a conversation")
    first: str = setting(..., "Output (a)")
    second: str = setting(..., "Output (b)")
    better: Literal["a", "b"] = setting(..., "which is better, to a reader without a persona")
    reason: str = setting("", "why, for prompts that explain")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A solved comparison, as prompts show it. `better` is "a" or "b"."""

    comparison: ShownPair
    better: str
    reason: str


VERDICTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "verdicts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "index": {"type": "integer"},
                    "explanation": {"type": "string"},
                    "first_is_better": {"type": "boolean"},
                },
                "required": ["index", "explanation", "first_is_better"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["verdicts"],
    "additionalProperties": False,
}
"""The schema of JSON answers, the reason before the verdict.

Vendors want an object at its root, so the list that the prompt asks for is inside one; the parser reads both."""


@dataclass(frozen=True, slots=True, eq=False)
class PoolMember:
    """A prompt annotator: its spec, its demonstrations, and the source of every template of its prompt."""

    name: str
    spec: PromptSpec
    rounds: tuple[tuple[Demonstration, ...], ...]
    sources: tuple[tuple[str, str], ...]
    templates: jinja2.Environment = field(repr=False)

    def fingerprint(self, judge: str = "", as_chat: bool = False, degraded: Sequence[str] = ()) -> str:
        """Digest whatever changes its answers: prompt, parameters, the judge and the parameters it leaves out.

        Without a judge it is the member's own part of that. Paid answers are filed under it: it must not change.
        """
        demonstrations = [
            [d.comparison.instruction.to_row(), d.comparison.first, d.comparison.second, d.better, d.reason]
            for d in sum(self.rounds, ())
        ]
        spec = self.spec.model_dump(mode="json")
        parts = (self.name, spec, self.schema, demonstrations, self.sources, judge, as_chat, list(degraded))
        return seeding.digest(*parts)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of its answers, None if they are not JSON."""
        return VERDICTS if self.spec.answer_format == "json" else None

    def request(
        self,
        pairs: Sequence[ShownPair],
        *,
        seed: int,
        sample_index: int,
        as_chat: bool = False,
        fields: Mapping[str, Any] | None = None,
    ) -> ChatRequest:
        """Build the request about up to `batch_size` pairs that all have an input or all have none.

        Dummies fill it up. `as_chat` sends a text to complete as one user message; `fields` are further variables.
        """
        spec = self.spec
        with_input = bool(pairs[0].instruction.input)
        filled = (*pairs, *[dummy(with_input)] * (spec.batch_size - len(pairs)))
        messages, prompt = self._render(filled, with_input, fields or {})
        if as_chat:
            messages, prompt = (Message("user", prompt),), ""
        return ChatRequest(
            role=spec.role,
            messages=messages,
            prompt=prompt,
            max_tokens=spec.max_tokens,
            temperature=spec.temperature,
            top_p=spec.top_p,
            favoured_tokens=tuple(spec.favour),
            penalised_tokens=tuple(spec.avoid),
            schema=self.schema,
            comparisons=filled,
            answer_format=spec.answer_format,
            annotator=self.name,
            seed=seed,
            sample_index=sample_index,
        )

    def _render(
        self, pairs: Sequence[ShownPair], with_input: bool, fields: Mapping[str, Any]
    ) -> tuple[tuple[Message, ...], str]:
        """Fill the template once. Values are never read as template text, nor as the start of a turn."""
        messages: list[Message] = []

        def turn(role: str, caller: Callable[[], str]) -> str:
            messages.append(Message(role, caller().removesuffix("\n")))
            return ""

        outside = self.templates.get_template(f"{self.spec.prompt}.jinja").render(
            comparisons=pairs,
            rounds=self.rounds,
            demonstrations=sum(self.rounds, ()),
            persona=self.spec.persona,
            with_input=with_input,
            turn=turn,
            **fields,
        )
        return tuple(messages), "" if messages else outside.removesuffix("\n")


@dataclass(frozen=True, slots=True)
class Library:
    """Prompt entries, the demonstrations they name and the templates they fill. Messages call it `where`."""

    where: str
    entries: Mapping[str, Any]
    demonstrations: Mapping[str, Any]
    templates: jinja2.Environment

    def member(self, name: str) -> PoolMember:
        """Check the entry `name` and make a member of it. Raises `ConfigError` naming file, entry and field."""
        at = f"{self.where}: {name}"
        if name not in self.entries:
            raise ConfigError([f"{self.where} has no entry {name!r}.{did_you_mean(name, self.entries)}"])
        spec = validated(PromptSpec, self.entries[name], at)
        rounds = tuple(tuple(self._demonstration(d, spec, at) for d in round) for round in spec.demonstrations)
        demonstrated = {d for round in spec.demonstrations for d in round}
        if unknown := sorted(spec.verdicts.keys() - demonstrated):
            raise ConfigError([f"{at}: verdicts: {unknown[0]!r} is none of its demonstrations"])
        try:
            sources = self._sources(f"{spec.prompt}.jinja")
            member = PoolMember(name, spec, rounds, tuple(sorted(sources.items())), self.templates)
            for with_input in (False, True):
                request = member.request([dummy(with_input)], seed=0, sample_index=0)
                if spec.kind == "chat" and not request.messages:
                    raise ValueError('writes no turn; use {% call turn("user") %} … {% endcall %}, or kind: completion')
                if spec.kind == "completion" and not request.prompt:
                    raise ValueError("writes turns, or nothing; with kind: completion it must be one text")
        except Exception as error:  # whatever a template's expressions may raise
            raise ConfigError([f"{at}: prompt: {spec.prompt}.jinja: {template_problem(error)}"]) from error
        return member

    def _demonstration(self, name: str, spec: PromptSpec, at: str) -> Demonstration:
        if name not in self.demonstrations:
            near = did_you_mean(name, self.demonstrations)
            raise ConfigError([f"{at}: demonstrations: no demonstration {name!r}.{near}"])
        example = validated(FewShotExample, self.demonstrations[name], f"{self.where}: demonstration {name}")
        turns = tuple(Message(turn["role"], turn["content"]) for turn in example.messages)
        task = Instruction(example.instruction, example.input, messages=turns)
        pair = ShownPair(name, task, example.first, example.second)
        return Demonstration(pair, spec.verdicts.get(name, example.better), example.reason)

    def _sources(self, template: str) -> dict[str, str]:
        assert self.templates.loader
        source = self.templates.loader.get_source(self.templates, template)[0]
        sources = {template: source}
        for imported in _imported(self.templates, source):
            if imported is None:
                raise jinja2.TemplateError(f"{template} names a template by an expression: write the name as a text")
            sources |= self._sources(imported) if imported not in sources else {}
        return sources


@lru_cache(maxsize=64)
def _imported(templates: jinja2.Environment, source: str) -> tuple[str | None, ...]:
    """The templates that a template's text names; all of a pool import the same few."""
    return tuple(jinja2.meta.find_referenced_templates(templates.parse(source)))


def validated(config: type[C], values: Any, at: str) -> C:
    """Validate `values` as a `config`. Raises `ConfigError` with each problem, its place and its field."""
    if not isinstance(values, Mapping):
        raise ConfigError([f"{at}: must be a mapping of {', '.join(config.model_fields)}"])
    try:
        return config.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(explain_validation_error(error, config, f"{at}: ", unknown="unknown field")) from error


def template_problem(error: Exception) -> str:
    """Say what is wrong with a template, and on which line."""
    if isinstance(error, SecurityError):
        return f"{error} A template may only show what it is given: it runs in jinja's sandbox"
    if isinstance(error, jinja2.TemplateNotFound):
        return f"there is no template {error.name}"
    if isinstance(error, RecursionError):
        return "its macros call one another without end"
    line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return f"{line}{error}"


# ------------------------------------------------------------------------------------------------ those that ship


def environment(*first: jinja2.BaseLoader) -> jinja2.Environment:
    """Templates from `first`, and from prompts/ if those have none of the name.

    Pools are passed on as data, so their templates get no further than the text: no attribute that leads into Python,
    no change of what they are given, no end of loops or text. Those that ship do without that guard, which doubles the
    time of a prompt.
    """
    make = foreign_templates if first else jinja2.Environment
    templates = make(
        loader=jinja2.ChoiceLoader([*first, jinja2.PackageLoader(PACKAGE, "prompts")]),
        autoescape=False,  # prompts are text: outputs must come through as they are
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.setdefault("json", lambda value: json.dumps(value, ensure_ascii=False))  # `tojson` escapes HTML
    return templates


@cache
def shipped() -> Library:
    entries = {
        name: {field: value for field, value in entry.items() if field not in LISTING_FIELDS}
        for name, entry in shipped_yaml("members.yaml").items()
    }
    return Library("members.yaml", entries, shipped_yaml("demonstrations.yaml"), environment())


@cache
def load_member(name: str) -> PoolMember:
    """The prompt of `members.yaml` called `name`. Raises `ConfigError` if there is none."""
    return shipped().member(name)
