"""The rows of a data set that a run uses, none of them both learned from and evaluated on."""

from __future__ import annotations

from collections.abc import Sequence

from afarm.core.errors import DataError, attributed_to
from afarm.core.interfaces import Dataset
from afarm.core.records import Instruction, Output
from afarm.core.seeding import digest
from afarm.experiment.components import Components
from afarm.experiment.promises import require_outputs
from afarm.storage.conversations import with_turns
from afarm.storage.hub import is_on_hub
from afarm.storage.rows import names_a_file, placed_rows, require_distinct


class DataSplits:
    """The splits of the run's data set, each read once and kept."""

    def __init__(self, components: Components):
        self._components = components
        self._name = components.settings.run.dataset
        self._eval_set = components.settings.run.eval_set
        self._dataset: Dataset | None = None
        self._loaded: dict[str, list[Output]] = {}
        self._rows: dict[str, list[Output]] = {}
        self._digests: dict[str, str] = {}

    @property
    def evaluated_on(self) -> str:
        """The split that systems are compared on."""
        return self._components.settings.run.evaluate.split

    @property
    def dataset(self) -> Dataset:
        """The run's data set, built when first asked for."""
        if self._dataset is None:
            self._dataset = self._components.dataset()
        return self._dataset

    @property
    def remote(self) -> bool:
        """True if looking at the rows may fetch them over a network."""
        apart = self._eval_set
        if apart and names_a_file(apart):
            return is_on_hub(apart) or self.dataset.remote
        return self.dataset.remote or bool(apart and self._components.dataset(apart).remote)

    def load(self, split: str) -> list[Output]:
        """All rows of a split. Raises `DataError` where the data set has no such split, or it is empty."""
        if split not in self._loaded:
            if split == "evaluation" and self._eval_set:
                self._loaded[split] = evaluation_set(self._components, self._eval_set)
            else:
                dataset = self.dataset
                with attributed_to("datasets", self._name, dataset):
                    loaded = dataset.load(split)
                self._loaded[split] = require_outputs(loaded, self._name, split, dataset)
        return self._loaded[split]

    def rows(self, split: str) -> list[Output]:
        """The rows of a split that this run uses.

        Raises `DataError` where there are none or fewer than the run asks for, where an instruction is there twice, or
        where one is in the evaluation as well.
        """
        if split not in self._rows:
            name = self._eval_set if self._eval_set and split == "evaluation" else f"data set {self._name!r}"
            rows = require_distinct(self.load(split), f"{name}, split {split!r}")
            limit: int = getattr(self._components.settings.run.rows, split)
            if limit > len(rows):
                raise DataError(
                    f"rows.{split} asks for {limit} rows, but split {split!r} of {name} has "
                    f"{len(rows)}: ask for fewer (--set rows.{split}={len(rows)}), or add some"
                )
            rows = rows[: limit or None]
            if split != "evaluation":
                self._refuse_evaluation_rows(split, rows)
            self._rows[split] = rows
        return self._rows[split]

    def evaluated(self) -> frozenset[str]:
        """The ids of all instructions of the evaluation split, none if the data set has no such split."""
        try:
            return frozenset(row.instruction.id for row in self.load("evaluation"))
        except DataError:  # which is found out when something is evaluated
            return frozenset()

    def digest(self, split: str) -> str:
        """A digest of a split's rows, so that changed data is another ingredient."""
        if split not in self._digests:
            self._digests[split] = digest([row.to_row() for row in self.rows(split)])
        return self._digests[split]

    def instructions(self, split: str) -> list[Instruction]:
        """The instructions of a split."""
        return [row.instruction for row in self.rows(split)]

    def _refuse_evaluation_rows(self, split: str, rows: Sequence[Output]) -> None:
        """Nothing may be trained on what it is evaluated on. Raises `DataError` naming an instruction of both."""
        try:
            evaluated = {row.instruction.id for row in self.rows("evaluation")}
        except DataError:  # a data set without that split, which is found out when something is evaluated
            return
        shared = [row.instruction.instruction for row in rows if row.instruction.id in evaluated]
        if shared:
            raise DataError(
                f"split {split!r} of data set {self._name!r} shares {len(shared)} instructions with "
                f"'evaluation', such as {shared[0][:60]!r}: remove them from one of the two"
            )


def evaluation_set(components: Components, source: str) -> list[Output]:
    """The evaluation rows of a data set by its name, or of a file, whose `output` may be missing.

    Raises `DataError` naming the file, the row and the field that is wrong.
    """
    if names_a_file(source):
        return [Output.from_row({"output": "", **with_turns(row, where)}, where) for where, row in placed_rows(source)]
    dataset = components.dataset(source)
    with attributed_to("datasets", source, dataset):
        loaded = dataset.load("evaluation")
    return require_outputs(loaded, source, "evaluation", dataset)
