"""A run as one self-contained HTML page: `build(run_dir)` writes `report.html` and returns its path.

`refresh(run_dir)` leaves a page that shows this run already.
"""

from afarm.report.run_page import build, refresh

__all__ = ["build", "refresh"]
