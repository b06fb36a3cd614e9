"""Imports go down only, from the syntax tree: those for type checkers and inside functions too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from floors import BACKEND_IN_FUNCTIONS, FLOORS, NARROW
from syntax import AFARM, ALL, PLUGINS, Import, Module, is_module, within

HEAVY = {
    "accelerate",
    "anthropic",
    "datasets",
    "numpy",
    "openai",
    "pandas",
    "peft",
    "plotly",
    "psycopg",
    "pyarrow",
    "ray",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
}
"""Libraries that take long to import: outside the rooms that stand on them, inside functions only."""

NUMERICAL = ("afarm.evaluation.statistics", "afarm.evaluation.win_table")
"""Modules that stand on numpy and scipy: others import them inside functions only."""

CORE_STANDS_ON = {*sys.stdlib_module_names, "packaging", "pluggy", "pydantic"}


def room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def offences(modules: list[Module], wrong: Callable[[Module, Import], bool]) -> list[str]:
    return [
        f"{module.name}:{imported.line} imports {imported.module}"
        for module in modules
        for imported in module.imports
        if wrong(module, imported)
    ]


def deferred(imported: Import) -> bool:
    return imported.lazy or imported.typing


# ------------------------------------------------------------------------------------------------------------ floors


def test_no_room_imports_one_above_it() -> None:
    def wrong(module: Module, imported: Import) -> bool:
        if module.room not in FLOORS or not within(imported.module, "afarm"):
            return False
        room = room_of(imported.module)
        if not room:  # the façade, above all rooms but the command line
            return module.room != "cli"
        narrow = NARROW.get(module.room, {}).get(room)
        fits = room == module.room or (room in FLOORS[module.room] and (not narrow or imported.module in narrow))
        return not fits

    assert offences(AFARM, wrong) == []


@pytest.mark.parametrize("room", [room for room in FLOORS if room != "cli"])
def test_a_floor_allows_no_more_than_is_used(room: str) -> None:
    used = {room_of(i.module) for m in AFARM if m.room == room for i in m.imports if within(i.module, "afarm")}
    assert set(FLOORS[room]) <= used


@pytest.mark.parametrize("room", BACKEND_IN_FUNCTIONS)
def test_the_backend_is_reached_inside_functions_of_named_modules(room: str) -> None:
    reaching = [
        (module, imported)
        for module in AFARM
        if module.room == room
        for imported in module.imports
        if within(imported.module, "afarm.backend")
    ]
    assert {module.name for module, _ in reaching} == BACKEND_IN_FUNCTIONS[room]
    assert [f"{module.name}:{imported.line}" for module, imported in reaching if not deferred(imported)] == []


def test_nothing_imports_a_plugin_but_itself() -> None:
    def wrong(module: Module, imported: Import) -> bool:
        own = within(module.name, "afarm_plugins") and room_of(imported.module) == module.room
        return within(imported.module, "afarm_plugins") and not own

    assert offences(ALL, wrong) == []


# --------------------------------------------------------------------------------------------------------- libraries


def test_the_core_stands_on_the_standard_library_pluggy_packaging_and_pydantic() -> None:
    def wrong(module: Module, imported: Import) -> bool:
        return module.room == "core" and imported.module.split(".")[0] not in {*CORE_STANDS_ON, "afarm"}

    assert offences(AFARM, wrong) == []


def test_heavy_libraries_are_imported_inside_functions() -> None:
    def numerical(name: str) -> bool:
        return any(within(name, stands_on_numpy) for stands_on_numpy in NUMERICAL)

    def wrong(module: Module, imported: Import) -> bool:
        heavy = imported.module.split(".")[0] in HEAVY or numerical(imported.module)
        return heavy and module.room != "backend" and not numerical(module.name) and not deferred(imported)

    assert offences(AFARM, wrong) == []


def test_what_an_entry_point_names_imports_no_heavy_library() -> None:
    entries = [module for module in PLUGINS if module.path.name == "__init__.py"]
    assert offences(entries, lambda _, imported: imported.module.split(".")[0] in HEAVY) == []


# ------------------------------------------------------------------------------------------------------------ cycles


def edges(counts: Callable[[Module, Import], bool]) -> dict[str, set[str]]:
    return {m.name: {i.module for i in m.imports if is_module(i.module) and counts(m, i)} for m in ALL}


def test_no_import_cycle_runs_through_two_rooms() -> None:
    """Not even by way of type checkers or functions: such rooms could only be understood together."""
    graph = edges(lambda module, imported: True)
    crossing = [circle for circle in circles(graph) if len({room_of(name) for name in circle}) > 1]
    assert crossing == []


@pytest.mark.parametrize("room", ["backend", "cli"])
def test_no_import_cycle_runs_within_a_room(room: str) -> None:
    """Not even by way of type checkers or functions: a module can be read without what is built on it."""
    graph = edges(lambda module, imported: module.room == room and within(imported.module, f"afarm.{room}"))
    assert list(circles(graph)) == []


def test_no_module_waits_for_itself_while_it_loads() -> None:
    assert list(circles(edges(lambda _, imported: not deferred(imported)))) == []


def circles(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """Yield each set of nodes of which every one reaches all others (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[set[str]]:
        index[name] = low[name] = len(index)
        stack.append(name)
        for inner in sorted(graph.get(name, ())):
            if inner not in index:
                yield from visit(inner)
            if inner in stack:
                low[name] = min(low[name], low[inner])
        if low[name] == index[name]:
            at = stack.index(name)
            circle = set(stack[at:])
            del stack[at:]
            if len(circle) > 1 or name in graph.get(name, ()):
                yield circle

    for name in sorted(graph):
        if name not in index:
            yield from visit(name)


def test_a_cycle_would_be_found() -> None:
    assert list(circles({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == [{"b", "c"}]
    assert list(circles({"a": {"a"}})) == [{"a"}]
    assert list(circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})) == []
