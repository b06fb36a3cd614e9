"""Two sets of outputs compared, whoever made them: a stage like those of a run, with an account of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.errors import DataError
from afarm.evaluation import write_results
from afarm.files import read_preferences
from afarm.interfaces import EvaluationInputs
from afarm.judging import annotation, judge_pairs
from afarm.keyed import digest
from afarm.pairing import paired
from afarm.records import Output, Pair
from afarm.stages import Inputs, Stage

if TYPE_CHECKING:
    from afarm.pipeline import Farm, StageRun

LONGEST_PART = 40
"""Characters of a part of a name: a file name has 255 at most."""


@dataclass(frozen=True)
class HeadToHead:
    """`outputs` of `system` against those of `reference_name` to the same instructions, judged by `annotator`."""

    farm: Farm
    outputs: Sequence[Output]
    reference: Sequence[Output]
    annotator: str
    system: str
    reference_name: str

    @property
    def label(self) -> str:
        return f"compare {self.system} with {self.reference_name}"

    @property
    def name(self) -> str:
        """Of its run, which budgets and accounts go by: the same rows under the same judgement have the same one.

        Another version of afarm or of a plugin makes another artifact and goes on with the same account.
        """
        which = digest(_without_sources(self.made_from), length=6)
        parts = [self.system, "vs", self.reference_name, self.annotator]
        return "-".join(["evaluate", *map(_in_a_path, parts), f"seed{self.farm.config.seed}", which])

    @cached_property
    def pairs(self) -> list[Pair]:
        """Raises `DataError` where the two answer different instructions."""
        return paired(self.reference, self.outputs)

    @cached_property
    def evaluators(self) -> list[str]:
        """The win rate, and those of the run's evaluators that need no more than judgements and know the
        instructions."""
        instructions = [row.instruction for row in self.outputs]
        names = dict.fromkeys(["win_rate", *self.farm.config.evaluate.evaluators])
        found = [(name, self.farm.builder.evaluator(name)) for name in names]
        return [name for name, e in found if e.needs <= {"judgements"} and not e.check(instructions)]

    @cached_property
    def made_from(self) -> Mapping[str, Any]:
        """All that the result depends on."""
        builder = self.farm.builder
        data = {"outputs": self.outputs, "reference": self.reference}
        return self.farm.made_from(
            "compare",
            **annotation(self.farm, self.annotator, self.farm.config.evaluate.label_noise),
            evaluators=[builder.identity(builder.component("evaluators", name)) for name in self.evaluators],
            systems={"outputs": self.system, "reference": self.reference_name},
            data={name: digest([row.to_row() for row in rows]) for name, rows in data.items()},
        )

    def run(self) -> StageRun:
        """Make or reuse it, on the account of its name."""
        with self.farm.ask.accounted_to(self.name):
            self.farm.ensure(self.stage())
        # It is none of the farm's stages, and another comparison may have the same label.
        return self.farm.history.pop(self.label)

    def stage(self) -> Stage:
        """The judgements and what the evaluators make of them. Raises `DataError` where there is nothing to compare."""
        if not self.outputs:
            raise DataError("there are no outputs to compare")
        pairs = self.pairs

        def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
            path, noise = directory / "judgements.jsonl", self.farm.config.evaluate.label_noise
            summary = judge_pairs(self.farm, path, pairs, self.annotator, noise, "evaluate")
            given = EvaluationInputs(self.system, self.outputs, self.reference, read_preferences(path))
            write_results(self.farm, directory, self.evaluators, given, self.reference_name, summary["degraded"])
            return summary

        return Stage("evaluate", self.label, {}, self.made_from, write)


def _without_sources(value: Any) -> Any:
    """`value` without what digests source code, at any depth."""
    if isinstance(value, Mapping):
        return {k: _without_sources(v) for k, v in value.items() if k not in ("afarm", "source")}
    return [_without_sources(item) for item in value] if isinstance(value, list) else value


def _in_a_path(text: str) -> str:
    """`text`, which may come from a file of anybody's, as part of a directory's name."""
    return re.sub(r"[^\w.+=@-]+", "_", text, flags=re.ASCII)[:LONGEST_PART]
