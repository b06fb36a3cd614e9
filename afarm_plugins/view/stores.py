"""Artifacts and what made them, the ledger's accounts, boards and studies of output directories."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from afarm import AfarmError, Row
from afarm.results import (
    GROUPS,
    Ledger,
    Place,
    Store,
    accounts,
    finite_number,
    open_items,
    open_ledger,
    read_metadata,
    redact_place,
    unanswered,
)
from afarm_plugins.view.sources import CLOSED, SeenRun, is_closed
from afarm_plugins.view.values import mapping, only_texts, text

SHOWN_FILES = {
    ".md": "text/plain",
    ".json": "text/plain",
    ".csv": "text/plain",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
"""Files of boards and studies that are shown, and as what."""


STUDY_PAGE = "report.md"
"""The page of a study or curve, which begins with its command."""

_RECORD_OF_STUDY = "study.json"

_SUMMARY = re.compile(r'<script type="application/json" id="summary">(.*?)</script>', re.DOTALL)
"""What a page leads with: its answer, its first table and its first plot."""


def ledger_accounts(place: Place, runs: Iterable[SeenRun] = ()) -> Row:
    """Spend by account, run (of `runs`, newest first), judge, annotator and day; a problem if unreadable."""
    about: Row = {"place": redact_place(place), "problem": "", "by": {}, "missing": False}
    try:
        with open_ledger(place) as ledger:
            if ledger is None:
                return {**about, "missing": True}
            by = {group: [asdict(account) for account in accounts(ledger, group)] for group in GROUPS}
            by["account"] = by.pop("run")  # a run's, or that of a study with all its runs
            by["run"] = bought_by_runs(ledger, runs)
            return {**about, "by": by, **open_items(ledger), "unanswered": unanswered(ledger)}
    except AfarmError as error:
        return {**about, "problem": str(error)}


def bought_by_runs(ledger: Ledger, runs: Iterable[SeenRun]) -> list[Row]:
    """Sum up runs' stages, the dearest run first; shared stages count with the oldest, lost ones apart."""
    owners: dict[str, SeenRun] = {}
    for run in runs:
        about = run.record or run.about
        made = [f"{stage.get('kind')}/{stage.get('key')}" for stage in about.stages]
        owners |= dict.fromkeys([*made, text(about.get("artifact"))], run)  # that of a run's stage at work too
    names = ("answers", "input_tokens", "output_tokens", "dollars", "unpriced")
    found: dict[str, Row] = {}
    for stage, *spent in ledger.read(
        "SELECT stage, calls, input_tokens, output_tokens, dollars, unpriced_calls FROM stage_spend ORDER BY stage"
    ):
        owner = owners.get(stage)
        whose = {"id": owner.id, "name": owner.name} if owner else {"id": "", "name": ""}
        row = found.setdefault(whose["id"], {**whose, **dict.fromkeys(names, 0)})
        for name, value in zip(names, spent, strict=True):
            row[name] += value or 0
    return sorted(found.values(), key=lambda row: (-row["dollars"], -row["answers"], row["name"]))


def artifact_rows(output_dir: Path, runs: Iterable[SeenRun]) -> list[Row]:
    """Every artifact with its age, time, cost and size, what it was made from, and the runs that use it."""
    used, made_from = _uses(run for run in runs if run.output_dir == output_dir)
    store = Store(output_dir)
    found = []
    try:
        stages = store.stages()
        found += [{**_unknown(stage), "problem": CLOSED} for stage in stages if is_closed(store.artifacts / stage)]
        names = [(stage, key) for stage in stages for key in store.keys(stage) if key]
        partials = store.partials()
    except OSError:
        return []
    for stage, key in names:
        name = f"{stage}/{key}"
        row = _unknown(name)
        row |= {"runs": sorted(used.get(name, ())), "inputs": sorted(made_from.get(name, ()))}
        try:
            meta = read_metadata(store.artifacts / stage / key)
            row |= {
                "label": meta["label"],
                "created": meta["created"],
                "seconds": meta["seconds"],
                "dollars": finite_number(meta["spend"].get("dollars")),
                "calls": finite_number(meta["spend"].get("calls")),
                "bytes": sum(file["size"] for file in meta["files"].values()),
            }
        except (OSError, ValueError) as error:
            row["problem"] = f"damaged or going: {error}"
        found.append(row)
    found += [
        {**_unknown(f"{path.parent.name}/{path.name.removesuffix('.partial')}"), "partial": True} for path in partials
    ]
    return sorted(found, key=lambda row: -(row["created"] or 0.0))


def _unknown(name: str) -> Row:
    """The row of an artifact of which nothing but the name is known."""
    stage, _, key = name.partition("/")
    unknown: Row = dict.fromkeys(("created", "seconds", "dollars", "calls", "bytes"))
    return {
        "name": name,
        "stage": stage,
        "key": key,
        "label": "",
        "runs": [],
        "inputs": [],
        "problem": "",
        "partial": False,
        **unknown,
    }


def _uses(runs: Iterable[SeenRun]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """By artifact: the ids of the runs that use it, and the artifacts that it was made from."""
    used: dict[str, set[str]] = {}
    made_from: dict[str, set[str]] = {}
    for run in runs:
        stages = run.record.stages
        names = {text(stage.get("stage")): f"{stage.get('kind')}/{stage.get('key')}" for stage in stages}
        for stage in stages:
            name = names[text(stage.get("stage"))]
            used.setdefault(name, set()).add(run.id)
            made_from.setdefault(name, set()).update(names[i] for i in only_texts(stage.get("inputs")) if i in names)
    return used, made_from


def documents(output_dirs: Iterable[Path]) -> dict[str, Path]:
    """The files of boards and studies, by the address that the view gives them."""
    found: dict[str, Path] = {}
    for number, output_dir in enumerate(output_dirs):
        for folder in ("boards", "studies"):
            try:
                paths = sorted((output_dir / folder).glob("*" if folder == "boards" else "*/*"))
            except OSError:
                continue
            for path in paths:
                if path.suffix in SHOWN_FILES and path.is_file() and not path.is_symlink():
                    found[f"{number}/{path.relative_to(output_dir).as_posix()}"] = path
    return found


def read_command(path: Path) -> str:
    """Read the command that made a board, study or curve from its JSON or page; empty if not recorded."""
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return text(mapping(json.loads(content)).get("command"))
    except (OSError, ValueError, RecursionError):  # being written, or no file of afarm's
        return ""
    line = next((line for line in content.splitlines()[:4] if line.startswith("`")), "")
    command = line.strip("`").strip()
    return "" if command.endswith("…") else command


@lru_cache(maxsize=256)
def _read_summary(path: Path, signature: tuple[int, int]) -> Row:
    """Read what a page of a board or study leads with; empty if it has none."""
    try:
        if found := _SUMMARY.search(path.read_text(encoding="utf-8")):
            return dict(mapping(json.loads(found[1])))
    except (OSError, ValueError, RecursionError):
        pass
    return {}


def document_rows(output_dirs: Iterable[Path]) -> dict[str, list[Row]]:
    """Boards and studies with their files, each with its address, the newest first."""
    groups: dict[str, dict[str, Row]] = {"boards": {}, "studies": {}}
    for address, path in documents(output_dirs).items():
        _, folder, *_ = address.split("/")
        name = path.stem if folder == "boards" else path.parent.name
        try:
            status = path.stat()
        except OSError:
            continue
        new = {"name": name, "changed": 0.0, "files": [], "command": "", "summary": {}}
        row = groups[folder].setdefault(f"{address.split('/')[0]}/{name}", new)
        row["changed"] = max(row["changed"], status.st_mtime)
        if path.suffix == ".html":
            row["summary"] = _read_summary(path, (status.st_mtime_ns, status.st_size)) or row["summary"]
        if path.name in (STUDY_PAGE, _RECORD_OF_STUDY) or (folder == "boards" and path.suffix == ".json"):
            row["command"] = read_command(path) or row["command"]
        row["files"].append({"name": path.name, "address": address})
    return {folder: sorted(found.values(), key=lambda row: -row["changed"]) for folder, found in groups.items()}
