"""Boards with their judgements: places, differences, figures of whole boards, and systems that met each other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import DataError
from afarm.evaluation.boards import Entry, Leaderboard, Metric, read_boards
from afarm.evaluation.boards.board import ranked
from afarm.evaluation.boards.correlation import agreements
from afarm.evaluation.boards.from_round_robin import round_robins
from afarm.evaluation.boards.ranking import evaluated, stored_rows, with_ranks
from afarm.evaluation.boards.rendering import columns, remarks
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.report.leaderboard_page import markdown_leaderboards

pytest.importorskip("scipy")

Row = dict[str, Any]


def row(task: int, one: str, two: str, preference: float | None, annotator: str = "judge") -> Row:
    says = {"output_1": f"{one} {task}", "output_2": f"{two} {task}", "generator_1": one, "generator_2": two}
    return {"instruction": f"task {task}", **says, "annotator": annotator, "preference": preference}


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text(json.dumps(rows))
    return path


def test_a_part_of_the_instructions_earns_no_place_and_still_has_its_paired_difference(tmp_path: Path) -> None:
    rows = [row(i, "ref", "all", 1 + (i < 60)) for i in range(100)]
    rows += [row(i, "ref", "other", 1 + (i < 40)) for i in range(100)]
    rows += [row(i, "ref", "lucky", 2) for i in range(40)]
    (board,), _ = read_boards([write(tmp_path / "rows.json", rows)])
    board, said = with_ranks(board)
    assert said == []
    assert [(e.system, e.rank, e.rank_high) for e in board.entries] == [
        ("all", 1, 1),
        ("other", 2, 2),
        ("lucky", None, None),
    ]
    lucky = board.entries[-1]
    assert (lucky.difference, lucky.difference_to, lucky.n_asked, lucky.of) == (0.0, "all", 40, 100)
    assert "Δ to all" in [column.heading for column in columns(board)]


def test_systems_on_different_halves_have_no_places(tmp_path: Path) -> None:
    rows = [row(i, "ref", "one", 2) for i in range(60)] + [row(i, "ref", "two", 1) for i in range(40, 100)]
    (board,), _ = read_boards([write(tmp_path / "rows.json", rows)])
    assert [entry.rank for entry in board.entries] == [None, None]
    assert "no place for one, two: judged on part of the 100 instructions" in remarks(board)[0]


def test_what_all_lack_costs_no_place_where_judgements_tell_so(tmp_path: Path) -> None:
    """The reference has 805 instructions, and both were judged on the same 60 of them."""
    rows = [row(i, "ref", name, 1 + (i < k)) for name, k in (("one", 40), ("two", 20)) for i in range(60)]
    (board,), _ = read_boards([write(tmp_path / "rows.json", rows)])
    told = ranked(Leaderboard(board.protocol, tuple(replace(entry, of=805) for entry in board.entries)))
    assert [entry.rank for entry in told.entries] == [None, None]
    with_judgements, _ = with_ranks(replace(told, wins=board.wins))
    assert [(entry.rank, entry.of) for entry in with_judgements.entries] == [(1, 60), (2, 60)]


def test_what_was_judged_nobody_knows_how_has_neither_ranks_nor_differences(tmp_path: Path) -> None:
    rows = [row(i, "ref", name, 1 + (i < k)) for name, k in (("one", 40), ("two", 20)) for i in range(60)]
    (board,), _ = read_boards([write(tmp_path / "rows.json", rows)])
    unknown = replace(board, protocol=EvaluationProtocol())
    assert with_ranks(unknown) == (unknown, [])


def test_what_would_go_unseen_stands_below(tmp_path: Path) -> None:
    """Of 100 instructions the two differ on 20, in one direction: s is 0.4, and (1.984 + 0.845) · 0.402 / 10 = 11.4."""
    rows = [row(i, "ref", "all", 1 + (i < 60)) for i in range(100)]
    rows += [row(i, "ref", "other", 1 + (i < 40)) for i in range(100)]
    (board,), _ = read_boards([write(tmp_path / "rows.json", rows)])
    assert remarks(with_ranks(board)[0]) == [
        "A difference to all of under 11.4 points may go unseen: an unadjusted test finds it less than four times in "
        "five, the adjusted one less often.",
    ]


def test_of_two_systems_that_never_differ_nothing_is_said_to_go_unseen(tmp_path: Path) -> None:
    rows = [row(i, "ref", name, 1 + i % 2) for name in ("one", "same") for i in range(10)]
    (board,), _ = read_boards([write(tmp_path / "rows.json", rows)])
    board, _ = with_ranks(board)
    assert (board.entries[1].difference, board.entries[1].detectable) == (0.0, None)
    assert "unseen" not in markdown_leaderboards([board])


def test_a_reference_that_stands_as_the_system_is_asked_about(tmp_path: Path) -> None:
    turned = write(tmp_path / "turned.json", [row(i, "mine", "text_davinci_003", 1 + i % 2) for i in range(4)])
    right = write(tmp_path / "right.json", [row(i, "text_davinci_003", "mine", 1 + i % 2) for i in range(4, 8)])
    (board,), _ = read_boards([turned])
    assert (
        "text_davinci_003 is AlpacaFarm's reference, and stands as the system here: are the two swapped?" in board.note
    )
    ((fine,), _) = read_boards([right])
    assert fine.note == ""
    for files in ([turned, right], [right, turned]):
        with pytest.raises(DataError, match=r"--reference text_davinci_003"):
            read_boards(files)


def test_the_first_with_judgements_is_named(tmp_path: Path) -> None:
    rows = [row(i, "ref", "all", 1 + (i < 60)) for i in range(100)]
    rows += [row(i, "ref", "other", 1 + (i < 40)) for i in range(100)]
    (board,), _ = read_boards([write(tmp_path / "rows.json", rows)])
    best = Entry("best, unseen", 99.0, n=100)
    board, said = with_ranks(Leaderboard(board.protocol, (*board.entries, best), wins=board.wins))
    assert said == ["no ranks with intervals for best, unseen: no judgements are at hand"]
    assert [entry.difference_to for entry in board.entries] == ["", "", "all"]
    assert "Δ to all" in markdown_leaderboards([board])


def test_figures_of_a_whole_board_come_with_interval_number_and_flag(tmp_path: Path) -> None:
    rows = [row(i, "ref", "good", 2 if i % 4 else 1) for i in range(40)]
    rows += [row(i, "ref", "perfect", 2) for i in range(40)]
    path = write(tmp_path / "rows.json", rows)
    other = write(tmp_path / "other.json", [row(i, "ref", "good", 1, "another judge") for i in range(40)])
    (board, _), _ = read_boards([path, other])
    figures = {
        e.system: e.metrics["bradley_terry"]
        for e in evaluated(board, ["bradley_terry"], stored_rows([path, other], tmp_path)).entries
    }
    good, perfect = figures["good"], figures["perfect"]
    # A system that wins 3 of 4 stands 400 log10(3) above its reference, with an error of 1 / sqrt(40 · 3/16) · 40/39.
    assert good.value == pytest.approx(1190.85, abs=0.1)
    assert good.low == pytest.approx(1190.85 - 1.96 * 173.72 * (40 / 39 / 7.5) ** 0.5, abs=0.5)
    assert (good.n, good.flag) == (40, "")
    assert perfect.flag.startswith("won every comparison")
    shown = markdown_leaderboards([evaluated(board, ["bradley_terry"], stored_rows([path], tmp_path))])
    assert "1190.8 (1064.9 to 1316.8)" in shown
    assert "- \\[1\\] bradley\\_terry: won every comparison" in shown


def test_systems_that_met_each_other_make_one_board(tmp_path: Path) -> None:
    """a beats b, and b beats c, in 3 of 4: a stands as far above b as b above c, though a never met c."""
    rows = [row(i, "a", "b", 1 + (i % 4 == 0)) for i in range(40)]
    rows += [row(i, "c", "b", 2 - (i % 4 == 0)) for i in range(40)] + [row(0, "a", "b", 2)]
    path = write(tmp_path / "rows.json", rows)
    ((board,), _) = read_boards([], [path], ["bradley_terry"], ["elo"])
    a, b, c = board.entries
    assert [(e.system, e.rank, e.n, e.instructions) for e in board.entries] == [
        ("a", 1, 40, 40),
        ("b", 2, 80, 40),
        ("c", 3, 40, 40),
    ]
    above = [one.metrics["bradley_terry"].value - two.metrics["bradley_terry"].value for one, two in ((a, b), (b, c))]
    assert above == pytest.approx([190.85, 190.85], abs=0.1)
    assert (a.win_rate, b.win_rate, c.win_rate) == (75.0, 50.0, 25.0)
    assert a.metrics["elo"].low is not None
    assert board.heading == "judged by judge, against each other"
    assert [column.heading for column in columns(board)][2:4] == ["bradley_terry", "win rate, %"]


def test_systems_that_never_met_and_evaluators_of_one_system_are_refused(tmp_path: Path) -> None:
    path, other = write(tmp_path / "rows.json", [row(0, "a", "b", 1)]), tmp_path / "other.json"
    apart = rf"{path}, {other}: .* fall into 2 groups that no judgement connects \(a, b; c, d\)"
    with pytest.raises(DataError, match=apart):
        read_boards([], [path, write(other, [row(1, "c", "d", 1)])], ["bradley_terry"])
    with pytest.raises(DataError, match="looks at one system"):
        round_robins([path], "win_rate")
    with pytest.raises(DataError, match="ranks the systems of annotations"):
        round_robins([], "elo")
    path = write(tmp_path / "contradictory.json", [row(0, "a", "b", 1), row(0, "b", "a", 1)])
    with pytest.raises(DataError, match="row 1 and row 0 judge"):
        read_boards([], [path], ["elo"])


def test_boards_of_systems_that_met_are_in_the_order_of_the_figure() -> None:
    low, high = (Entry(name, rate, metrics={"elo": Metric(at)}) for name, rate, at in (("x", 90, 900), ("y", 10, 1100)))
    board = ranked(Leaderboard(EvaluationProtocol("judge"), (low, high), order="elo"))
    assert [(entry.system, entry.rank) for entry in board.entries] == [("y", 1), ("x", 2)]


def test_agreement_is_also_over_instructions_where_both_sides_have_judgements(tmp_path: Path) -> None:
    """Both annotators say the same, on the 40 instructions that both have."""
    files = []
    for annotator, tasks in (("judge", range(60)), ("people", range(20, 80))):
        rows = [row(i, "ref", f"system {k}", 1 + (i % 5 <= k), annotator) for k in range(4) for i in tasks]
        files.append(write(tmp_path / f"{annotator}.json", rows))
    boards, _ = read_boards([], files)
    (found,) = agreements(boards)
    assert (found.instructions, len(found.systems)) == (40, 4)
    assert [c.over for c in found.over_instructions] == ["instructions"] * 3
    assert found.over_instructions[0].value == pytest.approx(1.0)
    assert "on the 40 instructions that both have: Spearman 1.00" in found.sentence
    assert [c.over for c in found.correlations] == ["systems"] * 3
