"""Tables of judges' figures on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from afarm.cli.options import dollars, out, print_table
from afarm_judge_bench.items import BenchSet
from afarm_judge_bench.measure import Difference, Figures, Share

SUBSETS = 12
"""Subsets up to which each has a column; --json has all."""
NOTES = 10


def show(figures: Sequence[Figures], differences: Sequence[Difference], bench: BenchSet, rows: int) -> None:
    """Print all tables: the judges, their subsets, differences, and figures that others published."""
    count = len(bench.items) + len(bench.groups)
    drawn = f"{count} drawn of {rows} rows" if count < rows else f"{rows} rows"
    gap = {one.name: one for one in differences}
    ranked = sorted(figures, key=lambda one: -(one.score.value if one.score else 0))
    columns = {name: name != "judge" for name in _row(ranked[0], gap)}
    cells = [_row(one, gap) for one in ranked]
    used = [name for name in columns if any(row[name] for row in cells)]
    title = f"{bench.name}: {drawn}; score, %: {bench.score}"
    print_table(out(), title, {name: columns[name] for name in used}, [[row[name] for name in used] for row in cells])
    _show_subsets(ranked, bench)
    if bench.published:
        published = [[name, f"{value:.2f}"] for name, value in bench.published.items()]
        print_table(out(), f"Published ({bench.published_in})", {"judge": False, "score": True}, published)
    for line in _sentences(ranked, bench):
        out().print(line, markup=False)


def _row(one: Figures, gap: dict[str, Difference]) -> dict[str, str]:
    lead = gap.get(one.name)
    best = "best" if gap else ""
    apart = f"{lead.value:+.1f} ({lead.low:+.1f} to {lead.high:+.1f}), p {lead.p:.2g}" if lead else best
    among = "" if one.between_people is None else f" ({one.between_people:.1f})"
    return {
        "judge": one.name,
        "score": _share(one.score),
        "to the best": apart,
        "accuracy": _share(one.accuracy),
        "consistent": _number(one.consistent),
        "first shown": _number(one.first),
        "draws": _number(one.draws) if one.draws else "",
        "unparsed": _number(one.unparsed) if one.unparsed else "",
        "agrees (people)": "" if one.agreement is None else _number(one.agreement) + among,
        "Brier": _number(one.brier, 3),
        "ECE": _number(one.ece, 3),
        "dollars": dollars(one.dollars) if one.dollars else "",
        "right per $": f"{one.right_per_dollar:,.0f}" if one.right_per_dollar else "",
        "seconds": _number(one.seconds),
    }


def _show_subsets(ranked: Sequence[Figures], bench: BenchSet) -> None:
    names = list(ranked[0].subsets)
    if not names:
        return
    if len(names) > SUBSETS:
        out().print(f"{len(names)} subsets: --json has the figures of each.", markup=False)
        return
    values = [[share.value if isinstance(share, Share) else share for share in one.subsets.values()] for one in ranked]
    cells = [[one.name, *(f"{value:.2f}" for value in row)] for one, row in zip(ranked, values, strict=True)]
    print_table(out(), "By subset", {"judge": False, **dict.fromkeys(names, True)}, cells)


def _sentences(ranked: Sequence[Figures], bench: BenchSet) -> list[str]:
    lines = list(bench.notes)
    if any(one.first is not None for one in ranked):
        lines.append("consistent: the same verdict in both orders; first shown: of verdicts, 50 is even.")
    if any(one.agreement is not None for one in ranked):
        lines.append("agrees: with the label of a single person; in brackets how often two people agree.")
    if bench.items and all(one.brier is None for one in ranked):
        lines.append(
            "No calibration: no verdict has a probability. It needs a judge with log-probabilities: local:MODEL, "
            "reward models with --set reward.soft=true, or an evaluator of AlpacaEval that weighs by them."
        )
    for one in ranked:
        lines += [f"{one.name}: {note}" for note in one.notes[:NOTES]]
        if len(one.notes) > NOTES:
            lines.append(f"{one.name}: {len(one.notes) - NOTES} more such notes, with --json")
    return lines


def _share(one: Share | None) -> str:
    if one is None:
        return ""
    between = "" if one.low is None or one.high is None else f" ({one.low:.1f}–{one.high:.1f})"
    return f"{one.value:.2f}{between}"


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"
