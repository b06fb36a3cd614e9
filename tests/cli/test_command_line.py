"""The command line: what goes where, with which exit code, and in which words."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from light_plugin import RAN, CountingJudge
from said import Afarm, failed

from afarm.cli.given_settings import parse_judges
from afarm.core.judge import Capabilities, ChatRequest, Completion
from afarm.experiment.farm import Farm

LIGHT = ["--recipe", "light.yaml"]


def write_outputs(path: Path, texts: list[str], generator: str) -> str:
    rows = [{"instruction": f"i{n}", "output": text, "generator": generator} for n, text in enumerate(texts)]
    path.write_text(json.dumps(rows))
    return str(path)


# ---------------------------------------------------------------------------------------------------------- errors


def test_unknown_names_are_suggested_and_nothing_is_run(afarm: Afarm, tmp_path: Path) -> None:
    failed(afarm("run", "--method", "pp"), "unknown method 'pp'", "'ppo'")
    failed(afarm("run", "--recipe", "toi"), "unknown recipe 'toi'", "'toy'")
    failed(afarm("run", "--annotator", "pol"), "unknown annotator 'pol'", "'pool'")
    failed(afarm("run", "--set", "ppo.lr=1"), "ppo.lr: unknown setting")
    failed(afarm("run", "--dataset", "toyy"), "unknown data set 'toyy'", "'toy'")
    failed(afarm("run", "--judge", "offlin"), "unknown judge 'offlin'", "'offline'")
    failed(afarm("run", "--reward-model", "bradley"), "unknown reward model 'bradley'", "'bradley_terry'")
    assert not (tmp_path / "afarm-runs").exists()


def test_all_problems_are_shown_together(afarm: Afarm) -> None:
    said = afarm("run", "--method", "pp", "--annotator", "pol", "--set", "sead=1", "--model", "./nowhere")
    failed(said, "4 problems", "'pp'", "'pol'", "'sead'", "./nowhere")


def test_text_that_looks_like_markup_is_shown_as_it_is(afarm: Afarm) -> None:
    failed(afarm("run", "--method", "[bold]x[/bold]"), "[bold]x[/bold]")
    failed(afarm("run", "--recipe", "[/red]"), "[/red]")


def test_wrong_usage_exits_with_2(afarm: Afarm) -> None:
    failed(afarm("run", "--no-such-option"), "--no-such-option", code=2)
    failed(afarm("nonsense"), "nonsense", code=2)


def test_an_output_directory_that_cannot_be_written_is_named(afarm: Afarm, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = afarm("run", *LIGHT, "--output-dir", "file/out")
    failed(said, "file/out cannot be written", "--output-dir")
    said = afarm("run", *LIGHT, "--dry-run", "--output-dir", "file/out")
    assert said.code == 0, said.err
    assert "Note: the output directory file/out cannot be written" in said.err


def test_a_plan_needs_no_directory_that_may_be_written_and_knows_what_is_there(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents() -> dict[Path, float]:
        return {path: path.stat().st_mtime for path in (tmp_path / "afarm-runs").rglob("*")}

    assert afarm("run", *LIGHT).code == 0
    before, reach, probe = contents(), os.access, Path.write_bytes

    def refuse(path: Path, content: bytes) -> int:
        if path.name.startswith(".probe") and path.parent == Path("afarm-runs"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return probe(path, content)

    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and reach(path, mode))
    monkeypatch.setattr(Path, "write_bytes", refuse)  # as on a file system that is mounted to be read
    for command in (["run", *LIGHT, "--dry-run", "--json"], ["cost", *LIGHT, "--json"]):
        said = afarm(*command)
        assert said.code == 0, said.err
        assert "Note: the output directory afarm-runs cannot be written: Read-only file system" in said.err
        assert all(stage["reused"] for stage in said.json.get("stages", []))
    assert contents() == before


def test_missing_data_is_named(afarm: Afarm) -> None:
    failed(afarm("run", *LIGHT, "--data", "none.json", "--method", "pp"), "none.json: no such file", "'pp'")


def test_an_option_and_a_setting_that_contradict_each_other_are_both_named(afarm: Afarm, tmp_path: Path) -> None:
    failed(afarm("run", *LIGHT, "--seed", "3", "--set", "seed=4"), "--seed 3", "--set seed=4")
    failed(afarm("run", *LIGHT, "--annotator", "a", "--set", "annotate.annotator=b"), "--annotator a", "annotator=b")
    failed(afarm("run", *LIGHT, "--judge", "counting:a", "--set", "judge.*=counting"), "--judge", "judge.*=counting")
    (tmp_path / "d.json").write_text('[{"instruction": "x"}]')
    failed(afarm("run", *LIGHT, "--data", "d.json", "--dataset", "toy"), "--data d.json", "--dataset toy")
    both = [*LIGHT, "--seed", "3", "--set", "seed=3", "--judge", "counting:a", "--set", "judge.strong=counting:b"]
    assert afarm("run", *both, "--dry-run").code == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_stdout_that_cannot_be_written_is_one_clear_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "afarm", "recipes"]
        said = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert said.returncode == 1
    assert said.stderr == "Error: No space left on device\n"


def test_an_interrupt_exits_with_130_and_says_that_nothing_is_lost(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Farm, method: str | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Farm, "evaluate", interrupted)
    failed(afarm("run", *LIGHT), "Nothing finished is lost", "same command", code=130)


# ------------------------------------------------------------------------------------------------------------- run


def test_a_dry_run_shows_the_plan_and_runs_nothing(afarm: Afarm) -> None:
    said = afarm("run", *LIGHT, "--dry-run")
    assert said.code == 0
    assert "nothing is run" in said.out
    assert "fit-reward" in said.out
    assert "do" in said.out.splitlines()[2].split()
    planned = afarm("run", *LIGHT, "--dry-run", "--json").json
    assert [s["label"] for s in planned["stages"]][:2] == ["base", "sample"]
    assert all(not s["reused"] for s in planned["stages"])
    assert sum(s["calls"] for s in planned["stages"]) > 0
    assert RAN == []
    assert CountingJudge.asked == 0


def test_a_run_in_json_prints_one_object_on_stdout_and_the_rest_on_stderr(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["run", *LIGHT, "--json", "--seed", "3"]
    monkeypatch.setattr(sys, "argv", ["afarm", *arguments])
    said = afarm(*arguments)
    assert said.code == 0, said.err
    assert said.out.count("\n") == 1
    record = said.json
    assert record["method"] == "nudge"
    assert record["seed"] == 3
    assert record["headline"]["win_rate"] > 50
    assert record["command"] == shlex.join(["afarm", *arguments])
    assert Path(record["report"]).is_file()
    assert "win rate" in said.err
    assert "✓ fit-reward" in said.err
    assert {p.name for p in (tmp_path / "afarm-runs").glob("[!.]*")} == {"artifacts", "ledger.sqlite", "runs"}


def test_a_second_run_says_what_it_reuses(afarm: Afarm) -> None:
    first = afarm("run", *LIGHT)
    assert "win rate" in first.out
    assert "reused" not in first.err
    second = afarm("run", *LIGHT, "--method", "direct")
    assert second.code == 0
    for stage in ("base", "sample", "annotate", "fit-reward", "outputs base"):
        (line,) = [line for line in second.err.splitlines() if line.startswith(f"✓ {stage} ")]
        assert "reused" in line
    assert "5 of 8 stages" in second.out


def test_options_reach_the_configuration(afarm: Afarm) -> None:
    said = afarm(
        *("run", *LIGHT, "--json", "--budget", "5", "--annotator", "gpt4_1", "--seed", "9", "--method", "direct"),
        *("--judge", "counting:a", "--judge", "strong=counting:b", "--set", "evaluate.temperature=0.5"),
    )
    assert said.code == 0, said.err
    config = said.json["config"]
    assert config["judge"] == {"*": "counting:a", "strong": "counting:b"}
    assert (config["budget"], config["annotate"]["annotator"], config["seed"]) == (5.0, "gpt4_1", 9)
    assert (config["method"], config["evaluate"]["temperature"]) == ("direct", 0.5)
    assert config["evaluate"]["annotator"] == "pool", "--annotator labels the training pairs; it does not judge itself"


@pytest.mark.parametrize(
    ("options", "judges"),
    [
        (["offline"], {"*": "offline"}),
        (["openai:gpt-x"], {"*": "openai:gpt-x"}),
        (["strong=openai:gpt-x", "light=offline"], {"strong": "openai:gpt-x", "light": "offline"}),
        (["strong=a", "b"], {"strong": "a", "*": "b"}),
        (["local:/models/a=b"], {"*": "local:/models/a=b"}),
        (["openai-compatible:llama3:8b@http://x/?a=b"], {"*": "openai-compatible:llama3:8b@http://x/?a=b"}),
    ],
)
def test_judges_are_named_for_all_roles_or_for_one(options: list[str], judges: dict[str, str]) -> None:
    assert parse_judges(options) == judges


def test_results_are_shown_whatever_the_evaluators(afarm: Afarm) -> None:
    alone = afarm("run", *LIGHT, "--set", "evaluate.evaluators=[reward]")
    assert alone.code == 0, alone.err
    assert "paired difference" in alone.out
    assert "win rate" not in alone.out
    other_way_round = afarm("run", *LIGHT, "--set", "evaluate.evaluators=[reward, win_rate]")
    assert "won" in other_way_round.out
    assert other_way_round.out.count("paired difference") == 1


# ----------------------------------------------------------------------------------------------------------- steps


def test_each_stage_is_a_command_that_prints_where_its_result_is(afarm: Afarm, tmp_path: Path) -> None:
    made: dict[str, Any] = afarm("annotate", *LIGHT, "--json").json
    assert made["stage"] == "annotate"
    assert made["reused"] is False
    assert Path(made["path"], "preferences.jsonl").is_file()
    assert made["summary"]["rows"] == 12
    assert not any("fit-reward" in ran or "Nudge" in ran for ran in RAN)
    again = afarm("annotate", *LIGHT)
    assert again.out.strip() == made["path"]
    assert afarm("train", *LIGHT, "--method", "direct", "--json").json["stage"] == "train direct"
    assert afarm("evaluate", *LIGHT, "--json").json["method"] == "nudge"


def test_evaluate_alone_shows_its_help_and_trains_nothing(afarm: Afarm) -> None:
    alone = afarm("evaluate")
    assert "Usage:" in alone.out + alone.err
    assert "--reference" in alone.out + alone.err
    failed(afarm("evaluate", "--seed", "3"), "afarm evaluate FILE --reference FILE", "--method")
    assert RAN == []
    assert "Usage:" in "".join([(bare := afarm("diff")).out, bare.err])


def test_a_reward_model_that_needs_no_fitting_is_said_to(afarm: Afarm) -> None:
    said = afarm("fit-reward", *LIGHT, "--reward-model", "text_utility", "--json")
    assert said.code == 0
    assert said.json["stage"] is None
    assert "needs no fitting" in said.err


# ------------------------------------------------------------------------------------------------- files of outputs


def test_two_files_of_outputs_are_compared(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", ["word word", "word word", "word", "equal"], "mine")
    theirs = write_outputs(tmp_path / "theirs.json", ["word", "word", "word word", "equal"], "theirs")
    arguments = ["evaluate", mine, "--reference", theirs, "--annotator", "chatgpt_1", *LIGHT]
    said = afarm(*arguments, "--json")
    assert said.code == 0, said.err
    assert said.json["system"] == "mine"
    metrics = said.json["metrics"]
    assert (metrics["win_rate"], metrics["n_wins"], metrics["n_draws"], metrics["n_total"]) == (62.5, 2, 1, 4)
    assert CountingJudge.asked == 3, "identical outputs are a draw without a call"
    assert said.json["degraded"] == {}
    plain = afarm(*arguments)
    assert "mine against theirs" in plain.out
    assert "win rate 62.5 %" in plain.words
    assert "2 won, 1 lost, 1 drawn (1 of identical outputs, not judged), 0 unparsed" in plain.words
    assert "for 3 calls (this time $0.00 for 0)" in plain.words
    assert "reused" in plain.err
    assert CountingJudge.asked == 3, "answers are not bought twice"
    assert Path(said.json["report"]).is_file()
    assert said.json["report"] in plain.out
    assert afarm("report", said.json["name"]).out.strip() == said.json["report"]


def test_what_two_files_would_cost_is_told_and_nothing_is_sent(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", ["word word", "two", "equal"], "mine")
    theirs = write_outputs(tmp_path / "theirs.json", ["word", "one", "equal"], "theirs")
    files = [mine, "--reference", theirs, "--annotator", "chatgpt_1", *LIGHT]
    planned, priced = afarm("evaluate", *files, "--dry-run", "--json"), afarm("cost", *files, "--json")
    assert planned.json == priced.json
    assert (planned.json["system"], planned.json["reference"]) == ("mine", "theirs")
    assert [(s["label"], s["calls"]) for s in planned.json["stages"]] == [("compare mine with theirs", 2)]
    shown = afarm("evaluate", *files, "--dry-run")
    assert "mine against theirs" in shown.out
    assert "asked for again not counted. Nothing was sent." in shown.out
    assert CountingJudge.asked == 0
    assert not (tmp_path / "afarm-runs").exists()
    assert afarm("evaluate", *files).code == 0
    assert "About 0 judge calls" in afarm("cost", *files).out
    failed(afarm("cost", mine, *LIGHT), "--reference FILE")


def test_files_that_name_nobody_are_told_apart_by_their_own_names(afarm: Afarm, tmp_path: Path) -> None:
    files = [write_outputs(tmp_path / f"{name}.json", [text], "") for name, text in (("a", "word word"), ("b", "word"))]
    said = afarm("evaluate", files[0], "--reference", files[1], "--annotator", "chatgpt_1", *LIGHT, "--json")
    assert (said.json["system"], said.json["reference"]) == ("a", "b")
    assert Path(said.json["report"]).parent.name.startswith("evaluate-a-vs-b-chatgpt_1-seed42-")


def test_what_judges_could_not_take_is_told(afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingJudge, "capabilities", Capabilities(chat=True, completion=True))
    mine = write_outputs(tmp_path / "mine.json", ["word word", "equal"], "mine")
    theirs = write_outputs(tmp_path / "theirs.json", ["word", "equal"], "theirs")
    files = ["evaluate", mine, "--reference", theirs, "--annotator", "chatgpt_1", *LIGHT]
    failed(afarm(*files), "logit_bias")
    said = afarm(*files, "--allow-degraded", "--json")
    assert said.json["degraded"] == said.json["results"][0]["degraded"] == {"logit_bias": 1}
    line = "compare mine with theirs: of 2 labels, 1 without logit_bias"
    assert line in said.words
    assert line in afarm(*files, "--allow-degraded").words
    assert line in Path(said.json["report"]).read_text()
    run = afarm("run", *LIGHT, "--annotator", "chatgpt_1", "--set", "evaluate.annotator=chatgpt_1", "--allow-degraded")
    assert run.out.count("│ degraded") == 2, "training labels and judgements"


def test_who_judges_two_files_is_in_the_help(afarm: Afarm) -> None:
    assert "Who judges files of outputs" in afarm("evaluate", "--help").out
    assert "Who labels the training pairs" in afarm("run", "--help").out


def test_two_files_ask_nothing_of_annotators_that_do_not_compare_them(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", ["word word", "two"], "mine")
    theirs = write_outputs(tmp_path / "theirs.json", ["word", "one"], "theirs")
    judge = ["--judge", "openai-compatible:m@http://127.0.0.1:9/v1", "--set", "openai-compatible.max_retries=0"]
    for annotator, asks_for_bias in (("gpt4_3", False), ("gpt4_4", True)):
        said = afarm("evaluate", mine, "--reference", theirs, "--annotator", annotator, *judge)
        assert said.code == 1
        assert ("logit_bias" in said.err) == asks_for_bias
        assert "chatgpt" not in said.err, "a member of the recipe's pool, which is not asked"


@pytest.mark.parametrize(
    "command", [["evaluate"], ["evaluate", "--until", "decided"], ["evaluate", "--dry-run"], ["cost"]]
)
def test_no_formula_decides_real_text_unless_it_is_named(command: list[str], afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", ["a clear and helpful answer to it", "yes"], "mine")
    theirs = write_outputs(tmp_path / "theirs.json", ["no", "no"], "theirs")
    files = [command[0], mine, "--reference", theirs, *command[1:]]
    for annotator in ([], ["--annotator", "gpt4_4"]):
        said = afarm(*files, *annotator)
        lines = said.err.splitlines()
        failed(said)
        names = [line.split("   ")[0].strip() for line in lines[1:]]
        assert names == [
            f"--judge {name}" for name in ("openai:gpt-4o", "local:MODEL", "replay:FILE", "fitted", "offline")
        ]
        assert re.search(r"a language model, about \$[\d.]+ for 2 pairs \(at most \$[\d.]+\)$", lines[1])
        assert "mine.json" not in said.err, "the command is not repeated"
        assert "--annotations FILE" in lines[3]
        shares = re.findall(r"--judge (\w+) .*agrees with people on (\d+) %", said.err)
        assert shares == [("fitted", "69"), ("offline", "62")]
    assert not (tmp_path / "afarm-runs").exists(), "nothing was written"
    missing = afarm(command[0], "nowhere.json", "--reference", theirs, *command[1:])
    failed(missing, "nowhere.json")
    some = afarm(*files, "--judge", "strong=light/counting")
    failed(some, "no judge answers for the role")
    for named in (["--judge", "offline"], LIGHT, ["--judge", "light/counting"], ["--annotator", "reward:text_utility"]):
        assert "no judge is named" not in afarm(*files, *named).err
    wrong = afarm(*files, "--annotator", "alpaca_eval:nowhere")
    assert (wrong.code, "no judge is named" in wrong.err) == (1, False)


def test_a_run_without_a_judge_says_what_a_paid_one_takes(afarm: Afarm, tmp_path: Path) -> None:
    """The price is that of `afarm cost`, where the pairs are known; else it is of a thousand."""
    light = yaml.safe_load(Path("light.yaml").read_text())
    del light["judge"]
    Path("mine.yaml").write_text(yaml.safe_dump(light))
    for command, many in [
        (["run"], r"for [\d,]+ pairs"),
        (["cost"], r"for [\d,]+ pairs"),
        (["annotate"], r"for [\d,]+ pairs"),
        (["train"], r"for [\d,]+ pairs"),
        (["run", "--dry-run", "--set", "rows.preference=5"], r"for [\d,]+ pairs"),
        (["run", "--model", "./nowhere", "--set", "dataset=toy"], "per 1,000 pairs"),
    ]:
        said = afarm(*command, "--recipe", "mine.yaml")
        failed(said, "no judge is named")
        priced = re.search(rf"--judge openai:gpt-4o +a language model, about (\S+) {many} \(at most (\S+)\)", said.err)
        assert priced, said.err
        if command[0] == "cost":
            told = afarm("cost", "--recipe", "mine.yaml", "--judge", "openai:gpt-4o").out
            assert f"{priced[1]} expected, at most {priced[2]}" in told
    assert not (tmp_path / "afarm-runs").exists(), "nothing was written"


def test_an_annotator_that_asks_nobody_stands_for_itself(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", ["a clear and helpful answer to it", "yes"], "mine")
    theirs = write_outputs(tmp_path / "theirs.json", ["no", "no"], "theirs")
    scored = afarm("evaluate", mine, "--reference", theirs, "--annotator", "reward:text_utility")
    assert "judged by reward:text_utility (no judge was asked" in scored.words
    page = Path(scored.out.rpartition("Report:")[2].strip()).read_text()
    assert 'id="unasked"' in page
    named = afarm("evaluate", mine, "--reference", theirs, "--judge", "light/counting", "--json")
    assert 'id="unasked"' not in Path(named.json["report"]).read_text()


def test_label_noise_is_of_the_training_labels_and_with_two_files_of_the_judgements(
    afarm: Afarm, tmp_path: Path
) -> None:
    mine = write_outputs(tmp_path / "mine.json", [f"word word {i}" for i in range(40)], "mine")
    theirs = write_outputs(tmp_path / "theirs.json", [f"word {i}" for i in range(40)], "theirs")
    files = ["evaluate", mine, "--reference", theirs, "--annotator", "chatgpt_1", *LIGHT]
    noisy = afarm(*files, "--label-noise", "0.5", "--json")
    assert noisy.json["config"]["evaluate"]["label_noise"] == 0.5
    assert (noisy.json["annotators"]["evaluation"], CountingJudge.asked) == ({"(noise)": 40}, 0)
    failed(afarm(*files, "--label-noise", "0.1", "--set", "evaluate.label_noise=0.2"), "--label-noise 0.1 and --set")
    run = afarm("run", *LIGHT, "--label-noise", "0.2", "--json").json
    assert run["config"]["annotate"]["label_noise"] == 0.2
    assert run["config"]["evaluate"]["label_noise"] == 0.0
    failed(afarm("run", *LIGHT, "--label-noise", "0.6"), "--label-noise", code=2)


def test_nothing_readable_is_told_with_what_it_cost_and_where_to_look(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mumble(self: CountingJudge, request: ChatRequest) -> Completion:
        return Completion("hm", 100, 10, price=0.01)

    monkeypatch.setattr(CountingJudge, "complete", mumble)
    mine = write_outputs(tmp_path / "mine.json", ["word word", "two"], "mine")
    theirs = write_outputs(tmp_path / "theirs.json", ["word", "one"], "theirs")
    files = [mine, "--reference", theirs, "--annotator", "chatgpt_1", *LIGHT, "--output-dir", "my runs"]
    said = afarm("evaluate", *files)
    failed(said, "none of 2 pairs has a usable judgement (2 unparsed); $0.06 spent this time")
    look = said.err[said.err.index("afarm ledger") :].split("--export FILE")[1].split()
    assert afarm("ledger", "--export", "all.jsonl", *shlex.split(" ".join(look))).code == 0
    assert Path("all.jsonl").read_text().count("hm") == 6
    assert "token limit" not in said.err

    async def think(self: CountingJudge, request: ChatRequest) -> Completion:
        return Completion("", 100, 10, price=0.01, finish_reason="length")

    monkeypatch.setattr(CountingJudge, "complete", think)
    said = afarm("evaluate", *files, "--output-dir", "others")
    failed(said, "2 of 2 answers ended at their token limit: does the judge think first (setting effort)?; $0.06 spent")


def test_files_that_cannot_be_compared_are_explained(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", ["a", "b"], "mine")
    short = write_outputs(tmp_path / "short.json", ["a"], "short")
    twice = tmp_path / "twice.json"
    twice.write_text(json.dumps([{"instruction": "i0", "output": text} for text in "xy"]))
    partial = tmp_path / "partial.json"
    partial.write_text(json.dumps([{"instruction": "i0"}]))
    empty = write_outputs(tmp_path / "empty.json", [], "")
    failed(afarm("evaluate", mine, *LIGHT), "--reference FILE")
    failed(afarm("evaluate", mine, short, *LIGHT), f"afarm evaluate {mine} --reference {short}")
    failed(afarm("evaluate", "--reference", mine, *LIGHT), "--reference needs a file of outputs before it")
    failed(afarm("evaluate", mine, "--reference", short, *LIGHT), "do not match the reference")
    failed(afarm("evaluate", mine, "--reference", str(twice), *LIGHT), "rows 0 and 1 hold the same instruction")
    failed(afarm("evaluate", str(partial), "--reference", mine, *LIGHT), "row 0: field 'output' is missing")
    failed(afarm("evaluate", empty, "--reference", mine, *LIGHT), "no instructions")
    failed(afarm("evaluate", "none.json", "--reference", mine, *LIGHT), "none.json: no such file")
    secret = "https://u:secret@h/x.json"
    for words in ((secret, "--reference", mine), (mine, "--reference", secret), ("--annotations", secret)):
        said = afarm("evaluate", *words, *LIGHT)
        failed(said, "URLs are not taken: download")
        assert "secret" not in said.err
    failed(afarm("evaluate", mine, "--reference", mine, "--annotator", "chatgpt1", *LIGHT), "'chatgpt_1'")


# ------------------------------------------------------------------------------------------------ artifacts, report


def test_artifacts_are_listed_explained_and_collected(afarm: Afarm, tmp_path: Path) -> None:
    afarm("run", *LIGHT)
    keys = {p.parent.name for p in (tmp_path / "afarm-runs" / "artifacts").glob("*/*/artifact.json")}
    listed = afarm("artifacts", "list")
    assert len(keys) == 8
    assert all(key in listed.out for key in keys), "a key must be there whole, to be copied"
    lines = [line.rstrip() for line in listed.out.splitlines()]
    assert sum(any(key in line for key in keys) and line.endswith("  1") for line in lines) == 8, "no row is broken"
    assert max(map(len, lines)) <= 80
    [run] = (tmp_path / "afarm-runs" / "runs").iterdir()
    assert lines[-1] == f"run 1: {run.name}"
    rows = {row["label"]: row for row in afarm("artifacts", "list", "--json").json}
    assert {row["key"] for row in rows.values()} == keys
    assert {(row["seed"], row["state"], *row["runs"]) for row in rows.values()} == {(42, "finished", run.name)}
    shown = {label: row["method"] for label, row in rows.items() if row["method"]}
    against = "evaluate nudge against base"
    named = {"train nudge": "light/nudge", "outputs nudge": "nudge", "outputs base": "base", against: "nudge"}
    assert shown == named
    assert "0 artifacts" in afarm("artifacts", "gc").out

    loose = afarm("train", *LIGHT, "--set", "nudge.skill=0.25", "--json").json
    only = afarm("artifacts", "why", rows["fit-reward"]["key"]).out
    assert "There is no other artifact of the kind 'fit-reward' to compare it with." in only
    sampled = afarm("artifacts", "why", rows["outputs base"]["key"]).out
    assert "It is the only artifact of 'outputs base'" in sampled
    assert f"Its nearest relative is outputs/{rows['outputs nudge']['key']} (outputs nudge), with 1 diff" in sampled
    why = afarm("artifacts", "why", loose["key"][:8])
    assert why.code == 0
    assert f"Its nearest relative is train/{rows['train nudge']['key']} (train nudge), with 1 difference" in why.out
    assert "method.settings.skill: 0.5 → 0.25" in why.out
    assert "no finished run" in why.out
    assert "0 artifacts" in afarm("artifacts", "gc", "--yes").out, "a run may still be using what is a minute old"
    shown = afarm("artifacts", "gc", "--days", "0")
    assert f"train/{loose['key']}" in shown.out
    assert Path(loose["path"]).is_dir(), "only shown, not deleted"
    assert "1 artifacts" in afarm("artifacts", "gc", "--yes", "--days", "0").out
    assert not Path(loose["path"]).exists()
    assert {p.parent.name for p in (tmp_path / "afarm-runs" / "artifacts").glob("*/*/artifact.json")} == keys


def test_unfinished_artifacts_are_listed_and_kept_unless_asked_for(afarm: Afarm, tmp_path: Path) -> None:
    partial = tmp_path / "afarm-runs" / "artifacts" / "train" / "0123456789abcdef.partial"
    partial.mkdir(parents=True)
    (partial / "state").write_text("x")
    assert "unfinished" in afarm("artifacts", "list").out
    afarm("artifacts", "gc", "--yes")
    assert partial.exists()
    afarm("artifacts", "gc", "--yes", "--unfinished")
    assert partial.exists(), "a run may still be writing what is a minute old"
    afarm("artifacts", "gc", "--yes", "--unfinished", "--days", "0")
    assert not partial.exists()


def test_an_artifact_with_damaged_metadata_is_listed_as_such(afarm: Afarm) -> None:
    made = afarm("sample", *LIGHT, "--json").json
    (Path(made["path"]) / "artifact.json").write_text("{")
    listed = afarm("artifacts", "list")
    assert listed.code == 0
    [line] = [line for line in listed.out.splitlines() if made["key"] in line]
    assert "damaged" in line


def test_artifacts_that_are_not_there_are_errors(afarm: Afarm, tmp_path: Path) -> None:
    failed(afarm("artifacts", "list"), "afarm-runs does not exist", "--output-dir")
    (tmp_path / "empty").mkdir()
    assert afarm("artifacts", "list", "--output-dir", "empty").code == 0
    assert list((tmp_path / "empty").iterdir()) == [], "looking changes nothing"
    made = afarm("sample", *LIGHT, "--json").json
    failed(afarm("artifacts", "why", "zzzz"), "no artifact 'zzzz'", "`afarm artifacts list --output-dir afarm-runs`")
    failed(afarm("artifacts", "why", ""), "afarm artifacts list")
    failed(afarm("artifacts", "why", "sample/"), "afarm artifacts list")
    near = ("0" if made["key"][0] != "0" else "1") + made["key"][1:]
    failed(afarm("artifacts", "why", near), f"'{made['key']}'")


def test_a_report_is_written_again_or_its_run_suggested(afarm: Afarm) -> None:
    failed(afarm("report"), "no finished run", "afarm run")
    record = afarm("run", *LIGHT, "--json").json
    Path(record["report"]).unlink()
    said = afarm("report")
    assert Path(said.out.strip()) == Path(record["report"])
    assert Path(record["report"]).is_file()
    assert afarm("report", record["name"]).out == said.out
    failed(afarm("report", f"../runs/{record['name']}"), "no finished run '../runs/", f"'{record['name']}'")
    failed(afarm("report", record["name"][:-1] + "x"), "no finished run", f"'{record['name']}'")


# --------------------------------------------------------------------------------------------------------- listings


def test_plugins_and_recipes_are_listed(afarm: Afarm) -> None:
    found = {p["plugin"]: p for p in afarm("plugins", "--json").json}
    assert found["light"]["version"] == "1.2"
    assert {"kind": "method", "name": "light/nudge", "summary": ""} in found["light"]["components"]
    assert found["ppo"]["error"] == ""
    shown = afarm("plugins").out
    assert "light/nudge" in shown
    assert "light 1.2" in shown
    assert "toy" in afarm("recipes").out
    assert "kl_coef: 0.002" in afarm("recipes", "paper").out
    failed(afarm("recipes", "papr"), "'paper'")


# ------------------------------------------------------------------------------------------- names and looks ahead


def test_a_method_in_the_place_of_an_argument_is_told_its_option(afarm: Afarm) -> None:
    for command in ("evaluate", "train", "run"):
        failed(afarm(command, "best_of_n", *LIGHT), "--method best_of_n")
    failed(afarm("train", "nonsense", *LIGHT), "nonsense", code=2)


def test_a_look_ahead_makes_no_output_directory(afarm: Afarm, tmp_path: Path) -> None:
    for command in (["cost"], *([name, "--dry-run"] for name in ("run", "annotate", "train", "evaluate"))):
        said = afarm(*command, *LIGHT)
        assert said.code == 0, said.err
        assert "Nothing was sent" in said.out
    assert not (tmp_path / "afarm-runs").exists()
    planned = afarm("annotate", *LIGHT, "--dry-run", "--json").json
    assert [stage["label"] for stage in planned["stages"]] == ["base", "sample", "annotate"]


def test_the_version_is_shown(afarm: Afarm) -> None:
    import afarm as package

    assert afarm("--version").out == f"afarm {package.__version__}\n"


def test_one_name_stands_for_a_list_of_one_and_is_checked(afarm: Afarm) -> None:
    failed(afarm("run", *LIGHT, "--set", "evaluate.evaluators=win_rat"), "unknown evaluator 'win_rat'", "'win_rate'")


def test_ppo_says_which_setting_mends_too_long_a_warmup(afarm: Afarm) -> None:
    failed(afarm("run", "--set", "ppo.total_steps=1"), "--set ppo.warmup_steps=0")
