"""Model specs: the files behind one, their digest for artifact keys, and checks that they are there.

A spec is a Hub id (`org/name`), a local directory, a `.gguf` file, or `pkg:<package>/<path>`, a directory that is
shipped inside a Python package. No torch here.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from afarm.core.errors import ModelError
from afarm.storage.disk import is_source
from afarm.storage.hub import PATIENCE, look_up
from afarm.storage.user_files import why_closed, why_unopened
from afarm.storage.weight_files import read_gguf, require_whole_gguf, require_whole_weights

PACKAGE_PREFIX = "pkg:"

CONTROL = 3
"""The type of a GGUF file's control tokens."""

CONFIGS = ("config.json", "adapter_config.json")
"""Saved beside weights by transformers or, for adapters, by peft."""


def local_path(spec: str) -> Path | None:
    """Return the path that `spec` names, None for a Hub id. Raises `ModelError` for a path to nothing.

    What opens a model asks for its path first, so it raises inside `close_files` too.
    """
    path = Path(spec).expanduser()
    if problem := why_unopened(path) if path.exists() else why_closed(None):
        raise ModelError(f"model {spec!r:.80}: {problem}")
    if spec.startswith(PACKAGE_PREFIX):
        return _package_path(spec)
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
    """Digest the files behind a local spec; a Hub model is `id@commit`, or `id` if no commit is known.

    Raises `ModelError` if a local spec names nothing.
    """
    path = local_path(spec)
    if path is None:
        if config := cached_file(spec):
            return f"{spec}@{config.parent.name}"
        with suppress(Exception):  # without a client, a network or a valid id, loading says best what is wrong
            from huggingface_hub import HfApi

            if commit := HfApi().model_info(spec, timeout=PATIENCE).sha:
                return f"{spec}@{commit}"
        return spec
    # Only what loading reads: a model card may be edited, caches and hidden files come and go
    inside = (
        file for file in path.rglob("*") if is_source(file.relative_to(path)) and file.suffix not in (".md", ".py")
    )
    files = [path] if path.is_file() else sorted(file for file in inside if file.is_file())
    whole = hashlib.blake2b(digest_size=16)
    for file in files:
        stat = file.stat()
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        whole.update(f"{name}\0{_content_digest(str(file), stat.st_size, stat.st_mtime_ns)}\n".encode())
    return f"files:{whole.hexdigest()}"


@lru_cache(maxsize=4096)
def _content_digest(file: str, size: int, modified: int) -> str:
    # Size and time of change are only the cache's key: what is digested is the content.
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _package_path(spec: str) -> Path:
    package, _, inside = spec.removeprefix(PACKAGE_PREFIX).partition("/")
    try:
        module = find_spec(package)
    except (ImportError, ValueError):
        module = None
    if module is None or not module.submodule_search_locations:
        raise ModelError(f"model {spec!r}: there is no Python package {package!r}; the form is pkg:<package>/<path>")
    for folder in module.submodule_search_locations:
        path = Path(folder) / inside
        if path.exists():
            return path
    raise ModelError(f"model {spec!r}: package {package!r} has nothing at {inside!r}")


def require_local(spec: str) -> None:
    """Check a local model by its files' headers. Raises `ModelError` if it is missing or cut short."""
    path = local_path(spec)
    if path is None:
        return
    if path.is_dir():
        if not any((path / name).is_file() for name in CONFIGS):
            raise ModelError(
                f"model {spec!r}: the directory has no config.json, so no model was saved there; "
                "check --model: it takes a directory saved by transformers, a .gguf file or a Hub id (org/name)"
            )
        require_whole_weights(path)
        return
    if path.suffix != ".gguf":
        raise ModelError(
            f"model {spec!r}: of single files only .gguf can be loaded; check --model, or give the directory it is in"
        )
    require_whole_gguf(path)


@cache
def special_tokens(spec: str) -> frozenset[str]:
    """Return a model's special tokens (`<|im_start|>`) by its tokenizer's file; empty without."""
    path = local_path(spec)
    if path is not None and path.suffix == ".gguf":
        with suppress(Exception):  # loading says what is wrong with a damaged file, or that gguf is not installed
            fields = read_gguf(path).fields
            types, texts = (fields[f"tokenizer.ggml.{name}"] for name in ("token_type", "tokens"))
            kinds = [types.parts[at][0] for at in types.data]
            return frozenset(
                bytes(texts.parts[at]).decode() for at, kind in zip(texts.data, kinds, strict=True) if kind == CONTROL
            )
    file = path / "tokenizer.json" if path else cached_file(spec, "tokenizer.json")
    if file is None or not file.is_file():
        return frozenset()
    added = json.loads(file.read_text("utf-8")).get("added_tokens", ())
    return frozenset(token["content"] for token in added if token.get("special"))


@cache
def require_on_hub(spec: str) -> None:
    """Raise `ModelError` unless a model is local, cached or on the Hub, which is asked once per process."""
    if local_path(spec) is not None or cached_file(spec):
        return
    no_file = f"model {spec!r}: no such file or directory (from {Path.cwd()}), and "
    try:
        answer = look_up("model", spec)
    except ImportError:  # which loading says, and what to install
        return
    except ConnectionError as error:
        raise ModelError(
            f"{no_file}the Hub cannot be reached ({error}); without a network name a local model: --model DIRECTORY or "
            "--model FILE.gguf"
        ) from error
    if answer == "no name":
        raise ModelError(f"{no_file}no Hub id either, which is org/name; check --model")
    if answer == "missing":  # but not if unclear: some mirrors answer for files only, so that loading may yet succeed
        raise ModelError(
            f"{no_file}the Hub has no model of that name for you; check --model, or log in with `hf auth login` where "
            "it is a private one"
        )


def cached_file(hub_id: str, name: str = "config.json") -> Path | None:
    """Find a file of a model in the Hub's cache on this machine, in a folder named for its commit."""
    try:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(hub_id, name)
    except (ImportError, ValueError):  # not installed; or no valid id
        return None
    return Path(path) if isinstance(path, str) else None
