"""Tables of judges' figures on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from afarm.cli.options import dollars, out, print_table
from afarm_judge_bench.items import BenchSet
from afarm_judge_bench.measure import Difference, Figures, Share

SUBSETS = 12
"""Subsets up to which each has a column; --json has all."""
NOTES = 10
WORD = 24
"""Characters of a word in a judge's name: a longer one (a path, an address) would take the table's room."""


def show(figures: Sequence[Figures], differences: Sequence[Difference], bench: BenchSet, rows: int) -> None:
    """Print all tables: the judges, their subsets, differences, and figures that others published."""
    count = len(bench.items) + len(bench.groups)
    drawn = f"{count} drawn of {rows} rows" if count < rows else f"{rows} rows"
    gap = {one.name: one for one in differences}
    ranked = sorted(figures, key=lambda one: -(one.score.value if one.score else 0))
    _print_rows(f"{bench.name}: {drawn}; score, %: {bench.score}", [_scores(one, gap) for one in ranked])
    _print_rows("Verdicts, %", [_verdicts(one) for one in ranked])
    _show_subsets(ranked, bench)
    if bench.published:
        published = [[name, f"{value:.2f}"] for name, value in bench.published.items()]
        print_table(out(), f"Published ({bench.published_in})", {"judge": False, "score": True}, published)
    for line in _sentences(ranked, bench):
        out().print(line, markup=False)


def short_name(name: str) -> str:
    """Return a judge's name with its long words cut in the middle."""
    return " ".join(f"{word[:11]}…{word[-12:]}" if len(word) > WORD else word for word in name.split(" "))


def _print_rows(title: str, rows: Sequence[dict[str, str]]) -> None:
    """Print the columns that have a figure; nothing if there is none beside the judge."""
    used = [name for name in rows[0] if any(row[name] for row in rows)]
    if len(used) > 1:
        columns = {name: name != "judge" for name in used}
        print_table(out(), title, columns, [[row[name] for name in used] for row in rows])


def _scores(one: Figures, gap: dict[str, Difference]) -> dict[str, str]:
    lead, apart = gap.get(one.name), "best" if gap else ""
    if lead:
        between = "on all rows" if lead.low is None else f"({lead.low:+.1f} to {lead.high:+.1f})"
        apart = f"{lead.value:+.1f} {between}, p {lead.p:.2g}"
    return {
        "judge": short_name(one.name),
        "score": _share(one.score),
        "to the best": apart,
        "accuracy": _share(one.accuracy) if one.accuracy != one.score else "",  # LLMBar's own is the accuracy
        "dollars": dollars(one.dollars) if one.dollars else "",
        "right per $": f"{one.right_per_dollar:,.0f}" if one.right_per_dollar else "",
        "seconds": _number(one.seconds),
    }


def _verdicts(one: Figures) -> dict[str, str]:
    among = "" if one.between_people is None else f" ({one.between_people:.1f})"
    return {
        "judge": short_name(one.name),
        "consistent": _number(one.consistent),
        "first shown": _number(one.first),
        "draws": _number(one.draws) if one.draws else "",
        "unparsed": _number(one.unparsed) if one.unparsed else "",
        "agrees (people)": "" if one.agreement is None else _number(one.agreement) + among,
        "Brier": _number(one.brier, 3),
        "ECE": _number(one.ece, 3),
    }


def _show_subsets(ranked: Sequence[Figures], bench: BenchSet) -> None:
    names = list(ranked[0].subsets)
    if not names:
        return
    if len(names) > SUBSETS:
        out().print(f"{len(names)} subsets: --json has the figures of each.", markup=False)
        return
    cells = [[short_name(one.name), *(f"{one.subsets[name].value:.2f}" for name in names)] for one in ranked]
    print_table(out(), "By subset", {"judge": False, **dict.fromkeys(names, True)}, cells)


def _sentences(ranked: Sequence[Figures], bench: BenchSet) -> list[str]:
    lines = list(bench.notes)
    if any(one.first is not None for one in ranked):
        lines.append("consistent: the same verdict in both orders; first shown: of verdicts, 50 is even.")
    if any(one.agreement is not None for one in ranked):
        lines.append("agrees: with the label of a single person; in brackets how often two people agree.")
    if bench.items and all(one.brier is None for one in ranked):
        lines.append(
            "No calibration: no verdict has a probability, as local:MODEL gives with --set local.answer=probabilities."
        )
    lines += [f"{short_name(one.name)} is {one.name}" for one in ranked if short_name(one.name) != one.name]
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
