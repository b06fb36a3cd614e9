"""Settings that set a run apart from others of its method, so that runs of a study can be told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from afarm.report import one_line
from afarm.results import flatten
from afarm_plugins.view.sources import SeenRun
from afarm_plugins.view.values import as_shown, mapping, text

NO_VARIANTS = ("budget", "method", "seed", "evaluate.label_seed")
"""Settings that make no other experiment of a run, or a repetition of it."""

LONGEST = 40
"""Characters of a value that are told."""


def own_settings(runs: Iterable[SeenRun]) -> dict[str, list[str]]:
    """Tell for each run, by its id, the settings that most runs of its recipe and method have otherwise.

    Each as NAME=VALUE. Of values that are as frequent, that of the oldest run counts as usual: `runs` are the newest
    first.
    """
    groups: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for run in runs:
        group = groups.setdefault((text(run.about.get("recipe")), text(run.about.get("method"))), {})
        group[run.id] = flatten(mapping(run.about.get("config")))
    told: dict[str, list[str]] = {}
    for group in groups.values():
        usual: dict[str, str] = {}
        for name in {name for settings in group.values() for name in settings} - set(NO_VARIANTS):
            values = [settings[name] for settings in reversed(group.values()) if name in settings]
            if any(value != values[0] for value in values):
                usual[name] = Counter(map(as_shown, values)).most_common(1)[0][0]
        for run_id, settings in group.items():
            shown = {name: as_shown(settings[name]) for name in sorted(usual) if name in settings}
            own = [name for name, value in shown.items() if value != usual[name]]
            told[run_id] = [f"{name}={one_line(shown[name], LONGEST)}" for name in own]
    return told
