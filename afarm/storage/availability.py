"""Whether there is a model behind a spec, found out in a moment and without loading it. No torch here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from afarm.core.errors import ModelError
from afarm.storage import gguf
from afarm.storage.model_files import local_path

CONFIGS = ("config.json", "adapter_config.json")
"""What transformers saves beside weights or, for adapters, peft does."""

PATIENCE = 5.0
"""Seconds to wait for the Hub. Loading would try again for a minute, and huggingface_hub has no setting for that."""


def require_local(spec: str) -> None:
    """Nothing for a Hub id. Raises `ModelError` where `spec` is a path and no model is there."""
    path = local_path(spec)
    if path is None:
        return
    if path.is_dir():
        if not any((path / name).is_file() for name in CONFIGS):
            raise ModelError(
                f"model {spec!r}: the directory has no config.json, so no model was saved there; "
                "check --model: it takes a directory saved by transformers, a .gguf file or a Hub id (org/name)"
            )
        return
    if path.suffix != ".gguf":
        raise ModelError(
            f"model {spec!r}: of single files only .gguf can be loaded; check --model, or give the directory it is in"
        )
    try:
        with path.open("rb") as handle:
            magic = handle.read(len(gguf.MAGIC))
    except OSError as error:
        raise ModelError(f"model {spec!r}: cannot be read ({error.strerror}); check --model") from error
    if magic != gguf.MAGIC:
        raise ModelError(
            f"model {spec!r}: is no GGUF file, whatever its name says: it starts with {magic!r}, not {gguf.MAGIC!r}; "
            "was its download cut short? Get it again, or check --model"
        )
    gguf.require_whole(path)


@cache
def require_on_hub(spec: str) -> None:
    """Nothing for a local model, or for one that the Hub has or its cache holds; asks the Hub once a process.

    Raises `ModelError` where the Hub does not have it, or cannot be reached within `PATIENCE` seconds.
    """
    if local_path(spec) is not None or _is_cached(spec):
        return
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
    except ImportError:  # which loading says, and what to install
        return
    try:
        HfApi().model_info(spec, timeout=PATIENCE)
    except HFValidationError as error:
        raise ModelError(
            f"model {spec!r}: no such file or directory (from {Path.cwd()}), and no Hub id either, which is org/name; "
            "check --model"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"model {spec!r}: no such file or directory (from {Path.cwd()}), and the Hub has no model of that name "
            "for you; check --model, or log in with `hf auth login` where it is a private one"
        ) from error
    except HfHubHTTPError:  # some mirrors answer for files only, so that loading may yet succeed
        return
    except Exception as error:  # each HTTP library under the Hub's client has exceptions of its own
        raise ModelError(
            f"model {spec!r}: no such file or directory (from {Path.cwd()}), and the Hub cannot be reached ({error}); "
            "without a network name a local model: --model DIRECTORY or --model FILE.gguf"
        ) from error


def _is_cached(spec: str) -> bool:
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(spec, "config.json"), str)
    except (ImportError, ValueError):  # not installed; or no valid id
        return False
