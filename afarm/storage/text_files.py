"""Text files, plain or gzipped whatever they are called, as UTF-8 with or without a byte order mark."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from afarm.core.errors import DataError

GZIP = b"\x1f\x8b"
"""The bytes that every gzip file begins with."""


@contextmanager
def open_text(path: Path, place: Callable[[], str], newline: str | None = None) -> Iterator[IO[str]]:
    """Open a text file; problems until it is closed raise `DataError`, naming the `place` reached."""
    try:
        with path.open("rb") as file:
            opened: Any = gzip.open if file.read(len(GZIP)) == GZIP else open
        with opened(path, "rt", encoding="utf-8-sig", newline=newline) as handle:
            yield handle
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{path}: {place()}: its gzip is damaged or cut short ({error}); copy it anew") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: line {_undecodable_line(path, opened)}: no UTF-8 text: save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _undecodable_line(path: Path, opened: Callable[..., IO[bytes]]) -> int:
    """Return the line, counted from 1, of the first byte that is no UTF-8: readers are ahead."""
    number = 1
    with suppress(UnicodeDecodeError), opened(path, "rb") as handle:
        for line in handle:
            line.decode("utf-8")
            number += 1
    return number
