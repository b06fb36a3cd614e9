"""Profiles of the annotators of a run's labels, and the probes of judges for drift."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from os.path import isfile, islink
from pathlib import Path

from afarm import AfarmError, DataError, Estimate, Row, compare_annotators, read_labels, with_prices
from afarm.report import COLUMNS, PREFERENCES
from afarm.results import OUTPUTS, Place, open_ledger, read_drift_log
from afarm_plugins.view.commands import place_words, quote_command
from afarm_plugins.view.run_table import write_run_command
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.values import signature, text

PREFERENCES_FILE = "preferences.jsonl"
"""The labels in an artifact of `annotate`."""

MOST_BYTES = 64 << 20
"""The largest file of labels that is looked at for a page: the command looks at any."""


def describe_labels(runs: Iterable[SeenRun]) -> list[Row]:
    """List the files of labels: each run's evaluation, and the training labels that runs share."""
    found: dict[Path, Row] = {}
    for run in runs:
        for use, path in label_files(run).items():
            row = {
                "run": run.id,
                "use": use,
                "name": run.name,
                "method": text(run.about.get("method")),
                "judged_by": text(run.record.get("judged_by")),
                "shared_by": 0,
                "command": _command(run, path),
            }
            found.setdefault(path, row)["shared_by"] += 1
    return list(found.values())


def label_files(run: SeenRun) -> dict[str, Path]:
    """The files of a finished run's labels that are there, by what they are for."""
    files, labels = {"evaluation": run.directory / OUTPUTS}, run.output_dir / "artifacts" / "annotate"
    for stage in run.record.stages:
        if stage.get("kind") == "annotate":
            files["training"] = labels / text(stage.get("key")) / PREFERENCES_FILE
    return {use: path for use, path in files.items() if isfile(path) and not islink(path)}


def _command(run: SeenRun, path: Path) -> str:
    return write_run_command(run, "annotators", "compare", str(path), "--by-member")


def describe_run_annotators(run: SeenRun, use: str, ledger: Place) -> Row:
    """Describe the members' estimates. Raises `DataError` without labels, or with too many for a page."""
    path = label_files(run).get(use)
    if path is None:
        raise DataError(f"{run.name}: has no {use} labels")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise DataError(f"{path} is too large for a page ({size / 1e6:,.0f} MB): {_command(run, path)}")
    return {**_profiles(path, signature(path), str(ledger)), "command": _command(run, path)}


@lru_cache(maxsize=16)
def _profiles(path: Path, state: object, ledger: str) -> Row:
    labels = read_labels([path], by_member=True)
    try:
        with open_ledger(ledger) as opened:
            labels = labels if opened is None else with_prices(labels, opened.completions)
    except AfarmError:
        pass  # prices alone come from there
    profiles = compare_annotators(labels).profiles
    shown = [
        {"name": name, "title": title, "places": places, "preference": name in PREFERENCES}
        for name, title, places in COLUMNS
        if any(getattr(profile, name) is not None for profile in profiles)
    ]
    rows = [
        {
            "annotator": profile.annotator,
            "pairs": profile.pairs,
            "labels": profile.labels,
            **{
                str(column["name"]): asdict(estimate) if isinstance(estimate, Estimate) else None
                for column in shown
                for estimate in [getattr(profile, str(column["name"]))]
            },
        }
        for profile in profiles
    ]
    return {"columns": shown, "rows": rows}


def describe_drift(output_dirs: Sequence[Path], ledger: Place | None = None) -> list[Row]:
    """Describe the probes of each output directory, the newest first; why they cannot be read, if so."""
    found: list[Row] = []
    for place in output_dirs:
        probes, problem = [], ""
        try:
            probes = read_drift_log(place)[::-1]
        except (AfarmError, OSError) as error:
            problem = str(error)
        command = quote_command("drift", "RUN", *place_words(place, ledger))
        found.append({"output_dir": str(place), "probes": probes, "problem": problem, "command": command})
    return found
