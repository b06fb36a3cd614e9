"""Judges to choose from if none is named, with their prices and agreement with people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from afarm.core.errors import AfarmError
from afarm.core.records import Instruction
from afarm.evaluation.biases import FORMULAS
from afarm.experiment.annotation import make_placeholders
from afarm.experiment.components import Components
from afarm.experiment.dry_run import estimate_labels
from afarm.experiment.judges import Judges
from afarm.experiment.stage import Labelling, Stage, walk
from afarm.experiment.workspace import Workspace
from afarm.judging.client import JudgeClient
from afarm.judging.database import is_there
from afarm.judging.ledger import Ledger
from afarm.storage.text import dollars

PAID = "openai:gpt-4o"
"""The paid judge that is offered: it takes all that annotators ask for."""
STAND_INS = 100
"""Made-up pairs that stand for a thousand where it is not known what is asked."""


def describe_choices(workspace: Workspace, labellings: Sequence[Labelling] = (), form: str = "--judge {judge}") -> str:
    """Say that no judge is named, and list ready ways to name one.

    `form` is how `{judge}` is named, such as "--judge {judge}". The price is of asking about `labellings`, or of a
    thousand pairs without any.
    """
    choices = {
        PAID: f"a language model{_describe_price(workspace, labellings)}",
        "local:MODEL": "a model on this machine: a Hub id, a directory or a .gguf file; $0",
        "replay:FILE": "stored annotations of these pairs; $0 (others: afarm evaluate --annotations FILE)",
    }
    for name in FORMULAS:
        with suppress(AfarmError):
            choices[name] = f"a formula: {workspace.judges.judge(name).agreement}"
    named = {form.replace("{judge}", name): about for name, about in choices.items()}
    lines = [f"\n  {name:<{max(map(len, named))}}   {about}" for name, about in named.items()]
    return "no judge is named, and no formula decides real text unless you say so; add one of:" + "".join(lines)


def choices_of_run(workspace: Workspace, lay_out: Callable[[Workspace], Stage | None]) -> str:
    """Say that no judge is named, with the price of what is asked on the way to a stage, if it is known."""
    components = workspace.components
    settings = replace(workspace.settings, run=workspace.config.model_copy(update={"judge": {"*": PAID}}))
    components = Components(components.plugins, settings, components.progress, components.notify)
    priced = replace(workspace, components=components, judges=Judges(components, workspace.store))
    labellings: list[Labelling] = []
    with suppress(AfarmError):  # without the model or the data it is not known
        if stage := lay_out(priced):
            labellings = [one.plan_labels({}) for one in walk(stage).values() if one.plan_labels]
    return describe_choices(workspace, labellings)


def _describe_price(workspace: Workspace, labellings: Sequence[Labelling]) -> str:
    """Write what the paid judge takes for these labels; empty if it has no price."""
    judges, evaluated = workspace.judges, workspace.config.evaluate
    pairs, count, what = sum(len(labelling.pairs) for labelling in labellings), 1.0, "for {:,} pairs"
    if not pairs:
        asked = make_placeholders([Instruction(f"stand-in {i}") for i in range(STAND_INS)], evaluated.max_new_tokens)
        labellings, pairs = [Labelling("evaluate", asked, evaluated.annotator, 0.0)], 1000
        count, what = pairs / STAND_INS, "per {:,} pairs"
    place = judges.ledger_place if is_there(judges.ledger_place) else Path(":memory:")
    with suppress(AfarmError), Ledger(place) as ledger:
        client = JudgeClient({"*": judges.judge(PAID)}, ledger, batch_api=workspace.config.batch_api)
        made = [one.times(count) for labelling in labellings for one in estimate_labels(workspace, labelling, client)]
        if most := sum(one.most_dollars or 0 for one in made):
            price = dollars(sum(one.dollars or 0 for one in made))
            return f", about {price} {what.format(pairs)} (at most {dollars(most)})"
    return ""
