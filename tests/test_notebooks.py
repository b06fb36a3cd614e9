"""The notebooks of the documentation run from their first cell to the last."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import DOCS

NOTEBOOKS = ["first-farm", "analyse-a-run"]
SIZES = {
    r"{\"sft\": 400, \"preference\": 200, \"unlabeled\": 100}": r"{\"sft\": 48, \"preference\": 32, \"unlabeled\": 8}",
    r"{\"validation\": 50, \"evaluation\": 200}": r"{\"validation\": 8, \"evaluation\": 48}",
}
"""What is written in both, and what the tests run: cells are the same, and figures are read by nobody."""


@pytest.fixture(scope="module")
def execute(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A function that executes a notebook: both on one farm, as `make notebooks` does."""
    pytest.importorskip("nbclient", reason="needs nbclient: pip install 'afarm[docs]'")
    spec = importlib.util.spec_from_file_location("execute_notebooks", DOCS / "execute_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [path.stem for path in module.NOTEBOOKS] == NOTEBOOKS
    directory = tmp_path_factory.mktemp("notebooks")

    def run(name: str) -> Any:
        text = (DOCS / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
        for size, smaller in SIZES.items():
            assert size in text
            text = text.replace(size, smaller)
        (directory / f"{name}.ipynb").write_text(text, encoding="utf-8")
        return module.executed(directory / f"{name}.ipynb", directory)

    return run


@pytest.mark.slow
@pytest.mark.xdist_group("notebooks")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, execute: Callable[[str], Any]) -> None:
    results = [cell.outputs for cell in execute(name).cells if cell.cell_type == "code"]
    assert sum(map(bool, results)) >= 4
    assert "dpo against sft: win rate" in json.dumps(results)


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_ran(path: Path) -> None:
    assert path.stem in NOTEBOOKS
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run: make notebooks"
    kinds = {output.get("name", output["output_type"]) for cell in cells for output in cell["outputs"]}
    assert kinds <= {"execute_result", "display_data", "stdout"}
