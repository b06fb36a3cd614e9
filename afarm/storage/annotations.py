"""Files of annotations: pairs that were judged, one a row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair, Row
from afarm.storage.label_scales import LabelReader
from afarm.storage.row_shapes import ANNOTATION, what_it_holds
from afarm.storage.rows import placed_rows

MOST_LOOKED_AT = 1_000
"""Files of a directory that are looked at for a hint."""


def read_annotations(source: Path | str, scale: str | None = None) -> Iterator[tuple[str, Row, JudgedPair]]:
    """Yield the rows of a file of annotations: the place for errors, the row as it is, the judged pair.

    `scale` is that of its labels, as `LabelReader` takes it. Raises `DataError` naming the place and the field of a row
    that is wrong, what the row looks like if it is no annotation, and, after the last row, if the labels can be read in
    two ways.
    """
    reader = LabelReader(source, scale)
    require_file_of_annotations(Path(source))
    for where, row in placed_rows(source):
        if lacking := next((name for name in ANNOTATION if name not in row), ""):
            shape = what_it_holds(row, str(source))
            raise DataError(f"{where}: field {lacking!r} is missing, so this is no annotation; {shape}")
        known = row if isinstance(row.get("order"), str) else {**row, "order": ""}  # others have numbers there
        yield where, row, reader.judged(known, where)
    reader.require_one_reading()


def require_file_of_annotations(path: Path) -> None:
    """Raise `DataError` naming what stands at `path` if it is a directory."""
    if not path.is_dir():
        return
    held = [str(file) for depth in ("*", "*/*") for file in islice(path.glob(f"{depth}.json*"), MOST_LOOKED_AT)]
    if (path / "configs.yaml").is_file() or (path / "config.yaml").is_file():
        means = f"an annotator's directory: afarm evaluate FILE --reference FILE --annotator alpaca_eval:{path}"
    elif (path / "run.json").is_file() or (path / "runs").is_dir():
        means = f"a directory of runs: afarm leaderboard {path}"
    elif held:
        likely = [file for file in held if "annotation" in Path(file).name] or held
        means = f"a directory: name its files of annotations, such as {min(likely)}"
    else:
        means = "a directory with no run and no file of annotations: name one that has either"
    raise DataError(f"{path}: is {means}")
