"""Where the tests find the repository, its pages and the data that lies beside it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SUPPORT = ROOT / "tests" / "support"
SHARED_DATA = Path(os.environ.get("AFARM_TEST_DATA") or ROOT.parent / "shared" / "data")
"""Real outputs and judgements, not part of the repository: tests that read them skip without. CONTRIBUTING.md has the
files and where they come from."""
