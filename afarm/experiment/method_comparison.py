"""Methods compared on shared samples, preferences and reward model, over one seed or several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import Any, TypeVar

from afarm.core.errors import AfarmError, BudgetError, ConfigError, JudgeError
from afarm.core.records import Row
from afarm.core.seeding import digest
from afarm.evaluation.metrics import WIN_RATE, win_rate_interval, within_percent
from afarm.experiment.result import Result
from afarm.experiment.workspace import Workspace, tell_once
from afarm.storage.table import Tabular, html_table
from afarm.storage.text import one_line

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class MethodComparison(Tabular):
    """The results of methods, by (method, seed), and the errors of those that `failed`, by the same.

    Indexed by a method, it returns its results, seed by seed.
    """

    results: Mapping[tuple[str, int], Result]
    failed: Mapping[tuple[str, int], str] = field(default_factory=dict)

    def __getitem__(self, method: str) -> list[Result]:
        found = [result for (name, _), result in self.results.items() if name == method]
        if not found:
            raise KeyError(method)
        return found

    def table_rows(self) -> list[Row]:
        """The methods, best first: `win_rate` in percent, the mean over seeds, with its 95% interval.

        Over several seeds `standard_error` and interval describe their mean (Student's t), so they hold for other seeds
        too; for one seed they are over its instructions. Both are None if all seeds agree to the last digit.
        """
        rows = [self._row(method) for method in dict.fromkeys(name for name, _ in self.results)]
        return sorted(rows, key=lambda row: -row["win_rate"])

    def _row(self, method: str) -> Row:
        from afarm.evaluation.statistics.intervals import mean

        results = {seed: result for (name, seed), result in self.results.items() if name == method}
        rates = [result.win_rate for result in results.values()]
        seeds = ", ".join(map(str, results))
        if len(rates) > 1:
            over = mean(rates)
            error = over.error or None
            between = within_percent(over.low or 0.0, over.high or 0.0) if error else None
        else:
            [result] = results.values()
            metrics = next(e.metrics for _, e in result.evaluations if "win_rate" in e.metrics)
            error, between = result.standard_error, win_rate_interval(metrics)
        row: Row = {"method": method, "win_rate": sum(rates) / len(rates), "standard_error": error}
        low, high = between or (None, None)
        row |= {"low": low, "high": high, "seeds": seeds}
        return row | ({f"seed {seed}": result.win_rate for seed, result in results.items()} if len(rates) > 1 else {})

    def to_dict(self) -> list[Row]:
        return self.table_rows()

    def __repr__(self) -> str:
        shown = self._texts()
        if not shown:
            return "MethodComparison: nothing was compared"
        width, seeds = max(len(name) for name, *_ in shown), shown[0][3]
        references = dict.fromkeys(
            reference for result in self.results.values() for reference, _ in result.evaluations[:1]
        )
        against = f" against {', '.join(references)}" if references else ""
        lines = [f"MethodComparison: win rates{against}{f', seeds {seeds}' if ',' in seeds else ''}"]
        for name, rate, more, _ in shown:
            end = f"failed: {more}" if rate == "failed" else f"{rate:>7}{f' ({more})' if more else ''}"
            lines.append(f"  {name:{width}}  {end}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(["method", "win rate", "interval", "seeds"], self._texts())

    def _texts(self) -> list[tuple[str, str, str, str]]:
        """Return the texts of each method, best first, and of those that failed."""
        shown = []
        for row in self.table_rows():
            interval = "" if row["low"] is None else f"95 % {row['low']:.1f} to {row['high']:.1f}"
            shown.append((row["method"], f"{row['win_rate']:.1f} %", interval, row["seeds"]))
        several = len({seed for _, seed in [*self.results, *self.failed]}) > 1
        for (name, seed), why in self.failed.items():
            shown.append((f"{name}, seed {seed}" if several else name, "failed", one_line(why, 200), ""))
        return shown


# ------------------------------------------------------------------------------------------------ one after another


def run_each(
    laid_out: Sequence[tuple[str, Workspace]], run: Callable[[str, Workspace], T], tell: Callable[[str], None]
) -> Iterator[tuple[str, Workspace, T | AfarmError]]:
    """Run systems one after another, each in its workspace, and yield what came of each, or its error.

    They share one budget (`name_account`), and a stage that several use is reported once. `tell` is called with a
    heading for each of several. A workspace is closed when its system is through. Raises `BudgetError` and
    `JudgeError`, after which the others would come no further.
    """
    account, told = name_account(workspace.run_name(system) for system, workspace in laid_out), set[str]()
    seeds = len({workspace.config.seed for _, workspace in laid_out})
    for number, (system, workspace) in enumerate(laid_out, start=1):
        if len(laid_out) > 1:
            seed = f", seed {workspace.config.seed}" if seeds > 1 else ""
            tell(f"method {number} of {len(laid_out)}: {one_line(system)}{seed}")
        workspace.on_stage = partial(tell_once, told, workspace.on_stage)
        outcome: T | AfarmError
        try:
            with workspace.judges.client.charge_run(account):
                outcome = run(system, workspace)
        except (BudgetError, JudgeError):
            raise
        except AfarmError as error:
            outcome = error
        workspace.close()
        yield system, workspace, outcome


def name_account(runs: Iterable[str]) -> str:
    """Name the account of a comparison of `runs`: repeating the command continues with the same budget."""
    return f"compare-{digest(sorted(runs), length=8)}"


def is_reference_system(workspace: Workspace, system: str) -> bool:
    """Tell if `system` is the reference that the others are compared with."""
    return system == workspace.start_name and workspace.config.evaluate.reference != "data"


def require_win_rate(workspace: Workspace, use: str = "compare ranks") -> None:
    """Raise `ConfigError` if the recipe does not evaluate the win rate, which `use` goes by."""
    if WIN_RATE not in workspace.config.evaluate.evaluators:
        raise ConfigError(f"{use} by the win rate: add win_rate to evaluate.evaluators")


def named_methods(methods: Any) -> list[str]:
    """List the methods of a comparison: names, or one text with commas between. Raises `ConfigError`."""
    given = methods.split(",") if isinstance(methods, str) else list(methods) if isinstance(methods, Iterable) else []
    names = [name for name in given if name.strip()] if isinstance(methods, str) else given
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigError(f'methods: name one or more, such as "ppo,dpo" or ["ppo", "dpo"], not {methods!r:.80}')
    return list(dict.fromkeys(name.strip() for name in names))


def listed_seeds(seeds: Any) -> list[int]:
    """List the seeds of a comparison. Raises `ConfigError` for what is no list of whole numbers."""
    numbers: list[Any] = list(seeds) if isinstance(seeds, Iterable) else [None]
    if not all(isinstance(seed, Integral) and not isinstance(seed, bool) for seed in numbers):
        raise ConfigError(f"seeds is a list of whole numbers, such as seeds=[1, 2, 3], not {seeds!r:.80}")
    refuse_repeats(whole_numbers := [int(seed) for seed in numbers], "seeds")
    return whole_numbers


def refuse_repeats(seeds: Sequence[int], option: str) -> None:
    """Raise `ConfigError` if a seed is repeated, which would look like more runs than there are."""
    if twice := [seed for number, seed in enumerate(seeds) if seed in seeds[:number]]:
        raise ConfigError(f"{option} names {twice[0]} twice: one seed is one run, so name each once")
