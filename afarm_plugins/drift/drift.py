"""Judge drift: ask a judge again about pairs it has labelled, and test if its answers have changed.

A vendor may change the model behind a name. A probe takes pairs that the judge has labelled before and asks about each
twice more, as new draws under a seed of the probe's own: so nothing comes from the ledger's earlier answers, and the
same probe, stopped and started again, buys nothing twice. If the judge is the same, the stored label of a pair and the
two new ones are three draws of one distribution, and it does not matter which of them is the old one. Two statistics
are tested by exchanging them at random within pairs:

    disagreement   how much more the old label differs from the new ones than these do from each other
    win rate       how far the mean of the new labels lies from that of the old ones

The judge has shifted if the smaller p-value, doubled, is at most `ALPHA`. The outcome is logged beside the runs
(`drift.jsonl`).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from afarm import AnnotateContext, DataError, JudgedPair, read_annotations, seeding, write_whole
from afarm.experiments import PlannedStage, Workspace, estimates, judges_behind, reading_client, requests_planned
from afarm.judging import annotate_in_chunks
from afarm.results import DRIFT_LOG, read_drift_log

ALPHA = 0.01
"""The chance of a false alarm per probe: small, as every probe takes it anew."""
DRAWS = 2
"""Times that each pair is asked about again: once would not tell a change from the judge's own noise."""
PERMUTATIONS = 9_999
FEWEST_PAIRS = 20
"""Pairs from which on a shift can be shown."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of asking a judge again about `pairs` that it has labelled.

    Shares and win rates are percentages.

    `disagreement` is the mean difference of a stored label from the new ones, `noise` that of the two new ones from
    each other; `win_rate_before` and `win_rate_now` are output_2's. `epoch` names the probe: its draws are keyed by it.
    """

    epoch: str
    annotator: str
    judges: Mapping[str, str]
    pairs: int
    unread: int
    disagreement: float
    noise: float
    win_rate_before: float
    win_rate_now: float
    p_disagreement: float
    p_win_rate: float
    shifted: bool
    labels: str = ""
    created: float = field(default=0.0, compare=False)

    @property
    def p_value(self) -> float:
        """The p-value of the two tests together (Bonferroni)."""
        return min(1.0, 2 * min(self.p_disagreement, self.p_win_rate))


def stored_labels(path: Path, annotator: str | None, pairs: int) -> tuple[str, list[JudgedPair]]:
    """Draw at most `pairs` labels of one annotator from a labels file or a run, keyed by their pair.

    Unless `annotator` names it, it is the one that the file has labels of. Labels that no judge gave (noise, identical
    outputs, people's) and repeats of a pair are left out. Raises `DataError` if too few are left, or if the file has
    labels of several annotators and none is named.
    """
    file = path / "outputs.jsonl" if path.is_dir() else path
    by_annotator: dict[str, dict[str, JudgedPair]] = {}
    for _, _, row in read_annotations(file):
        if row.preference.source == "judge" and row.preference.outcome in ("decided", "draw"):
            by_annotator.setdefault(row.annotator, {}).setdefault(row.preference.pair_id, row)
    named = sorted(filter(None, by_annotator))
    if annotator is None:
        if len(named) != 1:
            known = f"labels of {', '.join(named)}" if named else "labels that do not say whose they are"
            raise DataError(f"{file}: has {known}: name the annotator to ask again (--annotator)")
        annotator = named[0]
    found = by_annotator.get(annotator) or by_annotator.get("", {})
    if len(found) < FEWEST_PAIRS:
        others = f"; it has labels of {', '.join(named)}" if named and annotator not in named else ""
        raise DataError(
            f"{file}: {len(found)} labels of {annotator!r} that a judge gave, too few to tell a shift: give a file "
            f"with {FEWEST_PAIRS} at least, such as the judgements of an evaluation{others}"
        )
    drawn = sorted(found, key=lambda pair_id: seeding.uniform("drift probe", pair_id))
    return annotator, [found[pair_id] for pair_id in drawn[:pairs]]


def require_same_judge(stored: Sequence[JudgedPair], judges: Mapping[str, str], where: Path) -> None:
    """Raise `DataError` if stored labels are by judges that are not asked now: another judge is no drift."""
    before = {row.preference.judge for row in stored} - {""}
    if before and not before <= set(judges.values()):
        raise DataError(
            f"{where}: these labels are those of {', '.join(sorted(before))}, and {', '.join(sorted(judges.values()))} "
            "would be asked: name the same judge (--judge)"
        )


def derive_seed(epoch: str, draw: int) -> int:
    """Derive the seed of a probe's draws: a new `epoch` asks again, the same one resumes."""
    return seeding.integer("drift", epoch, draw)


def plan_probe(
    workspace: Workspace, path: Path, annotator: str | None, pairs: int, epoch: str
) -> tuple[str, PlannedStage]:
    """Return the account of a probe, and its requests as a stage of a plan. Sends nothing.

    Raises `DataError` as `probe` does.
    """
    annotator, stored = stored_labels(path, annotator, pairs)
    stored_pairs = [row.pair for row in stored]
    planned = workspace.components.annotator(annotator)
    client = reading_client(workspace, workspace.judges.by_role)
    contexts = [AnnotateContext(derive_seed(epoch, draw), client) for draw in range(DRAWS)]
    requests = (requests_planned(planned, annotator, stored_pairs, context) for context in contexts)
    stage = PlannedStage("probe", f"probe {annotator}, {epoch}", False, "", estimates(client, requests))
    return probe_account(annotator, epoch), stage


def probe_account(annotator: str, epoch: str) -> str:
    """Name the account of a probe, and of its budget: the same one goes on."""
    return f"drift-{annotator.replace('/', '_')}-{epoch}"


def exchange_test(
    stored: Sequence[float | None], again: Sequence[Sequence[float | None]], seed: int = 0
) -> tuple[list[tuple[float, float, float]], float, float]:
    """Test stored against new labels by exchanging them at random within pairs.

    Returns the pairs with all three labels, as (old, new, new), and the p-values of disagreement and win rate.
    """
    triples = [
        (old, one, two)
        for old, one, two in zip(stored, *again, strict=True)
        if old is not None and one is not None and two is not None
    ]
    # For each choice of the label that plays the old one, what the pair adds to either statistic.
    turns = [[(t[i], t[(i + 1) % 3], t[(i + 2) % 3]) for i in range(3)] for t in triples]
    gaps = [[(abs(a - b) + abs(a - c)) / 2 - abs(b - c) for a, b, c in turn] for turn in turns]
    moves = [[(b + c) / 2 - a for a, b, c in turn] for turn in turns]
    generator = random.Random(seeding.integer(seed, "drift permutations"))
    return triples, _p_value(gaps, generator, lambda total: total), _p_value(moves, generator, abs)


def _p_value(parts: Sequence[Sequence[float]], generator: random.Random, size: Callable[[float], float]) -> float:
    """The share of random choices of the old label that give as large a sum as the true one.

    Pairs whose choices are all equal do not count. The true choice counts among the draws, so that p is never 0.
    """
    informative = [pair for pair in parts if max(pair) - min(pair) > 1e-12]
    if not informative:
        return 1.0
    observed = size(sum(pair[0] for pair in informative)) - 1e-9
    draw = generator.randrange
    further = sum(size(sum(pair[draw(3)] for pair in informative)) >= observed for _ in range(PERMUTATIONS))
    return (further + 1) / (PERMUTATIONS + 1)


def probe(workspace: Workspace, path: Path, annotator: str | None, pairs: int, epoch: str) -> Probe:
    """Ask about stored labels again, test if the judge has shifted, and log the outcome beside the runs.

    Raises `DataError` if labels are too few or another judge's, `BudgetError` and `JudgeError` as asking does.
    """
    annotator, stored = stored_labels(path, annotator, pairs)
    require_same_judge(stored, workspace.judges.identities, path)
    with workspace.judges.client.charge_run(probe_account(annotator, epoch)):
        asked_again, pairs_again = workspace.components.annotator(annotator), [row.pair for row in stored]
        client, progress = workspace.judges.client, workspace.progress
        contexts = [AnnotateContext(derive_seed(epoch, draw), client, progress) for draw in range(DRAWS)]
        again = [list(annotate_in_chunks(pairs_again, asked_again, annotator, context)) for context in contexts]
    triples, p_disagreement, p_win_rate = exchange_test(
        [row.win for row in stored], [[row.win for row in rows] for rows in again]
    )
    if len(triples) < FEWEST_PAIRS:
        raise DataError(
            f"{path}: {len(triples)} of {len(stored)} pairs have readable labels, too few to tell a shift: ask about "
            "more (--pairs)"
        )
    n = len(triples)
    outcome = Probe(
        epoch=epoch,
        annotator=annotator,
        judges=judges_behind(workspace, again[0]),
        pairs=n,
        unread=len(stored) - n,
        disagreement=100 * sum((abs(a - b) + abs(a - c)) / 2 for a, b, c in triples) / n,
        noise=100 * sum(abs(b - c) for _, b, c in triples) / n,
        win_rate_before=100 * sum(a for a, _, _ in triples) / n,
        win_rate_now=100 * sum((b + c) / 2 for _, b, c in triples) / n,
        p_disagreement=p_disagreement,
        p_win_rate=p_win_rate,
        shifted=2 * min(p_disagreement, p_win_rate) <= ALPHA,
        labels=str(path),
        created=time.time(),
    )
    record_probe(workspace.store.root, outcome)
    return outcome


def record_probe(root: Path, probe: Probe) -> None:
    """Append `probe` to the log in `root`, in place of an earlier outcome of the same probe."""
    identity = ("epoch", "annotator", "labels")
    others = [row for row in read_drift_log(root) if any(row.get(name) != getattr(probe, name) for name in identity)]
    rows = [*others, {**asdict(probe), "p_value": probe.p_value}]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    repeat = "free some space, and probe again with the same --epoch: nothing is asked twice"
    write_whole(root / DRIFT_LOG, text, repeat)
