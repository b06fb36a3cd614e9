"""The records of finished runs: the one reader of `run.json` (`experiment.run_record` writes it).

A record may be an older version's or changed by hand: values that are absent or of another type are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError, did_you_mean
from afarm.storage.disk import decode_json
from afarm.storage.names import require_plain_names

RECORD = "run.json"
"""The record of a run, in its directory."""
METRICS = "metrics.jsonl"
"""What the stages of a run logged, beside its record."""

OUTPUTS = "outputs.jsonl"
"""The pairs of a run's main comparison, beside its record."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """An evaluator's metrics of `system` against `reference`, with red flags and protocol.

    `needs` are the evaluator's, None in a record that does not say.
    """

    system: str
    reference: str
    evaluator: str
    metrics: Mapping[str, Any]
    red_flags: Mapping[str, Any]
    protocol: Mapping[str, Any]
    needs: tuple[str, ...] | None = None


class RunRecord(dict[str, Any]):
    """The record of the run in `directory`: the contents of `run.json`, and its typed parts."""

    def __init__(self, directory: Path, values: Mapping[str, Any]):
        super().__init__(values)
        self.directory = directory

    @property
    def name(self) -> str:
        return str(self.get("name") or self.directory.resolve().name)

    def section(self, name: str) -> Mapping[str, Any]:
        """The mapping under `name`; empty if there is none."""
        return _mapping(self.get(name))

    def rows(self, name: str) -> list[Any]:
        """The list under `name`; empty if there is none."""
        value = self.get(name)
        return value if isinstance(value, list) else []

    def require_results(self) -> None:
        """Raise `DataError` if the record has no list of results."""
        if not isinstance(self.get("results"), list):
            path = self.directory / RECORD
            raise DataError(f"{path}: is no record of a run; the command that made it writes it afresh")

    @property
    def results(self) -> list[RunResult]:
        """The results that have metrics, the main evaluation first."""
        return [
            RunResult(
                str(row.get("system") or ""),
                str(row.get("reference") or ""),
                str(row.get("evaluator") or ""),
                row["metrics"],
                _mapping(row.get("red_flags")),
                _mapping(row.get("protocol")),
                tuple(map(str, row["needs"])) if isinstance(row.get("needs"), list) else None,
            )
            for row in self.rows("results")
            if isinstance(row, Mapping) and isinstance(row.get("metrics"), Mapping)
        ]

    @property
    def stages(self) -> list[Mapping[str, Any]]:
        return [stage for stage in self.rows("stages") if isinstance(stage, Mapping)]

    def stage(self, label: str) -> Mapping[str, Any] | None:
        """The stage of that label; None if the run had none."""
        return next((stage for stage in self.stages if stage.get("stage") == label), None)

    @property
    def artifacts(self) -> set[str]:
        """The names of the run's artifacts. Raises `DataError` if one has none."""
        if not isinstance(self.get("stages"), list):
            raise DataError('there is no list of "stages"')
        for number, stage in enumerate(self["stages"], start=1):
            if not isinstance(stage, Mapping) or not {"kind", "key"} <= stage.keys():
                raise DataError(f'entry {number} of "stages" has no "kind" and "key"')
        return {f"{stage['kind']}/{stage['key']}" for stage in self["stages"]}


def read_run(directory: Path) -> RunRecord:
    """Read the record of a run, whose names are plain: of the run, and of its stages' kinds and keys.

    Raises `DataError` naming the file if it cannot be read, or a name in it leads elsewhere.
    """
    for path in (directory / METRICS, directory / OUTPUTS, directory / RECORD):
        if path.exists() and not path.is_file():  # opened, a named pipe would never answer
            raise DataError(f"{path}: is no file; delete it, then the command that made it writes it afresh")
    try:
        values = decode_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{path}: no run to report on ({error.strerror}); give the directory of a run, `afarm run` makes one"
        ) from error
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error}); the command that made it writes it afresh") from error
    if not isinstance(values, dict):
        what = f"is no record of a run: it must hold a JSON object, not {type(values).__name__}"
        raise DataError(f"{path}: {what}; the command that made it writes it afresh")
    record = RunRecord(directory, values)
    named = {'"name"': record.get("name")}
    for number, stage in enumerate(record.stages, start=1):
        named |= {f'{field!r} of entry {number} of "stages"': stage.get(field) for field in ("kind", "key")}
    require_plain_names(path, {field: name for field, name in named.items() if name is not None})
    return record


def is_simulated(record: Mapping[str, Any]) -> bool:
    """Tell if a judge of the run is a formula, no language model."""
    return bool(simulated_judges(record))


def simulated_judges(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the run's judges that are formulas, such as "offline", each once."""
    judges = record.get("judges")
    rows = [_mapping(judge) for judge in judges] if isinstance(judges, list) else []
    names = [str(row.get("identity") or "").partition(":")[0] for row in rows if row.get("simulated")]
    return list(dict.fromkeys(names))


def run_directories(runs: Path) -> list[Path]:
    """The directories of the finished runs in `runs`, by name."""
    return sorted(record.parent for record in runs.glob(f"*/{RECORD}"))


def latest_run(runs: Path) -> Path | None:
    return max(run_directories(runs), key=lambda run: (run / RECORD).stat().st_mtime, default=None)


def find_run(name: str, output_dir: Path) -> Path:
    """Find a run's directory by its name, or what it alone begins with, or its place. Raises `DataError`."""
    runs = output_dir / "runs"
    for path in (Path(name), runs / name):
        directory = path.parent if path.name == RECORD else path
        if (directory / RECORD).is_file():
            return directory
    names = [run.name for run in run_directories(runs)]
    if len(begun := [known for known in names if name and known.startswith(name)]) == 1:
        return runs / begun[0]
    near = did_you_mean(name, names) if names else " `afarm run` makes one"
    raise DataError(f"no run {name!r}, neither here nor in {runs} (--output-dir).{near}")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
