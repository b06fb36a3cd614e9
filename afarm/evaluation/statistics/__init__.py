"""Statistics of evaluations on numpy arrays: intervals, tests, rank intervals, stopping rules.

Nothing here knows of records, files or judges. One value stands for one instruction, which is the sampling unit:
several labels of an instruction (annotators, seeds, samples) are its cluster. Absent values are NaN. Every draw comes
from a seed, so that equal input gives equal results.
"""

from __future__ import annotations

from afarm.core.errors import PluginError

try:
    import numpy  # noqa: F401
    import scipy  # noqa: F401
except ModuleNotFoundError as error:
    raise PluginError(f"intervals and tests need {error.name!r}: pip install 'afarm[evaluation]'") from error
