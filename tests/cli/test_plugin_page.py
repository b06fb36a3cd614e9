"""`afarm plugins NAME`, and what a plugin ships beside components: recipes, sections of the report, its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from afarm.cli import main
from afarm.report import build

SHIPS = """
from pathlib import Path
from afarm import Config, Evaluation, Evaluator, hookimpl, setting

HERE = Path(__file__).parent

class Settings(Config):
    most: int = setting(3, "the most")

class Few(Evaluator):
    needs = frozenset({"judgements"})
    def evaluate(self, inputs):
        return Evaluation("few", inputs.system, {"few": 1.0})

@hookimpl
def register_evaluators(register):
    register("few", Few, config=Settings, summary="few of them", sources=[HERE / "table.txt"])

@hookimpl
def register_recipes(register):
    register("quick", HERE / "quick.yaml", summary="a quick one")
    register("toy", HERE / "quick.yaml", summary="another toy")

@hookimpl
def register_commands(app):
    app.command("few")(lambda: None)

@hookimpl
def register_sections(sections):
    sections["Words of the run"] = lambda run: f"<p>of {run['name']}: <b>few</b></p>"
    sections["Left out"] = lambda run: ""
    sections["Fails"] = lambda run: 1 / 0
    sections["Wrong"] = lambda run: 3

@hookimpl
def register_pages(pages):
    pages.append(lambda run: {"Page on " + run["judged_by"]: run.directory / "judge.html"})
"""


@pytest.fixture
def ships(plugin_folder: Path) -> Path:
    (plugin_folder / "lib").mkdir()
    (plugin_folder / "lib" / "ships.py").write_text(SHIPS)
    (plugin_folder / "lib" / "table.txt").write_text("1 2 3")
    (plugin_folder / "lib" / "quick.yaml").write_text("summary: in seconds\nbased_on: few.yaml\nmethod: best_of_n\n")
    (plugin_folder / "lib" / "few.yaml").write_text("based_on: toy\nrows: {evaluation: 16}\n")
    (plugin_folder / "quick").mkdir()  # a folder that is called like a recipe hides none
    return plugin_folder


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["--plugin-file", "lib/ships.py", *words])
    return int(stop.value.code or 0)


def test_a_plugin_is_shown_in_full(ships: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plugins", "ships", "--json") == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert (shown["plugin"], shown["package"]) == ("ships", "ships.py")
    assert shown["hooks"] == [f"register_{kind}" for kind in ("commands", "evaluators", "pages", "recipes", "sections")]
    assert shown["commands"] == ["few"]
    few = next(part for part in shown["components"] if part["name"] == "ships.py/few")
    assert few["settings"] == {"most": 3}
    assert (few["needs"], few["digested"]) == (["judgements"], ["ships.py", "table.txt"])
    assert run("plugins", "few") == 0
    assert "    digested:\n    - ships.py\n    - table.txt\n" in capsys.readouterr().out


def test_a_first_party_method_is_shown_with_what_is_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["plugins", "dpo"])
    shown = capsys.readouterr().out
    assert "    needs:\n    - preferences\n" in shown
    assert "    search_space:\n      learning_rate:\n" in shown
    assert "    - afarm_plugins/dpo/" in shown
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["plugins", "dpoo"])
    assert "no plugin, package or component is called 'dpoo'. Did you mean 'dpo'" in capsys.readouterr().err


def test_the_page_of_an_installed_plugin_is_what_its_metadata_links(
    plugin_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (plugin_folder / "paged.py").write_text(
        SHIPS.split("@hookimpl")[0] + "@hookimpl\ndef register_methods(register): 0"
    )
    info = plugin_folder / "paged_farm-2.0.dist-info"
    info.mkdir()
    links = "Project-URL: Homepage, https://lab.example\nProject-URL: Documentation, https://lab.example/docs\n"
    needs = "Requires-Dist: afarm>=0.1\nRequires-Dist: pytest; extra == 'test'\n"
    (info / "METADATA").write_text(f"Name: paged-farm\nVersion: 2.0\n{needs}{links}")
    (info / "entry_points.txt").write_text("[afarm]\npaged = paged\n")
    monkeypatch.syspath_prepend(str(plugin_folder))
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["plugins", "Paged_Farm"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "page: https://lab.example/docs requires: - afarm>=0.1 hooks: - register_methods" in shown


def test_a_plugins_recipe_is_listed_and_chosen_by_its_name(ships: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes") == 0
    assert "quick " in (listed := capsys.readouterr().out)
    assert "ships.py/toy" not in listed
    assert run("recipes", "ships.py/quick") == 0
    shown = capsys.readouterr().out
    assert "method: best_of_n" in shown
    assert "evaluation: 16" in shown
    rows = ["--set", "rows={sft: 16, preference: 16, unlabeled: 8, validation: 8}"]
    assert run("run", "--recipe", "quick", "--dry-run", *rows) == 0
    assert "Plan: quick · best_of_n" in capsys.readouterr().out
    assert run("settings", "few", "--recipe", "quick") == 0
    assert run("plugins", "--check", "recipe/quick") == 0
    assert "recipe ships.py/quick keeps what its interface promises" in capsys.readouterr().out
    assert run("run", "--recipe", "quickk") == 1
    assert "unknown recipe 'quickk'. Did you mean 'quick'? `afarm recipes` shows them." in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["run", "--recipe", "quick"])
    assert "--recipe quick is a directory" in capsys.readouterr().err


def test_a_recipe_that_is_no_file_is_named(ships: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ships / "lib" / "ships.py").write_text(SHIPS.replace('HERE / "quick.yaml"', '"quick.yaml"'))
    assert run("recipes") == 1
    said = capsys.readouterr().err
    assert (
        "plugin file ships.py failed to load: PluginError: register_recipes: register('quick', …): the target" in said
    )
    assert "(ships.py:21)" in said


def test_sections_of_plugins_are_in_the_report_and_their_faults_named(
    ships: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = ships / "afarm-runs" / "runs" / "a-run"
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps({"name": "a-run", "method": "ppo"}))
    assert run("report", "a-run") == 0
    page = (directory / "report.html").read_text()
    assert "<h2>Words of the run</h2>\n  <p>of a-run: <b>few</b></p>" in page
    assert "Left out" not in page
    assert "ZeroDivisionError: division by zero (lib/ships.py:" in page
    assert "it must return HTML as text" in page
    main_page = build(directory).read_text()
    assert "Words of the run" in main_page, "the choice of this process stands"


def test_pages_on_judges_are_linked_from_screens_and_boards(ships: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("mine", "theirs"):
        rows = [{"instruction": f"say {n}", "output": f"{name} {n}", "generator": name} for n in range(3)]
        Path(f"{name}.json").write_text(json.dumps(rows))
    assert run("evaluate", "mine.json", "--reference", "theirs.json", "--annotator", "fitted") == 0
    [report] = Path("afarm-runs/runs").glob("*/report.html")
    line = f"Page on the formula fitted: {report.parent / 'judge.html'}"
    assert line in capsys.readouterr().out.replace("\n", "")
    assert run("leaderboard") == 0
    assert line in capsys.readouterr().out.replace("\n", "")
    address = (report.parent / "judge.html").resolve().as_uri()
    assert run("leaderboard", "--output", "board.html") == run("leaderboard", "--output", "board.md") == 0
    assert f'<a href="{address}">Page on the formula fitted</a>' in Path("board.html").read_text()
    assert f"- Page on the formula fitted: <{address}>" in Path("board.md").read_text()
