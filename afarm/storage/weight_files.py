"""Checks that weight files are whole, by their headers, which say where each tensor lies.

Checked before anything runs, and before loading fails with an error that names no file. GGUF's header (ggml's
specification) is read here: the library takes seconds for it, as it makes objects of each word of the vocabulary.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

from afarm.core.errors import ModelError
from afarm.storage.disk import decode_json
from afarm.storage.names import is_plain_name

GGUF = b"GGUF"
"""The bytes that every GGUF file begins with."""
GGUF_VERSIONS = (2, 3)
ALIGNMENT = 32
"""Bytes to which the tensors' data are aligned, if the file does not say."""
UINT32, STRING, ARRAY = 4, 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, UINT32: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes per value of each type but texts and arrays."""


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
        with path.open("rb") as file:
            end = _end_of_tensors(file)
    except Exception as error:  # whatever a damaged header leads to
        raise damaged_gguf(path) from error
    if end > (size := path.stat().st_size):
        raise damaged_gguf(path, f" (it has {size:,} bytes of at least {end:,})")


def damaged_gguf(path: Path, how: str = "") -> ModelError:
    """Make the error for a GGUF file that cannot be read."""
    return ModelError(f"model '{path}' is truncated or damaged{how}: download it again, or check --model")


def plain_gguf_reader() -> Any:
    """Return gguf's reader over a plain array: each slice of its memmap costs ten of an array's."""
    import gguf
    import numpy as np

    data = property(lambda self: vars(self)["data"], lambda self, mapped: vars(self).update(data=np.asarray(mapped)))
    return type("GGUFReader", (gguf.GGUFReader,), {"data": data})


def _end_of_tensors(file: BinaryIO) -> int:
    """Find the byte at which the last tensor of a GGUF file ends; 0 for an unknown version of the format."""

    def read(form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))

    def skip(kind: int, count: int = 1) -> None:
        if kind in SCALAR_BYTES:
            file.seek(SCALAR_BYTES[kind] * count, 1)
            return
        if kind not in (STRING, ARRAY):
            raise ValueError(f"no type of values: {kind}")
        for _ in range(count):
            if kind == ARRAY:
                skip(*read("IQ"))
            else:
                file.seek(read("Q")[0], 1)

    version, tensors, pairs = read("4xIQQ")
    if version not in GGUF_VERSIONS:
        return 0
    alignment = ALIGNMENT
    for _ in range(pairs):
        key = file.read(read("Q")[0])
        [kind] = read("I")
        if key == b"general.alignment" and kind == UINT32:
            [alignment] = read("I")
        else:
            skip(kind)
    ends = []  # in bytes from the start of the data
    for _ in range(tensors):
        skip(STRING)
        [dimensions] = read("I")
        shape = read(f"{dimensions}Q")
        kind, offset = read("IQ")
        ends.append(offset + _tensor_bytes(kind, math.prod(shape)))
    start = math.ceil(file.tell() / max(alignment, 1)) * alignment
    return start + max(ends) if ends else file.tell()


def _tensor_bytes(kind: int, elements: int) -> int:
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ImportError, ValueError):  # no library, or a type that is newer than it: loading says so
        return 0
    return int(elements // block * size)
