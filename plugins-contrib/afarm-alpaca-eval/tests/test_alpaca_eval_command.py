"""`afarm alpaca-eval`: published figures from stored annotations, one's own model beside them."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from afarm.cli import main
from afarm.testing import tiny_policy

DATA = Path(os.environ.get("AFARM_TEST_DATA", "/nowhere")) / "alpaca_eval"
BOARD = "weighted_alpaca_eval_gpt4_turbo"
WEIGHED = {
    "prompt_template": f"{BOARD}/prompt.txt",
    "fn_completions": "openai_completions",
    "completions_kwargs": {
        "model_name": "gpt-4-1106-preview",
        "max_tokens": 1,
        "temperature": 1,
        "logprobs": True,
        "top_logprobs": 5,
    },
    "fn_completion_parser": "logprob_parser",
    "completion_parser_kwargs": {"numerator_token": "m", "denominator_tokens": ["m", "M"], "is_binarize": False},
    "completion_key": "completions_all",
    "batch_size": 1,
}
PUBLISHED = [
    {"": "good", "win_rate": 70.0, "standard_error": 1.0, "length_controlled_winrate": 60.0, "avg_length": 900},
    {"": "bad", "win_rate": 1.0, "standard_error": 0.1, "length_controlled_winrate": 0.0, "avg_length": 90},
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-of-nobody"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        main(["alpaca-eval", *arguments])
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def write_rows(path: str, output: str, count: int = 12) -> str:
    rows = [{"instruction": f"Name {n} fish.", "output": f"{output} {n}" * (1 + n % 3)} for n in range(count)]
    Path(path).write_text(json.dumps(rows))
    return path


def write_board() -> str:
    with Path("board.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(PUBLISHED[0]))
        writer.writeheader()
        writer.writerows(PUBLISHED)
    return "board.csv"


@pytest.mark.skipif(not DATA.is_dir(), reason="needs AlpacaEval's stored annotations: AFARM_TEST_DATA")
def test_a_published_model_gets_its_published_figures(capsys: pytest.CaptureFixture[str]) -> None:
    model = "gpt-3.5-turbo-0301"
    Path(BOARD).mkdir()
    Path(BOARD, "configs.yaml").write_text(yaml.safe_dump({BOARD: WEIGHED}))
    Path(BOARD, "prompt.txt").write_text("<|im_start|>user\n{instruction} {output_1} {output_2}<|im_end|>\n")
    board = DATA / "leaderboard.weighted_gpt4_turbo.csv"
    of_lengths = {"weights": "length_controlled_weights.csv", "difficulty": "instruction_difficulty.json.gz"}
    code, printed, said = run(
        capsys,
        *("--outputs", str(DATA / f"outputs.{model}.json.gz")),
        *("--reference", str(DATA / "outputs.gpt4_1106_preview.json.gz")),
        *("--judge", f"replay:{DATA / f'annotations.weighted_gpt4_turbo.{model}.json.gz'}"),
        *("--annotator", f"alpaca_eval:{BOARD}", "--board", str(board), "--json"),
        *(word for name, file in of_lengths.items() for word in ("--set", f"length_controlled.{name}={DATA / file}")),
    )
    assert code == 0, said
    found = json.loads(printed)["metrics"]
    with board.open() as handle:
        [published] = [row for row in csv.DictReader(handle) if row[""] == model]
    for name, within in (("win_rate", 1e-9), ("standard_error", 1e-9), ("length_controlled_winrate", 1e-6)):
        assert found[name] == pytest.approx(float(published[name]), abs=within)
    assert f"{model} (yours)" in said


def test_a_model_stands_between_its_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    policy = tiny_policy()
    policy.model.save_pretrained("mine")
    policy.tokenizer.save_pretrained("mine")
    given = ["--model", "mine", "--reference", write_rows("theirs.json", "Eel"), "--board", write_board()]
    short = ["--set", "evaluate.max_new_tokens=4", "--set", "backend.device=cpu", "--judge", "fitted"]
    code, printed, said = run(capsys, *given, *short, "--json")
    assert code == 0, said
    record = json.loads(printed)
    assert 0 <= record["metrics"]["win_rate"] <= 100
    assert Path(record["report"]).is_file()
    assert "mine (yours)" in said
    assert "judged by the formula fitted" in said
    assert "another prompt" in said


def test_the_order_is_by_the_length_controlled_win_rate(capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        "--outputs",
        write_rows("mine.json", "Oak and elm and ash"),
        "--reference",
        write_rows("theirs.json", "Eel"),
    ]
    code, printed, said = run(capsys, *files, "--board", write_board(), "--judge", "fitted")
    assert code == 0, said
    models = [line.split()[1] for line in printed.splitlines() if line.strip()[:1].isdigit()]
    assert sorted(models) == ["bad", "good", "mine"]
    assert models.index("good") < models.index("bad")


WRONG: list[tuple[list[str], str]] = [
    ([], "name the model"),
    (["--model", "a/b", "--outputs", "mine.json"], "and not both"),
    (["--model", "a/b"], "hf download tatsu-lab/alpaca_eval alpaca_eval_gpt4_baseline.json --repo-type dataset"),
    (["--model", "a/b", "--edition", "1"], "hf download tatsu-lab/alpaca_eval alpaca_eval.json --repo-type dataset"),
    (["--outputs", "mine.json", "--reference", "theirs.json"], "no judge is named"),
    (["--outputs", "mine.json", "--reference", "theirs.json", "--board", "theirs.json"], "is no board of AlpacaEval"),
    (
        ["--outputs", "mine.json", "--reference", "theirs.json", "--board", "text.csv"],
        "a figure is no number",
    ),
    (["--outputs", "mine.json", "--reference", "no.json", "--judge", "fitted"], "no.json"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_what_is_missing_is_said_with_the_command_that_gets_it(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows("mine.json", "Oak")
    write_rows("theirs.json", "Eel")
    Path("text.csv").write_text(",win_rate,length_controlled_winrate\ngood,high,60\n")
    code, _, error = run(capsys, *(arguments or ["--judge", "fitted"]))
    assert code == 1
    assert said in " ".join(error.split())


def test_the_reference_is_found_in_the_cache_of_the_hub(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cache = tmp_path / "hub-of-nobody/hub/datasets--tatsu-lab--alpaca_eval/snapshots/0123"
    cache.mkdir(parents=True)
    write_rows(str(cache / "alpaca_eval_gpt4_baseline.json"), "Eel")
    found: Any = run(capsys, "--outputs", write_rows("mine.json", "Oak"), "--judge", "fitted")
    assert found[0] == 0, found[2]
    assert "against gpt4_1106_preview" in found[1]
    assert "pip install alpaca-eval" in found[1]
