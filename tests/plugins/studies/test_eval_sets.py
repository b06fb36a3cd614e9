"""Evaluation sets: boards worked by hand, real judgements by data set, and sets of one's own."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import SHARED_DATA
from scipy import stats

from afarm import ConfigError, DataError, Findings, FinishedRun, Instruction, JudgedPair, Pair, Preference, StudyRequest
from afarm_plugins.studies.eval_sets import Board, EvalSets, Win, board_findings, of_random_sets
from afarm_plugins.studies.settings import EvalSetsConfig

REAL = SHARED_DATA / "alpaca_eval"
SYSTEMS = ["gpt-3.5-turbo-0301", "alpaca-farm-ppo-human", "alpaca-7b", "text_davinci_001"]
REQUEST = StudyRequest("ppo", (1, 2))


def table(found: Findings, name: str) -> dict[str, dict[str, Any]]:
    """The rows of a table by their first cell."""
    [one] = [table for table in found.tables if table.name == name]
    return {row[0]: dict(zip(one.columns, row, strict=True)) for row in one.rows}


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no AlpacaEval at {SHARED_DATA}")
def test_four_real_systems_by_data_set() -> None:
    """GPT-4's judgements of 805 instructions: every figure is counted here apart."""
    files = [str(REAL / f"annotations.alpaca_eval_gpt4.{name}.json.gz") for name in SYSTEMS]
    found = EvalSets(EvalSetsConfig(annotations=files)).analyse([])
    wins: dict[str, dict[str, list[float]]] = {}
    for system, file in zip(SYSTEMS, files, strict=True):
        for row in json.loads(gzip.decompress(Path(file).read_bytes())):
            if row["preference"] is None:
                continue
            label = float(row["preference"])
            wins.setdefault(row["dataset"], {}).setdefault(system, []).append(0.5 if label == 0 else label - 1)
    board, agreement = table(found, "board"), table(found, "agreement")
    assert list(board) == SYSTEMS
    assert {name: row["instructions"] for name, row in agreement.items()} == {
        "selfinstruct": 252,
        "oasst": 188,
        "koala": 156,
        "helpful_base": 129,
        "vicuna": 80,
    }
    for name, by_system in wins.items():
        rest = [np.mean([w for s, part in wins.items() if s != name for w in part[system]]) for system in SYSTEMS]
        on = [np.mean(by_system[system]) for system in SYSTEMS]
        for system, rate in zip(SYSTEMS, on, strict=True):
            assert board[system][name].value == pytest.approx(100 * rate)
        assert agreement[name]["R²"].value == pytest.approx(stats.pearsonr(on, rest)[0] ** 2)
        assert agreement[name]["R²"].low <= agreement[name]["R²"].value <= agreement[name]["R²"].high
    assert board["alpaca-farm-ppo-human"]["all"].value == pytest.approx(41.24, abs=0.01)  # as published


def wins(rates: Mapping[str, Sequence[float]], size: int = 10) -> list[Win]:
    """A set per column of `rates`, each with `size` tasks, of which a system wins that share."""
    return [
        Win(system, f"set{column}", (f"set{column}", task), float(task < rate * size))
        for system, row in rates.items()
        for column, rate in enumerate(row)
        for task in range(size)
    ]


def test_a_set_is_held_against_the_rest_and_left_out() -> None:
    rates = {"a": [0.9, 0.9, 0.1], "b": [0.6, 0.6, 0.5], "c": [0.2, 0.2, 1.0]}
    found = board_findings(Board.of(wins(rates, 40), 20))
    agreement, left_out = table(found, "agreement"), table(found, "left-out")
    assert [agreement[name]["Spearman"].value for name in agreement] == [-1, -1, -1]
    assert agreement["set2"]["random: Spearman"].low > -1, "of any forty instructions no such order comes"
    # On all instructions a has 63.3, b 56.7 and c 46.7; without the last set a has 90, 26.7 more.
    assert (left_out["set2"]["alone"].value, left_out["set2"]["left out"].value) == (-1, 1)
    assert (left_out["set2"]["moves most"], left_out["set2"]["by"]) == ("a", pytest.approx(80 / 3))
    sure = [note for note in found.notes if note.startswith("Mismatch: on set2")]
    assert len(sure) == 3
    assert "a less c is -90.0 points" in sure[1]


def test_small_sets_are_put_together_and_one_alone_is_said_to_be() -> None:
    rates = {"a": [0.9, 0.5, 0.4], "b": [0.6, 0.5, 0.4], "c": [0.2, 0.5, 0.4]}
    board = Board.of([*wins({s: r[:1] for s, r in rates.items()}, 30), *wins({"a": [0, 0.5]}, 10)], 20)
    assert board.names == ["set0", "others"]
    alone = board_findings(Board.of(wins({system: row[:1] for system, row in rates.items()}), 1))
    assert [table.name for table in alone.tables] == ["board"]
    assert "All instructions are of one set, set0: part them with --by" in alone.notes[0]
    two = board_findings(Board.of(wins({"a": [0.9, 0.5], "b": [0.6, 0.5]}), 1))
    assert "A correlation needs 3 systems; there are 2." in two.notes


def test_random_sets_agree_more_the_larger_they_are() -> None:
    draw = np.random.default_rng(0)
    board = draw.uniform(size=(6, 400)) < np.linspace(0.4, 0.6, 6)[:, None]
    small, large = (of_random_sets(board.astype(float).tolist(), size) for size in (20, 200))
    assert small["Spearman"].value < large["Spearman"].value - 0.1
    assert small["R²"].low < large["R²"].low
    assert of_random_sets([[0.5] * 9] * 3, 4) == {}, "equal systems have no ranking"


# --------------------------------------------------------------------------------------------------------------- runs


def judged(text: str, win: float, dataset: str = "") -> JudgedPair:
    pair = Pair(Instruction(text, "", dataset), "one", "two", 0, "sft", "other")
    return JudgedPair(pair, Preference(pair.id, win))


def test_seeds_are_averaged_and_a_set_of_ones_own_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text("[]")
    study = EvalSets(EvalSetsConfig(methods="ppo,dpo", own=[f"demo={tmp_path}/demo.json"], fewest=1))
    runs = study.grid(REQUEST)
    assert len(runs) == 8
    assert {run.settings for run in runs} == {(), (f"eval_set={tmp_path}/demo.json", "rows.evaluation=all")}
    finished = [
        FinishedRun(
            run,
            run.label,
            {},
            pairs=lambda run=run: [judged("List rivers.", run.seed - 1, "" if run.place else "koala")],
        )
        for run in runs
    ]
    board = table(study.analyse(finished), "board")
    rates = {system: (row["koala"].value, row["demo"].value) for system, row in board.items()}
    assert rates == {"ppo": (50, 50), "dpo": (50, 50)}
    assert len(board["ppo"]) == 4, "the same instruction is another task in a set of one's own"


def test_sets_are_those_of_first_words_or_of_a_file(tmp_path: Path) -> None:
    pairs = [judged("List rivers.", 1), judged('"Name" one.', 0), judged("list seas", 1)]
    done = FinishedRun(EvalSets(EvalSetsConfig(methods="ppo")).grid(REQUEST)[0], "run", {}, pairs=lambda: pairs)
    by_word = EvalSets(EvalSetsConfig(by="first-word", fewest=1)).analyse([done])
    assert list(by_word.tables[0].columns) == ["system", "all", "list", "name"]
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps([{"instruction": "List rivers.", "dataset": "water"}]))
    by_file = EvalSets(EvalSetsConfig(by=str(topics), fewest=1)).analyse([done])
    assert list(by_file.tables[0].columns) == ["system", "all", "others", "water"]
    topics.write_text(json.dumps([{"instruction": "List rivers."}]))
    with pytest.raises(DataError, match="row 0: field 'dataset' is missing; its fields are 'instruction'"):
        EvalSets(EvalSetsConfig(by=str(topics)))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"own": ["demo.json"]}, "own: 'demo.json': a name and a file"),
        ({"own": ["a=hf:one/set", "a=hf:two/sets"]}, "own: two sets have one name"),
        ({"own": ["demo=missing.json"]}, "own: missing.json: no such file"),
        ({"by": "topic"}, "by: 'topic': dataset, first-word, or a file"),
        ({"annotations": ["a.json"], "own": ["a=hf:one/set"]}, "--own is for methods"),
    ],
)
def test_what_is_no_set_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        EvalSets(EvalSetsConfig(**config)).grid(REQUEST)
