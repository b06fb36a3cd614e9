"""Judges to choose from if none is named, with their prices and agreement with people."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from afarm.core.errors import AfarmError
from afarm.evaluation.biases import FORMULAS
from afarm.experiment.dry_run import estimate_labels
from afarm.experiment.stage import Labelling
from afarm.experiment.workspace import Workspace
from afarm.judging.client import JudgeClient
from afarm.judging.database import is_there
from afarm.judging.ledger import Ledger
from afarm.storage.text import dollars

PAID = "openai:gpt-4o"
"""The paid judge that is offered: it takes all that annotators ask for."""


def describe_choices(workspace: Workspace, labellings: Sequence[Labelling] = (), form: str = "--judge {judge}") -> str:
    """Say that no judge is named, and list ready ways to name one.

    `form` is how `{judge}` is named, such as "--judge {judge}". The price is of asking about `labellings`.
    """
    judges = workspace.judges
    place = judges.ledger_place if is_there(judges.ledger_place) else Path(":memory:")
    paid = "a language model; `afarm cost` tells its price"
    with suppress(AfarmError), Ledger(place) as ledger:
        client = JudgeClient({"*": judges.judge(PAID)}, ledger, batch_api=workspace.config.batch_api)
        made = [one for labelling in labellings for one in estimate_labels(workspace, labelling, client)]
        pairs = sum(len(labelling.pairs) for labelling in labellings)
        if most := sum(one.most_dollars or 0 for one in made):
            price = (
                f"{dollars(sum(one.dollars or 0 for one in made))} for these {pairs:,} pairs (at most {dollars(most)})"
            )
            paid = f"a language model, about {price}"
    choices = {
        PAID: paid,
        "local:MODEL": "a model on this machine: a Hub id, a directory or a .gguf file; $0",
        "replay:FILE": "stored annotations of these pairs; $0 (others: afarm evaluate --annotations FILE)",
    }
    for name in FORMULAS:
        with suppress(AfarmError):
            choices[name] = f"a formula, no language model: {judges.judge(name).agreement}"
    lines = [f"\n  {form.replace('{judge}', name)}\n      {about}" for name, about in choices.items()]
    return "no judge is named, and no formula decides real text unless you say so; name one:" + "".join(lines)
