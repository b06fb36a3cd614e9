"""`afarm judge fit`: a judge of one's own from labels that exist."""

# Annotations are evaluated here, by Typer.

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afarm import ConfigError
from afarm.cli.options import DEFAULT_OUTPUT_DIR, Json, OutputDir, command_line, option, print_json, write_examples

if TYPE_CHECKING:
    from afarm_plugins.fitted_judges.fit import FitReport


def add_commands(app: typer.Typer) -> None:
    """Add the group `judge` with its command."""
    group = typer.Typer(help="Make judges of your own, and measure judges.", no_args_is_help=True)
    examples = write_examples(
        "judge fit",
        "annotations.json --out mine",
        "people.jsonl --out mine --embeddings ./minilm --licence MIT",
    )
    group.command("fit", epilog=examples)(fit_to_labels)
    app.add_typer(group, name="judge")


def fit_to_labels(
    annotations: Annotated[
        list[str], typer.Argument(help="Files with labels, people's or a judge's; or hf:OWNER/NAME[:SPLIT].")
    ],
    out: Annotated[Path, option("--out", "The directory that the judge is written to.")],
    embeddings: Annotated[
        str | None, option("--embeddings MODEL", "Also try embeddings of this sentence encoder.")
    ] = None,
    reward_model: Annotated[
        str | None, option("--reward-model MODEL", "Also try a reward model on this small LM.")
    ] = None,
    recipe: Annotated[str, option("--recipe", "The recipe of the reward model's settings.")] = "smol",
    settings: Annotated[
        list[str] | None, option("--set NAME=VALUE", "A setting of the reward model; repeatable.")
    ] = None,
    labels: Annotated[
        str,
        option(
            "--labels FIRST,SECOND[,DRAW]",
            "The labels in files for the first output, the second and a draw, if not 1,2,0: 0,1, or A,B,tie.",
        ),
    ] = "",
    folds: Annotated[int, option("--folds", "Folds of instructions.", min=3)] = 5,
    seed: Annotated[int, option("--seed", "The seed of the folds.", min=0)] = 0,
    licence: Annotated[str, option("--licence", "The licence of the labels, for the card.")] = "",
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
    as_json: Json = False,
) -> None:
    """Fit a judge to labels that exist, for --judge fitted:DIR."""
    from afarm_plugins.fitted_judges.labelled_pairs import read_labelled

    require_place(out)
    _require_named(annotations, embeddings, reward_model)
    if settings and not reward_model:
        raise ConfigError(["--set is for the reward model: name its language model with --reward-model MODEL"])
    read = ("bradley_terry", "backend", "prompt_template")
    if strange := [given for given in settings or [] if given.partition("=")[0].partition(".")[0] not in read]:
        raise ConfigError([f"--set {given}: nothing here reads it, only {', '.join(read)}" for given in strange])
    pairs, counts = read_labelled(annotations, labels)
    instructions = len({row.pair.instruction.id for row in pairs})
    if folds > instructions:
        few = f"each needs an instruction of its own, and the labels are of {instructions}"
        raise ConfigError([f"--folds {folds}: {few}: 5 are usual"])
    for example in counts.unusable.examples:
        _tell(f"left out: {example}")
    if counts.describe_left_out:
        _tell(f"left out in all: {counts.describe_left_out}")
    # What follows loads scikit-learn, and torch if it is asked for.
    from afarm_plugins.fitted_judges.card import write_judge
    from afarm_plugins.fitted_judges.encoder import SentenceEncoder
    from afarm_plugins.fitted_judges.fit import fit_judge
    from afarm_plugins.fitted_judges.learned_reward import LearnedReward

    encoder = SentenceEncoder(embeddings) if embeddings else None
    learned = None
    if reward_model:
        learned = LearnedReward(reward_model, recipe, tuple(settings or []), output_dir, seed, _tell)
        learned.check(pairs)  # before the other candidates are fitted
    with whole_or_absent(out) as beside:
        report = fit_judge(pairs, counts, beside, folds=folds, seed=seed, encoder=encoder, learned=learned, tell=_tell)
        write_judge(beside, report, [Path(name).name for name in annotations], licence, command_line())
    if as_json:
        print_json({"directory": str(out), **report.to_json()})
    else:
        typer.echo(screen(report, out))


def require_place(out: Path) -> None:
    """Raise `ConfigError` if `out` holds anything."""
    if out.is_file():
        raise ConfigError([f"--out {out} is a file: name a new directory"])
    if out.is_dir() and any(out.iterdir()):
        held = "a fitted judge already" if (out / "judge.json").is_file() else "other files"
        raise ConfigError([f"--out {out} holds {held}: name a new directory, or empty it"])


def _require_named(annotations: list[str], embeddings: str | None, reward_model: str | None) -> None:
    """Raise `ConfigError` for a file that is named twice, and for models that are no name."""
    places = [name if name.startswith("hf:") else str(Path(name).resolve()) for name in annotations]
    twice = [name for number, name in enumerate(annotations) if places[number] in places[:number]]
    problems = [f"{name} is named twice, and its labels would count twice: name each file once" for name in twice]
    models = {"--embeddings": embeddings, "--reward-model": reward_model}
    problems += [f"{option} is empty: name a model, or leave it out" for option, model in models.items() if model == ""]
    if problems:
        raise ConfigError(problems)


@contextmanager
def whole_or_absent(out: Path) -> Iterator[Path]:
    """Give a directory that becomes `out` if nothing fails. Raises `ConfigError` if it cannot be written."""
    out = out.resolve()
    beside = out.with_name(f".{out.name}.partial")
    try:
        shutil.rmtree(beside, ignore_errors=True)  # of a fit that was killed
        beside.mkdir(parents=True)
        yield beside
        beside.replace(out)
    except OSError as error:
        if out.is_dir() and any(out.iterdir()):
            raise ConfigError([f"--out {out} was written by another command: name a new directory"]) from error
        raise ConfigError([f"--out {out} cannot be written: {error.strerror or error}"]) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def screen(report: "FitReport", out: Path) -> str:
    """Return the figures for a terminal."""
    chosen = report.chosen
    lines = [
        f"Kept: {report.kept}. Choosing so in each fold, on instructions it never saw ({chosen.pairs} pairs of "
        f"{chosen.instructions}):",
        f"  it agrees with        {chosen.agreement.text()} %",
        f"  the longer wins       {chosen.longer.text()} %",
        *([f"  one label             {report.people.text()}"] if report.people else []),
        *(f"  {name:<20}  {figures.agreement.text()} %" for name, figures in report.candidates.items()),
        f"  Brier {chosen.brier:.3f}, calibration error {chosen.ece:.3f}",
        *(f"  {name} unseen: {figures.agreement.text()} %" for name, figures in report.unseen.items()),
        report.verdict,
        f"Use it: --judge fitted:{out} or --annotator fitted:{out}. Its card: {out / 'README.md'}",
    ]
    return "\n".join(lines)
