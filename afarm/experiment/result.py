"""The result of evaluating a system."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from afarm.core.records import Evaluation, JudgedPair, Row
from afarm.evaluation.metrics import WIN_RATE, finite_number, group_means, main_metric, win_rate_interval, with_error
from afarm.evaluation.red_flags import flag_sentences
from afarm.experiment.evaluation_stages import RED_FLAGS
from afarm.storage.artifacts import Artifact
from afarm.storage.rows import preferences_on_disk, read_rows
from afarm.storage.table import Tabular, html_table


@dataclass(frozen=True, slots=True, repr=False)
class Result(Tabular):
    """A system's evaluations, each with the name of its reference, and the judgements behind them.

    `judged_by` names who judged against the first reference, such as "openai:gpt-4o with prompt gpt4_4".
    `flags` are sentences on what makes the figures doubtful: outputs that game the judge, or a judge with known faults.
    """

    system: str
    evaluations: tuple[tuple[str, Evaluation], ...]
    judgements: Mapping[str, Sequence[JudgedPair]] = field(default_factory=dict)
    judged_by: str = ""
    flags: tuple[str, ...] = ()

    def metric(self, name: str) -> float:
        """Return a number by its name, from the first evaluation that has it. Raises `KeyError`."""
        for _, evaluation in self.evaluations:
            if isinstance(value := evaluation.metrics.get(name), int | float):
                return float(value)
        raise KeyError(name)

    @property
    def win_rate(self) -> float:
        """Percent, against the first reference."""
        return self.metric("win_rate")

    @property
    def standard_error(self) -> float:
        """Of the win rate, in percentage points."""
        return self.metric("standard_error")

    def by_instruction(self, evaluator: str) -> dict[str, float]:
        """Return what an evaluator's main metric is the mean of, by instruction id.

        It is that against the first reference, win rates in percent, without what has no usable label. Empty if the
        evaluator gives no such values, or has not run.
        """
        reference, found = next((made for made in self.evaluations if made[1].evaluator == evaluator), ("", None))
        if found is None:
            return {}
        if evaluator == WIN_RATE:
            labels = [(row.pair.instruction.id, row.win) for row in self.judgements[reference]]
            usable = [(name, 100 * win) for name, win in labels if win is not None]
        else:
            main = main_metric(evaluator, found.metrics)
            values = [(row.get("instruction"), finite_number(row.get(main.name))) for row in found.rows] if main else []
            usable = [(name, value) for name, value in values if isinstance(name, str) and value is not None]
        return group_means(*zip(*usable, strict=True)) if usable else {}

    def degraded(self, reference: str) -> dict[str, int]:
        """Count the judgements against `reference` that were made without a parameter, by its name."""
        return dict(Counter(name for row in self.judgements[reference] for name in row.preference.degraded))

    def to_dict(self) -> dict[str, Any]:
        """Return the system, its evaluations and its flags as JSON values, without the judgements."""
        rows = [
            {"reference": reference, "evaluator": found.evaluator, "metrics": dict(found.metrics)}
            for reference, found in self.evaluations
        ]
        return {"system": self.system, "judged_by": self.judged_by, "evaluations": rows, "flags": list(self.flags)}

    def table_rows(self) -> Iterable[Row]:
        """Yield a row per reference: system, who judged, all metrics (`evaluator.name` where two differ)."""
        rows: dict[str, Row] = {}
        for reference, found in self.evaluations:
            row = rows.setdefault(
                reference, {"system": self.system, "reference": reference, "judged_by": self.judged_by}
            )
            for name, value in found.metrics.items():
                row[name if row.get(name, value) == value else f"{found.evaluator}.{name}"] = value
        yield from rows.values()

    def __repr__(self) -> str:
        by_reference: dict[str, list[str]] = {}
        for reference, found in self.evaluations:
            by_reference.setdefault(reference, []).append(evaluation_text(found))
        parts = [f"against {reference}: {'; '.join(texts)}" for reference, texts in by_reference.items()]
        judged = f", judged by {self.judged_by}" if self.judged_by else ""
        flagged = "".join(f"; flag: {flag}" for flag in self.flags)
        return f"Result({self.system} {' | '.join(parts) or 'without an evaluation'}{judged}{flagged})"

    def _repr_html_(self) -> str:
        rows = [(reference, found.evaluator, evaluation_text(found)) for reference, found in self.evaluations]
        rows += [("", "flag", flag) for flag in self.flags]
        judged = f", judged by {self.judged_by}" if self.judged_by else ""
        return html_table(["against", "evaluator", "result"], rows, self.system + judged)


def evaluation_text(evaluation: Evaluation) -> str:
    """Write an evaluation's main metric with its error; a win rate with its 95% interval and number."""
    main = main_metric(evaluation.evaluator, evaluation.metrics)
    if main is None:
        return evaluation.evaluator
    if main.name != "win_rate":
        text = f"{main.name} {main.text}"
        if main.reference is not None:
            text += f" (reference {main.reference:.3f}"
            if main.difference is not None:
                text += f", difference {with_error(main.difference, main.difference_error)}"
            text += ")"
        return text
    between = win_rate_interval(evaluation.metrics)
    text = f"win rate {main.value:.1f} %"
    text += "" if between is None else f" (95 % {between[0]:.1f} to {between[1]:.1f})"
    count = evaluation.metrics.get("n_total")
    return text + (f", n {count:,}" if isinstance(count, int) else "")


def read_result(system: str, artifacts: Iterable[Artifact]) -> Result:
    """Read what is stored of the evaluations of `system`."""
    evaluations: list[tuple[str, Evaluation]] = []
    judgements: dict[str, Sequence[JudgedPair]] = {}
    flags: dict[str, None] = {}
    judged_by = ""
    for artifact in artifacts:
        red_flags = json.loads((artifact.path / RED_FLAGS).read_text(encoding="utf-8"))
        flags |= dict.fromkeys(flag_sentences(red_flags))
        for row in read_rows(artifact.path / "results.jsonl"):
            evaluations.append((row["reference"], Evaluation.from_row(row)))
            judgements[row["reference"]] = preferences_on_disk(artifact.path / "judgements.jsonl")
            judged_by = judged_by or row.get("judged_by", "")
    return Result(system, tuple(evaluations), judgements, judged_by, tuple(flags))
