"""Check that a GGUF file is whole: its header says where each tensor lies (ggml's specification).

Read by hand: the reader that loads models takes seconds, and a truncated file breaks it.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

from afarm.core.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Bytes to which the tensors' data are aligned, if the file does not say."""

STRING, ARRAY = 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes per value of each of the other types."""

PLAUSIBLE = 2**31
"""More than any header's counts: a larger one was not written by a writer of this format."""


def require_whole(path: Path) -> None:
    """Raise `ModelError` if the file ends before its header or tensors do, or the header makes no sense."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            end = _end_of_data(file)
    except (struct.error, ValueError, KeyError) as error:
        raise damaged(path) from error
    if end > size:
        raise damaged(path, f" (it has {size:,} bytes of at least {end:,})")


def damaged(path: Path, how: str = "") -> ModelError:
    """Make the error for a file that is cut short or broken."""
    return ModelError(f"model '{path}' is truncated or damaged{how}: download it again, or check --model")


def _end_of_data(file: BinaryIO) -> int:
    """Find the byte at which the last tensor ends; 0 for an unknown version of the format."""
    magic, version = struct.unpack("<4sI", file.read(8))
    if magic != MAGIC or version not in VERSIONS:
        return 0
    tensors, pairs = struct.unpack("<QQ", file.read(16))
    alignment = ALIGNMENT
    for _ in range(_plausible(pairs)):
        key = _text(file)
        (kind,) = struct.unpack("<I", file.read(4))
        if key == b"general.alignment" and kind == 4:
            (alignment,) = struct.unpack("<I", file.read(4))
        else:
            _skip(file, kind)
    ends = []  # in bytes from the start of the data
    for _ in range(_plausible(tensors)):
        _text(file)
        (dimensions,) = struct.unpack("<I", file.read(4))
        shape = struct.unpack(f"<{_plausible(dimensions)}Q", file.read(8 * dimensions))
        kind, offset = struct.unpack("<IQ", file.read(12))
        ends.append(int(offset) + _bytes(kind, math.prod(shape)))
    start = math.ceil(file.tell() / max(alignment, 1)) * alignment
    return start + max(ends) if ends else file.tell()


def _bytes(kind: int, elements: int) -> int:
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError:  # which loading says, and what to install
        return 0
    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except ValueError:  # a type newer than the library, which loading says
        return 0
    return int(elements // block * size)


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == STRING:
        _text(file)
    elif kind == ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in SCALAR_BYTES:
            file.seek(SCALAR_BYTES[inner] * _plausible(count), 1)
            return
        for _ in range(_plausible(count)):
            _skip(file, inner)
    else:
        file.seek(SCALAR_BYTES[kind], 1)


def _text(file: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", file.read(8))
    text = file.read(_plausible(length))
    if len(text) < length:
        raise ValueError("the file ends within a text")
    return text


def _plausible(count: int) -> int:
    if count > PLAUSIBLE:
        raise ValueError(f"a count of {count} makes no sense")
    return count
