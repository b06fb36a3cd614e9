"""Boards: what stands beside what, in which order, and from where it was read."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import SHARED_DATA

from afarm.core.errors import DataError
from afarm.evaluation.boards import Entry, Leaderboard, Metric, Source, group, read_boards
from afarm.evaluation.boards.board import ranked
from afarm.evaluation.boards.correlation import agreements
from afarm.evaluation.boards.from_csv import as_csv, neutral, restored
from afarm.evaluation.boards.ranking import with_ranks
from afarm.evaluation.boards.rendering import (
    answer,
    as_json,
    columns,
    fitting,
    flags,
    legend,
    rank_text,
    remarks,
)
from afarm.evaluation.metrics import interval
from afarm.evaluation.protocol import EvaluationProtocol
from afarm.report.leaderboard_page import markdown_leaderboards

DATA = SHARED_DATA / "alpaca_eval"
ONE = EvaluationProtocol("pool", reference="sft", label_noise=0.0, instructions="i", reference_outputs="o")
HOSTILE = "<img src=x onerror=alert(1)>|`x`\x1b[31m\n# top"


def run(directory: Path, name: str, win_rate: float, protocol: EvaluationProtocol | None = ONE, **more: Any) -> None:
    """A run's record, as small as it can be."""
    path = directory / "runs" / name
    path.mkdir(parents=True)
    system, record, rated = more.pop("system", name), more.pop("record", {}), more.pop("rated", {})
    metrics = {"win_rate": win_rate, "standard_error": 1.5, "n_total": 800, "n_wins": 400, "avg_length": 61.0, **more}
    result = {"system": system, "reference": "sft", "evaluator": "win_rate", "metrics": metrics}
    flags = [{"says": said} for said in (f"{system} is odd", *more.pop("flags", ()))]
    red_flags = {"prefers_longer": {"value": 0.7, "error": 0.1, "n": 9}, "flags": flags}
    stored = {"protocol": protocol.to_row() if protocol else None, "red_flags": red_flags}
    extra = {
        **result,
        "evaluator": "length_controlled",
        "metrics": {"length_controlled_winrate": 40.0, "win_rate": 0.0},
    }
    rating = {"rating": 6.5, "rating_se": 0.25, "rating_reference": 5.0, **rated}
    rating_row = {**result, "evaluator": "pointwise", "metrics": rating}
    rows = [{**row, **stored} for row in (result, extra, rating_row)]
    (path / "run.json").write_text(json.dumps({"name": name, "results": rows, **record}))


def test_a_system_judged_on_part_of_the_instructions_has_no_place(tmp_path: Path) -> None:
    """Its 79.5 on 44 of 805 instructions is no better than 72.2 on all of them; 797 asked about are as good as all."""
    run(tmp_path, "few", 79.5, n_total=44)
    run(tmp_path, "many", 72.2, n_total=805)
    run(tmp_path, "most", 60.0, n_total=795, n_unparsed=1, n_refused=1)
    ((board,), _) = read_boards([tmp_path])
    assert [(e.system, e.rank, e.partial) for e in board.entries] == [
        ("many", 1, False),
        ("most", 2, False),
        ("few", None, True),
    ]
    shown = markdown_leaderboards([board])
    assert "| – | few | 1 | 44 of 805 | 79.5 ± 1.5 |" in shown
    assert "| 1st | many | 1 | 805 | 72.2 ± 1.5 |" in shown
    assert "no place for few: judged on part of the 805 instructions" in shown
    alone = Leaderboard(ONE, tuple(e for e in board.entries if not e.partial))
    assert ranked(alone).remarks == ""
    assert "judged on" not in markdown_leaderboards([alone])


def test_what_the_record_says_of_the_rows_counts_and_so_do_rows_without_an_answer(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(tmp_path, name, 60.0, n_total=100, record={"coverage": {"reference": 805, "compared": 100}})
    ((board,), _) = read_boards([tmp_path])
    assert [entry.rank for entry in board.entries] == [None, None]
    assert board.remarks.startswith("no place for a, b: judged on part of the 805 instructions")
    assert "--eval-set" in board.remarks
    unread = Entry("x", 50.0, n=60, instructions=60, unparsed=40, of=100)
    assert not unread.partial
    five_labels_each = Entry("x", 50.0, n=250, instructions=50, unparsed=250, of=100)
    assert five_labels_each.n_asked == 50
    assert five_labels_each.partial


def test_runs_of_one_protocol_stand_on_one_board(tmp_path: Path) -> None:
    run(tmp_path, "dpo", 46.8)
    run(tmp_path, "ppo", 51.0)
    run(tmp_path, "noisy", 99.0, EvaluationProtocol("pool", reference="sft", label_noise=0.25))
    boards, left_out = read_boards([tmp_path])
    assert left_out == []
    assert [[entry.system for entry in board.entries] for board in boards] == [["ppo", "dpo"], ["noisy"]]
    best = boards[0].entries[0]
    assert (best.rank, best.win_rate, best.standard_error, best.n) == (1, 51.0, 1.5, 800)
    assert (best.length_controlled, best.prefers_longer, best.flags) == (40.0, 0.7, ("ppo is odd",))
    assert read_boards([tmp_path / "runs"])[0] == boards
    assert len(read_boards([tmp_path / "runs" / "ppo"])[0][0].entries) == 1


def test_results_without_a_protocol_stand_apart_and_say_so(tmp_path: Path) -> None:
    run(tmp_path, "ppo", 51.0)
    run(tmp_path, "old", 60.0, None)
    run(tmp_path, "older", 61.0, None)
    boards, _ = read_boards([tmp_path])
    assert [len(board.entries) for board in boards] == [2, 1]
    assert "no two of them may be compared" in boards[0].heading


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    run(tmp_path, "ppo", 51.0)
    run(tmp_path, "silent", math.nan)
    for name, text in (("torn", "{"), ("list", "[]"), ("none", '{"results": []}')):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_text(text)
    boards, left_out = read_boards([tmp_path])
    assert [entry.system for board in boards for entry in board.entries] == ["ppo"]
    assert len(left_out) == 4
    assert all(any(name in line for line in left_out) for name in ("silent", "torn", "list", "none"))


def test_a_figure_that_is_no_number_is_not_known(tmp_path: Path) -> None:
    run(tmp_path, "ppo", 51.0, standard_error=math.nan, n_total=math.inf, avg_length="long")
    ((entry,),) = [board.entries for board in read_boards([tmp_path])[0]]
    assert (entry.standard_error, entry.n, entry.length) == (None, None, None)


def test_a_run_that_stopped_when_it_was_clear_says_so_and_is_not_ranked_with_an_interval(tmp_path: Path) -> None:
    run(tmp_path, "ppo", 51.0, standard_error=None, n_total=64, record={"until": {"of": 800}})
    run(tmp_path, "dpo", 41.0)
    (board,), _ = read_boards([tmp_path])
    dpo, ppo = board.entries
    assert (dpo.rank, ppo.rank, ppo.stopped_early) == (1, None, True)
    assert "| – | ppo | 1 | 64 of 800, stopped early |" in markdown_leaderboards([board])
    assert (ppo.source.judgements, ppo.interval) == ("", None)
    assert dpo.source.judgements.endswith("outputs.jsonl")


def test_two_results_of_one_system_are_told_apart_and_the_same_one_stands_once(tmp_path: Path) -> None:
    run(tmp_path, "ppo-a", 51.0, system="ppo")
    run(tmp_path, "ppo-b", 49.0, system="ppo")
    boards, _ = read_boards([tmp_path, tmp_path / "runs" / "ppo-a"])
    assert [entry.system for entry in boards[0].entries] == ["ppo (ppo-a)", "ppo (ppo-b)"]


def test_rows_of_one_name_are_numbered_and_names_that_look_alike_are_said_to(tmp_path: Path) -> None:
    path = tmp_path / "board.csv"
    path.write_text(
        "model,win_rate\na,50\na,49\nb\u00a0c,48\nb c,47\nd\u200b,46\nd,45\nD,44\nd-1,43\n", encoding="utf-8"
    )
    [board], _ = read_boards([path])
    names = ["a (board.csv, 1)", "a (board.csv, 2)", "b\u00a0c", "b c", "d\u200b", "d", "D", "d-1"]
    assert [entry.system for entry in board.entries] == names
    assert board.note.split("; ")[1:] == [
        r"'b c' looks like 'b\xa0c' and has space at character 2 where the other has no-break space: one system?",
        r"'d' looks like 'd\u200b' and has nothing at character 2 where the other has zero width space: one system?",
    ]


def test_a_run_that_does_not_stand_because_another_has_the_same_result_is_named(tmp_path: Path) -> None:
    """Two runs trained on different preferences may give equal outputs: neither vanishes without a word."""
    run(tmp_path, "dpo-mine", 51.0, system="dpo", record={"created": 5})
    run(tmp_path, "dpo-theirs", 51.0, system="dpo", record={"created": 9})
    ((board,), (line,)) = read_boards([tmp_path])
    assert [Path(entry.source.name).name for entry in board.entries] == ["dpo-theirs"]
    mine, theirs = (str(tmp_path / "runs" / name) for name in ("dpo-mine", "dpo-theirs"))
    assert line.startswith(f"{mine}: its result of dpo equals that of {theirs} (win rate")
    assert read_boards([mine, tmp_path / "runs" / "dpo-mine"])[1] == []


@pytest.mark.parametrize("newest", ["a", "b"])
def test_of_several_evaluations_of_the_same_judgements_the_newest_stands(tmp_path: Path, newest: str) -> None:
    for name in ("a", "b"):
        fit = {"length_controlled_winrate": 41.0 if name == newest else 39.0}
        run(tmp_path, name, 51.0, system="ppo", record={"created": 9 if name == newest else 5}, **fit)
    together, _ = read_boards([tmp_path])
    apart, _ = read_boards([tmp_path / "runs" / name for name in ("a", "b")])
    for ((entry,),) in ([board.entries for board in boards] for boards in (together, apart)):
        assert (entry.system, entry.length_controlled, Path(entry.source.name).name) == ("ppo", 41.0, newest)


def test_equal_win_rates_share_a_place() -> None:
    board = ranked(Leaderboard(ONE, (Entry("c", 1.0), Entry("b", 5.0), Entry("a", 5.0))))
    assert [(e.system, e.rank) for e in board.entries] == [("a", 1), ("b", 1), ("c", 3)]
    assert [rank_text(Entry("x", 1.0, rank=n)) for n in (1, 2, 3, 4, 11, 12, 13, 21, 112)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"]
    )
    assert rank_text(Entry("x", 1.0, rank=3, rank_low=2, rank_high=5)) == "3rd, 2–5"


def test_the_interval_is_that_of_two_more_wins_and_losses() -> None:
    mean = pytest.importorskip("afarm.evaluation.statistics.intervals").mean
    few = ([1.0], [0.5], [0.0, 1.0], [1.0, 1.0, 0.2])  # there Student's quantile by its series is a little short
    for wins in (*few, [1.0] * 25, [1.0, 0.0, 0.5, 1.0] * 20, [0.3, 0.9] * 100):
        found, more = mean(wins), mean([*wins, 0.0, 0.0, 1.0, 1.0])
        error = None if found.error is None else 100 * found.error
        bounds = interval(100 * found.value, error, len(wins))
        close = 0.02 if len(wins) > 3 else 2
        assert bounds == pytest.approx((max(0, 100 * more.low), min(100, 100 * more.high)), abs=close)
    assert interval(50.0, None, 10) is None
    assert interval(99.0, 1.0, None) == (pytest.approx(97.04, abs=0.01), 100.0)


def test_merged_parts_have_no_ranks_of_their_parts() -> None:
    known = Entry("a", 5.0, rank_low=1, rank_high=1, difference=0.0)
    (board,) = group([Leaderboard(ONE, (known,)), Leaderboard(ONE, (Entry("b", 6.0),))])
    assert [(e.system, e.rank, e.rank_low, e.difference) for e in board.entries] == [
        ("b", 1, None, None),
        ("a", 2, None, None),
    ]
    (alone,) = group([Leaderboard(ONE, (known,))])
    assert alone.entries[0].rank_low == 1


def full_board() -> Leaderboard:
    known = Entry(
        "ppo",
        *(46.8, 1.75, 805, 370, 420, 15, 0, 1.0, 683.0, 40.0, 1.2),
        prefers_longer=0.64,
        prefers_lists=0.63,
        length_controlled_source="weights",
        flags=("it is odd",),
        metrics={
            "elo": Metric(1012.0, low=980.0, high=1044.0, n=805, flag="it won all"),
            "fitted": Metric(60.1, 0.8, unit="%"),
        },
    )
    return ranked(Leaderboard(ONE, (known, Entry(HOSTILE, 39.2, flags=("it is odd", HOSTILE)))))


def test_json_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    board = full_board()
    (tmp_path / "board.json").write_text(as_json([board]))
    (again,), _ = read_boards([tmp_path / "board.json"])
    assert again == board


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        ({"value": 5, "unit": 5}, "field 'metrics.half.unit' should be '' or '%', and is 5"),
        ({"value": 5, "unit": ["%"]}, "field 'metrics.half.unit' should be '' or '%'"),
        ({"value": 250, "unit": "%"}, "metric 'half' must lie between 0 and 100, and is 250"),
    ],
)
def test_a_unit_is_percent_or_none(tmp_path: Path, metric: dict[str, Any], problem: str) -> None:
    rows = json.loads(as_json([full_board()]))
    rows["boards"][0]["entries"][0]["metrics"]["half"] = metric
    (tmp_path / "board.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match=re.escape(problem)):
        read_boards([tmp_path / "board.json"])


def test_a_figure_of_an_older_file_is_shown_in_the_unit_of_the_others() -> None:
    entries = [
        Entry(name, 5.0, metrics={"half": Metric(50.0, 2.0, unit=unit)}) for name, unit in (("a", ""), ("b", "%"))
    ]
    (column,) = [c for c in columns(Leaderboard(ONE, tuple(entries))) if c.heading == "half, %"]
    assert [column.cell(entry) for entry in entries] == ["50.0 ± 2.0"] * 2


def test_csv_is_read_again_as_it_was_written_in_the_columns_of_alpaca_eval(tmp_path: Path) -> None:
    """Boards of equal headings stay apart, and of two equal systems neither is lost."""
    sum_ = "=HYPERLINK(0)\r\n; 'x' \\n"
    equal = (Entry("same", 10.0, 1.0, 805), Entry(sum_, 5.0, flags=(sum_, "+1", "a | b"), source=Source("-x")))
    noisy = [ranked(Leaderboard(replace(ONE, label_noise=noise), equal)) for noise in (0.1, 0.25)]
    met = ranked(Leaderboard(ONE, (Entry("a", 1.0, metrics={"elo": Metric(5.0)}),), "met", "a note", "elo"))
    boards = group(
        [
            full_board(),
            *noisy,
            met,
            Leaderboard(EvaluationProtocol(), (Entry("y", 2.0),), "unknown", origin="@here.csv"),
        ]
    )
    assert len(boards) == 5
    text = as_csv(boards)
    assert len(text.splitlines()) == 1 + sum(len(board.entries) for board in boards), "a row is a line"
    first = next(csv.DictReader(io.StringIO(text)))
    assert (first["win_rate"], first["n_wins"], first["avg_length"], first["elo"]) == ("46.8", "370", "683.0", "1012.0")
    assert (first["elo_low"], first["elo_high"], first["elo_n"]) == ("980.0", "1044.0", "805")
    (tmp_path / "board.csv").write_text(text)
    again, _ = read_boards([tmp_path / "board.csv"])
    assert again == boards
    assert [board.heading for board in again] == [board.heading for board in boards]
    assert as_csv(again) == text


def test_no_cell_is_run_or_moves_a_cursor_and_numbers_stay_numbers() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "'=1", "a\tb", "\x1b[31m", "\\n", "\u202e", "\ud800", "plain = 5", "é'", ""]
    for text in texts:
        assert restored(neutral(text)) == text
        assert not neutral(text).startswith(("=", "+", "-", "@"))
        assert neutral(text).isprintable()
    text = as_csv([Leaderboard(ONE, tuple(Entry(name, 5.0, difference=-3.5) for name in texts))])
    for row in csv.reader(io.StringIO(text)):
        assert not [cell for cell in row if cell.startswith(("=", "+", "@"))]
        assert not [cell for cell in row if cell.startswith("-") and float(cell) != -3.5]


def test_boards_of_one_heading_say_what_sets_them_apart() -> None:
    more = {
        "label_noise": replace(ONE, label_noise=None),
        "annotator prompts": replace(ONE, source="0123456789ab"),
        "instructions": replace(ONE, instructions="abcdef012345"),
    }
    for said, protocol in more.items():
        boards = group([Leaderboard(ONE, (Entry("a", 1.0),)), Leaderboard(protocol, (Entry("a", 1.0),))])
        headings = [board.heading for board in boards]
        assert len({*headings}) == 2, said
        assert all(said.replace("_", " ") in heading for heading in headings)
        assert "012345" not in "".join(headings) or "01234567" not in "".join(headings)
    (alone,) = group([Leaderboard(ONE, (Entry("a", 1.0),))])
    assert alone.heading == "judged by pool, against sft"


def test_further_figures_of_compared_files_have_a_column_and_those_of_runs_none(tmp_path: Path) -> None:
    """A run's own reward model is another than the next one's."""
    run(tmp_path, "file", 50.0, record={"coverage": {"reference": 800}})
    run(tmp_path, "trained", 40.0)
    ((board,), _) = read_boards([tmp_path])
    assert [entry.metrics for entry in board.entries] == [{"pointwise": Metric(6.5, 0.25)}, {}]
    assert "| 6.500 ± 0.250 |" in markdown_leaderboards([board])


def test_each_warning_of_an_evaluator_is_said_once(tmp_path: Path) -> None:
    flags = ["pointwise: few ratings", "pointwise: all alike"]
    warned = {"few_warning": "few ratings", "alike_warning": "all alike"}
    run(tmp_path, "file", 50.0, record={"coverage": {"reference": 800}}, rated=warned, flags=flags)
    ((board,), _) = read_boards([tmp_path])
    assert board.entries[0].metrics["pointwise"].flag == "few ratings; all alike"
    assert board.entries[0].flags == ("file is odd",)


def test_a_run_that_was_never_clear_did_not_stop_early(tmp_path: Path) -> None:
    run(tmp_path, "a", 50.0, record={"until": {"of": 800}})
    run(tmp_path, "b", 50.0, n_total=799, record={"until": {"of": 800}})
    ((board,), _) = read_boards([tmp_path])
    assert [(e.stopped_early, e.source.judgements) for e in board.entries] == [(False, ""), (True, "")]


def test_two_tables_of_one_name_are_two_boards(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "leaderboard.csv").write_text(",win_rate\nx,5.0\n")
    boards, _ = read_boards([tmp_path / name / "leaderboard.csv" for name in ("one", "two", "one")])
    assert [len(board.entries) for board in boards] == [1, 1]
    assert [board.heading for board in boards] == [
        f"leaderboard.csv ({tmp_path / name / 'leaderboard.csv'})" for name in ("one", "two")
    ]


def test_a_length_controlled_figure_says_what_it_is_and_when_not_to_trust_it(tmp_path: Path) -> None:
    run(tmp_path, "a", 50.0, length_controlled_winrate=41.0, lc_source="weights")
    doubt: dict[str, Any] = {"lc_warning": "60 rows are too few", "flags": ["length_controlled: 60 rows are too few"]}
    run(tmp_path, "b", 40.0, length_controlled_winrate=43.0, lc_source="fit", **doubt)
    run(tmp_path, "c", 30.0)
    ((board,), _) = read_boards([tmp_path])
    shown = markdown_leaderboards([board]).replace("\\", "")
    assert "| 41.0 [1] |" in shown
    assert "| 43.0 [2, 3] |" in shown
    assert remarks(board) == [
        "[1] length control: weights; figures of different kinds cannot be compared",
        "[2] length control: fit; figures of different kinds cannot be compared",
        "[3] length control: 60 rows are too few",
    ]
    assert flags(board) == ["a: a is odd", "b: b is odd", "c: c is odd"], "what a footnote says is no flag as well"
    (tmp_path / "board.json").write_text(as_json([board]))
    assert remarks(read_boards([tmp_path / "board.json"])[0][0]) == remarks(board)


def test_markdown_shows_what_is_known_and_lets_no_name_out_of_its_cell() -> None:
    text = markdown_leaderboards([full_board()])
    assert "| 1st | ppo |  | 46.8 ± 1.8 | 43.4–50.2 | 40.0 ± 1.2 | 805 | 370/420/15 |" in text
    assert "| 1012.0 (980.0 to 1044.0) \\[1\\] |" in text
    assert "- \\[1\\] elo: it won all" in text
    assert "- Length control: weights." in text
    assert "<img" not in text
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1
    assert "- Flag: all: it is odd" in text


def test_columns_that_nothing_is_known_of_are_left_out() -> None:
    board = Leaderboard(ONE, (Entry("a", 5.0),))
    assert [column.heading for column in columns(board)] == ["rank", "system", "win rate, %"]
    assert flags(board) == []


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        (",win_rate\nx,34%\ny,0.468%\n", [34, 0.468]),
        (",win_rate\nx,34\ny,0.468\n", [34, 0.468]),
        (",win_rate\nx,34\ny,46.8 %\n", [46.8, 34]),
        (",win_rate\nx,34\ny,0%\n", [34, 0]),
        ("|win_rate|n_total\nx|34|805\ny|0.468|805\n", [34, 0.468]),
    ],
)
def test_percent_signs_stand_for_all_rates_of_a_table_or_for_none(
    text: str, rates: list[float], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(text)
    (board,), _ = read_boards([tmp_path / "a.csv"])
    assert [entry.win_rate for entry in board.entries] == rates


def test_alpaca_eval_s_leaderboards_are_imported(tmp_path: Path) -> None:
    text = (
        ",win_rate,standard_error,n_wins,n_wins_base,n_draws,n_total,mode,avg_length,length_controlled_winrate\n"
        "good,60.5,1.5,480,310,15,805,minimal,1200,55.25\n"
        "sparse,10.0,,,,,,community,,\n"
    )
    path = tmp_path / "leaderboard.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    (board,), _ = read_boards([path])
    assert board.heading == "leaderboard.csv.gz"
    good, sparse = board.entries
    assert (good.wins, good.losses, good.draws, good.n, good.length) == (480, 310, 15, 805, 1200.0)
    assert good.length_controlled == 55.25
    assert (sparse.standard_error, sparse.n) == (None, None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", ",rate\nx,much\n", "no column 'win_rate' nor another of numbers"),
        ("a.csv", ",win_rate\nx,much\n", "line 2: column 'win_rate' must be a number, not 'much'"),
        ("a.csv", ",win_rate\nx,101\n", "line 2: column 'win_rate' should be less than or equal to 100, and is 101"),
        ("a.csv", ",win_rate\nx,\n", "line 2: column 'win_rate' has no number"),
        (
            "a.csv",
            ",win_rate,n_total\nx,5,9\ny,5,-3\n",
            "line 3: column 'n_total' should be greater than or equal to 0, and is -3",
        ),
        (
            "a.csv",
            ",win_rate,standard_error\nx,5,-1\n",
            "column 'standard_error' should be greater than or equal to 0, and is -1",
        ),
        ("a.csv", ",win_rate,n_total\nx,5,1e400\n", "column 'n_total' should be a valid integer, and is inf"),
        ("a.csv", ',win_rate\nx,5\n"y,5\nz,5\n', "line 3: not valid CSV: a double quote is opened and never closed"),
        ("a.csv", ",win_rate\n", "no rows"),
        ("a.csv", ",win_rate\nx,0.468\ny,0.9\n", "column 'win_rate' is nowhere above 1, and win rates are in percent"),
        (
            "a.csv",
            ",win_rate\nx,34\ny,0.468%\n",
            "line 3: column 'win_rate' is 0.468%, and other rows have no percent sign: write 0.468 if that is its "
            "percent, or 46.8 if it is a share of 1",
        ),
        ("a.csv", ",win_rate\nx,0.468%\ny,0\nz,34\n", "line 2: column 'win_rate' is 0.468%, and other rows"),
        ("a.csv", ",win_rate\nx,46.8%\ny,0.34\n", "column 'win_rate' is nowhere above 1"),
        ("a.csv", ",win_rate,length_controlled_winrate\nx,46.8,0.4\n", "column 'length_controlled_winrate' is nowhere"),
        ("a.csv", ';win_rate\nx;"46,812"\n', "must be a number, not '46,812': no mark may part thousands"),
        ("a.csv", ";win_rate;n_total\nx;46,8;1.000\n", "'n_total' must be a number, not '1.000': no mark may"),
        ("a.csv", 'model,elo\nx,"1,251"\n', "another of numbers (1234, not 1,234)"),
        (
            "a.csv",
            ",win_rate,n_wins,n_wins_base,n_draws,n_total\nx,50,371,417,17,600\n",
            "line 2: n_total is 600, and n_wins + n_wins_base + n_draws are 805",
        ),
        (
            "a.csv",
            ",win_rate,n_wins,n_wins_base,n_draws,n_total\nx,20,600,200,5,805\n",
            "'win_rate' is 20, and 600 wins, 200 losses and 5 draws give 37.6 to 87.3",
        ),
        ("a.json", '{"boards": 3}', "holds no boards"),
        ("a.json", '{"standings": []}', "`afarm compare` wrote it: name the directory of its runs"),
        ("a.json", '{"boards": [{}]}', "board 0: must hold a list of entries"),
        (
            "a.json",
            '{"boards": [{"entries": [{"win_rate": 1}]}]}',
            "entry 0: field 'system' should be a valid string, and is None",
        ),
        (
            "a.json",
            '{"boards": [{"entries": [{"system": "x", "win_rate": true}]}]}',
            "'win_rate' should be a valid number, and is True",
        ),
        (
            "a.json",
            '{"boards": [{"entries": [{"system": "x", "win_rate": 1, "n": -3}]}]}',
            "'n' should be greater than or equal to 0, and is -3",
        ),
        ("a.json", "{", "not valid JSON"),
        ("a.jsonl", '{"instruction": "x"}', "row 0 (line 1): is no annotation, which has output_1"),
        ("missing.csv", None, "no such file"),
        ("missing.json", None, "no such file"),
    ],
)
def test_a_file_that_is_no_board_is_named_with_row_and_field(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as error:
        read_boards([tmp_path / name])
    assert said in str(error.value)
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "model;win_rate;n_total\nx;46,8;805\n",
        "model\twin_rate\tn_total\nx\t46.8\t805\n",
        "model,win_rate,n_total\nx,46.8%,805\n",
        "sep=;\nmodel;win_rate;n_total\nx;46,8 %;805\n",
        '\ufeffmodel,win_rate,n_total\nx,"46,8\u00a0%",805\n',
        ",win_rate,n_wins,n_wins_base,n_draws,n_total\nx,46.8,371,417,17,805\n",
        ",win_rate,n_wins,n_wins_base,n_draws,n_total,discrete_win_rate\nx,46.8,300,500,5,805,37.6\n",
    ],
)
def test_a_table_is_read_as_spreadsheets_write_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "board.csv").write_text(text)
    [board], _ = read_boards([tmp_path / "board.csv"])
    assert [(entry.system, entry.win_rate, entry.n) for entry in board.entries] == [("x", 46.8, 805)]


def test_a_share_of_a_percent_is_one_if_its_sign_stands_there(tmp_path: Path) -> None:
    (tmp_path / "board.csv").write_text("model,win_rate\nx,0.468%\ny,0\n")
    [board], _ = read_boards([tmp_path / "board.csv"])
    assert [entry.win_rate for entry in board.entries] == [0.468, 0]


@pytest.mark.parametrize("name", ["votes.jsonl", "votes.json", "votes.csv"])
def test_votes_on_models_without_texts_are_a_bradley_terry_board(name: str, tmp_path: Path) -> None:
    marks = {"a": "model_a", "b": "model_b", "-": "tie"}
    games = [("x", "y", "aaab-"), ("y", "z", "aab"), ("z", "x", "bbbab")]
    votes = [{"model_a": a, "model_b": b, "winner": marks[mark], "turn": 1} for a, b, won in games for mark in won]
    lines = [",".join(votes[0]), *(",".join(map(str, vote.values())) for vote in votes)]
    text = {"csv": "\n".join(lines), "json": json.dumps(votes), "jsonl": "\n".join(map(json.dumps, votes))}
    (tmp_path / name).write_text(text[name.rpartition(".")[2]])
    [board], _ = read_boards([tmp_path / name])
    assert (board.order, [entry.system for entry in board.entries]) == ("bradley_terry", ["x", "y", "z"])
    assert [(entry.n, entry.wins, entry.losses, entry.draws, entry.length) for entry in board.entries] == [
        (10, 7, 2, 1, None),
        (8, 3, 4, 1, None),
        (8, 2, 6, 0, None),
    ]
    for row, said in (({"winner": "nobody"}, "field 'winner' is 'nobody'"), ({"model_a": None}, "the name of a model")):
        (tmp_path / "wrong.json").write_text(json.dumps([*votes, {**votes[0], **row}]))
        with pytest.raises(DataError, match=f"row {len(votes)}: .*{said}"):
            read_boards([tmp_path / "wrong.json"])


def test_the_paper_s_table_is_a_board_and_correlates_as_the_paper_says() -> None:
    pytest.importorskip("scipy")
    boards, _ = read_boards(["paper"])
    assert [len(board.entries) for board in boards] == [13, 10]
    assert boards[0].entries[0].win_rate == 79.0
    (found,) = agreements(boards)
    assert len(found.systems) == 10
    spearman = found.correlations[0]
    assert (spearman.kind, round(spearman.value or 0, 2)) == ("spearman", 0.98)
    assert "Spearman 0.98" in found.sentence


def test_boards_with_two_systems_in_common_are_not_correlated() -> None:
    a = Leaderboard(ONE, (Entry("x", 1.0), Entry("y", 2.0), Entry("z", 3.0)))
    b = Leaderboard(EvaluationProtocol("b"), (Entry("x", 1.0), Entry("y", 2.0), Entry("w", 3.0)))
    assert list(agreements([a, b])) == []


def test_published_leaderboards_are_read_to_the_last_digit() -> None:
    path = DATA / "leaderboard.weighted_gpt4_turbo.csv"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    (board,), _ = read_boards([path])
    published = list(csv.DictReader(path.open(newline="")))
    assert len(board.entries) == len(published)
    rates = {entry.system: entry.win_rate for entry in board.entries}
    assert all(rates[row[""]] == float(row["win_rate"]) for row in published)


def test_ranks_need_judgements() -> None:
    pytest.importorskip("scipy")
    board = Leaderboard(ONE, (Entry("a", 5.0), Entry("b", 4.0)))
    assert with_ranks(board) == (board, [])


def test_a_narrow_screen_is_spared_what_says_least() -> None:
    board = full_board()
    every = columns(board)
    assert fitting(board, every, None)[0] == every
    full = fitting(board, every, None)[1]
    shown, width = fitting(board, every, full - 1)
    assert width < full
    assert {column.heading for column in every} - {column.heading for column in shown} == {"won/lost/drawn"}
    assert [column.heading for column in fitting(board, every, 10)[0]] == (
        ["rank", "system", "flags", "win rate, %", "LC, %"]
    )


def test_a_board_is_a_line_a_table_a_frame_and_json(tmp_path: Path) -> None:
    run(tmp_path, "ppo", 64.5)
    run(tmp_path, "<dpo>", 55.0)
    ((board,), _) = read_boards([tmp_path])
    rated = [replace(entry, metrics={"elo": Metric(1000.0)}) for entry in board.entries]
    board = replace(board, entries=tuple(rated))
    assert repr(board).endswith(": 2 systems, first ppo at 64.5 %)")
    assert len(repr(board)) < 400
    assert "&lt;dpo&gt;" in board._repr_html_()
    assert "<dpo>" not in board._repr_html_()
    frame = board.to_pandas()
    assert list(frame["system"]) == ["ppo", "<dpo>"]
    assert list(frame["elo"]) == [1000.0, 1000.0]
    assert frame["low"][0] < 64.5 < frame["high"][0]
    assert json.loads(json.dumps(board.to_dict()))["entries"][0]["win_rate"] == 64.5


def entry(system: str, rate: float, error: float | None = 1.0, **more: Any) -> Entry:
    return Entry(system, rate, error, 800, source=Source(reference=more.pop("reference", "sft")), **more)


@pytest.mark.parametrize(
    ("entries", "order", "said"),
    [
        ([], "", ""),
        ([entry("a", 60.0)], "", "a: win rate 60.0 % against sft (95 % 58.0 to 61.9); clearly ahead."),
        (
            [entry("a", 51.0)],
            "",
            "a: win rate 51.0 % against sft (95 % 49.0 to 53.0); not clearly apart from a: sft (50 %).",
        ),
        ([entry("a", 40.0)], "", "a: win rate 40.0 % against sft (95 % 38.1 to 42.0); sft is clearly ahead."),
        (
            [entry("a", 60.0), entry("b", 59.0), entry("c", 40.0)],
            "",
            "a first: win rate 60.0 % against sft (95 % 58.0 to 61.9); not clearly apart from a by intervals alone: b.",
        ),
        (
            [entry("a", 60.0, rank_low=1, rank_high=1), entry("b", 59.0, p_value=0.01), entry("c", 40.0, p_value=0.3)],
            "",
            "a first: win rate 60.0 % against sft (95 % 58.0 to 61.9); not clearly apart from a: c.",
        ),
        (  # so many have no verdict that b may be first
            [entry("a", 60.0, rank_low=1, rank_high=2), entry("b", 40.0, p_value=0.001), entry("c", 30.0)],
            "",
            "a first: win rate 60.0 % against sft (95 % 58.0 to 61.9); not clearly apart from a: b.",
        ),
        (
            [entry("a", 60.0, seeds=(1, 2), win_rates=(58.0, 62.0)), entry("b", 40.0)],
            "",
            "a first: win rate 60.0 % against sft (95 % 34.6 to 85.4); not clearly apart from a by intervals alone: "
            "b, sft (50 %).",
        ),
        (
            [entry("a", 60.0, None, reference=""), entry("b", 50.0, None)],
            "",
            "a first: win rate 60.0 %; how clearly is not known.",
        ),
        (
            [
                entry("a", 60.0, metrics={"elo": Metric(1100.0, low=1050.0, high=1150.0)}),
                entry("b", 70.0, metrics={"elo": Metric(1000.0, low=960.0, high=1040.0)}),
            ],
            "elo",
            "a first: elo 1100.0 (95 % 1050.0 to 1150.0); clearly ahead.",
        ),
    ],
)
def test_a_board_says_its_answer_first(entries: list[Entry], order: str, said: str) -> None:
    board = ranked(Leaderboard(EvaluationProtocol(), tuple(entries), "t", order=order))
    assert answer(board) == said
    assert said == "" or markdown_leaderboards([board]).splitlines()[2].replace("\\", "") == f"**{said}**"


def test_the_answer_of_a_board_names_who_judged() -> None:
    for judges, annotator, who in [
        ({"*": "openai:gpt-4o"}, "gpt4_4", "openai:gpt-4o with annotator gpt4_4"),
        ({"*": "offline:gold@0123456789ab"}, "pool", "the formula offline:gold"),
        ({}, "fitted", "the formula fitted"),
        ({}, "people", "people"),
    ]:
        protocol = EvaluationProtocol(annotator, judges=judges, reference="sft")
        board = ranked(Leaderboard(protocol, (entry("a", 60.0), entry("b", 40.0)), "t"))
        assert (
            answer(board)
            == f"a first: win rate 60.0 % against sft (95 % 58.0 to 61.9), judged by {who}; clearly ahead."
        )
        behind = ranked(Leaderboard(protocol, (entry("a", 40.0), entry("b", 39.0)), "t"))
        said = f"judged by {who}; sft is clearly ahead; not clearly apart from a by intervals alone: b."
        assert answer(behind).endswith(said)


def test_boards_state_how_often_their_judge_agrees_with_people(tmp_path: Path) -> None:
    known = {"role": "*", "identity": "fitted:people@0123456789ab", "simulated": True, "agreement": "agrees on 69 %"}
    others = [{**known, "role": "gpt4", "identity": "openai:gpt-4o", "simulated": False, "agreement": ""}]
    said = "the formula fitted:people agrees on 69 %"
    for number, (judges, note) in enumerate(
        [([known], said), ([known, {**known, "role": "gpt4"}], said), ([*others, known], said), (others, ""), ("x", "")]
    ):
        directory = tmp_path / str(number)
        run(directory, "ppo", 60.0, record={"judges": judges})
        ((board,), _) = read_boards([directory])
        assert board.note == note
        assert (said in markdown_leaderboards([board])) is (note == said)


def test_a_legend_explains_the_columns_that_are_there() -> None:
    with_length = replace(entry("a", 60.0), length_controlled=50.0)
    boards = [ranked(Leaderboard(EvaluationProtocol(), (one,), "t")) for one in (entry("a", 60.0), with_length)]
    assert "LC" not in legend(boards[:1])
    assert "LC: length-controlled win rate." in legend(boards)
