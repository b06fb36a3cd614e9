"""Numbers that stand for code in the keys of artifacts, for code that came from a package index.

`release_numbers.json` holds a number for each kind of stage and each first-party plugin, raised by hand in a release
whose results differ: a patch release reuses what is there. Beside it lies the digest of the code it stands for, which a
test compares (`python tools/release_numbers.py`). Other code is digested: an edit never gets yesterday's artifact.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]

NUMBERS = Path(__file__).with_name("release_numbers.json")


@cache
def released_version() -> str:
    """Return the version of afarm if it came from a package index; empty if it did not.

    pip and uv record `direct_url.json` for what came from elsewhere. Code beside an installed release, found first by
    PYTHONPATH or the working directory, is not the release's.
    """
    try:
        distribution = importlib.metadata.distribution("afarm")
    except importlib.metadata.PackageNotFoundError:
        return ""
    is_own_code = Path(str(distribution.locate_file("afarm"))).resolve() == PACKAGE.resolve()
    from_index = distribution.read_text("direct_url.json") is None and distribution.read_text("RECORD") is not None
    return distribution.version if is_own_code and from_index else ""


@cache
def read_numbers(path: Path = NUMBERS) -> Mapping[str, Mapping[str, Any]]:
    """Return `number` and `digest` of each kind of stage, of each plugin folder, and of "doors"."""
    return json.loads(path.read_text(encoding="utf-8"))


def numbered(name: str) -> str:
    """Return what stands for the code of `name` in the keys of a release; empty for code that is digested."""
    return f"{name} {read_numbers()[name]['number']}" if released_version() else ""
