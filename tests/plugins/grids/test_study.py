"""`afarm study sweep`: a grid of runs, resumable, with findings of what is there."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import light_plugin
import pytest
from light_plugin import RAN, CountingJudge, Numbers, Teach
from rich.cells import cell_len
from rich.console import Console
from said import Afarm, failed
from terminal import run_in_terminal

from afarm import Bounded, StudyTable
from afarm.cli.tables import widths_of_words
from afarm.core.judge import ChatRequest, Completion
from afarm_plugins.grids import study

SWEEP = ["study", "sweep", "--recipe", "light.yaml", "--method", "nudge", "--seeds", "1,2"]
SKILLS = ["--values", "nudge.skill=0.1,0.5,0.9"]


def test_a_sweep_tables_each_value_over_seeds_and_goes_on_without_work(afarm: Afarm) -> None:
    said = afarm(*SWEEP, *SKILLS, "--json")
    assert said.code == 0, said.err
    rows = said.json["tables"]["sweep"]
    assert [(row["nudge.skill"], row["seeds"]) for row in rows] == [("0.1", 2), ("0.5", 2), ("0.9", 2)]
    by_seed = [run["figures"]["win_rate"] for run in said.json["runs"] if run["place"]["nudge.skill"] == 0.9]
    assert rows[2]["win rate"][0] == pytest.approx(sum(by_seed) / 2)
    page = Path(said.json["page"])
    assert "Stopped" not in page.read_text()
    html = page.with_suffix(".html").read_text()
    assert said.err.count("run 1 of 6: nudge, nudge.skill 0.1, seed 1") == 1
    assert "These preferences are simulated" not in html, "its judge is no formula by its record"
    assert html.count("report.html") == 6, "each run has a link"
    run = re.search(r'href="([^"]*report.html)"', html)
    assert run is not None
    assert (page.parent / run[1]).is_file()
    ElementTree.parse(page.with_name("win_rate.svg"))
    runs = list(csv.DictReader(page.with_name("runs.csv").open()))
    assert [float(run["win_rate"]) for run in runs] == [run["figures"]["win_rate"] for run in said.json["runs"]]
    assert (page.with_name("sweep.tex")).read_text().count(r"\\") == 4
    trained, asked = len(RAN), CountingJudge.asked
    again = afarm(*SWEEP, *SKILLS, "--json")
    assert (len(RAN), CountingJudge.asked) == (trained, asked)
    assert again.json == said.json


def test_a_dry_run_says_how_many_runs_and_stages_there_would_be_and_makes_none(afarm: Afarm, tmp_path: Path) -> None:
    said = afarm(*SWEEP, *SKILLS, "--dry-run")
    assert said.code == 0, said.err
    assert "6 runs." in said.out
    assert "train × 6" in said.out
    assert "sample × 2" in said.out  # shared by the three values
    assert not (tmp_path / "afarm-runs").exists()
    assert RAN == []


def test_a_failed_run_is_shown_and_the_rest_goes_on(afarm: Afarm) -> None:
    said = afarm(
        *("study", "sweep", "--recipe", "light.yaml", "--values", "method=nudge,diverges", "--json", "--seeds", "1")
    )
    assert said.code == 1
    page = Path(said.json["page"]).read_text()
    assert [run["method"] for run in said.json["runs"]] == ["nudge"]
    assert list(said.json["failed"]) == ["diverges, method diverges, seed 1"]
    assert "## Failed" in page
    assert "Stopped" not in page
    values = ("--method", "diverges", "--values", "diverges.skill=0.1,0.9")
    none = afarm("study", "sweep", "--recipe", "light.yaml", *values, "--seeds", "1")
    assert (none.code, none.err.count("Failed:")) == (1, 2)
    assert none.out.startswith("Study: "), "no table without a row"
    empty = Path(none.out.split()[1]).with_suffix(".md").read_text()
    assert re.findall("^## (.*)", empty, re.MULTILINE) == ["Failed"]


def test_a_study_stopped_halfway_reports_what_is_there_marked_so(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Teach.train

    def stopped(self, inputs, context):  # type: ignore[no-untyped-def]
        if sum("step" in line for line in RAN) == 6:  # two runs of three steps
            raise KeyboardInterrupt
        return train(self, inputs, context)

    monkeypatch.setattr(Teach, "train", stopped)
    assert afarm(*SWEEP, *SKILLS).code == 130
    [page] = (tmp_path / "afarm-runs" / "studies").glob("*/report.md")
    assert "Not all is here: 2 of 6 runs are there, 4 missing" in page.read_text()
    assert len(list(csv.DictReader(page.with_name("runs.csv").open()))) == 2
    monkeypatch.setattr(Teach, "train", train)
    assert afarm(*SWEEP, *SKILLS).code == 0
    assert sum("step" in line for line in RAN) == 18
    assert "Stopped" not in page.read_text()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "a sweep needs values, such as --values"),
        (["--values", "nudge.skill="], "--values nudge.skill=: a setting and its values"),
        (["--values", "nudge.skill=0.1,0.10"], "0.10 is named twice"),
        (["--values", f"nudge.skill={','.join(map(str, range(30)))},7"], "16,17,18,1…: 7 is named twice"),
        ([*SKILLS, *SKILLS], "names nudge.skill twice"),
        (["--values", "seed=1,2"], "--seeds 1,2"),
        (["--values", "nudge.skil=1,2"], "nudge.skil: unknown setting. Did you mean 'skill'?"),
        (["--values", "method=nudge,direct"], "--method and --values method=… contradict"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_anything_runs(options: list[str], reason: str, afarm: Afarm) -> None:
    failed(afarm(*SWEEP, *options), reason)
    assert RAN == []


def test_an_unknown_study_is_refused_with_one_that_is_alike(afarm: Afarm) -> None:
    said = afarm("study", "sweeep")
    assert (said.code, "Did you mean 'sweep'?" in said.err) == (2, True)


@pytest.mark.parametrize("seeds", [10, 100])
def test_a_large_grid_is_priced_and_asks_first(seeds: int, afarm: Afarm) -> None:
    values = ",".join(f"{n / 10_000:g}" for n in range(1, 10_000 // seeds + 1))
    grid = ["--values", f"nudge.skill={values}", "--seeds", ",".join(map(str, range(1, seeds + 1)))]
    said = afarm(*SWEEP, *grid)
    assert said.code == 1
    assert "10,000 runs: look at the plan above, and begin with --yes" in said.err
    assert "10,000 runs, estimated from 24 of them." in said.out
    assert "train × 10,000" in said.out
    assert f"sample × {seeds}" in said.out
    assert RAN == []


@pytest.mark.parametrize(("answer", "begins"), [("n\n", False), ("y\n", True)])
def test_a_large_grid_asks_at_a_terminal_and_begins_with_yes_alone(
    answer: str, begins: bool, afarm: Afarm, light_site: Path, tmp_path: Path
) -> None:
    places = [str(light_site), str(Path(light_plugin.__file__).parent)]
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(places)}
    program = (
        f"from afarm_plugins.grids import grid; grid.MANY = 5; from afarm.cli import main; main({[*SWEEP, *SKILLS]})"
    )
    code, text = run_in_terminal(
        [sys.executable, "-c", program],
        environment,
        tmp_path,
        answers={"Begin 6 runs? [y/N]:": answer, "run 1 of 6": "\x03"},
    )
    assert text.index("Study sweep: 6 runs.") < text.index("Begin 6 runs? [y/N]:")
    assert ("run 1 of 6" in text) == begins, text
    assert (tmp_path / "afarm-runs").exists() == begins
    assert code == 130 if begins else code == 1


@pytest.mark.parametrize(
    ("study", "options"),
    [
        ("rankings", ["--methods", "nudge", "--dry-run"]),
        ("rankings", ["--methods", "nudge"]),
        ("transfer", ["--methods", "nudge", "--dry-run"]),
        ("overoptimization", ["--dry-run"]),
        ("annotators", ["--dry-run"]),
        ("pool-size", ["--dry-run"]),
    ],
)
@pytest.mark.parametrize("remote", [False, True])
def test_the_toy_crowd_is_refused_on_other_instructions_before_anything_is_made(
    study: str, options: list[str], remote: bool, afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Numbers, "remote", remote)
    said = afarm("study", study, "--recipe", "light.yaml", "--seeds", "1", *options)
    failed(said, "annotator 'crowd' does not know the instructions of split", "--people, --labelled-by, --annotators")
    assert RAN == []


def test_systems_are_ranked_on_a_set_of_ones_own_beside_the_recipes(afarm: Afarm, tmp_path: Path) -> None:
    own = tmp_path / "demo.json"
    own.write_text(json.dumps([{"instruction": f"ask {n}", "output": "word"} for n in range(6)]))
    study = ["study", "eval-sets", "--recipe", "light.yaml", "--methods", "nudge,direct", "--fewest", "1"]
    said = afarm(*study, "--own", f"demo={own}", "--json", "--seeds", "1")
    assert said.code == 0, said.err
    assert [run["place"] for run in said.json["runs"]] == [{}, {}, {"set": "demo"}, {"set": "demo"}]
    rates = {run["method"]: run["figures"]["win_rate"] for run in said.json["runs"] if run["place"]}
    assert {row["system"]: row["demo"][0] for row in said.json["tables"]["board"]} == pytest.approx(rates)
    assert sum("step" in line for line in RAN) == 6, "each method was trained once"
    failed(afarm(*study, "--own", "demo=missing.json"), "own: missing.json: no such file")
    assert "dataset, first-word, or a file" in afarm(*study, "--by", "topic").err


def test_annotators_label_the_same_outputs_with_draws_of_their_own(afarm: Afarm) -> None:
    study = ["study", "annotators", "--recipe", "light.yaml", "--method", "nudge", "--people", "gpt4_1", "--draws", "2"]
    said = afarm(*study, "--annotators", "pool,gpt4_4", "--json", "--seeds", "1")
    assert said.code == 0, said.err
    rows = {row["annotator"]: row for row in said.json["tables"]["annotators"]}
    assert list(rows) == ["gpt4_1", "pool", "gpt4_4"]
    assert rows["gpt4_4"]["$ per 1,000"][0] == pytest.approx(1), "a tenth of a cent for a prompt with one pair"
    labels = {run["place"]["draw"]: run["record"] for run in said.json["runs"] if run["place"]["annotator"] == "pool"}
    shown = [
        [json.loads(line)["order"] for line in (Path("afarm-runs/runs") / name / "outputs.jsonl").open()]
        for name in labels.values()
    ]
    assert shown[0] != shown[1]
    assert sum("step" in line for line in RAN) == 3, "one policy answers for all"
    asked = CountingJudge.asked
    assert afarm(*study, "--annotators", "pool,gpt4_4", "--json", "--seeds", "1").json == said.json
    assert CountingJudge.asked == asked


RANKINGS = ["study", "rankings", "--recipe", "light.yaml", "--methods", "nudge,direct", "--json", "--seeds", "1"]


def test_methods_learn_from_peoples_own_preferences_beside_simulated_ones(afarm: Afarm, tmp_path: Path) -> None:
    rows = [{"prompt": f"ask {n}", "chosen": "word word", "rejected": "word"} for n in range(9)]
    (tmp_path / "people.jsonl").write_text("\n".join(map(json.dumps, [*rows, {**rows[0], "chosen": ""}])))
    both = [*RANKINGS, "--annotator", "gpt4_1", "--people-preferences"]
    failed(afarm(*both, "missing.jsonl"), "missing.jsonl: no such file")
    failed(afarm(*both, "direct=people.jsonl"), "1 of 10 preferences cannot be learned from")
    assert RAN == [], "before the simulated half is made"
    said = afarm(*both, "direct=people.jsonl", "--on-unusable", "drop")
    assert said.code == 0, said.err
    assert [(run["method"], run["place"]["by"]) for run in said.json["runs"]] == [
        *[("nudge", "simulated"), ("direct", "simulated"), ("direct", "people")]
    ]
    by_people = json.loads((tmp_path / "afarm-runs/runs" / said.json["runs"][2]["record"] / "run.json").read_text())
    assert by_people["preferences"] == "people.jsonl"
    page = Path(said.json["page"]).read_text()
    assert "people.jsonl for direct" in page
    assert "judged by the recipe's annotator" in page
    assert "nudge has no preferences of people" in page
    failed(afarm(*RANKINGS, "--preferences", "people.jsonl"), "--people-preferences FILE")


FAULTY = """
import afarm

class Faulty(afarm.Study):
    def grid(self, request):
        return [afarm.StudyRun(request.method, seed, {}, ()) for seed in request.seeds]

    def analyse(self, finished):
        if len(finished) % 2:
            return finished[0].figures["no such figure"]
        if len(finished) == 4:
            ragged = afarm.StudyTable("t", "", {"a": "d"}, [[1, 2]])
            return afarm.Findings([afarm.StudyTable("sound", "", {}, []), ragged])
        return afarm.Findings([afarm.StudyTable("../outside", "", {"n": "d"}, [[len(finished)]])])

class Greedy(afarm.Config):
    budget: float = afarm.setting(1.0, "a name that every study has")

@afarm.hookimpl
def register_studies(register):
    register("faulty", Faulty)
    register("greedy", Faulty, config=Greedy)
"""


def test_a_faulty_study_is_named_its_runs_are_kept_and_nothing_lies_outside(
    afarm: Afarm, own_site: Path, tmp_path: Path
) -> None:
    (own_site / "faulty_study.py").write_text(FAULTY)
    entries = own_site / "light-1.2.dist-info" / "entry_points.txt"
    entries.write_text("[afarm]\nlight = light_plugin\nfaulty = faulty_study\n")
    said = afarm("study", "faulty", "--recipe", "light.yaml", "--method", "nudge", "--seeds", "1,2,3")
    assert said.code == 2, "it has no method of its own"
    said = afarm("study", "faulty", "--recipe", "light.yaml", "--seeds", "1,2,3")
    assert said.code == 1
    assert (
        "study 'faulty' of plugin 'faulty' (light 1.2) failed: KeyError: 'no such figure' (site/faulty_study.py"
        in said.err
    )
    assert "study 'greedy' has a setting 'budget', which is an option of every study: rename it" in said.err
    [page] = (tmp_path / "afarm-runs" / "studies").glob("*/report.md")
    assert len(list(csv.DictReader(page.with_name("runs.csv").open()))) == 3
    assert "names its files" in afarm("study", "faulty", "--recipe", "light.yaml", "--seeds", "1,2").err
    assert list((tmp_path / "afarm-runs" / "studies").glob("outside*")) == []
    said = afarm("study", "faulty", "--recipe", "light.yaml", "--seeds", "1,2,3,4")
    assert "study 'faulty' of plugin 'faulty' (light 1.2): table t: a row must have 1 cells: [1, 2]" in said.err
    assert list((tmp_path / "afarm-runs" / "studies").glob("*/sound.csv")) == [], "checked before anything is written"


@pytest.mark.parametrize("task", ["dialogue", "summary"])
def test_a_study_of_another_task_has_its_data_and_its_judges_prompts(
    task: str, afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"role": "assistant", "content": "Hello to you."}
    rows = {
        "dialogue": [
            {"prompt": [{"role": "user", "content": f"Hello {n}."}, answer, {"role": "user", "content": "Well?"}]}
            for n in range(80)
        ],
        "summary": [{"post": f"post of number {n}"} for n in range(80)],
    }[task]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked: list[ChatRequest] = []
    complete = CountingJudge.complete

    async def listen(self: CountingJudge, request: ChatRequest) -> Completion:
        asked.append(request)
        return await complete(self, request)

    monkeypatch.setattr(CountingJudge, "complete", listen)
    dataset = {"dialogue": "dialogues", "summary": "summaries"}[task]
    chosen = [f"dataset={dataset}", f"{dataset}.path=rows.jsonl"]
    chosen += ["rows.evaluation=5", f"annotate.annotator={task}_pool", f"evaluate.annotator={task}_pool"]
    said = afarm(*SWEEP, "--values", "nudge.skill=0.1,0.9", *(a for each in chosen for a in ("--set", each)), "--json")
    assert said.code == 0, said.err
    assert [row["seeds"] for row in said.json["tables"]["sweep"]] == [2, 2]
    texts = [request.prompt + "".join(turn.content for turn in request.messages) for request in asked]
    assert {request.annotator for request in asked} == {f"{task}_{n}" for n in (1, 2, 3)}
    shown = "[assistant] Hello to you." if task == "dialogue" else "post of number"
    assert texts
    assert all(shown in text for text in texts)


COLUMNS = {"method": "", "labels": "", "reach": "d", "√KL": ".2f", "win rate": ".1f", "reward model": ".2f"}
CURVES = [
    ["expert_iteration", "greedy_gpt4 + 25% flipped", 64, 1.23, Bounded(58.3, 55.1, 61.5), Bounded(1.02, 0.9, 1.14)],
    ["best_of_n", "pool", 16, 1.5, Bounded(57, 55, 59), Bounded(0.8, 0.7, 0.9)],
]


@pytest.mark.parametrize(("width", "whole"), [(62, "58.3"), (80, "(55.1"), (120, "greedy_gpt4 + 25% flipped")])
def test_a_narrow_screen_splits_no_word_of_a_table(width: int, whole: str) -> None:
    console = Console(width=width, file=io.StringIO())
    study._show_table(console, StudyTable("curves", "Curves", COLUMNS, CURVES))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert whole in shown
    assert {"expert_iteration", "greedy_gpt4", "flipped", "reward", "1.23", "0.80"} <= {*shown.split()}
    assert max(map(cell_len, shown.splitlines())) <= width


def test_a_screen_too_narrow_for_whole_words_still_shows_every_letter() -> None:
    console = Console(width=40, file=io.StringIO())
    study._show_table(console, StudyTable("curves", "Curves", COLUMNS, CURVES))
    assert max(map(cell_len, console.file.getvalue().splitlines())) <= 40  # type: ignore[attr-defined]
    assert widths_of_words([["abc", "de fgh"]], 2, [False]) == []
    assert widths_of_words([["abc", "de fgh"], ["x", "1 2"]], 7, [False, True]) == [4, 3]
