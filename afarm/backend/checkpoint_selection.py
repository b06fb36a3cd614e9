"""Checkpoint selection: keep the checkpoint with the highest win rate on the validation split.

The win rate is over the start policy's answers. Ranking by the optimised reward would keep the most over-optimised one.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from afarm.backend.distributed import barrier, rank, world_size
from afarm.core.config import CheckpointChoice
from afarm.core.errors import TrainingError
from afarm.core.interfaces import MethodInputs, Policy, TrainContext
from afarm.core.records import Pair
from afarm.core.seeding import integer
from afarm.storage.checkpoints import wait_for

SELECTION_FILE, BEST_WEIGHTS_FILE = "selection.json", "best.pt"
"""In a checkpoint: what has been compared so far, and the weights of the best candidate."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint's step, its win rate over the start policy and the standard error, both in percent.

    `standard_error` is None for a single pair; `kl` is the KL to the start policy in nats, if known.
    """

    step: int
    win_rate: float
    standard_error: float | None
    kl: float | None = None


def make_selection(config: CheckpointChoice, inputs: MethodInputs, context: TrainContext) -> CheckpointSelection | None:
    """Return the selection that `config.checkpoint` asks for; None if the last checkpoint counts."""
    return CheckpointSelection(inputs, context) if config.checkpoint == "best" else None


class CheckpointSelection:
    """The candidates of a training run so far and the best one's weights, stored in its checkpoints.

    All candidates answer with the same draws; the start policy answers once, with draws of its own. Needs
    `inputs.annotate` and `inputs.validation`.
    """

    def __init__(self, inputs: MethodInputs, context: TrainContext):
        self.inputs, self.context = inputs, context
        self._judged = context.directory / ".judged"
        self.candidates: list[Candidate] = []
        self._start_answers: list[str] = []

    @property
    def best(self) -> Candidate | None:
        """The candidate with the highest win rate; of equal ones the earliest, nearest to the start."""
        return max(self.candidates, key=lambda candidate: candidate.win_rate, default=None)

    def compare(self, step: int, policy: Policy, kl: float | None = None) -> dict[str, float]:
        """Judge `policy` as the candidate of `step`. Returns metrics of it and of the best so far.

        The main process judges, without a time limit; the others wait and get no metrics. Raises `TrainingError` if
        the annotator gives no usable judgement at all.
        """
        if not self.knows_start:
            self.answer_start()
        if rank() > 0:
            self._wait_until(step)
            return {}
        answers = self._answers(policy, "candidate")
        candidate = Candidate(step, *self._win_rate(step, answers), kl)
        self.candidates.append(candidate)
        best = self.best or candidate
        self._tell(step)
        metrics: dict[str, float | None] = {
            "validation/win_rate": candidate.win_rate,
            "validation/standard_error": candidate.standard_error,
            "validation/length": statistics.fmean(map(len, answers)),
            **{f"best/{name}": value for name, value in asdict(best).items()},
            "best/labels": len(self.candidates) * len(answers),
            "last/step": candidate.step,
            "last/win_rate": candidate.win_rate,
        }
        return {name: value for name, value in metrics.items() if value is not None}

    @property
    def knows_start(self) -> bool:
        """True once the start policy has answered; the same in all processes."""
        return bool(self._start_answers)

    def answer_start(self) -> None:
        """Have the start policy answer, in the main process; the others wait, without a time limit."""
        if rank() > 0:
            self._wait_until("start")
            self._start_answers = [""]
        else:
            self._start_answers = self._answers(self.inputs.start, "start")
            self._tell("start")
        barrier()  # all have read the mark before another takes its place

    def _tell(self, what: object) -> None:
        """Tell the other processes of this launch what has been judged."""
        if world_size() > 1:
            self._judged.write_text(f"{self.context.backend.session} {what}", encoding="utf-8")

    def _wait_until(self, what: object) -> None:
        mark = f"{self.context.backend.session} {what}"
        wait_for(lambda: self._judged.is_file() and self._judged.read_text(encoding="utf-8") == mark)

    def _answers(self, policy: Policy, who: str) -> list[str]:
        seed = integer(self.context.seed, "validation", who)
        return [s.text for s in policy.sample(self.inputs.validation, self.inputs.decoding, seed=seed)]

    def _win_rate(self, step: int, answers: Sequence[str]) -> tuple[float, float | None]:
        """Estimate the win rate in percent and its standard error; unusable judgements are left out."""
        assert self.inputs.annotate is not None  # checked with `checkpoint=best`
        rows = zip(self.inputs.validation, self._start_answers, answers, strict=True)
        pairs = [Pair(instruction, start, answer, 0, "start", str(step)) for instruction, start, answer in rows]
        judged = self.inputs.annotate(pairs, noiseless=True)
        wins = [value for preference in judged if (value := preference.win) is not None]
        if not wins:
            raise TrainingError(
                f"step {step}: none of the {len(judged)} validation pairs has a usable judgement to choose a "
                "checkpoint by; keep the last one instead (its setting `checkpoint`), or look at what the judge wrote: "
                "afarm ledger --export FILE"
            )
        error = 100 * statistics.stdev(wins) / math.sqrt(len(wins)) if len(wins) > 1 else None
        return 100 * statistics.fmean(wins), error

    # ------------------------------------------------------------------------------------------------ in checkpoints

    def save(self, step: int, weights: Mapping[str, Tensor], directory: Path) -> None:
        """Write what `load` needs into the new checkpoint of `step`, whose policy has these weights."""
        state = {"start": self._start_answers, "candidates": [asdict(candidate) for candidate in self.candidates]}
        (directory / SELECTION_FILE).write_text(json.dumps(state), encoding="utf-8")
        if self.best is None:
            return
        if self.best.step == step:
            torch.save(dict(weights), directory / BEST_WEIGHTS_FILE)
        elif latest := self.context.checkpoints.latest():
            shutil.copyfile(latest[1] / BEST_WEIGHTS_FILE, directory / BEST_WEIGHTS_FILE)

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote."""
        state = json.loads((directory / SELECTION_FILE).read_text(encoding="utf-8"))
        self._start_answers = state["start"]
        self.candidates = [Candidate(**row) for row in state["candidates"]]

    def best_weights(self) -> Mapping[str, Tensor]:
        """Load the best candidate's weights from the newest checkpoint."""
        latest = self.context.checkpoints.latest()
        assert latest is not None  # saved with the candidate
        return torch.load(latest[1] / BEST_WEIGHTS_FILE, map_location="cpu", weights_only=True)
