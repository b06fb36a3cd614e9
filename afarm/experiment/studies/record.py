"""The record of a study, beside its page: its settings, its runs and their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import StringConstraints, TypeAdapter

from afarm.core.errors import DataError
from afarm.experiment.studies.progress import GridProgress
from afarm.experiment.studies.study import StudyRequest, StudyRun
from afarm.storage.disk import decode_json, write_json
from afarm.storage.names import require_plain_names

STUDY = "study.json"
"""The record of a study, in its directory."""

PICTURES = ("svg", "png", "pdf")
"""The formats of the files of plots."""


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study as asked for: its `settings`, the request, and `records`, those of its runs by label.

    `judging` are the settings of the run whose judges it asked itself, or whose data set it read; empty without.
    `facts` are what it looked up beside its runs, `formats` those of its plots' files.
    """

    name: str
    command: str
    settings: Mapping[str, Any]
    request: StudyRequest
    runs: Sequence[StudyRun] = ()
    records: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    judging: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    formats: Sequence[Annotated[str, StringConstraints(pattern=f"^({'|'.join(PICTURES)})$")]] = ()


def write_study_record(directory: Path, record: StudyRecord, progress: GridProgress) -> None:
    """Write the record of a study into its directory, with the runs that are there by now."""
    runs = [
        replace(run, place={k: v if isinstance(v, str | int | float) else str(v) for k, v in run.place.items()})
        for run in progress.runs
    ]
    records = {done.run.label: done.name for done in progress.finished}
    written = asdict(replace(record, runs=runs, records=records, failed=progress.failed))
    del written["request"]["output_dir"]
    write_json(directory / STUDY, written)


def read_study_record(directory: Path) -> StudyRecord:
    """Read the record in a study's directory. Raises `DataError` if there is none, or it is none of ours."""
    path = directory / STUDY
    try:
        record = TypeAdapter(StudyRecord).validate_python(decode_json(path.read_bytes()))
    except OSError as error:
        raise DataError(
            f"{path}: no record of a study ({error.strerror}); the same `afarm study` command writes it"
        ) from error
    except ValueError as error:  # pydantic's error is one
        raise DataError(f"{path}: is no record of a study; the same `afarm study` command writes it afresh") from error
    require_plain_names(path, {f"the record of {label!r}": name for label, name in record.records.items()})
    return record
