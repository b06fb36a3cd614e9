"""Plugins of tests, installed for commands that run as processes of their own."""

from __future__ import annotations

from pathlib import Path

import yaml
from light_farm import RECIPE
from places import SUPPORT


def installed(site: Path, module: str) -> list[str]:
    """Install a module of tests/support as a plugin, in an empty directory; return what Python's path needs for it."""
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Name: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[afarm]\n{module} = {module}\n")
    return [str(site), str(SUPPORT)]


def light_recipe(directory: Path) -> None:
    """Write `light.yaml` and its model, for the light plugin."""
    (directory / "base").mkdir()
    (directory / "base" / "config.json").write_text("{}")
    (directory / "base" / "weights").write_text("0")
    (directory / "light.yaml").write_text(yaml.safe_dump({**RECIPE, "start": "model", "model": "./base"}))
