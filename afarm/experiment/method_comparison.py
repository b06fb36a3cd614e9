"""Methods compared on shared samples, preferences and reward model, over one seed or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from afarm.core.records import Row
from afarm.core.seeding import digest
from afarm.evaluation.metrics import win_rate_interval
from afarm.experiment.result import Result
from afarm.storage.table import Tabular, html_table

COLUMNS = ("method", "win_rate", "low", "high", "seeds")


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

        Over several seeds `standard_error` and interval are those of their mean (Student's t), so they hold for other
        seeds too; for one seed, those over its instructions.
        """
        rows = [self._row(method) for method in dict.fromkeys(name for name, _ in self.results)]
        return sorted(rows, key=lambda row: -row["win_rate"])

    def _row(self, method: str) -> Row:
        from afarm.statistics.intervals import mean

        results = {seed: result for (name, seed), result in self.results.items() if name == method}
        rates = [result.win_rate for result in results.values()]
        seeds = ", ".join(map(str, results))
        if len(rates) > 1:
            over = mean(rates)
            error, between = over.error, (over.low, over.high)
        else:
            [result] = results.values()
            metrics = next(e.metrics for _, e in result.evaluations if "win_rate" in e.metrics)
            error, between = result.standard_error, win_rate_interval(metrics) or (None, None)
        row: Row = {"method": method, "win_rate": sum(rates) / len(rates), "standard_error": error}
        row |= {"low": between[0], "high": between[1], "seeds": seeds}
        return row | ({f"seed {seed}": result.win_rate for seed, result in results.items()} if len(rates) > 1 else {})

    def to_dict(self) -> list[Row]:
        return self.table_rows()

    def __repr__(self) -> str:
        rows = [f"{row['method']} {row['win_rate']:.1f} %" for row in self.table_rows()]
        failed = f"; {len(self.failed)} failed" if self.failed else ""
        return f"MethodComparison({', '.join(rows)}{failed})"

    def _repr_html_(self) -> str:
        rows = [[row[name] for name in COLUMNS] for row in self.table_rows()]
        return html_table(
            COLUMNS, rows, "; ".join(f"{name}, seed {seed}: {why}" for (name, seed), why in self.failed.items())
        )


def account_of(runs: Iterable[str]) -> str:
    """Name the account of a comparison of `runs`: the same command goes on with its budget."""
    return f"compare-{digest(sorted(runs), length=8)}"
