"""The hooks: functions that a plugin defines in the module its entry point names.

A plugin advertises its module under the entry-point group `afarm`:

    [project.entry-points.afarm]
    my-farm = "my_farm"

and calls `register(name, target, config=…, summary=…)` for everything it brings. `target` is a class or, so that
nothing heavy is imported until it is used, a string `"package.module:Class"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

GROUP = "afarm"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)

Register = Callable[..., None]
"""`register(name, target, *, config, summary, defaults, spec, sources, recipes)`; see `Component`."""


def _hook(brings: str) -> Any:
    """Make the specification of a hook that brings components of a kind."""

    def specification(register: Register) -> None: ...

    specification.__doc__ = f"Bring {brings}."
    return hookspec(specification)


class Hooks:
    """Every hook. All are optional; each is called once, when a farm or the command line starts."""

    register_annotators = _hook("annotators (`afarm.Annotator`), chosen with `--annotator`")
    register_judges = _hook("judges (`afarm.Judge`), chosen with `--judge name:spec`")
    register_reward_models = _hook("reward models (`afarm.RewardModel`), chosen with `--reward-model`")
    register_methods = _hook("methods (`afarm.Method`), chosen with `--method`")
    register_evaluators = _hook("evaluators (`afarm.Evaluator`), listed in a recipe's `evaluate.evaluators`")
    register_datasets = _hook("data sets (`afarm.Dataset`), chosen with `--dataset`")
    register_launchers = _hook("launchers (`afarm.Launcher`), chosen with `--launcher`")
    register_samplers = _hook("samplers (`afarm.backend.SamplingEngine`), chosen with `backend.sampler`")
    register_databases = _hook("databases of ledgers (`afarm.judging.Database`), by the scheme of `--ledger`")
    register_stores = _hook('shared stores (`afarm.SharedStore`), by the scheme of `--store`, or as "directory"')
    register_studies = _hook("studies (`afarm.Study`), run by `afarm study NAME`")

    register_recipes = _hook("recipes (`register(name, path)`, absolute `Path`s of YAML files), chosen with `--recipe`")

    @hookspec
    def register_commands(self, app: Any) -> None:
        """Add commands to the `afarm` command line, whose `app` is a `typer.Typer`."""

    @hookspec
    def register_followers(self, followers: list[Any]) -> None:
        """Add functions `follow(workspace, system, command, started)` that return the context of a run."""

    @hookspec
    def register_sections(self, sections: dict[str, Any]) -> None:
        """Add sections to the report of a run, by their titles.

        Each is a function of the `afarm.RunRecord` that returns HTML; empty if the page needs no such section.
        """

    @hookspec
    def register_pages(self, pages: list[Any]) -> None:
        """Add functions that return the pages about a run's judges, as `Path`s by title, from its `RunRecord`."""


KINDS: dict[str, str] = {
    "annotators": "annotator",
    "judges": "judge",
    "reward_models": "reward model",
    "methods": "method",
    "evaluators": "evaluator",
    "datasets": "data set",
    "launchers": "launcher",
    "samplers": "sampler",
    "databases": "database",
    "stores": "store",
    "studies": "study",
    "recipes": "recipe",
}
"""The kinds of component, as hooks (`register_<kind>`) and as messages call them."""


def hook_names() -> list[str]:
    """List the names of all hooks."""
    return [name for name, value in vars(Hooks).items() if callable(value) and name.startswith("register_")]
