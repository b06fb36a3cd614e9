"""The options that commands share, and the farm they describe."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afarm.cli.console import ProgressBars, err
from afarm.errors import ConfigError

if TYPE_CHECKING:
    from afarm.pipeline import Farm, StageRun

DEFAULT_RECIPE = "toy"
RECIPE_HELP = "A recipe by name (`afarm recipes`), or a YAML file."
Recipe = Annotated[str, typer.Option("--recipe", help=RECIPE_HELP)]
RecipeIfAny = Annotated[str | None, typer.Option("--recipe", help=RECIPE_HELP, show_default=DEFAULT_RECIPE)]
Method = Annotated[str | None, typer.Option("--method", help="The method to train (`afarm plugins` lists them).")]
Annotator = Annotated[str | None, typer.Option("--annotator", help="Who labels the training pairs.")]
Judge = Annotated[
    list[str] | None,
    typer.Option("--judge", help="The judge LLM, as NAME:SPEC, or ROLE=NAME:SPEC for one family role; repeatable."),
]
RewardModel = Annotated[str | None, typer.Option("--reward-model", help="The reward model to fit or use.")]
Model = Annotated[str | None, typer.Option("--model", help="The base model: a Hub id, a directory or a .gguf file.")]
Dataset = Annotated[str | None, typer.Option("--dataset", help="The data set, by name.")]
Data = Annotated[Path | None, typer.Option("--data", help="Your own file of instructions, cut into splits.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, as section.name=value; repeatable.", metavar="NAME=VALUE")
]
Seed = Annotated[int | None, typer.Option("--seed", help="The seed that every draw derives from.")]
OutputDir = Annotated[Path, typer.Option("--output-dir", help="Where everything is kept.")]
Budget = Annotated[float | None, typer.Option("--budget", help="Dollars that judges may cost at most.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, all else on stderr.")]

DEFAULT_OUTPUT_DIR = Path("afarm-runs")


def make_farm(
    recipe: str,
    output_dir: Path,
    *,
    judge: list[str] | None = None,
    data: Path | None = None,
    settings: list[str] | None = None,
    **choices: Any,
) -> Farm:
    """The farm that the options describe, telling on stderr what each stage does."""
    from afarm.ledger import network_file_system
    from afarm.pipeline import Farm
    from afarm.recipe import parse_override

    _prepare_environment()
    given: dict[str, Any] = {name: value for name, value in choices.items() if value is not None}
    if "annotator" in given:
        given["annotate"] = {"annotator": given.pop("annotator")}
    if judge:
        given["judge"] = _judges(judge)
    if data is not None:
        if given.get("dataset", "files") != "files":
            raise ConfigError([f"--data {data} and --dataset {given['dataset']} contradict each other: give one"])
        given |= {"dataset": "files", "files": {"path": str(data)}}
    overrides = [parse_override(text) for text in settings or []]
    _refuse_contradictions(given, overrides, settings or [])
    bars = ProgressBars(err)
    farm = Farm(
        recipe,
        settings=[given, *overrides],
        output_dir=output_dir,
        progress=bars,
        on_stage=lambda label, run: _tell(bars, label, run),
    )
    if kind := network_file_system(farm.store.ledger_path):
        err.print(
            f"[yellow]{output_dir} is on a network file system ({kind}): locking is slower; prefer a local disk.[/]"
        )
    return farm


OPTIONS = {"annotate.annotator": "--annotator", "files.path": "--data", "reward_model": "--reward-model"}
"""The options that are not called like the settings they give."""


def _refuse_contradictions(given: Mapping[str, Any], overrides: list[dict[str, Any]], settings: list[str]) -> None:
    """Raises `ConfigError` where --set gives a setting that an option gives as well, and another value."""
    from afarm.why import flatten

    by_option = flatten(given)
    problems = []
    for text, override in zip(settings, overrides, strict=True):
        for name, value in flatten(override).items():
            if name in by_option and by_option[name] != value:
                option = OPTIONS.get(name, f"--{name.partition('.')[0]}")
                problems.append(f"{option} {by_option[name]} and --set {text} contradict each other: give one")
    if problems:
        raise ConfigError(problems)


def _judges(options: list[str]) -> dict[str, str]:
    """`strong=openai:x` names a role; a spec without one answers for all roles that are not named."""
    judges = {}
    for option in options:
        role, equals, spec = option.partition("=")
        named = equals and ":" not in role and "@" not in role
        judges[role if named else "*"] = spec if named else option
    return judges


def _tell(bars: ProgressBars, label: str, run: StageRun | None) -> None:
    if run is None:
        bars.begin(label)
        return
    bars.end()
    if run.reused:
        err.print(
            f"[green]✓[/] {label:<28} reused  [dim]{run.artifact.key[:8]}[/]  {run.why}",
            highlight=False,
            soft_wrap=True,
        )
    else:
        summary = _one_line(run.artifact.meta["summary"])
        err.print(
            f"[green]✓[/] {label:<28} {run.seconds:5.1f} s [dim]{run.artifact.key[:8]}[/]  {summary}",
            highlight=False,
            soft_wrap=True,
        )


def _one_line(summary: Mapping[str, Any]) -> str:
    """The few figures of a stage's summary that say how it went."""
    shown = ["rows", "mean_characters", "loss", "eval_accuracy", "objective/scores", "objective/kl"]
    return ", ".join(f"{name} {_number(summary[name])}" for name in shown if name in summary)


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _prepare_environment() -> None:
    """Keep other libraries' chatter out of a run's output, unless the user has asked for it, and threads from spinning:
    on a machine that does something else as well, threads that spin while they wait made sampling 2.5 times slower."""
    for name, value in {
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }.items():
        os.environ.setdefault(name, value)
    if "PYTHONWARNINGS" not in os.environ:
        warnings.simplefilter("ignore")
