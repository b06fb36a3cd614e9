"""Where the tests find the repository, its pages and the data that lies beside it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SUPPORT = ROOT / "tests" / "support"
BESIDE = [folder / "shared" / "data" for folder in ROOT.parents]  # a worktree may lie deeper than a clone
SHARED_DATA = Path(os.environ.get("AFARM_TEST_DATA") or next((data for data in BESIDE if data.is_dir()), BESIDE[0]))
"""Real outputs and judgements, not part of the repository: tests that read them skip without. CONTRIBUTING.md has the
files and where they come from."""
