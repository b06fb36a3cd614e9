"""`afarm cluster check`: the machines of a launcher looked at before anything runs on them."""

from __future__ import annotations

from dataclasses import asdict, replace

import typer

from afarm.cli.options import (
    LOCAL,
    FarmOptions,
    LauncherName,
    build_launcher,
    err,
    markup,
    out,
    print_json,
    with_options,
    write_examples,
)


def add_commands(app: typer.Typer) -> None:
    """Add the group `cluster` with `check`."""
    group = typer.Typer(no_args_is_help=True, help="Check the machines that a launcher runs stages on.")
    group.command(
        "check",
        epilog=write_examples(
            "cluster check", "--launcher local:2", "--launcher ray:10.0.0.1:6379 --output-dir /shared/runs"
        ),
    )(check)
    group.callback()(lambda: None)  # or the only command would take the group's place
    app.add_typer(group, name="cluster", rich_help_panel="Look up")


@with_options
def check(launcher: LauncherName = LOCAL, *, options: FarmOptions) -> None:
    """Check each machine: code, libraries, shared directory, locks, clock, ledger, keys and GPUs."""
    from afarm.experiments import judging_checks
    from afarm_plugins.cluster.nodes import check_nodes

    with options.workspace(judging_checks(), options.output_dir) as workspace:
        opened = build_launcher("local:1" if launcher == LOCAL else launcher, [("", workspace)])
        assert opened is not None
        if not options.as_json:
            err().print(f"Looking at {opened.describe()} …", markup=False)
        reports = check_nodes(opened, workspace, workspace.config.method, workspace.run_name())
        root = workspace.store.root.absolute()
    if options.as_json:
        rows = [asdict(replace(r, seconds_ahead=r.seconds_ahead and round(r.seconds_ahead, 2))) for r in reports]
        print_json({"launcher": opened.describe(), "output_dir": str(root), "nodes": rows})
    for report in () if options.as_json else reports:
        gpus = "no answer" if report.seconds_ahead is None else ", ".join(report.gpus) or "no GPU of NVIDIA's"
        place = f" ({report.place})" if report.place else ""
        out().print(f"{'[red]✗[/]' if report.problems else '✓'} {markup(f'{report.node}{place}: {gpus}')}")
        for problem in report.problems:
            out().print(f"  - {problem}", markup=False)
    if any(report.problems for report in reports):
        raise typer.Exit(1)
    if not options.as_json:
        out().print(f"All have the same code and libraries, and share {root}.", markup=False)
