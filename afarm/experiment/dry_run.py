"""What a run would do, without doing it: which stages are reused, and what judges would be asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from afarm.comparison.outputs import OutputComparison
from afarm.core.interfaces import AnnotateContext
from afarm.core.judge import ChatRequest, Judge, Judgement, JudgementKey
from afarm.core.records import Instruction, Pair
from afarm.evaluation.matching import adjacent_pairs, match_rows
from afarm.experiment import evaluation_stages as evaluation
from afarm.experiment.farm import Farm, with_inputs
from afarm.experiment.training_stages import Stage
from afarm.judging.client import JudgeClient
from afarm.judging.labelling import CHUNK, rule_or_noise
from afarm.storage.artifacts import Artifact, artifact_key
from afarm.storage.reuse import why_not_reused
from afarm.storage.rows import read_outputs

TYPICAL_OUTPUT = {"single": 6, "list": 8, "json": 60, "rating": 4}
"""Tokens of an answer in each format, for each comparison, where the ledger has no such answers to go by."""
ENOUGH_ANSWERS = 20
"""Answers in the ledger from which their mean length is taken for the expected one."""


@dataclass(frozen=True, slots=True)
class JudgeEstimate:
    """What one judge would be asked and could charge. Dollars are None where its prices are unknown.

    `output_tokens` and `dollars` are expected, going by earlier answers of the same annotator where there are enough;
    `most_output_tokens` and `most_dollars` are what a budget reserves. Re-asks of unreadable answers are not in it.
    """

    judge: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    most_output_tokens: int = 0
    dollars: float | None = 0.0
    most_dollars: float | None = 0.0

    def __add__(self, other: JudgeEstimate) -> JudgeEstimate:
        return JudgeEstimate(
            self.judge,
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.most_output_tokens + other.most_output_tokens,
            _sum([self.dollars, other.dollars]),
            _sum([self.most_dollars, other.most_dollars]),
        )


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """What would happen to a stage, and what its judges would be asked: an estimate where the outputs to be judged do
    not exist yet. `calls` are expected judge requests, `dollars` what they are expected to cost and `most_dollars` the
    most they can, None where a price is unknown."""

    kind: str
    label: str
    reused: bool
    why: str = ""
    judges: tuple[JudgeEstimate, ...] = ()

    @property
    def calls(self) -> int:
        return sum(judge.calls for judge in self.judges)

    @property
    def dollars(self) -> float | None:
        return _sum([judge.dollars for judge in self.judges])

    @property
    def most_dollars(self) -> float | None:
        return _sum([judge.most_dollars for judge in self.judges])


def _sum(parts: Sequence[float | None]) -> float | None:
    return None if any(part is None for part in parts) else sum(part or 0.0 for part in parts)


def by_judge(planned: Sequence[PlannedStage]) -> list[JudgeEstimate]:
    """The estimates of all stages, added up for each judge."""
    found: dict[str, JudgeEstimate] = {}
    for estimate in (estimate for stage in planned for estimate in stage.judges):
        found[estimate.judge] = found.get(estimate.judge, JudgeEstimate(estimate.judge)) + estimate
    return list(found.values())


def plan(farm: Farm, method: str) -> list[PlannedStage]:
    """The stages that evaluating `method` would go through, in order."""
    found: dict[str, tuple[PlannedStage, Artifact | None]] = {}
    _visit(farm, evaluation.main_evaluation(farm, method), found)
    if second := evaluation.second_evaluation(farm, method, found[f"outputs {method}"][1]):
        _visit(farm, second, found)
    return [planned for planned, _ in found.values()]


def plan_of(farm: Farm, stage: Stage) -> list[PlannedStage]:
    """The stages that making `stage` would go through, in order."""
    found: dict[str, tuple[PlannedStage, Artifact | None]] = {}
    _visit(farm, stage, found)
    return [planned for planned, _ in found.values()]


def plan_of_two(given: OutputComparison) -> list[PlannedStage]:
    """What comparing two sets of outputs would do: one stage, priced from its own prompts."""
    farm, stage = given.farm, given.stage()
    artifact, why = _look(farm, stage, {})
    asked: tuple[JudgeEstimate, ...] = ()
    if artifact is None:
        asked = _priced(farm, "evaluate", given.pairs, given.annotator, farm.config.evaluate.label_noise)
    return [PlannedStage(stage.kind, stage.label, artifact is not None, why, asked)]


def _visit(farm: Farm, stage: Stage, found: dict[str, tuple[PlannedStage, Artifact | None]]) -> Artifact | None:
    if stage.label in found:
        return found[stage.label][1]
    inputs = {name: _visit(farm, upstream, found) for name, upstream in stage.inputs.items()}
    present = {name: artifact for name, artifact in inputs.items() if artifact is not None}
    artifact, why = _look(farm, stage, present) if len(present) == len(inputs) else (None, "")
    planned = PlannedStage(stage.kind, stage.label, artifact is not None, why)
    if artifact is None and stage.kind in ("annotate", "evaluate"):
        settings = farm.config.annotate if stage.kind == "annotate" else farm.config.evaluate
        pairs = _pairs(farm, stage.kind, present)
        planned = replace(planned, judges=_priced(farm, stage.kind, pairs, settings.annotator, settings.label_noise))
    elif artifact is None and stage.pairs:
        longest = farm.config.evaluate.max_new_tokens
        pairs = [_stand_in(instruction, longest, number) for number, instruction in enumerate(stage.pairs())]
        planned = replace(planned, judges=_priced(farm, "online", pairs, farm.config.annotate.annotator, 0.0))
    elif artifact is None and stage.asks:
        requests = list(stage.asks())
        ask = _onlooker(farm, {request.role: farm.components.judge(request.role) for request in requests})
        planned = replace(planned, judges=_estimates(ask, [requests]))
    found[stage.label] = planned, artifact
    return artifact


def _look(farm: Farm, stage: Stage, inputs: Mapping[str, Artifact]) -> tuple[Artifact | None, str]:
    """The artifact of `stage`, or why there is none; what has to wait for its inputs is left for them to explain."""
    key_fields = with_inputs(stage, inputs)
    artifact = farm.store.find(stage.kind, artifact_key(key_fields))
    return artifact, "" if artifact else why_not_reused(key_fields, farm.store.of_stage(stage.kind, stage.label))


class _Onlooker(JudgeClient):
    """Reads the ledger without counting what it finds as reused: looking at prices saves nobody anything."""

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        return self.ledger.recall(keys)


def _priced(
    farm: Farm, purpose: str, pairs: Iterable[Pair], annotator_name: str, label_noise: float
) -> tuple[JudgeEstimate, ...]:
    """Estimate the requests that the pairs need and the ledger does not answer, from their real prompts."""
    seed = farm.seed(purpose)
    pairs = [pair for pair in pairs if rule_or_noise(pair, seed, label_noise) is None]
    ask = _onlooker(farm, farm.judges)
    annotator, context = farm.components.annotator(annotator_name), AnnotateContext(seed, ask, farm.progress)
    chunks = (pairs[start : start + CHUNK] for start in range(0, len(pairs), CHUNK))
    return _estimates(ask, (annotator.plan(chunk, context) for chunk in chunks))


def _onlooker(farm: Farm, judges: Mapping[str, Judge]) -> _Onlooker:
    config = farm.config
    return _Onlooker(judges, farm.ask.ledger, allow_degraded=config.allow_degraded, batch_api=config.batch_api)


def _estimates(ask: _Onlooker, asked: Iterable[Sequence[ChatRequest]]) -> tuple[JudgeEstimate, ...]:
    """By judge, of the requests that the ledger does not answer."""
    lengths = _Lengths(ask)
    found: dict[str, JudgeEstimate] = {}
    for some in asked:
        requests = {ask.key(request): request for request in some}
        known = ask.ledger.completions(list(requests))
        for request in (r for key, r in requests.items() if key not in known):
            judge = ask.judge(request.role)
            found[judge] = found.get(judge, JudgeEstimate(judge)) + _estimate(ask, request, lengths)
    return tuple(found.values())


def _estimate(ask: JudgeClient, request: ChatRequest, lengths: _Lengths) -> JudgeEstimate:
    judge = ask.judge_of(request.role)
    tokens, answer = judge.count_tokens(request), lengths.expected(request)
    price, most = judge.price(), ask.worst_case_price(request)
    dollars = 0.0 if most == 0 else None if price is None else price.of(tokens, answer)
    if price is not None and dollars and ask.batch_api and judge.capabilities.batch:
        dollars *= price.batch
    return JudgeEstimate(judge.identity, 1, tokens, answer, judge.most_output_tokens(request), dollars, most)


class _Lengths:
    """How long answers are expected to be."""

    def __init__(self, ask: JudgeClient):
        self.ask = ask
        self._means: dict[tuple[str, str], float | None] = {}

    def expected(self, request: ChatRequest) -> int:
        """In tokens: the mean of this annotator's earlier answers, or what is typical of the answer format after as
        many thoughts as there may be."""
        most = self.ask.judge_of(request.role).most_output_tokens(request)
        who = self.ask.judge(request.role), request.annotator
        if who not in self._means:
            query = "SELECT AVG(output_tokens), COUNT(*) FROM completions WHERE judge = ? AND annotator = ?"
            mean, count = self.ask.ledger.read(query, who)[0]
            self._means[who] = mean if count >= ENOUGH_ANSWERS else None
        mean = self._means[who]
        typical = TYPICAL_OUTPUT.get(request.answer_format, request.max_tokens) * max(1, len(request.comparisons))
        return min(math.ceil(most - request.max_tokens + typical if mean is None else mean), most)


def _pairs(farm: Farm, kind: str, inputs: dict[str, Artifact]) -> Sequence[Pair]:
    if kind == "annotate" and "outputs" in inputs:
        return adjacent_pairs(read_outputs(inputs["outputs"].path / "outputs.jsonl"), farm.config.sample.n)
    if kind == "evaluate" and {"outputs", "reference"} <= inputs.keys():
        mine, theirs = (read_outputs(inputs[name].path / "outputs.jsonl") for name in ("outputs", "reference"))
        return match_rows(mine, theirs).pairs
    return list(_stand_ins(farm, kind))


def _stand_ins(farm: Farm, kind: str) -> Iterator[Pair]:
    """Pairs of the right number, on the real instructions."""
    settings = farm.config.sample if kind == "annotate" else farm.config.evaluate
    times = farm.config.sample.n // 2 if kind == "annotate" else 1
    for instruction in farm.instructions("preference" if kind == "annotate" else "evaluation"):
        for number in range(times):
            yield _stand_in(instruction, settings.max_new_tokens, number)


def _stand_in(instruction: Instruction, max_new_tokens: int, number: int) -> Pair:
    """A pair of outputs of a middling length."""
    text = " ".join(["word"] * (max_new_tokens // 2))
    return Pair(instruction, f"{text} one", f"{text} two", number)
