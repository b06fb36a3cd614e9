"""Hooks, settings and public names are documented, or this goes red."""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel
from syntax import ALL, ROOT, within

import afarm
import afarm.backend
import afarm.testing
from afarm.core.hooks import GROUP, Hooks, hook_names
from afarm.core.plugins import discover
from afarm.core.registry import FIRST_PARTY
from afarm.experiment.settings import RunConfig

PLUGINS = discover()


def configs() -> list[type[BaseModel]]:
    """The run's config, those of all registered first-party components, and the configs inside them."""
    found: dict[type[BaseModel], None] = {}

    def add(config: type[BaseModel]) -> None:
        if config in found:
            return
        found[config] = None
        for info in config.model_fields.values():
            for inner in _classes(info.annotation):
                add(inner)

    add(RunConfig)
    for component in PLUGINS.registry:
        if component.config is not None and component.package == FIRST_PARTY:
            add(component.config)
    return list(found)


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _classes(argument)


def fields() -> dict[str, Any]:
    """Every field of every config, by the config's name and its own."""
    return {f"{c.__name__}.{name}": info for c in configs() for name, info in c.model_fields.items()}


@pytest.mark.parametrize("hook", hook_names())
def test_a_hook_is_documented(hook: str) -> None:
    assert inspect.getdoc(getattr(Hooks, hook))
    for page in ("guides/write-a-plugin.md", "architecture.md"):
        assert hook in (ROOT / "docs" / page).read_text(encoding="utf-8"), f"{hook} is missing in docs/{page}"


def test_each_setting_has_a_description_and_says_whether_it_changes_the_result() -> None:
    assert len(fields()) > 300
    assert [name for name, info in fields().items() if not info.description] == []
    extras = {name: info.json_schema_extra for name, info in fields().items()}
    said = {name: extra.get("changes_result") if isinstance(extra, dict) else None for name, extra in extras.items()}
    assert [name for name, value in said.items() if not isinstance(value, bool)] == [], "use afarm.setting(…)"


def test_each_setting_is_read_somewhere() -> None:
    """A setting that nothing reads promises what it does not do."""
    read = names_that_are_read()
    assert [name for name in fields() if name.partition(".")[2] not in read] == [], "declared, and read nowhere"


def names_that_are_read() -> frozenset[str]:
    """Every attribute, argument and text in the packages, the kit for tests apart: no declaration is among them."""
    read = {*inspect.signature(afarm.Decoding).parameters}  # `sample` hands its fields to a Decoding by name
    for module in ALL:
        if within(module.name, "afarm.testing"):
            continue
        for node in module.nodes:
            if isinstance(node, ast.Attribute):
                read.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                read.add(node.value)
            elif isinstance(node, ast.arg | ast.keyword):
                read.add(str(node.arg))
    return frozenset(read)


@pytest.mark.parametrize("door", [afarm, afarm.backend, afarm.testing], ids=lambda door: door.__name__)
def test_each_public_name_has_a_docstring(door: ModuleType) -> None:
    assert [name for name in door.__all__ if lacks_docstring(getattr(door, name))] == []


def lacks_docstring(public: object) -> bool:
    if not (inspect.isclass(public) or inspect.isfunction(public)):
        return False
    text = public.__doc__ or ""
    by_dataclass = inspect.isclass(public) and text.startswith(f"{public.__name__}(")
    return by_dataclass or not text.strip()


def test_every_first_party_plugin_is_an_entry_point() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    points = set(declared["project"]["entry-points"][GROUP].values())
    implementing = {
        module.name
        for module in ALL
        if within(module.name, "afarm_plugins")
        and any("hookimpl" in ast.unparse(d) for function in module.functions() for d in function.decorator_list)
    }
    assert implementing == points


def test_the_installed_entry_points_are_the_declared_ones() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    points = set(declared["project"]["entry-points"][GROUP].values())
    installed = {plugin.module for plugin in PLUGINS.found if plugin.package == FIRST_PARTY}
    assert installed == points, "install it again: pip install -e ."


def test_each_component_has_a_summary_of_one_line() -> None:
    components = [c for c in PLUGINS.registry if not c.summary or "\n" in c.summary]
    assert [f"{c.kind}/{c.full_name}" for c in components] == []
