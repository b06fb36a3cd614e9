"""Imports run one way, from the syntax tree: afarm_plugins → afarm.backend → afarm; and core stays light."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from syntax import ALL, NAMES, Import, Module, within

HEAVY = {
    "accelerate",
    "anthropic",
    "datasets",
    "numpy",
    "openai",
    "pandas",
    "peft",
    "plotly",
    "pyarrow",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
}
"""Libraries that core may import inside functions only."""

MAY_REACH_FOR_THE_BACKEND = {
    "afarm.experiment.components": "makes the backend when something is about to train or sample",
    "afarm.experiment.training_stages": "the torch-free identity of a model, and whether the Hub has it",
    "afarm.experiment.preflight": "the torch-free look at whether there is a model",
    "afarm.testing.contexts": "a training context has a backend",
    "afarm.testing.models": "tiny models are the backend's",
}

BACKEND_STANDS_ON = {
    "afarm.experiment.settings",
    "afarm.core.errors",
    "afarm.core.interfaces",
    "afarm.core.seeding",
    "afarm.core.lazy",
    "afarm.core.processes",
    "afarm.core.records",
    "afarm.backend",
}

PLUGINS_STAND_ON = BACKEND_STANDS_ON | {
    *(
        "afarm",
        "afarm.core.hooks",
        "afarm.core.judge",
        "afarm.judging.pairwise",
        "afarm.storage.rows",
        "afarm.storage.hub",
    ),
    "afarm.cli.options",  # what every command that makes a farm takes
}

NUMERICAL = ("afarm.statistics", "afarm.evaluation.win_table")
"""Rooms of core that stand on numpy and scipy: the others go there inside functions only."""


def numerical(name: str) -> bool:
    return any(within(name, room) for room in NUMERICAL)


def in_core(module: Module) -> bool:
    return within(module.name, "afarm") and not within(module.name, "afarm.backend")


def plugin_of(name: str) -> str:
    """`afarm_plugins.ppo.objective` belongs to `afarm_plugins.ppo`."""
    return ".".join(name.split(".")[:2])


def offences(modules: list[Module], wrong: Callable[[Module, Import], bool]) -> list[str]:
    return [
        f"{module.name}:{found.line} imports {found.module}"
        for module in modules
        for found in module.imports(NAMES)
        if wrong(module, found)
    ]


CORE = [module for module in ALL if in_core(module)]
BACKEND = [module for module in ALL if within(module.name, "afarm.backend")]
BACKEND_NAMES = {module.name for module in BACKEND}
PLUGINS = [module for module in ALL if within(module.name, "afarm_plugins")]


def test_the_rooms_are_all_there() -> None:
    assert len(CORE) > 20
    assert len(BACKEND) > 5
    assert len(PLUGINS) > 10


def test_neither_core_nor_backend_imports_a_plugin() -> None:
    assert offences(CORE + BACKEND, lambda _, found: within(found.module, "afarm_plugins")) == []


def test_core_reaches_for_the_backend_in_named_places_and_inside_functions_only() -> None:
    def wrong(module: Module, found: Import) -> bool:
        if found.typing or not within(found.module, "afarm.backend"):
            return False
        return module.name not in MAY_REACH_FOR_THE_BACKEND or not found.lazy

    assert offences(CORE, wrong) == []


@pytest.mark.parametrize("name", MAY_REACH_FOR_THE_BACKEND)
def test_no_place_is_named_that_needs_no_backend(name: str) -> None:
    [module] = [m for m in CORE if m.name == name]
    assert any(within(found.module, "afarm.backend") and found.lazy for found in module.imports(NAMES))


def test_core_imports_heavy_libraries_inside_functions_only() -> None:
    def wrong(module: Module, found: Import) -> bool:
        heavy = found.module.split(".")[0] in HEAVY or numerical(found.module)
        return heavy and not numerical(module.name) and not found.lazy and not found.typing

    assert offences(CORE, wrong) == []


def test_the_backends_front_door_and_configs_import_no_heavy_library() -> None:
    doors = {"afarm.backend", "afarm.core.config", "afarm.storage.model_files"}
    light = [module for module in BACKEND if module.name in doors]

    def wrong(module: Module, found: Import) -> bool:
        return found.module.split(".")[0] in HEAVY and not found.lazy and not found.typing

    assert len(light) == len(doors)
    assert offences(light, wrong) == []


def test_the_backend_stands_on_records_interfaces_and_settings_only() -> None:
    def wrong(module: Module, found: Import) -> bool:
        return within(found.module, "afarm") and found.module not in BACKEND_STANDS_ON | BACKEND_NAMES

    assert offences(BACKEND, wrong) == []


def test_plugins_stand_on_the_public_modules_only() -> None:
    def wrong(module: Module, found: Import) -> bool:
        return within(found.module, "afarm") and found.module not in PLUGINS_STAND_ON | BACKEND_NAMES

    assert offences(PLUGINS, wrong) == []


def test_no_plugin_imports_another_plugin() -> None:
    def wrong(module: Module, found: Import) -> bool:
        return within(found.module, "afarm_plugins") and plugin_of(found.module) != plugin_of(module.name)

    assert offences(PLUGINS, wrong) == []


def test_what_an_entry_point_names_imports_no_heavy_library() -> None:
    doors = [module for module in PLUGINS if module.path.name == "__init__.py"]

    def wrong(module: Module, found: Import) -> bool:
        return found.module.split(".")[0] in HEAVY

    assert offences(doors, wrong) == []


def test_there_is_no_import_cycle() -> None:
    """Among imports that run when a module is loaded."""
    edges = {
        module.name: {
            found.module
            for found in module.imports(NAMES)
            if found.module in NAMES and not found.lazy and not found.typing
        }
        for module in ALL
    }
    assert cycle(edges) == []


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """The modules of one cycle, empty where there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for inner in sorted(edges.get(name, ())):
            if found := visit(inner, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(edges) if (found := visit(name, []))), [])


def test_a_cycle_would_be_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
