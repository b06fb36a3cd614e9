"""Sequential comparison: pairs are judged in random order, some at a time, until it is decided.

One system is decided when it is known on which side of 50 % its win rate is; several, when that is known of each two,
by their difference on the same instructions. A confidence sequence holds at all times together, so that looking often
costs nothing in certainty (`afarm.evaluation.statistics.sequential`). What was judged is then compared as always, from
the ledger.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from afarm.core.errors import BudgetError, ConfigError, DataError
from afarm.core.seeding import uniform
from afarm.experiment.annotation import annotation_identity, run_labelling
from afarm.experiment.comparison.outputs import OutputComparison
from afarm.experiment.stage import Inputs, Stage, StageRun
from afarm.experiment.workspace import Workspace
from afarm.storage.disk import write_json

LOOK_EVERY = 32
"""Instructions judged between two looks: enough to keep judges busy."""
ALPHA = 0.05

DECISION = "decision.json"


@dataclass(frozen=True)
class SequentialComparison:
    """Comparisons by one annotator with one reference, judged until each is decided.

    A wrong decision has a probability of `alpha` at most, whatever the number of systems (Bonferroni). Raises
    `ConfigError` if an evaluator is to look at all systems together.
    """

    compared: Sequence[OutputComparison]
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        if names := self.compared[0].together:
            raise ConfigError(
                f"--until decided and --evaluator {name} contradict each other: it looks at all systems on the same "
                "instructions, and asking stops for each system where that is decided; give one of the two"
                for name in names
            )

    @property
    def workspace(self) -> Workspace:
        return self.compared[0].workspace

    @cached_property
    def order(self) -> list[str]:
        """The ids of the instructions that all systems share, in the random order they are judged in."""
        shared = [{p.instruction.id for p in (*one.pairs, *one.matched.unanswered)} for one in self.compared]
        seed = self.workspace.config.seed
        return sorted(set.intersection(*shared), key=lambda id: uniform(seed, "until decided", id))

    @property
    def label(self) -> str:
        return f"decide {', '.join(one.system for one in self.compared)} against {self.compared[0].reference_name}"

    @cached_property
    def key_fields(self) -> Mapping[str, Any]:
        workspace, first = self.workspace, self.compared[0]
        return workspace.key_fields(
            "decide",
            **annotation_identity(workspace, first.annotator, workspace.config.evaluate.label_noise),
            alpha=self.alpha,
            budget=workspace.config.budget,
            rows=[one.key_fields["data"] for one in self.compared],
            systems=[one.system for one in self.compared],
        )

    def run(self) -> list[OutputComparison]:
        """Judge until it is decided, and return the comparisons over what was judged of each system.

        They ask nothing more. Raises `DataError` if the systems have no instruction in common, `BudgetError` if the
        budget ends before the first look.
        """
        if not self.order:
            raise DataError("the systems have no instruction in common: nothing can be decided between them")
        account = self.compared[0].account("decide", self.key_fields)
        with self.workspace.judges.client.charge_run(account):
            artifact = self.workspace.ensure(Stage("decide", self.label, {}, self.key_fields, self._write))
        made: StageRun = self.workspace.history.pop(self.label)
        decision: dict[str, Any] = json.loads((artifact.path / DECISION).read_text(encoding="utf-8"))
        used = decision.pop("judged")
        return [
            replace(one, order=self.order, judged=used[number], until=decision, before=(made,))
            for number, one in enumerate(self.compared)
        ]

    def _write(self, directory: Path, inputs: Inputs) -> Mapping[str, Any]:
        judges = [_Judging(one) for one in self.compared]
        looks = self.workspace.progress(range(0, len(self.order), LOOK_EVERY), "until decided: looks")
        questions, end = self._questions(judges), "instructions"
        for begin in looks:
            open_ones = {system for system, asked in questions.items() if not all(d["side"] for d in asked)}
            try:
                for number in sorted(open_ones):
                    judges[number].judge(self.order[begin : begin + LOOK_EVERY])
            except BudgetError:
                if not all(one.wins for one in judges):
                    raise
                end = "budget"
            if not open_ones or end == "budget":
                break
            questions = self._questions(judges)
        every = list({id(d): d for asked in questions.values() for d in asked}.values())
        decided, used = all(d["side"] for d in every), [len(one.wins) for one in judges]
        found = {"stopped": "decided" if decided else end, "of": len(self.order)}
        row = {**found, "decided": decided, "alpha": self.alpha, "comparisons": every, "judged": used}
        write_json(directory / DECISION, row)
        outcomes: Counter[str] = sum((one.outcomes for one in judges), Counter())
        return {"rows": sum(used), **found, "outcomes": dict(outcomes)}

    def _questions(self, judges: Sequence[_Judging]) -> dict[int, list[dict[str, Any]]]:
        """Return the questions as they stand, for each system that is part of one, by its number."""
        from afarm.evaluation.statistics.sequential import decide

        if len(judges) == 1:
            values = [win for win in judges[0].wins if win is not None]
            found = decide(values, level=1 - self.alpha)
            bounds = {name: 100 * getattr(found.estimate, name) for name in ("value", "low", "high")}
            return {0: [{"first": judges[0].one.system, "second": "", "side": found.side, **bounds, "n": len(values)}]}
        pairs = list(combinations(range(len(judges)), 2))
        questions: dict[int, list[dict[str, Any]]] = {number: [] for number in range(len(judges))}
        for first, second in pairs:
            both = zip(judges[first].wins, judges[second].wins, strict=False)  # one may have been decided before
            values = [(1 + one - two) / 2 for one, two in both if one is not None and two is not None]
            found = decide(values, level=1 - self.alpha / len(pairs))
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
