"""`afarm judge fit`: what it keeps, what it says of it, and what it refuses."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from places import SHARED_DATA

from afarm import Instruction
from afarm.cli import main
from afarm.core.seeding import uniform
from afarm_plugins.fitted_judges.features import feature_values
from afarm_plugins.fitted_judges.utility import FittedWeights

WORDS = ["oak", "birch", "beech", "elm", "ash", "fir", "pine", "yew", "lime", "alder"]
PANDALM = SHARED_DATA / "pandalm" / "testset-v1.json.gz"
ALPACA_EVAL = SHARED_DATA / "alpaca_eval"
ONE_SYSTEM = ("x",)
"""None of their labels is measured under fits that saw one system less."""


def text(number: int, side: str) -> str:
    drawn = [uniform(0, "words", side, number, place) for place in range(40)]
    words = [WORDS[int(10 * draw)] for draw in drawn[: 3 + int(36 * drawn[0])]]
    return " ".join(words) + ("." if drawn[1] < 0.5 else "")


def rows(count: int, *, likes: dict[str, float], systems: tuple[str, ...] = ("x", "y", "z")) -> list[dict[str, Any]]:
    """Pairs labelled by a known utility and logistic noise: the most that a fit can find out."""
    made = []
    for number in range(count):
        task = Instruction(f"Name trees {number // 2}")
        outputs = [text(number, side) for side in "ab"]
        utilities = [sum(w * feature_values(task, o)[name] for name, w in likes.items()) for o in outputs]
        p = 1 / (1 + math.exp(utilities[0] - utilities[1]))
        names = [systems[number % len(systems)], systems[(number + 1) % len(systems)]]
        made.append(
            {
                "instruction": task.instruction,
                "output_1": outputs[0],
                "output_2": outputs[1],
                "generator_1": names[0],
                "generator_2": names[1],
                "preference": 1 + (uniform(0, "label", number) < p),
                "annotator": "world",
            }
        )
    return made


def write(path: Path, contents: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in contents), encoding="utf-8")
    return path


def fit(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["judge", "fit", *map(str, arguments)])
    return int(stopped.value.code or 0)


def figures(*arguments: object, capsys: pytest.CaptureFixture[str]) -> Any:
    assert fit(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def finished_rows() -> list[dict[str, Any]]:
    """Labels that follow a finished last sentence, and not length."""
    return rows(300, likes={"finished": 3.0})


@pytest.fixture
def finished(finished_rows: list[dict[str, Any]], tmp_path: Path) -> Path:
    return write(tmp_path / "finished.jsonl", finished_rows)


@pytest.fixture(scope="module")
def finished_judge(finished_rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a judge fitted to them."""
    place = tmp_path_factory.mktemp("finished")
    assert fit(write(place / "finished.jsonl", finished_rows), "--out", place / "judge") == 0
    return place / "judge"


def test_what_the_labels_like_is_found_and_beats_length(finished_judge: Path) -> None:
    found = json.loads((finished_judge / "figures.json").read_text())
    assert found["kept"] == "features"
    assert found["beats_length"]
    assert found["chosen"]["gain"]["low"] > 0
    assert found["chosen"]["agreement"]["value"] > 0.65
    assert found["chosen"]["ece"] < 0.1
    assert sorted(found["systems"]) == sorted(found["unseen_systems"]) == ["x", "y", "z"]
    weights = FittedWeights.read(finished_judge).features
    assert 1.5 < weights["finished"] < 4.5
    card = (finished_judge / "README.md").read_text()
    assert 'It beats "the longer wins" by' in card
    assert "| finished | +" in card
    assert "finished.jsonl" in card


def test_a_fit_that_does_not_beat_length_says_so_and_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_length = write(tmp_path / "long.jsonl", rows(200, likes={"length": 2.0}, systems=ONE_SYSTEM))
    found = figures(by_length, "--out", tmp_path / "judge", capsys=capsys)
    assert found["beats_length"] is False
    card = (tmp_path / "judge" / "README.md").read_text()
    assert card.startswith("# A fitted judge:")
    assert "(no better than length)" in card.splitlines()[0]
    assert 'does not beat "the longer wins"' in card
    assert (tmp_path / "judge" / "judge.json").is_file()


def test_labels_that_like_the_shorter_are_held_against_that_rule(tmp_path: Path) -> None:
    by_length = write(tmp_path / "short.jsonl", rows(200, likes={"length": -2.0}, systems=ONE_SYSTEM))
    assert fit(by_length, "--out", tmp_path / "judge") == 0
    card = (tmp_path / "judge" / "README.md").read_text()
    assert "(no better than length)" in card.splitlines()[0]
    assert 'does not beat "the shorter wins"' in card


def test_labels_by_chance_make_a_judge_that_is_unsure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_chance = write(tmp_path / "chance.jsonl", rows(300, likes={}, systems=ONE_SYSTEM))
    found = figures(by_chance, "--out", tmp_path / "judge", capsys=capsys)
    assert found["beats_length"] is False
    assert found["chosen"]["log_loss"] < math.log(2) + 0.02


def test_neither_the_order_of_rows_nor_that_of_outputs_changes_a_byte(
    finished_rows: list[dict[str, Any]], finished_judge: Path, tmp_path: Path
) -> None:
    turned = [
        {
            **row,
            "output_1": row["output_2"],
            "output_2": row["output_1"],
            "generator_1": row["generator_2"],
            "generator_2": row["generator_1"],
            "preference": 3 - row["preference"],
        }
        for row in reversed(finished_rows)
    ]
    fit(write(tmp_path / "turned.jsonl", turned), "--out", tmp_path / "other")
    for name in ("judge.json", "figures.json"):
        assert (finished_judge / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_the_screen_shows_length_people_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = rows(120, likes={"finished": 3.0}, systems=ONE_SYSTEM)
    people = [{**row, "annotator": "first"} for row in contents] + [{**row, "annotator": "second"} for row in contents]
    assert fit(write(tmp_path / "people.jsonl", people), "--out", tmp_path / "judge") == 0
    shown = capsys.readouterr().out
    assert "the longer wins" in shown
    assert "Kept: features. Choosing so in each fold, on instructions it never saw (120 pairs of 60):" in shown
    assert "one label             100.0 [100.0, 100.0] % of 120 pairs with several" in shown
    assert f"--judge fitted:{tmp_path / 'judge'}" in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--embeddings", "./nowhere"], "the sentence encoder './nowhere': no such file .*--embeddings MODEL"),
        (["--set", "bradley_terry.learning_rate=1"], "--set is for the reward model"),
        (
            ["--reward-model", "m", "--set", "ppo.kl_coef=1", "--set", "backend.threads=1"],
            "--set ppo.kl_coef=1: nothing here reads it, only bradley_terry, backend, prompt_template$",
        ),
        (["--folds", "100000"], "--folds 100000: each needs an instruction of its own, and the labels are of 150"),
        (["--labels", "0"], "labels: '0' must name the labels of the first"),
        (["--embeddings", ""], "--embeddings is empty: name a model, or leave it out"),
        (["--reward-model", ""], "--reward-model is empty: name a model"),
        (
            ["finished.jsonl", "./finished.jsonl"],
            "finished.jsonl is named twice, and its labels would count twice: name each",
        ),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_fitted(
    arguments: list[str],
    problem: str,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    assert fit(finished, "--out", tmp_path / "judge", *arguments) != 0
    assert re.search(problem, " ".join(capsys.readouterr().err.split()))
    assert not (tmp_path / "judge").exists()


def test_two_people_who_contradict_each_other_agree_on_the_others_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair with a label for each output teaches nothing, and says how far one label can be trusted."""
    contents = rows(120, likes={"finished": 3.0}, systems=ONE_SYSTEM)
    second = [
        {**row, "preference": 3 - row["preference"] if n % 3 == 0 else row["preference"]}
        for n, row in enumerate(contents)
    ]
    both = [{**row, "annotator": name} for name, each in (("a", contents), ("b", second)) for row in each]
    found = figures(write(tmp_path / "both.jsonl", both), "--out", tmp_path / "judge", capsys=capsys)
    assert found["chosen"]["pairs"] == 80
    assert (found["people"][0], found["people_pairs"]) == (pytest.approx(2 / 3), 120)
    card = (tmp_path / "judge" / "README.md").read_text()
    assert "One label against the others of its pair: 66.7 [" in card
    assert "% of 120 pairs with several." in card


def test_the_screen_counts_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = [
        {**row, "output_1": True} if n % 20 == 0 else row
        for n, row in enumerate(rows(60, likes={}, systems=ONE_SYSTEM))
    ]
    assert fit(write(tmp_path / "some.jsonl", contents), "--out", tmp_path / "judge") == 0
    said = capsys.readouterr().err
    assert "row 0 (line 1): field 'output_1' must be text, not bool" in said
    assert "left out in all: 3 rows that cannot be read" in said


def test_nothing_that_is_there_is_written_over(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert fit(finished, "--out", tmp_path / "mine") != 0
    assert "holds other files: name a new directory" in " ".join(capsys.readouterr().err.split())
    assert fit(finished, "--out", finished) != 0
    assert "is a file" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "mine" / "judge.json").write_text("{}")
    assert fit(finished, "--out", tmp_path / "mine", "--seed", 3) != 0
    assert "holds a fitted judge already: name a new directory" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "mine" / "judge.json").read_text() == "{}"


def test_a_fit_that_fails_leaves_nothing(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        (Path(str(arguments[2])) / "reward_model").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("afarm_plugins.fitted_judges.fit.fit_judge", fail)
    assert fit(finished, "--out", tmp_path / "deep" / "judge") != 0
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_directory_that_fills_up_meanwhile_and_a_full_disk_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from afarm_plugins.fitted_judges import card

    labels = write(tmp_path / "labels.jsonl", rows(60, likes={}, systems=ONE_SYSTEM))

    write_judge = card.write_judge

    def beside_another(directory: Path, *arguments: Any) -> None:
        write_judge(directory, *arguments)
        (tmp_path / "judge").mkdir()
        (tmp_path / "judge" / "judge.json").write_text("another's")

    def on_a_full_disk(directory: Path, *arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name, fails, problem in (
        ("judge", beside_another, "was written by another command: name a new directory"),
        ("full", on_a_full_disk, "cannot be written: No space left on device"),
    ):
        monkeypatch.setattr(card, "write_judge", fails)
        assert fit(labels, "--out", tmp_path / name, "--folds", 3) == 1
        assert f"--out {tmp_path / name} {problem}" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "judge" / "judge.json").read_text() == "another's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["judge", "labels.jsonl"]


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        ([{**row, "preference": 1} for row in rows(60, likes={})], "all 60 labels are for output_1"),
        (rows(20, likes={}), "20 pairs of 10 instructions have a better output: too few to fit a judge"),
        ([{**row, "source": "noise"} for row in rows(60, likes={})], "no label to learn from: 60 left to a coin"),
        (
            [{**row, "preference": n} for row in rows(60, likes={}) for n in (1, 2)],
            "60 pairs with as many labels for one",
        ),
        ([{**row, "preference": row["preference"] - 1} for row in rows(60, likes={})], "say --labels 0,1"),
    ],
)
def test_labels_that_no_judge_can_learn_from_are_refused_with_the_reason(
    contents: list[dict[str, Any]], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = write(tmp_path / "labels.jsonl", contents)
    assert fit(labels, "--out", tmp_path / "judge") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert problem in said
    assert "Traceback" not in said
    assert not (tmp_path / "judge").exists()


def test_labels_of_another_scale_are_learned_from_in_an_empty_directory(tmp_path: Path) -> None:
    named = [{**row, "preference": "AB"[row["preference"] - 1]} for row in rows(60, likes={"length": 1.0})]
    (tmp_path / "judge").mkdir()
    path = write(tmp_path / "named.jsonl", named)
    assert fit(path, "--out", tmp_path / "judge", "--labels", "A,B,tie", "--folds", 3) == 0
    assert sorted(path.name for path in tmp_path.rglob("*.json")) == ["figures.json", "judge.json"]


# ------------------------------------------------------------------------------------------------- real labels


@pytest.mark.skipif(not PANDALM.exists(), reason=f"{PANDALM} is not there")
def test_people_of_pandalm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """914 pairs decided by three people each, six responses of which are JSON booleans."""
    found = figures(PANDALM, "--out", tmp_path / "judge", capsys=capsys)
    chosen = found["chosen"]
    assert chosen["pairs"] == 914
    assert found["labels"]["left out"] == {"draws": 326}
    assert chosen["longer"]["value"] == pytest.approx(0.675, abs=0.001)
    assert chosen["agreement"]["value"] > 0.68
    assert found["people"][0] == pytest.approx(0.933, abs=0.001)
    assert chosen["gain"]["low"] < 0  # not by its interval
    assert chosen["ece"] < 0.06


@pytest.mark.skipif(not ALPACA_EVAL.exists(), reason=f"{ALPACA_EVAL} is not there")
def test_gpt4_of_alpaca_eval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(ALPACA_EVAL.glob("annotations.alpaca_eval_gpt4.*.json.gz"))
    found = figures(*files, "--out", tmp_path / "judge", "--folds", 3, capsys=capsys)
    assert found["chosen"]["pairs"] == 3169
    assert found["chosen"]["longer"]["value"] == pytest.approx(0.723, abs=0.001)
    assert found["chosen"]["agreement"]["value"] > 0.73
    assert found["beats_length"]
    assert "text_davinci_003" not in found["unseen_systems"]  # the reference of all
    unseen = [(row["pairs"], row["agreement"]["value"]) for row in found["unseen_systems"].values()]
    assert sum(count * share for count, share in unseen) / 3169 > 0.71
