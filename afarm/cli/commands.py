"""The commands: afarm's own, each imported when called, those of plugins, and methods by name."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperGroup

from afarm.cli.completion import VARIABLE
from afarm.cli.console import err
from afarm.cli.help_pages import arrange
from afarm.cli.plugin_commands import add_plugin_commands
from afarm.core.errors import did_you_mean
from afarm.storage.text import markup

if TYPE_CHECKING:
    from afarm.core.registry import Component


class Listed(NamedTuple):
    """A command in the help: the module of this room whose `add_to` brings it, and what it does."""

    module: str
    summary: str


STEPS: Mapping[str, Listed] = {
    "sft": Listed("stage_commands", "Train the starting policy on demonstrations."),
    "sample": Listed("stage_commands", "Sample the outputs that will be compared."),
    "annotate": Listed("stage_commands", "Have the annotator compare the sampled outputs."),
    "fit-reward": Listed("stage_commands", "Fit the reward model to the preferences."),
    "train": Listed("stage_commands", "Train a method's policy."),
}

COMMANDS: Mapping[str, Mapping[str, Listed]] = {
    "The experiment": {
        "run": Listed("run", "Run the whole experiment, from SFT to the report."),
        "compare": Listed(
            "compare", "Run several methods on the same samples, preferences and reward model, and rank them."
        ),
        "tune": Listed("tune", "Choose the settings of methods by trials on the validation split, as many for each."),
        "study": Listed("study", "Make a grid of runs for a question, and tables and plots of the answer."),
        "evaluate": Listed("evaluate", "Compare a policy, or files of outputs, with a reference."),
        "cost": Listed(
            "cost", "Estimate what the judges of a run, or of files of outputs, would cost, and send nothing."
        ),
        "memory": Listed(
            "memory",
            "Show what each stage of a run holds on a card, by arithmetic, and what to change if it does not fit.",
        ),
    },
    "Its steps, each after those before it": STEPS,
    "Results": {
        "report": Listed("stage_commands", "Write a run's report again."),
        "leaderboard": Listed("leaderboard", "Show all evaluated systems, in one board for each way of judging them."),
        "diff": Listed(
            "diff", "Show what sets two runs apart: settings, versions, judging, figures, and flipped instructions."
        ),
        "bundle": Listed(
            "bundle", "Pack a run or a study with its outputs, labels and answers, to be replayed without a key."
        ),
        "replay": Listed(
            "bundle", "Make labels, figures and tables of a bundle again from its answers; compare byte by byte."
        ),
        "export": Listed(
            "export", "Write a run's policy for transformers, its preferences for TRL and its outputs for AlpacaEval."
        ),
    },
    "Judges and annotators": {
        "annotators": Listed("annotators", "List the annotators and the judges of their roles, or compare them."),
        "ledger": Listed(
            "ledger", "Show what judges have cost: by run, judge, annotator and day, and what was not paid again."
        ),
    },
    "Look up": {
        "settings": Listed(
            "settings", "List the settings of a method, a judge, any plugin or the run, for --set and recipes."
        ),
        "recipes": Listed("listing", "List the recipes, or show one."),
        "plugins": Listed("listing", "List every plugin, and why a broken one is broken."),
        "cluster": Listed("cluster", "Check the machines that a launcher runs stages on."),
        "artifacts": Listed("artifacts", "What is stored, what can go, and what was reused."),
    },
}
"""afarm's own commands under what they are for: the help lists them without importing any."""

PLACES = {
    "best-of-n": "Its steps, each after those before it",
    "drift": "Judges and annotators",
    "judge": "Judges and annotators",
    "view": "Results",
}
"""Commands of plugins that stand among afarm's own."""

EXTENSIBLE = {"annotators", "artifacts"}
"""Groups of commands, to which plugins may add."""

OWN: Mapping[str, Listed] = {name: command for group in COMMANDS.values() for name, command in group.items()}


class Commands(TyperGroup):
    """The commands, and beside them each method by its name, for its training."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the commands; methods are completed as well, but the help would be too long with them."""
        return list({**OWN, **self.of_plugins, **(self.methods if VARIABLE in os.environ else {})})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name; None if there is none."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name in OWN and cmd_name not in EXTENSIBLE:
            self.commands.update(built(OWN[cmd_name].module))
        elif cmd_name in self.of_plugins:
            self.commands.update(self.of_plugins)
        elif component := self.methods.get(cmd_name):
            from afarm.cli.stage_commands import add_method

            self.commands.update(built(add=lambda app: add_method(app, cmd_name, component)))
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that `args` name, and the arguments that are left for it."""
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            meant = did_you_mean(name, [*self.list_commands(ctx), *self.methods])
            ctx.fail(f"No such command {name!r}.{meant if meant.endswith('?') else ' `afarm --help` lists them.'}")
        if any(word.partition("=")[0] == "--method" for word in args) and name not in OWN and name in self.methods:
            raise typer.BadParameter(f"{name!r} is the method; leave --method out")
        return super().resolve_command(ctx, args)

    @cached_property
    def of_plugins(self) -> dict[str, Any]:
        """The commands that plugins bring, and the groups that they may add to."""
        return built(*EXTENSIBLE, add=self._add_plugin_commands)

    @staticmethod
    def _add_plugin_commands(app: typer.Typer) -> None:
        for problem in add_plugin_commands(app, taken=OWN):
            err().print(f"[yellow]Warning:[/] {markup(problem)}", highlight=False, soft_wrap=True)

    @cached_property
    def methods(self) -> dict[str, Component]:
        """The methods, by each name that finds one."""
        from afarm.core.plugins import discover

        registry = discover(check_configs=False).registry
        return {name: c for c in registry if c.kind == "methods" for name in registry.names_of(c)}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under what they are for, those of plugins last."""
        rows = {title: [(name, own.summary) for name, own in group.items()] for title, group in COMMANDS.items()}
        for name, command in self.of_plugins.items():
            if name not in OWN and not command.hidden:
                title = PLACES.get(name, "Of plugins")
                rows.setdefault(title, []).append((name, command.get_short_help_str(200)))
        for title, lines in rows.items():
            with formatter.section(title):
                formatter.write_dl(lines)


def built(*modules: str, add: Callable[[typer.Typer], None] | None = None) -> dict[str, Any]:
    """Return the commands that modules of this room, and `add`, put into an application."""
    app = typer.Typer(cls=TyperGroup, pretty_exceptions_enable=False, rich_markup_mode=None)
    for module in modules:
        importlib.import_module(f"afarm.cli.{module}").add_to(app)
    if add is not None:
        add(app)
    arrange(app)
    return dict(typer.main.get_group(app).commands)
