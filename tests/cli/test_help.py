"""Help pages: grouped, in plain words, with defaults and examples that parse, and each command's own options only."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from afarm.cli import make_app
from afarm.cli.help_pages import EXAMPLES, GROUPS, PANELS

APP = typer.main.get_command(make_app())


def commands(group: object = APP, above: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))
        else:
            yield " ".join((*above, name)), command


COMMANDS = dict(commands())


def page(name: str) -> str:
    context = None
    parent, *rest = [APP, *name.split()]
    context = parent.make_context("afarm", [], resilient_parsing=True)  # type: ignore[attr-defined]
    for word in rest:
        parent = parent.get_command(context, word)  # type: ignore[attr-defined]
        context = type(context)(parent, info_name=word, parent=context, terminal_width=80)
    return str(parent.get_help(context))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_is_in_plain_words_with_two_examples(name: str) -> None:
    text = page(name)
    for leaked in ("[stray]", "STRAY", "<str", "<int", "<path", "<float", "list[", "[default: ("):
        assert leaked not in text, text
    examples = text.partition("Examples:")[2].split("\n\n")[0].split("\n")
    assert [line.strip().startswith(f"afarm {name}") for line in examples if line.strip()] == [True, True]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_parse(name: str) -> None:
    for example in EXAMPLES[name]:
        COMMANDS[name].make_context(name, shlex.split(example))  # type: ignore[attr-defined]


def test_options_stand_in_panels_with_their_defaults() -> None:
    text = page("run")
    titles = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[-6:] == [*PANELS, "Examples"]
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
    assert [title for title in GROUPS if f"{title}:" in text] == list(GROUPS)
    assert "..." not in text.replace("[ARGS]...", "")
    assert {name for names in GROUPS.values() for name in names} >= {name.split()[0] for name in COMMANDS}


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    asked = {"_AFARM_COMPLETE": "complete_bash", "COMP_WORDS": "afarm eval", "COMP_CWORD": "1"}
    afarm = Path(sys.executable).with_name("afarm")
    done = subprocess.run([afarm], env=os.environ | asked, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["evaluate"]
