"""Plugins, ours and strangers', import names that a door exports, and a public name means one thing."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from places import ROOT
from syntax import ALL, PLUGINS, Module, modules, within

from afarm.core import MOVED

DOORS = (
    *("afarm", "afarm.judging", "afarm.backend", "afarm.testing"),
    *("afarm.results", "afarm.experiments", "afarm.report", "afarm.cli.options"),
)

CONTRIB = [module for path in sorted((ROOT / "plugins-contrib").glob("*/src")) for module in modules(str(path))]

ONE_NAME_FOR_A_REASON: dict[str, str] = {
    "add_commands": "each module of a command adds it to the command line",
    "sample": "the command, and the stage that it runs, have the name of the step",
}
"""Names that several modules define."""


def exported() -> dict[str, frozenset[str]]:
    """The names of each door."""
    doors = {module.name: module for module in ALL if module.name in DOORS}
    return {name: frozenset(doors[name].exported()) for name in DOORS}


EXPORTED = exported()


def taken(module: Module) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of everything of afarm's that `module` imports or reaches as `afarm.name`."""
    for imported in module.imports:
        if within(imported.module, "afarm"):
            yield imported.line, imported.module, imported.name
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "afarm":
            yield node.lineno, "afarm", node.attr


def test_plugins_take_names_of_the_doors_only() -> None:
    past = [
        f"{module.name}, line {line}: {source}.{name}" if name else f"{module.name}, line {line}: {source}"
        for module in [*PLUGINS, *CONTRIB]
        for line, source, name in taken(module)
        if name not in EXPORTED.get(source, ()) and not (source == "afarm" and not name)
    ]
    assert past == []


def test_there_are_plugins_of_both_kinds() -> None:
    assert len(PLUGINS) > 50
    assert CONTRIB


def test_a_door_lists_each_name_once() -> None:
    doors = {module.name: module.exported() for module in ALL if module.name in DOORS}
    assert doors.keys() == {*DOORS}
    assert [door for door, names in doors.items() if len(names) != len(set(names))] == []


def test_a_public_name_is_defined_once() -> None:
    defining: dict[str, list[str]] = {}
    for module in ALL:
        for name in module.public_definitions():
            defining.setdefault(name, []).append(module.name)
    several = {name: where for name, where in defining.items() if len(where) > 1}
    assert {n: where for n, where in several.items() if n not in ONE_NAME_FOR_A_REASON} == {}
    assert ONE_NAME_FOR_A_REASON.keys() <= several.keys()


def test_a_name_that_moved_is_where_the_table_says_it_went() -> None:
    for old, new in json.loads(MOVED.read_text(encoding="utf-8")).items():
        door, _, name = old.rpartition(".")
        assert door in DOORS
        assert name not in EXPORTED[door], "it is back"
        at, _, now = new.rpartition(".")
        assert now in EXPORTED[at]
