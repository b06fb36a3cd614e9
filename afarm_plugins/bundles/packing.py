"""Contents of a bundle: records, outputs, labels, answers and versions. No weights, no keys."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from afarm import DataError, JudgingStudy, RunRecord, read_rows, read_run
from afarm.experiments import STUDY, discover, read_study_record
from afarm.results import META, METRICS, OUTPUTS, RECORD, Ledger, holds_key
from afarm_plugins.bundles.stored_answers import judge_again, slice_ledger

KINDS = ("outputs", "answers", "annotate", "preferences", "feedback", "evaluate")
"""The artifacts that hold texts and figures; the others hold weights."""

LABELS = ("judgements.jsonl", "preferences.jsonl")
PAGE = "report.html"
REQUIREMENTS = "requirements.txt"
ANSWERS, JUDGEMENTS = "ledger/answers.jsonl", "ledger/judgements.jsonl"
INPUTS = "inputs"

MADE_AGAIN = (".md", ".csv", ".tex", ".html", ".yaml", ".json", ".jsonl", ".txt")
"""The files of a study that a replay makes again; pictures are Matplotlib's, and differ by its version."""


Files = dict[str, bytes]
"""The files of a bundle by their names in it."""


def pack_run(output_dir: Path, record: RunRecord, ledger: Ledger | None) -> Files:
    """Collect a run: its record, page, outputs, labels and the answers behind them."""
    files: Files = {}
    keys = set(_add_run(files, output_dir, record))
    return files | _ledger_files(ledger, keys)


def pack_study(output_dir: Path, directory: Path, ledger: Ledger | None) -> Files:
    """Collect a study: its record, tables and plots, the files that it read, and all of its runs.

    Raises `DataError` if there is no record of the study, or a run of it is gone.
    """
    record, study = read_study_record(directory), f"studies/{directory.name}"
    files = {f"{study}/{path.name}": path.read_bytes() for path in _plain_files(directory) if path.suffix in MADE_AGAIN}
    component = discover(check_configs=False).get("studies", record.name)
    made = component.load()
    settings, inputs = with_inputs_packed({k: v for k, v in record.settings.items() if k not in made.never_opened})
    files |= inputs
    whole = {**json.loads((directory / STUDY).read_bytes()), "settings": {**record.settings, **settings}}
    files[f"{study}/{STUDY}"] = (json.dumps(whole, indent=2, ensure_ascii=False) + "\n").encode()
    keys: set[str] = set()
    for name in dict.fromkeys(record.records.values()):
        keys |= set(_add_run(files, output_dir, read_run(output_dir / "runs" / name)))
    if issubclass(made, JudgingStudy) and ledger is not None:
        with tempfile.TemporaryDirectory(prefix="afarm-bundle-") as scratch:
            keys |= judge_again(made(component.settings(record.settings)), record, Path(scratch), ledger)[0]
    return files | _ledger_files(ledger, keys)


def with_inputs_packed(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Files]:
    """Move the files that settings name into the bundle. Returns both."""
    files: Files = {}

    def pack(named: str) -> str:
        path = Path(named).expanduser()
        if not named or not path.is_file():
            return named
        name = f"{INPUTS}/{len(files)}/{path.name}"
        files[name] = path.read_bytes()
        return name

    return {name: with_files_changed(value, pack) for name, value in settings.items()}, files


def with_files_changed(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to each file that a setting, or a list of settings, names as FILE or NAME=FILE."""
    if isinstance(value, list):
        return [with_files_changed(one, change) for one in value]
    if not isinstance(value, str):
        return value
    name, equals, file = value.partition("=")
    is_file = value.startswith(f"{INPUTS}/") or Path(value).exists()
    return f"{name}={change(file)}" if equals and not is_file else change(value)


def _plain_files(directory: Path) -> list[Path]:
    """List the files of a directory without links, which may lead to any file of the user's."""
    return sorted(path for path in directory.iterdir() if path.is_file() and not path.is_symlink())


def _add_run(files: Files, output_dir: Path, record: RunRecord) -> Iterator[str]:
    """Add a run's files, and yield the keys of the answers behind its labels."""
    for path in _plain_files(record.directory):
        if path.name in (RECORD, METRICS, OUTPUTS, PAGE):
            files[f"runs/{record.name}/{path.name}"] = path.read_bytes()
    for stage in record.stages:
        if stage.get("kind") not in KINDS:
            continue
        directory = output_dir / "artifacts" / str(stage["kind"]) / str(stage.get("key"))
        if not (directory / META).is_file():
            raise DataError(f"{directory}: an artifact of run {record.name!r} is gone; the same `afarm run` makes it")
        for path in _plain_files(directory):
            files[f"artifacts/{directory.parent.name}/{directory.name}/{path.name}"] = path.read_bytes()
            for row in read_rows(path) if path.name in LABELS else ():
                yield from filter(None, str(row.get("completion") or "").split(","))


def _ledger_files(ledger: Ledger | None, keys: Collection[str]) -> Files:
    """Return the answers with these keys, and the installed distributions with their versions."""
    if ledger is None and keys:
        raise DataError("the labels were read from a ledger that is not there: name it with --ledger")
    answers, judgements = slice_ledger(ledger, keys) if ledger else (b"", b"")
    about = (dist.metadata for dist in importlib.metadata.distributions())  # each look parses a file anew
    installed = {metadata["Name"]: metadata["Version"] for metadata in about}
    lines = [f"{name}=={installed[name]}\n" for name in sorted(installed, key=str.lower)]
    return {ANSWERS: answers, JUDGEMENTS: judgements, REQUIREMENTS: "".join(lines).encode()}


def require_no_secret(files: Files, secrets: Iterable[str]) -> None:
    """Raise `DataError` naming a file that holds one of `secrets`, or what looks like a vendor's key."""
    known = [secret.encode() for secret in secrets if len(secret) >= 8]
    for name, data in files.items():
        if any(secret in data for secret in known) or holds_key(data.decode("utf-8", "replace")):
            raise DataError(
                f"{name} holds what looks like a key: nothing was written. Take it out of that file (and change the "
                "key, if it was shown to anybody), then bundle again"
            )
