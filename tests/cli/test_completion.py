"""Completion as bash asks for it: through the script that afarm gives the shell, with a real bash."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent

ASK = """
eval "$(_AFARM_COMPLETE=source_bash afarm)"
ask() {
    COMP_WORDS=(afarm "$@"); COMP_CWORD=$#; COMPREPLY=()
    $(complete -p afarm | sed 's/.*-F \\([^ ]*\\).*/\\1/') afarm
    printf '%s ' "${COMPREPLY[@]}"; echo
}
"""


def completed(directory: Path, *lines: list[str]) -> list[list[str]]:
    """The candidates for each line, whose last word is being typed. Fails if anything is said on stderr."""
    script = ASK + "\n".join("ask " + shlex.join(words) for words in lines)
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, cwd=directory
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def test_bash_completes_commands_methods_and_the_options_of_each(tmp_path: Path) -> None:
    commands, options, method, some = completed(
        tmp_path, ["d"], ["dpo", "--"], ["run", "--method", "p"], ["compare", "--methods", "ppo,d"]
    )
    assert commands == ["diff", "drift", "dpo"]
    assert "--preferences" in options
    assert not {"--method", "--reward-model"} & {*options}
    assert method == ["ppo"]
    assert some == ["ppo,dpo"]


def test_bash_completes_names_of_components_and_recipes_and_leaves_files_to_itself(tmp_path: Path) -> None:
    annotator, judge, recipe, section, file = completed(
        tmp_path,
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
    assert file == []  # the script has bash's own completion for that: complete -o default


def test_bash_completes_settings_section_by_section_without_a_blank_after_half_a_word(tmp_path: Path) -> None:
    sections, only, setting, of_run = completed(
        tmp_path,
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


def test_bash_completes_runs_and_artifacts_of_the_output_directory(tmp_path: Path) -> None:
    for name in ("toy-ppo", "toy-dpo"):
        (tmp_path / "mine" / "runs" / name).mkdir(parents=True)
        (tmp_path / "mine" / "runs" / name / "run.json").write_text("{}")
    (tmp_path / "mine" / "artifacts" / "train" / "1a2b3c").mkdir(parents=True)
    (tmp_path / "mine" / "artifacts" / "train" / "1a2b3c" / "artifact.json").write_text("{}")
    (tmp_path / "broken").write_text("no directory")
    runs, artifacts, nowhere, broken = completed(
        tmp_path,
        ["diff", "--output-dir", "mine", "toy"],
        ["artifacts", "why", "--output-dir", "mine", ""],
        ["report", ""],
        ["artifacts", "why", "--output-dir", "broken", ""],
    )
    assert runs == ["toy-dpo", "toy-ppo"]
    assert artifacts == ["1a2b3c"]
    assert nowhere == broken == []
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "broken"}
