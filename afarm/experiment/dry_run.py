"""Dry runs: what a run would do and buy, and if its judges could take what they would be asked.

A dry run goes through the stages as a run does, reads what is stored, and has annotators write their real requests.
Nothing is sent, trained or written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from afarm.core.errors import ConfigError, DataError
from afarm.core.interfaces import AnnotateContext
from afarm.core.judge import ChatRequest, Judge, Judgement, JudgementKey
from afarm.core.records import Instruction, Pair
from afarm.experiment import pipeline
from afarm.experiment.annotation import find_stand_in
from afarm.experiment.own_preferences import describe_pairs
from afarm.experiment.return_checks import requests_planned
from afarm.experiment.stage import Inputs, Labelling, Stage, walk
from afarm.experiment.workspace import Workspace
from afarm.judging.accounting import mean_output_tokens
from afarm.judging.client import JudgeClient
from afarm.judging.degraded import unsupported
from afarm.judging.dispatch import misfit, unpriced
from afarm.judging.labelling import CHUNK, rule_or_noise
from afarm.judging.ledger import Ledger
from afarm.judging.method_judge import PlannedJudge
from afarm.judging.refusals import judge_option
from afarm.storage.artifacts import Artifact, artifact_key
from afarm.storage.reuse import why_not_reused
from afarm.storage.text import dollars

TYPICAL_OUTPUT = {"": 25, "single": 6, "list": 7, "labels": 16, "json": 60, "rating": 2, "criteria": 100, "tokens": 2}
TYPICAL_OUTPUT |= {"ranking": 3, "critique": 80}
"""Tokens of an answer in each format, for each comparison, where the ledger has no such answers to go by."""
ENOUGH_ANSWERS = 5
"""Answers in the ledger from which their mean length is taken for the expected one."""


@dataclass(frozen=True, slots=True)
class JudgeEstimate:
    """The requests to one judge and their price, None in dollars if it is unknown.

    `output_tokens` and `dollars` are expected, going by earlier answers of the same annotator or else of the same judge
    if there are enough; `least_dollars` is without the judge's reasoning tokens, which the setting `without_thoughts`
    turns off; `most_calls` are those if no request is spared (`ChatRequest.likelihood`), `most_output_tokens` and
    `most_dollars` what a budget reserves. `assumed` counts the calls whose
    reasoning tokens are estimated without an earlier answer. Re-asks of unreadable answers are not in it.
    """

    judge: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    most_output_tokens: int = 0
    dollars: float | None = 0.0
    most_dollars: float | None = 0.0
    least_dollars: float | None = 0.0
    without_thoughts: str = ""
    assumed: int = 0
    most_calls: int = 0

    def __add__(self, other: JudgeEstimate) -> JudgeEstimate:
        theirs = other._figures()
        sums: dict[str, Any] = {name: _sum([figure, theirs[name]]) for name, figure in self._figures().items()}
        return replace(self, without_thoughts=self.without_thoughts or other.without_thoughts, **sums)

    def times(self, count: float) -> JudgeEstimate:
        """Return the estimate of asking as much `count` times."""
        scaled: dict[str, Any] = {
            name: figure and (count * figure if "dollars" in name else round(count * figure))
            for name, figure in self._figures().items()
        }
        return replace(self, **scaled)

    def _figures(self) -> dict[str, Any]:
        """The counts of requests and tokens, and the dollars, which are None if unknown."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("judge", "without_thoughts")}

    def expected(self, share: float) -> JudgeEstimate:
        """Return the estimate with what is expected scaled to `share`, and the most left as it is."""
        most = {name: getattr(self, name) for name in ("most_calls", "most_output_tokens", "most_dollars")}
        return replace(self.times(share), **most)


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage in a dry run, and what its judges would be asked.

    That is an estimate if the outputs to be judged do not exist yet. `calls` are expected judge requests, `dollars`
    what they are expected to cost and `most_dollars` the most they can, None if a price is unknown. `pairs` counts own
    preferences, those used and those left out, or pairs that people must label first. `asks_less_by` names settings of
    a training that asks. `unwritten` says how long outputs that do not exist yet are taken to be.
    """

    kind: str
    label: str
    reused: bool
    why: str = ""
    judges: tuple[JudgeEstimate, ...] = ()
    pairs: str = ""
    asks_less_by: tuple[str, ...] = ()
    unwritten: str = ""

    @property
    def calls(self) -> int:
        return sum(judge.calls for judge in self.judges)

    @property
    def dollars(self) -> float | None:
        return _sum([judge.dollars for judge in self.judges])

    @property
    def most_dollars(self) -> float | None:
        return _sum([judge.most_dollars for judge in self.judges])

    def times(self, count: float) -> PlannedStage:
        """Return the stage as if it were made `count` times."""
        return replace(self, judges=tuple(judge.times(count) for judge in self.judges))


def _sum(parts: Sequence[float | None]) -> float | None:
    return None if None in parts else sum(part or 0 for part in parts)


def by_judge(planned: Sequence[PlannedStage]) -> list[JudgeEstimate]:
    """Add up the estimates of all stages for each judge."""
    found: dict[str, JudgeEstimate] = {}
    for estimate in (estimate for stage in planned for estimate in stage.judges):
        found[estimate.judge] = found.get(estimate.judge, JudgeEstimate(estimate.judge)) + estimate
    return list(found.values())


def over_budget(planned: Sequence[PlannedStage], budget: float | None, committed: float, split: str) -> str:
    """Say that a plan is not expected to fit its budget, of which `committed` dollars are spent.

    Empty if it fits, if there is no budget, or if a price is unknown. `split` is that which is evaluated on.
    """
    totals = by_judge(planned)
    expected = _sum([total.dollars for total in totals])
    if budget is None or not expected or committed + expected <= budget:
        return ""
    spent = f", of which {dollars(committed)} is spent" if committed else ""
    text = f"The plan does not fit the budget of {dollars(budget)}{spent}: it is expected to cost {dollars(expected)}"
    hint = reasoning_hint(totals)
    text += f". {hint}" if hint else ""
    cheapest = sum(total.least_dollars or 0.0 for total in totals) if hint else expected
    if committed + cheapest > budget:
        share = 100 * max(0.0, budget - committed) / cheapest
        part = f"about {share:.0f}%" if share >= 1 else "less than 1%"
        enough = math.ceil(100 * (committed + cheapest)) / 100
        also = "even so " if hint else ""
        text += f"; {also}it takes --budget {enough:.2f}, or {part} of {_describe_rows(planned, split)}"
    return f"{text}. What is bought is kept, and a larger --budget goes on from there"


def _describe_rows(planned: Sequence[PlannedStage], split: str) -> str:
    """Name the rows and settings that judges are asked by, or pairs if files are compared."""
    split_of = {"annotate": "preference", "outputs": split, "evaluate": split}
    rows = [f"rows.{split_of[stage.kind]}" for stage in planned if stage.judges and stage.kind in split_of]
    rows = [name for stage in planned for name in stage.asks_less_by] + rows
    if not rows or all(stage.kind == "evaluate" for stage in planned):  # of a run it has others before it
        return "the pairs"
    named, own = ([n for n in dict.fromkeys(rows) if n.startswith("rows.") == is_row] for is_row in (True, False))
    return " and of ".join([f"the rows ({', '.join(named)})"] * bool(named) + own)


def reasoning_hint(totals: Sequence[JudgeEstimate]) -> str:
    """Say that reasoning tokens dominate an estimate, and the settings without them; empty if they do not."""
    expected, least = (_sum([getattr(t, name) for t in totals]) for name in ("dollars", "least_dollars"))
    settings = dict.fromkeys(t.without_thoughts for t in totals if t.without_thoughts)
    if expected is None or least is None or not settings or expected < 2 * least:
        return ""
    assumed = any(t.assumed for t in totals)
    source = "at their limit, because no answers exist yet to estimate from" if assumed else "going by earlier answers"
    share = f"{100 * (1 - least / expected):.0f}% of the estimate is reasoning tokens, {source}"
    options = " ".join(f"--set {setting}" for setting in settings)
    return f"{share}: with {options} it is expected to cost {dollars(least)}"


# --------------------------------------------------------------------------------------------------- which stages


Plan = dict[str, tuple[PlannedStage, Artifact | None]]
"""Planned stages by label, each with its artifact if that is there."""


def plan_run(workspace: Workspace, method: str, evaluations: int = 1) -> list[PlannedStage]:
    """Return the stages that evaluating `method`, or so many variants, would go through, in order."""
    plan = _plan(workspace, pipeline.main_evaluation(workspace, method), {})
    if second := pipeline.second_evaluation(workspace, method, plan[f"outputs {method}"][1]):
        _plan(workspace, second, plan)
    return [stage.times(evaluations) if stage.kind == "evaluate" else stage for stage, _ in plan.values()]


def plan_stage(workspace: Workspace, stage: Stage) -> list[PlannedStage]:
    """Return the stages that making `stage` would go through, in order."""
    return [planned for planned, _ in _plan(workspace, stage, {}).values()]


def _plan(workspace: Workspace, wanted: Stage, plan: Plan) -> Plan:
    """Add what `wanted` needs to the plan. Raises `DataError` for own preferences as the run would."""
    for label, stage in walk(wanted).items():
        if label in plan:
            continue
        inputs = {name: plan[upstream.label][1] for name, upstream in stage.inputs.items()}
        artifact, why = find_or_explain(workspace, stage, inputs)
        present = {name: one for name, one in inputs.items() if one}
        judges, length, pairs = ((), "", "") if artifact else _estimate_asking(workspace, stage, present)
        if stage.kind in ("preferences", "feedback"):
            pairs = describe_pairs(artifact.meta["summary"] if artifact else workspace.data.own_preferences.summary)
        less = tuple(stage.asks_less_by()) if judges and stage.asks_less_by else ()
        plan[label] = PlannedStage(stage.kind, label, artifact is not None, why, judges, pairs, less, length), artifact
    return plan


def find_or_explain(
    workspace: Workspace, stage: Stage, inputs: Mapping[str, Artifact | None]
) -> tuple[Artifact | None, str]:
    """Return the artifact of `stage`, or why there is none (empty if an input is missing or explains it).

    Raises `StoreError` if the artifact is damaged, as the run would.
    """
    present = {name: artifact for name, artifact in inputs.items() if artifact is not None}
    if len(present) < len(inputs):
        return None, ""
    key_fields = stage.build_key_fields(present)
    artifact = workspace.store.find(stage.kind, artifact_key(key_fields))
    if artifact is None:
        return None, why_not_reused(key_fields, workspace.store.of_stage(stage.kind, stage.label))
    workspace.store.require_sound(artifact)
    return artifact, ""


# -------------------------------------------------------------------------------------------------- what is asked


def _estimate_asking(workspace: Workspace, stage: Stage, inputs: Inputs) -> tuple[tuple[JudgeEstimate, ...], str, str]:
    """Estimate a missing stage's requests that the ledger does not answer, from the inputs that exist.

    Also say how long outputs are taken to be that do not exist, and how many pairs people must label.
    """
    found: tuple[JudgeEstimate, ...] = ()
    length, waiting, by_role = "", "", workspace.judges.by_role
    if stage.plan_labels:
        labelling = stage.plan_labels(inputs)
        waiting = describe_waiting(workspace, stage.label, labelling)
        found = estimate_labels(workspace, labelling, reading_client(workspace, by_role))
        length = labelling.length if found else ""
    if stage.plan_requests and stage.kind == "train":
        left = iter(stage.plan_requests())
        made_up = Labelling("", (), "", 0.0, *find_stand_in(workspace, workspace.config.evaluate.max_new_tokens))
        chunks = iter(lambda: list(islice(left, CHUNK)), [])
        judged = estimates(reading_client(workspace, by_role), chunks, made_up)
        found, length = found + judged, made_up.length if judged else length
    elif stage.plan_requests:
        requests = list(stage.plan_requests())
        client = reading_client(workspace, {request.role: workspace.judges.judge(request.role) for request in requests})
        found += estimates(client, [requests])
    return found, length, waiting


def describe_waiting(workspace: Workspace, stage: str, labelling: Labelling) -> str:
    """Say how many pairs of a stage people must label first; empty if none wait for people."""
    seed, rounds = workspace.seed(labelling.purpose), len(labelling.groups)
    asked = [pair for pair in labelling.pairs if not rule_or_noise(pair, seed, labelling.label_noise)]
    count = workspace.components.annotator(labelling.annotator).count_waiting(asked)
    stops = f", in {rounds:,} rounds: it stops in each until its pairs are labelled" if rounds > 1 else ""
    return f"{stage}: people are asked for about {count:,} labels ({labelling.annotator}){stops}." if count else ""


def estimate_labels(workspace: Workspace, labelling: Labelling, client: JudgeClient) -> tuple[JudgeEstimate, ...]:
    """Estimate by judge what labelling the pairs asks, beside what the client's ledger answers."""
    name, seed, pairs = labelling.annotator, workspace.seed(labelling.purpose), iter(labelling.pairs)
    annotator, context = workspace.components.annotator(name), AnnotateContext(seed, client, workspace.progress)
    chunks = (list(islice(pairs, size)) for size in labelling.groups or [CHUNK] * -(-len(labelling.pairs) // CHUNK))
    asked = ([pair for pair in chunk if not rule_or_noise(pair, seed, labelling.label_noise)] for chunk in chunks)
    planned = estimates(client, (requests_planned(annotator, name, some, context) for some in asked), labelling)
    return tuple(each.expected(labelling.new) for each in planned)


class ReadingClient(JudgeClient):
    """Reads the ledger without counting what it finds as reused: looking at prices saves nobody anything."""

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        return self.ledger.recall(keys)


def reading_client(workspace: Workspace, judges: Mapping[str, Judge]) -> ReadingClient:
    """Return a client that plans with these judges over the run's ledger, and sends nothing."""
    config, ledger = workspace.config, workspace.judges.ledger
    return ReadingClient(judges, ledger, allow_degraded=config.allow_degraded, batch_api=config.batch_api)


def estimates(
    client: JudgeClient, planned: Iterable[Sequence[ChatRequest]], labelling: Labelling | None = None
) -> tuple[JudgeEstimate, ...]:
    """Estimate by judge, of the requests that the ledger does not answer.

    Those of a `labelling`, or of its stand-in's making, may be made up."""

    @cache
    def mean_answer(judge: str, annotator: str | None) -> float | None:
        average, count = mean_output_tokens(client.ledger, judge, annotator)
        return average if count >= ENOUGH_ANSWERS else None

    by_likelihood: dict[tuple[str, float], JudgeEstimate] = {}
    counted = set[str]()
    for some in planned:
        requests = {key: request for request in some if (key := client.key(request)) not in counted}
        counted |= requests.keys()
        answered = client.ledger.completions(list(requests))
        for request in (r for key, r in requests.items() if key not in answered):
            judge = client.judge(request.role)
            estimate = _estimate(client, request, mean_answer)
            if labelling and labelling.stand_in and (price := client.find_judge(request.role).price()):
                outputs = [output for pair in request.comparisons for output in (pair.first, pair.second)]
                longer = labelling.longer * sum(output.startswith(labelling.stand_in) for output in outputs)
                estimate = replace(estimate, most_dollars=(estimate.most_dollars or 0.0) + price.of(round(longer), 0))
            slot = judge, request.likelihood
            by_likelihood[slot] = by_likelihood.get(slot, JudgeEstimate(judge)) + estimate
    stage = [estimate.expected(likelihood) for (_, likelihood), estimate in by_likelihood.items()]
    return tuple(by_judge([PlannedStage("", "", False, judges=tuple(stage))]))


def _estimate(
    client: JudgeClient, request: ChatRequest, mean_answer: Callable[[str, str | None], float | None]
) -> JudgeEstimate:
    """Estimate one request.

    The answer is as long as this annotator's earlier ones on average. Without enough of them it is as long as this
    judge's to any annotator, if it thinks first; else it is typical of its format, after as many thoughts as there may
    be.
    """
    judge = client.find_judge(request.role)
    longest = judge.most_output_tokens(request)
    thoughts = longest - request.max_tokens
    written = request.answer_format or ("json" if request.schema or request.tool else "")
    each = TYPICAL_OUTPUT.get(written, TYPICAL_OUTPUT[""])
    typical = min(request.typical_tokens or each * max(1, len(request.comparisons)), request.max_tokens)
    mean = mean_answer(client.judge(request.role), request.annotator)
    if mean is None and thoughts:
        mean = mean_answer(client.judge(request.role), None)
    answer = min(thoughts + typical if mean is None else math.ceil(mean), longest)
    tokens, price, most, share = judge.count_tokens(request), judge.price(), client.worst_case_price(request), 1.0
    if price is not None and client.batch_api and judge.capabilities.batch:
        share = price.batch

    def cost(output_tokens: int) -> float | None:
        return 0.0 if most == 0 else None if price is None else share * price.of(tokens, output_tokens)

    return JudgeEstimate(
        judge.identity,
        1,
        tokens,
        answer,
        longest,
        cost(answer),
        most,
        cost(min(answer, typical)),
        str(getattr(judge, "without_thoughts", "")),  # the setting that keeps it from thinking
        assumed=int(thoughts > 0 and mean is None),
        most_calls=1,
    )


# ----------------------------------------------------------------------------------------- what judges can be asked


STAND_INS = 256
"""Made-up pairs that a pool is asked about to see all its members: at 13 members, one is missed once in 10^7 times."""


class _OneOfEachClient(JudgeClient):
    """Knows all answers but the first to each prompt, so that each prompt is written once."""

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        first = {key.annotator: key for key in reversed(keys)}
        return {key: Judgement(1.0) for key in keys if key != first[key.annotator]}


def require_fitting_judges(workspace: Workspace, annotators: Sequence[str]) -> None:
    """Raise `ConfigError` for judges that cannot take what `annotators` ask, unless that may be left out.

    Also for judges of unknown price if there is a budget to keep, and for --batch-api if nobody asked takes batches.
    Whom the annotators ask is kept for the run's record.
    """
    run, components = workspace.config, workspace.components
    pairs = [
        Pair(Instruction(f"stand-in {i}", "input" if i % 2 else ""), "an output", "another one")
        for i in range(STAND_INS)
    ]
    problems: list[str] = []
    asked: dict[str, Judge] = {}
    left_out: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}  # the annotators, by judge and what it lacks
    with Ledger(Path(":memory:")) as empty:
        client = _OneOfEachClient(workspace.judges.by_role, empty, allow_degraded=True)
        for name in dict.fromkeys(annotators):
            try:
                annotator = components.annotator(name)
                requests = requests_planned(annotator, name, pairs, AnnotateContext(0, client))
            except DataError:  # one that knows the instructions of its own world only
                continue
            workspace.judges.asked[name] = {request.role for request in requests}
            for request in requests:
                judge = asked[request.role] = client.find_judge(request.role)
                if not run.allow_degraded and (names := unsupported(request, judge.capabilities)):
                    left_out.setdefault((judge.identity, names), {})[request.annotator] = None
                if run.budget is not None and client.worst_case_price(request) is None:
                    problems.append(unpriced(workspace.judges.specs.get(request.role) or run.judge["*"]))
    problems += [misfit(judge, names, sorted(who)) for (judge, names), who in left_out.items()]
    if run.batch_api and asked and not any(judge.capabilities.batch for judge in asked.values()):
        who = " and ".join(dict.fromkeys(judge.identity for judge in asked.values()))
        problems.append(f"--batch-api: no batch endpoint is known of {who}: leave the option out")
    if problems:
        raise ConfigError(dict.fromkeys(problems))


def require_method_judge(workspace: Workspace, name: str, *, is_capped: bool = False) -> None:
    """Raise `JudgeError` if a method asks a judge while it trains, and none answers its role.

    Raises `ConfigError` if that judge only compares, if its price is unknown and there is a budget to keep and, if what
    it costs is to be `is_capped`, without a budget for one that may cost something. Who is asked is kept for the run's
    record.
    """
    run, method = workspace.config, workspace.components.method(name)
    if "judge" not in method.needs:
        return
    with Ledger(Path(":memory:")) as empty:
        client = JudgeClient(workspace.judges.by_role, empty)
        role = method.judge_role
        if not client.capabilities(role).alone:
            raise ConfigError(
                f"method {name!r} asks a judge about single outputs, and {client.judge(role)} only compares two: "
                f"choose a language model with {judge_option(role)}"
            )
        planned = PlannedJudge(lambda: client, name, role)
        planned.rate([Instruction("stand-in")], [""])
        [estimate] = estimates(client, [[*map(planned.request, planned.questions)]])
    workspace.judges.asked[f"method {name}"] = {role}
    spec, most = run.judge.get(role) or run.judge["*"], estimate.most_dollars
    if run.budget is not None and most is None:
        raise ConfigError([unpriced(spec)])
    if run.budget is None and most != 0 and is_capped:
        price = "" if most else f", and --price {spec}=INPUT/OUTPUT (0/0 if it costs nothing)"
        raise ConfigError(
            f"method {name!r} asks {spec} while it trains, and nothing caps what that costs: add --budget DOLLARS"
            f"{price}. With --dry-run the same command says what it is expected to cost"
        )
