"""A step of the experiment as a value: what it is made from, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from afarm.core.judge import ChatRequest
from afarm.core.records import Pair
from afarm.storage.artifacts import Artifact

Inputs = Mapping[str, Artifact]

MODELS = frozenset({"base", "train", "fit-reward"})
"""The kinds of stage that make a policy or a reward model; the others make rows."""


class Write(Protocol):
    """Fill an artifact's directory from its inputs, and return a summary of what was done."""

    def __call__(self, directory: Path, inputs: Inputs) -> Mapping[str, Any]: ...


class Labelling(NamedTuple):
    """Pairs for an annotator to label; `purpose` is that of the seed of all draws.

    In plans, outputs that do not exist yet begin with the text `stand_in`, of which `length` says how it was chosen,
    and can be `longer` by some tokens. `groups` counts the pairs that are asked about together, if not all are; `new`
    is the share of pairs that are not expected to be asked about before.
    """

    purpose: str
    pairs: Sequence[Pair]
    annotator: str
    label_noise: float
    stand_in: str = ""
    length: str = ""
    longer: float = 0.0
    groups: Sequence[int] = ()
    new: float = 1.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the experiment: `write` makes its artifact from the artifacts of `inputs`.

    `key_fields` holds everything that its result depends on besides its inputs. `run_collective` is the part of `write`
    that all processes run together (training), with the same arguments. For a dry run, `plan_requests` returns the
    requests of a stage that asks a judge itself, and `plan_labels` what a stage has labelled, with made-up outputs for
    those that are not among the inputs yet; what annotators ask, they plan themselves. `asks_less_by` names settings
    that make it ask less, for advice.
    """

    kind: str
    label: str
    inputs: Mapping[str, Stage]
    key_fields: Mapping[str, Any]
    write: Write
    run_collective: Callable[..., object] | None = None
    plan_requests: Callable[[], Iterable[ChatRequest]] | None = None
    plan_labels: Callable[[Inputs], Labelling] | None = None
    asks_less_by: Callable[[], list[str]] | None = None

    def build_key_fields(self, inputs: Inputs) -> dict[str, Any]:
        """Return everything the stage's result depends on: data by content, models by content and key.

        A model's files do not determine its behaviour: editing a best-of-n policy's source leaves its files the same.
        """
        contents = {
            name: f"{artifact.content} of {artifact.key}" if artifact.stage in MODELS else artifact.content
            for name, artifact in inputs.items()
        }
        return {**self.key_fields, "inputs": contents}


def walk(*stages: Stage) -> dict[str, Stage]:
    """Return the stages and all before them by label, in order of need.

    Those that read files or the Hub come first: a data set that teaches nothing is refused before anything trains.
    """
    found: dict[str, Stage] = {}

    def visit(stage: Stage) -> None:
        if stage.label not in found:
            for upstream in stage.inputs.values():
                visit(upstream)
            found[stage.label] = stage

    for stage in stages:
        visit(stage)
    return dict(sorted(found.items(), key=lambda item: bool(item[1].inputs)))


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage that was made, in `seconds`, or reused.

    `why` says why it was not reused, or that what is reused was made with other library versions. `inputs` are the
    labels of the stages that it was made from.
    """

    kind: str
    label: str
    artifact: Artifact
    reused: bool
    seconds: float
    why: str = ""
    inputs: tuple[str, ...] = ()
