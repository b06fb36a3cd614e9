"""Plugins of one file, plugins that are left out, and what a plugin may not do while it is loaded."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import afarm
from afarm.cli import main
from afarm.core.errors import AfarmError, PluginError
from afarm.core.plugins import choose_plugins, chosen_plugins, discover, discover_with
from afarm.experiment.plugin_code import plugin_files
from afarm.experiment.tasks import farm_spec, open_task_workspace

SHORTER = """
from afarm import Annotator, Preference, hookimpl
import beside_it

class Shorter(Annotator):
    def annotate(self, pairs, context):
        return [Preference(pair.id, float(len(pair.output_2) < len(pair.output_1))) for pair in pairs]

@hookimpl
def register_annotators(register):
    register("shorter", Shorter, summary="the shorter output")

@hookimpl
def register_commands(app):
    app.command("measure")(lambda: print("measured"))
"""


@pytest.fixture
def folder(plugin_folder: Path) -> Path:
    return plugin_folder


@pytest.fixture
def shorter(folder: Path) -> Path:
    (folder / "beside_it.py").write_text("MARGIN = 1\n")
    (folder / "not_imported.py").write_text("1 / 0\n")
    (folder / "shorter.py").write_text(SHORTER)
    return folder / "shorter.py"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main([*words])
    return int(stop.value.code or 0)


@pytest.mark.parametrize("words", [("--plugin-file", "shorter.py", "measure"), ("measure", "--plugin-file=shorter.py")])
def test_the_option_stands_before_a_command_or_behind_it(
    words: tuple[str, ...], shorter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 0
    assert capsys.readouterr().out == "measured\n"
    assert run("measure") == 2, "the next command has other plugins"


def test_a_file_is_a_plugin_of_its_own_name_whose_code_is_in_keys(shorter: Path) -> None:
    choose_plugins(["shorter.py"])
    found = discover().get("annotators", "shorter")
    assert (found.full_name, chosen_plugins()) == ("shorter.py/shorter", ((str(shorter),), ()))
    digested = plugin_files(found.package, found.modules, found.sources)
    assert digested == {name: shorter.with_name(name) for name in ("beside_it.py", "shorter.py")}


def test_a_farm_takes_files(shorter: Path) -> None:
    farm = afarm.Farm("toy", plugins="shorter.py", annotator="shorter", output_dir="runs")
    assert farm.workspace.components.plugins.get("annotators", "shorter").package == "shorter.py"
    assert [p for p in discover().found if p.name == "shorter"] == [], "other farms do not have it"


def test_another_process_has_the_same_plugins(shorter: Path, tmp_path: Path) -> None:
    """As a launcher's worker, or a machine of a cluster, opens the workspace that a command has planned."""
    choose_plugins(["shorter.py"], ["drift"])
    rows = "rows={sft: 16, preference: 16, unlabeled: 8, validation: 8, evaluation: 8}"
    workspace = afarm.Farm("toy", settings=[rows], annotator="shorter", output_dir="runs").workspace
    spec = farm_spec(workspace, "sft", "account")
    choose_plugins()
    assert [p.name for p in discover().broken] == []
    with open_task_workspace(spec) as opened:
        plugins = opened.components.plugins
    assert plugins.get("annotators", "shorter").package == "shorter.py"
    assert [(p.name, p.error) for p in plugins.broken] == [("drift", "is disabled with --disable-plugin")]
    shorter.unlink()
    with pytest.raises(AfarmError, match=r"shorter.py does not exist"):
        open_task_workspace(replace(spec, disabled_plugins=()))


def test_a_recipe_names_no_file_of_code(shorter: Path) -> None:
    Path("mine.yaml").write_text("based_on: toy\nplugin_files: [shorter.py]\nannotate: {annotator: shorter}\n")
    with pytest.raises(
        AfarmError, match=r"unknown setting or section 'plugin_files'[\s\S]*unknown annotator 'shorter'"
    ):
        afarm.Farm("mine.yaml", output_dir="runs")


WRONG = {
    "nowhere.py": (None, r"nowhere.py does not exist"),
    "my-plugin.py": ("", "name it as a Python module"),
    "notes.txt": ("", "name it as a Python module"),
    "random.py": ("", "another module is called 'random'"),
    "typo.py": ("import os\n\nprint(nam)\n", r"plugin file typo.py failed to load: NameError: .*\(typo.py:3\)"),
    "unclosed.py": ("def f(:\n", r"SyntaxError: .*\(unclosed.py, line 1\)"),
    "hookless.py": ("x = 1\n", "marks no hook with @afarm.hookimpl"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_cannot_be_a_plugin_is_an_error_that_names_it(name: str, folder: Path) -> None:
    text, message = WRONG[name]
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(AfarmError, match=message):
        choose_plugins([name])
    with pytest.raises(AfarmError, match=message):
        discover_with(name)


def test_two_files_of_one_name_and_a_file_edited_since_are_refused(shorter: Path, folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "shorter.py").write_text(SHORTER)
    with pytest.raises(AfarmError, match="another module is called 'shorter'"):
        choose_plugins([str(shorter), "other/shorter.py"])
    discover_with(shorter)
    shorter.write_text(SHORTER.replace("the shorter output", "the longer output"))
    with pytest.raises(AfarmError, match="was edited since this process loaded it"):
        discover_with(shorter)


@pytest.mark.parametrize("name", ["ppo", "afarm/ppo"])
def test_a_disabled_plugin_is_not_there_and_the_pipeline_goes_on(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["--set", "rows={sft: 16, preference: 16, unlabeled: 8, validation: 8, evaluation: 8}"]
    assert run("--disable-plugin", name, "run", "--method", "best_of_n", "--dry-run", *rows) == 0
    assert run("run", "--disable-plugin", name, "--method", "ppo", "--dry-run") == 1
    assert "Plugin 'ppo' (afarm) is disabled with --disable-plugin" in capsys.readouterr().err
    assert run("run", "--disable-plugin", name, "--method", "best_of_n", "--dry-run", "--set", "ppo.kl_coef=1") == 1
    assert "section 'ppo' is of plugin 'ppo' (afarm), which is disabled" in capsys.readouterr().err


def test_a_disabled_plugins_commands_are_gone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--disable-plugin", "drift", "drift") == 2
    assert "No such command 'drift'" in capsys.readouterr().err
    assert run("--disable-plugin", "drif", "drift") == 1
    assert "--disable-plugin drif: no such plugin. Did you mean 'drift'" in capsys.readouterr().err
    assert run("drift", "--disable-plugin") == 2
    assert "--disable-plugin requires an argument" in capsys.readouterr().err


RUDE = """
import random
import sys
from afarm import hookimpl
print("at import")
random.seed(0)

@hookimpl
def register_evaluators(register):
    print("in a hook")
    register("rude", "rude:Rude")
"""


def test_a_plugin_that_prints_and_seeds_is_named_and_contained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rude.py").write_text(RUDE)
    assert run("plugins") == 0  # so that what afarm imports, and draws by itself, is loaded
    random.seed("another state than the plugin's")
    before = random.getstate()
    capsys.readouterr()
    assert run("--plugin-file", "rude.py", "plugins") == 0
    assert random.getstate() == before
    shown = capsys.readouterr()
    notes = ["prints to stdout while it is loaded", "changes the global random state of random while it is loaded"]
    for note in notes:
        assert f"plugin 'rude' {note}" in shown.err
        assert note in shown.out
    assert "at import" in shown.err
    assert "at import" not in shown.out
    assert "in a hook" not in shown.out
    assert run("--plugin-file", "rude.py", "plugins", "--json") == 0
    [row] = [row for row in json.loads(capsys.readouterr().out) if row["plugin"] == "rude"]
    assert [note.partition(" (")[0] for note in row["notes"]] == notes


def test_a_seed_of_a_library_that_the_plugin_itself_imports_is_taken_back(folder: Path) -> None:
    pytest.importorskip("torch")
    import torch

    (folder / "seeds.py").write_text(f"import torch\ntorch.manual_seed(1)\n{SHORTER}".replace("import beside_it", ""))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    [found] = [p for p in discover_with("seeds.py").found if p.name == "seeds"]
    assert found.notes == ["changes the global random state of torch while it is loaded (restored)"]
    assert torch.equal(before, torch.get_rng_state())
    assert [p.notes for p in discover().found if p.notes] == [], "the others seed nothing"


def test_a_file_that_is_installed_as_well_is_one_plugin(shorter: Path) -> None:
    """As after `pip install -e .` in its folder."""
    info = shorter.with_name("shorter_farm-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Name: shorter-farm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[afarm]\nshort = shorter\n")
    sys.path.append(str(shorter.parent))
    choose_plugins(["shorter.py"])
    assert discover().get("annotators", "shorter").full_name == "shorter-farm/shorter"


def test_a_broken_file_is_not_hidden_by_one_that_works(shorter: Path, folder: Path) -> None:
    (folder / "typo.py").write_text("nam\n")
    with pytest.raises(PluginError, match=r"typo\.py"):
        choose_plugins([str(shorter), "typo.py"])
