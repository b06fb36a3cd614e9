"""Boards in the order of any figure, tables of figures on any scale, and their correlation."""

from __future__ import annotations

from pathlib import Path

import pytest

from afarm.core.errors import DataError
from afarm.evaluation.boards import Entry, Leaderboard, Metric, read_boards
from afarm.evaluation.boards.correlation import agreements
from afarm.evaluation.boards.from_csv import as_csv
from afarm.evaluation.boards.rendering import as_json, columns
from afarm.evaluation.boards.sources import in_order
from afarm.evaluation.protocol import EvaluationProtocol

ALPACA_EVAL = """,win_rate,standard_error,n_total,avg_length,length_controlled_winrate
verbose,60.0,1.5,805,4000,40.0
concise,50.0,1.5,805,700,55.0
middling,30.0,1.5,805,1500,35.0
lacking,20.0,1.5,805,1500,
partial,70.0,1.5,700,1500,60.0
"""


def table(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def places(board: Leaderboard) -> list[tuple[str, int | None]]:
    return [(entry.system, entry.rank) for entry in board.entries]


def test_a_board_is_in_the_order_of_any_figure_it_has(tmp_path: Path) -> None:
    (board,), _ = read_boards([table(tmp_path / "lb.csv", ALPACA_EVAL)])
    first = [("verbose", 1), ("concise", 2), ("middling", 3), ("lacking", 4), ("partial", None)]
    assert places(board) == first
    (by_lc,) = in_order([board], ["length_controlled"])
    assert places(by_lc) == [("concise", 1), ("verbose", 2), ("middling", 3), ("partial", None), ("lacking", None)]
    assert "no place for lacking: no length_controlled" in by_lc.remarks
    assert "no place for partial: judged on part of the 805 instructions" in by_lc.remarks
    assert [column.heading for column in columns(by_lc)][:4] == ["rank", "system", "judged on", "LC, %"]
    assert places(in_order([board], ["avg_length"])[0])[0] == ("verbose", 1)
    assert places(in_order([by_lc], ["win_rate"])[0]) == first
    with pytest.raises(DataError) as caught:
        in_order([board], ["length_control"])
    assert "--order-by length_control: no system has such a figure. Did you mean 'length_controlled'" in str(
        caught.value
    )
    assert "afarm evaluate … --evaluator length_control" in str(caught.value)
    with pytest.raises(DataError) as caught:
        in_order([board], ["zzz"])
    assert str(caught.value).count("win_rate") == 1, "figures are listed once"


def test_no_board_is_ordered_by_each_runs_own_reward_model() -> None:
    board = Leaderboard(EvaluationProtocol("judge", reference="r"), (Entry("a", 60.0), Entry("b", 50.0)))
    with pytest.raises(DataError, match=r"from its own reward model, so runs cannot be ranked by it\. .* win_rate"):
        in_order([board], ["reward"])


def test_what_compares_win_rates_is_left_out_of_another_order() -> None:
    one, two = (
        Entry(name, rate, length_controlled=lc, rank_low=1, rank_high=1, difference=gap, difference_to="a", p_value=0.1)
        for name, rate, lc, gap in (("a", 60.0, 40.0, None), ("b", 50.0, 55.0, -10.0))
    )
    (board,) = in_order([Leaderboard(EvaluationProtocol("judge", reference="r"), (one, two))], ["length_controlled"])
    assert places(board) == [("b", 1), ("a", 2)]
    assert all((e.rank_low, e.difference, e.p_value, e.difference_to) == (None, None, None, "") for e in board.entries)


def test_tables_of_other_scales_are_read_and_correlate(tmp_path: Path) -> None:
    arena = "model,organisation,elo\nconcise,x,1250\nverbose,y,1100\nmiddling,z,900\nunknown,,1300\n"
    files = [table(tmp_path / "lb.csv", ALPACA_EVAL), table(tmp_path / "arena.csv", arena)]
    boards, _ = read_boards(files)
    elo = next(board for board in boards if board.title == "arena.csv")
    assert places(elo) == [("unknown", 1), ("concise", 2), ("verbose", 3), ("middling", 4)]
    assert (elo.order, elo.entries[0].win_rate, elo.entries[0].metrics) == ("elo", None, {"elo": Metric(1300.0)})
    (agreement,) = agreements(in_order(boards, ["length_controlled"]))
    assert {*agreement.figures} == {"elo", "length_controlled"}
    assert [c.value for c in agreement.correlations if c.kind == "spearman"] == [1.0]
    assert " with " in agreement.sentence.split(": ")[0]
    (by_win_rate,) = agreements(boards)
    assert [c.value for c in by_win_rate.correlations if c.kind == "spearman"] == [0.5]


def test_of_several_columns_of_numbers_one_is_named(tmp_path: Path) -> None:
    file = table(tmp_path / "bench.csv", "name,Arena Elo,MT bench\na,1000,9.0\nb,900,\nc,800,7.5\n")
    assert places(read_boards([file])[0][0])[0] == ("a", 1), "a column that lacks a number is none that ranks"
    file = table(tmp_path / "bench.csv", "name,Arena Elo,MT bench\na,1000,8.0\nb,900,9.0\n")
    with pytest.raises(DataError, match="'Arena Elo', 'MT bench' hold numbers: say which one ranks with --order-by"):
        read_boards([file])
    (board,), _ = read_boards([file], orders=["length_controlled", "MT bench"])
    assert places(board) == [("b", 1), ("a", 2)]
    with pytest.raises(DataError, match="no column 'win_rate' nor another of numbers"):
        read_boards([table(tmp_path / "words.csv", "name,word\na,b\n")])


def test_a_board_without_win_rates_is_written_and_read_again(tmp_path: Path) -> None:
    (board,), _ = read_boards([table(tmp_path / "arena.csv", "model,elo\na,1250\nb,1100\n")])
    for name, text in (("again.json", as_json([board])), ("again.csv", as_csv([board]))):
        (again,), _ = read_boards([table(tmp_path / name, text)])
        assert (places(again), again.order) == ([("a", 1), ("b", 2)], "elo")
        first = again.entries[0]
        assert (first.win_rate, first.interval, first.metrics) == (None, None, {"elo": Metric(1250.0)})
