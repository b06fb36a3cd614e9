"""Files of outputs on the command line: arguments, judges, and the comparisons they ask for."""

# Annotations are evaluated here: `with_options` hands those of the fields on to Typer.

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer

from afarm.cli.completion import complete_recipes
from afarm.cli.console import err
from afarm.cli.farm_options import FarmOptions
from afarm.cli.given_settings import NAMED_BY_OPTION, refuse_contradictions, refuse_stray
from afarm.cli.shared_options import DEFAULT_RECIPE, RECIPE_HELP, judge_field, model_field, option, option_field
from afarm.core.errors import ConfigError, DataError, PluginError
from afarm.storage.text import markup

if TYPE_CHECKING:
    from afarm.core.records import Output
    from afarm.experiment.comparison.annotations import AnnotationComparison
    from afarm.experiment.comparison.outputs import OutputComparison, SystemComparison
    from afarm.experiment.preflight import Check
    from afarm.experiment.workspace import Workspace

JUDGING = (
    *("annotator", "both_orders", "votes", "vote", "label_noise", "judge"),
    *("budget", "price", "max_concurrency", "allow_degraded", "batch_api"),
)
"""The options that say how to judge."""
RUNS = ("method", "reward_model", "model", "dataset", "data", "preferences")
"""The options that say what to train, with and on what."""

LACKING = {
    "ratings": "ratings, and annotator {annotator!r} gives none: name one that rates each output alone, --annotator "
    "ratings or criteria",
    "reward_model": "the reward model of a run, which files lack: evaluate a method with it (--method NAME), or let a "
    "fitted one judge the files (--annotator reward:DIR)",
}
"""What evaluators need and a comparison of files may lack, and how to have it."""

Outputs = Annotated[
    list[Path] | None,
    typer.Argument(help="Files of outputs to evaluate, one a system, instead of a method's.", show_default=False),
]
Reference = Annotated[
    str | None,
    option("--reference", "The reference outputs: a file, hf:OWNER/NAME[:SPLIT], or a data set by name.", "datasets"),
]
Annotations = Annotated[bool, option("--annotations", "The files hold stored annotations: no judge is asked.")]
Humans = Annotated[
    list[Path] | None, option("--humans FILE", "With --annotations: a file of people's labels; repeatable.")
]
Until = Annotated[
    Literal["decided"] | None,
    option("--until decided", "Stop asking judges when the answer is clear, or the budget ends."),
]
OF_FILES = f"{DEFAULT_RECIPE}; of files: outputs, which names no judge"
ALPHA_HELP = "With --until: how often a wrong answer may be decided."
Alpha = Annotated[float | None, option("--alpha", ALPHA_HELP, None, "0.05", min=0.0001, max=0.5)]


@dataclass(frozen=True)
class EvaluateOptions(FarmOptions):
    """Options of every farm, and of files of outputs. `recipe` is None unless it was named."""

    annotator: str | None = judge_field(
        "--annotator NAME", "Who judges files of outputs; with a method, who labels its training pairs.", "annotators"
    )
    recipe: str | None = model_field("--recipe NAME|FILE", RECIPE_HELP, complete_recipes, OF_FILES)
    evaluator: list[str] | None = option_field(
        "--evaluator NAME", "What to work out, by name (`afarm plugins` lists them); repeatable.", "evaluators"
    )
    on_missing: Literal["error", "skip", "loss"] | None = option_field(
        "--on-missing POLICY", "Instructions without an output: error (the default), skip, or loss."
    )
    on_duplicate: Literal["error", "first"] = option_field(
        "--on-duplicate POLICY", "What contradicts an earlier row: error, or first.", value="error"
    )

    def _collect_given(self) -> dict[str, Any]:
        given = super()._collect_given()
        if self.evaluator:
            given["evaluate"] = {**given.get("evaluate", {}), "evaluators": self.evaluator}
        return given

    def judging_files(self) -> Self:
        """Return the options for files of outputs, which --annotator judges. Raises `ConfigError`."""
        from afarm.experiment.comparison.compare import RECIPE

        settings, given = self.settings or [], self.labelling()
        refuse_contradictions({"evaluate": given}, settings)
        meant = [f"evaluate.{name}={json.dumps(value)}" for name, value in given.items()]
        recipe = RECIPE if self.recipe is None else self.recipe
        return replace(self, label_noise=None, labels=None, recipe=recipe, settings=[*meant, *settings])

    def judging_checks(self, outputs: Sequence[Path] = (), reference: str = "") -> "list[Check]":
        """Return the checks of judging the files `outputs`, whose price is told if no judge is named."""
        from afarm.experiment import preflight
        from afarm.experiment.judge_choices import describe_choices

        def choices(workspace: "Workspace") -> str:
            compared = output_comparisons(workspace, outputs, reference, self)
            return describe_choices(workspace, [one.labelling for one in compared])

        return preflight.judging_checks(choices)


def find_reference(outputs: Sequence[Path] | None, reference: str | None, options: EvaluateOptions) -> str:
    """Return what files of outputs are compared with: a file or an evaluation set; empty without files."""
    if not outputs:
        if reference is not None:
            raise ConfigError(["--reference needs a file of outputs before it"])
        return ""
    for path in outputs:
        if not path.exists():
            refuse_stray(str(path), NAMED_BY_OPTION.values())
    _refuse_repeats(outputs)
    if trained := list_given(options, RUNS):
        raise ConfigError([f"{outputs[0]} and {name} contradict each other: files are not trained" for name in trained])
    reference = reference or options.eval_set
    if reference is None:
        told = f"{outputs[0]} needs something to be compared with: --reference FILE, or --eval-set NAME"
        both = f"; the two with each other: afarm evaluate {outputs[0]} --reference {outputs[-1]}"
        raise ConfigError([told + both if len(outputs) == 2 else told])
    return reference


def _refuse_repeats(files: Sequence[Path]) -> None:
    """Raise `ConfigError` naming the files that are there twice."""
    if twice := sorted({str(path) for path in files if files.count(path) > 1}):
        raise ConfigError([f"{path} is named twice: name each file once" for path in twice])


def output_comparisons(
    workspace: "Workspace", outputs: Sequence[Path], reference: str, options: EvaluateOptions
) -> "list[OutputComparison]":
    """Return the comparison of each system with the reference, called as its rows say or else as its file.

    Raises `DataError` naming file, row and field, and `ConfigError` for evaluators that need more than files.
    """
    from afarm.evaluation.matching import MatchPolicy, among, same_answers
    from afarm.experiment.comparison.outputs import OutputComparison
    from afarm.experiment.data import evaluation_set
    from afarm.storage.rows import names_a_file, read_outputs

    annotator = workspace.config.evaluate.annotator
    match_policy = MatchPolicy(options.on_missing or "error", options.on_duplicate)
    theirs = _reference(workspace, reference)
    asked_of_all = [row.instruction for row in theirs]
    systems = {str(path): read_outputs(path, asked_of_all) for path in outputs}
    for source, rows in [*systems.items(), *([(reference, theirs)] if names_a_file(reference) else [])]:
        _require_one_generator(source, rows)
    if same := [
        f"{one} and {other} hold the same outputs: name each system once" for one, other in same_answers(systems)
    ]:
        raise ConfigError(same)
    if options.eval_set not in (None, reference):
        asked = [row.instruction for row in evaluation_set(workspace.components, options.eval_set or "")]
        theirs = among(theirs, asked)
        systems = {path: among(rows, asked) for path, rows in systems.items()}
    reference_name, *names = _names([(reference, theirs), *systems.items()])
    found = [
        OutputComparison(workspace, rows, theirs, annotator, name, reference_name, match_policy, (path, reference))
        for name, (path, rows) in zip(names, systems.items(), strict=True)
    ]
    _require_usable(workspace, options, found)
    return found


def _require_one_generator(source: str, rows: "Sequence[Output]") -> None:
    """Raise `DataError` naming the rows of a file that are of different systems."""
    firsts: dict[str, int] = {}
    for at, row in enumerate(rows):
        if row.generator:
            firsts.setdefault(row.generator, at)
    if len(firsts) > 1:
        (one, first), (other, second) = list(firsts.items())[:2]
        raise DataError(
            f"{source}: row {first} is of {one!r} and row {second} of {other!r} (field 'generator'): a file holds the "
            "outputs of one system; give each a file"
        )


def _reference(workspace: "Workspace", reference: str) -> "Sequence[Output]":
    """Read its rows. Raises `DataError` if there are none with outputs."""
    from afarm.experiment.data import evaluation_set
    from afarm.storage.row_shapes import no_output
    from afarm.storage.rows import names_a_file, read_rows

    try:
        rows = evaluation_set(workspace.components, reference)
    except PluginError as error:
        takes = "--reference takes a file of outputs, hf:OWNER/NAME[:SPLIT], or the name of a data set"
        raise ConfigError([f"{error} {takes}"]) from error
    if not any(row.output for row in rows):
        first = next(read_rows(reference), {}) if names_a_file(reference) else {}
        raise DataError(
            f"{reference}: has no outputs to compare with: name others with --reference{no_output(first, reference)}"
        )
    return rows


def _names(named: "Sequence[tuple[str, Sequence[Output]]]") -> list[str]:
    """Name each set of outputs: as all of its rows say, unless another set is called so as well."""
    from afarm.storage.rows import stem

    generators = [{row.generator for row in rows} for _, rows in named]
    said = [next(iter(names)) if len(names) == 1 else "" for names in generators]
    stems = [stem(source) for source, _ in named]
    stems = [short if stems.count(short) == 1 else source for short, (source, _) in zip(stems, named, strict=True)]
    return [name if name and said.count(name) == 1 else short for name, short in zip(said, stems, strict=True)]


def _require_usable(workspace: "Workspace", options: EvaluateOptions, compared: "Sequence[SystemComparison]") -> None:
    """Raise `ConfigError` for chosen evaluators that need more than files; name a recipe's."""
    from afarm.experiment.comparison.compare import RECIPE

    chosen = options.evaluator or any(text.startswith("evaluate.evaluators=") for text in options.settings or ())
    names = workspace.config.evaluate.evaluators
    if not chosen:
        used = [{*one.evaluators, *one.together} for one in compared] if options.recipe not in (None, RECIPE) else []
        if left := [name for name in names if any(name not in one for one in used)]:
            said = f"Left out of {options.recipe}, for they need more than these files: {', '.join(left)}"
            err().print(f"[dim]{markup(said)}[/]")
        return
    from afarm.experiment.return_checks import problems_seen

    built = {name: workspace.components.evaluator(name) for name in names}
    problems = []
    for one in compared:
        asked = one.instructions
        for name, evaluator in built.items():
            for need in sorted(evaluator.needs - one.offered):
                lacks = LACKING.get(need, f"{need}, which files lack").format(annotator=one.annotator)
                problems.append(f"--evaluator {name} needs {lacks}")
            seen = problems_seen(partial(evaluator.check, asked), "evaluators", name, evaluator)
            problems += [f"--evaluator {name}: {problem}" for problem in seen]
    if problems := list(dict.fromkeys(problems)):
        raise ConfigError(problems)


@contextmanager
def stored_comparisons(
    workspace: "Workspace", files: Sequence[Path], reference: str | None, options: EvaluateOptions
) -> "Iterator[list[AnnotationComparison]]":
    """Read the systems in files of annotations. Raises `DataError`, and `ConfigError` for wrong options."""
    from afarm.evaluation.annotation_files import annotated_systems
    from afarm.evaluation.matching import MatchPolicy
    from afarm.experiment.comparison.annotations import AnnotationComparison

    why = dict.fromkeys(list_given(options, JUDGING), "they are judged")
    why |= dict.fromkeys(list_given(options, RUNS), "nothing is trained")
    why |= dict.fromkeys(list_given(options, ["eval_set"]), "keep the rows of that set in the files")
    problems = [f"--annotations and {name} contradict each other: {reason}" for name, reason in why.items()]
    if options.on_missing == "loss":
        problems.append("--on-missing loss needs the outputs: annotations do not tell what is missing in them")
    if problems:
        raise ConfigError(problems)
    _refuse_repeats(files)
    match_policy = MatchPolicy(options.on_missing or "skip", options.on_duplicate)
    with TemporaryDirectory() as directory:
        systems = annotated_systems(files, Path(directory), reference or "", match_policy, options.labels or "")
        compared = [AnnotationComparison(workspace, s, s.system, s.reference, s.annotator) for s in systems]
        _require_usable(workspace, options, compared)
        yield compared


def list_given(options: EvaluateOptions, names: Sequence[str]) -> list[str]:
    """List which of the options `names` the command was given."""
    return [f"--{name.replace('_', '-')}" for name in names if getattr(options, name) not in (None, [])]
