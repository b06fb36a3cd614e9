"""One's own pairs or unpaired feedback: counted before anything runs, written by their stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.interfaces import Progress
from afarm.core.records import Feedback, Instruction, JudgedPair
from afarm.experiment.settings import RunConfig
from afarm.storage.conversations import Tasks, Unusable
from afarm.storage.feedback import holds_feedback, own_feedback
from afarm.storage.hub import is_on_hub
from afarm.storage.labelled_pairs import own_preferences
from afarm.storage.model_files import special_tokens
from afarm.storage.prompt_templates import answer_cues, describe_rendered
from afarm.storage.rows import digest_source, write_rows


def describe_pairs(summary: Mapping[str, Any]) -> str:
    """Describe the pairs or thumbs of a file: those used by label, those left out by reason."""
    outcomes = {
        "decided": "decided",
        "draw": "drawn",
        "unparsed": "without a label",
        "refused": "without a label",
        UP: "thumbs up",
        DOWN: "thumbs down",
    }
    used = [f"{count:,} {outcomes.get(name, name)}" for name, count in summary.get("outcomes", {}).items()]
    reasons = {
        "rows_evaluated_on": "with an instruction that is evaluated on",
        "rows_unlabelled": "without a label",
        "rows_unusable": "unusable",
    }
    left_out = [f"{summary[name]:,} {reason}" for name, reason in reasons.items() if summary.get(name)]
    source = summary.get("source", "The file")
    rows = "outputs with a thumb" if {UP, DOWN} & {*summary.get("outcomes", {})} else "pairs"
    return f"{source}: {summary['rows']:,} {rows} used ({', '.join(used)}); left out: {', '.join(left_out) or 'none'}"


UP, DOWN = "up", "down"
"""The outcomes of unpaired feedback, in summaries."""

LOOKED_AT = 100
"""Pairs that a data set is asked about, if it knows their instructions."""

_SUMMARIES: dict[tuple[object, ...], Mapping[str, Any]] = {}
"""The counts of what this process has read: several seeds and methods share them."""


@dataclass(eq=False)
class OwnPreferences:
    """The pairs or thumbs of the recipe's file or data set of the Hub, in afarm's rows.

    Rows of the instructions that are `evaluated` on, however written, are left out; `require_known` raises for others
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
    def is_feedback(self) -> bool:
        """True for unpaired feedback: outputs with a thumb each, told by the first row."""
        return holds_feedback(self.config.preferences)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The counts of rows used and left out, and notes on odd labels.

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
        write_rows(path, (row.to_row() for row in self._read({})))

    def _read(self, summary: dict[str, Any]) -> Iterator[JudgedPair | Feedback]:
        """Yield the preferences that are taken, and fill `summary`. Raises as that does."""
        config, source, evaluated = self.config, self.config.preferences, Tasks(self.evaluated())
        unusable, notes = Unusable(special_tokens=special_tokens(config.model)), list[str]()
        cues, rendered = answer_cues(config.prompt_template), 0
        outcomes, people, evaluated_on, first = Counter[str](), Counter[str](), 0, list[Instruction]()
        reader: Callable[..., Iterator[JudgedPair | Feedback]] = own_feedback if self.is_feedback else own_preferences
        for row in self.progress(reader(source, unusable, scale=config.labels, notes=notes), "preferences"):
            instruction = row.instruction if isinstance(row, Feedback) else row.pair.instruction
            if instruction in evaluated:
                evaluated_on += 1
                continue
            if len(first) < LOOKED_AT:
                first.append(instruction)
            rendered += (instruction.input or instruction.instruction).rstrip().endswith(cues)
            outcomes[(DOWN, UP)[row.label] if isinstance(row, Feedback) else row.preference.outcome] += 1
            people[row.annotator] += 1
            yield row
        self.require_known(first, source)
        taken = outcomes.total()
        if rendered:
            notes.append(f"{source}: {describe_rendered(rendered, taken)}")
        usable = taken + evaluated_on + unusable.unlabelled
        if not usable and not unusable.rows:
            raise DataError(f"{source}: holds no preferences")
        if unusable.rows and (config.on_unusable == "error" or not usable):
            advice = "mend them, or leave such rows out with --on-unusable drop" if usable else "none is left"
            raise DataError(
                f"{source}: {unusable.rows} of {usable + unusable.rows} preferences cannot be learned from; {advice}:"
                + "".join(f"\n  {example}" for example in unusable.examples)
            )
        if not taken:
            others = " or have no label" if unusable.unlabelled else ""
            raise DataError(f"{source}: all its preferences answer instructions that are evaluated on{others}")
        if not is_on_hub(source) and digest_source(source) != self.digest:
            raise DataError(f"{source}: has changed since it was read; start again")
        summary |= {
            "source": source,
            "rows": taken,
            "outcomes": dict(outcomes),
            "members": dict(people),
            "degraded": {},
            **({"rows_evaluated_on": evaluated_on} if evaluated_on else {}),
            **({"rows_unlabelled": unusable.unlabelled} if unusable.unlabelled else {}),
            "rows_unusable": unusable.rows,
            **({"notes": notes} if notes else {}),
        }
