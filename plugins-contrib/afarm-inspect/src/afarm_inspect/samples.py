"""Samples of a log of Inspect as rows of afarm: outputs of a model, or a scorer's verdicts on them.

The instruction is the sample's input, the output its completion. What the solver added to the prompt belongs to the
system that is judged, and not to the task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from afarm import DataError, Row, with_turns
from afarm_inspect.library import LIBRARY, describe_library, load_part

FORMATS = (".eval", ".json")
TOGETHER = 256
"""Samples that are in memory at once."""
UNREAD = {"attachments", "events", "events_data", "store", "timelines"}
"""Fields of a sample that may be large, and hold no text of its input or output."""

GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": None}
"""Inspect's grades as the win of the output: correct, partially, incorrect, no answer."""
FINISH_REASONS = {"max_tokens": "length", "model_length": "length"}
TEXT = {"text", "reasoning"}
"""Types of content that an assistant's message may have; the reasoning is no part of the completion."""


class Unusable(Exception):
    """A sample that makes no row: `kind` says why, `detail` more of this sample."""

    def __init__(self, kind: str, detail: str = ""):
        super().__init__(kind)
        self.kind, self.detail = kind, detail


@dataclass
class Found:
    """Counts of a log's rows, and places of samples that make none, or need a note, by kind."""

    rows: int = 0
    unusable: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    noted: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    models: set[str] = field(default_factory=set)

    @property
    def problems(self) -> list[str]:
        """A sentence about each kind of sample that makes no row."""
        return self._describe(self.unusable)

    @property
    def notes(self) -> list[str]:
        """A sentence about each kind of sample that is worth a look, and about several models."""
        models = f"the outputs are of several models: {', '.join(sorted(self.models))}"
        return [*self._describe(self.noted), *([models] if len(self.models) > 1 else [])]

    def _describe(self, kinds: dict[str, list[str]]) -> list[str]:
        total = self.rows + sum(map(len, self.unusable.values()))
        said = []
        for kind, places in kinds.items():
            first = f", such as {places[0]}" if places[0] else ""
            said.append(f"{len(places):,} of {total:,} samples {kind}{first}")
        return said


def read_header(path: Path) -> Any:
    """Read a log without its samples.

    Raises `DataError` for what is no log, or is not finished, has no samples, or is of a newer format.
    """
    if path.suffix not in FORMATS:
        raise DataError(f"{path}: logs of Inspect end in {' or '.join(FORMATS)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file (from {Path.cwd()}): name one that is there")
    log = load_part("log")
    header = _call(path, log.read_eval_log, str(path), header_only=True)
    known = log.EvalLog.model_fields["version"].default
    if header.version > known:
        raise DataError(
            f"{path}: has version {header.version} of the format of logs, and {describe_library()} knows {known}: "
            f"pip install -U {LIBRARY}"
        )
    if header.status == "started":
        raise DataError(
            f"{path}: its evaluation is still running, or was killed (status: started): wait until it has ended, or "
            f"mend the log with\n  inspect log recover {path}"
        )
    if header.eval.config.log_samples is False:
        raise DataError(f"{path}: has figures and no samples: evaluate again without --no-log-samples")
    return header


def _call(path: Path, read: Any, *arguments: Any, **options: Any) -> Any:
    """Call a reader of inspect_ai. Raises `DataError` for whatever it raises."""
    try:
        return read(*arguments, **options)
    except Exception as error:  # they have no base of their own
        cause = error.__cause__ or error
        said = (str(cause).splitlines() or [""])[0]
        raise DataError(
            f"{path}: {describe_library()} cannot read it as a log ({type(cause).__name__}: {said}). If it was cut "
            f"off, copy it again; if its evaluation was killed, try `inspect log recover {path}`; if it is of a newer "
            f"Inspect, pip install -U {LIBRARY}"
        ) from error


def choose_epoch(header: Any, epoch: int | None, path: Path) -> int:
    """Return the epoch to read. Raises `DataError` if none of several was named, or a wrong one."""
    epochs = header.eval.config.epochs or 1
    if epoch is None and epochs > 1:
        raise DataError(
            f"{path}: has {epochs} epochs, so {epochs} outputs for each instruction: choose one with --epoch N, "
            f"1 to {epochs}"
        )
    if epoch is not None and not 1 <= epoch <= epochs:
        raise DataError(f"{path}: has no epoch {epoch}, only 1 to {epochs}")
    return epoch or 1


def read_samples(path: Path, epoch: int) -> Iterator[Any]:
    """Yield the samples of an epoch. Raises `DataError`.

    A few are in memory at a time; but inspect_ai reads a .json file whole.
    """
    log = load_part("log")
    if path.suffix == ".json":
        whole = _call(path, log.read_eval_log, str(path))
        yield from (sample for sample in whole.samples or () if sample.epoch == epoch)
        return
    summaries = _call(path, log.read_eval_log_sample_summaries, str(path))
    wanted = [(summary.id, summary.epoch) for summary in summaries if summary.epoch == epoch]
    read = log.read_eval_log_samples_by_id
    for start in range(0, len(wanted), TOGETHER):  # one by one, each would read the file's whole directory
        some = wanted[start : start + TOGETHER]
        yield from _call(path, read, str(path), some, exclude_fields=UNREAD)


def make_rows(
    path: Path, header: Any, epoch: int, name: str, scorer: str | None, drop: bool, found: Found
) -> Iterator[Row]:
    """Yield the rows of a log's samples, and fill `found`.

    Raises `DataError` at the end if samples make no row, unless they are to be dropped, and if none does.
    """
    met = 0
    for sample in read_samples(path, epoch):
        met += 1
        place = f"sample {sample.id}"
        try:
            row = make_row(sample, name)
            if scorer is not None:
                row = as_verdict(row, sample, scorer, str(header.eval.task_args.get("reference") or "target"))
        except Unusable as error:
            found.unusable[error.kind].append(f"{place} ({error.detail})" if error.detail else place)
            continue
        if sample.limit:
            found.noted["were stopped by a limit, and have their output up to there"].append(
                f"{place} ({sample.limit.type})"
            )
        if any(message.role == "tool" for message in sample.messages):
            found.noted["used tools; their last answer is taken as it stands"].append(place)
        found.models.add(sample.output.model)
        found.rows += 1
        yield row
    if (missing := (header.eval.dataset.samples or met) - met) > 0:
        found.unusable[f"are not in the log, whose status is {header.status}"] += [""] * missing
    problems = "".join(f"\n  {one}" for one in found.problems)
    if not found.rows:
        raise DataError(f"{path}: no sample makes a row{':' if problems else ', there are none'}{problems}")
    if problems and not drop:
        raise DataError(f"{path}: these samples make no row (--on-unusable drop leaves them out):{problems}")


def make_row(sample: Any, name: str) -> Row:
    """Return a sample's row of outputs, by `name`. Raises `Unusable` for one that has none to judge."""
    if sample.error:
        raise Unusable("failed", sample.error.message.splitlines()[0][:100] if sample.error.message else "")
    if sample.invalidation:
        raise Unusable("were invalidated")
    if sample.choices:
        raise Unusable("are multiple choice, of which a win rate says nothing")
    if not sample.output.choices:
        raise Unusable("have no output", f"limit: {sample.limit.type}" if sample.limit else "")
    last = sample.output.choices[0]
    if last.message.tool_calls:
        raise Unusable(
            "end with a call of a tool, and without an answer", f"limit: {sample.limit.type}" if sample.limit else ""
        )
    _require_text(last.message, "output")
    if _later_turns(sample):
        raise Unusable("were asked more than their input, so that their last answer is to another question")
    row = {
        **_read_input(sample),
        "output": sample.output.completion,
        "generator": name,
        "sample_id": sample.id,
        "epoch": sample.epoch,
        "model": sample.output.model,
        "finish_reason": FINISH_REASONS.get(last.stop_reason, last.stop_reason),
    }
    if sample.limit:
        row["limit"] = sample.limit.type
    values = {name: _plain(score.value) for name, score in (sample.scores or {}).items()}
    return {**row, "inspect_scores": values} if values else row


def _read_input(sample: Any) -> Row:
    """The columns of a sample's instruction, with its earlier turns if it is a chat."""
    if isinstance(sample.input, str):
        return {"instruction": sample.input}
    for message in sample.input:
        if message.role == "tool" or getattr(message, "tool_calls", None):
            raise Unusable("have a tool's turn in their input, which afarm does not judge")
        _require_text(message, "input")
    turns = [{"role": message.role, "content": message.text} for message in sample.input]
    try:
        row = with_turns({"messages": turns}, "input")
    except DataError as error:
        raise Unusable("have an input that is no chat with the user's turn last", str(error)) from error
    return {name: row[name] for name in ("instruction", "messages") if row.get(name)}


def _require_text(message: Any, where: str) -> None:
    kinds = {part.type for part in message.content_list} - TEXT
    for kind in sorted(kinds):
        raise Unusable(f"have {kind} content in their {where}, which afarm does not judge")


def _later_turns(sample: Any) -> int:
    """Count the user's turns behind those of the input: of a simulated user, or of an agent's loop."""
    given = [number for number, message in enumerate(sample.messages) if message.source == "input"]
    return sum(message.role == "user" for message in sample.messages[given[-1] + 1 :]) if given else 0


def _plain(value: Any) -> Any:
    """A score's value, as JSON can hold it: no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_verdict(row: Row, sample: Any, scorer: str, reference: str) -> Row:
    """Return a row of annotations: the sample's target as the reference's output, and the verdict.

    Raises `Unusable` for a sample without a score by this scorer, and for a value that is no share of a win.
    """
    scores = sample.scores or {}
    if scorer not in scores:
        raise Unusable(f"have no score {scorer!r}", f"but {', '.join(sorted(scores))}" if scores else "")
    targets = [sample.target] if isinstance(sample.target, str) else sample.target
    if len(targets) != 1 or not targets[0]:
        raise Unusable("have no single target to be the reference's output")
    value = scores[scorer].value
    win = GRADES[value] if isinstance(value, str) and value in GRADES else _plain(value)
    if win is not None and (isinstance(win, str) or not isinstance(win, int | float) or not 0 <= win <= 1):
        raise Unusable("have a score that is neither C, P, I or N nor a number from 0 to 1", repr(value)[:100])
    return {
        **{name: value for name, value in row.items() if name in ("instruction", "messages")},
        "output_1": targets[0],
        "output_2": row["output"],
        "generator_1": reference,
        "generator_2": row["generator"],
        "preference": None if win is None else 1 + float(win),
        "annotator": scorer,
    }
