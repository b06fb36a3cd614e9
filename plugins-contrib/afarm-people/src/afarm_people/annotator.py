"""`--annotator human:FILE`: labels that people gave, looked up by pair."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

from afarm import (
    AnnotateContext,
    Annotator,
    BuildContext,
    ConfigError,
    DataError,
    JudgedPair,
    Pair,
    Preference,
    StoreError,
    in_canonical_order,
    read_labelled_pairs,
    seeding,
    why_left_out,
    write_rows,
)
from afarm_people.draw import bare_row, beside, read_pairs
from afarm_people.settings import HumanConfig, weigh_slight

logger = logging.getLogger(__name__)


class HumanAnnotator(Annotator):
    """Labels pairs as people did. A pair that nobody labelled has no label: it is left out, and counted."""

    def __init__(self, config: HumanConfig, spec: str, context: BuildContext):
        if not spec:
            raise ConfigError(["human needs the file with people's labels: --annotator human:labels.jsonl"])
        self.config, self.file = config, spec
        self.by_pair  # noqa: B018  # a file that cannot be read is said before anything runs

    @cached_property
    def by_pair(self) -> dict[str, list[Preference]]:
        """People's labels by the id of their pair, its outputs in canonical order; empty without a file."""
        found = defaultdict(list)
        for judged in self.read():
            if preference := weigh_slight(judged.preference, self.config.slight):
                found[judged.pair.id].append(preference)
        return dict(found)

    def read(self) -> list[JudgedPair]:
        """Read the labels that are ones. A file that is not there yet has none."""
        if not Path(self.file).expanduser().exists() and not self.file.startswith("hf:"):
            return []
        rows = read_labelled_pairs(self.file, self.config.scale or None)
        return [in_canonical_order(one) for _, _, people in rows for one in people if not why_left_out(one)]

    @property
    def identity(self) -> str:
        """A digest of the labels: another person's, and nothing else, makes what follows again."""
        rows = ([id, [[p.p2, p.outcome, p.strength] for p in given]] for id, given in sorted(self.by_pair.items()))
        return seeding.digest("human", *rows)

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """Return people's label of each pair.

        Raises `DataError` naming the command if no pair has one, or if pairs are collected in a file beside the labels
        and some are not in it: nobody could label those yet. Pairs in it that nobody labelled are left out.
        """
        if left_out := self.count_waiting(pairs):
            known = {*self.by_pair, *(pair.id for pair in self.collected())}
            has_new = self.open_pairs.exists() and any(bare(pair).id not in known for pair in pairs)
            if has_new or left_out == len(pairs):
                raise DataError(self.explain_missing(pairs))
            logger.warning(
                "human:%s has no label for %s of %s pairs: they are left out", self.file, left_out, len(pairs)
            )
        return [self.label(pair, context.seed) for pair in pairs]

    def count_waiting(self, pairs: Sequence[Pair]) -> int:
        """See `Annotator.count_waiting`."""
        return sum(bare(pair).id not in self.by_pair for pair in pairs)

    def label(self, pair: Pair, seed: int) -> Preference:
        id = bare(pair).id
        given = self.by_pair.get(id)
        if not given:
            return Preference(pair.id, None, "unparsed", "human", member="(nobody)")
        wins = [preference.win for preference in given if preference.win is not None]
        if self.config.vote == "one":
            win = seeding.choice(wins, seed, "person", id)
        elif self.config.vote == "mean":
            win = fmean(wins)
        else:
            above, below = sum(win > 0.5 for win in wins), sum(win < 0.5 for win in wins)
            side = [win for win in wins if win > 0.5] if above > below else [win for win in wins if win < 0.5]
            win = 0.5 if above == below else fmean(side)
        win = win if pair.is_canonical else 1 - win
        strengths = {preference.strength for preference in given}
        strength = strengths.pop() if len(strengths) == 1 else None
        if win == 0.5:
            return Preference(pair.id, None, "draw", "human")
        return Preference(pair.id, win, "decided", "human", strength)

    @property
    def open_pairs(self) -> Path:
        """The file beside the labels that collects the pairs to label, which come in parts."""
        return beside(Path(self.file).expanduser(), ".pairs.jsonl")

    def collected(self) -> list[Pair]:
        """The pairs that were collected so far."""
        with suppress(DataError):
            return [pair for pair, _ in read_pairs(str(self.open_pairs)).pairs] if self.open_pairs.exists() else []
        return []

    def explain_missing(self, pairs: Sequence[Pair]) -> str:
        """Say which of these pairs nobody labelled, and how to: they join those in the file beside the labels."""
        place, open_pairs = Path(self.file).expanduser(), self.open_pairs
        if place.exists() and not self.by_pair:
            what = "holds no labels"
        elif place.exists():
            labelled = len(pairs) - self.count_waiting(pairs)
            of = f"{labelled:,} of the {len(pairs):,}" if labelled else f"none of the {len(pairs):,}"
            what = f"has labels of {len(self.by_pair):,} pairs, and of {of} that need one"
        else:
            what = "is not there yet"
        with suppress(StoreError):
            known = {pair.id: pair for pair in [*self.collected(), *pairs]}
            write_rows(open_pairs, map(bare_row, known.values()))
            how = f"afarm label {open_pairs}, then afarm label {open_pairs} --export {self.file}"
            return f"human:{self.file} {what}. The pairs are now in {open_pairs}. Label them: {how}"
        return f"human:{self.file} {what}. Label its pairs: afarm label PAIRS.jsonl --export {self.file}"


def bare(pair: Pair) -> Pair:
    """Return the pair as people are shown it: equal ones of one instruction are one."""
    return replace(pair, occurrence=0) if pair.occurrence else pair
