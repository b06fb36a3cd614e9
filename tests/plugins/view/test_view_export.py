"""The view as files: everything that a page asks for is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from afarm.core.errors import StoreError
from afarm_plugins.view.app import View
from afarm_plugins.view.export import write_pages

IdOf = Callable[[View, str], str]


def test_the_exported_files_hold_what_the_server_answers(output_dir: Path, id_of: IdOf, tmp_path: Path) -> None:
    view, out = View([output_dir]), tmp_path / "pages"
    report = view.run(id_of(view, "nudge")).directory / "report.html"
    report.write_text("<p>a report")
    count = write_pages(view, out)
    assert count == sum(path.is_file() for path in out.rglob("*"))
    run = id_of(view, "nudge")
    page = (out / "outputs" / f"{run}.html").read_text()
    assert " data-static>" in page
    assert 'src="../static/outputs.js"' in page
    columns = json.loads((out / "data" / "outputs" / f"{run}.json").read_text())
    assert [row["number"] for row in columns["rows"]] == list(range(10))
    pairs = json.loads((out / "data" / "pairs" / run / "0.json").read_text())
    assert pairs[3] == json.loads(json.dumps(view.pair(run, 3)))
    other = id_of(view, "direct")
    compared = json.loads((out / "data" / "compare" / run / f"{other}.json").read_text())
    assert compared["differences"][0]["shared"] == 10
    linked = json.loads((out / "data" / "run" / f"{run}.json").read_text())["report"]
    assert (out / "document" / linked).read_text() == "<p>a report"
    assert linked == f"0/runs/{report.parent.name}/report.html", "a board's links lead there"
    assert json.loads((out / "data" / "run" / f"{other}.json").read_text())["report"] == ""
    assert write_pages(view, out) == count, "it may be written again"


def test_a_directory_with_other_files_is_left_alone(view: View, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(StoreError, match="there are other files in it"):
        write_pages(view, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
