"""Checks that weight files are whole, before loading fails with an error that names no file."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from afarm.core.errors import ModelError
from afarm.storage.disk import decode_json
from afarm.storage.names import is_plain_name

GGUF = b"GGUF"
"""The bytes that every GGUF file begins with."""


def require_whole_weights(directory: Path) -> None:
    """Check all safetensors files and indexes of a directory. Raises `ModelError` naming the file.

    An index names the files of a model that has several; they are beside it.
    """
    for path in sorted(directory.glob("*.safetensors")):
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:  # which loading says, and what to install
            break
        try:
            with safe_open(path, "numpy"):
                pass
        except SafetensorError as error:
            raise _damaged(path, f" ({error})") from error
    for path in sorted(directory.glob("*.index.json")):
        try:
            files = set(decode_json(path.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _damaged(path) from error
        if not all(map(is_plain_name, files)):
            raise _damaged(path, " (it names files outside of its directory)")


def _damaged(path: Path, how: str = "") -> ModelError:
    return ModelError(
        f"{path} is truncated or damaged{how}: get it again, or check --model; if an afarm run wrote it, "
        "`afarm artifacts verify --remove` deletes it and the same run makes it again"
    )


def require_whole_gguf(path: Path) -> None:
    """Raise `ModelError` if a file is no GGUF, or ends before its header or its tensors do."""
    try:
        with path.open("rb") as handle:
            magic = handle.read(len(GGUF))
    except OSError as error:
        raise ModelError(f"model '{path}': cannot be read ({error.strerror}); check --model") from error
    if magic != GGUF:
        raise ModelError(
            f"model '{path}': is not a GGUF file, despite its name: it starts with {magic!r}, not {GGUF!r}; "
            "was its download cut short? Get it again, or check --model"
        )
    try:
        read_gguf(path)
    except ImportError:  # which loading says, and what to install
        return
    except Exception as error:  # whatever a damaged file leads to
        raise damaged_gguf(path, error) from error


def damaged_gguf(path: Path, error: Exception) -> ModelError:
    """Make the error for a GGUF file that cannot be read."""
    return ModelError(
        f"model '{path}' is truncated or damaged, or newer than the installed gguf ({error}): download it again, or "
        "check --model"
    )


def read_gguf(path: Path | str) -> Any:
    """Parse a GGUF file as gguf's reader does, once as long as it is not changed: it takes seconds.

    Raises whatever gguf does for a file that ends before its header or its tensors do.
    """
    status = os.stat(path)
    return _parse_gguf(os.path.realpath(path), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1)
def _parse_gguf(path: str, size: int, modified: int) -> Any:
    import numpy as np
    from gguf import gguf_reader

    # Over a plain array: each slice of the reader's memmap costs ten of an array's.
    data = property(lambda self: vars(self)["data"], lambda self, mapped: vars(self).update(data=np.asarray(mapped)))
    return type("GGUFReader", (gguf_reader.GGUFReader,), {"data": data})(path)


def forget_gguf() -> None:
    """Let go of the file that was parsed last, whose words take some memory."""
    _parse_gguf.cache_clear()
