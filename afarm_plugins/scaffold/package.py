"""A package of a plugin, written from the templates."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from afarm import ConfigError, did_you_mean, storage_errors
from afarm.experiments import discover
from afarm_plugins.scaffold.kinds import KINDS

TEMPLATES = Path(__file__).with_name("templates")


class Written(NamedTuple):
    """A package: its folder, its files in it, and the commands to try there."""

    folder: Path
    files: list[str]
    first_commands: list[str]


def write_package(kind: str, name: str, directory: Path = Path(), commands: Collection[str] = ()) -> Written:
    """Write the package `afarm-NAME` into a new folder of `directory`; `commands` are afarm's.

    Raises `ConfigError` for an unknown kind, a name that cannot be used or is taken, and a folder that exists.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    if kind not in KINDS:
        raise ConfigError(f"there is no kind of plugin {kind!r}.{did_you_mean(kind, KINDS)} Kinds: {', '.join(KINDS)}")
    made, key, folder = KINDS[kind], name.replace("-", "_"), directory / f"afarm-{name.lower().replace('_', '-')}"
    module = f"afarm_{key.lower()}"
    _require_free(kind, name, module, folder, commands)
    cls = "".join(part[:1].upper() + part[1:] for part in key.split("_"))
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    values: dict[str, Any] = {
        "name": name,
        "key": key,
        "module": module,
        "cls": cls,
        "package": folder.name,
        "title": made.title,
    }

    def fill(text: str) -> str:
        return templates.from_string(text).render(values)

    calls = [f"afarm {fill(command)}" for command in made.commands]
    own = [f"{cls}{made.suffix}", *([f"{cls}Settings"] if "Settings" in made.check else [])]
    values |= {
        "afarm": version("afarm"),
        "extra": made.extra,
        "imports": made.imports,
        "names": ", ".join(own) if made.registered else "register_commands",
        "arguments": "tmp_path: Path" if "tmp_path" in made.check else "",
        "body": fill(made.check),
        "commands": calls,
    }
    files = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{module}.py": f"{kind.replace('-', '_')}.py",
        f"tests/test_{module}.py": "test.py",
    }
    with storage_errors(folder):
        folder.mkdir(parents=True)
        (folder / "tests").mkdir()
        for file, template in files.items():
            text = templates.get_template(f"{template}.jinja").render(values)
            (folder / file).write_text(text, encoding="utf-8")
    first, *_ = calls
    tried = [first.replace("afarm ", f"afarm --plugin-file {module}.py ", 1), "pip install -e '.[test]' && pytest"]
    return Written(folder, list(files), [*tried, f"afarm plugins {name}"])


def _require_free(kind: str, name: str, module: str, folder: Path, commands: Collection[str]) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*", name):
        rule = "ASCII letters and digits, parts joined by '-' or '_', a letter first"
        raise ConfigError(f"a plugin cannot be called {name!r}: {rule}, such as my-{kind}")
    registry = discover(check_configs=False).registry
    registry.require_name(name)
    known = [c.name for c in registry if c.kind == KINDS[kind].registered] if KINDS[kind].registered else commands
    if name in known:
        raise ConfigError(f"there is a {kind} {name!r} already: choose another name")
    if importlib.util.find_spec(module):
        raise ConfigError(f"there is a Python module {module!r} already: choose another name than {name!r}")
    if folder.exists():
        raise ConfigError(f"{folder} exists already, and is left as it is: choose another name or --directory")
