"""Whether a judge still answers as it did: stored pairs asked again, and what is remembered of it.

A vendor may change the model behind a name. A probe takes pairs that the judge has labelled before and asks about each
twice more, as new draws under a seed of the probe's own: so nothing comes from the ledger's earlier answers, and the
same probe, stopped and started again, buys nothing twice. If the judge is the same, the stored label of a pair and the
two new ones are three draws of one distribution, and it does not matter which of them is the old one. Two things are
tested by exchanging them at random within pairs:

    disagreement   how much more the old label differs from the new ones than these do from each other
    win rate       how far the mean of the new labels lies from that of the old ones

A shift is one that the smaller p-value, doubled, makes unlikelier than `ALPHA`. It is kept beside the runs, and what is
evaluated afterwards carries it in its protocol, so that boards do not mix it with what was evaluated before.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.errors import DataError
from afarm.core.interfaces import AnnotateContext
from afarm.core.records import JudgedPair, Pair
from afarm.core.seeding import integer, uniform
from afarm.judging.labelling import annotate_in_chunks
from afarm.storage.disk import write_whole
from afarm.storage.rows import read_preferences, read_rows

if TYPE_CHECKING:
    from afarm.experiment.farm import Farm

ALPHA = 0.01
"""The chance with which a judge that has not changed is said to have: small, as every look takes it anew."""
DRAWS = 2
"""How often each pair is asked again: once would not tell a change from the judge's own noise."""
PERMUTATIONS = 9_999
FEWEST = 20
"""Pairs with fewer of which nothing could be shown."""
KEPT = "drift.jsonl"


@dataclass(frozen=True, slots=True)
class Probe:
    """What asking `pairs` again has shown. Shares and win rates are percentages.

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
        """Of the two tests together."""
        return min(1.0, 2 * min(self.p_disagreement, self.p_win_rate))


def stored_labels(path: Path, annotator: str | None, pairs: int) -> tuple[str, list[JudgedPair]]:
    """An annotator and at most `pairs` of its labels from a labels file, or a run's directory, drawn by their pair.

    Unless `annotator` names it, it is the one that the file has labels of. Left out are labels that no judge gave
    (noise, identical outputs, people's) and repeats of a pair. Raises `DataError` where too few are left, or the file
    has several annotators' and none is named.
    """
    file = path / "outputs.jsonl" if path.is_dir() else path
    by_annotator: dict[str, dict[str, JudgedPair]] = {}
    for row in read_preferences(file):
        if row.preference.source == "judge" and row.preference.outcome in ("decided", "draw"):
            by_annotator.setdefault(row.annotator, {}).setdefault(row.preference.pair_id, row)
    named = sorted(filter(None, by_annotator))
    if annotator is None:
        if len(named) != 1:
            known = f"labels of {', '.join(named)}" if named else "labels that do not say whose they are"
            raise DataError(f"{file}: has {known}: name the annotator to ask again (--annotator)")
        annotator = named[0]
    found = by_annotator.get(annotator) or by_annotator.get("", {})
    if len(found) < FEWEST:
        others = f"; it has labels of {', '.join(named)}" if named and annotator not in named else ""
        raise DataError(
            f"{file}: {len(found)} labels of {annotator!r} that a judge gave, too few to tell a shift: give a file "
            f"with {FEWEST} at least, such as the judgements of an evaluation{others}"
        )
    drawn = sorted(found, key=lambda pair_id: uniform("drift probe", pair_id))
    return annotator, [found[pair_id] for pair_id in drawn[:pairs]]


def require_same_judge(stored: Sequence[JudgedPair], judges: Mapping[str, str], where: Path) -> None:
    """Raises `DataError` where stored labels are those of judges that are not asked now: another judge is no drift."""
    before = {row.preference.judge for row in stored} - {""}
    if before and not before <= set(judges.values()):
        raise DataError(
            f"{where}: these labels are those of {', '.join(sorted(before))}, and {', '.join(sorted(judges.values()))} "
            "would be asked: name the same judge (--judge)"
        )


def seed_of(epoch: str, draw: int) -> int:
    """The seed of a probe's draws: another `epoch` asks anew, the same one goes on."""
    return integer("drift", epoch, draw)


def ask_again(farm: Farm, annotator: str, pairs: Sequence[Pair], epoch: str) -> list[list[JudgedPair]]:
    """`DRAWS` new labels of each pair, in order, through the farm's metered way to its judges, without label noise."""
    made = farm.components.annotator(annotator)
    contexts = [AnnotateContext(seed_of(epoch, draw), farm.ask, farm.progress) for draw in range(DRAWS)]
    return [list(annotate_in_chunks(pairs, made, annotator, context)) for context in contexts]


def foresee(farm: Farm, path: Path, annotator: str | None, pairs: int, epoch: str) -> tuple[int, float | None]:
    """The calls that a probe would make now, and the most that they can cost in dollars, None where a price is unknown.
    Sends nothing. Raises `DataError` as `probe` does."""
    annotator, stored = stored_labels(path, annotator, pairs)
    asked = [row.pair for row in stored]
    made = farm.components.annotator(annotator)
    contexts = [AnnotateContext(seed_of(epoch, draw), farm.ask) for draw in range(DRAWS)]
    prices = [farm.ask.worst_case_price(request) for context in contexts for request in made.plan(asked, context)]
    known = [price for price in prices if price is not None]
    return len(prices), math.fsum(known) if len(known) == len(prices) else None


def shares(rows: Iterable[JudgedPair]) -> list[float | None]:
    """How much of a win output_2 has in each: p2, one half for a draw, None without an answer."""
    return [row.win for row in rows]


def compare(
    stored: Sequence[float | None], again: Sequence[Sequence[float | None]], seed: int = 0
) -> tuple[list[tuple[float, float, float]], float, float]:
    """The pairs with all three labels, as (old, new, new), and the p-values of their disagreement and win rate."""
    triples = [
        (old, one, two)
        for old, one, two in zip(stored, *again, strict=True)
        if old is not None and one is not None and two is not None
    ]
    # For each choice of the label that plays the old one, what the pair adds to either statistic.
    turns = [[(t[i], t[(i + 1) % 3], t[(i + 2) % 3]) for i in range(3)] for t in triples]
    gaps = [[(abs(a - b) + abs(a - c)) / 2 - abs(b - c) for a, b, c in turn] for turn in turns]
    moves = [[(b + c) / 2 - a for a, b, c in turn] for turn in turns]
    generator = random.Random(integer(seed, "drift permutations"))
    return triples, _p_value(gaps, generator, lambda total: total), _p_value(moves, generator, abs)


def _p_value(parts: Sequence[Sequence[float]], generator: random.Random, size: Callable[[float], float]) -> float:
    """How often a random choice of the old label gives as large a sum as the true one. What is equal for each choice
    cannot tell; the true one counts among the draws, so that p is never 0."""
    telling = [part for part in parts if max(part) - min(part) > 1e-12]
    if not telling:
        return 1.0
    seen = size(sum(part[0] for part in telling)) - 1e-9
    draw = generator.randrange
    further = sum(size(sum(part[draw(3)] for part in telling)) >= seen for _ in range(PERMUTATIONS))
    return (further + 1) / (PERMUTATIONS + 1)


def probe(farm: Farm, path: Path, annotator: str | None, pairs: int, epoch: str) -> Probe:
    """Ask about stored labels again, say whether the judge has shifted, and keep that beside the runs.

    Raises `DataError` where labels are too few or another judge's, `BudgetError` and `JudgeError` as asking does.
    """
    from afarm.experiment.evaluation_stages import judges_behind

    annotator, stored = stored_labels(path, annotator, pairs)
    require_same_judge(stored, {role: judge.identity for role, judge in farm.judges.items()}, path)
    with farm.ask.accounted_to(f"drift-{annotator.replace('/', '_')}-{epoch}"):
        again = ask_again(farm, annotator, [row.pair for row in stored], epoch)
    triples, p_disagreement, p_win_rate = compare(shares(stored), [shares(rows) for rows in again])
    if len(triples) < FEWEST:
        raise DataError(
            f"{path}: {len(triples)} of {len(stored)} pairs have readable labels, too few to tell a shift: ask about "
            "more (--pairs)"
        )
    n = len(triples)
    found = Probe(
        epoch=epoch,
        annotator=annotator,
        judges=judges_behind(farm, again[0]),
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
    _keep(farm.store.root / KEPT, found)
    return found


# --------------------------------------------------------------------------------------------- what is remembered


def _keep(path: Path, found: Probe) -> None:
    """The same probe, looked at again, stands once."""
    rows = [asdict(p) for p in kept(path.parent) if (p.epoch, p.annotator, p.labels) != _name(found)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [*rows, asdict(found)])
    write_whole(path, text, "free some space, and probe again with the same --epoch: nothing is asked twice")


def _name(found: Probe) -> tuple[str, str, str]:
    return found.epoch, found.annotator, found.labels


def kept(root: Path) -> list[Probe]:
    """All probes of a directory of runs, in their order."""
    path = root / KEPT
    if not path.is_file():
        return []
    known: set[str] = {f.name for f in fields(Probe)}
    rows: Iterable[Mapping[str, Any]] = read_rows(path)
    try:
        return [Probe(**{name: value for name, value in row.items() if name in known}) for row in rows]
    except TypeError as error:
        raise DataError(f"{path}: no list of probes ({error}); move it away and probe again") from error


def latest_shift(root: Path, annotator: str, judges: Mapping[str, str]) -> str:
    """The epoch of the latest shift seen of a judge that `annotator` asks, whoever asked it then; empty for none."""
    identities = set(judges.values())
    shifts = [p for p in kept(root) if p.shifted and identities & set(p.judges.values())]
    return shifts[-1].epoch if shifts else ""
