"""Comparisons of two sets of outputs, whoever made them: stages on accounts of their own."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from afarm.core.interfaces import EvaluationInputs
from afarm.core.records import Instruction, Output, Pair
from afarm.core.seeding import digest
from afarm.evaluation.matching import STRICT, MatchedRows, MatchPolicy, looks_swapped, match_rows
from afarm.experiment.annotation import annotate_to_file, annotation_identity
from afarm.experiment.evaluation_stages import answer_flags, build_protocol, write_results
from afarm.experiment.return_checks import problems_seen
from afarm.experiment.stage import Inputs, Labelling, Stage, StageRun
from afarm.experiment.workspace import Workspace
from afarm.storage.rows import preferences_on_disk, rows_digest
from afarm.storage.text import one_line

LONGEST_PART = 40
"""Characters of a part of a name: a file name has 255 at most."""


class SystemComparison(ABC):
    """A comparison of `system` with `reference_name` by `annotator`: a stage, and a run of its own."""

    workspace: Workspace
    system: str
    reference_name: str
    annotator: str
    before: tuple[StageRun, ...] = ()
    """The stages that decided what is compared."""

    @property
    def label(self) -> str:
        return f"compare {one_line(self.system)} with {one_line(self.reference_name)}"

    @property
    def name(self) -> str:
        """The name of its run and account: equal for the same rows judged in the same way.

        Another version of afarm or of a plugin makes another artifact and goes on with the same account.
        """
        return self.account("evaluate", self.key_fields)

    def account(self, what: str, key_fields: Mapping[str, Any]) -> str:
        """Name what is done with the two, apart from the versions of code and the budget."""
        which = digest(_without(("afarm", "source", "budget"), key_fields), length=6)
        parts = [self.system, "vs", self.reference_name, self.annotator]
        return "-".join([what, *map(_in_a_path, parts), f"seed{self.workspace.config.seed}", which])

    @property
    @abstractmethod
    def instructions(self) -> Sequence[Instruction]:
        """The instructions that are compared."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """Sentences on what is odd about the rows."""

    @property
    @abstractmethod
    def about(self) -> dict[str, Any]:
        """The rows in its run's record: their `coverage`, `notes`, and if they were judged before."""

    @property
    @abstractmethod
    def key_fields(self) -> Mapping[str, Any]:
        """All that the result depends on."""

    @abstractmethod
    def stage(self) -> Stage:
        """Lay out the judgements and their evaluation. Raises `DataError` if there is nothing to compare."""

    @property
    @abstractmethod
    def offered(self) -> frozenset[str]:
        """The needs of evaluators that it serves."""

    @cached_property
    def evaluators(self) -> list[str]:
        """The win rate, and the run's evaluators that can do with what is `offered`.

        One that needs no judgements must know the instructions.
        """
        usable = []
        for name in dict.fromkeys(["win_rate", *self.workspace.config.evaluate.evaluators]):
            evaluator = self.workspace.components.evaluator(name)
            if evaluator.many or not evaluator.needs <= self.offered:
                continue
            check = partial(evaluator.check, self.instructions)
            if "judgements" in evaluator.needs or not problems_seen(check, "evaluators", name, evaluator):
                usable.append(name)
        return usable

    @property
    def together(self) -> list[str]:
        """The run's evaluators that look at several systems at once."""
        return [
            name for name in self.workspace.config.evaluate.evaluators if self.workspace.components.evaluator(name).many
        ]

    @property
    def components(self) -> list[tuple[str, str]]:
        """The kinds and names of the plugins behind the result."""
        return [("evaluators", name) for name in self.evaluators]

    def run(self) -> StageRun:
        """Make it or reuse what is stored, on the account of its name."""
        with self.workspace.judges.client.charge_run(self.name):
            self.workspace.ensure(self.stage())
        # It is no stage of a run, and another comparison may have the same label.
        return self.workspace.history.pop(self.label)


@dataclass(frozen=True)
class OutputComparison(SystemComparison):
    """A comparison of `outputs` with those of a reference, judged where both answer an instruction.

    `match_policy` says what is done with rows that do not fit, `sources` (of outputs and reference) whose rows errors
    say those are. Of an `order` of ids of instructions the first `judged` alone are compared, if it was decided before
    the others were judged, as `until` says.
    """

    workspace: Workspace
    outputs: Sequence[Output]
    reference: Sequence[Output]
    annotator: str
    system: str
    reference_name: str
    match_policy: MatchPolicy = STRICT
    sources: tuple[str, str] = ("the outputs", "the reference")
    order: Sequence[str] | None = None
    judged: int = 0
    until: Mapping[str, Any] | None = None
    before: tuple[StageRun, ...] = ()

    @classmethod
    def of(
        cls,
        workspace: Workspace,
        outputs: Sequence[Output],
        reference: Sequence[Output],
        annotator: str | None = None,
        match_policy: MatchPolicy = STRICT,
    ) -> Self:
        """Lay out a comparison of systems that are called by their `generator`.

        The annotator is the evaluation's, unless one is named.
        """
        system, reference_name = (next((row.generator for row in rows), "") for rows in (outputs, reference))
        annotator = annotator or workspace.config.evaluate.annotator
        names = system or "outputs", reference_name or "reference"
        return cls(workspace, outputs, reference, annotator, *names, match_policy)

    @cached_property
    def matched(self) -> MatchedRows:
        """The matched rows. Raises `DataError` if rows do not fit, and `match_policy` does not say what to do."""
        return match_rows(self.outputs, self.reference, self.match_policy, self.sources, self.order, self.judged)

    @cached_property
    def pairs(self) -> list[Pair]:
        """The pairs that are judged. Raises `DataError` as `matched` does."""
        return self.matched.pairs

    @property
    def labelling(self) -> Labelling:
        """The labelling of the pairs, with an evaluation's draws. Raises `DataError` as `matched` does."""
        return Labelling("evaluate", self.pairs, self.annotator, self.workspace.config.evaluate.label_noise)

    @cached_property
    def notes(self) -> list[str]:
        found, coverage = [], self.matched.coverage
        if coverage.missing > coverage.missing_as_loss or coverage.extra or coverage.unshared:
            only = "only " if coverage.partial else ""
            found.append(f"{self.system}: {only}{coverage.sentence}: the win rate is of these alone")
        if self.pairs and all(pair.identical for pair in self.pairs):
            found.append(
                f"{self.system} and {self.reference_name} are the same outputs: every pair is a draw, unjudged"
            )
        if self.until:
            asked = [row for row in self.until["comparisons"] if self.system in (row["first"], row["second"])]
            clear = all(row["side"] for row in asked)
            how = "judged until it was clear" if clear else "looked at as it went, and not clear to the end"
            judged = f"{how}, on {self.matched.coverage.compared} of {self.until['of']} instructions"
            found.append(f"{self.system}: {judged}: no standard error holds after that")
        return found + looks_swapped(self.system, self.reference_name)

    @property
    def about(self) -> dict[str, Any]:
        told = {"coverage": self.matched.coverage.to_row(), "notes": self.notes}
        return {**told, "until": dict(self.until)} if self.until else told

    @property
    def instructions(self) -> Sequence[Instruction]:
        return [pair.instruction for pair in self.pairs]

    @property
    def offered(self) -> frozenset[str]:
        rates = self.workspace.components.annotator(self.annotator).rates
        return frozenset({"judgements", "ratings"} if rates else {"judgements"})

    @property
    def components(self) -> list[tuple[str, str]]:
        judges = [("judges", spec.partition(":")[0]) for spec in self.workspace.judges.specs.values()]
        return [*judges, ("annotators", self.annotator), *super().components]

    @cached_property
    def key_fields(self) -> Mapping[str, Any]:
        components, matched = self.workspace.components, self.matched
        data = {"outputs": matched.outputs, "reference": self.reference}
        data |= {"lost": matched.missing_as_loss} if matched.missing_as_loss else {}
        return self.workspace.key_fields(
            "compare",
            **annotation_identity(self.workspace, self.annotator, self.workspace.config.evaluate.label_noise),
            evaluators=[components.evaluator_identity(name) for name in self.evaluators],
            systems={"outputs": self.system, "reference": self.reference_name},
            data={name: rows_digest(row.to_row() for row in rows) for name, rows in data.items()},
        )

    def stage(self) -> Stage:
        labelling, matched = self.labelling, self.matched

        def write(directory: Path, inputs: Inputs) -> Mapping[str, Any]:
            path = directory / "judgements.jsonl"
            summary = annotate_to_file(self.workspace, path, labelling, matched.unanswered)
            # What is lost counts as an empty output.
            lost = (Output(pair.instruction, pair.output_2, self.system) for pair in matched.unanswered)
            ours, theirs = [*matched.outputs, *lost], [*matched.reference, *matched.missing_as_loss]
            given = EvaluationInputs(self.system, ours, theirs, preferences_on_disk(path))
            protocol = build_protocol(
                self.workspace, self.annotator, self.reference_name, self.reference, given.judgements
            )
            flags = answer_flags(self.workspace, self.annotator, given.judgements)
            write_results(self.workspace, directory, self.evaluators, given, protocol, summary["degraded"], flags)
            return summary

        return Stage("evaluate", self.label, {}, self.key_fields, write, plan_labels=lambda inputs: labelling)


def _without(names: Collection[str], value: Any) -> Any:
    """Drop the entries of these names, at any depth."""
    if isinstance(value, Mapping):
        return {k: _without(names, v) for k, v in value.items() if k not in names}
    return [_without(names, item) for item in value] if isinstance(value, list) else value


def _in_a_path(text: str) -> str:
    """Make part of a directory's name of a text that may come from a file of anybody's.

    A long path goes by its last part, which tells most.
    """
    if len(text) > LONGEST_PART and "/" in text:
        text = text.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.+=@-]+", "_", text, flags=re.ASCII)[:LONGEST_PART]
