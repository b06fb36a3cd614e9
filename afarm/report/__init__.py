"""A run as one self-contained HTML page: `build(run_dir)` writes `report.html` and returns its path."""

from afarm.report.run_page import build

__all__ = ["build"]
