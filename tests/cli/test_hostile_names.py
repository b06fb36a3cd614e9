"""Names and texts from anybody's files on every screen: brackets, control characters, and writing direction."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from said import Afarm

from afarm.cli.console import console_on
from afarm.storage.text import one_line, visible

NAME = "llama[/INST] [bold]x[/bold] [link=http://x]y\x1b[31m\u202e\x00z"
SHOWN = r"llama[/INST] [bold]x[/bold] [link=http://x]y\x1b[31m\u202e\x00z"


def harmless(text: str) -> bool:
    return not any(character in text for character in "\x1b\u202e\x00")


STRINGS = {
    "NUL": "a\x00b",
    "ESC": "\x1b[31mred\x1b[2J",
    "a link of the terminal": "\x1b]8;;http://evil\x07x",
    "C1": "\x9b2J\x85",
    "right to left": "\u202egnp",
    "isolate": "\u2066x\u200f",
    "half a surrogate pair": "half \ud83d",
    "a closing tag": "llama[/INST]",
    "markup": "[bold]x[/bold] [link=http://x]y[/link]",
    "jinja": "{{ 7*7 }}{% raw %}",
    "elements": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "an attribute": "\"' onmouseover='alert(3)",
    "Markdown": "a|b`c`\n# d\n```\n- e",
    "a formula": '=HYPERLINK("http://x")',
}
MARK = "[bold]\x1b[31m\u202e<script>"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_TEXTS: dict[str, str] = {}


@pytest.fixture
def texts(afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What every screen, page and file says of outputs, prompts, systems and annotators with these texts, made once."""
    if _TEXTS:
        return _TEXTS
    monkeypatch.setenv("COLUMNS", "400")
    for name, word in ((MARK, "short"), (f"reference {MARK}", "a longer answer to")):
        rows = [
            {"instruction": f"{text} task", "output": f"{word} {text}", "generator": name, "dataset": text}
            for text in STRINGS.values()
        ]
        (tmp_path / f"{word[0]}{MARK}.json").write_text(json.dumps(rows))
    judged = [
        {
            "instruction": f"task {n}",
            "output_1": f"r {text}",
            "output_2": f"s {text}",
            "preference": 1 + n % 2,
            "generator_1": "r",
            "generator_2": text,
            "annotator": f"{MARK} judge",
            "member": text,
        }
        for text in STRINGS.values()
        for n in range(4)
    ]
    (tmp_path / "judged.json").write_text(json.dumps(judged))
    (tmp_path / "wrong.json").write_text(json.dumps([{MARK: 1, "instruction": "x"}]))
    pair = {"instruction": "i", "output_1": "a", "output_2": "b"}
    (tmp_path / "label.json").write_text(json.dumps([{**pair, "preference": MARK}]))
    outputs = [f"s{MARK}.json", "--reference", f"a{MARK}.json", "--judge", "offline"]
    light = ["--recipe", "light.yaml"]
    commands = {
        "a plan": ["evaluate", *outputs, "--dry-run"],
        "an estimate": ["cost", *outputs],
        "an evaluation": ["evaluate", *outputs],
        "a board": ["leaderboard", "--annotations", "judged.json"],
        "annotators": ["annotators", "compare", "judged.json", "--by-member", "--html", "annotators.html"],
        "a missing file": ["evaluate", f"none{MARK}.json", "--reference", f"a{MARK}.json"],
        "another shape": ["fit-reward", "--preferences", "wrong.json", *light],
        "another label": ["fit-reward", "--preferences", "label.json", *light],
        "another setting": ["run", *light, "--set", f"{MARK}=1"],
        "artifacts": ["artifacts", "list"],
        "a ledger": ["ledger"],
    }
    for surface, command in commands.items():
        said = afarm(*command)
        assert "Traceback" not in said.err
        _TEXTS[surface] = said.out + said.err
    for form in ("html", "markdown", "csv"):
        board = afarm("leaderboard", "--annotations", "judged.json", "--output", f"board.{form}", "--format", form)
        assert board.code == 0, board.err
        _TEXTS[f"board.{form}"] = (tmp_path / f"board.{form}").read_text()
    _TEXTS["annotators.html"] = (tmp_path / "annotators.html").read_text()
    _TEXTS["report.html"] = next((tmp_path / "afarm-runs" / "runs").glob("*/report.html")).read_text()
    return _TEXTS


SURFACES = (
    *("a plan", "an estimate", "an evaluation", "a board", "annotators", "a missing file", "another shape"),
    *("another label", "another setting", "artifacts", "a ledger"),
    *("board.html", "board.markdown", "board.csv", "annotators.html", "report.html"),
)


@pytest.mark.parametrize("surface", SURFACES)
def test_what_commands_a_terminal_or_a_browser_is_shown_as_text(surface: str, texts: dict[str, str]) -> None:
    text = texts[surface]
    assert not CONTROLS.search(text)
    if surface.endswith(".html"):
        assert not re.search(r"<script>alert|<img src=x|<[^>]* onmouseover='alert", text)
    elif surface in ("a plan", "an evaluation", "a missing file", "another shape", "another label", "another setting"):
        assert r"[bold]\x1b[31m\u202e<script>" in text
    if surface in ("a board", "annotators"):
        for shown in ("llama[/INST]", "[bold]x[/bold] [link=http://x]y[/link]", r"half \ud83d", "{{ 7*7 }}{% raw %}"):
            assert shown in text
        assert not any(line.startswith(("# d", "```", "- e")) for line in text.splitlines()), "a name is on one line"
    if surface == "board.markdown":
        assert not any(line.startswith(("# d", "```", "- e")) for line in text.splitlines())
    if surface == "board.csv":
        cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
        assert not any(cell.startswith(("=", "@")) for cell in cells)
        assert any(cell.startswith("'=") for cell in cells)


def test_a_console_shows_what_is_no_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    table = Table(NAME, title=NAME)
    table.add_row(NAME)
    console_on(width=100).print(table)
    console_on(width=100).print(NAME)
    shown = capsys.readouterr().out
    assert "llama[/INST]" in shown
    assert harmless(shown)


def test_words_between_colons_are_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    console_on(width=100).print("launcher local:x: write how many")
    assert capsys.readouterr().out == "launcher local:x: write how many\n"


def test_controls_are_shown_as_text_and_letters_are_left_alone() -> None:
    text = "naïve 漢字 العربية 👩‍👩‍👧\tя\n"
    assert visible(text) == text
    assert visible("\x00\x07\x1b\x7f\x9b\u200f\u2066") == r"\x00\x07\x1b\x7f\x9b\u200f\u2066"
    assert one_line("a\x1b[2J\r\nb") == r"a\x1b[2J b"
