"""The Hub's `.eval_results/*.yaml`: a model's figures on the data sets of benchmarks.

The form is that of huggingface_hub's `parse_eval_result_entries` (huggingface.co/docs/hub/eval-results).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from afarm import ConfigError, DataError, Row, did_you_mean, read_user_yaml
from afarm.results import finite_number
from afarm_interchange.places import is_repository
from afarm_interchange.systems import Figure, System

FOLDER = ".eval_results"
KNOWN = {"dataset", "value", "verifyToken", "date", "source", "evaluation_framework", "notes"}
OF_DATASET = {"id", "task_id", "revision", "config", "split"}
OF_SOURCE = {"url", "name", "user", "org"}
TASK = re.compile(r"[\w.:/ -]{1,100}")


def choose_figure(system: System, name: str | None) -> Figure:
    """Return a figure of the main evaluation, the first unless one is named. Raises `ConfigError`."""
    figures = {figure.name: figure for figure in system.evaluations[0].figures}
    if name is None:
        return next(iter(figures.values()))
    if name not in figures:
        raise ConfigError([f"--figure {name}: {system.name} has {', '.join(figures)}.{did_you_mean(name, figures)}"])
    return figures[name]


def entry_text(system: System, figure: Figure, dataset: str, task: str, url: str = "") -> str:
    """Return the text of a file with one figure.

    Its notes say who judged, against what, and how sure it is. Raises `ConfigError` for a wrong task or address.
    """
    if not TASK.fullmatch(task):
        raise ConfigError([f"--task {task!r}: must be the id of a task in the data set's eval.yaml"])
    evaluation = system.evaluations[0]
    n = f"n={figure.n}" if figure.n is not None else ""
    said = [
        f"{figure.name}, percent", evaluation.name, f"judged by {evaluation.judged_by}", figure.interval, n,
        "afarm",
    ]  # fmt: skip
    entry: dict[str, Any] = {"dataset": {"id": dataset, "task_id": task}, "value": round(figure.value, 4)}
    if system.date:
        entry["date"] = system.date
    if url:
        if not re.match(r"https?://\S+$", url):
            raise ConfigError([f"--source-url {url!r}: must be an address that begins with https://"])
        entry["source"] = {"url": url}
    entry["notes"] = ", ".join(" ".join(part.split()) for part in said if part)
    return yaml.safe_dump([entry], sort_keys=False, allow_unicode=True, width=1000)


def read_entries(path: Path) -> Iterator[Row]:
    """Yield a row for each result of a file: dataset, task, value, date, source, notes, signed.

    Raises `DataError` naming the entry and the field that is missing, unknown or wrong, and `ConfigError` for a file
    that is no YAML or too large.
    """
    entries = read_user_yaml(path)
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path}: must be a list of results, each with a dataset and a value")
    for number, entry in enumerate(entries):
        place = f"{path}: entry {number}"
        _require_known(entry, KNOWN, place)
        dataset = entry.get("dataset")
        _require_known(dataset, OF_DATASET, f"{place}, dataset")
        if not isinstance(dataset.get("id"), str) or not is_repository(dataset["id"]):
            raise DataError(f"{place}: dataset.id must be OWNER/NAME on the Hub, not {dataset.get('id')!r}")
        if not isinstance(dataset.get("task_id"), str):
            raise DataError(f"{place}: dataset.task_id must be the id of a task, not {dataset.get('task_id')!r}")
        value = finite_number(entry.get("value"))
        if value is None:
            raise DataError(f"{place}: value must be a finite number, not {entry.get('value')!r}")
        source = entry.get("source")
        if source is not None:
            _require_known(source, OF_SOURCE, f"{place}, source")
            if not _text(source, "url", f"{place}, source"):
                raise DataError(f"{place}: its source has no url, which the Hub asks for")
        yield {
            "dataset": dataset["id"],
            "task": dataset["task_id"],
            "value": value,
            "date": _date(entry, place),
            "source": _text(source or {}, "url", place),
            "notes": _text(entry, "notes", place),
            "signed": "yes, not checked here" if entry.get("verifyToken") else "",
        }


def _require_known(row: object, names: set[str], where: str) -> None:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: must be a mapping, not {type(row).__name__}")
    if unknown := [name for name in row if name not in names]:
        raise DataError(
            f"{where}: field {str(unknown[0])!r} is unknown; the Hub's form has {', '.join(sorted(names))}."
            f"{did_you_mean(str(unknown[0]), names)}"
        )


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    """Return a field's text, empty if there is none. Raises `DataError` if it is something else."""
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}: {name} must be a text, not {type(value).__name__}")
    return value or ""


def _date(entry: Mapping[str, Any], where: str) -> str:
    if text := _text(entry, "date", where):
        try:
            datetime.fromisoformat(text)
        except ValueError as error:
            raise DataError(f"{where}: date must be as 2026-11-29 or 2026-11-29T07:45:00Z, not {text!r}") from error
    return text
