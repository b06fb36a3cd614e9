"""A run taken out of afarm: policy, preferences and outputs for other software, with a model card."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from afarm.core.errors import DataError, StoreError
from afarm.core.interfaces import Policy
from afarm.core.plugins import Plugins, discover
from afarm.core.records import Instruction, JudgedPair, Output, Row
from afarm.experiment.components import Components
from afarm.experiment.model_card import model_card
from afarm.experiment.recipe import Settings
from afarm.experiment.settings import RunConfig
from afarm.storage.artifacts import Store
from afarm.storage.conversations import chat_messages, task_text
from afarm.storage.disk import give_rights, storage_errors, write_json
from afarm.storage.labelled_pairs import CHOSEN_REASONS
from afarm.storage.rows import read_outputs, read_preferences, read_rows, write_rows
from afarm.storage.runs import OUTPUTS, RunRecord, read_run, run_directories


def export_run(run: RunRecord, directory: Path, plugins: Plugins | None = None) -> Path:
    """Write the policy of a finished run and its data to `directory`, and return it. Whole or absent.

    A policy of one model is a transformers directory; others, best-of-n say, bring what they are made of and a script
    that runs it. Beside it lie a model card (`README.md`), the preferences that it learned from (`preferences.jsonl`,
    TRL's `prompt`, `chosen`, `rejected`), and the evaluation in AlpacaEval's formats (`model_outputs.json`,
    `reference_outputs.json`, `annotations.json`).

    Raises `DataError` if `directory` holds anything, or the run or what it made is not what an export needs,
    `StoreError` if it cannot be made, and `ModelError` if the policy has no form that other software reads.
    """
    if directory.is_file():
        raise DataError(f"{directory} is a file: name a new directory")
    if directory.is_dir() and any(directory.iterdir()):
        raise DataError(f"{directory} is not empty: name a new directory, or empty it")
    directory = directory.resolve()  # what a link points to is written
    stage = _require_policy(run)
    components = _components(run, plugins or discover())
    policy: Policy = components.load(_artifact(run, stage))
    template = getattr(policy, "template", None)
    example = template.render(Instruction("Name three rivers.")) if template is not None else ""
    passing = directory.with_name(f".afarm-export-{os.getpid()}")
    try:
        passing.mkdir(parents=True)
    except OSError as error:
        raise StoreError(
            f"{directory} cannot be made: {error.strerror}; name another directory to export to"
        ) from error
    try:
        with storage_errors(passing):
            policy.export(passing)
            pairs, without = _write_preferences(run, template, passing)
            _write_evaluation(run, passing)
            (passing / "README.md").write_text(model_card(run, passing, example, pairs, without), encoding="utf-8")
            give_rights(passing)
            passing.replace(directory)
    finally:
        shutil.rmtree(passing, ignore_errors=True)
    return directory


def _require_policy(run: RunRecord) -> Mapping[str, Any]:
    """Return the policy's stage. Raises `DataError` with the commands that export if a run has none."""
    if stage := _policy_stage(run):
        return stage
    if files := run.section("files"):
        what = f"compares the files {' and '.join(map(str, files.values()))}: it"
    else:
        what = f"is a run of {run.get('method') or 'no method'}, which"
    others = [read_run(path) for path in run_directories(run.directory.resolve().parent)]
    names = [other.name for other in others if _policy_stage(other) is not None]
    runs = f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""
    raise DataError(
        f"{run.name} {what} trained no policy, so there is none to export. `afarm export` takes runs of `afarm run` "
        f"and `afarm compare`{runs}; the figures of any run: `afarm leaderboard --output board.csv`, and its pairs "
        f"lie in {run.directory / OUTPUTS}"
    )


def _policy_stage(run: RunRecord) -> Mapping[str, Any] | None:
    method = str(run.get("method") or "")
    return run.stage(f"train {method}") or run.stage(method)  # the starting policy's stage is called like its method


def _components(run: RunRecord, plugins: Plugins) -> Components:
    """The components of the run's own settings, to load its models with."""
    fields = {name: value for name, value in run.section("config").items() if name in RunConfig.model_fields}
    try:
        config = RunConfig.model_validate(fields)
    except ValidationError as error:
        raise DataError(
            f"{run.directory}: its settings are another version's ({error.errors()[0]['msg']}); "
            "the same command writes the run afresh"
        ) from error
    return Components(plugins, Settings(str(run.get("recipe", "")), config, {}))


def _artifact(run: RunRecord, stage: Mapping[str, Any]) -> Path:
    store = Store(run.directory.resolve().parents[1])
    artifact = store.find(str(stage.get("kind")), str(stage.get("key")))
    if artifact is None:
        command = f": `{run.get('command')}` makes it again" if run.get("command") else ""
        path = store.root / str(stage.get("artifact", ""))
        raise DataError(f"{run.name}: the artifact of {stage.get('stage')!r} is gone ({path}){command}")
    store.require_sound(artifact)
    return artifact.path


def _write_preferences(run: RunRecord, template: Any, directory: Path) -> tuple[int, int]:
    """Write the training preferences that prefer an output; return how many do, and how many do not."""
    artifacts = [_artifact(run, stage) for stage in run.stages if stage.get("kind") in ("annotate", "preferences")]
    if not artifacts:
        return 0, 0
    judged = read_preferences(artifacts[0] / "preferences.jsonl")
    rows = list(trl_rows(judged, template))
    write_rows(directory / "preferences.jsonl", rows)
    return len(rows), len(judged) - len(rows)


def trl_rows(judged: Sequence[JudgedPair], template: Any = None) -> Iterator[Row]:
    """Yield TRL's `prompt`, `chosen` and `rejected` of each pair with a preferred output.

    As chat messages; as text if the policy's prompts follow no chat template. If it is known of any output how it
    ended, each row has the columns `CHOSEN_REASONS`, which TRL passes over.
    """
    known = any(row.pair.finish_reason_1 or row.pair.finish_reason_2 for row in judged)
    for row in judged:
        if row.p2 is None or row.p2 == 0.5:
            continue
        pair = row.pair.swapped() if row.p2 > 0.5 else row.pair
        instruction, chosen, rejected = pair.instruction, pair.output_1, pair.output_2
        reasons = zip(CHOSEN_REASONS, (pair.finish_reason_1, pair.finish_reason_2), strict=True) if known else ()
        if template is not None and template.name != "chat":
            yield {"prompt": template.render(instruction), "chosen": chosen, "rejected": rejected, **dict(reasons)}
        else:
            yield {
                "prompt": chat_messages(instruction) if template is None else template.turns(instruction),
                "chosen": [{"role": "assistant", "content": chosen}],
                "rejected": [{"role": "assistant", "content": rejected}],
                **dict(reasons),
            }


def _write_evaluation(run: RunRecord, directory: Path) -> None:
    """Write the outputs of the main evaluation, the reference's, and its judgements."""
    method, against = str(run.get("method")), next((result.reference for result in run.results), "")
    main, outputs = run.stage(f"evaluate {method} against {against}"), run.stage(f"outputs {method}")
    if main is None:
        return
    if outputs is not None:
        answered = read_outputs(_artifact(run, outputs) / "outputs.jsonl")
        write_json(directory / "model_outputs.json", alpaca_eval_rows(answered, method))
    judgements = _artifact(run, main) / "judgements.jsonl"
    rows = list(read_rows(judgements))
    pairs = [JudgedPair.from_row(row, f"{judgements}: row {number}") for number, row in enumerate(rows)]
    reference = [Output(j.pair.instruction, j.pair.output_1, j.pair.generator_1) for j in pairs]
    write_json(directory / "reference_outputs.json", alpaca_eval_rows(reference, against))
    write_json(directory / "annotations.json", rows)


def alpaca_eval_rows(outputs: Sequence[Output], generator: str) -> list[Row]:
    """Write outputs as AlpacaEval reads them: an input stands below its instruction.

    Earlier turns, which AlpacaEval does not know, are kept in a column of their own.
    """
    return [
        {
            "dataset": row.instruction.dataset,
            "instruction": task_text(row.instruction),
            "output": row.output,
            "generator": row.generator or generator,
            **({"messages": row.instruction.to_row()["messages"]} if row.instruction.messages else {}),
        }
        for row in outputs
    ]
