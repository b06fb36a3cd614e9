"""Contents of a bundle: records, outputs, labels, answers and versions. No weights, no keys."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from afarm import DataError, JudgingStudy, RunRecord, read_rows, read_run
from afarm.experiments import STUDY, discover, read_study_record
from afarm.results import META, METRICS, OUTPUTS, RECORD, Ledger, holds_key
from afarm_plugins.bundles.ledger_slice import slice_ledger
from afarm_plugins.bundles.stored_answers import judge_again

KINDS = ("outputs", "answers", "annotate", "preferences", "evaluate")
"""The artifacts that hold texts and figures; the others hold weights."""

LABELS = ("judgements.jsonl", "preferences.jsonl")
PAGE = "report.html"
REQUIREMENTS = "requirements.txt"
ANSWERS, JUDGEMENTS = "ledger/answers.jsonl", "ledger/judgements.jsonl"
INPUTS = "inputs"

MADE_AGAIN = (".md", ".csv", ".tex", ".html", ".yaml", ".json", ".jsonl", ".txt")
"""The files of a study that a replay makes again; pictures are Matplotlib's, and differ by its version."""


@dataclass(slots=True)
class Contents:
    """The files of a bundle by their names, and what it is about."""

    about: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)


def pack_run(output_dir: Path, record: RunRecord, ledger: Ledger | None) -> Contents:
    """Collect a run: its record, page, outputs, labels and the answers behind them."""
    contents = Contents({"kind": "run", "name": record.name, **_versions()})
    keys = set(_add_run(contents, output_dir, record))
    _add_ledger(contents, ledger, keys)
    return contents


def pack_study(output_dir: Path, directory: Path, ledger: Ledger | None) -> Contents:
    """Collect a study: its record, tables and plots, the files that it read, and all of its runs.

    Raises `DataError` if there is no record of the study, or a run of it is gone.
    """
    record = read_study_record(directory)
    contents = Contents({"kind": "study", "name": directory.name, **_versions()})
    for path in sorted(directory.iterdir()):
        if path.suffix in MADE_AGAIN and path.is_file() and not path.is_symlink():
            contents.files[f"studies/{directory.name}/{path.name}"] = path.read_bytes()
    component = discover(check_configs=False).get("studies", record.name)
    made = component.load()
    settings, inputs = with_inputs_packed({k: v for k, v in record.settings.items() if k not in made.never_opened})
    contents.files |= inputs
    raw = json.loads((directory / STUDY).read_text(encoding="utf-8"))
    contents.files[f"studies/{directory.name}/{STUDY}"] = _json({**raw, "settings": {**record.settings, **settings}})
    keys: set[str] = set()
    for name in dict.fromkeys(record.records.values()):
        keys |= set(_add_run(contents, output_dir, read_run(output_dir / "runs" / name)))
    if issubclass(made, JudgingStudy) and ledger is not None:
        with tempfile.TemporaryDirectory(prefix="afarm-bundle-") as scratch:
            keys |= judge_again(made(component.settings(record.settings)), record, Path(scratch), ledger)[0]
    _add_ledger(contents, ledger, keys)
    return contents


def with_inputs_packed(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Move the files that settings name (FILE or NAME=FILE) into the bundle. Returns both."""
    files: dict[str, bytes] = {}

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(one) for one in value]
        if not isinstance(value, str):
            return value
        head, equals, tail = value.partition("=")
        named, prefix = (tail, f"{head}=") if equals and not Path(value).exists() else (value, "")
        path = Path(named).expanduser()
        if not named or not path.is_file():
            return value
        name = f"{INPUTS}/{len(files)}/{path.name}"
        files[name] = path.read_bytes()
        return f"{prefix}{name}"

    return {name: moved(value) for name, value in settings.items()}, files


def _add_run(contents: Contents, output_dir: Path, record: RunRecord) -> Iterator[str]:
    """Add a run's files, and yield the keys of the answers behind its labels."""
    for name in (RECORD, METRICS, OUTPUTS, PAGE):
        path = record.directory / name
        if path.is_file() and not path.is_symlink():  # a link may lead to any file of the user's
            contents.files[f"runs/{record.name}/{name}"] = path.read_bytes()
    for stage in record.stages:
        if stage.get("kind") not in KINDS:
            continue
        directory = output_dir / "artifacts" / str(stage["kind"]) / str(stage.get("key"))
        if not (directory / META).is_file():
            raise DataError(f"{directory}: an artifact of run {record.name!r} is gone; the same `afarm run` makes it")
        for path in sorted(directory.iterdir()):
            if path.is_file() and not path.is_symlink():
                contents.files[f"artifacts/{directory.parent.name}/{directory.name}/{path.name}"] = path.read_bytes()
            if path.name in LABELS:
                yield from answer_keys(path)


def answer_keys(path: Path) -> Iterator[str]:
    """Yield the keys of the answers that labels were read from."""
    for row in read_rows(path):
        yield from filter(None, str(row.get("completion") or "").split(","))


def _add_ledger(contents: Contents, ledger: Ledger | None, keys: Collection[str]) -> None:
    if ledger is None and keys:
        raise DataError("the labels were read from a ledger that is not there: name it with --ledger")
    answers, judgements = slice_ledger(ledger, keys) if ledger else (b"", b"")
    contents.files |= {ANSWERS: answers, JUDGEMENTS: judgements, REQUIREMENTS: _requirements()}


def require_no_secret(contents: Contents, secrets: Iterable[str]) -> None:
    """Raise `DataError` naming a file that holds one of `secrets`, or what looks like a vendor's key."""
    known = [secret.encode() for secret in secrets if len(secret) >= 8]
    for name, data in contents.files.items():
        if any(secret in data for secret in known) or holds_key(data.decode("utf-8", "replace")):
            raise DataError(
                f"{name} holds what looks like a key: nothing was written. Take it out of that file (and change the "
                "key, if it was shown to anybody), then bundle again"
            )


def _versions() -> dict[str, Any]:
    return {"afarm": importlib.metadata.version("afarm")}


def _requirements() -> bytes:
    """List every installed distribution with its version."""
    found = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    return "".join(
        f"{name}=={version}\n" for name, version in sorted(found.items(), key=lambda x: x[0].lower())
    ).encode()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
