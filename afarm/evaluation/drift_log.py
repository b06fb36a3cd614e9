"""The log of judge probes beside the runs, and the shifts of judges that it records.

What is evaluated after a shift carries it in its protocol, so that leaderboards do not mix it with earlier results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.storage.disk import write_whole
from afarm.storage.rows import read_rows

DRIFT_LOG = "drift.jsonl"


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of asking a judge again about `pairs` that it has labelled.

    Shares and win rates are percentages.

    `disagreement` is the mean difference of a stored label from the new ones, `noise` that of the two new ones from
    each other; `win_rate_before` and `win_rate_now` are output_2's. `epoch` names the probe: its draws are keyed by it.
    """

    epoch: str
    annotator: str
    judges: Mapping[str, str]
    pairs: int
    unread: int
    disagreement: float
    noise: float
    win_rate_before: float
    win_rate_now: float
    p_disagreement: float
    p_win_rate: float
    shifted: bool
    labels: str = ""
    created: float = field(default=0.0, compare=False)

    @property
    def p_value(self) -> float:
        """The p-value of the two tests together (Bonferroni)."""
        return min(1.0, 2 * min(self.p_disagreement, self.p_win_rate))

    @property
    def _identity(self) -> tuple[str, str, str]:
        return self.epoch, self.annotator, self.labels


def record_probe(root: Path, probe: Probe) -> None:
    """Append `probe` to the log in `root`, in place of an earlier outcome of the same probe."""
    probes = [logged for logged in read_probes(root) if logged._identity != probe._identity]
    text = "".join(json.dumps(asdict(logged), ensure_ascii=False) + "\n" for logged in [*probes, probe])
    repeat = "free some space, and probe again with the same --epoch: nothing is asked twice"
    write_whole(root / DRIFT_LOG, text, repeat)


def read_probes(root: Path) -> list[Probe]:
    """All probes logged in a directory of runs, oldest first. Raises `DataError` if the log is damaged."""
    path = root / DRIFT_LOG
    if not path.is_file():
        return []
    names = {f.name for f in fields(Probe)}
    rows: Iterable[Mapping[str, Any]] = read_rows(path)
    try:
        return [Probe(**{name: value for name, value in row.items() if name in names}) for row in rows]
    except TypeError as error:
        raise DataError(f"{path}: no list of probes ({error}); move it away and probe again") from error


def latest_shift(root: Path, judges: Mapping[str, str]) -> str:
    """The epoch of the latest shift seen of one of `judges` (identities by role); empty for none."""
    identities = set(judges.values())
    shifts = [p for p in read_probes(root) if p.shifted and identities & set(p.judges.values())]
    return shifts[-1].epoch if shifts else ""
