"""One's own preferences, read through once for each process: their counts, and their rows on disk."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from afarm.core.errors import DataError
from afarm.core.interfaces import Progress
from afarm.experiment.settings import RunConfig
from afarm.storage.disk import storage_errors
from afarm.storage.hub import is_on_hub
from afarm.storage.labelled_pairs import Unusable, own_preferences
from afarm.storage.rows import digest_source

IN_MEMORY = 1 << 24
"""Bytes of rows that memory holds until the artifact is written; more go to a temporary file."""


def describe_pairs(summary: Mapping[str, Any]) -> str:
    """Describe the pairs of a preference file: those used by label, those left out by reason."""
    outcomes = {"decided": "decided", "draw": "drawn", "unparsed": "without a label", "refused": "without a label"}
    used = [f"{count:,} {outcomes.get(name, name)}" for name, count in summary.get("outcomes", {}).items()]
    reasons = {"rows_evaluated_on": "with an instruction that is evaluated on", "rows_unusable": "unusable"}
    left_out = [f"{summary[name]:,} {reason}" for name, reason in reasons.items() if summary.get(name)]
    source = summary.get("source", "The file")
    return f"{source}: {summary['rows']:,} pairs used ({', '.join(used)}); left out: {', '.join(left_out) or 'none'}"


_READ: dict[tuple[object, ...], tuple[Mapping[str, Any], IO[bytes]]] = {}
"""What this process has read, summary and rows, until it is written: several seeds and methods share it."""


@dataclass(eq=False)
class OwnPreferences:
    """The preferences of the recipe's file or data set of the Hub, in afarm's rows.

    Pairs of the instructions that are `evaluated` on, by their ids, are left out. `notify` is called once with each
    thing that is odd about the labels.
    """

    config: RunConfig
    evaluated: Callable[[], frozenset[str]]
    progress: Progress
    notify: Callable[[str], None]
    _is_announced: bool = False

    @cached_property
    def digest(self) -> str:
        """A digest of the source's content. Raises `DataError` if there is none."""
        return digest_source(self.config.preferences)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The counts of what is taken and what is left out, and notes on what is odd.

        Raises `DataError`: at once for a row of another shape, and at the end if others cannot be learned from and were
        not said to be dropped, or if nothing is left.
        """
        return self._read()[0]

    def write_preferences(self, path: Path) -> None:
        """Write the rows to `path` and let go of them. Raises as `summary` does."""
        _, rows = self._read()
        del _READ[self._key]
        with rows, storage_errors(path), path.open("wb") as handle:
            rows.seek(0)
            shutil.copyfileobj(rows, handle)

    @property
    def _key(self) -> tuple[object, ...]:
        config = self.config
        return config.preferences, self.digest, config.labels, config.on_unusable, self.evaluated()

    def _read(self) -> tuple[Mapping[str, Any], IO[bytes]]:
        key = self._key
        if key not in _READ:
            with storage_errors(Path(tempfile.gettempdir())), ExitStack() as opened:
                rows = opened.enter_context(tempfile.SpooledTemporaryFile(IN_MEMORY))
                summary = self._copy_rows(rows)
                opened.pop_all()
            _READ[key] = summary, rows
        if not self._is_announced:
            for note in _READ[key][0].get("notes", ()):
                self.notify(note)
        self._is_announced = True
        return _READ[key]

    def _copy_rows(self, rows: IO[bytes]) -> Mapping[str, Any]:
        """Write the preferences that are taken to `rows`, and return the summary. Raises as `summary` does."""
        config, source, evaluated = self.config, self.config.preferences, self.evaluated()
        unusable, notes = Unusable(), list[str]()
        outcomes, people, evaluated_on = Counter[str](), Counter[str](), 0
        read = own_preferences(source, unusable, scale=config.labels, notes=notes)
        for judged in self.progress(read, "preferences"):
            if judged.pair.instruction.id in evaluated:
                evaluated_on += 1
                continue
            outcomes[judged.preference.outcome] += 1
            people[judged.annotator] += 1
            line = json.dumps(judged.to_row(), ensure_ascii=False) + "\n"
            rows.write(line.encode("utf-8", "backslashreplace"))
        taken = outcomes.total()
        usable = taken + evaluated_on
        if not usable and not unusable.rows:
            raise DataError(f"{source}: holds no preferences")
        if unusable.rows and (config.on_unusable == "error" or not usable):
            advice = "mend them, or leave such rows out with --on-unusable drop" if usable else "none is left"
            raise DataError(
                f"{source}: {unusable.rows} of {usable + unusable.rows} preferences cannot be learned from; {advice}:"
                + "".join(f"\n  {example}" for example in unusable.examples)
            )
        if not taken:
            raise DataError(f"{source}: all its preferences answer instructions that are evaluated on")
        if not is_on_hub(source) and digest_source(source) != self.digest:
            raise DataError(f"{source}: has changed since it was read; start again")
        return {
            "source": source,
            "rows": taken,
            "outcomes": dict(outcomes),
            "members": dict(people),
            "degraded": {},
            **({"rows_evaluated_on": evaluated_on} if evaluated_on else {}),
            "rows_unusable": unusable.rows,
            **({"notes": notes} if notes else {}),
        }
