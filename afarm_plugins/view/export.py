"""The view as files for a web server: the same pages and scripts, with their data beside them.

What a server would answer to a query, the exported page of outputs finds itself in the columns of all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from afarm import AfarmError, Row, StoreError, member_family, storage_errors
from afarm.results import OUTPUTS
from afarm_plugins.view.app import View, encode
from afarm_plugins.view.outputs_query import choices
from afarm_plugins.view.page import PAGES, STATIC, render_shell, static_file
from afarm_plugins.view.pairs import short_rows
from afarm_plugins.view.run_details import list_part_commands
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.stores import documents

CHUNK = 200
"""Pairs per file."""

COMPARED = 12
"""Runs, the newest, of which each two are exported beside each other."""


def write_pages(view: View, directory: Path) -> int:
    """Write all pages into an empty `directory`; return the number of files. Raises `StoreError`."""
    if directory.exists() and not (directory / "static" / "view.css").is_file() and any(directory.iterdir()):
        raise StoreError(f"--export {directory}: there are other files in it; name a new directory")
    written = 0
    for name, content in _files(view):
        path = directory / name
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        written += 1
    return written


def _files(view: View) -> Iterator[tuple[str, bytes]]:
    for name in (*STATIC, "plotly.js"):
        if (found := static_file(name)) is not None:
            yield f"static/{name}", found[0]
    for kind, (file, title) in PAGES.items():
        yield file, _page(kind, title)
    yield "compare.html", _page("compare", "Runs compared")
    runs = list(view.sources.runs().values())
    for name, make in view.data().items():
        yield f"data/{name}.json", encode(make())
    for file in view.annotators()["files"]:
        try:
            labels: Row = view.list_annotators(file["run"], file["use"])
        except AfarmError as error:
            labels = {"problem": str(error), "command": file["command"]}
        yield f"data/annotators/{file['run']}/{file['use']}.json", encode(labels)
    reports = view.linked_reports()
    for address, path in (documents(view.sources.output_dirs) | reports).items():
        yield f"document/{address}", path.read_bytes()
    for run in runs:
        yield from _run_files(view, run, {path.parent: address for address, path in reports.items()})
    compared = [run for run in runs if run.status == "finished"][:COMPARED]
    for first, second in itertools.permutations(compared, 2):
        yield f"data/compare/{first.id}/{second.id}.json", encode(view.comparison([first.id, second.id]))


def _run_files(view: View, run: SeenRun, reports: Mapping[Path, str]) -> Iterator[tuple[str, bytes]]:
    yield f"run/{run.id}.html", _page("run", f"{run.id}: run", "../", run.id)
    yield f"data/run/{run.id}.json", encode({**view.details(run.id), "report": reports.get(run.directory, "")})
    if not (run.directory / OUTPUTS).is_file():
        return
    index = view.pairs.index(run)
    index.ready.wait()
    index.flag()
    yield f"outputs/{run.id}.html", _page("outputs", f"{run.id}: outputs", "../", run.id)
    rows = [
        {
            **row,
            "family": member_family(row["member"]),
            "gold": index.gold[row["number"]][0],
            "reward": index.reward[row["number"]][0],
        }
        for row in short_rows(index, range(len(index)))
    ]
    listed = {"rows": rows, "choices": choices(index), "chunk": CHUNK, "commands": list_part_commands(run)}
    yield f"data/outputs/{run.id}.json", encode(listed)
    for number, start in enumerate(range(0, len(index), CHUNK)):
        pairs = [view.pair(run.id, row) for row in range(start, min(start + CHUNK, len(index)))]
        yield f"data/pairs/{run.id}/{number}.json", encode(pairs)


def _page(kind: str, title: str, root: str = "", run: str = "") -> bytes:
    return render_shell(kind, title, root=root, run=run, static=True).encode("utf-8", "replace")
