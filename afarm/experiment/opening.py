"""A workspace opened from a recipe and its overrides, once nothing is wrong that can be seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from afarm.core.interfaces import Progress, no_progress
from afarm.core.plugins import Plugins, discover
from afarm.experiment.components import Components
from afarm.experiment.data import DataSplits
from afarm.experiment.judges import Judges
from afarm.experiment.preflight import Check, list_problems
from afarm.experiment.process_info import SINGLE_PROCESS, ProcessInfo
from afarm.experiment.recipe import Override, Settings, list_overrides, resolve
from afarm.experiment.workspace import OnStage, Workspace, ignore
from afarm.judging.database import Place, fixed_place
from afarm.storage.artifacts import Store
from afarm.storage.shared_store import open_shared_store


def open_workspace(
    recipe: str,
    settings: Override | Iterable[Override] = (),
    output_dir: Path | str = "afarm-runs",
    *,
    checks: Sequence[Check],
    plugins: Plugins | None = None,
    progress: Progress = no_progress,
    notify: Callable[[str], None] = ignore,
    on_stage: OnStage = ignore,
    process_info: ProcessInfo = SINGLE_PROCESS,
    trains: bool = True,
    ledger: Place | None = None,
    store: str | None = None,
) -> Workspace:
    """Open a workspace. What is not described here is as for `afarm.Farm`.

    Args:
        checks: Checks before anything runs (`afarm.experiment.preflight`): for a run, or only for judging files, which
            needs no data, model or torch.
        progress: Wraps what takes long.
        notify: Called with what a user should hear of.
        on_stage: Called as stages begin and end.
        process_info: This process among those that run the same.
        trains: False for what trains no method, whose settings then need not fit each other.

    Raises `ConfigError` with every problem at once, before any model is loaded.
    """
    plugins = plugins or discover()
    opened: list[Workspace] = []

    def preflight(resolved: Settings) -> list[str]:
        # What is opened to look at it (data, a device) is kept: nothing is read twice.
        components = Components(plugins, resolved, progress, notify, process_info)
        opened.append(workspace_over(components, Path(output_dir), on_stage, ledger, store))
        return list_problems(opened[0], checks)

    resolve(
        recipe, list_overrides(settings), plugins, preflight, trains, Components.native_dtype, Path(output_dir) / "runs"
    )
    [workspace] = opened
    workspace.store.create()
    workspace.meet()
    return workspace


def workspace_over(
    components: Components,
    output_dir: Path,
    on_stage: OnStage = ignore,
    ledger: Place | None = None,
    store: str | None = None,
) -> Workspace:
    """Return the workspace of components whose settings were checked. Nothing is made in `output_dir` yet."""
    kept = Store(output_dir, components.notify, None if store is None else open_shared_store(store))
    judges = Judges(components, kept, None if ledger is None else fixed_place(ledger))
    return Workspace(components, DataSplits(components), judges, kept, on_stage)
