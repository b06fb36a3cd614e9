"""A function by its name, `FILE.py:NAME` or `package.module:NAME`, with a digest of its code."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from afarm import ConfigError, did_you_mean, files_digest, require_named


def load_function(spec: str) -> tuple[Callable[..., Any], str]:
    """Return the function, and a digest of its file or, of a module, of its whole package.

    A file is read alone. Both are found from the current directory too. Raises `ConfigError` for a function that nobody
    named on the command line, or that cannot be loaded.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{spec!r} names no function: write FILE.py:NAME or package.module:NAME after 'function:'")
    require_named(spec)
    try:
        module, digest = _read_file(place) if place.endswith(".py") else _import(place)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"function {spec!r} cannot be loaded: {_explain(error, place)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        own = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise ConfigError(f"{place} has no function {name!r}.{did_you_mean(name, own)}")
    return function, digest


def _read_file(place: str) -> tuple[ModuleType, str]:
    path = Path(place).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"function:{place}: no such file (from {Path.cwd()})")
    source = path.read_bytes()
    digest = hashlib.sha256(source).hexdigest()[:24]
    name = f"afarm_function_{hashlib.sha256(f'{path} {digest}'.encode()).hexdigest()[:12]}"  # edited, it is another
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            exec(compile(source, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name], digest


@cache  # code that is edited later is not the code that runs
def _import(name: str) -> tuple[ModuleType, str]:
    if importlib.util.find_spec(name.partition(".")[0]) is None and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
        importlib.invalidate_caches()
    return importlib.import_module(name), files_digest("", (name,))


def _explain(error: BaseException, place: str) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == Path(place).name]
    line = f" ({Path(place).name}:{frames[-1].lineno})" if frames else ""
    alone = place.endswith(".py") and isinstance(error, ModuleNotFoundError)
    advice = "; a file is read alone: name it as package.module:NAME to import what lies beside it" if alone else ""
    return f"{type(error).__name__}: {error}{line}{advice}"
