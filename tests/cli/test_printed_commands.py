"""The commands that README, the guides and the notes print, as printed.

Every one is parsed by the command line's own parser, so that no option or command in them is unknown. Those with a
judge that costs money are looked at with --dry-run: settings, prices, what the judge takes and the budget. One is run
whole against a local server in the vendor's place. That whole experiments run is tested elsewhere.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from places import DOCS, ROOT
from said import Afarm
from wire_judges import write_two_systems
from wire_server import WireServer

from afarm.cli import make_app
from afarm.core.registry import ELSEWHERE

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("start/*.md")), *sorted(DOCS.glob("guides/*.md"))]
PAGES += [*sorted(DOCS.glob("methods/*.md")), *sorted(DOCS.glob("notes/*.md"))]
MIGRATION = DOCS / "guides" / "migrate.md"
"""Its commands stand in tables, beside those of other software; RUN is short for options that the page names."""
PAID = ("openai:", "anthropic:")


def commands_of(page: Path) -> list[str]:
    """The lines of code blocks that call afarm, with what follows a backslash, without comments."""
    text = re.sub(r" *\\\n +", " ", page.read_text(encoding="utf-8"))
    if page == MIGRATION:
        return [quoted.replace("RUN", "--recipe paper") for quoted in re.findall(r"`(afarm \w[^`]*)`", text)]
    return [re.sub(r"\s{2,}#.*| # .*", "", line) for line in re.findall(r"^ {4,6}(afarm .*)$", text, re.M)]


PRINTED = [(page, command) for page in PAGES for command in commands_of(page) if "…" not in command]
NOT_INSTALLED = re.compile(rf"--method ({'|'.join([*ELSEWHERE, 'judged_imitation'])}) ")
PRICED = [
    command
    for _, command in PRINTED
    if any(name in command for name in PAID) and command.split()[1] in ("run", "cost") and "--model " not in command
    if not NOT_INSTALLED.search(command)
]


def test_the_pages_print_commands() -> None:
    assert len(PRINTED) > 60
    assert len(PRICED) > 8


@pytest.fixture(scope="module")
def command_line() -> Any:
    """The command line's parser, which looks for plugins once."""
    return typer.main.get_command(make_app())


OF_PACKAGES = re.compile(
    r"^afarm (label|regressions|traces|data|inspect|interchange|alpaca-eval|judge (bench|card|rubric)|jury) | --people "
)
"""Commands and options that packages of `plugins-contrib/` bring: their own tests run them."""


@pytest.mark.parametrize("command", sorted({command for _, command in PRINTED if not OF_PACKAGES.search(command)}))
def test_a_printed_command_is_one_that_the_command_line_knows(command: str, command_line: Any) -> None:
    words = [word for word in shlex.split(command)[1:] if not re.fullmatch(r"[<>|$].*", word)]
    known = command_line
    while hasattr(known, "commands"):
        if not words or words[0].startswith("-"):
            return  # of the group itself, such as `afarm --help`
        context = known.make_context("afarm", ["--help"], resilient_parsing=True)
        _, known, words = known.resolve_command(context, words)  # a method's name is a command as well
    if "--help" not in words:
        known.make_context("afarm", words or ["--json"] if known.no_args_is_help else words)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, "planted")


@pytest.mark.parametrize("command", sorted(set(PRICED)))
def test_a_printed_plan_with_a_paid_judge_can_be_made_and_fits_its_budget(afarm: Afarm, command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if word != "--dry-run"]
    if files := [word for word in words if word.endswith(".json")]:
        for name in files:
            rows = [{"instruction": f"Question {i}?", "output": f"{name} {i}", "generator": name} for i in range(20)]
            Path(name).write_text(json.dumps(rows))
    else:
        words += ["--recipe", "light.yaml"]
    asked = afarm(*words, "--json", *(["--dry-run"] if words[0] == "run" else []))
    assert asked.code == 0, asked.err
    assert asked.json["over_budget"] == ""
    assert sum(judge["calls"] for judge in asked.json["judges"]) > 0


def test_the_priced_example_of_the_readme_fits_its_budget_as_it_is_printed(afarm: Afarm) -> None:
    [command] = [c for c in commands_of(ROOT / "README.md") if "--budget 5.00" in c]
    plan = afarm(*shlex.split(command)[1:], "--dry-run", "--json").json
    assert plan["over_budget"] == ""
    assert 0 < sum(judge["most_dollars"] for judge in plan["judges"]) < 5.0


def test_a_printed_paid_command_runs_against_a_server_in_the_vendors_place(afarm: Afarm) -> None:
    """The guide on comparing files, with a budget that is too small, as printed, and again: that buys nothing."""
    [command] = [c for c in commands_of(DOCS / "guides/compare-files.md") if "--budget 2" in c]
    write_two_systems(8)
    with WireServer() as server:
        one_each = ["--annotator", "gpt4_4"]
        words = [*shlex.split(command)[1:], *one_each, "--set", f"openai.base_url={server.openai_url}"]
        poor = afarm(*(word if word != "2" else "0.0001" for word in words))
        assert poor.code == 1
        assert poor.err.startswith("The plan does not fit the budget of $0.0001")
        assert "% of the pairs." in poor.err
        assert server.asked == [], "it is said before anything is bought"
        for _ in range(2):
            done = afarm(*words)
            assert done.code == 0, done.err
            assert len(server.asked) == 8
