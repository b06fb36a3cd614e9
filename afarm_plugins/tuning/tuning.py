"""Settings of methods, chosen by the same number of trials on instructions that are not reported.

A trial trains a method with its settings and compares it with the start policy on the validation split. The first is
the recipe's own settings. Trials have the first seed. The best of them and the recipe's own settings, the finalists,
are then made with the other seeds too, and the best mean is chosen: settings that win with one seed may collapse with
the next. The best of several noisy figures is too high by chance: what is reported is another run, of the chosen
settings on the evaluation split.

Trials are rows of a file per method, written as each ends. They and the seed decide what is tried next, and stages are
artifacts like a run's: a search that was killed goes on, and one that is done is extended by asking for more trials.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter, ValidationError

from afarm import (
    AfarmError,
    BudgetError,
    ConfigError,
    DataError,
    Farm,
    JudgeError,
    Row,
    StoreError,
    TrainingError,
    read_rows,
    seeding,
    standard_error,
    write_rows,
    write_whole,
)
from afarm.experiments import (
    BASED_ON,
    OWN_STAGES,
    Launched,
    PlannedStage,
    Systems,
    Workspace,
    final_kl,
    headline,
    merge,
    plan_run,
)
from afarm.results import NOT_FINITE, WIN_RATE, MainMetric, main_metric, warnings
from afarm_plugins.tuning.search_space import WORST, SearchSpace, count_configurations, next_values

OpenWith = Callable[[str, int, Mapping[str, Any]], Workspace]
"""Opens the workspace of a method and a seed under further settings."""


Prepare = Callable[[Systems, str], Launched | None]
"""Has a launcher make what is missing of several systems, paid from an account."""


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


NOT_SHOWN = ("standard_error", "reward_reference")
"""Figures of a run's headline that a trial leaves out."""


class NoWinRate(ConfigError):
    """The evaluator of `--by` gives no win rate: no other trial would have one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that were tried and their figures, means over so many `seeds`; the win rate in percent.

    The win rate is by the search's evaluator. `error` says why it failed. `excess` is by which
    share it exceeds a limit. `seconds` are of its own stages. `by_instruction` are the values whose mean the win
    rate is; empty if its evaluator gives none, or over several seeds.
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
    seeds: int = 1
    by_instruction: Mapping[str, float] = field(default_factory=dict)

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
    """The trials of methods, in the order made, and their finalists over all seeds, under `directory`.

    `by` is the evaluator whose win rates they have.
    """

    directory: Path
    recipe: str
    trials: Mapping[str, Sequence[Trial]]
    finals: Mapping[str, Sequence[Trial]]
    by: str = WIN_RATE

    def best(self, method: str) -> Trial | None:
        """Return the best finalist, or the best trial if there is one seed; None if none keeps the limits."""
        return next(iter(best_first(self.finals[method] or self.trials[method])), None)

    def recipes_own(self, method: str) -> Trial:
        """Return what the recipe's own settings came to, over all seeds if there are several."""
        return next((trial for trial in self.finals[method] if trial.number == 0), self.trials[method][0])

    def p_equal(self, method: str) -> float | None:
        """Return the probability that equal settings would lie as far apart as the trials of `method`.

        Trials are paired by instruction. None if that cannot be said: fewer than two trials have values of each, or
        these are no more instructions than trials. Two trainings with the same settings differ besides, so a small one
        does not prove that settings do.
        """
        from afarm_plugins.tuning.equal_means import equal_means

        values = [trial.by_instruction for trial in self.trials[method] if trial.win_rate is not None]
        shared = [name for name in values[0] if all(name in others for others in values)] if values else []
        if not 1 < len(values) < len(shared):
            return None
        return equal_means([[of_trial[name] for name in shared] for of_trial in values])

    def write_recipe(self, given: Mapping[str, Any]) -> Path | None:
        """Write a recipe based on the tuned one, with what was `given` and the best values of each method.

        Choices of other methods that an earlier search wrote there are kept. Returns its path, None if nothing is
        chosen. Raises `StoreError` if what is there is no recipe.
        """
        chosen = {method: dict(best.values) for method in self.trials if (best := self.best(method))}
        if not chosen:
            return None
        path = _tuned(self.directory, self.recipe)
        earlier = _earlier_choices(path)
        is_file = self.recipe.endswith((".yaml", ".yml"))
        base = {BASED_ON: str(Path(self.recipe).absolute()) if is_file else self.recipe}
        values = merge(merge({**earlier, **base}, given), chosen)
        write_whole(path, yaml.safe_dump(values, sort_keys=False), "make room or choose another --output-dir")
        return path


class Measurement(NamedTuple):
    """The win rate that one training is chosen by, its values by instruction, and other figures."""

    win_rate: MainMetric
    by_instruction: Mapping[str, float]
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Search:
    """A search over the spaces of methods.

    `lay_out_run` opens a trial's workspace. Trials have the first of `seeds`, and so many `finalists` have all of them.
    `by` names the evaluator whose win rate chooses, and `limits` are what a choice must keep. `identities` change with
    the methods' code: edited, they are tried anew.
    """

    lay_out_run: OpenWith
    spaces: Mapping[str, SearchSpace]
    identities: Mapping[str, Mapping[str, Any]]
    seeds: Sequence[int]
    finalists: int
    limits: Limits
    directory: Path
    recipe: str
    by: str = WIN_RATE
    prepare: Prepare | None = None

    @property
    def account(self) -> str:
        """The account of its trials, and of their budget: the same command goes on with it."""
        return tuning_account(self.directory)

    def run(self, trials: int, on_trial: Callable[[Trial, bool], None]) -> Tuning:
        """Make what is missing of `trials` of each method. `on_trial` gets each, and if it was there already.

        A trial that fails is kept with its error, and the search goes on. Of a space that holds no more configurations
        fewer are made. Raises `StoreError` if another process makes trials here, or what an earlier one chose cannot be
        added to, and `BudgetError` and `JudgeError` as they come.
        """
        _earlier_choices(_tuned(self.directory, self.recipe))
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreError(f"another process makes the trials in {self.directory}: wait until it ends") from error
            made: dict[str, Sequence[Trial]] = {}
            finals: dict[str, Sequence[Trial]] = {}
            for methods in [list(self.spaces)] if self.prepare else [[method] for method in self.spaces]:
                made |= self._search(methods, trials, on_trial)
                for method in methods:
                    finals[method] = list(self._decide(method, made[method], on_trial))
            return Tuning(self.directory, self.recipe, made, finals, self.by)

    def _search(
        self, methods: Sequence[str], trials: int, on_trial: Callable[[Trial, bool], None]
    ) -> dict[str, Sequence[Trial]]:
        """Make what is missing of `trials` of each method: the first of each, then the second, and so on.

        A launcher makes trials with the same number side by side.
        """
        done = {method: self._read(self._path(method), method) for method in methods}
        for method, made in done.items():
            if missing := [number for number, trial in enumerate(made) if trial.number != number]:
                raise _not_of_this_search(self._path(method), missing[0])
        for number in range(trials):
            wanted = {
                method: values
                for method in methods
                if len(done[method]) == number and (values := self._values(method, done[method])) is not None
            }
            self._prepare_all([(method, values, self.seeds[0]) for method, values in wanted.items()])
            for method in methods:
                if method in wanted:
                    done[method].append(self._make(method, number, wanted[method], self.seeds[:1]))
                    write_rows(self._path(method), [trial.to_row() for trial in done[method]])
                if number < len(done[method]):
                    on_trial(done[method][number], method not in wanted)
        return {method: there[:trials] for method, there in done.items()}

    def _values(self, method: str, done: Sequence[Trial]) -> Mapping[str, Any] | None:
        """Return the settings of the next trial, first the recipe's own; None if no more are left."""
        tried = [(trial.values, trial.worth) for trial in done]
        return next_values(self.spaces[method], tried, self.seeds[0], method) if done else {}

    def _decide(self, method: str, trials: Sequence[Trial], on_trial: Callable[[Trial, bool], None]) -> Iterator[Trial]:
        """Make the finalists among `trials` with all seeds; none if nothing is left to decide."""
        best = best_first(trials)[: self.finalists]
        finalists = sorted({trial.number for trial in best} | {0})
        if len(self.seeds) == 1 or not best:
            return
        path = self._path(method, seeding.digest(list(self.seeds), length=6))
        done = {trial.number: trial for trial in self._read(path, method)}
        if missing := [trials[number].values for number in finalists if number not in done]:
            self._prepare_all([(method, values, seed) for values in missing for seed in self.seeds])
        for number in finalists:
            there = number in done
            if not there:
                done[number] = self._make(method, number, trials[number].values, self.seeds)
                write_rows(path, [done[number].to_row() for number in sorted(done)])
            on_trial(done[number], there)
            yield done[number]

    def _prepare_all(self, wanted: Sequence[tuple[str, Mapping[str, Any], int]]) -> None:
        """Have the launcher, if there is one, make these side by side: a method, its settings and a seed each."""
        if self.prepare is None or not wanted:
            return
        with ExitStack() as closing:
            systems = []
            for method, values, seed in wanted:
                with suppress(AfarmError):  # its trial will tell
                    systems.append((method, closing.enter_context(self.lay_out_run(method, seed, values))))
            if systems:
                self.prepare(systems, self.account)

    def _path(self, method: str, finals: str = "") -> Path:
        kinds = {name: [type(values).__name__, values] for name, values in self.spaces[method].items()}  # JSON: arrays
        name = f"{method.replace('/', '_')}-{seeding.digest(kinds, self.identities[method], length=6)}"
        return self.directory / (f"finals-{name}-{finals}.jsonl" if finals else f"{name}.jsonl")

    def _read(self, path: Path, method: str) -> list[Trial]:
        """Read trials of this method and space. Raises `StoreError` for others."""
        found = [Trial.from_row(row) for row in read_rows(path)] if path.is_file() else []
        for row, trial in enumerate(found):
            own = trial.values.keys() == self.spaces[method].keys() and trial.method == method
            if not own or not 0 <= (trial.win_rate or 0) <= 100:
                raise _not_of_this_search(path, row)
        return found

    def _make(self, method: str, number: int, values: Mapping[str, Any], seeds: Sequence[int]) -> Trial:
        started, trial = time.time(), Trial(method, number, values, seeds=len(seeds))
        with ExitStack() as closing:
            try:
                opened = [closing.enter_context(self.lay_out_run(method, seed, values)) for seed in seeds]
                of_method = opened[0].settings.of(opened[0].components.component("methods", method))
                own = {name: getattr(of_method, name) for name in self.spaces[method]}
                trial = replace(trial, values=values or own)
                if self.prepare and (made := self.prepare([(method, each) for each in opened], self.account)):
                    for workspace in opened:
                        made.hand_over(workspace)
                figures = [self._measure(workspace, method) for workspace in opened]
            except (BudgetError, JudgeError, StoreError, NoWinRate):  # no other trial would come further
                raise
            except AfarmError as error:
                if not trial.values:  # the recipe itself is wrong
                    raise
                trial = replace(trial, error=str(error))
            else:
                return replace(trial, **self._over_seeds(figures), seconds=_seconds(opened, method))
        return replace(trial, seconds=round(time.time() - started, 1))

    def _measure(self, workspace: Workspace, method: str) -> Measurement:
        """Train, compare, and return the win rate that it is chosen by, and what else was measured."""
        with workspace.judges.client.charge_run(self.account):
            result = Farm.over(workspace).evaluate(method)
        training = workspace.history.get(f"train {method}")
        trained = training.artifact.meta["summary"] if training else {}
        if final_kl(trained) in NOT_FINITE:
            raise TrainingError(f"the KL of what {method} made is {final_kl(trained)}: no limit on it can be kept")
        mains: dict[str, MainMetric] = {}
        for _, evaluation in result.evaluations:  # against the first reference, if there are several
            main = main_metric(evaluation.evaluator, evaluation.metrics)
            if main is not None:
                mains.setdefault(evaluation.evaluator, main)
            elif evaluation.evaluator == self.by:
                why = "; ".join(warnings(evaluation.metrics).values())
                raise DataError(f"evaluator {self.by} gave no figure of what {method} made{why and f': {why}'}")
        chosen = mains.pop(self.by)
        if not chosen.is_win_rate:
            given = f"this evaluator gives {chosen.name} {chosen.value:g}"
            raise NoWinRate(f"--by {self.by}: settings are chosen by a win rate in percent, and {given}")
        figures = {name: value for name, value in headline(result, trained).items() if name not in NOT_SHOWN}
        if self.by == WIN_RATE:
            del figures["win_rate"]
        for evaluator, main in mains.items():
            if main.name != evaluator and main.name in {chosen.name, *figures}:  # of another judge, or of a headline
                figures[f"{evaluator} {main.name}"] = main.value
            else:
                figures.setdefault(main.name, main.value)
        known = {name: float(value) for name, value in figures.items() if value is not None}
        return Measurement(chosen, result.by_instruction(self.by), known)

    def _over_seeds(self, found: Sequence[Measurement]) -> dict[str, Any]:
        """Return the fields of a trial: means over seeds, with the error of the mean if there are several."""
        rates, each = [made.win_rate for made in found], [made.figures for made in found]
        values = [rate.value for rate in rates]
        figures = {name: sum(f[name] for f in each) / len(each) for name in each[0] if all(name in f for f in each)}
        reference = figures.pop("length_reference", None)
        ratio = {"length_ratio": figures["length"] / reference} if reference and "length" in figures else {}
        return {
            "win_rate": fmean(values),
            "standard_error": rates[0].error if len(rates) == 1 else standard_error(values),
            "excess": self.limits.excess(figures.get("kl"), ratio.get("length_ratio")),
            "figures": figures | ratio,
            "by_instruction": found[0].by_instruction if len(found) == 1 else {},
        }


def _seconds(workspaces: Iterable[Workspace], method: str) -> float:
    """Sum what the stages that are the trial's own took to make, here or by a launcher."""
    runs = [run for workspace in workspaces for run in workspace.history.values()]
    own = [run for run in runs if run.kind in OWN_STAGES and method in run.label.split()]
    return round(sum(float(run.artifact.meta["seconds"]) for run in own), 1)


def best_first(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that succeeded and keep the limits, the best first."""
    eligible = [trial for trial in trials if trial.win_rate is not None and trial.excess <= 0]
    return sorted(eligible, key=lambda trial: -trial.worth)


def _tuned(directory: Path, recipe: str) -> Path:
    return directory / f"{Path(recipe).stem}-tuned.yaml"


def _earlier_choices(path: Path) -> dict[str, Any]:
    """Read the recipe of an earlier search; empty without one. Raises `StoreError` if it is none."""
    if not path.exists():
        return {}
    try:
        earlier = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        earlier = None
    if not isinstance(earlier, dict):
        raise StoreError(f"{path}: no recipe that choices could be added to: mend it, or remove it (trials are kept)")
    return earlier


def _not_of_this_search(path: Path, row: int) -> StoreError:
    return StoreError(f"{path}: row {row} is no trial of this search; remove the file to try anew")


def count_trials(space: SearchSpace, trials: int) -> int:
    """Return how many of `trials` there can be: the recipe's own settings, and all of the space."""
    size = count_configurations(space)
    return trials if size is None else min(trials, size + 1)


def count_trainings(space: SearchSpace, trials: int, finalists: int, seeds: int) -> int:
    """Return how often a method is trained at most: in trials, and as finalists with further seeds."""
    most = count_trials(space, trials)
    return most + min(most, finalists + 1) * (seeds - 1)


def plan_search(
    workspace: Workspace, method: str, spaces: Mapping[str, SearchSpace], trials: int, finalists: int, seeds: int
) -> list[PlannedStage]:
    """Plan all trials as if each were the first of `method`; samples and labels are shared per seed."""
    own = sum(count_trainings(space, trials, finalists, seeds) for space in spaces.values())
    planned = plan_run(workspace, method)
    return [stage.times(own if stage.kind in OWN_STAGES else seeds) for stage in planned]


def tuning_account(directory: Path) -> str:
    """Name the account of the search whose trials are in `directory`."""
    return f"tune-{directory.name}"


def tuning_directory(workspace: Workspace, seed: int, limits: Limits, by: str = WIN_RATE) -> Path:
    """Return where a search's trials are: one place for equal settings, first seed, limits and evaluator.

    `workspace` is of any method without further settings.
    """
    settings = workspace.settings
    chosen_by = [] if by == WIN_RATE else [by, workspace.components.evaluator_identity(by)]
    name = seeding.digest(workspace.run_name("tune"), [seed], asdict(limits), *chosen_by, length=6)
    return workspace.store.root / "tunings" / f"{Path(settings.recipe).stem}-{name}"
