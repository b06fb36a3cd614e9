"""Write docs/reference from the code: `python docs/generate_reference.py`.

Settings from the config classes, methods, commands from the command line, hooks from their specifications, the public
names of the doors, and a page for each door with signatures and docstrings. A test compares them with what is
there. It stops, and writes nothing, if a first-party plugin is not installed or cannot be loaded.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import re
import sys
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import typer
from pydantic import BaseModel

from afarm.cli import make_app
from afarm.cli.help_pages import name_value
from afarm.cli.options import FarmOptions
from afarm.core.config import Config, LoraConfig, TrainerConfig
from afarm.core.hooks import GROUP, KINDS, Hooks, hook_names
from afarm.core.plugins import discover
from afarm.core.registry import FIRST_PARTY, Component
from afarm.experiment.setting_list import listed_settings, value_text
from afarm.experiment.settings import RunConfig

REFERENCE = Path(__file__).parent / "reference"
WRITTEN = "<!-- Written by docs/generate_reference.py; do not edit. -->"


def write() -> None:
    """Write every page of the reference."""
    require_plugins()
    for name, text in {name: page() for name, page in PAGES.items()}.items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


def require_plugins() -> None:
    """Raise `SystemExit` naming the plugins of this repository that are not installed, or cannot be loaded."""
    project = tomllib.loads((REFERENCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {plugin.module: plugin.error for plugin in discover().found}
    declared = project["entry-points"][GROUP].values()
    problems = [f"{module} is not installed" for module in declared if module not in found]
    problems += [f"{module} cannot be loaded: {found[module]}" for module in declared if found.get(module)]
    if problems:
        raise SystemExit("\n".join([*problems, "nothing is written: pip install -e '.[all]' first"]))


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
    value = "" if parameter.is_flag else f" {parameter.metavar or value_word(parameter)}"
    default = parameter.default
    default = "" if callable(default) or default in (None, False, "", [], ()) else f" ({default})"
    return f"- `{', '.join(parameter.opts)}{value}`{default}: {escaped(parameter.help or '')}"


def value_word(parameter: Any) -> str:
    """Return the word for what an option takes, as its help has it."""
    record = parameter.get_help_record(help_context())
    typed = re.search("<(.+)>", record[0]) if record else None
    return name_value(typed) if typed else str(parameter.name).upper()


@cache
def help_context() -> typer.Context:
    """Return the context in which options write their help; made once for all of them."""
    return typer.Context(typer.main.get_command(make_app()))


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

The doors for plugins. Each name is listed once. *Stable* names change only with a
note in the changelog and one release of warning; *provisional* ones may change with any release. What is listed nowhere
may change without notice.
"""

DOORS = (
    *("afarm", "afarm.judging", "afarm.backend", "afarm.testing"),
    *("afarm.results", "afarm.experiments", "afarm.report", "afarm.cli.options"),
)

PROVISIONAL = (
    "afarm.experiment.launching.launcher",
    "afarm.experiment.launching.schedule",
    "afarm.cli.completion",
    "afarm.cli.launchers",
    "afarm.cli.plans",
    "afarm.cli.tables",
    "afarm.evaluation.agreement",
    "afarm.evaluation.labels",
    "afarm.experiment.studies.estimates",
    "afarm.experiment.studies.study",
    "afarm.backend.on_policy",
    "afarm.backend.rollouts",
    "afarm.judging.pairwise",
    "afarm.judging.prompt_annotator",
)
"""Modules whose names may still change; the names of all others are stable."""


def names_page() -> str:
    """Return the page of public names. Raises `SystemExit` naming what has no docstring."""
    parts = [NAMES]
    for door, names in named_by_door().items():
        module = importlib.import_module(door)
        parts += [
            f"## `{door}`",
            sentence(inspect.getdoc(module) or ""),
            f"[Signatures and docstrings]({door_file(door)})",
        ]
        provisional = [name for name in names if is_provisional(module, name)]
        stable = [name for name in names if name not in provisional]
        for title, titled in (("Stable", stable), ("Provisional", provisional)):
            if titled:
                parts.append(f"{title}:\n\n" + "\n".join(f"- `{name}`: {summary(module, name)}" for name in titled))
    return joined(parts)


def named_by_door() -> dict[str, list[str]]:
    """Return the public names of each door, in the alphabet's order, each name at the first door that has it."""
    seen: set[str] = set()
    doors: dict[str, list[str]] = {}
    for door in DOORS:
        names = [name for name in public_names(importlib.import_module(door)) if name not in seen]
        seen |= set(names)
        doors[door] = sorted(names, key=lambda name: (name.lower(), name))
    return doors


PROVISIONAL_DOORS = {
    "afarm.results": {"StoredRun", "open_run", "open_runs", "read_boards", "to_frame"},
    "afarm.experiments": set[str](),
    "afarm.report": {"build", "refresh", "render_page"},
}
"""Doors whose names may still change, but for these."""


def is_provisional(module: types.ModuleType, name: str) -> bool:
    if module.__name__ in PROVISIONAL_DOORS:
        return name not in PROVISIONAL_DOORS[module.__name__]
    return getattr(getattr(module, name), "__module__", "") in PROVISIONAL


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
    "HEIGHT": "The height of a box of the diagram of stages, in SVG units.",
    "WIDTH": "The width of a box of the diagram of stages, in SVG units.",
    "hookimpl": "Mark a function as the implementation of a hook.",
    "Row": "A row of a file: values by column.",
    "Scheduler": "The names of learning-rate schedules.",
}
"""Names that neither are classes or functions nor have a string below them."""


def below_assignment(module: types.ModuleType, name: str) -> str:
    """Return the string below the assignment of `name`, in `module` or wherever it imports it from."""
    if source := imported(module.__name__).get(name):
        return below_assignment(importlib.import_module(source), name)
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


@cache
def imported(module: str) -> dict[str, str]:
    """Return where a module takes each name from, by the name that it has there."""
    nodes = [node for node in ast.walk(tree(module)) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in reversed(nodes) for alias in node.names}


# --------------------------------------------------------------------------------------------------------------- doors


def door_file(door: str) -> str:
    return f"python-{door.replace('.', '-')}.md"


def door_page(door: str) -> str:
    """Return the page of a door: each public name with its signature and docstring, methods below their class."""
    module = importlib.import_module(door)
    parts = [f"# `{door}`", WRITTEN, markdown(inspect.getdoc(module) or "")]
    parts.append(f"Types that signatures name and no door has are on [a page of their own]({TYPES_FILE}).")
    for name in named_by_door()[door]:
        value = getattr(module, name)
        parts.append(f"## `{name}`")
        parts.append("*Provisional.*" if is_provisional(module, name) else "")
        parts += (
            described(value)
            if inspect.isclass(value) or inspect.isfunction(value)
            else [
                *(alias(door, name)[:1] if hasattr(value, "__args__") else []),
                summary(module, name),
            ]
        )
    return joined(parts)


def described(value: Any) -> list[str]:
    """Return what a page says of a class or function."""
    if inspect.isclass(value):
        return [python(class_signature(value)), markdown(own_docstring(value)), attributes(value), *members(value)]
    return [python(signature(definition(value))), markdown(inspect.getdoc(value) or "")]


# --------------------------------------------------------------------------------------------------------------- types

TYPES_FILE = "python-types.md"

TYPES = f"""\
# Types in signatures

{WRITTEN}

What signatures of [public names](names.md) name and no door has. Import none of them; afarm gives you the objects.
"""


def types_page() -> str:
    """Return the page of afarm's types that signatures name and no door has, and of those that theirs name."""
    waiting = [
        getattr(importlib.import_module(door), name) for door, names in named_by_door().items() for name in names
    ]
    public = {id(value) for value in waiting}
    found: dict[tuple[str, str], list[str]] = {}
    while waiting:
        value = waiting.pop()
        for name, module in named_types(value) if inspect.isclass(value) or inspect.isfunction(value) else ():
            own = getattr(sys.modules[module], name)
            if (name, module) not in found and id(own) not in public:
                text = described(own) if inspect.isclass(own) else alias(module, name)
                found[name, module] = [f"## `{name}`", f"In `{module}`.", *text]
                waiting.append(own)
    ordered = sorted(found, key=lambda place: (place[0].lower(), place))
    return joined([TYPES, *(part for place in ordered for part in found[place])])


def named_types(value: Any) -> Iterator[tuple[str, str]]:
    """Yield afarm's types in the annotations of a class or function, as (name, module)."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    whole = definition(value)
    public = [node for node in whole.body if isinstance(node, functions) and shown(node)]
    public += [node for node in whole.body if isinstance(node, ast.AnnAssign) and is_public(node.target)]
    written: list[ast.AST | None] = []
    for node in public if isinstance(whole, ast.ClassDef) else [whole]:
        if isinstance(node, functions):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            written += [node.returns, *(argument.annotation for argument in every)]
        else:
            written.append(node.annotation)
    for annotation in filter(None, written):
        for node in ast.walk(annotation):
            quoted = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
            name = node.id if isinstance(node, ast.Name) else str(node.value) if quoted else ""  # type: ignore[attr-defined]
            if name and (module := home(value.__module__, name)):
                yield name, module


def home(module: str, name: str) -> str:
    """Return afarm's module that defines the name which `module` uses; empty for types of others."""
    if source := imported(module).get(name):
        if source.partition(".")[0] != "afarm":
            return ""
        importlib.import_module(source)
        return home(source, name)
    value = getattr(sys.modules[module], name, None)
    is_type = inspect.isclass(value) or hasattr(value, "__args__") or callable(value)
    return module if is_type and not isinstance(value, TypeVar) and name not in vars(builtins) else ""


def alias(module: str, name: str) -> list[str]:
    """Return what the page says of a type that is a name for others: its assignment and the string below."""
    if source := imported(module).get(name):
        importlib.import_module(source)
        return alias(source, name)
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return [python(ast.unparse(node)), below_assignment(sys.modules[module], name)]
    return []


def python(code: str) -> str:
    return f"```python\n{code}\n```"


def own_docstring(cls: type) -> str:
    """Return the docstrings of a class and of its `__init__`."""
    text = inspect.cleandoc(cls.__doc__ or "")
    made = ast.get_docstring(init) if (init := init_of(cls)) else None
    return "\n\n".join(
        filter(None, ["" if text.startswith(f"{cls.__name__}(") else text, made])
    )  # dataclasses write one


def init_of(cls: type) -> ast.FunctionDef | None:
    functions = (node for node in definition(cls).body if isinstance(node, ast.FunctionDef))
    return next((function for function in functions if function.name == "__init__"), None)


@cache
def definition(value: Any) -> Any:
    """Return the syntax of a class or function at the top of its module."""
    value = inspect.unwrap(value)
    return next(node for node in tree(value.__module__).body if getattr(node, "name", "") == value.__name__)


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str = "") -> str:
    """Return a function's line as it is called: without `self` or `cls`."""
    arguments = function.args
    for first in (arguments.posonlyargs, arguments.args):
        if first and first[0].arg in ("self", "cls"):
            del first[0]
    opening = f"{'async ' if isinstance(function, ast.AsyncFunctionDef) else ''}{name or function.name}("
    closing = f") -> {ast.unparse(function.returns)}" if function.returns and not name else ")"
    each = written_arguments(arguments)
    line = opening + ", ".join(each) + closing
    return line if len(line) <= 100 else "\n".join([opening, *(f"    {one}," for one in each), closing])


def written_arguments(arguments: ast.arguments) -> list[str]:
    """Return each argument as it is written, with its annotation and default."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[Any] = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    written = [written_argument(*pair) for pair in zip(plain, defaults, strict=True)]
    if arguments.vararg:
        written.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        written.append("*")
    written += [written_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return [*written, f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg else written


def written_argument(argument: ast.arg, default: ast.expr | None) -> str:
    equals = " = " if argument.annotation else "="
    return ast.unparse(argument) + (f"{equals}{ast.unparse(default)}" if default else "")


def class_signature(cls: type) -> str:
    """Return how a class is made: its decorators, and its `__init__` or its fields."""
    decorators = [f"@{ast.unparse(decorator)}" for decorator in definition(cls).decorator_list]
    if init := init_of(cls):
        return "\n".join([*decorators, signature(init, cls.__name__)])
    fields = [node for node in definition(cls).body if isinstance(node, ast.AnnAssign) and is_public(node.target)]
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    opening = f"class {cls.__name__}{f'({bases})' if bases else ''}"
    return "\n".join([*decorators, opening, *(f"    {field(each)}" for each in fields)])


def is_public(target: ast.expr) -> bool:
    return not ast.unparse(target).startswith("_")


def attributes(cls: type) -> str:
    """List the attributes of a class that its signature does not show, or that have a string below them."""
    body, init = definition(cls).body, init_of(cls)
    lines: dict[str, str] = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = (
            node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if type(node) is ast.Assign else None
        )
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(target, ast.Name) and is_public(target) and (init or is_text):
            text = f": {tagless(' '.join(str(after.value.value).split()))}" if is_text else ""
            lines[target.id] = f"- `{field(node) if isinstance(node, ast.AnnAssign) else ast.unparse(node)}`{text}"
    given = {argument.arg: argument for argument in [*init.args.args, *init.args.kwonlyargs]} if init else {}
    for node in ast.walk(init) if init else ():
        target = (
            node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if type(node) is ast.Assign else None
        )
        of_self = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
        if of_self and not target.attr.startswith("_"):
            known = given.get(node.value.id) if isinstance(node.value, ast.Name) else node
            kind = f": {ast.unparse(known.annotation)}" if known and getattr(known, "annotation", None) else ""
            lines.setdefault(target.attr, f"- `{target.attr}{kind}`")
    return "\n".join(["Attributes:\n", *lines.values()]) if lines else ""


def field(node: ast.AnnAssign) -> str:
    """Return a field as it is written; of a setting its default alone, since the reference of settings has the rest."""
    default = node.value
    if isinstance(default, ast.Call) and ast.unparse(default.func) == "setting":
        default = default.args[0] if default.args else None
    written = f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}"
    return f"{written} = {ast.unparse(default)}" if default else written


def members(cls: type) -> Iterator[str]:
    """Yield each public method and property that a class defines itself and documents."""
    for node in definition(cls).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not shown(node) or node.name == "__init__":
            continue
        text = ast.get_docstring(node) or ""
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        is_property = bool(decorators & {"property", "cached_property", "functools.cached_property"})
        returns = f": {ast.unparse(node.returns)}".replace("'", '"') if node.returns else ""
        yield f"### `{cls.__name__}.{node.name}`"
        above = "".join(f"@{name}\n" for name in ("classmethod", "staticmethod") if name in decorators)
        yield python(f"{node.name}{returns}" if is_property else above + signature(node))
        yield markdown(text)


def shown(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell if a page shows a method: one that is public, documented or of a protocol, and `__init__`."""
    decorators = " ".join(ast.unparse(decorator) for decorator in function.decorator_list)
    empty = isinstance(last := function.body[-1], ast.Expr) and ast.unparse(last) == "..."
    documented = bool(ast.get_docstring(function)) or (empty and "overload" not in decorators)
    documented = documented or "property" in decorators
    hidden = "validator" in decorators or ".setter" in decorators or function.name.startswith("_")
    return function.name == "__init__" or (documented and not hidden) or (function.name == "__call__" and empty)


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: arguments as a list, code as it is, and no text that reads as a tag."""
    lines: list[str] = []
    in_arguments = False
    for line in docstring.splitlines():
        if line == "Args:":
            in_arguments = True
            lines += ["Arguments:", ""]
        elif in_arguments and (argument := re.fullmatch(r"    (\*{0,2}\w+): (.*)", line)):
            lines.append(f"- `{argument[1]}`: {tagless(argument[2])}")
        elif in_arguments and line.startswith("     "):
            lines.append(f"  {tagless(line.strip())}")
        else:
            in_arguments = in_arguments and not line.strip()
            lines.append(line if line.startswith("    ") else tagless(line))
    return "\n".join(lines).strip("\n")


def tagless(text: str) -> str:
    """Return `text` with each `<` outside of code escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "\\<") for part in parts)


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
    TYPES_FILE: types_page,
    **{door_file(door): partial(door_page, door) for door in DOORS},
}
"""Every page of the reference, by its file."""


if __name__ == "__main__":
    write()
