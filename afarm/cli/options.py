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

Recipe = Annotated[str, typer.Option("--recipe", help="A recipe by name (`afarm recipes`), or a YAML file.")]
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

    _prepare_environment()
    extra: list[str | Mapping[str, Any]] = []
    if judge:
        extra.append({"judge": _judges(judge)})
    if data is not None:
        if not data.is_file():
            raise ConfigError([f"--data {data}: no such file"])
        extra.append({"dataset": "files", "files": {"path": str(data)}})
    bars = ProgressBars(err)
    farm = Farm(
        recipe,
        settings=[*extra, *(settings or [])],
        output_dir=output_dir,
        progress=bars,
        on_stage=lambda label, run: _tell(bars, label, run),
        **choices,
    )
    if kind := network_file_system(farm.store.ledger_path):
        err.print(
            f"[yellow]{output_dir} is on a network file system ({kind}): locking is slower; prefer a local disk.[/]"
        )
    return farm


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
