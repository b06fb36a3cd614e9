"""Names and texts from anybody's files on every screen: brackets, control characters, and writing direction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from said import Afarm

from afarm.cli.console import console_on
from afarm.storage.text import one_line, visible

NAME = "llama[/INST] [bold]x[/bold] [link=http://x]y\x1b[31m\u202e\x00z"
SHOWN = r"llama[/INST] [bold]x[/bold] [link=http://x]y\x1b[31m\u202e\x00z"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, word in ((NAME, "short"), ("the reference", "a longer answer to")):
        rows = [
            {"instruction": f"task {n}", "output": f"{word} {n} \x1b[2J\u202e\x00", "generator": name} for n in range(8)
        ]
        (tmp_path / f"{word.split()[0]}[x].json").write_text(json.dumps(rows))
    return ["short[x].json", "--reference", "a[x].json"]


def harmless(text: str) -> bool:
    return not any(character in text for character in "\x1b\u202e\x00")


def test_names_in_brackets_are_shown_as_they_are(afarm: Afarm, files: list[str], tmp_path: Path) -> None:
    for arguments in (["evaluate", *files, "--dry-run"], ["cost", *files], ["evaluate", *files]):
        said = afarm(*arguments)
        assert said.code == 0, said.err
        assert harmless(said.out + said.err), arguments
    assert SHOWN in said.out
    assert SHOWN in said.err
    run = next((tmp_path / "afarm-runs" / "runs").iterdir())
    page = (run / "report.html").read_text()
    assert harmless(page)
    assert r"\x1b[2J\u202e\x00" in page
    for form in ("html", "markdown", "csv"):
        board = afarm("leaderboard", "--format", form, "--output", f"board.{form}")
        assert board.code == 0, board.err
        assert harmless((tmp_path / f"board.{form}").read_text()), form


def test_a_console_shows_what_is_no_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    table = Table(NAME, title=NAME)
    table.add_row(NAME)
    console_on(width=100).print(table)
    console_on(width=100).print(NAME)
    shown = capsys.readouterr().out
    assert "llama[/INST]" in shown
    assert harmless(shown)


def test_controls_are_shown_as_text_and_letters_are_left_alone() -> None:
    text = "naïve 漢字 العربية 👩‍👩‍👧\tя\n"
    assert visible(text) == text
    assert visible("\x00\x07\x1b\x7f\x9b\u200f\u2066") == r"\x00\x07\x1b\x7f\x9b\u200f\u2066"
    assert one_line("a\x1b[2J\r\nb") == r"a\x1b[2J b"
