"""`afarm interchange`: files worked by hand, read by the tools that they are for, and wrong input."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from afarm_interchange.every_eval_ever import read_figures, records
from afarm_interchange.places import is_repository, model_ids
from afarm_interchange.systems import Evaluation, Figure, Sample, System

from afarm import ConfigError, DataError, Message
from afarm.cli import main

HERE = Path(__file__).parent
VALIDATORS = os.environ.get("AFARM_VALIDATORS", "").split(os.pathsep)
"""Environments with `every-eval-ever` and `rewardbench`: see the package's README."""
PROGRAMS = os.pathsep.join(f"{place}/bin" for place in VALIDATORS if place)
EEE = shutil.which("every_eval_ever", path=PROGRAMS or None)
needs_eee = pytest.mark.skipif(not EEE, reason="every_eval_ever is not here: AFARM_VALIDATORS (see README.md)")

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in a folder of its own: return what it printed, or its error on one line."""
    monkeypatch.chdir(tmp_path)

    def run_command(*words: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words])
        printed = capsys.readouterr()
        return " ".join(printed.err.split()) if ended.value.code else printed.out

    return run_command


ANSWERS = {"lab/mine": "Rhine", "lab/other": "Rhine, Elbe, Oder and Main", "lab/theirs": "Rhine and Elbe"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two files of outputs were compared with a third by the fitted judge."""
    folder = tmp_path_factory.mktemp("compared")
    for name, text in ANSWERS.items():
        rows = [{"instruction": f"Name {n} rivers.", "output": f"{text}.", "generator": name} for n in range(2, 14)]
        (folder / f"{name.partition('/')[2]}.json").write_text(json.dumps(rows))
    files = [str(folder / f"{name}.json") for name in ("mine", "other", "theirs")]
    words = ["--reference", files[2], "--annotator", "fitted", "--output-dir", str(folder / "afarm-runs")]
    with pytest.raises(SystemExit):
        main(["evaluate", *files[:2], *words])
    assert len(list(folder.glob("afarm-runs/runs/*"))) == 2
    return folder


@pytest.fixture
def evaluated(run: Run, compared: Path) -> Path:
    """The output directory of `compared`, in the test's own folder, with the files of outputs beside it."""
    shutil.copytree(compared, ".", dirs_exist_ok=True)
    return Path("afarm-runs")


EXPORT = ("interchange", "export")
AS_RECORD = ("--to", "eee", "--organization", "Lab")
AS_HUB = ("--to", "hub", "--dataset", "tatsu-lab/alpaca_eval", "--task", "default")
AS_REWARDBENCH = ("--to", "rewardbench", "--model-id", "me/rm")


def read_rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


# ------------------------------------------------------------------------------------------------- Every Eval Ever


def test_a_run_becomes_a_record_with_its_samples(run: Run, evaluated: Path) -> None:
    printed = run(*EXPORT, "evaluate-lab_other", "out", *AS_RECORD).split()
    [figures] = Path("out").glob("data/afarm-theirs-json/lab/other/*.json")
    [samples] = Path("out").glob("data/afarm-theirs-json/lab/other/*_samples.jsonl")
    assert {*printed} == {str(figures), str(samples)}
    assert samples.name == f"{figures.stem}_samples.jsonl"
    record, rows = json.loads(figures.read_text()), read_rows(samples)
    [result] = record["evaluation_results"]
    score, uncertainty = result["score_details"]["score"], result["score_details"]["uncertainty"]
    assert score == pytest.approx(100 * sum(row["evaluation"]["score"] for row in rows) / 12)
    assert uncertainty["num_samples"] == len(rows) == 12
    assert uncertainty["confidence_interval"]["lower"] < score < uncertainty["confidence_interval"]["upper"]
    assert "llm_scoring" not in result["metric_config"]  # a formula judged
    assert result["metric_config"]["additional_details"]["judged_by"] == "the formula fitted"
    assert (rows[0]["input"]["raw"], rows[0]["input"]["reference"]) == ("Name 2 rivers.", ["Rhine and Elbe."])
    assert rows[0]["output"]["raw"] == ["Rhine, Elbe, Oder and Main."]
    assert rows[0]["answer_attribution"][0]["extraction_method"] == "formula"
    assert rows[0]["metadata"]["reference_model"] == "lab/theirs"
    assert record["source_metadata"]["source_type"] == "evaluation_run"
    detail = record["detailed_evaluation_results"]
    assert detail["checksum"] == hashlib.sha256(samples.read_bytes()).hexdigest()
    assert {row["evaluation_id"] for row in rows} == {record["evaluation_id"]}
    again = run(*EXPORT, "evaluate-lab_other", "out", *AS_RECORD)
    assert "is there already, and is not overwritten" in again  # the same evaluation has the same name


def test_a_comparison_until_it_was_decided_has_its_samples(run: Run, evaluated: Path) -> None:
    """Its stage of decisions holds no judgements; those are in a stage of their own."""
    pytest.importorskip("scipy")
    decided = ("--annotator", "fitted", "--until", "decided", "--output-dir", "decided")
    run("evaluate", "mine.json", "--reference", "theirs.json", *decided)
    run(*EXPORT, "evaluate-lab_mine", "out", *AS_RECORD, "--output-dir", "decided")
    [samples] = Path("out").glob("data/*/*/*/*_samples.jsonl")
    assert 1 <= len(read_rows(samples)) <= 12


def test_figures_alone_hold_no_text(run: Run, evaluated: Path) -> None:
    [written] = run(*EXPORT, "evaluate-lab_other", "out", *AS_RECORD, "--figures-only").split()
    assert "Rhine" not in Path(written).read_text()


def make_system(**changes: Any) -> System:
    """A policy that a language model and a second one judged, with a chat and a draw among its samples."""
    draw = Sample("a", "Hi\u2028", ("x",), ("y",), 0.5, "llm_judge", "draw", details={"order": "12"})
    chat = Sample(
        "b", "Why?", ("So.",), ("No.",), 1.0, "llm_judge", "prefers output", (Message("system", "Be brief."),)
    )
    judges = ("openai:gpt-4o@0123456789ab", "vllm:org/judge")
    figure = Figure("win_rate", 75.0, 25.0, 20.0, 100.0, 2, "by hand")
    details = {"reference": "sft"}
    evaluation = Evaluation("against sft", (figure,), "gpt-4o", "pool", judges, details, (draw, chat), "win_rate")
    given = {"evaluations": (evaluation,), "trained_here": True, "created": 1.0, **changes}
    return System("dpo", **given, generation={"temperature": 0.7, "max_tokens": 48})


def write_system(system: System, root: Path, collection: str) -> None:
    for place, text in records([system], {"dpo": "me/dpo"}, "me", "first_party", collection).items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)


def test_judges_chats_and_draws_stand_where_the_schema_has_them() -> None:
    made = records([make_system()], {"dpo": "me/dpo"}, "me", "first_party", "afarm")
    texts = {place.suffix: text for place, text in made.items()}
    record, rows = json.loads(texts[".json"]), [json.loads(line) for line in texts[".jsonl"].split("\n")[:-1]]
    result = record["evaluation_results"][0]
    judges = result["metric_config"]["llm_scoring"]["judges"]
    assert [judge["model_info"]["id"] for judge in judges] == ["openai/gpt-4o", "org/judge"]
    assert record["evaluation_timestamp"] == "1970-01-01T00:00:01+00:00"
    assert record["model_info"]["additional_details"]["deployment_type"] == "self_deployed"
    assert [row["evaluation"]["is_correct"] for row in rows] == [False, True]
    assert [message["role"] for message in rows[1]["messages"]] == ["system", "user", "assistant"]
    assert rows[1]["answer_attribution"][0]["source"] == "messages[2].content"
    assert "output" not in rows[1]
    assert {row["evaluation_result_id"] for row in rows} == {result["evaluation_result_id"]}


def validate(root: Path) -> None:
    files = [str(path.relative_to(root)) for path in sorted(root.glob("data/*/*/*/*"))]
    assert files
    done = subprocess.run([str(EEE), "validate", *files], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(files)} passed, 0 warning-only, 0 failed" in done.stdout


@needs_eee
def test_every_eval_ever_accepts_runs_boards_and_measured_judges(run: Run, evaluated: Path, measured: None) -> None:
    run("leaderboard", "--output", "board.json")
    for source, owner in (("evaluate-lab_other", "a"), ("board.json", "a"), ("pairs.json", "b"), ("groups.json", "c")):
        assert "data/" in run(*EXPORT, source, "out", *AS_RECORD, "--owner", owner)
    write_system(make_system(), Path("out"), "chats")
    validate(Path("out"))


@needs_eee
def test_every_eval_ever_refuses_a_score_out_of_its_bounds(tmp_path: Path) -> None:
    """The validator that the files are shown to is one that can say no."""
    write_system(make_system(evaluations=(Evaluation("x", (Figure("win_rate", 101.0),), "y"),)), tmp_path, "c")
    with pytest.raises(AssertionError, match=r"score 101\.0 is outside"):
        validate(tmp_path)


def test_records_of_others_become_a_board(run: Run) -> None:
    """A win rate given as a proportion is percent, and its error goes along."""
    metric = {"metric_name": "win_rate", "metric_unit": "proportion", "min_score": 0, "max_score": 1}
    for name, score in (("a/x", 0.25), ("b/y", 0.5)):
        details = {"score": score, "uncertainty": {"standard_error": {"value": 0.05}}}
        result = {"evaluation_name": "alpaca", "metric_config": metric, "score_details": details}
        row = {"model_info": {"id": name}, "evaluation_results": [result]}
        Path(f"{score}.json").write_text(json.dumps(row))
    run("interchange", "read", "0.25.json", "0.5.json", "--board", "board.csv")
    assert Path("board.csv").read_text() == "system,win_rate,standard_error\na/x,25.0,5.0\nb/y,50.0,5.0\n"
    board = json.loads(run("leaderboard", "board.csv", "--json"))["boards"][0]
    assert [(row["system"], row["standard_error"]) for row in board["entries"]] == [("b/y", 5.0), ("a/x", 5.0)]


def test_a_name_that_a_spreadsheet_would_run_is_made_inert(run: Run) -> None:
    row = {"model": "=cmd()", "chat_template": None, "Focus": 0.5}
    Path("x.json").write_text(json.dumps(row))
    run("interchange", "read", "x.json", "--board", "board.csv")
    assert Path("board.csv").read_text() == "system,Focus\n'=cmd(),50.0\n"


def test_samples_become_outputs_that_are_judged_alike(run: Run, evaluated: Path) -> None:
    run(*EXPORT, "evaluate-lab_other", "out", *AS_RECORD)
    [samples] = Path("out").glob("data/*/*/*/*_samples.jsonl")
    run("interchange", "read", str(samples), "--outputs", "again.jsonl")
    outputs = [(row["output"], row["generator"]) for row in read_rows(Path("again.jsonl"))]
    assert outputs == [("Rhine, Elbe, Oder and Main.", "lab/other")] * 12
    judged = run("evaluate", "again.jsonl", "--reference", "theirs.json", "--annotator", "fitted", "--json")
    [record] = Path("out").glob("data/*/*/*/*.json")
    [result] = json.loads(record.read_text())["evaluation_results"]
    assert json.loads(judged)["headline"]["win_rate"] == result["score_details"]["score"]


def test_chats_become_outputs_behind_their_turns(run: Run, tmp_path: Path) -> None:
    write_system(make_system(), tmp_path, "chats")
    [samples] = tmp_path.glob("data/*/*/*/*_samples.jsonl")
    run("interchange", "read", str(samples), "--outputs", "again.jsonl")
    chat = read_rows(Path("again.jsonl"))[1]
    assert [turn["role"] for turn in chat["messages"]] == ["system", "user"]
    assert chat["output"] == "So."


# ------------------------------------------------------------------------------------------------- the Hub's results


def test_huggingface_hub_reads_what_is_written_for_it(run: Run, evaluated: Path) -> None:
    from huggingface_hub import parse_eval_result_entries

    written = run(*EXPORT, "evaluate-lab_mine", "model", *AS_HUB, "--source-url", "https://host.example/x").strip()
    assert written == "model/.eval_results/afarm-alpaca_eval-default.yaml"
    [entry] = parse_eval_result_entries(yaml.safe_load(Path(written).read_text()))
    assert (entry.dataset_id, entry.task_id) == ("tatsu-lab/alpaca_eval", "default")
    assert entry.source_url == "https://host.example/x"
    assert entry.notes is not None
    for said in ("win_rate, percent", "against lab/theirs", "judged by the formula fitted", "95% interval", "n=12"):
        assert said in entry.notes
    [row] = json.loads(run("interchange", "read", written, "--json"))["results"]
    assert (row["value"], row["dataset"], row["signed"]) == (entry.value, "tatsu-lab/alpaca_eval", "")


def test_a_board_has_a_file_for_each_model(run: Run, evaluated: Path) -> None:
    run("leaderboard", "--output", "board.json")
    run(*EXPORT, "board.json", "models", *AS_HUB)
    found = sorted(str(path.relative_to("models")) for path in Path("models").rglob("*.yaml"))
    assert found == [f"lab/{name}/.eval_results/afarm-alpaca_eval-default.yaml" for name in ("mine", "other")]


# ------------------------------------------------------------------------------------------------------ RewardBench

PAIRS = [
    {"instruction": f"q{n}", "output_1": "long answer", "output_2": "no", "preference": 1 + n % 2, "subset": subset}
    for n, subset in enumerate("aabb")
]
GROUPS = [
    {"id": "1", "prompt": "x", "chosen": ["a b c"], "rejected": ["a", "b", "c"], "num_correct": 1, "subset": "Focus"},
    {"id": "ref:1", "prompt": "y", "chosen": ["r"], "rejected": ["q"], "num_correct": 1, "subset": "Ties"},
    {"id": "tied:1", "prompt": "z", "chosen": ["r", "s"], "rejected": ["q"], "num_correct": 2, "subset": "Ties"},
]


@pytest.fixture
def measured(run: Run, sites: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of judges measured by the package afarm-judge-bench, which need not be there to read them."""
    for path in (sites["afarm-judge-bench"], HERE.parents[1] / "afarm-judge-bench/src"):
        monkeypatch.syspath_prepend(str(path))
    for name, rows in (("pairs", PAIRS), ("groups", GROUPS)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run("judge", "bench", f"{name}.jsonl", "--reward-model", "text_utility", "--output", f"{name}.json")


def test_measured_pairs_become_results_and_rows(run: Run, measured: None) -> None:
    run(*EXPORT, "pairs.json", "out", *AS_REWARDBENCH)
    summary, rows = json.loads(Path("out/me/rm.json").read_text()), read_rows(Path("out/me/rm_outputs.jsonl"))
    assert (summary["model"], summary["num_prompts"], summary["accuracy"]) == ("me/rm", 4, 0.5)
    assert summary["extra_results"] == {"a": 0.5, "b": 0.5}
    assert [row["results"] for row in rows] == [1, 0, 1, 0]  # the formula prefers the long answer
    assert (rows[1]["text_chosen"], rows[1]["text_rejected"]) == ("no", "long answer")
    again = run("judge", "bench", "pairs.jsonl", "--answers", "rm=out/me/rm_outputs.jsonl", "--json")
    assert json.loads(again)["judges"][0]["score"]["value"] == 50


def test_measured_groups_become_scores(run: Run, measured: None) -> None:
    run(*EXPORT, "groups.json", "out", *AS_REWARDBENCH)
    shares = json.loads(Path("out/eval-set/me/rm.json").read_text())
    columns = json.loads(Path("out/eval-set-scores/me/rm.json").read_text())
    assert {*shares} == {"model", "model_type", "chat_template", "Focus", "Ties"}
    assert shares["Focus"] == columns["results"][0] == 1
    assert columns["num_correct"] == [1, 1, 2]
    assert [len(scores) for scores in columns["scores"]] == [4, 2, 3]
    again = run("judge", "bench", "groups.jsonl", "--answers", "rm=out/eval-set-scores/me/rm.json", "--json")
    assert json.loads(again)["judges"][0]["subsets"]["Ties"]["value"] == pytest.approx(100 * shares["Ties"])
    read = json.loads(run("interchange", "read", "out/eval-set/me/rm.json", "--json"))["results"]
    assert [(row["system"], row["metric"]) for row in read] == [("me/rm", "Focus"), ("me/rm", "Ties")]


def test_rewardbench_finds_the_same_shares(run: Run, measured: None) -> None:
    """Its own functions on the written scores, and its own reader of results."""
    pythons = [f"{place}/bin/python" for place in VALIDATORS if list(Path(place or "x").glob("lib/*/*/rewardbench"))]
    if not pythons:
        pytest.skip("rewardbench is not here: AFARM_VALIDATORS (see README.md)")
    run(*EXPORT, "groups.json", "out", *AS_REWARDBENCH)
    command = [pythons[0], str(HERE / "rewardbench_reads.py"), "out"]
    apart = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(Path("home").absolute())}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=apart)
    assert done.returncode == 0, done.stderr[-2000:]


# -------------------------------------------------------------------------------------------------------- bad input


def test_wrong_commands_say_what_to_do(run: Run, evaluated: Path) -> None:
    source = "evaluate-lab_mine"
    for words, told in (
        (["nothing", "out", *AS_RECORD], "no run 'nothing'"),
        (["mine.json", "out", *AS_RECORD], "must hold a JSON object, not list"),
        ([source, "mine.json", *AS_RECORD], "mine.json is a file: name a directory"),
        ([source, "out", "--to", "eee"], "--organization: say who evaluated"),
        ([source, "out", *AS_RECORD, "--relationship", "friend"], "choose from first_party"),
        ([source, "out", *AS_RECORD, "--collection", "../x"], "--collection '../x': must be a folder's"),
        ([source, "out", *AS_RECORD, "--model-id", "../../x"], "--model-id: '../../x' is not OWNER/NAME"),
        ([source, "out", *AS_RECORD, "--model-id", "it=me/x"], "no system 'it'; there are 'lab/mine'"),
        ([source, "out", *AS_HUB[:2]], "needs --dataset OWNER/NAME"),
        ([source, "out", *AS_HUB, "--figure", "elo"], "--figure elo: lab/mine has win_rate"),
        ([source, "out", *AS_HUB, "--source-url", "x y"], "must be an address"),
        ([source, "out", *AS_REWARDBENCH], "is no measured judge or reward model"),
        ([source, "out", *AS_RECORD, "--board", "1"], "--board 1: goes with a file of boards, and evaluate-lab_mine"),
        ([source, "out", *AS_RECORD, "--task", "x"], "--task: goes with --to hub, not eee"),
        ([source, "out", *AS_HUB, "--figures-only"], "--figures-only: goes with --to eee, not hub"),
        ([source, "out", *AS_REWARDBENCH, "--organization", "me"], "--organization: goes with --to eee, not rewardb"),
        ([source, "out", *AS_REWARDBENCH, "--dataset", "a/b"], "--dataset: goes with --to eee and hub, not rewardb"),
    ):
        assert told in run(*EXPORT, *words)
        assert not Path("out").exists()


def test_systems_without_an_id_are_all_named() -> None:
    with pytest.raises(ConfigError, match=r"'dpo', 'ppo \(2\)': add --model-id SYSTEM=OWNER/NAME"):
        model_ids(["dpo", "lab/x", "ppo (2)"], [])
    found = model_ids(["dpo", "lab/x", "T=1 /"], ["T=1 /=me/hot"], "me")
    assert found == {"dpo": "me/dpo", "lab/x": "lab/x", "T=1 /": "me/hot"}
    with pytest.raises(ConfigError, match="me/a-b would be the id of several systems"):
        model_ids(["a b", "a-b"], [], "me")
    hostile = ["..", "a/..", "/a", "a/", "a/b/c", "con/x", "a/nul.txt", "a/b.", "a/ b", "data/x", "a\n/b", "a\\b/c"]
    assert not [name for name in hostile if is_repository(name)]


def test_a_run_without_an_evaluation_and_a_board_of_two_judges(run: Run, evaluated: Path) -> None:
    [path] = evaluated.glob("runs/evaluate-lab_mine*/run.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "results": []}))
    assert "has no win rate, so there is nothing to export" in run(*EXPORT, path.parent.name, "out", *AS_HUB)
    [result] = record["results"]
    path.write_text(json.dumps({**record, "results": [{**result, "protocol": {"annotator": "x"}}]}))
    run("leaderboard", "--output", "board.json")
    told = run(*EXPORT, "board.json", "out", *AS_HUB)
    assert "has 2 boards, judged in different ways" in told
    assert "--board 2: judged by" in told
    assert "--board 3: board.json has 2" in run(*EXPORT, "board.json", "out", *AS_HUB, "--board", "3")
    assert len(run(*EXPORT, "board.json", "out", *AS_HUB, "--board", "1").split()) == 1


ENTRY: Mapping[str, Any] = {"dataset": {"id": "a/b", "task_id": "t"}, "value": 1}


@pytest.mark.parametrize(
    "entry, told",
    [
        ({**ENTRY, "vaule": 2}, "entry 0: field 'vaule' is unknown"),
        ({**ENTRY, "dataset": {"id": "a/b", "task": "t"}}, "dataset: field 'task' is unknown"),
        ({**ENTRY, "dataset": {"id": "../b", "task_id": "t"}}, "dataset.id must be OWNER/NAME"),
        ({**ENTRY, "value": float("nan")}, "value must be a finite number"),
        ({**ENTRY, "value": "high"}, "value must be a finite number"),
        ({**ENTRY, "source": {"name": "me"}}, "its source has no url"),
        ({**ENTRY, "source": {"url": ["x"]}}, "entry 0, source: url must be a text, not list"),
        ({**ENTRY, "notes": {"by": "me"}}, "entry 0: notes must be a text, not dict"),
        ({**ENTRY, "date": "yesterday"}, "date must be as"),
        ({**ENTRY, "date": 2026}, "date must be a text, not int"),
        ("text", "entry 0: must be a mapping"),
    ],
)
def test_wrong_entries_are_named(entry: Any, told: str, run: Run) -> None:
    Path("x.yaml").write_text(yaml.safe_dump([entry]))
    assert told in run("interchange", "read", "x.yaml")


def test_dates_and_aliases_of_a_foreign_file_do_no_harm(run: Run) -> None:
    head = "- dataset: {id: a/b, task_id: t}\n  value: 1\n"
    Path("x.yaml").write_text(f"{head}  date: 2026-11-29\n")
    assert json.loads(run("interchange", "read", "x.yaml", "--json"))["results"][0]["date"] == "2026-11-29"
    Path("x.yaml").write_text(f"{head}  date: 2026-13-45\n")
    told = run("interchange", "read", "x.yaml")
    assert "x.yaml: entry 0: date must be as 2026-11-29 or 2026-11-29T07:45:00Z, not '2026-13-45'" in told
    levels = [f"    l{n}: &l{n} [{', '.join([f'*l{n - 1}' if n else 'x'] * 10)}]" for n in range(9)]
    Path("x.yaml").write_text(f"{head}  notes:\n" + "\n".join(levels))
    assert "its aliases (*name) multiply" in run("interchange", "read", "x.yaml")


@pytest.mark.parametrize(
    "text, told",
    [
        ("{}", "is none of the known files"),
        ("[", "not valid JSON"),
        ('{"model": "a/b", "chat_template": null, "Focus": 40}', "field 'Focus' is 40; RewardBench's figures are"),
        ('{"model_info": {"id": 3}, "evaluation_results": []}', "'model_info.id' must be the name of a model, not 3"),
        ('{"model_info": {"id": "a"}, "evaluation_results": [3]}', "[0]: field 'metric_config' must be an object"),
    ],
)
def test_wrong_files_are_named(text: str, told: str, run: Run) -> None:
    Path("x.json").write_text(text)
    assert told in run("interchange", "read", "x.json")


@pytest.mark.parametrize(
    "bounds, told",
    [
        ({"min_score": 0, "max_score": 1}, "'max_score' is 1"),
        ({"max_score": 1}, "'max_score' is 1"),
        ({"min_score": 2}, "'min_score' is 2"),
    ],
)
def test_a_score_that_its_record_does_not_allow_is_named(bounds: Any, told: str) -> None:
    result = {"metric_config": bounds, "score_details": {"score": 1.5}}
    with pytest.raises(DataError, match=rf"^f: .*\[0\]: the score 1\.5 lies outside of its own bounds: {told}$"):
        list(read_figures({"model_info": {"id": "a/b"}, "evaluation_results": [result]}, "f"))


def test_figures_named_as_a_boards_own_columns_get_another_name(run: Run) -> None:
    row = {"model": "a/b", "chat_template": None, "system": 0.25, "standard_error": 0.5}
    Path("x.json").write_text(json.dumps(row))
    run("interchange", "read", "x.json", "--board", "board.csv")
    told = "system,RewardBench: system,RewardBench: standard_error\na/b,25.0,50.0\n"
    assert Path("board.csv").read_text() == told


def read_samples(run: Run, *changes: Mapping[str, Any]) -> str:
    """Read a file with a row of samples for each change; return what was said."""
    row = {"model_id": "a/b", "sample_id": "1", "input": {"raw": "hi"}, "output": {"raw": ["o"]}}
    rows = [{name: value for name, value in {**row, **change}.items() if value is not None} for change in changes]
    Path("u_samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("u.jsonl").unlink(missing_ok=True)
    return run("interchange", "read", "u_samples.jsonl", "--outputs", "u.jsonl", "--json")


def test_samples_are_left_out_only_if_they_are_repeats(run: Run) -> None:
    """Two evaluations count from the same number on; one output is judged twice; a model is asked twice."""
    other, again = {"input": {"raw": "ho"}}, {"evaluation_name": "against another"}
    several = {"sample_id": 2, "output": {"raw": ["p", "q"]}}
    assert json.loads(read_samples(run, {}, other, again, several, several))["repeats"] == 3
    said = [(row["instruction"], row["output"]) for row in read_rows(Path("u.jsonl"))]
    assert said == [("hi", "o"), ("ho", "o"), ("hi", "p"), ("hi", "q")]


@pytest.mark.parametrize(
    "change, told",
    [
        ({"sample_id": None}, "'sample_id' must be the sample's name, not None"),
        ({"sample_id": ["x"]}, "'sample_id' must be the sample's name, not ['x']"),
        ({"messages": ["x", {"role": "assistant", "content": "y"}]}, "messages[0]: must be an object whose 'role'"),
        ({"messages": [{"role": "user", "content": ["z"]}]}, "messages[0]: must be an object whose 'role'"),
        ({"messages": [{"role": "user", "content": "z"}]}, "last message is not the assistant's"),
        ({"output": {"raw": ["o", 3]}}, "'output.raw' must be a list of texts"),
        ({"interaction_type": "agentic"}, "is an agent's sample"),
        ({"model_id": "c/d"}, "has samples of 2 models"),
    ],
)
def test_wrong_samples_are_named(change: Any, told: str, run: Run) -> None:
    said = read_samples(run, {}, change)
    assert told in said
    assert "u_samples.jsonl" in said
    assert not Path("u.jsonl").exists()


def test_damaged_rows_of_measured_judges_are_named(run: Run, measured: None) -> None:
    document, judge = json.loads(Path("pairs.json").read_text()), "reward:text_utility"
    nan = float("nan")
    unlike = ({"judges": {judge: [nan, 1.0]}}, {"credit": {judge: nan}}, {"credit": {judge: None}}, {"label": nan})
    for change in ({"right": [7]}, {"credit": {"reward:text_utility": 2}}, {"outputs": None}, {"label": "x"}, *unlike):
        rows = [document["items"][0], {**document["items"][1], **change}]
        Path("bad.json").write_text(json.dumps({**document, "items": rows}))
        assert "bad.json: row 1: " in run(*EXPORT, "bad.json", "out", *AS_REWARDBENCH)
    for change, told in (
        ({"score": {"value": nan}}, "judge 0: 'score' has no number as its value"),
        ({"score": None, "accuracy": None, "subsets": {}}, "judge 0: has no name or no score"),
        ({"subsets": {"a": 50.0}}, "judge 0: 'score of a' has no number as its value"),
        ({"accuracy": {"value": 101}}, "judge 0: 'accuracy' is 101, and must lie between 0 and 100"),
    ):
        Path("bad.json").write_text(json.dumps({**document, "judges": [{**document["judges"][0], **change}]}))
        assert told in run(*EXPORT, "bad.json", "out", *AS_REWARDBENCH)
    Path("bad.json").write_text(json.dumps({**document, "items": []}))
    assert "has figures and no rows" in run(*EXPORT, "bad.json", "out", *AS_REWARDBENCH)


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, afarm_interchange.command; print([m for m in ('torch', 'yaml', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
