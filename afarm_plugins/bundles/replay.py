"""A bundle replayed: labels from stored answers, figures from labels, pages from figures.

Nothing is asked of a judge, and nothing is read but the bundle. Each thing that is made again must be the same bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from afarm import (
    AfarmError,
    AnnotateContext,
    ConfigError,
    DataError,
    DataStudy,
    EvaluationInputs,
    JudgingStudy,
    ModelError,
    Output,
    RunRecord,
    read_outputs,
    read_rows,
    read_run,
    run_directories,
    write_rows,
)
from afarm.experiments import STUDY, GridProgress, Workspace, attribute_failures, discover, read_study_record
from afarm.judging import annotate_in_chunks
from afarm.report import ShownStudy, build, write_study
from afarm.results import Ledger, close_files, read_preferences
from afarm_plugins.bundles.packing import ANSWERS, INPUTS, JUDGEMENTS, LABELS, MADE_AGAIN, PAGE, with_files_changed
from afarm_plugins.bundles.stored_answers import StoredAnswersClient, judge_again, open_recorded, restore_slice

KEPT = "kept"
"""Of labels that were not made again: they are from files, or need a file or model that lies elsewhere."""

CLOSED = "a replay opens none, since the bundle that names it may be anybody's"

Replayed = tuple[str, str]
"""One thing that was made again: a file of the bundle, and why it is not the same (empty if it is, or `KEPT`)."""


def make_again(bundle: Path, into: Path) -> dict[str, str]:
    """Make everything of an unpacked bundle again in an empty directory, and compare. Raises `DataError`.

    Returns for each thing why it is not the same; empty if it is, or `KEPT`.
    """
    into.mkdir(parents=True, exist_ok=True)
    found: dict[str, str] = {}
    with Ledger(into / "ledger.sqlite") as ledger, close_files(CLOSED, [bundle, into]):
        try:
            restore_slice(ledger, (bundle / ANSWERS).read_bytes(), (bundle / JUDGEMENTS).read_bytes())
        except (ValueError, RecursionError, OSError) as error:
            raise DataError(f"the bundle's ledger cannot be read: {error}") from error
        done: set[str] = set()
        for directory in run_directories(bundle / "runs"):
            found |= _replay_run(bundle, read_run(directory), into, ledger, done)
        for record in sorted((bundle / "studies").glob(f"*/{STUDY}")):
            found |= _replay_study(bundle, record.parent, into, ledger)
    return found


# ------------------------------------------------------------------------------------------------------------- runs


def _replay_run(bundle: Path, record: RunRecord, into: Path, ledger: Ledger, done: set[str]) -> Iterator[Replayed]:
    stages = [stage for stage in record.stages if stage.get("kind") in ("annotate", "evaluate")]
    fresh = [s for s in stages if (name := f"{s['kind']}/{s['key']}") not in done and not done.add(name)]  # type: ignore[func-returns-value]
    if fresh:
        # Comparisons of files record their annotator beside the settings.
        judged_files = "coverage" in record and not record.get("stored")
        overrides = [{"evaluate": {"annotator": record.get("annotator")}}] if judged_files else []
        try:
            with open_recorded(record.section("config"), into, overrides) as workspace:
                for stage in fresh:
                    yield from _replay_stage(bundle, record, stage, into, workspace, ledger)
        except AfarmError as error:
            yield (f"the labels of {record.name}", f"its settings cannot be opened here: {error}")
    again = into / "runs" / record.directory.name
    shutil.copytree(record.directory, again, ignore=shutil.ignore_patterns(PAGE))
    if (record.directory / PAGE).is_file():
        build(again)
        yield _compared(record.directory / PAGE, again / PAGE, bundle)


def _replay_stage(
    bundle: Path, record: RunRecord, stage: Any, into: Path, workspace: Workspace, ledger: Ledger
) -> Iterator[Replayed]:
    kind = str(stage["kind"])
    source, again = (place / "artifacts" / kind / str(stage["key"]) for place in (bundle, into))
    again.mkdir(parents=True, exist_ok=True)
    settings = workspace.config.annotate if kind == "annotate" else workspace.config.evaluate
    path = next((source / name for name in LABELS if (source / name).is_file()), None)
    if path is None:
        return
    what = str(path.relative_to(bundle))
    if record.get("stored") or _needs_what_is_elsewhere(workspace, settings.annotator):
        yield (what, KEPT)
        yield from _replay_results(bundle, record, source, workspace)
        return
    try:
        labels = read_preferences(path)
        pairs = [row.pair for row in labels if not row.unanswered]
        context = AnnotateContext(workspace.seed(kind), StoredAnswersClient(workspace, ledger))
        annotator = workspace.components.annotator(settings.annotator)
        judged = annotate_in_chunks(pairs, annotator, settings.annotator, context, settings.label_noise)
        lost = (row for row in labels if row.unanswered)  # by a rule, after all others
        write_rows(again / path.name, (row.to_row() for row in chain(judged, lost)))
    except AfarmError as error:
        yield (what, str(error))
        return
    yield _compared(path, again / path.name, bundle)
    if kind == "evaluate":
        yield from _replay_results(bundle, record, source, workspace)


def _needs_what_is_elsewhere(workspace: Workspace, annotator: str) -> bool:
    """Tell if the annotator, or a judge, names a file or a model, which is opened for nobody's bundle."""
    try:
        if ":" not in annotator and workspace.judges.by_role:
            workspace.components.annotator(annotator).identity  # noqa: B018  (reads the files that its settings name)
            return False
        return True
    except (ConfigError, DataError, ModelError):  # plugins that are not installed are another matter
        return True


def _replay_results(bundle: Path, record: RunRecord, source: Path, workspace: Workspace) -> Iterator[Replayed]:
    """Evaluate the labels again, with every evaluator that needs no more than these."""
    rows = read_preferences(source / "judgements.jsonl")
    for result in read_rows(source / "results.jsonl"):
        name = str(result["evaluator"])
        if result.get("needs") != ["judgements"] or name not in workspace.config.evaluate.evaluators or ":" in name:
            continue
        what = f"{(source / 'results.jsonl').relative_to(bundle)}: {name}"
        ours = _outputs(bundle, record, str(result["system"])) or [
            Output(row.pair.instruction, row.pair.output_2, row.pair.generator_2) for row in rows
        ]
        theirs = _outputs(bundle, record, str(result["reference"])) or [
            Output(row.pair.instruction, row.pair.output_1, row.pair.generator_1) for row in rows
        ]
        try:
            inputs = EvaluationInputs(str(result["system"]), ours, theirs, rows, (), ())
            again = workspace.components.evaluate(name, inputs)
        except AfarmError as error:
            yield (what, str(error))
            continue
        same = json.loads(json.dumps(dict(again.metrics))) == result["metrics"]
        yield (what, "" if same else "its figures differ")


def _outputs(bundle: Path, record: RunRecord, system: str) -> Sequence[Output]:
    stage = record.stage(f"outputs {system}")
    path = bundle / "artifacts" / "outputs" / str(stage["key"]) / "outputs.jsonl" if stage else None
    return read_outputs(path) if path is not None and path.is_file() else []


# ---------------------------------------------------------------------------------------------------------- studies


def _replay_study(bundle: Path, directory: Path, into: Path, ledger: Ledger) -> Iterator[Replayed]:
    record = read_study_record(directory)
    again = into / "studies" / directory.name
    progress = GridProgress(record.runs, failed=dict(record.failed))
    for run in record.runs:
        if name := record.records.get(run.label):
            progress.add(run, read_run(bundle / "runs" / name), ledger.completions)
    try:
        with attribute_failures("studies", record.name):
            component = discover(check_configs=False).get("studies", record.name)
            made = component.load()
            settings = {
                name: value
                if name in made.never_opened
                else with_files_changed(value, partial(relocate, bundle=bundle))
                for name, value in record.settings.items()
            }
            study = made(component.settings(settings)) if component.config else made()
            study.know(record.facts)
            study.grid(replace(record.request, output_dir=bundle))
            if isinstance(study, JudgingStudy):
                progress.simulated.update(judge_again(study, record, into, ledger)[1])
            if isinstance(study, DataStudy):
                for name in (str(record.judging.get("dataset")), str(record.judging.get("eval_set"))):
                    for named in (name, *dict(record.judging.get(name, {})).values()):
                        relocate(str(named), bundle)
                with open_recorded(record.judging, into) as workspace:
                    study.read(workspace.data.load)
            findings = study.analyse(progress.finished)
    except AfarmError as error:
        yield (f"studies/{directory.name}", str(error))
        return
    write_study(again, ShownStudy(record.name, record.command, progress, findings, record.formats, study))
    for path in sorted(again.iterdir()):
        if path.suffix in MADE_AGAIN:
            yield _compared(directory / path.name, path, bundle)


def relocate(named: str, bundle: Path) -> str:
    """Return the bundle's copy of a file that a setting names. Raises `DataError` for a path outside it."""
    if named.startswith(f"{INPUTS}/") and ".." not in Path(named).parts:
        return str(bundle / named)
    if named and ("/" in named or Path(named).exists()):
        raise DataError(f"the bundle names a file outside of it: {named!r:.80}")
    return named


# ------------------------------------------------------------------------------------------------------------- files


def _compared(packed: Path, again: Path, bundle: Path) -> Replayed:
    what = str(packed.relative_to(bundle))
    if not packed.is_file():
        return (what, "is not in the bundle")
    return (what, "" if packed.read_bytes() == again.read_bytes() else "differs")
