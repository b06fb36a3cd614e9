"""Logs that Inspect made, read by afarm, and logs that afarm wrote, read by Inspect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

pytest.importorskip(
    "inspect_ai", reason="inspect_ai is not installed; test_inspect_environment.py runs these elsewhere"
)

from afarm_inspect import samples
from afarm_inspect.logs import _share
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalError,
    EvalLog,
    EvalSample,
    EvalSpec,
    list_eval_logs,
    read_eval_log,
    recompute_metrics,
    write_eval_log,
)
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentAudio,
    ContentImage,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Score, includes
from inspect_ai.solver import Generate, TaskState, solver, system_message, use_tools
from inspect_ai.tool import ToolCall, tool

from afarm import Completion, results
from afarm.cli import main

Afarm = Callable[..., Any]

DOT = "data:image/png;base64,iVBORw0KGgo="
"""A picture, which Inspect keeps apart as an attachment where it is one, and a text where a model wrote it."""


@pytest.fixture
def afarm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Afarm:
    """Run a command in a directory of its own: return its JSON, or the error that it ended with."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--json"])
        printed = capsys.readouterr()
        return json.loads(printed.out) if not ended.value.code else " ".join(printed.err.split())

    return run


def write_outputs(name: str, outputs: list[str], first: int = 0) -> str:
    rows = [{"instruction": f"task {n}", "output": text, "generator": name} for n, text in enumerate(outputs, first)]
    Path(f"{name}.json").write_text(json.dumps(rows))
    return f"{name}.json"


def annotate(path: str, preferences: list[list[float | None]]) -> None:
    """Write stored annotations: for each instruction the preferences of one annotator after another."""
    sides = {"output_1": "aaa", "output_2": "bbbb", "generator_1": "theirs", "generator_2": "mine"}
    rows = [
        {"instruction": f"task {n}", "annotator": f"ann{number}", "preference": preference, **sides}
        for n, some in enumerate(preferences)
        for number, preference in enumerate(some)
    ]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


# ------------------------------------------------------------------------------------------------------------- written


def test_inspects_own_mean_and_error_are_the_win_rate_and_its_error(afarm: Afarm) -> None:
    """Wins of 1, 1, 0 and 0.5: mean 0.625, squares of 0.6875 over 3, the root over 2. One is unread."""
    annotate("labels.jsonl", [[2], [2], [1], [1.5], [None]])
    run = afarm("evaluate", "--annotations", "labels.jsonl")["name"]
    [row] = afarm("inspect", "write", run)
    assert (row["mean"], row["stderr"], row["samples"]) == (0.625, pytest.approx(0.2393568), 5)

    log = read_eval_log(row["log"])
    recompute_metrics(log)
    [score] = log.results.scores
    assert {name: metric.value for name, metric in score.metrics.items()} == {
        "mean": 0.625,
        "stderr": pytest.approx(0.2393568),
    }
    assert (score.scored_samples, score.unscored_samples) == (4, 1)
    assert (log.status, log.eval.model, log.eval.task_args["reference"]) == ("success", "mine", "theirs")
    theirs = log.results.metadata["win_rate"]
    assert (theirs["win_rate"], theirs["standard_error"]) == (62.5, pytest.approx(23.93568))
    unread = [sample.scores["win"] for sample in log.samples if sample.scores["win"].reason]
    assert [score.reason for score in unread] == ["grader_failed"]


def test_several_labels_of_an_instruction_are_a_cluster(afarm: Afarm) -> None:
    """Wins (1, 1), (0, 0), (1, 0): residuals by instruction 1, −1, 0, so √(2 · 3/2) / 6."""
    annotate("labels.jsonl", [[2, 2], [1, 1], [2, 1]])
    run = afarm("evaluate", "--annotations", "labels.jsonl")["name"]
    [row] = afarm("inspect", "write", run)
    assert row["stderr"] == pytest.approx(3**0.5 / 6)
    [figures] = results.open_run(run).figures()
    assert figures["standard_error"] == pytest.approx(100 * row["stderr"])
    assert len({sample.id for sample in read_eval_log(row["log"]).samples}) == 6


def test_the_judges_words_order_tokens_and_the_reference_are_in_the_log(afarm: Afarm) -> None:
    mine, theirs = write_outputs("mine", ["bbbb", "bb", "same"]), write_outputs("theirs", ["aaa", "aaa", "same"])
    record = afarm("evaluate", mine, "--reference", theirs, "--judge", "offline", "--annotator", "chatgpt_2")
    [row] = afarm("inspect", "write", record["name"])
    log = read_eval_log(row["log"])
    run = results.open_run(record["name"])
    answers, labels = run.answers(), {judged.pair.instruction.id: judged for judged in run.judgements()}
    assert len(log.samples) == 3
    for sample in log.samples:
        judged, score = labels[sample.metadata["instruction"]], sample.scores["win"]
        pair, label = judged.pair, judged.preference
        assert (sample.input, sample.target) == (pair.instruction.instruction, pair.output_1)
        assert (sample.output.completion, score.value) == (pair.output_2, judged.win)
        if pair.identical:
            assert (score.answer, score.explanation, score.metadata["source"]) == ("draw", None, "rule")
            continue
        assert score.answer == ("mine" if judged.win == 1 else "theirs")
        assert score.explanation == answers[label.completion].text
        assert score.metadata["shown first"] == {"12": "the reference", "21": "the system"}[label.order]
        assert (score.metadata["judge"], score.metadata["annotator"]) == (label.judge, "chatgpt_2")
    [(judge, used)] = log.stats.model_usage.items()
    spend = record["spend"]
    assert (used.input_tokens, used.output_tokens, used.total_cost) == (
        *(spend["input_tokens"], spend["output_tokens"]),
        0.0,
    )
    assert log.stats.role_usage["grader"] == used
    assert (
        sum(sample.model_usage[judge].total_tokens for sample in log.samples if sample.model_usage) == used.total_tokens
    )
    assert log.eval.tags == ["afarm", "simulated judge"]


def test_tokens_of_an_answer_about_several_pairs_add_up() -> None:
    answer = Completion("[1, 2, 1]", input_tokens=10, output_tokens=5, cached_input_tokens=4, price=0.3)
    parts = [_share(answer, number, 3) for number in range(3)]
    assert [(part.input_tokens, part.input_tokens_cache_read) for part in parts] == [(2, 1), (2, 1), (2, 2)]
    total = sum(parts, ModelUsage())
    assert (total.input_tokens, total.input_tokens_cache_read, total.output_tokens, total.total_tokens) == (6, 4, 5, 15)
    assert total.total_cost == pytest.approx(0.3)


def test_an_output_that_is_missing_is_lost_and_an_error_that_would_not_hold_is_not_given(afarm: Afarm) -> None:
    """An evaluation that was stopped when it was decided has no standard error."""
    mine, theirs = write_outputs("mine", ["bbbb", "bb"]), write_outputs("theirs", ["aaa"] * 3)
    judge = ("--judge", "offline", "--annotator", "chatgpt_4")
    run = afarm("evaluate", mine, "--reference", theirs, *judge, "--on-missing", "loss")["name"]
    [row] = afarm("inspect", "write", run)
    [sample] = [sample for sample in read_eval_log(row["log"]).samples if sample.input == "task 2"]
    assert (sample.output.choices, sample.scores["win"].value) == ([], 0.0)
    assert "stderr" in row
    place = results.open_run(run).directory / "run.json"
    record = json.loads(place.read_text())
    record["results"][0]["metrics"]["standard_error"] = None
    place.write_text(json.dumps(record))
    [row] = afarm("inspect", "write", run, "--log-dir", "out")
    assert "stderr" not in row


def write_logs_of_three_runs(afarm: Afarm) -> list[dict[str, Any]]:
    """Write the logs of two systems, one of them judged in two runs that share an artifact."""
    files = [write_outputs("mine", ["bbbb", "bb"]), write_outputs("other", ["a", "aaaaa"])]
    words = ("--reference", write_outputs("theirs", ["aaa", "aaa"]), "--judge", "offline", "--annotator", "chatgpt_2")
    runs = [afarm("evaluate", file, *words)["name"] for file in files]
    record = json.loads(Path("afarm-runs/runs", runs[0], "run.json").read_text())
    Path("afarm-runs/runs/again").mkdir()
    Path("afarm-runs/runs/again/run.json").write_text(json.dumps({**record, "name": "again"}))
    rows: list[dict[str, Any]] = afarm("inspect", "write", *runs, "again", "--log-dir", "out")
    assert len(rows) == 3
    return rows


def test_no_log_stands_for_the_retry_of_another(afarm: Afarm) -> None:
    rows = write_logs_of_three_runs(afarm)
    assert len({info.task_id for info in list_eval_logs("out")}) == len(rows)


def test_tables_of_inspect_have_the_same_figures(afarm: Afarm) -> None:
    pytest.importorskip("pandas", reason="Inspect's tables need pandas and pyarrow")
    from inspect_ai.analysis import evals_df, samples_df

    rows = write_logs_of_three_runs(afarm)
    table = evals_df("out").set_index("log")
    for row in rows:
        [found] = [found for log, found in table.iterrows() if log.endswith(row["log"])]
        assert (found["model"], found["score_win_mean"], found["score_win_stderr"]) == (
            *(row["system"], row["mean"], row["stderr"]),
        )
        assert found["score_headline_value"] == row["mean"]
    frame = samples_df("out")
    assert len(frame) == sum(row["samples"] for row in rows)
    assert sorted(frame.groupby("eval_id")["score_win"].mean()) == sorted(row["mean"] for row in rows)


def test_what_is_there_is_left_alone_and_what_is_missing_is_named(afarm: Afarm) -> None:
    mine, theirs = write_outputs("mine", ["bbbb", "bb"]), write_outputs("theirs", ["aaa"] * 2)
    run = afarm("evaluate", mine, "--reference", theirs, "--judge", "offline", "--annotator", "chatgpt_2")["name"]
    [row] = afarm("inspect", "write", run)
    Path(row["log"]).write_bytes(b"mine")
    assert f"{row['log']}: is there already" in afarm("inspect", "write", run)
    assert Path(row["log"]).read_bytes() == b"mine"

    [again] = afarm("inspect", "write", run, "--log-dir", "out", "--ledger", "nowhere.sqlite")
    assert {sample.scores["win"].explanation for sample in read_eval_log(again["log"]).samples} == {None}
    assert again["mean"] == row["mean"]

    unjudged = Path("afarm-runs/runs/unjudged")
    unjudged.mkdir()
    (unjudged / "run.json").write_text('{"name": "unjudged", "stages": [], "results": []}')
    assert "the run evaluated nothing" in afarm("inspect", "write", "unjudged")
    shutil.rmtree("afarm-runs/artifacts/evaluate")
    assert "the artifact of 'compare mine with theirs' is gone" in afarm("inspect", "write", run)


# ---------------------------------------------------------------------------------------------------------------- read


def made(*samples: EvalSample, path: str = "log.eval", status: str = "success", **config: Any) -> str:
    """Write a log as Inspect does. Its data set has as many samples as are named."""
    spec = EvalSpec(
        created="2026-11-29T06:00:00+00:00",
        task="made",
        model="vendor/model",
        dataset=EvalDataset(samples=len({sample.id for sample in samples})),
        config=EvalConfig(**config),
    )
    write_eval_log(EvalLog(status=status, eval=spec, samples=list(samples)), path)
    return path


def sampled(number: int, output: Any = "an answer", **fields: Any) -> EvalSample:
    given = {"epoch": 1, "input": f"task {number}", "target": "aaa", **fields}
    if isinstance(output, str):
        output = ModelOutput.from_content("vendor/model-2", output)
    return EvalSample(id=number, output=output, **given)


def rows_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@tool
def add() -> Any:
    async def execute(x: int, y: int) -> int:
        """Add two numbers.

        Args:
            x: One.
            y: The other.
        """
        return x + y

    return execute


@solver
def ask_again() -> Any:
    """Ask a second question of those that want it, as a simulated user does."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        if state.input_text == "twice":
            state.messages.append(ChatMessageUser(content="And now?"))
            state = await generate(state)
        return state

    return solve


def answer(messages: list[Any], *_: Any) -> ModelOutput:
    last = messages[-1]
    if last.text == "fail":
        raise RuntimeError("the vendor was away")
    if last.text == "add":
        output = ModelOutput.for_tool_call("mockllm/model", "add", {"x": 1, "y": 2})
    elif last.text == "dot":
        output = ModelOutput.from_content("mockllm/model", DOT)
    elif last.text == "cut":
        output = ModelOutput.from_content("mockllm/model", "this goes on and", "max_tokens")
    else:
        thought = ContentReasoning(reasoning="hm")
        output = ModelOutput.from_content("mockllm/model", [thought, ContentText(text=f"to {last.text}")])
    output.usage = ModelUsage(input_tokens=5, output_tokens=3, total_tokens=8)
    return output


def test_a_log_that_inspect_made_is_read_judged_and_written(afarm: Afarm) -> None:
    picture = ContentImage(image=DOT)
    talk = [ChatMessageSystem(content="Be kind."), ChatMessageUser(content="hi"), ChatMessageAssistant(content="yes?")]
    inputs: list[Any] = [
        *("plain", "dot", "cut", "add", "fail", "twice"),
        [*talk, ChatMessageUser(content=[ContentText(text="one"), ContentText(text="two")])],
        [ChatMessageUser(content=[ContentText(text="see"), picture])],
    ]
    [log] = eval(
        Task(
            dataset=[Sample(id=str(n), input=one, target="to") for n, one in enumerate(inputs)],
            solver=[system_message("You help."), use_tools(add()), ask_again()],
            scorer=includes(),
        ),
        model=get_model("mockllm/model", custom_outputs=answer),
        log_dir="logs",
        display="none",
        fail_on_error=False,
    )
    refused = afarm("inspect", "read", log.location, "-o", "mine.jsonl")
    for problem in (
        "1 of 8 samples failed, such as sample 4 (RuntimeError('the vendor was away'))",
        "1 of 8 samples have image content in their input, which afarm does not judge, such as sample 7",
        "1 of 8 samples were asked more than their input, so that their last answer is to another question, such as "
        "sample 5",
    ):
        assert problem in refused
    assert not list(Path.cwd().glob("mine*"))

    found = afarm("inspect", "read", log.location, "-o", "mine.jsonl", "--on-unusable", "drop")
    assert (found["rows"], found["system"]) == (5, "mockllm/model")
    assert found["notes"][-1] == "1 of 8 samples used tools; their last answer is taken as it stands, such as sample 3"
    rows = {row["sample_id"]: row for row in rows_of("mine.jsonl")}
    assert {n: (row["instruction"], row["output"], row["finish_reason"]) for n, row in rows.items()} == {
        "0": ("plain", "to plain", "stop"),
        "1": ("dot", DOT, "stop"),
        "2": ("cut", "this goes on and", "length"),
        "3": ("add", "to 3", "stop"),
        "6": ("one\ntwo", "to one\ntwo", "stop"),
    }
    assert [turn["content"] for turn in rows["6"]["messages"]] == ["Be kind.", "hi", "yes?"]
    assert rows["2"]["inspect_scores"] == {"includes": "I"}

    theirs = [{**row, "output": "another", "generator": "theirs"} for row in rows.values()]
    Path("theirs.json").write_text(json.dumps(theirs))
    judge = ("--judge", "offline", "--annotator", "chatgpt_2")
    record = afarm("evaluate", "mine.jsonl", "--reference", "theirs.json", *judge)
    [row] = afarm("inspect", "write", record["name"], "--log-dir", "out")
    assert 100 * row["mean"] == pytest.approx(record["headline"]["win_rate"])
    [chat] = [s for s in read_eval_log(row["log"]).samples if isinstance(s.input, list)]
    assert [message.role for message in chat.input] == ["system", "user", "assistant", "user"]


def test_a_log_of_afarm_gives_its_verdicts_back(afarm: Afarm) -> None:
    annotate("labels.jsonl", [[2], [1.75], [1], [1.5], [None]])
    before = results.open_run(afarm("evaluate", "--annotations", "labels.jsonl")["name"])
    [row] = afarm("inspect", "write", before.name)
    assert afarm("inspect", "read", row["log"], "-o", "back.jsonl", "--scorer", "win")["rows"] == 5
    after = results.open_run(afarm("evaluate", "--annotations", "back.jsonl")["name"])
    [mine], [theirs] = before.figures(), after.figures()
    assert mine["win_rate"] == 100 * (1 + 0.75 + 0 + 0.5) / 4
    names = ("system", "reference", "win_rate", "standard_error", "n_unparsed")
    assert [mine[name] for name in names] == [theirs[name] for name in names]


@pytest.mark.parametrize("path", ["log.eval", "log.json"])
def test_an_epoch_is_chosen_and_a_few_samples_are_read_at_a_time(
    path: str, afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "TOGETHER", 2)
    made(*(sampled(n, f"{n} in {epoch}", epoch=epoch) for epoch in (1, 2) for n in range(5)), path=path, epochs=2)
    assert "2 epochs, so 2 outputs for each instruction: choose one with --epoch N, 1 to 2" in afarm(
        "inspect", "read", path, "-o", "mine.jsonl"
    )
    assert "has no epoch 3, only 1 to 2" in afarm("inspect", "read", path, "-o", "mine.jsonl", "--epoch", "3")
    afarm("inspect", "read", path, "-o", "mine.jsonl", "--epoch", "2", "--name", "mine")
    rows = rows_of("mine.jsonl")
    assert sorted(row["output"] for row in rows) == [f"{n} in 2" for n in range(5)]
    assert {row["generator"] for row in rows} == {"mine"}
    assert {row["model"] for row in rows} == {"vendor/model-2"}


def spoil(path: str) -> str:
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 2])
    return path


def renew(path: str) -> str:
    document = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**document, "version": 3}))
    return path


NO_ANSWER = ModelOutput.for_tool_call("vendor/model", "add", {"x": 1})
CALLS = ChatMessageAssistant(content="", tool_calls=[ToolCall(id="1", function="add", arguments={})])
TOOL_TURNS = [ChatMessageUser(content="add"), CALLS, ChatMessageTool(content="3"), ChatMessageUser(content="so?")]
SOUND = [ChatMessageUser(content=[ContentAudio(audio="data:audio/wav;base64,AAAA", format="wav")])]
FAILED = EvalError(message="away", traceback="", traceback_ansi="")


@pytest.mark.parametrize(
    "make, problem",
    [
        (lambda: spoil(made(sampled(1))), "cannot read it as a log (ValueError: EOCD not found). If it was cut off"),
        (lambda: spoil(made(sampled(1), path="log.json")), "cannot read it as a log"),
        (lambda: renew(made(sampled(1), path="log.json")), "Unable to read version 3"),
        (lambda: write_outputs("mine", ["a"]), "cannot read it as a log"),
        (lambda: made(sampled(1), status="started"), "inspect log recover log.eval"),
        (lambda: made(status="success", log_samples=False), "has figures and no samples"),
        (lambda: made(), "no sample makes a row, there are none"),
        (lambda: "nosuch.eval", "no such file"),
        (lambda: "log.txt", "logs of Inspect end in .eval or .json"),
        (lambda: made(sampled(1, ModelOutput())), "1 of 1 samples have no output"),
        (lambda: made(sampled(1, NO_ANSWER)), "end with a call of a tool, and without an answer"),
        (lambda: made(sampled(1, error=FAILED)), "failed, such as sample 1 (away)"),
        (lambda: made(sampled(1, choices=["a", "b"])), "are multiple choice"),
        (lambda: made(sampled(1, input=SOUND)), "have audio content in their input"),
        (lambda: made(sampled(1, input=TOOL_TURNS)), "have a tool's turn in their input"),
        (lambda: made(sampled(1, input=[ChatMessageSystem(content="x")])), "no chat with the user's turn last"),
    ],
)
def test_what_cannot_be_read_is_named(make: Callable[[], str], problem: str, afarm: Afarm) -> None:
    assert problem in afarm("inspect", "read", make(), "-o", "rows.jsonl")
    assert not Path("rows.jsonl").exists()


def test_a_newer_log_in_the_other_format_and_one_that_lacks_samples(afarm: Afarm) -> None:
    log = read_eval_log(made(sampled(1)))
    import zipfile_zstd  # noqa: F401  (lets zipfile read what Inspect has compressed)

    with ZipFile("log.eval") as read, ZipFile("newer.eval", "w") as written:
        for name in read.namelist():
            written.writestr(name, read.read(name).replace(b'"version":2', b'"version":3'))
    assert "has version 3 of the format of logs" in afarm("inspect", "read", "newer.eval", "-o", "rows.jsonl")
    log.status, log.eval.dataset.samples = "cancelled", 3
    write_eval_log(log, "part.eval")
    lacks = "2 of 3 samples are not in the log, whose status is cancelled"
    assert lacks in afarm("inspect", "read", "part.eval", "-o", "rows.jsonl")
    assert afarm("inspect", "read", "part.eval", "-o", "rows.jsonl", "--on-unusable", "drop")["notes"] == [lacks]


def test_a_scorers_verdicts_are_preferences(afarm: Afarm) -> None:
    """Grades and numbers from 0 to 1; the log names no reference, so the target is its own."""
    values: list[Any] = ["C", "P", "I", "N", 0.25, True, float("nan"), "yes", 7, {"a": 1}]
    scored = [sampled(n, scores={"grader": Score(value=value)}) for n, value in enumerate(values)]
    path = made(*scored, sampled(20), sampled(21, scores={"grader": Score(value="C")}, target=["a", "b"]))
    words = ("-o", "verdicts.jsonl", "--scorer")
    refused = afarm("inspect", "read", path, *words, "grader")
    assert "3 of 12 samples have a score that is neither C, P, I or N nor a number from 0 to 1" in refused
    assert "1 of 12 samples have no score 'grader', such as sample 20" in refused
    assert "1 of 12 samples have no single target to be the reference's output, such as sample 21" in refused
    assert "have no score 'other', such as sample 0 (but grader)" in afarm("inspect", "read", path, *words, "other")
    afarm("inspect", "read", path, *words, "grader", "--on-unusable", "drop")
    rows = rows_of("verdicts.jsonl")
    found = {row["instruction"]: row["preference"] for row in rows}
    assert list(found.values()) == [2, 1.5, 1, None, 1.25, 2, None]
    assert {(row["output_1"], row["generator_1"], row["annotator"]) for row in rows} == {("aaa", "target", "grader")}
