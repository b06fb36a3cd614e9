"""Plans of what would be made and bought, from real prompts: what `--dry-run` and `afarm cost` show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from afarm.cli.console import err, out, print_json
from afarm.storage.text import dollars, markup, one_line

if TYPE_CHECKING:
    from afarm.cli.launchers import LaunchPreview
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
    launcher: LaunchPreview | None = None,
) -> None:
    """Show the stages of a run, or those `planned` of a `step`, and what each judge would be asked.

    Without `all_stages`, only those that ask. A `launcher` is shown with what it would be asked for.
    """
    from afarm.experiment.dry_run import plan_run

    title = f"{workspace.settings.recipe} · {step or method}" if all_stages else ""
    planned = plan_run(workspace, method) if planned is None else planned
    _show({"step": step} if step else {"method": method}, planned, as_json, title, workspace, launcher)


def show_plan_of_files(given: Sequence[OutputComparison], as_json: bool, all_stages: bool = True) -> None:
    """Show the same for sets of outputs, each compared with the reference."""
    from afarm.experiment.comparison.dry_run import plan_comparison

    systems, reference = ", ".join(one.system for one in given), given[0].reference_name
    title = f"{systems} against {reference}" if all_stages else ""
    planned = [plan_comparison(one) for one in given]
    _show({"system": systems, "reference": reference}, planned, as_json, title, given[0].workspace)


def warn_of_budget(workspace: Workspace, planned: Callable[[], Sequence[PlannedStage]]) -> None:
    """Say on stderr, before anything is bought, that a plan does not fit the budget."""
    if workspace.config.budget is None or not any(judge.price() for judge in workspace.judges.by_role.values()):
        return
    if problem := _over_budget(workspace, planned()):
        err().print(f"[yellow]{markup(problem)}.[/]", highlight=False, soft_wrap=True)


def _over_budget(workspace: Workspace, planned: Sequence[PlannedStage]) -> str:
    from afarm.experiment.dry_run import over_budget

    config = workspace.config
    return over_budget(planned, config.budget, workspace.judges.committed, config.evaluate.split)


def _show(
    what: Mapping[str, str],
    planned: Sequence[PlannedStage],
    as_json: bool,
    title: str,
    workspace: Workspace,
    launcher: LaunchPreview | None = None,
) -> None:
    """Without a `title` the table of stages is left out."""
    from afarm.experiment.dry_run import by_judge, thoughts_sentence

    problem = _over_budget(workspace, planned)
    if as_json:
        asked = {"launcher": launcher.as_json()} if launcher else {}
        print_json({**what, **_as_json(planned), "over_budget": problem, **asked})
        return
    if title:
        _show_stages(title, planned)
    for pairs in dict.fromkeys(stage.pairs for stage in planned if stage.pairs):  # several seeds share them
        out().print(pairs, highlight=False, soft_wrap=True, markup=False)
    if any(stage.judges for stage in planned):
        _show_judges(planned, by_stage=not title)
    totals = by_judge(planned)
    sentences = [_priced_sentence(totals), *_unpriced_sentences(totals), "Nothing was sent."]
    out().print(" ".join(sentences), highlight=False, soft_wrap=True, markup=False)
    if problem or (problem := thoughts_sentence(totals)):
        out().print(f"[yellow]{markup(problem)}.[/]", highlight=False, soft_wrap=True)
    if launcher:
        launcher.show()


def _priced_sentence(totals: Sequence[JudgeEstimate]) -> str:
    """Sum up the calls, and what those are expected to cost whose price is known."""
    priced = [total for total in totals if total.most_dollars is not None]
    calls, unpriced = (sum(t.calls for t in some) for some in (totals, [t for t in totals if t not in priced]))
    again = ", unreadable answers that are asked for again not counted" if calls else ""
    if unpriced and not priced:
        return f"About {calls:,} judge calls{again}."
    expected = None if any(t.dollars is None for t in priced) else sum(t.dollars or 0.0 for t in priced)
    least = sum(t.least_dollars or 0.0 for t in priced)
    low = f"{dollars(least)} without thoughts, " if expected and least < expected else ""
    most = sum(t.most_dollars or 0.0 for t in priced)
    beside = f", beside {unpriced:,} of unknown price" if unpriced else ""
    return f"About {calls:,} judge calls: {low}{_dollars(expected)} expected, at most {dollars(most)}{beside}{again}."


def _unpriced_sentences(totals: Sequence[JudgeEstimate]) -> list[str]:
    """Say which prices are unknown, and how they are given."""
    judges = [total.judge for total in totals if total.most_dollars is None]
    options = " ".join(f"--price {judge}=INPUT/OUTPUT" for judge in judges)
    what = "The price is" if len(judges) == 1 else "The prices are"
    return [f"{what} unknown: give {options} (dollars per million tokens)."] if judges else []


def _as_json(planned: Sequence[PlannedStage]) -> dict[str, object]:
    from afarm.experiment.dry_run import by_judge

    totals = ("calls", "dollars", "most_dollars")
    stages = [{**asdict(stage), **{name: getattr(stage, name) for name in totals}} for stage in planned]
    return {"stages": stages, "judges": [asdict(total) for total in by_judge(planned)]}


def _show_stages(title: str, planned: Sequence[PlannedStage]) -> None:
    from rich.table import Table

    table = Table(title=f"Plan: {markup(title)} (nothing is run)", title_justify="left")
    for column in ("stage", "do", "judge calls", "at most", "why"):
        table.add_column(column, justify="right" if column in ("judge calls", "at most") else "left")
    for p in planned:
        price = _dollars(p.most_dollars)
        asks = p.calls > 0
        table.add_row(
            markup(one_line(p.label)),
            "reuse" if p.reused else "run",
            str(p.calls) if asks else "",
            price if asks else "",
            markup(p.why),
        )
    out().print(table)


def _show_judges(planned: Sequence[PlannedStage], by_stage: bool) -> None:
    """Without `by_stage` only the sums, as beside the table of stages."""
    from rich import box
    from rich.table import Table

    from afarm.experiment.dry_run import by_judge

    rows = [(stage.label, estimate) for stage in planned for estimate in stage.judges]
    totals = by_judge(planned)
    several = len(totals) > 1  # one alone would take a column of a narrow screen to say the same in each row
    title = "Judges" if several else f"Judge: {markup(totals[0].judge)}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in ("stage", "judge") if several else ("stage",):
        table.add_column(column, overflow="fold")
    for column in ("calls", "tokens in", "out", "at most", "dollars", "at most"):
        table.add_column(column, justify="right", no_wrap=True)  # texts give way to figures
    if len(rows) > len(totals):
        rows = [*(rows if by_stage else []), *(("all", total) for total in totals)]
    for label, e in rows:
        tokens = (f"{e.calls:,}", f"{e.input_tokens:,}", f"{e.output_tokens:,}", f"{e.most_output_tokens:,}")
        names = [one_line(label), *([e.judge] if several else [])]
        table.add_row(*map(markup, names), *tokens, _dollars(e.dollars), _dollars(e.most_dollars))
    out().print(table)


def _dollars(amount: float | None) -> str:
    return "unknown" if amount is None else dollars(amount)
