"""Prompt annotators as data: what an entry of `members.yaml` holds, and how it becomes a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeVar

import jinja2
import jinja2.meta
import yaml
from pydantic import ValidationError, model_validator

from afarm import ChatRequest, Config, ConfigError, Instruction, Message, ShownPair, did_you_mean, seeding, setting

PACKAGE = "afarm_plugins.annotators"

C = TypeVar("C", bound=Config)


def dummy(with_input: bool) -> ShownPair:
    """Fills a batch up to its size. Its answer is not read."""
    return ShownPair("", Instruction("(left blank: answer Output (a))", "-" if with_input else ""), "-", "-")


class Entry(Config):
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
    def _one_answer_for_one_comparison(self) -> Entry:
        if self.answer_format in ("single", "rating", "criteria") and self.batch_size > 1:
            raise ValueError(f"batch_size: an answer of the format {self.answer_format!r} is about one comparison: 1")
        return self


class Solved(Config):
    """One entry of `demonstrations.yaml`: a comparison that prompts show solved."""

    instruction: str = setting(..., "the task")
    input: str = setting("", "the material it works on")
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
"""The schema of JSON answers, the reason before the verdict. Vendors want an object at its root, so the list that the
prompt asks for is inside one; the parser reads both."""


@dataclass(frozen=True, slots=True)
class Member:
    """A prompt annotator: an entry, its demonstrations, and the source of every template that its prompt is made of."""

    name: str
    entry: Entry
    rounds: tuple[tuple[Demonstration, ...], ...]
    sources: tuple[tuple[str, str], ...]
    templates: jinja2.Environment = field(compare=False, repr=False)

    def fingerprint(self, judge: str = "", as_chat: bool = False, degraded: Sequence[str] = ()) -> str:
        """Changes with whatever changes its answers: prompt, parameters, the judge's identity, and what it leaves out.

        Without a judge, what of it is the member's own.
        """
        shown = [
            [d.comparison.instruction.to_row(), d.comparison.first, d.comparison.second, d.better, d.reason]
            for d in sum(self.rounds, ())
        ]
        entry = self.entry.model_dump(mode="json")
        return seeding.digest(self.name, entry, self.schema, shown, self.sources, judge, as_chat, list(degraded))

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of its answers, None where they are no JSON."""
        return VERDICTS if self.entry.answer_format == "json" else None

    def request(
        self,
        comparisons: Sequence[ShownPair],
        *,
        seed: int,
        sample_index: int,
        as_chat: bool = False,
        given: Mapping[str, Any] | None = None,
    ) -> ChatRequest:
        """Ask about up to `batch_size` comparisons that all have an input or all have none.

        `as_chat` sends the text of a completion prompt as one user message, for judges that only chat; `given` is what
        the template is filled with beside what all are.
        """
        entry = self.entry
        with_input = bool(comparisons[0].instruction.input)
        filled = (*comparisons, *[dummy(with_input)] * (entry.batch_size - len(comparisons)))
        messages, prompt = self._render(filled, with_input, given or {})
        if as_chat:
            messages, prompt = (Message("user", prompt),), ""
        return ChatRequest(
            role=entry.role,
            messages=messages,
            prompt=prompt,
            max_tokens=entry.max_tokens,
            temperature=entry.temperature,
            top_p=entry.top_p,
            favoured_tokens=tuple(entry.favour),
            penalised_tokens=tuple(entry.avoid),
            schema=self.schema,
            comparisons=filled,
            answer_format=entry.answer_format,
            annotator=self.name,
            seed=seed,
            sample_index=sample_index,
        )

    def _render(
        self, comparisons: Sequence[ShownPair], with_input: bool, given: Mapping[str, Any]
    ) -> tuple[tuple[Message, ...], str]:
        """Fill the template once. What is filled in is never read as template text, nor as the start of a turn."""
        messages: list[Message] = []

        def turn(role: str, caller: Callable[[], str]) -> str:
            messages.append(Message(role, caller().removesuffix("\n")))
            return ""

        outside = self.templates.get_template(f"{self.entry.prompt}.jinja").render(
            comparisons=comparisons,
            rounds=self.rounds,
            demonstrations=sum(self.rounds, ()),
            persona=self.entry.persona,
            with_input=with_input,
            turn=turn,
            **given,
        )
        return tuple(messages), "" if messages else outside.removesuffix("\n")


@dataclass(frozen=True, slots=True)
class Library:
    """Entries, the demonstrations they name and the templates they fill. `where` is what messages call it."""

    where: str
    entries: Mapping[str, Any]
    demonstrations: Mapping[str, Any]
    templates: jinja2.Environment

    def member(self, name: str) -> Member:
        """The member called `name`. Raises `ConfigError` naming the file, the entry and the field where it is wrong."""
        at = f"{self.where}: {name}"
        if name not in self.entries:
            raise ConfigError([f"{self.where} has no entry {name!r}.{did_you_mean(name, self.entries)}"])
        entry = validated(Entry, self.entries[name], at)
        rounds = tuple(tuple(self._demonstration(d, entry, at) for d in round) for round in entry.demonstrations)
        shown = {d for round in entry.demonstrations for d in round}
        if strange := sorted(entry.verdicts.keys() - shown):
            raise ConfigError([f"{at}: verdicts: {strange[0]!r} is none of its demonstrations"])
        try:
            sources = self._sources(f"{entry.prompt}.jinja")
            member = Member(name, entry, rounds, tuple(sorted(sources.items())), self.templates)
            for with_input in (False, True):
                _require_fitting(member, with_input)
        except (jinja2.TemplateError, UnicodeDecodeError, ValueError, TypeError) as error:
            raise ConfigError([f"{at}: prompt: {entry.prompt}.jinja: {_told(error)}"]) from error
        return member

    def _demonstration(self, name: str, entry: Entry, at: str) -> Demonstration:
        if name not in self.demonstrations:
            near = did_you_mean(name, self.demonstrations)
            raise ConfigError([f"{at}: demonstrations: no demonstration {name!r}.{near}"])
        solved = validated(Solved, self.demonstrations[name], f"{self.where}: demonstration {name}")
        shown = ShownPair(name, Instruction(solved.instruction, solved.input), solved.first, solved.second)
        return Demonstration(shown, entry.verdicts.get(name, solved.better), solved.reason)

    def _sources(self, template: str) -> dict[str, str]:
        """The text of `template` and of all it imports."""
        assert self.templates.loader
        source = self.templates.loader.get_source(self.templates, template)[0]
        found = {template: source}
        for imported in jinja2.meta.find_referenced_templates(self.templates.parse(source)):
            found |= self._sources(imported or template) if imported not in found else {}
        return found


def validated(config: type[C], values: Any, at: str) -> C:
    """`values` as a config. Raises `ConfigError` with each finding as a sentence that names its place and field."""
    if not isinstance(values, Mapping):
        raise ConfigError([f"{at}: must be a mapping of {', '.join(config.model_fields)}"])
    try:
        return config.model_validate(dict(values))
    except ValidationError as error:
        problems = []
        for found in error.errors():
            name = ".".join(str(part) for part in found["loc"])
            if found["type"] == "extra_forbidden":
                problems.append(f"{at}: {name}: unknown field.{did_you_mean(name, config.model_fields)}")
            elif found["type"] == "missing":
                problems.append(f"{at}: {name}: is missing")
            elif found["type"] == "value_error":
                problems.append(": ".join(filter(None, [at, name, str(found["ctx"]["error"])])))
            else:
                problems.append(f"{at}: {name}: {found['msg']} (given: {found['input']!r})")
        raise ConfigError(problems) from error


def _require_fitting(member: Member, with_input: bool) -> None:
    """Raises `ValueError` where the template does not write what the entry's kind says, `TemplateError` for others."""
    request = member.request([dummy(with_input)], seed=0, sample_index=0)
    if member.entry.kind == "chat" and not request.messages:
        raise ValueError('writes no turn; use {% call turn("user") %} … {% endcall %}, or kind: completion')
    if member.entry.kind == "completion" and not request.prompt:
        raise ValueError("writes turns, or nothing; with kind: completion it must be one text")


def _told(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateNotFound):
        return f"there is no template {error.name}"
    line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return f"{line}{error}"


# ------------------------------------------------------------------------------------------------ those that ship


def environment(*first: jinja2.BaseLoader) -> jinja2.Environment:
    """Templates from `first`, and from prompts/ where those have none of the name."""
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([*first, jinja2.PackageLoader(PACKAGE, "prompts")]),
        autoescape=False,  # prompts are text: outputs must come through as they are
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Jinja's own `tojson` escapes for HTML.
    made.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    return made


def shipped_yaml(file: str) -> dict[str, Any]:
    """The contents of a YAML file that comes with the package."""
    found: dict[str, Any] = yaml.safe_load(resources.files(PACKAGE).joinpath(file).read_text(encoding="utf-8"))
    return found


@cache
def shipped() -> Library:
    """The entries of `members.yaml`."""
    return Library("members.yaml", shipped_yaml("members.yaml"), shipped_yaml("demonstrations.yaml"), environment())


@cache
def load_member(name: str) -> Member:
    """The member of `members.yaml` called `name`. Raises `ConfigError` where there is none."""
    return shipped().member(name)


def entry_names() -> list[str]:
    """The names in `members.yaml`, in its order."""
    return list(shipped().entries)
