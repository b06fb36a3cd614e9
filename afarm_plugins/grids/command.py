"""`afarm study`: a command for each study, and one for all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from afarm import PluginError
from afarm.cli.options import (
    LOCAL,
    DryRun,
    FarmOptions,
    LauncherName,
    build_commands,
    err,
    markup,
    option,
    with_options,
    write_examples,
)
from afarm.experiments import Component
from afarm_plugins.grids.study import WITHOUT, Formats, Seeds, Yes, conduct, configure_study, parse_formats
from afarm_plugins.grids.study_all import study_all

ABOUT = "Make a grid of runs for a question, and tables and plots of the answer."

EXAMPLES = {
    "sweep": ("--method dpo --values dpo.beta=0.03,0.1 --seeds 1,2", "--values ppo.kl_coef=0.02,0.2 --dry-run"),
    "rankings": ("--methods ppo,dpo,feedme --dry-run", "--humans people.json --judged gpt4=gpt4.json"),
    "overoptimization": ("--methods best_of_n --seeds 1,2,3", "--methods ppo --set ppo.kl_coef=0.02 --dry-run"),
    "label-noise": ("--methods best_of_n --n 1,16,256 --seeds 1,2,3", "--annotators pool --noise 0,0.25 --dry-run"),
    "transfer": ("--methods ppo --seeds 1,2,3", "--labelled-by crowd,pool+0.25 --dry-run"),
    "annotators": ("--dry-run", "--humans people.json --judged gpt4=gpt4.json"),
    "pool-size": ("--sizes 1,4,13 --pools 2", "--methods best_of_n,dpo --seeds 1,2,3 --dry-run"),
    "model-size": ("--models small,large --seeds 1,2,3", "--models s.gguf,l.gguf --recipe smol --dry-run"),
    "eval-sets": ("--annotations a.json --annotations b.json", "--seeds 1,2,3 --by first-word --dry-run"),
    "lengths": ("--seeds 1,2,3 --difference 10", "--annotations a.json --annotations b.json"),
    "instructions": ("--data mine.json", "--instructions a=a.json --instructions b=b.json"),
    "calibrate": ("--humans people.json --dry-run", "--humans people.json --shown output_1"),
    "costs": ("--hour 2.50", "--spend 500 --difference 5"),
    "all": ("--recipe toy --dry-run", "--only rankings,transfer --seeds 1"),
    "kl": ("--seeds 1,2,3", "--values ppo.kl_coef=0.01,0.1,1 --dry-run"),
    "data-size": ("--method dpo --seeds 1,2,3", "--values rows.preference=1000,4000 --dry-run"),
}
"""Two calls of each first-party study, as the words after its name."""


def add_commands(app: typer.Typer) -> None:
    app.add_typer(typer.Typer(help=ABOUT, no_args_is_help=True, cls=StudyCommands), name="study")


class StudyCommands(TyperGroup):
    """A command for each registered study, and one for all, built when one of them is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys(command.name or "" for command in self._studies.registered_commands))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        every, asked = self._studies.registered_commands, typer.Typer(rich_markup_mode=None)
        # Each takes long to build: all are only for an unknown name, to suggest others.
        asked.registered_commands = [command for command in every if command.name == cmd_name] or every
        self.commands.update(build_commands(asked))
        return self.commands.get(cmd_name)

    @cached_property
    def _studies(self) -> typer.Typer:
        from afarm.experiments import discover

        app = typer.Typer(rich_markup_mode=None)
        registry = discover(check_configs=False).registry
        for component in registry:
            if component.kind == "studies":
                name = registry.list_names(component)[-1]
                examples = write_examples(f"study {name}", *EXAMPLES.get(name, ("--dry-run",)))
                try:
                    about = _sentence(component.summary)
                    app.command(name, help=about, epilog=examples)(_command(component, name))
                except PluginError as error:
                    err().print(f"[yellow]Left out:[/] {markup(str(error))}")
        about = "Every study in turn, small grids over shared artifacts, and an index of their pages."
        examples = write_examples("study all", *EXAMPLES["all"])
        app.command("all", help=about, epilog=examples)(with_options(study_all, without=WITHOUT))
        return app


def _sentence(summary: str) -> str:
    """Write a summary as a sentence of its own."""
    return f"{summary[:1].upper()}{summary[1:]}{'' if summary.endswith(('?', '.')) else '.'}"


def _command(component: Component, name: str) -> Callable[..., None]:
    """Return the command of a study: the shared options, and one for each of its own settings."""
    shared = with_options(run_study, without=WITHOUT)
    parameters = dict(inspect.signature(shared).parameters)
    for hidden in ("component", "name", "own"):
        del parameters[hidden]
    fields = component.config.model_fields if component.config else {}
    if taken := [field for field in fields if field in parameters]:
        raise PluginError(f"study {name!r} has a setting {taken[0]!r}, which is an option of every study: rename it")
    own = [
        inspect.Parameter(
            field,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                info.annotation | None,  # type: ignore[operator]
                option(f"--{field.replace('_', '-')}", _sentence(info.description or "")),
            ],
        )
        for field, info in fields.items()
    ]

    def command(**given: Any) -> None:
        values = {field: value for field in fields if (value := given.pop(field)) not in (None, [])}
        shared(component=component, name=name, own=values, **given)

    command.__signature__ = inspect.Signature([*own, *parameters.values()])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*own, *parameters.values())}
    return command


def run_study(
    component: Component,
    name: str,
    own: Mapping[str, Any],
    seeds: Seeds = None,
    launcher: LauncherName = LOCAL,
    plots: Formats = None,
    yes: Yes = False,
    *,
    options: FarmOptions,
    dry_run: DryRun = False,
) -> None:
    """Run the study of a component with its `own` settings, or show what it would do."""
    formats = parse_formats(plots)
    conducted = conduct(configure_study(component, name, own, options, seeds), launcher, formats, yes, dry_run)
    if conducted is not None and conducted[0].failed:
        raise typer.Exit(1)
