"""Prompt templates of one's own: a jinja file, or a pair of texts with and without an input.

Templates are text from anyone: jinja runs in its sandbox, and the places of a pair are filled in one pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.errors import ConfigError, did_you_mean
from afarm.core.records import Instruction, Message
from afarm.storage.disk import decode_json
from afarm.storage.user_files import read_user_text

if TYPE_CHECKING:
    from jinja2 import BaseLoader, Environment, Template

NAMED = ("auto", "chat", "alpaca")
"""Templates that need no file."""
JINJA = "jinja"
"""The key of a jinja template's text."""
PAIR = ("prompt_inputs", "prompt_noinputs")
"""The keys of a pair's texts, in the file as AlpacaFarm has it: with an input, and without."""

SHIPPED = {
    "dialogue": {
        JINJA: "{% for turn in messages %}"
        "{{ {'user': 'Human: ', 'assistant': 'Assistant: '}.get(turn.role, '') }}{{ turn.content }}\n\n"
        "{% endfor %}Human: {{ instruction }}{% if input %}\n\n{{ input }}{% endif %}\n\nAssistant:"
    },
    "summary": {
        JINJA: "{% for turn in messages %}{{ turn.content }}\n\n{% endfor %}"
        "{% if input %}{{ input }}\n\n{% endif %}{{ instruction }}\n\nTL;DR:"
    },
}
"""Templates for base models, by their names: transcripts of a dialogue, and texts that a summary ends."""

TemplateSource = str | Mapping[str, str]
"""A template: one of `NAMED`, or the texts of a file, under `JINJA` or the keys of `PAIR`."""

ALPACA_CUE = "### Response:"
"""The end of a prompt of the template `alpaca`."""
SHORTEST_CUE = 5
"""Characters of a template's end from which it is told from what people write."""

_PLACE = re.compile(r"\{(instruction|input)\}")
_SAMPLES = (
    Instruction("An instruction."),
    Instruction("An instruction.", "An input."),
    Instruction("An instruction.", messages=(Message("user", "A question."), Message("assistant", "An answer."))),
)


def read_prompt_template(spec: str) -> TemplateSource:
    """Read the template that `spec` names: a name as it is, or the texts of a `.jinja` or `.json` file.

    The texts go into the keys of artifacts and into checkpoints, which then need no file. Raises `ConfigError` naming
    the file and what is wrong with it.
    """
    if spec in NAMED:
        return spec
    if spec in SHIPPED:
        return SHIPPED[spec]
    path = Path(spec).expanduser()
    if path.suffix not in (".jinja", ".json"):
        raise ConfigError(
            f"prompt_template: {spec!r} is neither {', '.join((*NAMED, *SHIPPED))} nor a .jinja or .json file."
            + did_you_mean(spec, (*NAMED, *SHIPPED))
        )
    try:
        text = read_user_text(path)
        texts = {JINJA: text} if path.suffix == ".jinja" else decode_json(text)
        if path.suffix == ".json":
            if not isinstance(texts, dict) or not all(isinstance(texts.get(name), str) for name in PAIR):
                raise ValueError(f"must hold two texts, {PAIR[0]} and {PAIR[1]}")
            texts = {name: texts[name] for name in PAIR}
        for sample in _SAMPLES[: 3 if JINJA in texts else 2]:
            prompt = render_template(texts, sample)
            shown = [("instruction", sample.instruction), ("input", sample.input)]
            for name, part in [*shown, *(("messages", turn.content) for turn in sample.messages)]:
                if part not in prompt:
                    raise ValueError(f"its prompts do not show {name}")
    except (OSError, ValueError, ConfigError) as error:
        said = f" cannot be read: {error.strerror}" if isinstance(error, OSError) else f": {error}"
        raise ConfigError([f"prompt_template: {spec}{said}"]) from error
    return texts


def answer_cues(spec: str) -> tuple[str, ...]:
    """Return the ends of prompts in afarm's templates and in the run's.

    None if the run's leaves prompts as they are."""
    source = read_prompt_template(spec)
    texts = [*SHIPPED.values(), *([] if isinstance(source, str) else [source])]
    around = [render_template(text, Instruction("\0")).split("\0") for text in texts]
    if not isinstance(source, str) and not "".join(around[-1]).strip():
        return ()
    return tuple(cue for cue in (ALPACA_CUE, *(parts[-1].strip() for parts in around)) if len(cue) >= SHORTEST_CUE)


def describe_rendered(count: int, of: int) -> str:
    """Say that so many prompts end with one of `answer_cues`, and what to do."""
    return (
        f"{count} of {of} prompts end as a prompt template does (in {ALPACA_CUE!r}, say), and the run's is put around "
        "them: take the first one out of the rows, or leave prompts as they are with --set "
        'prompt_template=FILE.json, which holds {"prompt_noinputs": "{instruction}", "prompt_inputs": '
        '"{instruction}{input}"}'
    )


def render_template(texts: Mapping[str, str], instruction: Instruction) -> str:
    """Render a prompt. Raises `ConfigError` if that fails, or if there is no place for earlier turns."""
    if JINJA not in texts:
        if instruction.messages:
            raise ConfigError(["it has no place for the earlier turns of a chat: write a .jinja template"])
        values = {"instruction": instruction.instruction, "input": instruction.input}
        return _PLACE.sub(lambda place: values[place[1]], texts[PAIR[0] if instruction.input else PAIR[1]])
    from jinja2 import TemplateError, TemplateSyntaxError

    turns = [{"role": m.role, "content": m.content} for m in instruction.messages]
    try:
        return _compiled(texts[JINJA]).render(
            instruction=instruction.instruction, input=instruction.input, messages=turns
        )
    except TemplateError as error:  # the sandbox's among them
        line = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
        raise ConfigError([f"{line}{error}; it may use instruction, input and messages"]) from error
    except Exception as error:  # whatever a template's expressions may raise
        raise ConfigError([f"{type(error).__name__}: {error}"]) from error


@lru_cache(maxsize=8)
def _compiled(text: str) -> Template:
    return foreign_templates().from_string(text)


def foreign_templates(loader: BaseLoader | None = None, **options: Any) -> Environment:
    """Make an environment for templates of anyone: in jinja's sandbox, with bounds on time and memory.

    `options` are those of `jinja2.Environment`. A template beyond the bounds raises `jinja2.TemplateRuntimeError`.
    """
    from afarm.storage.bounded_templates import BoundedTemplates

    return BoundedTemplates(loader, **options)
