"""Write docs/reference from the code: `python docs/generate_reference.py`.

Five pages: settings from the config classes, methods, commands from the command line, hooks from their specifications,
and the public names of the four doors. A test compares them with what is there.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from afarm.cli import make_app
from afarm.cli.options import FarmOptions
from afarm.core.config import Config, LoraConfig, TrainerConfig
from afarm.core.hooks import KINDS, Hooks, hook_names
from afarm.core.plugins import discover
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.setting_list import listed_settings, value_text
from afarm.experiment.settings import RunConfig

REFERENCE = Path(__file__).parent / "reference"
WRITTEN = "<!-- Written by docs/generate_reference.py; do not edit. -->"


def write() -> None:
    """Write every page of the reference."""
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")


def joined(parts: list[str]) -> str:
    """Return the parts as one page, a blank line between two."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


# ------------------------------------------------------------------------------------------------------------ settings

SETTINGS = f"""\
# Settings

{WRITTEN}

Every setting of a run and of the first-party plugins. A recipe (`afarm recipes`) gives them as YAML,
`--set section.setting=value` one by one.

- The defaults here hold without a recipe. If the paper names a figure, it is the paper's.
- *Italic* settings change no result (memory, speed, logging). A new value of any other setting makes the stage again.
- A recipe of your own may give only what differs: `based_on: toy`, or `based_on: other.yaml` beside it.
"""


def settings_page() -> str:
    """Return the page of settings."""
    parts = [SETTINGS, "## The run", listed(RunConfig)]
    parts += ["## Trainer settings", "Shared by what trains by epochs. Sections below list what differs."]
    parts += [listed(TrainerConfig), "### lora", LoraConfig.__doc__ or "", listed(LoraConfig)]
    sections: dict[Any, list[Component]] = {}
    for component in discover().registry:
        if component.package == FIRST_PARTY and component.config is not None:
            sections.setdefault((component.kind, component.config), []).append(component)
    for (kind, config), components in sections.items():
        parts.append(f"## {', '.join(f'`{c.name}`' for c in components)} ({KINDS[kind]})")
        parts.append(first_paragraph(config))
        parts.append(defaults_by_name(components))
        if issubclass(config, TrainerConfig):
            parts.append("[Trainer settings](#trainer-settings), with these of its own or other defaults:")
        parts.append(listed(config, components[0].defaults if len(components) == 1 else {}))
    return joined(parts)


def first_paragraph(config: type[Config]) -> str:
    return (config.__doc__ or "").split("\n\n")[0].replace("\n    ", "\n").strip()


def defaults_by_name(components: list[Component]) -> str:
    """Return which defaults the names of one config have of their own, if it has several names."""
    by_name = {c.name: c.defaults for c in components if c.defaults}
    if len(components) == 1 or not by_name:
        return ""
    if all(list(defaults.values()) == [[name]] for name, defaults in by_name.items()):
        [name] = {name for defaults in by_name.values() for name in defaults}
        without = quoted([c.name for c in components if not c.defaults])
        return f"Under each name but {without}, `{name}` is that name."
    own = {name: quoted([f"{k}={value_text(v)}" for k, v in defaults.items()]) for name, defaults in by_name.items()}
    return f"Defaults by name: {'; '.join(f'`{name}`: {values}' for name, values in own.items())}."


def listed(config: type[BaseModel], values: Mapping[str, Any] | None = None) -> str:
    """Return a line for each setting of a config and of the configs in it, but for those that are a trainer's."""
    rows = list(listed_settings(config, values))
    if issubclass(config, TrainerConfig) and config is not TrainerConfig:
        shared = set(listed_settings(TrainerConfig))
        rows = [row for row in rows if row not in shared]
        if not rows:
            return "None."
    return "\n".join(
        f"- {f'`{row.name}`' if row.changes_result else f'*`{row.name}`*'} ({code(row.default)}): "
        f"{escaped(row.description)}"
        for row in rows
    )


def escaped(text: str) -> str:
    """Return `text` without what Markdown would read as a tag or a table's cell."""
    return text.replace("|", "\\|").replace("<", "\\<")


def code(default: str) -> str:
    return default if default in ("unset", "required") else f"`{default}`"


# ------------------------------------------------------------------------------------------------------------ commands

COMMANDS = f"""\
# Commands

{WRITTEN}

`afarm COMMAND --help` says the same. Commands that make a farm share these options; below, each command lists its own.
"""


def commands_page() -> str:
    """Return the page of the command line."""
    app = typer.main.get_command(make_app())
    commands = dict(leaves(app, ""))
    of_farms = {"dry_run", *(field.name for field in dataclasses.fields(FarmOptions))}
    shared = {option_line(p) for p in commands["run"].params if is_option(p) and p.name in of_farms}
    parts = [COMMANDS, lines(p for p in commands["run"].params if option_line(p) in shared)]
    for name, command in commands.items():
        own = [p for p in command.params if not getattr(p, "hidden", False) and option_line(p) not in shared]
        has = {option_line(p) for p in command.params}
        usage = " ".join(["afarm", name, *(argument(p) for p in own if not is_option(p))])
        parts += [f"## `{usage}`", " ".join((command.help or "").split())]
        parts.append(lines(p for p in own if is_option(p)))
        lacking = [p for p in commands["run"].params if option_line(p) in shared - has]
        if len(lacking) < 5:
            parts.append(
                with_shared([p.opts[-1] for p in lacking if p.opts[-1] not in {o for q in own for o in q.opts}])
            )
        elif some := [p for p in command.params if option_line(p) in shared]:
            parts.append(f"Shared: {quoted([p.opts[-1] for p in some])}.")
    return joined(parts)


def with_shared(lacking: list[str]) -> str:
    return f"And the shared options{f' but {quoted(lacking)}' if lacking else ''}."


def quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its words."""
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    context = command.make_context("afarm", [], resilient_parsing=True)
    for inner in command.list_commands(context):
        yield from leaves(command.get_command(context, inner), f"{name} {inner}".strip())


def is_option(parameter: Any) -> bool:
    return str(parameter.param_type_name) == "option" and not parameter.hidden


def option_line(parameter: Any) -> str:
    """Return an option as a line: its names, what it takes, and its help."""
    if not is_option(parameter):
        return ""
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    default = parameter.default
    default = "" if callable(default) or default in (None, False, "", [], ()) else f" ({default})"
    return f"- `{', '.join(parameter.opts)}{value}`{default}: {escaped(parameter.help or '')}"


def argument(parameter: Any) -> str:
    name = parameter.name.upper()
    name += "…" if parameter.nargs == -1 else ""
    return name if parameter.required else f"[{name}]"


def lines(parameters: Iterator[Any]) -> str:
    return "\n".join(map(option_line, parameters))


# --------------------------------------------------------------------------------------------------------------- hooks

HOOKS = f"""\
# Hooks

{WRITTEN}

A plugin's module implements any of these, marked with `@afarm.hookimpl`. All are optional, and each is called once.
[Write a plugin](../guides/write-a-plugin.md) shows them in use.
"""


def hooks_page() -> str:
    """Return the page of hooks."""
    parts = [HOOKS]
    for name in hook_names():
        hook = getattr(Hooks, name)
        arguments = ", ".join(a for a in inspect.signature(hook).parameters if a != "self")
        parts.append(f"## `{name}({arguments})`\n\n{inspect.getdoc(hook)}")
    return joined(parts)


# --------------------------------------------------------------------------------------------------------------- names

NAMES = f"""\
# Public names

{WRITTEN}

The four doors for plugins, and the options of commands. Each name is listed once. *Stable* names change only with a
note in the changelog and one release of warning; *provisional* ones may change with any release. What is listed nowhere
may change without notice.
"""

DOORS = ("afarm", "afarm.judging", "afarm.backend", "afarm.testing", "afarm.cli.options")

PROVISIONAL = (
    "afarm.launching.launcher",
    "afarm.launching.schedule",
    "afarm.studies.estimates",
    "afarm.studies.study",
    "afarm.backend.on_policy",
    "afarm.backend.policy_gradient",
    "afarm.backend.rollouts",
    "afarm.judging.pairwise",
    "afarm.judging.prompt_annotator",
)
"""Modules whose names may still change; the names of all others are stable."""


def names_page() -> str:
    """Return the page of public names. Raises `SystemExit` naming what has no docstring."""
    parts = [NAMES]
    seen: set[str] = set()
    for door in DOORS:
        module = importlib.import_module(door)
        names = [name for name in public_names(module) if name not in seen]
        seen |= set(names)
        parts += [f"## `{door}`", sentence(inspect.getdoc(module) or "")]
        provisional = [name for name in names if getattr(getattr(module, name), "__module__", "") in PROVISIONAL]
        stable = [name for name in names if name not in provisional]
        for title, titled in (("Stable", stable), ("Provisional", provisional)):
            if titled:
                ordered = sorted(titled, key=lambda name: (name.lower(), name))
                parts.append(f"{title}:\n\n" + "\n".join(f"- `{name}`: {summary(module, name)}" for name in ordered))
    return joined(parts)


def public_names(module: types.ModuleType) -> list[str]:
    return [name for name in getattr(module, "__all__", []) if not name.startswith("__")]


def summary(module: types.ModuleType, name: str) -> str:
    """Return the first sentence of a name's docstring, or of the string below its assignment."""
    value = getattr(module, name)
    documented = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
    text = (inspect.getdoc(value) or "") if documented else below_assignment(module, name)
    text = text if documented else OBJECTS.get(name, text)
    if not text:
        raise SystemExit(f"{module.__name__}.{name} has no docstring")
    return escaped(sentence(text))


def sentence(text: str) -> str:
    """Return the first paragraph up to its first full stop."""
    words = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<! al)(?<!App)\. (?=[A-Z`])", words)[0].rstrip(".") + "."


OBJECTS = {
    "hookimpl": "Mark a function as the implementation of a hook.",
    "Row": "A row of a file: values by column.",
    "Scheduler": "The names of learning-rate schedules.",
}
"""Names that neither are classes or functions nor have a string below them."""


def below_assignment(module: types.ModuleType, name: str) -> str:
    """Return the string below the assignment of `name`, in `module` or wherever it imports it from."""
    for node in ast.walk(tree(module.__name__)):
        if isinstance(node, ast.ImportFrom) and node.module and any((a.asname or a.name) == name for a in node.names):
            return below_assignment(importlib.import_module(node.module), name)
    body = tree(module.__name__).body
    for node, after in pairwise(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return str(after.value.value)
    return ""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------------------- methods

METHODS = f"""\
# Methods

{WRITTEN}

Every first-party method, by the name that `--method` takes. [How they compare](../methods/README.md).
"""


def methods_page() -> str:
    """Write a row per method: its page, if it has one, and its summary."""
    methods = [c for c in discover().registry if c.kind == "methods" and c.package == FIRST_PARTY]
    pages = {path.stem for path in REFERENCE.with_name("methods").glob("*.md")}
    named = {c.name: f"[`{c.name}`](../methods/{c.name}.md)" if c.name in pages else f"`{c.name}`" for c in methods}
    rows = "\n".join(f"| {named[c.name]} | {c.summary} |" for c in methods)
    return joined([METHODS, f"| method | what it does |\n|---|---|\n{rows}"])


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "cli.md": commands_page,
    "hooks.md": hooks_page,
    "names.md": names_page,
    "methods.md": methods_page,
}
"""Every page of the reference, by its file."""


if __name__ == "__main__":
    write()
