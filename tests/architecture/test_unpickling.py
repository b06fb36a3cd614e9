"""Nothing stored is unpickled, from the syntax tree: a directory or file may come from anybody."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from syntax import ALL, within

UNPICKLE = (
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "pickle",
    "shelve",
    "torch.distributed.checkpoint",
)
HARMLESS = {("pickle", "UnpicklingError")}

CALLS = {"add_safe_globals", "full_load", "full_load_all", "read_pickle", "unsafe_load", "unsafe_load_all"}
"""Names of functions, of whichever library, that make objects of what they read."""

ONLY = {"weights_only": True, "allow_pickle": False, "trust_remote_code": False}
"""The value that an argument of this name has, wherever it is given."""

SAFE_LOADERS = {"SafeLoader", "CSafeLoader"}


def found_in(tree: ast.Module) -> Iterator[str]:
    """Say of each import and call that can unpickle where it stands."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                names_found = [(name.name, "") for name in names]
            case ast.ImportFrom(module=str(module), names=names):
                names_found = [(module, name.name) for name in names]
            case ast.Call():
                yield from (f"line {node.lineno}: {what}" for what in wrong_with(node, tree))
                continue
            case _:
                continue
        for module, name in names_found:
            whole = f"{module}.{name}".rstrip(".")
            if (module, name) not in HARMLESS and any(within(whole, package) for package in UNPICKLE):
                yield f"line {node.lineno}: imports {whole}"
            if (module, name) in {("torch", "load"), ("numpy", "load"), ("yaml", "load")}:
                yield f"line {node.lineno}: {whole} is called by its whole name"


def wrong_with(call: ast.Call, tree: ast.Module) -> Iterator[str]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    function = ast.unparse(call.func)
    for name, value in ONLY.items():
        if name in given and not (isinstance(given[name], ast.Constant) and given[name].value is value):  # type: ignore[attr-defined]
            yield f"{function} with {name} other than {value}"
    if function.rpartition(".")[2] in CALLS:
        yield function
    if function in ("torch.load", "torch.serialization.load") and "weights_only" not in given:
        yield f"{function} without weights_only=True"
    if function in ("yaml.load", "yaml.load_all"):
        loader = given.get("Loader")
        if isinstance(loader, ast.Name):
            loader = next((x.value for x in ast.walk(tree) if assigns(x, loader.id)), None)  # type: ignore[attr-defined]
        words = {x.attr for x in ast.walk(loader) if isinstance(x, ast.Attribute)} if loader else set()
        words |= {x.value for x in ast.walk(loader) if isinstance(x, ast.Constant)} if loader else set()
        if not words or words - SAFE_LOADERS:
            yield f"{function} with another loader than a safe one"


def assigns(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]


def test_no_module_unpickles() -> None:
    assert [f"{module.path}: {what}" for module in ALL for what in found_in(module.tree)] == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import torch.distributed.checkpoint as dcp",
        "from torch.distributed import checkpoint",
        "from torch.distributed.checkpoint import FileSystemReader",
        "import joblib",
        "from torch import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=safe)",
        "torch.serialization.add_safe_globals([X])",
        "numpy.load(path, allow_pickle=True)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "AutoModel.from_pretrained(path, weights_only=False)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "loader = yaml.UnsafeLoader\nyaml.load(text, Loader=loader)",
        "yaml.load(text, Loader=loader)",
        "yaml.unsafe_load(text)",
        "pandas.read_pickle(path)",
    ],
)
def test_what_unpickles_is_found(code: str) -> None:
    assert len(list(found_in(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "from pickle import UnpicklingError",
        "torch.load(path, weights_only=True)",
        "numpy.load(path)",
        "json.load(file)",
        "yaml.safe_load(text)",
        "loader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)\nyaml.load(text, Loader=loader)",
    ],
)
def test_what_does_not_unpickle_may_be_called(code: str) -> None:
    assert list(found_in(ast.parse(code))) == []
