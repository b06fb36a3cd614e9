"""`--preferences` on the command line: what it goes with, and what it shows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from light_plugin import RAN, CountingJudge
from said import Afarm

LIGHT = ["--recipe", "light.yaml"]


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    rows = [{"prompt": f"prompt {n}", "chosen": "word word", "rejected": "word"} for n in range(40)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return ["--preferences", "own.jsonl"]


def test_each_stage_that_learns_from_preferences_takes_them(afarm: Afarm, own: list[str]) -> None:
    fitted = afarm("fit-reward", *own, *LIGHT, "--json")
    assert fitted.code == 0, fitted.err
    assert json.loads(fitted.out)["stage"] == "fit-reward"
    trained = afarm("train", "--method", "direct", *own, *LIGHT, "--json")
    assert json.loads(trained.out)["stage"] == "train direct"
    assert CountingJudge.asked == 0
    assert RAN.count("fit-reward 40") == 1
    ran = afarm("run", *own, *LIGHT, "--json")
    record = json.loads(ran.out)
    assert (record["preferences"], record["annotator"]) == ("own.jsonl", "pool")
    assert [stage["kind"] for stage in record["stages"]][:3] == ["base", "preferences", "fit-reward"]
    assert record["annotators"]["training"] == {"own": 40}
    page = Path(record["report"]).read_text()
    assert "own.jsonl" in page
    assert "These preferences are simulated" not in page


def test_a_method_is_a_command_that_trains_it(afarm: Afarm, own: list[str]) -> None:
    trained = afarm("direct", *own, *LIGHT, "--json")
    assert json.loads(trained.out)["stage"] == "train direct"
    assert json.loads(afarm("train", "--method", "direct", *own, *LIGHT, "--json").out)["reused"]
    assert "preferences" in afarm("dpo", *own, *LIGHT, "--dry-run").out
    refused = afarm("direct", "--method", "nudge", *LIGHT)
    assert (refused.code, "'direct' is the method; leave --method out" in refused.err) == (2, True)
    assert "No such command 'dpp'" in afarm("dpp").err


@pytest.mark.parametrize(
    "command",
    [["train", "--method", "direct"], ["direct"], ["--disable-plugin", "view", "train", "--method", "direct"]],
)
def test_training_alone_points_to_the_commands_that_evaluate_and_export(
    command: list[str], afarm: Afarm, own: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["afarm", *command, *own, *LIGHT])
    lines = afarm(*command, *own, *LIGHT).err.splitlines()
    [evaluate] = [line.removeprefix("Evaluate it: ") for line in lines if line.startswith("Evaluate it: ")]
    [export] = [line.removeprefix("Then export: ") for line in lines if line.startswith("Then export: ")]
    record = json.loads(afarm(*shlex.split(evaluate)[1:], "--json").out)
    assert {stage["reused"] for stage in record["stages"] if stage["stage"] == "train direct"} == {True}
    assert export == f"afarm export {record['name']} DIR"


def test_training_alone_within_another_program_ends_well(
    afarm: Afarm, own: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["notebook", "--quiet"])
    assert afarm("direct", *own, *LIGHT).code == 0


def test_why_says_which_file_and_how_many_pairs_are_used_and_left_out(afarm: Afarm, own: list[str]) -> None:
    path = Path("own.jsonl")
    drawn, empty = ({"prompt": "more", "chosen": "word", "rejected": text} for text in ("word", ""))
    path.write_text("\n".join([path.read_text(), json.dumps(drawn), json.dumps({**empty, "chosen": ""})]))
    made = afarm("annotate", *own, *LIGHT, "--on-unusable", "drop", "--json")
    assert made.code == 0, made.err
    why = afarm("artifacts", "why", json.loads(made.out)["key"])
    assert "own.jsonl: 41 pairs used (40 decided, 1 drawn); left out: 1 unusable" in why.out


def test_the_plan_has_no_samples_and_no_calls_for_labels(afarm: Afarm, own: list[str]) -> None:
    shown = afarm("run", "--method", "direct", *own, *LIGHT, "--dry-run")
    assert shown.code == 0, shown.err
    assert "preferences" in shown.out
    assert "annotate" not in shown.out
    assert "sample" not in shown.out
    trained = afarm("train", "--method", "direct", *own, *LIGHT, "--dry-run")
    assert "About 0 judge calls" in trained.out


def test_the_plan_counts_the_pairs_that_are_used_and_left_out(afarm: Afarm, own: list[str]) -> None:
    path = Path("own.jsonl")
    drawn, null = ({"prompt": text, "chosen": "word", "rejected": "word"} for text in ("more", None))
    path.write_text("\n".join([path.read_text(), json.dumps(drawn), json.dumps(null)]))
    command = ["fit-reward", *own, *LIGHT, "--on-unusable", "drop"]
    pairs = "own.jsonl: 41 pairs used (40 decided, 1 drawn); left out: 1 unusable"
    for shown in (afarm(*command, "--dry-run"), afarm("run", *command[1:], "--dry-run")):
        assert pairs in shown.out
    assert json.loads(afarm(*command, "--dry-run", "--json").out)["stages"][1]["pairs"] == pairs
    assert not Path("afarm-runs").exists()
    assert afarm(*command).code == 0
    assert pairs in afarm(*command, "--dry-run").out, "of what is stored too"


def test_odd_labels_are_told_before_anything_is_trained_on_them(afarm: Afarm, tmp_path: Path) -> None:
    rows = [{"instruction": f"task {n % 11}", "output_1": "x", "output_2": "y", "preference": 1} for n in range(12)]
    swapped = {"instruction": "task 3", "output_1": "y", "output_2": "x", "preference": 1}
    rendered = {**rows[0], "instruction": "### Instruction:\ntask 3\n\n### Response:\n"}
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, [*rows, swapped, rendered])))
    command = ["fit-reward", "--preferences", "own.jsonl", *LIGHT]
    planned, fitted, again = afarm(*command, "--dry-run"), afarm(*command), afarm(*command)
    assert fitted.code == 0, fitted.err
    for said in (planned, fitted, again):
        assert "own.jsonl: all 14 labels prefer the first output" in said.err
        assert said.err.count("2 pairs are labelled more than once, 1 of them with opposite labels (2 rows)") == 1
        assert "own.jsonl: 1 of 14 prompts end as a prompt template does" in said.err


def test_a_word_on_broken_rows_needs_a_file(afarm: Afarm) -> None:
    refused = afarm("fit-reward", *LIGHT, "--on-unusable", "drop")
    assert (refused.code, RAN) == (1, [])
    assert "on_unusable: says what to do with broken rows of preferences: name them with --preferences" in refused.err


def test_labels_are_taken_as_they_are(afarm: Afarm, own: list[str]) -> None:
    labelling = ["--annotator", "pool", "--label-noise", "0.1", "--votes", "3", "--both-orders"]
    refused = afarm("run", *own, *LIGHT, *labelling)
    assert refused.code == 1
    for option in ("--annotator", "--label-noise", "--votes", "--both-orders"):
        assert f"--preferences and {option} contradict each other: the file has the labels" in refused.err
    refused = afarm("evaluate", "mine.json", "--reference", "theirs.json", *own)
    assert "mine.json and --preferences contradict each other: files are not trained" in refused.err
    refused = afarm("run", *own, *LIGHT, "--set", "preferences=other.jsonl")
    assert "--preferences own.jsonl and --set preferences=other.jsonl contradict each other" in refused.err


def test_one_file_is_taken_at_a_time(afarm: Afarm, own: list[str]) -> None:
    refused = afarm("fit-reward", *own, "--preferences", "more.jsonl", *LIGHT)
    assert refused.code == 1
    assert "--preferences takes one file at a time: join own.jsonl and more.jsonl into one" in refused.err


def test_labels_that_can_be_read_in_two_ways_wait_for_a_word(afarm: Afarm, tmp_path: Path) -> None:
    rows = [
        {"instruction": f"task {n}", "output_1": "word", "output_2": f"word {n}", "preference": label}
        for n, label in enumerate([1, 0, 0, 0] * 2)
    ]
    named = {"generator_1": "a", "generator_2": "b", "annotator": "me"}
    (tmp_path / "own.jsonl").write_text("\n".join(json.dumps({**row, **named}) for row in rows))
    commands = (
        ["fit-reward", "--preferences", "own.jsonl", *LIGHT],
        ["evaluate", "--annotations", "own.jsonl"],
        ["annotators", "compare", "own.jsonl"],
    )
    for command in commands:
        refused = afarm(*command)
        assert refused.code == 1, command
        assert "own.jsonl: its labels are 0 and 1 and never 2, which can mean two things" in refused.err
        assert "say --labels 0,1." in refused.err
        told = afarm(*command, "--labels", "0,1")
        assert told.code == 0, told.err
    assert json.loads(afarm(*commands[1], "--labels", "1,0", "--json").out)["results"][0]["metrics"]["win_rate"] == 75
    stored = next((tmp_path / "afarm-runs" / "artifacts" / "preferences").glob("*/preferences.jsonl"))
    assert [json.loads(line)["preference"] for line in stored.read_text().splitlines()] == [2, 1, 1, 1] * 2
    draws = afarm(*commands[0], "--labels", "1,2,0", "--json")
    assert json.loads(draws.out)["stage"] == "fit-reward", "another reading is another artifact"
    assert len([*stored.parent.parent.glob("*/preferences.jsonl")]) == 2


def test_a_scale_needs_labels_to_be_read(afarm: Afarm, own: list[str]) -> None:
    assert "labels: says how to read preferences" in afarm("fit-reward", *LIGHT, "--labels", "0,1").err
    assert "files of outputs have none" in afarm("evaluate", "a.json", "--reference", "b.json", "--labels", "0,1").err
    assert "labels: '0' must name the labels of the first" in afarm("fit-reward", *own, *LIGHT, "--labels", "0").err


def test_a_dry_run_says_that_there_is_nothing_to_learn_from(afarm: Afarm, tmp_path: Path) -> None:
    (tmp_path / "draws.jsonl").write_text(json.dumps({"prompt": "p", "chosen": "x", "rejected": "x"}))
    refused = afarm("run", "--preferences", "draws.jsonl", *LIGHT, "--dry-run")
    assert refused.code == 1
    assert "draws.jsonl: nothing to learn from: draws 1, without a label 0" in refused.err


def test_what_was_left_out_is_on_the_screen(afarm: Afarm, tmp_path: Path) -> None:
    rows = [{"prompt": "p", "chosen": "x", "rejected": "y"}, {"prompt": "p", "chosen": "", "rejected": "y"}]
    (tmp_path / "own.csv").write_text("prompt,chosen,rejected\n" + "\n".join(",".join(r.values()) for r in rows))
    command = ["fit-reward", "--preferences", "own.csv", *LIGHT]
    refused = afarm(*command)
    assert refused.code == 1
    assert "own.csv: line 3: field 'chosen': turn 1 (assistant) is empty" in refused.err
    assert "--on-unusable drop" in refused.err
    made = afarm(*command, "--on-unusable", "drop")
    assert made.code == 0, made.err
    assert "rows 1, rows unusable 1" in made.err
