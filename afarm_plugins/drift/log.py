"""The log of judge probes: `drift.jsonl` beside the runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from afarm import DataError, write_whole
from afarm.results import DRIFT_LOG, read_drift_log


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
    rows = ({**asdict(logged), "p_value": logged.p_value} for logged in [*probes, probe])
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    repeat = "free some space, and probe again with the same --epoch: nothing is asked twice"
    write_whole(root / DRIFT_LOG, text, repeat)


def read_probes(root: Path) -> list[Probe]:
    """All probes logged in a directory of runs, oldest first. Raises `DataError` if the log is damaged."""
    names = {f.name for f in fields(Probe)}
    try:
        return [Probe(**{name: value for name, value in row.items() if name in names}) for row in read_drift_log(root)]
    except TypeError as error:
        raise DataError(f"{root / DRIFT_LOG}: no list of probes ({error}); move it away and probe again") from error
