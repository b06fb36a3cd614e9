"""One's own preferences: counted before anything runs, and written as afarm's rows by their stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.interfaces import Progress
from afarm.core.records import Instruction, JudgedPair
from afarm.experiment.settings import RunConfig
from afarm.storage.conversations import Tasks, Unusable
from afarm.storage.hub import is_on_hub
from afarm.storage.labelled_pairs import own_preferences
from afarm.storage.model_files import special_tokens
from afarm.storage.prompt_templates import answer_cues, describe_rendered
from afarm.storage.rows import digest_source, write_rows


def describe_pairs(summary: Mapping[str, Any]) -> str:
    """Describe the pairs of a preference file: those used by label, those left out by reason."""
    outcomes = {"decided": "decided", "draw": "drawn", "unparsed": "without a label", "refused": "without a label"}
    used = [f"{count:,} {outcomes.get(name, name)}" for name, count in summary.get("outcomes", {}).items()]
    reasons = {"rows_evaluated_on": "with an instruction that is evaluated on", "rows_unusable": "unusable"}
    left_out = [f"{summary[name]:,} {reason}" for name, reason in reasons.items() if summary.get(name)]
    source = summary.get("source", "The file")
    return f"{source}: {summary['rows']:,} pairs used ({', '.join(used)}); left out: {', '.join(left_out) or 'none'}"


LOOKED_AT = 100
"""Pairs that a data set is asked about, if it knows their instructions."""

_SUMMARIES: dict[tuple[object, ...], Mapping[str, Any]] = {}
"""The counts of what this process has read: several seeds and methods share them."""


@dataclass(eq=False)
class OwnPreferences:
    """The preferences of the recipe's file or data set of the Hub, in afarm's rows.

    Pairs of the instructions that are `evaluated` on, however written, are left out; `require_known` raises for others
    that the model cannot know. `notify` is called once with each thing that is odd about the labels.
    """

    config: RunConfig
    evaluated: Callable[[], Sequence[Instruction]]
    require_known: Callable[[Sequence[Instruction], str], None]
    progress: Progress
    notify: Callable[[str], None]

    @cached_property
    def digest(self) -> str:
        """A digest of the source's content. Raises `DataError` if there is none."""
        return digest_source(self.config.preferences)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The counts of pairs used and left out, and notes on odd labels.

        Raises `DataError`: at once for a row of another shape, and at the end if others cannot be learned from and were
        not said to be dropped, or if nothing is left.
        """
        config, evaluated = self.config, frozenset(task.id for task in self.evaluated())
        how = (config.labels, config.on_unusable, config.dataset, config.model, config.prompt_template)
        key = (config.preferences, self.digest, *how, evaluated)
        if key not in _SUMMARIES:
            summary: dict[str, Any] = {}
            for _ in self._read(summary):
                pass
            _SUMMARIES[key] = summary
        for note in _SUMMARIES[key].get("notes", ()):
            self.notify(note)
        return _SUMMARIES[key]

    def write_preferences(self, path: Path) -> None:
        """Write the rows to `path`, read again: memory may not hold them. Raises as `summary` does."""
        write_rows(path, (judged.to_row() for judged in self._read({})))

    def _read(self, summary: dict[str, Any]) -> Iterator[JudgedPair]:
        """Yield the preferences that are taken, and fill `summary`. Raises as that does."""
        config, source, evaluated = self.config, self.config.preferences, Tasks(self.evaluated())
        unusable, notes = Unusable(special_tokens=special_tokens(config.model)), list[str]()
        cues, rendered = answer_cues(config.prompt_template), 0
        outcomes, people, evaluated_on, first = Counter[str](), Counter[str](), 0, list[Instruction]()
        read = own_preferences(source, unusable, scale=config.labels, notes=notes)
        for judged in self.progress(read, "preferences"):
            if judged.pair.instruction in evaluated:
                evaluated_on += 1
                continue
            if len(first) < LOOKED_AT:
                first.append(judged.pair.instruction)
            rendered += (judged.pair.instruction.input or judged.pair.instruction.instruction).rstrip().endswith(cues)
            outcomes[judged.preference.outcome] += 1
            people[judged.annotator] += 1
            yield judged
        self.require_known(first, source)
        taken = outcomes.total()
        if rendered:
            notes.append(f"{source}: {describe_rendered(rendered, taken)}")
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
        summary |= {
            "source": source,
            "rows": taken,
            "outcomes": dict(outcomes),
            "members": dict(people),
            "degraded": {},
            **({"rows_evaluated_on": evaluated_on} if evaluated_on else {}),
            "rows_unusable": unusable.rows,
            **({"notes": notes} if notes else {}),
        }
