"""Help pages: grouped, in plain words, with defaults and examples that parse, and each command's own options only."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from afarm.cli import main, make_app
from afarm.cli.command_list import BY_PLUGINS, OWN
from afarm.cli.command_list import COMMANDS as LISTED
from afarm.core.plugins import discover

PANELS = ["Method and model", "Judges", "Data", "Money and speed", "Output"]

APP = typer.main.get_command(make_app())


def commands(group: Any = APP, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    context = group.make_context("afarm", [], resilient_parsing=True)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))
        else:
            yield " ".join((*above, name)), command


COMMANDS = dict(commands())


def page(name: str, width: int = 80) -> str:
    command: Any = APP
    context = command.make_context("afarm", [], resilient_parsing=True)
    for word in name.split():
        command = command.get_command(context, word)
        context = type(context)(command, info_name=word, parent=context, terminal_width=width)
    return str(command.get_help(context))


def examples_on(text: str) -> list[str]:
    return [line.strip() for line in text.partition("Examples:")[2].split("\n\n")[0].splitlines() if line.strip()]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_is_in_plain_words_with_two_examples(name: str) -> None:
    text = page(name)
    for leaked in ("[stray]", "STRAY", "<str", "<int", "<path", "<float", "list[", "[default: (", "x>=", "<=x"):
        assert leaked not in text, text
    assert [line.startswith(f"afarm {name}") for line in examples_on(text)] == [True, True]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("width", [80, 120])
def test_a_page_fits_its_terminal_and_uses_it(name: str, width: int) -> None:
    lines = page(name, width).splitlines()
    assert max(map(len, lines)) <= width


def test_a_wide_terminal_has_wide_pages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert 90 < max(map(len, capsys.readouterr().out.splitlines())) <= 110


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_parse(name: str) -> None:
    for example in examples_on(page(name)):
        COMMANDS[name].make_context(name, shlex.split(example.removeprefix(f"afarm {name}")))


def test_examples_name_what_there_is() -> None:
    registry = discover().registry
    for name, _ in commands():
        for example in examples_on(page(name)):
            for option, value in pairwise(shlex.split(example)):
                if option in ("--annotator", "--method", "--judge"):
                    registry.get(f"{option[2:]}s", value.rpartition("=")[2].partition(":")[0])


def test_options_stand_in_panels_with_their_defaults() -> None:
    text = page("run")
    titles = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options", *PANELS]
    assert " ".join(text.split()).count("[default: the recipe's]") >= 5


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("sft", ["--judge", "--votes", "--budget", "--batch-api", "--reward-model", "--method"]),
        ("sample", ["--judge", "--votes", "--reward-model"]),
        ("annotate", ["--reward-model", "--method"]),
        ("fit-reward", ["--method"]),
        ("compare", ["--method"]),
    ],
)
def test_a_command_has_its_own_options_only(name: str, lacks: list[str]) -> None:
    options = {word for line in page(name).splitlines() for word in line.split() if word.startswith("--")}
    assert options & set(lacks) == set()
    assert "--output-dir" in options


def test_commands_are_grouped_and_told_whole() -> None:
    text = page("")
    titles = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options", *LISTED, BY_PLUGINS]
    assert (titles[1], titles[-1]) == ("The pipeline", BY_PLUGINS)
    assert "..." not in text.replace("[ARGS]...", "")
    assert {line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2:3].islower()} >= {
        name.split()[0] for name in COMMANDS
    }


@pytest.mark.parametrize("name", OWN)
def test_a_command_is_listed_with_the_summary_of_its_own_page(name: str) -> None:
    command = APP.get_command(APP.make_context("afarm", [], resilient_parsing=True), name)
    assert OWN[name].summary == command.get_short_help_str(200)


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    asked = {"_AFARM_COMPLETE": "complete_bash", "COMP_WORDS": "afarm eval", "COMP_CWORD": "1"}
    afarm = Path(sys.executable).with_name("afarm")
    done = subprocess.run([afarm], env=os.environ | asked, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["evaluate"]


@pytest.mark.parametrize(
    ("method", "has", "lacks"),
    [
        ("dpo", ["--annotator", "--preferences"], ["--method", "--reward-model", "--eval-set"]),
        ("ppo", ["--annotator", "--reward-model", "--judge"], ["--method", "--eval-set"]),
        ("sft_all", ["--model", "--set"], ["--method", "--judge", "--reward-model", "--preferences", "--budget"]),
    ],
)
def test_a_method_has_a_page_of_its_own_with_what_it_needs(method: str, has: list[str], lacks: list[str]) -> None:
    text = page(method)
    options = {word for line in text.splitlines() for word in line.split() if word.startswith("--")}
    assert (options & {*has, *lacks}) == {*has}
    assert f"afarm settings {method}" in text
    examples = examples_on(text)
    assert [line.partition(" --")[0] for line in examples] == [f"afarm {method}"] * 2
    command = APP.get_command(APP.make_context("afarm", [], resilient_parsing=True), method)
    for line in examples:
        command.make_context(method, shlex.split(line)[2:])


@pytest.mark.parametrize(("typed", "meant"), [("dp", "'dpo'"), ("evalute", "'evaluate'"), ("best_of", "'best_of_n'")])
def test_a_misspelt_command_is_told_the_nearest_of_commands_and_methods(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([typed])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert f"No such command {typed!r}. Did you mean " in said
    assert meant in said
