"""The rows of a data set that a run uses, none of them both learned from and evaluated on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial

from afarm.core.errors import ConfigError, DataError, attribute_failures, require_promise
from afarm.core.interfaces import Dataset
from afarm.core.records import Instruction, Output
from afarm.core.seeding import digest
from afarm.experiment.components import Components
from afarm.experiment.own_preferences import LOOKED_AT, OwnPreferences
from afarm.experiment.plugin_code import find_package
from afarm.experiment.return_checks import problems_seen, require_rows
from afarm.experiment.settings import ALL, Rows
from afarm.storage.conversations import Tasks
from afarm.storage.hub import is_on_hub
from afarm.storage.model_files import PACKAGE_PREFIX
from afarm.storage.prompt_templates import answer_cues, describe_rendered
from afarm.storage.rows import names_a_file, parse_output, read_placed_rows, require_distinct


class DataSplits:
    """The splits of the run's data set and its own preferences, each read once and kept."""

    def __init__(self, components: Components):
        self._components = components
        self._name = components.settings.run.dataset
        self._eval_set = components.settings.run.eval_set
        self._loaded: dict[str, list[Output]] = {}
        self._listed: dict[str, list[Instruction]] = {}
        self._instructions: dict[str, list[Instruction]] = {}
        self._digests: dict[tuple[str, bool], str] = {}
        self._unknown: dict[str, list[str]] = {}
        self.own_preferences = OwnPreferences(
            components.settings.run, self.evaluated_tasks, self.require_known, components.progress, components.notify
        )

    @property
    def evaluated_on(self) -> str:
        """The split that systems are compared on."""
        return self._components.settings.run.evaluate.split

    @cached_property
    def dataset(self) -> Dataset:
        """The run's data set, built when first asked for."""
        return self._components.dataset()

    def require_known(self, instructions: Sequence[Instruction], source: str) -> None:
        """Raise `ConfigError` if the run's data set, or one that its model comes with, cannot go with these."""
        package = self._components.settings.run.model.removeprefix(PACKAGE_PREFIX).partition("/")[0]
        sets = [c for c in self._components.plugins.registry if c.kind == "datasets"]
        for name in {self._name, *(c.full_name for c in sets if package in map(find_package, c.modules))}:
            dataset = self._components.dataset(name)
            problems = problems_seen(partial(dataset.check, instructions[:LOOKED_AT]), "datasets", name, dataset)
            if problems:  # of several splits the first is told
                raise ConfigError(self._unknown.setdefault(source, [f"{source}: {problem}" for problem in problems]))

    @property
    def remote(self) -> bool:
        """True if looking at the rows may fetch them over a network."""
        apart, remote = self._eval_set, self.dataset.remote
        if apart:
            remote |= is_on_hub(apart) if names_a_file(apart) else self._components.dataset(apart).remote
        return remote

    def load(self, split: str) -> list[Output]:
        """All rows of a split. Raises `DataError` where the data set has no such split, or it is empty."""
        if split not in self._loaded:
            if split == "evaluation" and self._eval_set:
                self._loaded[split] = evaluation_set(self._components, self._eval_set)
            else:
                self._loaded[split] = load_split(self.dataset, self._name, split)
        return self._loaded[split]

    def listed(self, split: str) -> list[Instruction]:
        """All instructions of a split, without loading answers if the data set can. Raises as `load`."""
        if split not in self._listed:
            alone: list[Instruction] | None = None
            if split not in self._loaded and not (split == "evaluation" and self._eval_set):
                dataset = self.dataset
                with attribute_failures("datasets", self._name, dataset):
                    returned = dataset.instructions(split)
                if returned is not None:
                    alone = require_rows(returned, Instruction, self._name, f"instructions({split!r})", dataset)
            listed = [row.instruction for row in self.load(split)] if alone is None else alone
            source = self._eval_set if self._eval_set and split == "evaluation" else f"data set {self._name!r}"
            self.require_known(listed, source)
            cues = answer_cues(self._components.settings.run.prompt_template)
            if count := sum((row.input or row.instruction).rstrip().endswith(cues) for row in listed):
                self._components.notify(f"{source}, split {split!r}: {describe_rendered(count, len(listed))}")
            self._listed[split] = listed
        return self._listed[split]

    def instructions(self, split: str) -> list[Instruction]:
        """The instructions of a split that this run uses.

        Raises `DataError` where there are none or fewer than the run asks for, where an instruction is there twice, or
        where one is in the evaluation as well.
        """
        if split not in self._instructions:
            name = self._eval_set if self._eval_set and split == "evaluation" else f"data set {self._name!r}"
            listed = self.listed(split)
            require_distinct((Output(instruction, "") for instruction in listed), f"{name}, split {split!r}")
            limit: Rows = getattr(self._components.settings.run.rows, split)
            count = len(listed) if limit == ALL else limit
            if count > len(listed):
                raise DataError(
                    f"rows.{split} asks for {count} rows, but split {split!r} of {name} has "
                    f"{len(listed)}: ask for fewer (--set rows.{split}={len(listed)}), or add some"
                )
            used = listed[:count]
            evaluated = Tasks(())
            if split != "evaluation":
                with suppress(DataError):  # a data set without that split: found out when something is evaluated
                    evaluated = Tasks(self.instructions("evaluation"))
            if shared := [instruction.instruction for instruction in used if instruction in evaluated]:
                raise DataError(
                    f"split {split!r} of data set {self._name!r} shares {len(shared)} instructions with "
                    f"'evaluation', such as {shared[0][:60]!r}: remove them from one of the two"
                )
            self._instructions[split] = used
        return self._instructions[split]

    def rows(self, split: str) -> list[Output]:
        """The rows of a split that this run uses. Raises as `instructions`."""
        instructions = self.instructions(split)
        rows = self.load(split)[: len(instructions)]
        broken = f"instructions({split!r}) must return those of load({split!r})"
        same = [row.instruction for row in rows] == instructions
        require_promise(same, "datasets", self._name, broken, self.dataset)
        return rows

    def evaluated_tasks(self) -> Sequence[Instruction]:
        """All instructions of the evaluation split, none if the data set has no such split."""
        try:
            return self.listed("evaluation")
        except DataError:  # which is found out when something is evaluated
            return ()

    def digest(self, split: str, with_outputs: bool = False) -> str:
        """A digest of a split's instructions, or of its rows, so that changed data is another ingredient."""
        if (split, with_outputs) not in self._digests:
            rows: Sequence[Instruction | Output] = self.rows(split) if with_outputs else self.instructions(split)
            self._digests[split, with_outputs] = digest([row.to_row() for row in rows])
        return self._digests[split, with_outputs]


def evaluation_set(components: Components, source: str) -> list[Output]:
    """The evaluation rows of a data set by its name, or of a file, whose `output` may be missing.

    Raises `DataError` naming the file, the row and the field that is wrong.
    """
    if names_a_file(source):
        return [parse_output(row, where, required=False) for where, row in read_placed_rows(source)]
    return load_split(components.dataset(source), source, "evaluation")


def load_split(dataset: Dataset, name: str, split: str) -> list[Output]:
    """Load the rows of a split from the data set `name`. Raises `PluginError` if they are none."""
    with attribute_failures("datasets", name, dataset):
        loaded = dataset.load(split)
    return require_rows(loaded, Output, name, f"load({split!r})", dataset)
