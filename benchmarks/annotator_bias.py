"""Position and length bias of every prompt annotator under the offline judge: `python -m benchmarks.annotator_bias`.

Writes the table of docs/guides/annotators.md. Pairs are two answers by random authors to one instruction of the toy
world, as in its calibration; every annotator judges the same pairs. Shares come with their standard errors.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from afarm import Farm
from afarm.core.interfaces import AnnotateContext
from afarm.core.records import Pair, Preference
from afarm_plugins.annotators.settings import PROMPTS
from tools.toy.calibrate import MUCH_LONGER, draw_pairs

PAGE = Path("docs/guides/annotators.md")
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"

OTHERS_MEASURED = {
    "`pool`": ("pool", {}),
    "`pool`, `--both-orders`": ("pool", {"both_orders": True}),
    "`pool`, `--votes 3`": ("pool", {"votes": 3}),
    "`ratings`": ("ratings", {}),
    "`reward:gold`": ("reward:gold", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pairs = [pair for pair in draw_pairs(arguments.pairs, arguments.seed) if not pair.identical]
    lines = [
        "| annotator | prefers the first shown, % | the longer, % | agrees with the gold reward, % | draws, % |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as directory:
        gold = labels(Path(directory), "reward:gold", {}, pairs, arguments.seed)
        measured = {f"`{name}`": (name, {}) for name in [*PROMPTS]} | OTHERS_MEASURED
        for shown, (name, settings) in measured.items():
            found = labels(Path(directory), name, settings, pairs, arguments.seed)
            lines.append(row(shown, pairs, found, gold))
            sys.stdout.write(lines[-1] + "\n")
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}\n" + "\n".join(lines) + f"\n{after}", encoding="utf-8")
    sys.stdout.write(f"Written to {PAGE}.\n")


def labels(
    directory: Path, name: str, settings: dict[str, object], pairs: Sequence[Pair], seed: int
) -> list[Preference]:
    section = {name.partition(":")[0]: settings}
    with Farm(annotator=name, settings=section if settings else (), output_dir=directory) as farm:
        return farm.workspace.components.annotator(name).annotate(
            pairs, AnnotateContext(seed, farm.workspace.judges.client)
        )


def row(shown: str, pairs: Sequence[Pair], found: Sequence[Preference], gold: Sequence[Preference]) -> str:
    first = [p.p2 == (0.0 if p.order == "12" else 1.0) for p in found if p.p2 is not None and p.order in ("12", "21")]
    longer = [
        (p.p2 > 0.5) == (len(pair.output_2) > len(pair.output_1))
        for pair, p in zip(pairs, found, strict=True)
        if p.p2 is not None and abs(len(pair.output_1) - len(pair.output_2)) > MUCH_LONGER
    ]
    agrees = [p.p2 == g.p2 for p, g in zip(found, gold, strict=True) if p.p2 is not None and g.p2 is not None]
    draws = [p.outcome == "draw" for p in found]
    return f"| {shown} | {share(first)} | {share(longer)} | {share(agrees)} | {share(draws)} |"


def share(found: Iterable[bool]) -> str:
    """In percent with its standard error; a dash where there is nothing to count."""
    values = list(found)
    if not values:
        return "–"
    mean = sum(values) / len(values)
    return f"{100 * mean:.1f} ± {100 * math.sqrt(mean * (1 - mean) / len(values)):.1f}"


if __name__ == "__main__":
    main()
