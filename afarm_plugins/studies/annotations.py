"""Files of annotations, read by system."""

from __future__ import annotations

from collections.abc import Iterator

from afarm import DataError, JudgedPair, read_annotations, stem


def read_systems(file: str) -> Iterator[tuple[str, JudgedPair]]:
    """Yield the comparisons of a file with the system whose output stands second.

    A system without a name has the file's. Raises `DataError` for a file without rows.
    """
    is_empty = True
    for _, _, judged in read_annotations(file):
        is_empty = False
        yield judged.pair.generator_2 or stem(file), judged
    if is_empty:
        raise DataError(f"{file}: has no rows")
