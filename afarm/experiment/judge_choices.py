"""Judges to choose from if none is named, with their prices and agreement with people."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from afarm.core.errors import AfarmError
from afarm.core.judge import ChatRequest
from afarm.core.records import Instruction
from afarm.evaluation.biases import FORMULAS
from afarm.experiment import pipeline
from afarm.experiment.annotation import make_up_pairs
from afarm.experiment.components import Components
from afarm.experiment.dry_run import estimate_labels, estimates
from afarm.experiment.judges import Judges
from afarm.experiment.stage import Labelling, walk
from afarm.experiment.workspace import Workspace
from afarm.judging.client import JudgeClient
from afarm.judging.database import is_there
from afarm.judging.ledger import Ledger
from afarm.storage.text import dollars

PAID = "openai:gpt-4o"
"""The paid judge that is offered: it takes all that annotators ask for."""


def describe_choices(
    workspace: Workspace,
    labellings: Sequence[Labelling] = (),
    form: str = "--judge {judge}",
    requests: Sequence[ChatRequest] = (),
) -> str:
    """Say that no judge is named, and list ready ways to name one.

    `form` is how `{judge}` is named, such as "--judge {judge}". The price is of asking about `labellings` and of the
    `requests` of a training, or of a thousand pairs without any.
    """
    choices = {
        PAID: f"a language model{_describe_price(workspace, labellings, requests)}",
        "local:MODEL": "a model on this machine: a Hub id, a directory or a .gguf file; $0",
        "replay:FILE": "stored annotations of these pairs; $0 (others: afarm evaluate --annotations FILE)",
    }
    for name in FORMULAS:
        with suppress(AfarmError):
            choices[name] = f"a formula: {workspace.judges.judge(name).agreement}"
    named = {form.replace("{judge}", name): about for name, about in choices.items()}
    lines = [f"\n  {name:<{max(map(len, named))}}   {about}" for name, about in named.items()]
    return "no judge is named, and no formula decides real text unless you say so; add one of:" + "".join(lines)


def choices_of_run(workspace: Workspace, stage: str = "evaluate") -> str:
    """Say that no judge is named, with the price of all that is asked up to a stage, if that is known."""
    given, method = workspace.components, workspace.config.method
    settings = replace(workspace.settings, run=workspace.config.model_copy(update={"judge": {"*": PAID}}))
    components = Components(given.plugins, settings, given.progress, given.notify)
    priced = replace(workspace, components=components, judges=Judges(components, workspace.store))
    labellings: list[Labelling] = []
    requests: list[ChatRequest] = []
    with suppress(AfarmError):  # without the model or the data it is not known
        after = {"evaluate": pipeline.main_evaluation, "train": pipeline.train}.get(stage)
        stages = walk(after(priced, method) if after else pipeline.annotate(priced)).values()
        labellings = [one.plan_labels({}) for one in stages if one.plan_labels]
        requests = [request for one in stages if one.plan_requests for request in one.plan_requests()]
    return describe_choices(workspace, labellings, requests=requests)


def _describe_price(workspace: Workspace, labellings: Sequence[Labelling], requests: Sequence[ChatRequest]) -> str:
    """Write what the paid judge takes for these labels, or for a thousand; empty if it has no price."""
    judges, evaluated = workspace.judges, workspace.config.evaluate
    how = "for" if labellings or requests else "per"
    if not labellings and not requests:
        text = "word " * (evaluated.max_new_tokens // 2)
        asked = make_up_pairs(text, [Instruction(f"stand-in {i}") for i in range(1000)])
        labellings = [Labelling("evaluate", asked, evaluated.annotator, 0.0)]
    pairs = sum(len(labelling.pairs) for labelling in labellings)
    place = judges.ledger_place if is_there(judges.ledger_place) else Path(":memory:")
    with suppress(AfarmError), Ledger(place) as ledger:
        client = JudgeClient({"*": judges.judge(PAID)}, ledger, batch_api=workspace.config.batch_api)
        made = [one for labelling in labellings for one in estimate_labels(workspace, labelling, client)]
        made += estimates(client, [requests])
        if most := sum(one.most_dollars or 0 for one in made):
            price = dollars(sum(one.dollars or 0 for one in made))
            what = [f"{pairs:,} pairs"] * bool(pairs) + [f"{len(requests):,} questions"] * bool(requests)
            return f", about {price} {how} {' and '.join(what)} (at most {dollars(most)})"
    return ""
