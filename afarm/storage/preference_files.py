"""Preferences of one's own, to learn from: one label a row, and what is odd about them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair
from afarm.storage.contents import file_digest
from afarm.storage.hub import is_on_hub
from afarm.storage.labelled_pairs import Unusable, read_labelled_pairs
from afarm.storage.rows import read_rows, stem, why_no_file

ENOUGH_LABELS = 10
"""Labels from which it is odd that all prefer the same side."""


def own_preferences(
    source: Path | str, unusable: Unusable | None = None, *, scale: str = "", notes: list[str] | None = None
) -> Iterator[JudgedPair]:
    """Yield the preferences of a file or of a data set of the Hub, one by one.

    `scale` names the labels of the first output, of the second and of a draw, such as "0,1" or "A,B,tie"; empty for
    afarm's, 1, 2 and 0. Rows that cannot be learned from are counted in `unusable`, or an error if it is None. After
    the last row `notes` has a sentence on labels that all prefer one side, and on pairs that are labelled repeatedly.
    Raises `DataError` naming file, row and field if a row is wrong, what the row looks like if it is no preference,
    and, after the last row, if its labels can be read in two ways.
    """
    counts, sides = Counter[str](), Counter[str]()
    preferred = defaultdict[bool, set[str]](set)  # ids of pairs, by whether the first in canonical order is better
    for _, row, [judged] in read_labelled_pairs(
        source, scale, annotator=stem(str(source)), average=True, unusable=unusable
    ):
        pair = judged.pair
        id = replace(pair, occurrence=0).id if pair.occurrence else judged.preference.pair_id
        if judged.chosen_rejected:
            better = judged.chosen_rejected[0]
            preferred[better == pair.canonical[0]].add(id)
            if not {"chosen", "rejected"} <= row.keys():  # else its side is drawn
                sides["first" if better == pair.output_1 else "second"] += 1
        if counts[id] and not pair.occurrence:  # each repeat of a pair keeps a label of its own
            pair = replace(pair, occurrence=counts[id])
            judged = replace(judged, pair=pair, preference=replace(judged.preference, pair_id=pair.id))
        counts[id] += 1
        yield judged
    if notes is None:
        return
    if len(sides) == 1 and sides.total() >= ENOUGH_LABELS:
        [(side, count)] = sides.items()
        notes.append(
            f"{source}: all {count:,} labels prefer the {side} output: unless the better one was put there on purpose, "
            "they are wrong"
        )
    if repeated := sum(count > 1 for count in counts.values()):
        both = [counts[id] for id in preferred[True] & preferred[False]]
        pairs = "1 pair is" if repeated == 1 else f"{repeated:,} pairs are"
        opposite = f", {len(both):,} of them with opposite labels ({sum(both):,} rows)" if both else ""
        notes.append(f"{source}: {pairs} labelled more than once{opposite}: each label counts as one")


def digest_source(source: str) -> str:
    """Digest a file's content, or the rows of a data set of the Hub. Raises `DataError` if there is none."""
    if is_on_hub(source):
        rows = hashlib.sha256()
        for row in read_rows(source):
            rows.update(json.dumps(row, sort_keys=True, default=str).encode("utf-8", "backslashreplace"))
        return rows.hexdigest()
    path = Path(source).expanduser()
    if problem := why_no_file(path):
        raise DataError(f"{source}: {problem}")
    try:
        return file_digest(path)
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from error
