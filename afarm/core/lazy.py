"""Packages whose names are imported when they are first used, so that importing the package loads none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562) whose names come from these modules of its own.

    Type checkers and editors do not see through it: import the names under `TYPE_CHECKING` as well.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return find
