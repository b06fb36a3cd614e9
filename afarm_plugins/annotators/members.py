"""The members of the pool: what an entry of `members.yaml` holds, and how it becomes a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import jinja2
import jinja2.meta
import yaml
from pydantic import ValidationError

from afarm.config import Config, setting
from afarm.errors import PluginError, did_you_mean
from afarm.judges import ChatRequest, Comparison
from afarm.keyed import digest
from afarm.records import Instruction, Message

PACKAGE = "afarm_plugins.annotators"


def dummy(with_input: bool) -> Comparison:
    """Fills a batch up to its size. Its answer is not read."""
    return Comparison("", Instruction("(left blank: answer Output (a))", "-" if with_input else ""), "-", "-")


class Entry(Config):
    """One entry of `members.yaml`."""

    role: str = setting(..., "the family role that the user maps to a judge: strong, light or completion")
    kind: Literal["chat", "completion"] = setting("chat", "whether the template writes turns or one text to complete")
    prompt: str = setting(..., "the template, a file under prompts/ without its ending")
    answer_format: Literal["single", "list", "json"] = setting(..., "how the answer is written")
    batch_size: int = setting(..., "comparisons in one prompt; fewer are filled up with dummies", ge=1)
    max_tokens: int = setting(..., "the longest answer in tokens", ge=1)
    temperature: float = setting(1.0, "sampling temperature", ge=0)
    top_p: float = setting(1.0, "nucleus sampling", gt=0, le=1)
    demonstrations: list[list[str]] = setting(..., "names in demonstrations.yaml, in rounds judged together")
    verdicts: dict[str, Literal["a", "b"]] = setting({}, "own answers to demonstrations, where they differ")
    persona: str = setting("", "who the judge is to be")
    favour: list[str] = setting([], "answers to make likelier, by logit bias")
    avoid: list[str] = setting([], "hedges to make unlikely, by logit bias")


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A solved comparison, as prompts show it. `better` is "a" or "b"."""

    comparison: Comparison
    better: str
    reason: str


@dataclass(frozen=True, slots=True)
class Member:
    """A prompt annotator: an entry, its demonstrations, and the source of every template that its prompt is made of."""

    name: str
    entry: Entry
    rounds: tuple[tuple[Demonstration, ...], ...]
    sources: tuple[tuple[str, str], ...]

    def fingerprint(self, judge: str, as_chat: bool) -> str:
        """Changes with whatever changes its answers: prompt, parameters, and the judge's identity."""
        shown = [
            [d.comparison.instruction.to_row(), d.comparison.first, d.comparison.second, d.better, d.reason]
            for d in sum(self.rounds, ())
        ]
        return digest(self.name, self.entry.model_dump(mode="json"), shown, self.sources, judge, as_chat)

    def request(self, comparisons: Sequence[Comparison], *, seed: int, draw: int, as_chat: bool = False) -> ChatRequest:
        """Ask about up to `batch_size` comparisons that all have an input or all have none.

        `as_chat` sends the text of a completion prompt as one user message, for judges that only chat.
        """
        entry = self.entry
        with_input = bool(comparisons[0].instruction.input)
        filled = (*comparisons, *[dummy(with_input)] * (entry.batch_size - len(comparisons)))
        messages, prompt = self._render(filled, with_input)
        if as_chat:
            messages, prompt = (Message("user", prompt),), ""
        return ChatRequest(
            role=entry.role,
            messages=messages,
            prompt=prompt,
            max_tokens=entry.max_tokens,
            temperature=entry.temperature,
            top_p=entry.top_p,
            favour=tuple(entry.favour),
            avoid=tuple(entry.avoid),
            comparisons=filled,
            answer_format=entry.answer_format,
            annotator=self.name,
            seed=seed,
            draw=draw,
        )

    def _render(self, comparisons: Sequence[Comparison], with_input: bool) -> tuple[tuple[Message, ...], str]:
        """Fill the template once. What is filled in is never read as template text, nor as the start of a turn."""
        messages: list[Message] = []

        def turn(role: str, caller: Callable[[], str]) -> str:
            messages.append(Message(role, caller().removesuffix("\n")))
            return ""

        outside = (
            _environment()
            .get_template(f"{self.entry.prompt}.jinja")
            .render(
                comparisons=comparisons,
                rounds=self.rounds,
                demonstrations=sum(self.rounds, ()),
                persona=self.entry.persona,
                with_input=with_input,
                turn=turn,
            )
        )
        return tuple(messages), "" if messages else outside.removesuffix("\n")


@cache
def load_member(name: str) -> Member:
    """The member called `name`. Raises `PluginError` naming the file where an entry or a template is wrong."""
    entries = _yaml("members.yaml")
    if name not in entries:
        raise PluginError(f"members.yaml has no entry {name!r}.{did_you_mean(name, entries)}")
    try:
        entry = Entry.model_validate(entries[name])
        sources = _sources(f"{entry.prompt}.jinja")
    except (ValidationError, jinja2.TemplateError) as error:
        raise PluginError(f"members.yaml, {name}: {type(error).__name__}: {error}") from error
    known = _yaml("demonstrations.yaml")
    rounds = tuple(
        tuple(_demonstration(known, shown, entry, name) for shown in round) for round in entry.demonstrations
    )
    return Member(name, entry, rounds, tuple(sorted(sources.items())))


def entry_names() -> list[str]:
    """The names in `members.yaml`, in its order."""
    return list(_yaml("members.yaml"))


def _demonstration(known: dict[str, Any], name: str, entry: Entry, member: str) -> Demonstration:
    if name not in known:
        raise PluginError(f"members.yaml, {member}: no demonstration {name!r}.{did_you_mean(name, known)}")
    row = known[name]
    comparison = Comparison(name, Instruction(row["instruction"], row.get("input", "")), row["first"], row["second"])
    return Demonstration(comparison, entry.verdicts.get(name, row["better"]), row["reason"])


def _yaml(file: str) -> dict[str, Any]:
    return yaml.safe_load(resources.files(PACKAGE).joinpath(file).read_text(encoding="utf-8"))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(PACKAGE, "prompts"),
        autoescape=False,  # prompts are text: outputs must come through as they are
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Jinja's own `tojson` escapes for HTML.
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


def _sources(template: str) -> dict[str, str]:
    """The text of `template` and of all it imports."""
    environment = _environment()
    assert environment.loader
    source = environment.loader.get_source(environment, template)[0]
    found = {template: source}
    for imported in jinja2.meta.find_referenced_templates(environment.parse(source)):
        found |= _sources(imported or template)
    return found
