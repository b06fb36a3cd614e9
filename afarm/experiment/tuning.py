"""Settings of methods, chosen by the same number of trials on instructions that are not reported.

A trial trains a method with its settings and compares it with the start policy on the validation split. The first is
the recipe's own settings, so a search never ends below them on that split. The best of several noisy figures is too
high by chance: what is reported is another run, of the chosen settings on the evaluation split.

Trials are rows of a file per method, written as each ends. They and the seed decide what is tried next, and stages are
artifacts like a run's: a search that was killed goes on, and one that is done is extended by asking for more trials.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from afarm.core.errors import AfarmError, BudgetError, ConfigError, JudgeError, StoreError, TrainingError
from afarm.core.records import Row
from afarm.core.seeding import digest
from afarm.evaluation.metrics import main_metric
from afarm.experiment.dry_run import PlannedStage, plan_run
from afarm.experiment.farm import Farm
from afarm.experiment.recipe import BASED_ON, merge
from afarm.experiment.run_record import final_kl, headline
from afarm.experiment.search_space import WORST, SearchSpace, count_configurations, next_values
from afarm.experiment.workspace import Workspace
from afarm.storage.disk import write_whole
from afarm.storage.json_text import NOT_FINITE
from afarm.storage.rows import read_rows, write_rows

OpenWith = Callable[[str, int, Mapping[str, Any]], Workspace]
"""Opens the workspace of a method and a seed under further settings."""


OWN_STAGES = frozenset({"train", "outputs", "evaluate"})
"""The kinds of stages that each trial makes for itself."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that a chosen policy keeps: its KL to the start in nats per response, and its length.

    `length_ratio` is the mean length of its outputs, in characters, over the reference's.
    """

    kl: float | None = None
    length_ratio: float | None = None

    def excess(self, kl: float | None, length_ratio: float | None) -> float:
        """Return by which share the worse bound is exceeded, 0 if both are kept.

        Raises `ConfigError` if a bound is asked for that the method has no figure for.
        """
        shares = [0.0]
        for name, limit, value in (("KL", self.kl, kl), ("length", self.length_ratio, length_ratio)):
            if limit is not None and value is None:
                raise ConfigError([f"this method measures no {name}, so that no limit on it can be kept: leave it out"])
            if limit is not None and value is not None:
                shares.append(value / limit - 1)
        return max(shares)


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that were tried, and what came of them: means over seeds, the win rate in percent.

    `error` says why it failed. `excess` is by which share it exceeds a limit.
    """

    method: str
    number: int
    values: Mapping[str, Any]
    win_rate: float | None = None
    standard_error: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    excess: float = 0.0
    seconds: float = 0.0
    error: str = ""

    @property
    def worth(self) -> float:
        """The worth of it to the search: the win rate, below 0 past a limit, lowest if it failed."""
        if self.win_rate is None:
            return WORST
        return self.win_rate if self.excess <= 0 else -self.excess

    def to_row(self) -> Row:
        """Return it as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_row(cls, row: Row) -> Trial:
        """Read what `to_row` wrote. Raises `StoreError` if it is no trial."""
        try:
            return TypeAdapter(cls).validate_json(json.dumps(row), strict=True)
        except ValidationError as error:
            [problem, *_] = error.errors()
            where = ".".join(map(str, problem["loc"]))
            raise StoreError(f"a row of the trials is none: {where}: {problem['msg']}; remove its file") from error


@dataclass(frozen=True, slots=True)
class Tuning:
    """The trials of methods, in the order made, under `directory`."""

    directory: Path
    recipe: str
    trials: Mapping[str, Sequence[Trial]]

    def best(self, method: str) -> Trial | None:
        """Return the trial with the highest win rate of those within the limits; None if there is none."""
        eligible = [trial for trial in self.trials[method] if trial.win_rate is not None and trial.excess <= 0]
        return max(eligible, key=lambda trial: trial.worth, default=None)

    def write_recipe(self, given: Mapping[str, Any]) -> Path | None:
        """Write a recipe based on the tuned one, with what was `given` and the best values of each method.

        Choices of other methods that an earlier search wrote there are kept. Returns its path, None if nothing is
        chosen.
        """
        chosen = {method: dict(best.values) for method in self.trials if (best := self.best(method))}
        if not chosen:
            return None
        path = self.directory / f"{Path(self.recipe).stem}-tuned.yaml"
        earlier = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
        is_file = self.recipe.endswith((".yaml", ".yml"))
        base = {BASED_ON: str(Path(self.recipe).absolute()) if is_file else self.recipe}
        values = merge(merge({**earlier, **base}, given), chosen)
        write_whole(path, yaml.safe_dump(values, sort_keys=False), "make room or choose another --output-dir")
        return path


@dataclass(frozen=True)
class Search:
    """A search over the spaces of methods.

    `open_with` opens a trial's workspace. `seeds` are trained with each, `limits` what a choice must keep.
    """

    open_with: OpenWith
    spaces: Mapping[str, SearchSpace]
    seeds: Sequence[int]
    limits: Limits
    directory: Path

    @property
    def account(self) -> str:
        """The account of its trials, and of their budget: the same command goes on with it."""
        return tuning_account(self.directory)

    def run(self, trials: int, on_trial: Callable[[Trial, bool], None]) -> dict[str, list[Trial]]:
        """Make what is missing of `trials` of each method. `on_trial` gets each, and if it was there already.

        A trial that fails is kept with its error, and the search goes on. Of a space that holds no more configurations
        fewer are made. Raises `StoreError` if another process makes trials here, and `BudgetError` and `JudgeError` as
        they come.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(f"another process makes the trials in {self.directory}: wait until it ends") from error
            return {method: list(self._search(method, trials, on_trial)) for method in self.spaces}

    def _search(self, method: str, trials: int, on_trial: Callable[[Trial, bool], None]) -> Iterator[Trial]:
        space = self.spaces[method]
        kinds = {name: [type(values).__name__, values] for name, values in space.items()}  # as JSON both are arrays
        path = self.directory / f"{method.replace('/', '_')}-{digest(kinds, length=6)}.jsonl"
        done = [Trial.from_row(row) for row in read_rows(path)] if path.is_file() else []
        for number, trial in enumerate(done):
            own = trial.values.keys() == space.keys() and (trial.method, trial.number) == (method, number)
            if not own or not 0 <= (trial.win_rate or 0) <= 100:
                raise StoreError(f"{path}: row {number} is no trial of this search; remove the file to try anew")
        for number in range(trials):
            there = number < len(done)
            if not there:
                tried = [(trial.values, trial.worth) for trial in done]
                values = next_values(space, tried, self.seeds[0], method) if number else {}
                if values is None:
                    return
                done.append(self._make(method, number, values))
                write_rows(path, [trial.to_row() for trial in done])
            on_trial(done[number], there)
            yield done[number]

    def _make(self, method: str, number: int, values: dict[str, Any]) -> Trial:
        started, trial = time.time(), Trial(method, number, values)
        with ExitStack() as closing:
            try:
                opened = [closing.enter_context(self.open_with(method, seed, values)) for seed in self.seeds]
                of_method = opened[0].settings.of(opened[0].components.component("methods", method))
                own = {name: getattr(of_method, name) for name in self.spaces[method]}
                trial = replace(trial, values=values or own)
                figures = [self._measure(workspace, method) for workspace in opened]
            except (BudgetError, JudgeError, StoreError):  # no other trial would come further
                raise
            except AfarmError as error:
                if not trial.values:  # the recipe itself is wrong
                    raise
                trial = replace(trial, error=str(error))
            else:
                trial = replace(trial, **self._over_seeds(figures))
        return replace(trial, seconds=round(time.time() - started, 1))

    def _measure(self, workspace: Workspace, method: str) -> dict[str, float]:
        """Train, compare, and return what was measured."""
        with workspace.judges.client.accounted_to(self.account):
            result = Farm.over(workspace).evaluate(method)
        training = workspace.history.get(f"train {method}")
        trained = training.artifact.meta["summary"] if training else {}
        if final_kl(trained) in NOT_FINITE:
            raise TrainingError(f"the KL of what {method} made is {final_kl(trained)}: no limit on it can be kept")
        figures = headline(result, trained)
        for _, evaluation in result.evaluations:
            if main := main_metric(evaluation.evaluator, evaluation.metrics):
                figures.setdefault(main.name, main.value)
        return {name: float(value) for name, value in figures.items() if value is not None}

    def _over_seeds(self, found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """Return the fields of a trial: means over seeds, with the error of the mean if there are several."""
        from afarm.statistics.intervals import mean

        shared = [name for name in found[0] if all(name in figures for figures in found)]
        figures = {name: sum(f[name] for f in found) / len(found) for name in shared}
        if len(found) > 1:
            figures["standard_error"] = mean([f["win_rate"] for f in found]).error or 0.0
        ratio = figures["length"] / figures["length_reference"] if figures.get("length_reference") else None
        own = ("win_rate", "standard_error", "length_reference", "reward_reference")
        return {
            "win_rate": figures["win_rate"],
            "standard_error": figures.get("standard_error"),
            "excess": self.limits.excess(figures.get("kl"), ratio),
            "figures": {name: value for name, value in figures.items() if name not in own}
            | ({} if ratio is None else {"length_ratio": ratio}),
        }


def count_trials(space: SearchSpace, trials: int) -> int:
    """Return how many of `trials` there can be: the recipe's own settings, and all of the space."""
    size = count_configurations(space)
    return trials if size is None else min(trials, size + 1)


def plan_search(
    workspace: Workspace, method: str, spaces: Mapping[str, SearchSpace], trials: int, seeds: int
) -> list[PlannedStage]:
    """Plan all trials as if each were the first of `method`; samples and labels are shared per seed."""
    own = seeds * sum(count_trials(space, trials) for space in spaces.values())
    planned = plan_run(workspace, method)
    return [stage.times(own if stage.kind in OWN_STAGES else seeds) for stage in planned]


def tuning_account(directory: Path) -> str:
    """Name the account of the search whose trials are in `directory`."""
    return f"tune-{directory.name}"


def tuning_directory(workspace: Workspace, seeds: Sequence[int], limits: Limits) -> Path:
    """Return where the trials of a search are: one place for equal settings, seeds and limits.

    `workspace` is of any method without further settings.
    """
    settings = workspace.settings
    name = digest(workspace.run_name("tune"), list(seeds), asdict(limits), length=6)
    return workspace.store.root / "tunings" / f"{Path(settings.recipe).stem}-{name}"
