"""Rooms, sizes and names: every file lies in a room with a noun on its door, and can be read at one sitting."""

from __future__ import annotations

import re

import pytest
from floors import FLOORS
from places import DOCS, ROOT
from syntax import AFARM, ALL, PLUGINS, Module, modules

BESIDE_THE_ROOMS = {"__init__.py", "__main__.py", "py.typed", "recipes"}

CORE_LINES, CORE_MODULES = 2430, 11
LONGEST_MODULE, LONGEST_FUNCTION = 500, 80

LINES = {
    "core": 2462,
    "storage": 4620,
    "judging": 3629,
    "evaluation": 5175,
    "backend": 4905,
    "experiment": 8006,
    "report": 1605,
    "results": 325,
    "experiments": 67,
    "testing": 2077,
    "cli": 4581,
}
"""The most lines of each room. A room that outgrows its budget wants another idea, or gives something away."""

PLUGIN_LINES, PACKAGE_LINES = 3000, {"afarm-people": 3000}

CONTRIB = sorted(path.parent.name for path in (ROOT / "plugins-contrib").glob("*/src"))

SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc"}

TESTS_BESIDE_THE_ROOMS = {"architecture", "contrib", "gpu", "plugins", "support"}


def in_room(room: str) -> list[Module]:
    return [module for module in AFARM if module.room == room]


def test_afarm_holds_its_rooms_and_nothing_else() -> None:
    held = {path.name for path in (ROOT / "afarm").iterdir() if path.name != "__pycache__"}
    assert held == {*FLOORS, *BESIDE_THE_ROOMS}


def test_the_page_on_architecture_lists_the_rooms_and_their_floors() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", (DOCS / "architecture.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(FLOORS)
    written = {room: frozenset(re.findall(r"`(\w+)`", floor)) for room, floor in rows}
    written["cli"] = frozenset(FLOORS) - {"cli"}  # "all rooms"
    assert written == {room: frozenset(floor) for room, floor in FLOORS.items()}


def test_the_core_is_small() -> None:
    core = [module for module in in_room("core") if module.path.name != "__init__.py"]
    assert sum(module.lines for module in core) <= CORE_LINES
    assert len(core) <= CORE_MODULES


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_keeps_its_budget(room: str) -> None:
    assert sum(module.lines for module in in_room(room)) <= LINES[room]


@pytest.mark.parametrize("plugin", sorted({module.room for module in PLUGINS} - {""}))
def test_a_plugin_keeps_its_budget(plugin: str) -> None:
    assert sum(module.lines for module in PLUGINS if module.room == plugin) <= PLUGIN_LINES


@pytest.mark.parametrize("package", CONTRIB)
def test_a_package_keeps_its_budget(package: str) -> None:
    assert sum(module.lines for module in modules(f"plugins-contrib/{package}/src")) <= PACKAGE_LINES.get(package, 1500)


def test_modules_are_short() -> None:
    assert {module.name: module.lines for module in ALL if module.lines > LONGEST_MODULE} == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{module.name}.{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for module in ALL
        for function in module.functions()
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_no_module_is_named_for_nothing() -> None:
    everywhere = [*ALL, *modules("tests", "plugins-contrib", "benchmarks", "tools")]
    assert [module.name for module in everywhere if module.name.split(".")[-1] in SAYS_NOTHING] == []


def test_each_room_and_each_plugin_has_its_tests() -> None:
    def folders(path: str) -> set[str]:
        return {folder.name for folder in (ROOT / path).iterdir() if folder.is_dir() and folder.name[0] not in "._"}

    assert folders("tests") == {*FLOORS, *TESTS_BESIDE_THE_ROOMS}
    assert folders("tests/plugins") <= folders("afarm_plugins")


def test_what_tests_share_lies_in_one_place() -> None:
    """Beside `tests/support/`, a test folder holds tests, and fixtures in `conftest.py`."""
    shared = [
        module.name
        for module in modules("tests")
        if module.path.parent.name != "support" and not module.path.name.startswith(("test_", "conftest"))
    ]
    assert shared == []
