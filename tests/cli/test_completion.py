"""Completion as bash asks for it: with a real bash, through the script that afarm gives it, and as that script asks."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from afarm.cli import main

BIN = Path(sys.executable).parent

ASK = """
eval "$(_AFARM_COMPLETE=source_bash afarm)"
ask() {
    COMP_WORDS=(afarm "$@"); COMP_CWORD=$#; COMPREPLY=()
    $(complete -p afarm | sed 's/.*-F \\([^ ]*\\).*/\\1/') afarm
    printf '%s ' "${COMPREPLY[@]}"; echo
}
"""

Complete = Callable[..., list[list[str]]]
"""The candidates for each line, whose last word is being typed."""


def completed_by_bash(directory: Path, *lines: list[str]) -> list[list[str]]:
    """The candidates as bash has them. Fails if anything is said on stderr."""
    script = ASK + "\n".join("ask " + shlex.join(words) for words in lines)
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, cwd=directory
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture
def completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """Asks as the script does, in this process and in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # which a command that completes takes away
    monkeypatch.setenv("_AFARM_COMPLETE", "complete_bash")

    def ask(*lines: list[str]) -> list[list[str]]:
        found = []
        for words in lines:
            monkeypatch.setenv("COMP_WORDS", "\n".join(["afarm", *words]))
            monkeypatch.setenv("COMP_CWORD", str(len(words)))
            with pytest.raises(SystemExit) as ended:
                main([])
            assert ended.value.code == 0
            found.append(capsys.readouterr().out.split())
        return found

    return ask


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_through_the_script_that_it_is_given(tmp_path: Path) -> None:
    commands, some, file = completed_by_bash(tmp_path, ["d"], ["compare", "--methods", "ppo,d"], ["run", "--data", "m"])
    assert commands == ["drift", "diff", "dpo"]
    assert some == ["ppo,dpo"]
    assert file == []  # the script has bash's own completion for that: complete -o default


def test_commands_methods_and_the_options_of_each_are_completed(completed: Complete) -> None:
    commands, options, method, some = completed(
        ["d"], ["dpo", "--"], ["run", "--method", "p"], ["compare", "--methods", "ppo,d"]
    )
    assert commands == ["drift", "diff", "dpo"]
    assert "--preferences" in options
    assert not {"--method", "--reward-model"} & {*options}
    assert method == ["ppo"]
    assert some == ["ppo,dpo"]


def test_names_of_components_and_recipes_are_completed_and_files_left_to_bash(completed: Complete) -> None:
    annotator, judge, recipe, section, file = completed(
        ["run", "--annotator", "davinci"],
        ["cost", "--judge", "anthr"],
        ["run", "--recipe", "paper"],
        ["settings", "qua"],
        ["run", "--data", "m"],
    )
    assert annotator == [f"davinci003_{n}" for n in range(1, 5)]
    assert judge == ["anthropic:"]
    assert recipe == ["paper", "paper-code", "paper-lora"]
    assert section == ["quark"]
    assert file == []


def test_settings_are_completed_section_by_section_without_a_blank_after_half_a_word(completed: Complete) -> None:
    sections, only, setting, of_run = completed(
        ["run", "--set", ""],
        ["run", "--set", "qua"],
        ["run", "--set", "ppo.learning"],
        ["run", "--set", "annotate."],
    )
    assert {"ppo.", "dpo.", "openai.", "annotate.", "seed="} <= {*sections}
    assert len(only) > 5
    assert all(word.startswith("quark.") and word.endswith("=") for word in only)
    assert setting == ["ppo.learning_rate=", "ppo.learning_rate=1e-05"]
    assert of_run == ["annotate.annotator=", "annotate.label_noise="]


def test_runs_and_artifacts_of_the_output_directory_are_completed(completed: Complete, tmp_path: Path) -> None:
    for name in ("toy-ppo", "toy-dpo"):
        (tmp_path / "mine" / "runs" / name).mkdir(parents=True)
        (tmp_path / "mine" / "runs" / name / "run.json").write_text("{}")
    (tmp_path / "mine" / "artifacts" / "train" / "1a2b3c").mkdir(parents=True)
    (tmp_path / "mine" / "artifacts" / "train" / "1a2b3c" / "artifact.json").write_text("{}")
    (tmp_path / "broken").write_text("no directory")
    runs, artifacts, nowhere, broken = completed(
        ["diff", "--output-dir", "mine", "toy"],
        ["artifacts", "why", "--output-dir", "mine", ""],
        ["report", ""],
        ["artifacts", "why", "--output-dir", "broken", ""],
    )
    assert runs == ["toy-dpo", "toy-ppo"]
    assert artifacts == ["1a2b3c"]
    assert nowhere == broken == []
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "broken"}
