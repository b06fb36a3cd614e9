"""Sequential comparison: pairs are judged in random order, some at a time, until it is decided.

One system is decided once its win rate is known to be on one side of 50 %; several, once the difference of each two on
the same instructions is known to be on one side of 0. A confidence sequence holds at all looks together
(`afarm.evaluation.statistics.sequential`). What was judged is then compared as always, from the ledger.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from afarm.core.errors import BudgetError, DataError
from afarm.core.seeding import uniform
from afarm.experiment.annotation import annotation_identity, run_labelling
from afarm.experiment.comparison.outputs import OutputComparison
from afarm.experiment.stage import Inputs, Stage, StageRun
from afarm.storage.disk import write_json

LOOK_EVERY = 32
"""Instructions judged between two looks: enough to keep judges busy."""
ALPHA = 0.05

DECISION = "decision.json"


def judge_until_decided(compared: Sequence[OutputComparison], alpha: float = ALPHA) -> list[OutputComparison]:
    """Judge comparisons by one annotator with one reference until each is decided.

    A wrong decision has a probability of `alpha` at most, whatever the number of systems (Bonferroni). Returns the
    comparisons over what was judged of each system, which ask nothing more. Raises `DataError` if the systems have no
    instruction in common, `BudgetError` if the budget ends before the first look.
    """
    first, workspace = compared[0], compared[0].workspace
    shared = [{pair.instruction.id for pair in (*one.pairs, *one.matched.unanswered)} for one in compared]
    seed = workspace.config.seed
    order = sorted(set.intersection(*shared), key=lambda id: uniform(seed, "until decided", id))
    if not order:
        raise DataError("the systems have no instruction in common: nothing can be decided between them")
    key_fields = workspace.key_fields(
        "decide",
        **annotation_identity(workspace, first.annotator, workspace.config.evaluate.label_noise),
        alpha=alpha,
        budget=workspace.config.budget,
        rows=[one.key_fields["data"] for one in compared],
        systems=[one.system for one in compared],
    )
    label = f"decide {', '.join(one.system for one in compared)} against {first.reference_name}"
    stage = Stage("decide", label, {}, key_fields, partial(_decide, compared, order, alpha))
    with workspace.judges.client.charge_run(first.account("decide", key_fields)):
        artifact = workspace.ensure(stage)
    made: StageRun = workspace.history.pop(label)
    decision: dict[str, Any] = json.loads((artifact.path / DECISION).read_text(encoding="utf-8"))
    used = decision.pop("judged")
    return [
        replace(one, order=order, judged=used[number], until=decision, before=(made,))
        for number, one in enumerate(compared)
    ]


def _decide(
    compared: Sequence[OutputComparison], order: Sequence[str], alpha: float, directory: Path, inputs: Inputs
) -> Mapping[str, Any]:
    """Judge instructions in this order, some at a time, and write what was decided when."""
    judges = [_Judging(one) for one in compared]
    looks = compared[0].workspace.progress(range(0, len(order), LOOK_EVERY), "until decided: looks")
    questions, end = _questions(judges, alpha), "instructions"
    for begin in looks:
        open_ones = {system for system, asked in questions.items() if not all(d["side"] for d in asked)}
        try:
            for number in sorted(open_ones):
                judges[number].judge(order[begin : begin + LOOK_EVERY])
        except BudgetError:
            if not all(one.wins for one in judges):
                raise
            end = "budget"
        if not open_ones or end == "budget":
            break
        questions = _questions(judges, alpha)
    every = list({id(d): d for asked in questions.values() for d in asked}.values())
    decided, used = all(d["side"] for d in every), [len(one.wins) for one in judges]
    found = {"stopped": "decided" if decided else end, "of": len(order)}
    row = {**found, "decided": decided, "alpha": alpha, "comparisons": every, "judged": used}
    write_json(directory / DECISION, row)
    outcomes: Counter[str] = sum((one.outcomes for one in judges), Counter())
    return {"rows": sum(used), **found, "outcomes": dict(outcomes)}


def _questions(judges: Sequence[_Judging], alpha: float) -> dict[int, list[dict[str, Any]]]:
    """Return the questions as they stand, for each system that is part of one, by its number."""
    from afarm.evaluation.statistics.sequential import decide

    if len(judges) == 1:
        values = [win for win in judges[0].wins if win is not None]
        found = decide(values, level=1 - alpha)
        bounds = {name: 100 * getattr(found.estimate, name) for name in ("value", "low", "high")}
        return {0: [{"first": judges[0].one.system, "second": "", "side": found.side, **bounds, "n": len(values)}]}
    pairs = list(combinations(range(len(judges)), 2))
    questions: dict[int, list[dict[str, Any]]] = {number: [] for number in range(len(judges))}
    for first, second in pairs:
        both = zip(judges[first].wins, judges[second].wins, strict=False)  # one may have been decided before
        values = [(1 + one - two) / 2 for one, two in both if one is not None and two is not None]
        found = decide(values, level=1 - alpha / len(pairs))
        bounds = {name: 200 * getattr(found.estimate, name) - 100 for name in ("value", "low", "high")}
        names = {"first": judges[first].one.system, "second": judges[second].one.system}
        row = {**names, "side": found.side, **bounds, "n": len(values)}
        questions[first].append(row)
        questions[second].append(row)
    return questions


class _Judging:
    """One system as far as it is judged: `wins` per instruction in their order, None without an answer."""

    def __init__(self, one: OutputComparison):
        self.one = one
        self.wins: list[float | None] = []
        self.outcomes: Counter[str] = Counter()
        self._pairs = {pair.instruction.id: pair for pair in one.pairs}

    def judge(self, ids: Sequence[str]) -> None:
        """Judge some more. Raises `BudgetError` if the budget ends; then none of them counts."""
        asked = [self._pairs[id] for id in ids if id in self._pairs]  # the others have no output, and are lost
        judged = list(run_labelling(self.one.workspace, self.one.labelling._replace(pairs=asked)))
        wins = {row.pair.instruction.id: row.win for row in judged}
        self.wins += [wins.get(id, 0.0) for id in ids]
        self.outcomes.update(row.preference.outcome for row in judged)
