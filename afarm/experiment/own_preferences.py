"""One's own preferences, read through once for each process: their counts, and their rows on disk."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from afarm.core.errors import DataError
from afarm.core.interfaces import Progress
from afarm.core.records import JudgedPair
from afarm.experiment.settings import RunConfig
from afarm.storage.disk import storage_errors
from afarm.storage.hub import is_on_hub
from afarm.storage.preference_files import Unusable, digest_source, own_preferences

IN_MEMORY = 1 << 24
"""Bytes of rows that memory holds until the artifact is written; more go to a temporary file."""


@dataclass(slots=True)
class PreferenceCounts:
    """The rows of own preferences: those taken by outcome and annotator, the others by the reason."""

    outcomes: Counter[str] = field(default_factory=Counter)
    people: Counter[str] = field(default_factory=Counter)
    evaluated_on: int = 0
    unusable: Unusable = field(default_factory=Unusable)
    notes: list[str] = field(default_factory=list)

    def to_row(self, source: str) -> dict[str, Any]:
        """Return the counts as an artifact's summary has them."""
        row: dict[str, Any] = {"source": source, "rows": self.outcomes.total(), "outcomes": dict(self.outcomes)}
        row |= {"members": dict(self.people), "degraded": {}}
        row |= {"rows_evaluated_on": self.evaluated_on} if self.evaluated_on else {}
        return {**row, "rows_unusable": self.unusable.rows, **({"notes": self.notes} if self.notes else {})}


def describe_pairs(summary: Mapping[str, Any]) -> str:
    """Describe the pairs of a preference file: those used by label, those left out by reason."""
    outcomes = {"decided": "decided", "draw": "drawn", "unparsed": "without a label", "refused": "without a label"}
    used = [f"{count:,} {outcomes.get(name, name)}" for name, count in summary.get("outcomes", {}).items()]
    reasons = {"rows_evaluated_on": "with an instruction that is evaluated on", "rows_unusable": "unusable"}
    left_out = [f"{summary[name]:,} {reason}" for name, reason in reasons.items() if summary.get(name)]
    source = summary.get("source", "The file")
    return f"{source}: {summary['rows']:,} pairs used ({', '.join(used)}); left out: {', '.join(left_out) or 'none'}"


class _Reading:
    """A source that was read: its summary, and its rows until the last of those who share it lets go."""

    def __init__(self, summary: Mapping[str, Any], rows: IO[bytes]):
        self.summary = summary
        self.rows = rows
        weakref.finalize(self, rows.close)


_READ: weakref.WeakValueDictionary[tuple[object, ...], _Reading] = weakref.WeakValueDictionary()
"""The sources that this process has read and still needs: several seeds and methods share one."""


class OwnPreferences:
    """The preferences of the recipe's file or data set of the Hub, in afarm's rows.

    Args:
        config: The run's settings.
        evaluated: Returns the ids of the instructions that are evaluated on: their pairs are left out.
        progress: Wraps the reading.
        notify: Called with what is odd about the labels by the one who reads them.
    """

    def __init__(
        self,
        config: RunConfig,
        evaluated: Callable[[], frozenset[str]],
        progress: Progress,
        notify: Callable[[str], None],
    ):
        self._config = config
        self._evaluated = evaluated
        self._progress = progress
        self._notify = notify
        self._reading: _Reading | None = None

    @cached_property
    def digest(self) -> str:
        """A digest of the source's content. Raises `DataError` if there is none."""
        return digest_source(self._config.preferences)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The counts of what is taken and what is left out, and notes on what is odd.

        Raises `DataError`: at once for a row of another shape, and at the end if others cannot be learned from and were
        not said to be dropped, or if nothing is left.
        """
        return self._read().summary

    def write_preferences(self, path: Path) -> None:
        """Write the rows to `path` and free them here. Raises as `summary` does."""
        rows = self._read().rows
        rows.seek(0)
        with storage_errors(path), path.open("wb") as handle:
            shutil.copyfileobj(rows, handle)
        self.close()

    def close(self) -> None:
        """Let go of the rows."""
        self._reading = None

    def _read(self) -> _Reading:
        config, evaluated = self._config, self._evaluated()
        key = (config.preferences, self.digest, config.labels, config.on_unusable, evaluated)
        self._reading = self._reading or _READ.get(key)
        if self._reading is None:
            counts = PreferenceCounts()
            with storage_errors(Path(tempfile.gettempdir())), ExitStack() as opened:
                rows = opened.enter_context(tempfile.SpooledTemporaryFile(IN_MEMORY))
                for judged in self._progress(self._taken(counts, evaluated), "preferences"):
                    line = json.dumps(judged.to_row(), ensure_ascii=False) + "\n"
                    rows.write(line.encode("utf-8", "backslashreplace"))
                opened.pop_all()
            if not is_on_hub(config.preferences) and digest_source(config.preferences) != self.digest:
                raise DataError(f"{config.preferences}: has changed since it was read; start again")
            self._reading = _READ[key] = _Reading(counts.to_row(config.preferences), rows)
            for note in counts.notes:
                self._notify(note)
        return self._reading

    def _taken(self, counts: PreferenceCounts, evaluated: frozenset[str]) -> Iterator[JudgedPair]:
        """Yield the preferences that are taken, and count them and the others. Raises as `summary` does."""
        config, number, unusable = self._config, 0, counts.unusable
        for judged in own_preferences(config.preferences, unusable, scale=config.labels, notes=counts.notes):
            number += 1
            if judged.pair.instruction.id in evaluated:
                counts.evaluated_on += 1
                continue
            counts.outcomes[judged.preference.outcome] += 1
            counts.people[judged.annotator] += 1
            yield judged
        if not number and not unusable.rows:
            raise DataError(f"{config.preferences}: holds no preferences")
        if unusable.rows and (config.on_unusable == "error" or not number):
            advice = "mend them, or leave such rows out with --on-unusable drop" if number else "none is left"
            raise DataError(
                f"{config.preferences}: {unusable.rows} of {number + unusable.rows} preferences cannot be learned "
                f"from; {advice}:" + "".join(f"\n  {example}" for example in unusable.examples)
            )
        if counts.evaluated_on == number:
            raise DataError(f"{config.preferences}: all its preferences answer instructions that are evaluated on")
