"""A farm that needs no torch: the light plugin, the real pool of annotators and the real evaluators."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import yaml

from afarm.core.plugins import Plugins, discover, installed_entry_points
from afarm.experiment import preflight
from afarm.experiment.farm import Farm, as_overrides
from afarm.experiment.opening import open_workspace
from afarm.experiment.workspace import Workspace

Make = Callable[..., Farm]
"""Makes a farm from settings and choices: the fixture `farm`."""

RECIPE: dict[str, Any] = {
    "summary": "light",
    "dataset": "numbers",
    "method": "nudge",
    "reward_model": "words",
    "judge": {"*": "counting"},
    "rows": {"evaluation": 10},
    "sample": {"temperature": 0.9},
    "annotate": {"label_noise": 0.0},
    "evaluate": {"temperature": 0.7},
}


def light_plugins(module: str = "light_plugin") -> Plugins:
    named = ("alpaca_eval", "annotators", "calibration", "evaluators", "fitted_judges", "function_rewards", "judges")
    ours = [point for point in installed_entry_points() if point.name in named]
    plugins = discover([*ours, importlib.metadata.EntryPoint("light", module, "afarm")])
    assert not plugins.broken
    return plugins


class LightBackend:
    """What core asks of the backend, without torch."""

    device = "cpu"

    def __init__(self, policy: type):
        self.policy = policy
        self.loaded: list[str] = []

    def load_policy(self, spec: str, prompt_template: str = "auto") -> Any:
        self.loaded.append(spec)
        return self.policy(0.0)

    def tracked(self, name: str, directory: Path, log: Any) -> AbstractContextManager[Any]:
        return nullcontext(log)

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def naming_lost(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()


def light_workspace(
    directory: Path,
    *settings: str,
    module: str = "light_plugin",
    checks: Sequence[preflight.Check] | None = None,
    **choices: Any,
) -> Workspace:
    """A workspace in `directory`, over the light recipe. `choices` are fields of `RunConfig`, or how it is opened."""
    model = directory / "base"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text("{}")
    (model / "weights").write_text("0")
    recipe = directory / "light.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))
    opening = {name: choices.pop(name) for name in ("notify", "on_stage", "process_info", "store") if name in choices}
    workspace = open_workspace(
        str(recipe),
        as_overrides(settings, **{"model": str(model), **choices}),
        directory / "out",
        checks=[*preflight.run_checks(), *preflight.access_checks()] if checks is None else checks,
        plugins=light_plugins(module),
        **opening,
    )
    workspace.components._backend = LightBackend(__import__(module).WordPolicy)
    return workspace


def light_farm(directory: Path, *settings: str, **choices: Any) -> Farm:
    """The farm of a light workspace."""
    return Farm.over(light_workspace(directory, *settings, **choices))
