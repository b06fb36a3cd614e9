"""Tables of studies: what a reader of Markdown, of CSV and of LaTeX gets."""

from __future__ import annotations

import csv
import io

from afarm import Bounded, StudyTable
from afarm.report.study_tables import cell_text, csv_text, latex_table, markdown_table

TABLE = StudyTable(
    "t",
    "Rates & more",
    {"system": "", "n": "d", "win rate": ".1f", "gain": "+.2f"},
    [
        ["50% | a_b", 3, Bounded(51.24, 48.0, 54.46), -0.5],
        ["=cmd()", 4, Bounded(1 / 3), None],
    ],
)


def test_markdown_keeps_its_columns_whatever_the_names() -> None:
    lines = markdown_table(TABLE).splitlines()
    assert lines[0] == "| system | n | win rate | gain |"
    assert lines[2] == r"| 50% \| a\_b | 3 | 51.2 (48.0 to 54.5) | −0.50 |"
    assert lines[3].endswith("| 4 | 0.3 | – |")


def test_csv_has_full_precision_and_runs_in_no_spreadsheet() -> None:
    one, other = csv.DictReader(io.StringIO(csv_text(TABLE)))
    assert one == {
        "system": "50% | a_b",
        "n": "3",
        "gain": "-0.5",
        "win rate": "51.24",
        "win rate_low": "48.0",
        "win rate_high": "54.46",
    }
    assert (float(other["win rate"]), other["win rate_low"], other["gain"]) == (1 / 3, "", "")
    assert other["system"] == "'=cmd()"


def test_latex_escapes_what_it_would_act_on() -> None:
    text = latex_table(TABLE)
    assert r"50\% | a\_b & 3 & 51.2 (48.0 to 54.5) & $-$0.50 \\" in text
    assert text.count(r"\\") == 3
    assert r"\begin{tabular}{lrrr}" in text


def test_a_screen_shows_intervals_as_the_page_does() -> None:
    assert cell_text(Bounded(51.24, 48.0, 54.46), ".1f") == "51.2 (48.0 to 54.5)"
    assert cell_text(Bounded(-1.0, -3.0, 1.0), "+.1f") == "−1.0 (−3.0 to +1.0)"
    assert cell_text(Bounded(1, 1, 1), ".0f") == "1 (1 to 1)"
    assert cell_text(Bounded(51.24), ".1f") == "51.2"
