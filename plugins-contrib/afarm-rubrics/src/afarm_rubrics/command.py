"""`afarm judge rubric`: rubrics induced from labels, and any rubric scored on labels."""

# Annotations are evaluated here: Typer reads them.

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm import DataError
from afarm.cli.options import (
    DryRun,
    FarmOptions,
    complete_recipes,
    option,
    out,
    print_json,
    print_table,
    show_plan,
    with_options,
    write_examples,
)

if TYPE_CHECKING:
    from afarm import AnnotateContext, Bounded
    from afarm.experiments import Workspace
    from afarm_rubrics.induce import Asking, Report
    from afarm_rubrics.labels import Labels

HIDDEN = (
    *("method", "annotator", "both_orders", "votes", "vote", "label_noise", "reward_model", "recipe", "model"),
    *("dataset", "data", "preferences", "on_unusable", "eval_set", "accelerate_config", "store"),
)
"""Options of farms that measure nothing here, or that these commands have in a form of their own."""
BASELINE = "ratings"
"""Each output alone, as with a rubric, and no criteria. It asks for no parameter that today's judges lack."""

LabelsFile = Annotated[
    str,
    typer.Argument(help="Pairs with labels, a file or hf:OWNER/NAME[:SPLIT].", metavar="LABELS", show_default=False),
]
Recipe = Annotated[str, option("--recipe NAME|FILE", "The recipe of the judge's settings.", complete_recipes)]
Limit = Annotated[int | None, option("--limit N", "Use N pairs alone, drawn by --seed.", None, "all", min=1)]


def add_commands(app: typer.Typer) -> None:
    group, rubrics = typer.Typer(), typer.Typer(help="Rubrics: induced from labels, and scored on labels.")
    examples = write_examples(
        "judge rubric induce",
        "labels.jsonl --judge openai:gpt-5.4-mini --budget 5 --dry-run",
        "labels.jsonl --judge openai:gpt-5.4-mini --budget 5 -o mine.yaml",
    )
    rubrics.command("induce", epilog=examples)(with_options(induce, without=HIDDEN))
    examples = write_examples("judge rubric score", "mine.yaml labels.jsonl --judge openai:gpt-5.4-mini --budget 1")
    rubrics.command("score", epilog=examples)(with_options(score, without=HIDDEN))
    rubrics.command("show")(show)
    group.add_typer(rubrics, name="rubric")
    app.add_typer(group, name="judge")


def induce(
    file: LabelsFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The rubric's file.")] = Path("rubric.yaml"),
    held_out: Annotated[
        float, option("--held-out SHARE", "Share of instructions kept to score on.", None, "0.5", min=0.05, max=0.95)
    ] = 0.5,
    proposals: Annotated[int, option("--proposals N", "Pairs that the judge explains.", None, "100", min=1)] = 100,
    candidates: Annotated[int, option("--candidates N", "Principles tested.", None, "20", min=1, max=100)] = 20,
    baseline: Annotated[
        str, option("--baseline NAME", "An annotator to compare with, or none.", "annotators", BASELINE)
    ] = BASELINE,
    limit: Limit = None,
    recipe: Recipe = "outputs",
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Induce a rubric from labels: the principles that explain what people prefer."""
    from afarm.experiments import judging_checks
    from afarm_rubrics.induce import Asking, check_output, plan_induction, write_rubric
    from afarm_rubrics.induce import induce as induce_rubric
    from afarm_rubrics.labels import draw, read_labels, split
    from afarm_rubrics.rubric import Induced

    check_output(output)
    given = _given(options, recipe, "ratings" if baseline == "none" else baseline)
    whole = read_labels(file, options.labels)

    def prepare(workspace: "Workspace") -> "tuple[Labels, Labels, Asking]":
        train, test = split(draw(whole, limit, workspace.config.seed), held_out, workspace.config.seed)
        annotator = None if baseline == "none" else workspace.components.annotator(baseline)
        return train, test, Asking(proposals, candidates, _config(workspace), baseline, annotator)

    if dry_run:
        with given.dry_run(judging_checks()) as workspace:
            train, test, asking = prepare(workspace)
            _show_plan(workspace, lambda context: plan_induction(train, test, asking, context), options)
        return
    with given.judging_workspace() as workspace:
        train, test, asking = prepare(workspace)
        with workspace.judges.client.charge_run(f"judge-rubric-induce-{whole.digest[:8]}"):
            made = induce_rubric(train, test, asking, _context(workspace, workspace.judges.client))
        about = Induced(labels=whole.digest, seed=workspace.config.seed, held_out=held_out)
    if made.kept:
        write_rubric(output, made, about, file)
        made = replace(made, notes=(*made.notes, f"Written: {output}"))
    _show(made, as_json=options.as_json)
    if not made.kept:
        raise DataError(
            f"no rubric is written: none of {len(made.criteria)} candidate principles explains the "
            f"{made.learned_from} labels that were learned from better than a coin; more pairs, other proposals "
            "(--seed) or another judge may show one, if there is any"
        )


def score(
    rubric: Annotated[Path, typer.Argument(help="The rubric's file.", metavar="RUBRIC", show_default=False)],
    file: LabelsFile,
    limit: Limit = None,
    recipe: Recipe = "outputs",
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Score a rubric on labels: the share that it explains, and what each criterion does."""
    from afarm.experiments import judging_checks
    from afarm_rubrics.induce import score_labels
    from afarm_rubrics.labels import divide, draw, read_labels
    from afarm_rubrics.rubric import read_rubric

    read = read_rubric(str(rubric))
    given = _given(options, recipe, f"rubric:{rubric}")
    whole = read_labels(file, options.labels)
    origin = read.file.induced
    seen, unseen = divide(whole, origin.held_out, origin.seed) if origin else (whole.of(()), whole)
    if not unseen.pairs:
        mend = f"give other labels or, if it learned from none of these, take `induced` out of {rubric}"
        raise DataError(f"{file}: the rubric may have learned from the tasks of all {len(seen.pairs)} pairs; {mend}")

    if dry_run:
        with given.dry_run(judging_checks()) as workspace:
            pairs = draw(unseen, limit, workspace.config.seed).pairs
            annotator = workspace.components.annotator(f"rubric:{rubric}")
            _show_plan(workspace, lambda context: annotator.plan(pairs, context), options)
        return
    with given.judging_workspace() as workspace:
        used = draw(unseen, limit, workspace.config.seed)
        with workspace.judges.client.charge_run(f"judge-rubric-score-{read.digest[:8]}-{whole.digest[:8]}"):
            found = score_labels(read, used, _config(workspace), _context(workspace, workspace.judges.client))
    notes = [f"{len(seen.pairs)} pairs whose task it may have learned from were left out."] if origin else []
    if origin and origin.labels != whole.digest:
        notes.append(f"The labels are not those that it learned from: without `induced` in {rubric} all are scored.")
    _show(replace(found, notes=(*found.notes, *notes)), as_json=options.as_json)


def show(rubric: Annotated[Path, typer.Argument(help="The rubric's file.", metavar="RUBRIC")]) -> None:
    """Write a rubric as text, in quotes, for the `rubric` setting of methods that ask a judge."""
    from afarm_rubrics.rubric import read_rubric, write_text

    out().print(json.dumps(write_text(read_rubric(str(rubric))), ensure_ascii=False), markup=False, soft_wrap=True)


def _given(options: FarmOptions, recipe: str, annotator: str) -> FarmOptions:
    """Return the options of a workspace in which this annotator judges."""
    settings = [f"evaluate.annotator={json.dumps(annotator)}", *(options.settings or [])]
    return replace(options, recipe=recipe, labels=None, settings=settings)


def _config(workspace: "Workspace") -> Any:
    return workspace.components.settings.of(workspace.components.component("annotators", "rubric"))


def _context(workspace: "Workspace", client: Any) -> "AnnotateContext":
    from afarm import AnnotateContext

    return AnnotateContext(workspace.seed("judge rubric"), client, workspace.progress)


def _show_plan(workspace: "Workspace", plan: "Callable[[AnnotateContext], Any]", options: FarmOptions) -> None:
    """Show what would be asked, and what it may cost; send nothing."""
    from afarm.experiments import PlannedStage, estimates, reading_client

    client = reading_client(workspace, workspace.judges.by_role)
    planned = [PlannedStage("rubric", "rubric", False, "", estimates(client, [plan(_context(workspace, client))]))]
    show_plan(workspace, "", options.as_json, planned=planned, step="judge rubric")


def _show(report: "Report", *, as_json: bool) -> None:
    """Print what a rubric explains, its criteria, and what that means."""
    if as_json:
        print_json({**asdict(report), "kept": [one.model_dump() for one in report.kept]})
        return
    is_new = bool(report.learned_from)
    columns = ("criterion", *["proposed"] * is_new, "weight", "met, %", "tells apart", "right, %")
    cells = []
    for row in report.criteria:
        told = [f"{row.weight:+g}", f"{row.met:.0f}", str(row.apart), _bounded(row.right, 0)]
        cells.append([row.text, *[str(row.proposed)] * is_new, *told])
    title = f"Candidate principles, on {report.learned_from} pairs to learn from" if is_new else "The criteria"
    print_table(out(), title, {name: n > 0 for n, name in enumerate(columns)}, cells)
    columns, cells = ("", "explained, %", "rubric ahead by", "ties", "unread", "log loss"), []
    for one in report.explained:
        loss = "" if one.log_loss is None else f"{one.log_loss:.3f}"
        counts = [str(count or "") for count in (one.ties, one.unread)]
        cells.append([one.name, _bounded(one.share, 1), _bounded(one.ahead, 1, "+"), *counts, loss])
    title = f"What explains {report.pairs} {'held-out ' * is_new}labels"
    print_table(out(), title, {name: bool(name) for name in columns}, cells)
    out().print("\n".join(report.notes), markup=False, soft_wrap=True)


def _bounded(one: "Bounded | None", digits: int, sign: str = "") -> str:
    if one is None:
        return ""
    ends = "unknown" if one.low is None else f"{one.low:{sign}.{digits}f} to {one.high:{sign}.{digits}f}"
    return f"{one.value:{sign}.{digits}f} ({ends})"
