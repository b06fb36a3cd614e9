"""`afarm leaderboard --people LABELS`: the win rates of a board as people would have given them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from afarm import (
    BuildContext,
    ConfigError,
    DataError,
    Evaluation,
    EvaluationInputs,
    Evaluator,
    JudgedPair,
    Row,
    read_labelled_pairs,
    why_left_out,
)
from afarm_people.calibration import JudgedTask, PeoplesWinRate, calibrate_win_rates
from afarm_people.settings import PeoplesConfig, weigh_slight


@dataclass(slots=True)
class LabelsOfPair:
    """People's labels of a pair as wins by system, and the probability with which it was drawn."""

    wins: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    probability: float | None = None

    def win_of(self, system: str, reference: str) -> float | None:
        """The mean win of a system; of one that gave the same response as the labelled one, too."""
        if self.wins.get(system):
            return fmean(self.wins[system])
        return 1 - fmean(self.wins[reference]) if self.wins.get(reference) else None


class PeoplesWinRates(Evaluator):
    """See the module and `calibration`.

    Rows, best system first: `system`, `people` in percent, `people_low` and `people_high` (95%), `judge`, `n_total`
    (its labelled pairs) and `flag`. A system that nobody checked keeps the judge's figure,
    without interval, and says so.
    """

    needs = frozenset({"judgements"})
    many = True

    def __init__(self, config: PeoplesConfig, spec: str, context: BuildContext):
        if not spec:
            raise ConfigError(["people needs the file with people's labels: --people labels.jsonl"])
        self.config, self.file = config, spec

    def evaluate(self, inputs: EvaluationInputs) -> Evaluation:
        """Raises `DataError` without one reference, or with too few labels of these pairs."""
        labels = read_labels_of_pairs(self.file, self.config)
        reference = find_reference(inputs.judgements)
        systems = match_labels(inputs.judgements, reference, labels)
        matched = sum(row.people is not None for rows in systems.values() for row in rows)
        if labels and not matched:
            raise DataError(
                f"{self.file}: none of its {len(labels):,} labelled pairs is among those judged here: they are of "
                "other outputs, or of another data set. Draw pairs from these runs: afarm label --from-run RUN --n 300"
            )
        rates = calibrate_win_rates(systems)
        metrics: dict[str, float | int | str | None] = {
            "reference": reference,
            "n_systems": len(systems),
            "n_labels": matched,
        }
        ordered = sorted(rates, key=lambda rate: (-(rate.judge if rate.people is None else rate.people), rate.system))
        return Evaluation("people", inputs.system, metrics, tuple(map(describe_rate, ordered)))


def read_labels_of_pairs(file: str, config: PeoplesConfig) -> Mapping[str, LabelsOfPair]:
    """Read people's labels by pair, ties as one half. Raises `DataError` without systems' names."""
    found = defaultdict[str, LabelsOfPair](LabelsOfPair)
    for where, row, people in read_labelled_pairs(file, config.scale or None):
        for judged in people:
            label = weigh_slight(judged.preference, config.slight)
            if why_left_out(judged) or label is None or label.win is None:
                continue
            pair, chance = replace(judged.pair, occurrence=0), row.get("probability")
            if not pair.generator_1 or not pair.generator_2 or pair.generator_1 == pair.generator_2:
                raise DataError(
                    f"{where}: a label of a board's pair names two systems, in 'generator_1' and 'generator_2': "
                    "afarm label --from-run RUN writes them"
                )
            if chance is not None and (not isinstance(chance, int | float) or not 0 < chance <= 1):
                raise DataError(f"{where}: 'probability' is {chance!r}: the chance that its pair was drawn, in (0, 1]")
            labels = found[pair.id]
            labels.wins[pair.generator_2].append(label.win)
            labels.wins[pair.generator_1].append(1 - label.win)
            labels.probability = chance
    return found


def find_reference(judged: Sequence[JudgedPair]) -> str:
    """Return the system that all pairs have. Raises `DataError` without one."""
    systems = Counter(name for row in judged for name in {row.pair.generator_1, row.pair.generator_2})
    everywhere = [name for name, count in systems.items() if count == len(judged)]
    first = Counter(row.pair.generator_1 for row in judged)
    if not everywhere:
        raise DataError(
            "people's win rates need a board against one reference: these systems met each other; name the files of "
            "one reference"
        )
    return max(everywhere, key=lambda name: (first[name], name))


def match_labels(
    judged: Sequence[JudgedPair], reference: str, labels: Mapping[str, LabelsOfPair]
) -> dict[str, list[JudgedTask]]:
    """List each system's judged pairs with the reference, with people's labels of the very same outputs."""
    systems = defaultdict[str, list[JudgedTask]](list)
    for row in judged:
        if row.win is None:
            continue
        is_second = row.pair.generator_1 == reference
        system = row.pair.generator_2 if is_second else row.pair.generator_1
        found = labels.get(row.preference.pair_id)  # the texts of a board's pairs are empty
        people = found.win_of(system, reference) if found else None
        win = row.win if is_second else 1 - row.win
        equal = row.preference.source == "rule" and row.preference.outcome == "draw"
        chance = found.probability if found else None
        systems[system].append(JudgedTask(row.pair.instruction.id, win, people, chance, equal))
    return dict(systems)


def describe_rate(rate: PeoplesWinRate) -> Row:
    """Write a system's figures, in percent to one decimal, as a row of the evaluation."""
    row: Row = {"system": rate.system, "judge": round(rate.judge, 1), "n_total": rate.labels}
    if rate.people is None or rate.low is None or rate.high is None:
        return {**row, "people": row["judge"], "flag": f"not checked, the judge's figure: {rate.not_checked}"}
    flag, error = "", rate.transfer
    if error and (error[1] > 0 or error[2] < 0):
        side = "higher" if error[0] > 0 else "lower"
        flag = (
            f"people set it {abs(error[0]):.0f} points {side} than the other systems' labels would predict from this "
            "judge; its own labels correct that, but none of theirs speaks for systems like it"
        )
    ends = {"people_low": round(rate.low, 1), "people_high": round(rate.high, 1)}
    return {**row, "people": round(rate.people, 1), **ends, "flag": flag}
