"""What the architecture tests read from the syntax trees of the packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from places import ROOT


@dataclass(frozen=True)
class Import:
    """One imported module. `lazy`: only when a function is called; `typing`: only for a type checker."""

    module: str
    line: int
    lazy: bool
    typing: bool


@dataclass(frozen=True)
class Module:
    """A module of the packages, by its dotted name."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @property
    def lines(self) -> int:
        return len(self.path.read_text(encoding="utf-8").splitlines())

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def imports(self, known: frozenset[str]) -> list[Import]:
        """Every import in the module. `from package import name` is of `package.name` where that is a known module."""
        return list(_imports(self.tree.body, known, lazy=False, typing=False))


def _imports(body: list[ast.stmt], known: frozenset[str], lazy: bool, typing: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy, typing)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield Import(inner if inner in known else str(node.module), node.lineno, lazy, typing)
        else:
            deferred = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for field in ("body", "orelse", "finalbody"):
                yield from _imports(getattr(node, field, []), known, deferred, typing or (checking and field == "body"))
            for handler in getattr(node, "handlers", []):
                yield from _imports(handler.body, known, deferred, typing)


def modules(*packages: str) -> list[Module]:
    """All modules of the packages, `__init__` under the package's own name."""
    found = []
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append(Module(".".join(p for p in parts if p != "__init__"), path))
    return found


ALL = modules("afarm", "afarm_plugins")
NAMES = frozenset(module.name for module in ALL)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
