"""Metadata of artifacts, read and validated in one place: who has them needs no further check."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from afarm.core.seeding import digest
from afarm.storage.contents import META, other_than


class RecordedFile(BaseModel):
    """A file's size in bytes, the times of its last changes in nanoseconds, and the digest of its bytes."""

    model_config = ConfigDict(strict=True)

    size: int
    modified: int
    changed: int
    sha256: str


class Metadata(BaseModel):
    """The fields of `artifact.json`; `created` is in Unix seconds, `seconds` a duration."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, defer_build=True)

    content: str
    key_fields: dict[str, Any]
    created: float
    seconds: float
    label: str
    files: dict[str, RecordedFile]
    spend: dict[str, float]
    summary: dict[str, Any]
    versions: dict[str, str]
    digest: str


def read_metadata(directory: Path) -> dict[str, Any]:
    """Read an artifact's metadata. Raises `FileNotFoundError`, `NotADirectoryError` or `ValueError`."""
    if what := other_than(directory / META, stat.S_IFREG):
        raise ValueError(f"it is {what}, and not opened")
    try:
        read = json.loads((directory / META).read_text(encoding="utf-8"))
        if not isinstance(read, dict):
            raise ValueError("it holds no object")
        Metadata.model_validate(read)
        if read["digest"] != metadata_digest(read):
            raise ValueError("it is not as it was written")
        return read
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def metadata_digest(metadata: Mapping[str, Any]) -> str:
    """Digest all that metadata say but for the times of files, which are renewed when a store is moved."""
    files = {name: file["sha256"] for name, file in metadata["files"].items()}
    return digest({**{name: value for name, value in metadata.items() if name != "digest"}, "files": files})
