"""Outputs compared from Python: one function, with a farm at hand or without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from afarm.core.errors import ConfigError, type_name
from afarm.core.records import Output
from afarm.evaluation.matching import STRICT, MatchPolicy
from afarm.experiment import preflight
from afarm.experiment.comparison.outputs import OutputComparison
from afarm.experiment.farm import Farm, as_overrides
from afarm.experiment.judge_choices import describe_choices
from afarm.experiment.opening import open_workspace
from afarm.experiment.result import Result, read_result
from afarm.experiment.workspace import Workspace
from afarm.storage.named_code import name_code
from afarm.storage.rows import read_outputs, stem

RECIPE = "outputs"
"""The recipe of files of outputs if none is named, which names no judge."""

Outputs = str | Path | Sequence[Output]
"""Outputs of a system, or the file or data set of the Hub that holds them."""


def compare_outputs(
    outputs: Outputs,
    reference: Outputs,
    *,
    annotator: str | None = None,
    match_policy: MatchPolicy = STRICT,
    farm: Farm | None = None,
    recipe: str | None = None,
    settings: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] = (),
    output_dir: Path | str | None = None,
    ledger: Path | str | None = None,
    **choices: Any,
) -> Result:
    """Return the win rate of any outputs over any others. It is kept and reused, on a budget of its own.

    Args:
        outputs: The system's outputs, called by their `generator`, or the file (or `hf:` name) that holds them.
        reference: The reference's outputs, in the same way.
        annotator: Who judges; `evaluate.annotator` if not given.
        match_policy: What is done with rows that do not fit.
        farm: A farm whose configuration, judges and output directory are used. The arguments below are for use without
            one; then no model, no data and no torch is needed.
        recipe: A recipe by name, or a YAML file, for its judges, annotators and evaluators. Without one a judge must
            be named (`judge="openai:gpt-4.1"`), unless the annotator needs none.
        settings: Overrides, one or several, as `"evaluate.label_noise=0.1"` or as mappings.
        output_dir: Where everything is kept; `afarm-runs` if not given.
        ledger: Where the answers of judges are kept, as for `Farm`.
        **choices: Fields of `RunConfig` (`seed=1, judge={"*": "openai:gpt-4.1"}`).

    Raises `DataError` if rows do not fit and `match_policy` is strict, `ConfigError` with every problem at once.
    """
    name_code([annotator])
    ours, theirs = _rows(outputs, "outputs"), _rows(reference, "reference")
    unused = [*choices, *(["settings"] if settings else []), *(["recipe"] if recipe else [])]
    unused += [*(["output_dir"] if output_dir else []), *(["ledger"] if ledger else [])]
    if farm is not None and unused:
        raise ConfigError([f"compare_outputs: the farm has its own {name}; leave it out" for name in unused])
    with ExitStack() as stack:
        if farm is not None:
            workspace = farm.workspace
        else:

            def name_choices(opened: Workspace) -> str:
                comparison = OutputComparison.of(opened, ours, theirs, None, match_policy)
                return describe_choices(opened, [comparison.labelling], 'judge="{judge}"')

            checks = [*preflight.judging_checks(name_choices), *preflight.access_checks()]
            overrides = as_overrides(settings, **choices)
            overrides += [{"evaluate": {"annotator": annotator}}] if annotator else []
            place = output_dir or "afarm-runs"
            opened = open_workspace(recipe or RECIPE, overrides, place, checks=checks, ledger=ledger)
            workspace = stack.enter_context(opened)
        comparison = OutputComparison.of(workspace, ours, theirs, annotator, match_policy)
        return read_result(comparison.system, [comparison.run().artifact])


def _rows(given: object, what: str) -> list[Output]:
    """Return the outputs, read from a file if `given` names one, and called by its name."""
    if isinstance(given, str | Path):
        stored = read_outputs(given)
        return [row if row.generator else replace(row, generator=stem(str(given))) for row in stored]
    rows: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, Mapping) else [given]
    if strange := [row for row in rows if not isinstance(row, Output)]:
        raise ConfigError(
            f"compare_outputs: {what} must be a list of afarm.Output, or a file of them, not {type_name(strange[0])}"
        )
    return rows
