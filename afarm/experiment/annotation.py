"""Pairs judged into a file, and what their labels depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afarm.core.interfaces import AnnotateContext
from afarm.core.records import JudgedPair, Pair, Preference
from afarm.judging.dispatch import LARGEST_BATCH
from afarm.judging.labelling import CHUNK, annotate_in_chunks
from afarm.storage.rows import write_rows

if TYPE_CHECKING:
    from afarm.experiment.farm import Farm


def judge_pairs(
    farm: Farm,
    path: Path,
    pairs: Sequence[Pair],
    annotator: str,
    label_noise: float,
    purpose: str,
    lost: Sequence[Pair] = (),
) -> Mapping[str, Any]:
    """Judge `pairs` into the file at `path`, and count who decided what, and `degraded`: the labels that were made
    without a parameter, by its name. Of the pairs `lost`, which come last, the first output wins without a call."""
    context = AnnotateContext(farm.seed(purpose), farm.ask, farm.progress)
    chunk_size = LARGEST_BATCH if farm.config.batch_api else CHUNK  # a batch takes hours, however small it is
    many = len(pairs) > chunk_size  # where one chunk is all, the annotator's own bar says all
    shown = farm.progress(pairs, f"{annotator}: pairs", len(pairs)) if many else pairs
    members: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    degraded: Counter[str] = Counter()

    def rows() -> Iterator[Mapping[str, Any]]:
        for judged in annotate_in_chunks(
            shown, farm.components.annotator(annotator), annotator, context, label_noise, chunk_size
        ):
            preference = judged.preference
            who = "(noise)" if preference.source == "noise" else preference.member or annotator
            who = "(identical)" if judged.pair.identical else who
            members[who] = members.get(who, 0) + 1
            outcomes[preference.outcome] = outcomes.get(preference.outcome, 0) + 1
            degraded.update(preference.degraded)
            yield judged.to_row()
        for pair in lost:
            members["(no output)"] = members.get("(no output)", 0) + 1
            outcomes["decided"] = outcomes.get("decided", 0) + 1
            yield JudgedPair(pair, Preference(pair.id, 0.0, source="rule"), annotator).to_row()

    count = write_rows(path, rows())
    return {"rows": count, "outcomes": outcomes, "members": dict(sorted(members.items())), "degraded": dict(degraded)}


def annotation(farm: Farm, annotator: str, label_noise: float) -> dict[str, Any]:
    """What labels depend on: the annotator and the judges behind it, their source and settings, and the noise."""
    return {
        "annotator": farm.components.annotator_identity(annotator),
        "judges": {role: judge.identity for role, judge in sorted(farm.judges.items())},
        "label_noise": label_noise,
    }
