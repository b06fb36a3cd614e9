"""What a run would do, without doing it: which stages are reused, and what judges would be asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from afarm import stages
from afarm.files import read_outputs
from afarm.interfaces import AnnotateContext
from afarm.labelling import rule_or_noise
from afarm.ledger import request_key
from afarm.pairing import neighbours, paired
from afarm.pipeline import Farm, with_inputs
from afarm.records import Pair
from afarm.stages import Stage
from afarm.store import Artifact, artifact_key
from afarm.why import why_not_reused


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """What would happen to a stage. `calls` are expected judge requests and `dollars` the most they can cost, None
    where a price is unknown; both are estimates where the outputs to be judged do not exist yet."""

    kind: str
    label: str
    reused: bool
    why: str = ""
    calls: int = 0
    dollars: float | None = 0.0


def plan(farm: Farm, method: str) -> list[PlannedStage]:
    """The stages that evaluating `method` would go through, in order.

    A second comparison, at a temperature of the policy's own, is known of only once the policy has sampled.
    """
    found: dict[str, tuple[PlannedStage, Artifact | None]] = {}
    _visit(farm, stages.main_evaluation(farm, method), found)
    answered = found[f"outputs {method}"][1]
    if answered and (second := stages.second_evaluation(farm, method, answered)):
        _visit(farm, second, found)
    return [planned for planned, _ in found.values()]


def _visit(farm: Farm, stage: Stage, found: dict[str, tuple[PlannedStage, Artifact | None]]) -> Artifact | None:
    if stage.label in found:
        return found[stage.label][1]
    inputs = {name: _visit(farm, upstream, found) for name, upstream in stage.inputs.items()}
    present = {name: artifact for name, artifact in inputs.items() if artifact is not None}
    artifact, why = None, ""  # what it waits for says why
    if len(present) == len(inputs):
        made_from = with_inputs(stage, present)
        artifact = farm.store.find(stage.kind, artifact_key(made_from))
        why = "" if artifact else why_not_reused(made_from, farm.store.of_stage(stage.kind))
    planned = PlannedStage(stage.kind, stage.label, artifact is not None, why)
    if artifact is None and stage.kind in ("annotate", "evaluate"):
        planned = _priced(farm, planned, present)
    found[stage.label] = planned, artifact
    return artifact


def _priced(farm: Farm, planned: PlannedStage, inputs: dict[str, Artifact]) -> PlannedStage:
    """Count the requests that the pairs need and the ledger does not answer, and their worst price."""
    settings = farm.config.annotate if planned.kind == "annotate" else farm.config.evaluate
    seed = farm.seed(planned.kind)
    pairs = [p for p in _pairs(farm, planned.kind, inputs) if rule_or_noise(p, seed, settings.label_noise) is None]
    annotator = farm.builder.annotator(settings.annotator)
    requests = annotator.plan(pairs, AnnotateContext(seed, farm.ask, farm.progress))
    keys = [request_key(r, farm.ask.judge(r.role)) for r in requests]
    known = farm.ask.ledger.completions(keys)
    prices = [farm.ask.worst_case_price(r) for r, key in zip(requests, keys, strict=True) if key not in known]
    dollars = None if any(p is None for p in prices) else sum(p or 0.0 for p in prices)
    return replace(planned, calls=len(prices), dollars=dollars)


def _pairs(farm: Farm, kind: str, inputs: dict[str, Artifact]) -> Sequence[Pair]:
    if kind == "annotate" and "outputs" in inputs:
        return neighbours(read_outputs(inputs["outputs"].path / "outputs.jsonl"), farm.config.sample.n)
    if kind == "evaluate" and {"outputs", "reference"} <= inputs.keys():
        mine, theirs = (read_outputs(inputs[name].path / "outputs.jsonl") for name in ("outputs", "reference"))
        return paired(theirs, mine)
    return list(_stand_ins(farm, kind))


def _stand_ins(farm: Farm, kind: str) -> Iterator[Pair]:
    """Pairs of the right number, on the real instructions, with outputs of a middling length."""
    settings = farm.config.sample if kind == "annotate" else farm.config.evaluate
    text = " ".join(["word"] * (settings.max_new_tokens // 2))
    times = farm.config.sample.n // 2 if kind == "annotate" else 1
    for instruction in farm.instructions("preference" if kind == "annotate" else "evaluation"):
        for number in range(times):
            yield Pair(instruction, f"{text} one", f"{text} two", number)
