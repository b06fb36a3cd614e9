"""Plans of what would be made and bought, from real prompts: what `--dry-run` and `afarm cost` show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from afarm.cli.console import err, out, print_json
from afarm.cli.launchers import show_launch
from afarm.cli.tables import print_table
from afarm.storage.text import dollars, markup

if TYPE_CHECKING:
    from afarm.experiment.comparison.outputs import OutputComparison
    from afarm.experiment.dry_run import JudgeEstimate, PlannedStage
    from afarm.experiment.workspace import Workspace


def show_plan(
    workspace: Workspace,
    method: str,
    as_json: bool,
    all_stages: bool = True,
    planned: Sequence[PlannedStage] | None = None,
    step: str = "",
    launcher: Mapping[str, Any] | None = None,
) -> None:
    """Show the stages of a run, or those `planned` of a `step`, and what each judge would be asked.

    Without `all_stages`, only those that ask. Of a `launcher`, what `preview_launch` says is shown too.
    """
    from afarm.experiment.dry_run import plan_run

    title = f"{workspace.settings.recipe} · {step or method}" if all_stages else ""
    planned = plan_run(workspace, method) if planned is None else planned
    _show({"step": step} if step else {"method": method}, planned, as_json, title, workspace, launcher)


def show_plan_of_files(given: Sequence[OutputComparison], as_json: bool, all_stages: bool = True) -> None:
    """Show the same for sets of outputs, each compared with the reference."""
    from afarm.experiment.dry_run import plan_stage

    systems, reference = ", ".join(one.system for one in given), given[0].reference_name
    title = f"{systems} against {reference}" if all_stages else ""
    planned = [stage for one in given for stage in plan_stage(one.workspace, one.stage())]
    _show({"system": systems, "reference": reference}, planned, as_json, title, given[0].workspace)


def warn_of_budget(workspace: Workspace, planned: Callable[[], Sequence[PlannedStage]]) -> None:
    """Say on stderr, before anything is bought, that a plan does not fit the budget."""
    from afarm.experiment.dry_run import over_budget

    config, judges = workspace.config, workspace.judges
    if config.budget is None or not any(judge.price() for judge in judges.by_role.values()):
        return
    if problem := over_budget(planned(), config.budget, judges.committed, config.evaluate.split):
        err().print(f"[yellow]{markup(problem)}.[/]")


def _show(
    what: Mapping[str, str],
    planned: Sequence[PlannedStage],
    as_json: bool,
    title: str,
    workspace: Workspace,
    launcher: Mapping[str, Any] | None = None,
) -> None:
    """Without a `title` the table of stages is left out."""
    from afarm.experiment.dry_run import by_judge, over_budget, reasoning_hint

    config, totals = workspace.config, by_judge(planned)
    problem = over_budget(planned, config.budget, workspace.judges.committed, config.evaluate.split)
    if as_json:
        sums = ("calls", "dollars", "most_dollars")
        stages = [{**asdict(stage), **{name: getattr(stage, name) for name in sums}} for stage in planned]
        judges = [asdict(total) for total in totals]
        asked = {"launcher": launcher} if launcher else {}
        print_json({**what, "stages": stages, "judges": judges, "over_budget": problem, **asked})
        return
    if title:
        columns = {"stage": False, "do": False, "judge calls": True, "at most": True, "why": False}
        rows = []
        for stage in planned:
            asks = (str(stage.calls), _dollars(stage.most_dollars)) if stage.calls else ("", "")
            rows.append([stage.label, "reuse" if stage.reused else "run", *asks, stage.why])
        print_table(out(), f"Plan: {title} (nothing is run)", columns, rows)
    for pairs in dict.fromkeys(stage.pairs for stage in planned if stage.pairs):  # several seeds share them
        out().print(pairs, markup=False)
    for length in dict.fromkeys(stage.unwritten for stage in planned if stage.unwritten):
        out().print(f"Outputs that do not exist yet are taken to be {length}.", markup=False)
    if totals:
        _show_judges(planned, totals, by_stage=not title)
    sentences = [_priced_sentence(totals)]
    if unpriced := [total.judge for total in totals if total.most_dollars is None]:
        prices = "The price is" if len(unpriced) == 1 else "The prices are"
        options = " ".join(f"--price {judge}=INPUT/OUTPUT" for judge in unpriced)
        sentences.append(f"{prices} unknown: give {options} (dollars per million tokens).")
    out().print(" ".join([*sentences, "Nothing was sent."]), markup=False)
    if problem or (problem := reasoning_hint(totals)):
        out().print(f"[yellow]{markup(problem)}.[/]")
    if launcher:
        show_launch(launcher)


def _priced_sentence(totals: Sequence[JudgeEstimate]) -> str:
    """Sum up the calls, and what those are expected to cost whose price is known."""
    priced = [total for total in totals if total.most_dollars is not None]
    calls, unpriced = (sum(t.calls for t in some) for some in (totals, [t for t in totals if t not in priced]))
    again = ", unreadable answers that are asked for again not counted" if calls else ""
    if (most_calls := sum(t.most_calls for t in totals)) > calls:
        again = f" ({most_calls:,} calls at most){again}"
    if unpriced and not priced:
        return f"About {calls:,} judge calls{again}."
    expected = None if any(t.dollars is None for t in priced) else sum(t.dollars or 0.0 for t in priced)
    least = sum(t.least_dollars or 0.0 for t in priced)
    low = f"{dollars(least)} without thoughts, " if expected and least < expected else ""
    most = sum(t.most_dollars or 0.0 for t in priced)
    beside = f", beside {unpriced:,} of unknown price" if unpriced else ""
    return f"About {calls:,} judge calls: {low}{_dollars(expected)} expected, at most {dollars(most)}{beside}{again}."


def _show_judges(planned: Sequence[PlannedStage], totals: Sequence[JudgeEstimate], by_stage: bool) -> None:
    """Without `by_stage` only the sums, as beside the table of stages."""
    asked = [(stage.label, estimate) for stage in planned for estimate in stage.judges]
    if len(asked) > len(totals):
        asked = [*(asked if by_stage else []), *(("all", total) for total in totals)]
    several = len(totals) > 1  # one alone would take a column of a narrow screen to say the same in each row
    columns = {"stage": False, **({"judge": False} if several else {})}
    columns |= dict.fromkeys(("calls", "tokens in", "out", "out at most", "dollars", "at most"), True)
    rows = [
        [
            label,
            *([e.judge] if several else []),
            *(f"{count:,}" for count in (e.calls, e.input_tokens, e.output_tokens, e.most_output_tokens)),
            *map(_dollars, (e.dollars, e.most_dollars)),
        ]
        for label, e in asked
    ]
    print_table(out(), "Judges" if several else f"Judge: {totals[0].judge}", columns, rows)


def _dollars(amount: float | None) -> str:
    return "unknown" if amount is None else dollars(amount)
