"""The small core: records, interfaces, hooks, registry, configuration, errors; `open_door`."""

import ast
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOVED = Path(__file__).with_name("moved_names.json")
"""Where names went that a door had: a plugin that imports one is told."""


def open_door(door: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__`, `__dir__` of a module that exports what it imports for checkers.

    So each name is listed once, where checkers and editors look, and is imported when first used: `afarm --help` and
    light plugins do not wait for pydantic. To a checker, a misspelt name stays an error.
    """
    source = importlib.import_module(door).__loader__.get_source(door)  # type: ignore[union-attr]
    [block] = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in homes:
            if now := json.loads(MOVED.read_text(encoding="utf-8")).get(f"{door}.{name}"):
                raise ImportError(f"{door}.{name} is {now} now")
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        return getattr(__import__(homes[name], fromlist=[name]), name)

    return sorted(homes), find, lambda: sorted(homes)
