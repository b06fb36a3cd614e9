"""Where a model spec points, and what identifies the model behind it in artifact keys. No torch here.

A spec is a Hub id (`org/name`), a local directory, a `.gguf` file, or `pkg:<package>/<path>`, a directory that is
shipped inside a Python package.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from afarm.core.errors import ModelError

PACKAGE_PREFIX = "pkg:"


def local_path(spec: str) -> Path | None:
    """The file or directory that `spec` names, or None for a Hub id.

    Raises `ModelError` where `spec` can only be a path (or a package's) and nothing is there.
    """
    if spec.startswith(PACKAGE_PREFIX):
        return _package_path(spec)
    path = Path(spec).expanduser()
    if path.exists():
        return path
    looks_like_path = spec.startswith((".", "/", "~")) or spec.endswith(".gguf") or spec.count("/") > 1
    if looks_like_path:
        raise ModelError(
            f"model {spec!r}: no such file or directory (from {Path.cwd()}); check --model. "
            "It takes a directory saved by transformers, a .gguf file or a Hub id (org/name)"
        )
    return None


def model_identity(spec: str) -> str:
    """A digest of the files behind a local spec; `id@commit` for a Hub model, `id` where no commit is known.

    Raises `ModelError` where a local spec names nothing.
    """
    path = local_path(spec)
    if path is None:
        commit = _commit(spec)
        return f"{spec}@{commit}" if commit else spec
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and _counts(p, path))
    whole = hashlib.blake2b(digest_size=16)
    for file in files:
        stat = file.stat()
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        whole.update(f"{name}\0{_content_digest(str(file), stat.st_size, stat.st_mtime_ns)}\n".encode())
    return f"files:{whole.hexdigest()}"


def _counts(file: Path, root: Path) -> bool:
    # Only what loading reads: a model card may be edited, caches and hidden files come and go.
    parts = file.relative_to(root).parts
    return not any(part.startswith(".") or part == "__pycache__" for part in parts) and file.suffix not in {
        ".md",
        ".py",
    }


@lru_cache(maxsize=4096)
def _content_digest(file: str, size: int, modified: int) -> str:
    # Size and time of change are only the cache's key: what is digested is the content.
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _package_path(spec: str) -> Path:
    package, _, inside = spec.removeprefix(PACKAGE_PREFIX).partition("/")
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise ModelError(f"model {spec!r}: there is no Python package {package!r}; the form is pkg:<package>/<path>")
    for folder in found.submodule_search_locations:
        path = Path(folder) / inside
        if path.exists():
            return path
    raise ModelError(f"model {spec!r}: package {package!r} has nothing at {inside!r}")


def _commit(hub_id: str) -> str | None:
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache

        cached = try_to_load_from_cache(hub_id, "config.json")
    except (ImportError, ValueError):  # not installed; or not a valid id, which loading will report
        return None
    if isinstance(cached, str):
        return Path(cached).parent.name
    with suppress(Exception):  # without a network loading will say what is wrong, better than this could
        return HfApi().model_info(hub_id, timeout=5).sha
    return None
