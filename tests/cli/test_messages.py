"""Messages of commands name what was called, in one line, with the command that goes on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from said import Afarm

LIGHT = ["--recipe", "light.yaml"]
OPENAI = ["--judge", "openai:gpt-unheard-of"]


def test_a_plan_is_titled_by_the_step_that_it_is_of(afarm: Afarm) -> None:
    for step in ("sample", "annotate", "fit-reward"):
        assert f"light.yaml · {step} (" in afarm(step, *LIGHT, "--dry-run").out
    assert afarm("annotate", *LIGHT, "--dry-run", "--json").json["step"] == "annotate"
    assert "light.yaml · nudge (" in afarm("train", *LIGHT, "--dry-run").out


def test_the_ledger_books_a_step_and_a_search_under_their_own_names(afarm: Afarm) -> None:
    assert afarm("annotate", *LIGHT).code == 0
    (account,) = afarm("ledger", "--json").json["by"]["run"]
    assert account["name"].startswith("light-annotate-pool-")
    search = ("tune", *LIGHT, "--methods", "nudge", "--trials", "2", "--space", "nudge.skill=0.2,0.9")
    assert afarm(*search).code == 0
    names = [row["name"] for row in afarm("ledger", "--json").json["by"]["run"]]
    assert sum(name.startswith("tune-light-") for name in names) == 1
    assert not [name for name in names if name.startswith(("compare-", "light-nudge-"))]


def test_a_judge_that_lacks_something_is_told_once_for_all_annotators_that_ask_for_it(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    said = afarm("run", *LIGHT, "--judge", "openai:gpt-5.4", "--dry-run")
    assert said.code == 1
    assert said.err.count("takes no logit_bias") == 1
    assert "chatgpt_1, chatgpt_2, chatgpt_3, chatgpt_4, davinci003_1 and gpt4_4 ask for" in said.err
    assert "--allow-degraded" in said.err


def test_an_unknown_price_is_no_price_of_nothing(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    said = afarm("cost", *LIGHT, *OPENAI)
    (line,) = [line for line in said.out.splitlines() if line.startswith("About")]
    assert "$" not in line
    assert "give --price openai:gpt-unheard-of=INPUT/OUTPUT" in line
    known = afarm("cost", *LIGHT, "--judge", "strong=openai:gpt-unheard-of").out
    (line,) = [line for line in known.splitlines() if line.startswith("About")]
    assert "of unknown price" in line
    assert "expected, at most $" in line


def test_export_without_a_run_says_which_there_are(afarm: Afarm) -> None:
    none = afarm("export")
    assert none.code == 1
    assert "`afarm run` makes one" in none.err
    made = afarm("run", *LIGHT, "--json").json["name"]
    named = afarm("export")
    assert "afarm export RUN DIR" in named.err
    assert made in named.err
    assert "RUN DIR" in afarm("export", made).err
    assert "no run 'policy'" in afarm("export", "policy").err


def test_the_module_prints_the_completion_of_the_command(tmp_path: Path) -> None:
    # The shell is told and not looked for: these tests may stand under any, CI's under the plain `sh` of make.
    said = subprocess.run(
        [sys.executable, "-m", "afarm", "--show-completion", "bash"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert "_AFARM_COMPLETE=complete_bash" in said.stdout
    assert "complete -o default -F _afarm_completion afarm" in said.stdout
    assert subprocess.run(["bash", "-n"], input=said.stdout, text=True, capture_output=True).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--seed", "x"], "'--seed': must be a whole number"),
        (["run", "--budget", "x"], "'--budget': must be a number"),
        (["run", "--label-noise", "2"], "'--label-noise': must be at most 0.5"),
        (["tune", "--trials", "1"], "'--trials': must be at least 2"),
        (["leaderboard", "--format", "x"], "'--format': 'x' is not one of"),
        (["diff", "one"], "Missing argument 'second'."),
        (["artifacts", "why"], "Missing argument 'key'."),
        (["run", "toy"], "--recipe toy or --dataset toy"),
        (["run", "--set", "lr=3"], "Name its section, such as bradley_terry.learning_rate: "),
        (["report", "none"], "`afarm run` makes one"),
        (["leaderboard"], "`afarm run` makes one"),
        (["artifacts", "list"], "No artifacts in afarm-runs"),
    ],
)
def test_a_first_error_is_in_plain_words(afarm: Afarm, arguments: list[str], message: str) -> None:
    Path("afarm-runs/runs").mkdir(parents=True)
    said = afarm(*arguments)
    assert message in " ".join(said.err.split())
    assert "Input should" not in said.err


def test_an_unknown_annotator_is_one_problem_whatever_else_is_asked_of_it(afarm: Afarm) -> None:
    said = afarm("run", *LIGHT, "--annotator", "crowdd", "--votes", "3")
    assert "Did you mean 'crowd'" in said.err
    assert "problems" not in said.err


def test_groups_say_what_their_commands_do_in_whole_sentences(afarm: Afarm) -> None:
    said = " ".join(afarm("artifacts", "--help").out.split())
    assert "Show what an artifact was made from, and what sets it apart from its nearest relative." in said


@pytest.mark.parametrize(
    ("found", "training", "slurm"),
    [
        (None, "pip install 'afarm[train]'", "pip install afarm-slurm"),
        (
            '{"url": "file:///wheels/afarm.whl", "archive_info": {}}',
            "pip install 'afarm[train]'",
            "install afarm-slurm",
        ),
        (
            '{"url": "file://CLONE/my%20clone", "dir_info": {"editable": true}}',
            "pip install -e 'CLONE/my clone[train]'",
            "pip install 'CLONE/my clone/plugins-contrib/afarm-slurm'",
        ),
    ],
)
def test_what_installs_a_part_of_afarm_names_the_clone_that_it_runs_from(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None, training: str, slurm: str
) -> None:
    (tmp_path / "my clone/plugins-contrib/afarm-slurm").mkdir(parents=True)
    training, slurm = (text.replace("CLONE", str(tmp_path)) for text in (training, slurm))
    kind, find_spec = type(importlib.metadata.distribution("afarm")), importlib.util.find_spec
    read_text = kind.read_text

    def read(self: importlib.metadata.Distribution, name: str) -> str | None:
        return found and found.replace("CLONE", str(tmp_path)) if name == "direct_url.json" else read_text(self, name)

    monkeypatch.setattr(kind, "read_text", read)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "accelerate" else find_spec(name))
    assert training in afarm("run", *LIGHT, "--accelerate-config", "two_processes").err
    assert slurm in afarm("run", *LIGHT, "--launcher", "slurm:gpu").err
    assert "pip install afarm-concise" in afarm("run", *LIGHT, "--annotator", "afarm-concise/x").err, "not in the clone"


@pytest.mark.parametrize("option", ["--annotator", "--method", "--dataset", "--reward-model", "--set=afarm-concise/x"])
def test_a_package_that_is_not_installed_is_named_with_its_command(afarm: Afarm, option: str) -> None:
    given = [f"{option}.y=1"] if "=" in option else [option, "afarm-concise/x"]
    said = afarm("run", *LIGHT, *given)
    assert (
        "'afarm-concise' is not installed, or brings no such name; install it with: pip install afarm-concise."
        in said.err
    )
    assert "Known:" not in said.err


def test_a_package_that_lacks_a_name_is_told_from_one_that_is_not_installed(afarm: Afarm) -> None:
    assert "'light' is not installed, or brings no such name" in afarm("run", *LIGHT, "--annotator", "light/x").err
    said = afarm("run", *LIGHT, "--dataset", "some-owner/data")
    assert "'some-owner' is not installed, or brings no such name." in said.err
    assert "pip install" not in said.err, "it may be an owner of data sets on the Hub"


@pytest.mark.parametrize(
    ("arguments", "next_step"),
    [
        (["leaderboard", "nowhere"], "a directory of runs, which `afarm run` and `afarm evaluate` make"),
        (["drift", "nowhere", *LIGHT], "`afarm run` makes one"),
        (["judge", "fit", "nowhere", "--out", "fitted"], "name one that is there"),
        (["artifacts", "why", "abc"], "`afarm artifacts list --output-dir afarm-runs`"),
        (["ledger-copy", "foo://x"], "name another with --output-dir or --ledger"),
    ],
)
def test_what_is_not_there_is_said_with_the_next_step(afarm: Afarm, arguments: list[str], next_step: str) -> None:
    Path("afarm-runs/runs").mkdir(parents=True)
    assert next_step in " ".join(afarm(*arguments).err.split())


@pytest.mark.parametrize(
    ("model", "judge"),
    [
        ("gpt-4o", "openai:gpt-4o"),
        ("openai/gpt-4o", "openai:gpt-4o"),
        ("claude-opus-5-5", "anthropic:claude-opus-5-5"),
        ("gemini-2.5-flash", "gemini:gemini-2.5-flash"),
        ("ministral-8b-latest", "mistral:ministral-8b-latest"),
        ("Qwen/Qwen3-8B", "local:Qwen/Qwen3-8B or openrouter:Qwen/Qwen3-8B"),
    ],
)
def test_a_models_name_alone_as_the_judge_is_told_how_judges_are_written(afarm: Afarm, model: str, judge: str) -> None:
    said = afarm("run", *LIGHT, "--judge", model, "--dry-run")
    assert said.code == 1
    assert f"unknown judge {model!r}. It is a model's name" in said.err
    assert said.err.rstrip().endswith(f"as in --judge {judge}.")


def test_what_is_next_names_what_the_run_made(afarm: Afarm) -> None:
    light = ["run", "--recipe", "light.yaml", "--set"]
    for asked, said in [
        (["evaluate.evaluators=[win_rate]", "--method", "base"], "`afarm leaderboard` ranks what was evaluated"),
        (["evaluate.evaluators=[win_rate]", "--method", "nudge"], "`afarm compare` ranks methods on"),
    ]:
        told = afarm(*light, *asked)
        assert told.code == 0, told.err
        next_line = told.out.splitlines()[-1]
        assert next_line.startswith(f"Next:   {said}"), next_line
        made = {line.split()[1] for line in told.err.splitlines() if line.startswith("✓")}
        assert ("samples" in next_line, "reward model" in next_line) == ("sample" in made, "fit-reward" in made)
