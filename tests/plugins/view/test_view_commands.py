"""The commands behind what pages show: whole, quoted, about all that is shown, and understood by the command line."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from afarm.cli import main, make_app
from afarm_plugins.view.app import View

IdOf = Callable[[View, str], str]
WriteRun = Callable[..., Path]
AFARM = typer.main.get_command(make_app())


@pytest.fixture
def hostile(made: Path, tmp_path: Path) -> Path:
    """The two runs in a directory that a shell would take apart."""
    return shutil.copytree(made, tmp_path / "my dir; echo 'x'")


def commands_in(data: Any) -> Iterator[str]:
    """Yield each command in the data of a page but those that records hold, line by line."""
    if isinstance(data, dict):
        for name, value in data.items():
            if name == "command" and isinstance(value, str):
                yield from value.splitlines()
            elif name == "commands":
                yield from (line for key, one in value.items() if key != "result" for line in one.splitlines())
            else:
                yield from commands_in(value)
    elif isinstance(data, list):
        for one in data:
            yield from commands_in(one)


def understood(line: str) -> list[str]:
    """Split a command as a shell does, and have the command line read it."""
    words = shlex.split(line)
    assert words.pop(0) == "afarm", line
    command, context, rest = AFARM, None, [*words]
    while hasattr(command, "get_command"):
        context = command.make_context("afarm", [], parent=context, resilient_parsing=True)
        command = command.get_command(context, rest.pop(0))
        assert command is not None, line
    command.make_context("afarm", rest, parent=context)
    return words


def all_data(view: View, id_of: IdOf) -> dict[str, Any]:
    nudge, direct = id_of(view, "nudge"), id_of(view, "direct")
    details = view.details(nudge)
    return {
        "runs": view.table(),
        "run": {"commands": details["commands"]},
        "outputs": view.outputs(nudge, {}),
        "pair": view.pair(nudge, 0),
        "compare": view.comparison([nudge, direct]),
        "ledger": view.ledgers(),
        "artifacts": view.artifacts(),
        "costs": view.costs(),
        "annotators": view.annotators(),
        "annotators of a run": view.list_annotators(nudge, "training"),
    }


def test_every_command_is_quoted_and_understood(hostile: Path, id_of: IdOf) -> None:
    for page, data in all_data(View([hostile]), id_of).items():
        lines = list(commands_in(data))
        assert lines, page
        for line in lines:
            assert any(str(hostile) in word for word in understood(line)), line


def test_a_ledger_that_was_named_is_named_by_the_commands_that_read_it(hostile: Path, id_of: IdOf) -> None:
    ledger = shutil.copy(hostile / "ledger.sqlite", hostile.parent / "their $ledger")
    data = all_data(View([hostile], ledger), id_of)
    readers = ("ledger", "annotators", "drift", "study")
    for line in [line for one in data.values() for line in commands_in(one)]:
        words = understood(line)
        named = words[words.index("--ledger") + 1] if "--ledger" in words else ""
        assert named == (str(ledger) if words[0] in readers else ""), line
    assert shlex.split(data["costs"]["runs"][0]["places"]) == ["--output-dir", str(hostile), "--ledger", str(ledger)]


def test_a_password_is_in_no_command(hostile: Path) -> None:
    view = View([hostile], "postgresql://me:secret@127.0.0.1:1/x")
    costs, drift = view.costs(), view.annotators()["drift"]
    assert "--ledger" in costs["command"]
    assert "secret" not in json.dumps([costs, drift])


def test_the_answers_of_a_pair_are_exported_from_the_ledger_that_it_was_read_from(
    hostile: Path, id_of: IdOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    view = View([hostile])
    pair = view.pair(id_of(view, "nudge"), 0)
    with pytest.raises(SystemExit, match="0"):
        main(understood(pair["command"]))
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert {vote["text"] for vote in pair["votes"]} <= {answer["text"] for answer in answers}


def test_compared_runs_are_all_named(write_run: WriteRun, tmp_path: Path) -> None:
    names = ["one", "two", "three"]
    places = [write_run(name, {"results": []}, output_dir=tmp_path / f"dir {name}") for name in names]
    compared = View([tmp_path / f"dir {name}" for name in names]).comparison(names)
    assert [understood(line) for line in compared["command"].splitlines()] == [
        ["diff", str(places[0]), str(place)] for place in places[1:]
    ]
    reports = [understood(line) for line in compared["commands"]["curves"].splitlines()]
    assert reports == [
        ["report", name, "--output-dir", str(place.parents[1])] for name, place in zip(names, places, strict=True)
    ]
    flips = compared["commands"]["outputs"].splitlines()
    assert [understood(line)[:3] for line in flips] == [["diff", str(places[0]), str(place)] for place in places[1:]]


def test_costs_are_those_of_all_directories(write_run: WriteRun, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("first dir", "second dir")]
    for place in places:
        write_run("run", {"stages": [], "results": [], "headline": {}}, output_dir=place)
    costs = View(places).costs()
    named = [word for place in places for word in ("--runs", str(place))]
    assert understood(costs["command"]) == ["study", "costs", *named, "--output-dir", str(places[0])]
    assert sorted(shlex.split(run["places"])[1] for run in costs["runs"]) == sorted(map(str, places))
    assert understood(View(places[:1]).costs()["command"]) == ["study", "costs", "--output-dir", str(places[0])]


def test_what_was_judged_otherwise_is_on_no_frontier(write_run: WriteRun, tmp_path: Path) -> None:
    def record(method: str | None, judge: str, reference: str) -> dict[str, Any]:
        protocol = {"judges": {"*": judge}, "reference": reference}
        return {"method": method, "stages": [], "results": [{"metrics": {"win_rate": 50.0}, "protocol": protocol}]}

    write_run("ppo", record("ppo", "gpt", "davinci"))
    write_run("dpo", record("dpo", "gpt", "davinci"))
    write_run("other", record("dpo", "claude", "davinci"))
    write_run("another", record("dpo", "gpt", "sft"))
    write_run("files", record(None, "gpt", "davinci"))
    write_run("unjudged", {**record("base", "gpt", ""), "results": []})
    runs = View([tmp_path / "hand"]).costs()["runs"]
    assert {run["name"] for run in runs if run["is_compared"]} == {"ppo", "dpo", "unjudged"}
    assert len(runs) == 6


def test_boards_studies_and_curves_show_the_command_that_made_them(tmp_path: Path) -> None:
    (tmp_path / "boards").mkdir()
    for name, content in (("x.json", '{"command": "afarm compare --methods ppo"}'), ("x.md", "#"), ("y.json", "[")):
        (tmp_path / "boards" / name).write_text(content)
    for name, files in {
        "kl-1": {"study.json": '{"command": "afarm study kl"}', "report.md": "# Study kl\n\n`afarm study k…`\n"},
        "best-of-n-1": {"report.md": "# Study\n\n`` afarm best-of-n --recipe 'a`b' ``\n", "curve.json": '[{"n": 1}]'},
        "old": {"report.md": "# Study\n\n`afarm study long …`\n"},
    }.items():
        directory = tmp_path / "studies" / name
        directory.mkdir(parents=True)
        for file, content in files.items():
            (directory / file).write_text(content)
    view = View([tmp_path])
    shown = view.documents()
    assert {row["name"]: row["command"] for row in shown["boards"]} == {"x": "afarm compare --methods ppo", "y": ""}
    best = "afarm best-of-n --recipe 'a`b'"
    studies = {row["name"]: row["command"] for row in shown["studies"]}
    assert studies == {"kl-1": "afarm study kl", "best-of-n-1": best, "old": ""}
    assert view.costs()["curves"][0]["command"] == best
