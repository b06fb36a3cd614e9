"""Modules, imports and docstrings of the packages, read from their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from places import ROOT


@dataclass(frozen=True)
class Import:
    """One imported module, with the `name` that is taken from it (empty for the module itself).

    `lazy`: only when a function is called; `typing`: only for a type checker.
    """

    module: str
    name: str
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

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, as `ast.walk` gives them: to walk takes as long as to parse."""
        return list(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        return len(self.path.read_text(encoding="utf-8").splitlines())

    @property
    def room(self) -> str:
        """The room of `afarm` or the plugin of `afarm_plugins` that the module lies in; empty for `afarm` itself."""
        return self.name.split(".")[1] if "." in self.name else ""

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def docstrings(self) -> Iterator[tuple[int, str]]:
        """The line and text of every docstring."""
        for node in self.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                text := ast.get_docstring(node)
            ):
                yield getattr(node, "lineno", 1), text

    def public_definitions(self) -> Iterator[str]:
        """Names of the classes and functions at the top of the module, private ones and hooks left out."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                hook = any("hookimpl" in ast.unparse(decorator) for decorator in node.decorator_list)
                if not hook and not node.name.startswith("_"):
                    yield node.name

    def exported(self) -> list[str]:
        """The names in `__all__`, or else those that are imported under their own names (`x as x`)."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
                return [str(name) for name in ast.literal_eval(node.value)]
        imported = [alias for node in self.nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
        return [alias.name for alias in imported if alias.name == alias.asname]

    @cached_property
    def imports(self) -> list[Import]:
        """Every import in the module. `from package import name` is of `package.name` if that is a module of ours."""
        reader = _ImportReader()
        reader.visit(self.tree)
        return reader.imports


class _ImportReader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.lazy = self.typing = False

    def visit_Import(self, node: ast.Import) -> None:
        self.imports += [Import(alias.name, "", node.lineno, self.lazy, self.typing) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"line {node.lineno}: imports are absolute"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            module, name = (inner, "") if is_module(inner) else (str(node.module), alias.name)
            self.imports.append(Import(module, name, node.lineno, self.lazy, self.typing))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self.lazy = self.lazy, True
        self.generic_visit(node)
        self.lazy = outer

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_If(self, node: ast.If) -> None:
        outer, self.typing = (
            self.typing,
            self.typing or ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"),
        )
        for inner in node.body:
            self.visit(inner)
        self.typing = outer
        for inner in node.orelse:
            self.visit(inner)


def is_module(name: str) -> bool:
    """Tell a module of the packages from a name inside one."""
    path = ROOT.joinpath(*name.split("."))
    return name.startswith("afarm") and (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file())


def modules(*packages: str) -> list[Module]:
    """List all modules of the packages, `__init__` under the package's own name."""
    listed = []
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            listed.append(Module(".".join(part for part in parts if part != "__init__"), path))
    return listed


ALL = modules("afarm", "afarm_plugins")
AFARM = [module for module in ALL if module.name.split(".")[0] == "afarm"]
PLUGINS = [module for module in ALL if module.name.split(".")[0] == "afarm_plugins"]


def within(name: str, package: str) -> bool:
    """Tell if the module `name` is `package` or lies inside it."""
    return name == package or name.startswith(f"{package}.")
