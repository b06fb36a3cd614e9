"""Check that a safetensors file is whole: its header says where each tensor ends.

Without torch, and before a library fails on it with an error that names no file. An index names the files of a model
that has several; they are beside it.
"""

from __future__ import annotations

import struct
from pathlib import Path

from afarm.core.errors import ModelError
from afarm.storage.json_text import decode_json
from afarm.storage.names import is_plain_name

LONGEST_HEADER = 100_000_000
"""Bytes of the longest header that the format allows."""


def _require_whole(path: Path) -> None:
    """Raise `ModelError` if the file ends before its header or tensors do, or the header makes no sense."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > LONGEST_HEADER:
                raise ValueError("a longer header than the format allows")
            header = decode_json(file.read(length))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        end = 8 + length + max(ends, default=0)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(path) from error
    if end != size:
        raise _damaged(path, f" (it has {size:,} bytes, not {end:,})")


def _damaged(path: Path, how: str = "") -> ModelError:
    """Make the error for a file that is cut short or broken."""
    return ModelError(
        f"{path} is truncated or damaged{how}: get it again, or check --model; if an afarm run wrote it, "
        "`afarm artifacts verify --remove` deletes it and the same run makes it again"
    )


def require_whole_weights(directory: Path) -> None:
    """Check all safetensors headers and indexes of a directory. Raises `ModelError` naming the file."""
    for path in sorted(directory.glob("*.safetensors")):
        _require_whole(path)
    for path in sorted(directory.glob("*.index.json")):
        try:
            files = set(decode_json(path.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _damaged(path) from error
        if not all(map(is_plain_name, files)):
            raise _damaged(path, " (it names files outside of its directory)")
