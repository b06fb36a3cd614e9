"""Execute the notebooks and keep their outputs: `make notebooks`. They run in `build/notebooks`, on one farm."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = [Path(__file__).parent / "notebooks" / f"{name}.ipynb" for name in ("first-farm", "analyse-a-run")]


def executed(notebook: Path, directory: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a run in `directory`, warnings left out. Raises if a cell does."""
    node = nbformat.read(notebook, as_version=4)
    client = NotebookClient(node, record_timing=False, resources={"metadata": {"path": str(directory)}})
    client.execute()
    for cell in node.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    node.metadata = {name: node.metadata[name] for name in ("kernelspec", "language_info")}
    node.metadata["language_info"] = {"name": "python"}
    return node


if __name__ == "__main__":
    directory = Path(__file__).parents[1] / "build" / "notebooks"
    directory.mkdir(parents=True, exist_ok=True)
    for notebook in NOTEBOOKS:
        nbformat.write(executed(notebook, directory), notebook)
