"""The record of a comparison: `run.json` and the rows that its report shows, as a run has them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from afarm.experiment.comparison.outputs import SystemComparison
from afarm.experiment.result import Result
from afarm.experiment.run_record import headline, judges, write_record
from afarm.experiment.stage import StageRun

JUDGING = ("judge", "budget", "price", "prices", "max_concurrency", "allow_degraded", "batch_api")
"""The settings of a run that say how judges are asked."""


def record_comparison(
    comparison: SystemComparison,
    made: StageRun,
    result: Result,
    files: Mapping[str, str],
    command: str,
    started: float,
) -> Path:
    """Write the directory of a comparison and return it: nothing else of the recipe is in it.

    Args:
        comparison: The comparison.
        made: Its stage as it was made or reused.
        result: What came of it.
        files: The names of the files that were compared.
        command: The command that asked for it.
        started: When that began, in Unix seconds.
    """
    workspace = comparison.workspace
    config, sections = workspace.config.model_dump(mode="json"), workspace.settings.sections
    stored = bool(comparison.about.get("stored"))  # nobody is asked, and who was is not for the settings to say
    noise = {} if stored else {"label_noise": config["evaluate"]["label_noise"]}
    names = {workspace.components.component(kind, name).full_name for kind, name in comparison.components}
    asked = not stored and any(row.preference.completion for rows in result.judgements.values() for row in rows)
    about = {
        "name": comparison.name,
        "command": command,
        "files": dict(files),
        "annotator": comparison.annotator,
        **comparison.about,
        "created": started,
        "config": {
            "seed": config["seed"],
            **{name: config[name] for name in (() if stored else JUDGING)},
            "evaluate": {**noise, "evaluators": comparison.evaluators},
            **{name: section for name, section in sections.items() if name in names},
        },
        "machine": {"platform": platform.platform(terse=True), "cpus": os.cpu_count()},
        "judges": judges(workspace) if asked else [],
        "headline": headline(result, {}),
    }
    return write_record(workspace, about, [*comparison.before, made], made, result)
