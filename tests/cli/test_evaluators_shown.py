"""What evaluators other than the win rate say reaches the screen, the report, the record and the board, errors and
warnings with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from said import Afarm

LIGHT = ["--recipe", "light.yaml"]


def annotations(path: Path, system: str, preferences: Sequence[float], marks: Sequence[tuple[int, int]] = ()) -> str:
    rows = [
        {
            "instruction": f"i{n}",
            "output_1": "the reference",
            "output_2": f"{system} says" + " more" * (n % 3),
            "generator_1": "ref",
            "generator_2": system,
            "annotator": "people",
            "preference": preference,
        }
        for n, preference in enumerate(preferences)
    ]
    for row, (theirs, mine) in zip(rows, marks, strict=False):
        row |= {"score_1": theirs, "score_2": mine}
    path.write_text(json.dumps(rows))
    return str(path)


def test_a_doubtful_length_controlled_figure_is_flagged_wherever_it_shows(afarm: Afarm, tmp_path: Path) -> None:
    won = annotations(tmp_path / "won.json", "won", [2] * 12)
    said = afarm("evaluate", "--annotations", won, *LIGHT, "--evaluator", "length_controlled")
    doubt = "0 of 12 instructions lost, and 10 of either outcome are needed"
    assert said.code == 0, said.err
    assert f"flag length_controlled: {doubt}" in said.words
    assert "±" not in said.out.split("length_controlled_winrate")[1].splitlines()[0]
    assert "Warning" not in said.err
    found = afarm("evaluate", "--annotations", won, *LIGHT, "--evaluator", "length_controlled", "--json").json
    (metrics,) = [row["metrics"] for row in found["results"] if row["evaluator"] == "length_controlled"]
    assert 99 < metrics["length_controlled_winrate"] < 100
    assert f"length_controlled_winrate {metrics['length_controlled_winrate']:.1f} %" in said.words
    assert metrics["lc_warning"].startswith(doubt)
    assert metrics["lc_sampling_error"] is None
    assert doubt in Path(found["report"]).read_text()
    board = afarm("leaderboard", "--format", "markdown")
    assert board.out.count(doubt) == 1


def test_mean_ratings_show_with_their_errors_alone_and_as_a_column_of_several(afarm: Afarm, tmp_path: Path) -> None:
    one = annotations(tmp_path / "one.json", "one", [2, 2, 1, 2], [(3, 4), (5, 6), (4, 3), (2, 4)])
    two = annotations(tmp_path / "two.json", "two", [1, 1, 1, 2], [(3, 2), (5, 4), (4, 3), (2, 4)])
    alone = afarm("evaluate", "--annotations", one, *LIGHT, "--evaluator", "pointwise")
    # Ratings 4, 6, 3, 4: deviations -0.25, 1.75, -1.25, -0.25; differences 1, 1, -1, 2.
    assert "pointwise rating 4.250 ± 0.629 (reference 3.500; paired difference 0.750 ± 0.629)" in alone.words
    both = afarm("evaluate", "--annotations", one, two, *LIGHT, "--evaluator", "pointwise")
    assert both.code == 0, both.err
    assert "pointwise" in both.out
    assert "4.2" in both.out


def test_a_plugins_evaluator_reaches_the_boards_of_runs_and_compare(afarm: Afarm) -> None:
    evaluators = ["--set", "evaluate.evaluators=[win_rate,words_said,reward]"]
    compared = afarm("compare", *LIGHT, "--methods", "nudge,direct", *evaluators, "--json")
    assert compared.code == 0, compared.err
    words = {row["system"]: row["metrics"]["words_said"]["value"] for row in compared.json["standings"]}
    assert all(value > 0 for value in words.values())
    assert all("words_said" not in row["differences"] for row in compared.json["standings"])
    assert "words_said" in compared.err
    (board,) = afarm("leaderboard", "--json").json["boards"]
    assert {entry["system"]: entry["metrics"]["words_said"]["value"] for entry in board["entries"]} == words
    assert all("reward" not in entry["metrics"] for entry in board["entries"]), "a run's own reward model"
    (first, *_) = afarm("leaderboard", "--order-by", "words_said", "--json").json["boards"][0]["entries"]
    assert words[first["system"]] == max(words.values())


def test_a_plugins_evaluator_is_worked_out_for_boards_of_annotations(afarm: Afarm, tmp_path: Path) -> None:
    files = [annotations(tmp_path / f"{name}.json", name, [2, 1, 2]) for name in ("one", "two or three words")]
    said = afarm("leaderboard", *files, "--evaluator", "words_said", "--order-by", "words_said", "--json")
    assert said.code == 0, said.err
    (board,) = said.json["boards"]
    figures = [(entry["system"], entry["metrics"]["words_said"]["value"]) for entry in board["entries"]]
    assert figures == [("two or three words", 6.0), ("one", 3.0)]
    stray = afarm("leaderboard", str(tmp_path))
    assert "is a directory: name a file in it" in stray.err, "no run in it"
