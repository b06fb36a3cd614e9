"""The editions of the toy world, frozen: files that differ from what was compared with are refused.

An edition is described by `world<N>.json`: the digest of its language (`fingerprint.py`) and of each file of its base
model. The code holds the digest of that file.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from afarm import DataError

HERE = Path(__file__).parent
EDITIONS: dict[int, str] = {
    2: "8913f868659924e6e4582fcdad4490cfd6adb8186472ba023e69d3dc78e3de8c",
}
"""The sha256 of `world<N>.json`, by edition."""


def description(edition: int) -> Path:
    """Return the file that describes an edition."""
    return HERE / f"world{edition}.json"


def base_directory(edition: int) -> Path:
    """Return the directory of an edition's base model."""
    return HERE / f"base{edition}"


def require_frozen(edition: int) -> None:
    """Compare an edition's files with their digests, once per process.

    Raises `DataError` naming the file that is missing or another than the frozen one, and what to do.
    """
    _require(edition, HERE)


@cache
def _require(edition: int, folder: Path) -> None:
    file = folder / f"world{edition}.json"
    _compare(file, EDITIONS[edition], edition)
    for name, digest in json.loads(file.read_text(encoding="utf-8"))["base"].items():
        _compare(folder / f"base{edition}" / name, digest, edition)


def _compare(file: Path, expected: str, edition: int) -> None:
    try:
        digest = sha256(file)
    except OSError as error:
        raise DataError(
            f"toy world {edition}: {file} cannot be read ({error.strerror}); install afarm again "
            "(pip install --force-reinstall --no-deps)"
        ) from error
    if digest != expected:
        raise DataError(
            f"toy world {edition}: {file} is not the frozen file: its sha256 is {digest[:12]}…, not {expected[:12]}…, "
            "so its figures could not be compared with anyone's. Install afarm again (pip install --force-reinstall "
            "--no-deps); a base model of your own goes to another directory, with --model DIR"
        )


def sha256(file: Path) -> str:
    """Digest a file's content by sha256, in hexadecimal. Raises `OSError`."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
