"""Best-of-n over n: what a run of the largest n tells, and the command that measures the rest."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from afarm.core.errors import AfarmError
from afarm.evaluation.metrics import finite_number
from afarm.report.charts import Chart, best_of_n_chart
from afarm.report.run import read_sample_rewards, samples_file
from afarm.storage.runs import RunRecord

METHOD = "best_of_n"

_NOT_ITS = {"--method": True, "--launcher": True, "--json": False}
"""Options of `afarm run` that `afarm best-of-n` does not take, and if a value follows."""


def over_n_command(record: Mapping[str, Any]) -> str:
    """Return the command that measures win rate and gold over n as a run was made; else nothing."""
    if record.get("method") != METHOD:
        return ""
    try:
        words = shlex.split(str(record.get("command", "")))
    except ValueError:
        words = []
    section = record.get("config", {}).get(METHOD, {}) if isinstance(record.get("config"), Mapping) else {}
    most = int(finite_number(section.get("n") if isinstance(section, Mapping) else None) or 64)
    numbers = [4**power for power in range(10) if 4**power < most]
    own = _without(words[2:]) if words[:2] == ["afarm", "run"] else []
    return shlex.join(["afarm", "best-of-n", "--n", ",".join(map(str, [*numbers, most])), *own])


def _without(words: list[str]) -> list[str]:
    """Leave out the options that the command does not take, and the settings of the method, which it sets."""
    kept: list[str] = []
    skipped = 0
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if skipped:
            skipped -= 1
        elif name in _NOT_ITS:
            skipped = int(_NOT_ITS[name] and not value)
        elif name == "--set" and (value or " ".join(words[place + 1 : place + 2])).startswith(f"{METHOD}."):
            skipped = int(not value)
        else:
            kept.append(word)
    return kept


def stored_over_n(directory: Path, record: RunRecord) -> Chart | None:
    """Chart the reward over n of a run in `directory`; None if its samples' rewards were not kept.

    A file that is as it was is not read again.
    """
    path = samples_file(directory, record)
    try:
        status = path.stat()
    except OSError:
        return None
    return _chart(path, (status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=64)
def _chart(path: Path, signature: tuple[int, int]) -> Chart | None:
    try:
        return best_of_n_chart(read_sample_rewards(path))
    except (AfarmError, OSError):  # half deleted: the rest of the run can be shown
        return None
