"""`afarm run`: the whole experiment, and one screen of results."""

from __future__ import annotations

import time

from afarm.cli.console import err, out, print_json
from afarm.cli.farm_options import FarmOptions, record_run, with_options
from afarm.cli.launch import LOCAL
from afarm.cli.launchers import LauncherName, build_launcher, launch_stages
from afarm.cli.plans import warn_of_budget
from afarm.cli.shared_options import DryRun

SHARED = {
    "sample": "these samples",
    "preferences": "these preferences",
    "feedback": "this feedback",
    "fit-reward": "this reward model",
}
"""What methods are compared on, by the stages that make it."""


@with_options
def run(
    launcher: LauncherName = LOCAL,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Run the whole experiment, from SFT to the report."""
    run_experiment(options, dry_run, launcher)


def run_experiment(options: FarmOptions, dry_run: bool, launcher: str = LOCAL) -> None:
    """Run the whole experiment with the options' method and show its results, or show only its plan."""
    started = time.time()
    if dry_run:
        options.show_plan(launcher=launcher)
        return
    from afarm.cli.screens import show_record, show_report
    from afarm.experiment.dry_run import plan_run

    with options.farm() as farm:
        workspace = farm.workspace
        systems = [(workspace.config.method, workspace)]
        build_launcher(launcher, systems)  # which sees what is wrong with it, before what takes longer
        warn_of_budget(workspace, lambda: plan_run(workspace, workspace.config.method))
        if (made := launch_stages(launcher, systems, workspace.run_name())) is not None:
            made.hand_over(workspace)
        record, page = record_run(farm, workspace.config.method, started)
    if options.as_json:
        print_json({**record, "report": str(page)})
    console = err() if options.as_json else out()
    show_record(console, record)
    show_report(console, page)
    labels = {stage["stage"] for stage in record["stages"]}
    shared = " and ".join(what for label, what in SHARED.items() if label in labels)
    compared = (
        f"`afarm compare` ranks methods on {shared}" if shared else "`afarm leaderboard` ranks what was evaluated"
    )
    console.print(f"Next:   {compared}; `afarm view` shows runs")
