"""Hooks, settings and public names are documented, or this goes red."""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator
from functools import cache
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


def fields() -> list[Any]:
    return [
        pytest.param(config, name, id=f"{config.__name__}.{name}")
        for config in configs()
        for name in config.model_fields
    ]


@pytest.mark.parametrize("hook", hook_names())
def test_a_hook_is_documented(hook: str) -> None:
    assert inspect.getdoc(getattr(Hooks, hook))
    for page in ("guides/write-a-plugin.md", "architecture.md"):
        assert hook in (ROOT / "docs" / page).read_text(encoding="utf-8"), f"{hook} is missing in docs/{page}"


@pytest.mark.parametrize(("config", "field"), fields())
def test_a_setting_has_a_description_and_says_whether_it_changes_the_result(
    config: type[BaseModel], field: str
) -> None:
    info = config.model_fields[field]
    extra = info.json_schema_extra
    assert info.description
    assert isinstance(extra, dict)
    assert isinstance(extra.get("changes_result"), bool), "declare it with afarm.setting(…)"


@pytest.mark.parametrize(("config", "field"), fields())
def test_a_setting_is_read_somewhere(config: type[BaseModel], field: str) -> None:
    """A setting that nothing reads promises what it does not do."""
    assert field in names_that_are_read(), f"{config.__name__}.{field} is declared, and read nowhere"


@cache
def names_that_are_read() -> frozenset[str]:
    """Every attribute, argument and text in the packages, the kit for tests apart: no declaration is among them."""
    read = {*inspect.signature(afarm.Decoding).parameters}  # `sample` hands its fields to a Decoding by name
    for module in ALL:
        if within(module.name, "afarm.testing"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute):
                read.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                read.add(node.value)
            elif isinstance(node, ast.arg | ast.keyword):
                read.add(str(node.arg))
    return frozenset(read)


@pytest.mark.parametrize("name", afarm.__all__)
def test_a_public_name_has_a_docstring(name: str) -> None:
    check_docstring(getattr(afarm, name))


@pytest.mark.parametrize("name", afarm.backend.__all__)
def test_a_public_name_of_the_backend_has_a_docstring(name: str) -> None:
    check_docstring(getattr(afarm.backend, name))


@pytest.mark.parametrize("name", afarm.testing.__all__)
def test_a_public_name_of_the_kit_has_a_docstring(name: str) -> None:
    check_docstring(getattr(afarm.testing, name))


def check_docstring(public: object) -> None:
    if not (inspect.isclass(public) or inspect.isfunction(public)):
        return
    text = public.__doc__ or ""
    written = not (inspect.isclass(public) and text.startswith(f"{public.__name__}("))  # what dataclass writes itself
    assert text.strip() and written, f"{public.__module__}.{public.__qualname__} has no docstring"  # noqa: PT018


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


@pytest.mark.parametrize("component", list(PLUGINS.registry), ids=lambda c: f"{c.kind}/{c.full_name}")
def test_a_component_has_a_summary_of_one_line(component: Any) -> None:
    assert component.summary
    assert "\n" not in component.summary
