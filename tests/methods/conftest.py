"""The methods' tests use the backend tests' tiny models."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))

from tiny_models import policy as policy
