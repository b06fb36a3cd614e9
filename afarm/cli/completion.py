"""Words for the shell to complete, some with a description. Typer filters the candidates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from afarm import experiments, results
from afarm.core.hooks import KINDS
from afarm.storage.runs import run_directories

VARIABLE = "_AFARM_COMPLETE"
"""Set by the shell while it asks for words."""


def _plugins() -> experiments.Plugins:
    return experiments.discover(check_configs=False)


def complete_names(kind: str) -> Callable[[str], list[tuple[str, str]]]:
    """Return the `autocompletion` of an option that takes a component of `kind`, such as "judges"."""

    def names(incomplete: str) -> list[tuple[str, str]]:
        registry = _plugins().registry
        end = ":" if kind == "judges" else ""  # before the judge's model
        return [(registry.list_names(c)[-1] + end, c.summary) for c in registry if c.kind == kind]

    return names


def complete_methods(incomplete: str) -> list[str]:
    """Name methods after the last comma."""
    before, comma, _ = incomplete.rpartition(",")
    named = set(before.split(","))
    names = [name for name, _ in complete_names("methods")("") if name not in named]
    return [f"{before}{comma}{name}" for name in (names if comma else ["all", *names])]


def complete_components(incomplete: str) -> list[str]:
    """Name every component, with its kind where another kind has one of that name."""
    registry = _plugins().registry
    names = [registry.list_names(c)[-1] for c in registry]
    return [
        name if names.count(name) == 1 else f"{KINDS[c.kind]}/{name}" for c, name in zip(registry, names, strict=True)
    ]


def complete_recipes(incomplete: str) -> list[str]:
    """Name afarm's recipes, and plugins'."""
    from afarm.experiment.recipe import plugin_recipes, recipe_names

    return [*recipe_names(), *plugin_recipes()]


def complete_launch_configs(incomplete: str) -> list[str]:
    from afarm.cli.launch import CONFIGS

    return [path.stem for path in CONFIGS.glob("*.yaml")]


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Name the finished runs of --output-dir."""
    return [run.name for run in run_directories(_output_dir(ctx) / "runs")]


def complete_artifacts(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Name the keys of the artifacts in --output-dir, as far as lists show them."""
    store = results.Store(_output_dir(ctx))
    return [(key, stage) for stage in store.stages() for key in store.keys(stage)]


def _output_dir(ctx: typer.Context) -> Path:
    return Path(ctx.params.get("output_dir") or "afarm-runs")


def complete_sections(incomplete: str) -> list[str]:
    """Name the sections of settings, and `run`."""
    from afarm.experiment.setting_list import RUN, sections

    return [RUN, *sections(_plugins())]


def complete_settings(incomplete: str) -> list[tuple[str, str]]:
    """Name settings as --set takes them: first the sections, then what is in one.

    A shell adds a blank to the only candidate, so a section is completed to its settings, and a setting to its default.
    """
    from afarm.experiment.setting_list import RUN, section_settings, sections

    section, dot, _ = incomplete.partition(".")
    run = section_settings(RUN, _plugins())[RUN]
    own = dict.fromkeys(row.name.partition(".")[0] for row in run if "." in row.name)
    rows = {f"{row.name}=": row for row in run if "." not in row.name}
    if dot:
        prefix = "" if section in own else f"{section}."
        listed = section_settings(section, _plugins()).values()
        rows = {f"{prefix}{row.name}=": row for settings in listed for row in settings}
    found = [(word, row.description) for word, row in rows.items() if word.startswith(incomplete)]
    if not dot:
        found += [(f"{name}.", "") for name in (*own, *sections(_plugins())) if name.startswith(incomplete)]
    if len(found) != 1:
        return found
    [(word, _)] = found
    return complete_settings(word) if word.endswith(".") else [*found, (word + rows[word].default, "the default")]
