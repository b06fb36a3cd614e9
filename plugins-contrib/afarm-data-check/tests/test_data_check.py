"""The check of preference data: every planted fault is found by its own name, and nothing else."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from afarm_data_check.checks import Checked, Told, check_rows, explain_labels, read_pairs
from afarm_data_check.command import choose
from afarm_data_check.flips import find_flips
from afarm_data_check.similar import shingles, similar

from afarm import DataError, read_rows
from afarm.cli import main

DATA = Path(os.environ.get("AFARM_TEST_DATA", "/nowhere"))
WORDS = [f"{a}{b}{c}" for a in "bdgk" for b in "aeio" for c in "lmnrst"]


def text(draw: random.Random, words: int = 14) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words)) + "."


def sound_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs in which nothing is wrong, and nothing explains the labels."""
    draw = random.Random(seed)
    return [
        {"prompt": text(draw), "chosen": text(draw, 12 + i % 5), "rejected": text(draw, 12 + (i + 2) % 5)}
        for i in range(count)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def counts(checked: Checked) -> dict[str, int]:
    return {found.name: found.count for found in checked.findings if found.count}


def both_ways(rows: list[dict[str, Any]]) -> None:
    rows.append({**rows[0], "chosen": rows[0]["rejected"], "rejected": rows[0]["chosen"]})


def two_to_one(rows: list[dict[str, Any]]) -> None:
    both_ways(rows)
    rows.append(dict(rows[0]))


def contradicting(rows: list[dict[str, Any]]) -> None:
    rows[3] |= {"score_chosen": 2.0, "score_rejected": 5.0}


def near_duplicate(rows: list[dict[str, Any]]) -> None:
    rows.append({**rows[5], "chosen": rows[5]["chosen"].upper() + " Yes"})


def evaluated(rows: list[dict[str, Any]]) -> None:
    rows[7]["prompt"] = "What is  the capital of FRANCE"
    rows[8]["prompt"] = "Tell me in a few words how the first steam engines came to be built in the north of England!"


def equal_once_cut(rows: list[dict[str, Any]]) -> None:
    rows[9]["chosen"] = "word " * 50 + "so."
    rows[9]["rejected"] = "word " * 50 + "but not so at all."


EVALUATED = [
    {"instruction": "What is the capital of France?", "output": "Paris"},
    {"instruction": "Tell me in a few words how the first steam engines came to be built in the north of England"},
]


@pytest.mark.parametrize(
    ("plant", "found", "dropped"),
    [
        (lambda rows: None, {}, 0),
        (both_ways, {"both ways": 1}, 2),
        (two_to_one, {"both ways": 1, "near duplicates": 1}, 2),
        (contradicting, {"contradicting": 1}, 0),
        (near_duplicate, {"near duplicates": 1}, 1),
        (evaluated, {"in evaluated.jsonl": 2}, 2),
        (equal_once_cut, {"equal once cut": 1}, 1),
    ],
)
def test_each_planted_fault_is_found_and_nothing_else(
    tmp_path: Path, plant: Callable[[list[dict[str, Any]]], None], found: dict[str, int], dropped: int
) -> None:
    rows = sound_rows(40)
    plant(rows)
    against = write(tmp_path / "evaluated.jsonl", EVALUATED)
    checked = check_rows(write(tmp_path / "mine.jsonl", rows), [against], cut=200)
    assert counts(checked) == found
    assert len(choose(checked, ["both ways", "near duplicates", "evaluated", "equal once cut"])) == dropped


FORMS = [
    [{"instruction": "Say.", "input": "", "output_1": "aa b", "output_2": "c", "preference": 2}],
    [{"prompt": "Say.", "chosen": "c", "rejected": "aa b"}],
    [{"chosen": "\n\nHuman: Say.\n\nAssistant: c", "rejected": "\n\nHuman: Say.\n\nAssistant: aa b"}],
    [{"instruction": "Say.", "input": "", "output": ["c", "aa b"]}],
    [{"instruction": "Say.", "input": "", "response1": "aa b", "response2": "c", "annotator1": 2, "annotator2": 2}],
    [
        {
            "context": [{"role": "user", "content": "Say."}],
            "response1": "aa b",
            "response2": "c",
            "overall_preference": 2,
        }
    ],
]


@pytest.mark.parametrize("rows", FORMS, ids=lambda rows: ",".join(rows[0]))
def test_every_form_that_afarm_reads_is_read(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    [row], drawn, broken = read_pairs(write(tmp_path / "mine.jsonl", rows))
    assert (row.instruction.instruction, row.chosen, row.rejected) == ("Say.", "c", "aa b")
    assert (drawn, broken) == (0, [])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "holds no pair"),
        ([{"prompt": "Say.", "completion": "a", "label": True}], "unpaired feedback"),
        ([{"instruction": "Say.", "output": "a"}], "one system's outputs"),
        ([{"prompt": "Say.", "chosen": "a", "rejected": "a"}], "holds no pair of which one output is better"),
    ],
)
def test_a_file_without_pairs_is_an_error_that_says_what_it_holds(
    tmp_path: Path, rows: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        check_rows(write(tmp_path / "mine.jsonl", rows))


def test_one_row_is_checked_without_a_model(tmp_path: Path) -> None:
    checked = check_rows(write(tmp_path / "mine.jsonl", sound_rows(1)))
    assert checked.flips is None
    assert counts(checked) == {}


def test_the_join_finds_what_comparing_all_pairs_finds() -> None:
    draw = random.Random(3)
    texts = [text(draw, 20) for _ in range(40)]
    for place in range(30):  # each near an earlier one, by more and more words
        words = texts[draw.randrange(40)].split()
        words[: place // 4] = [draw.choice(WORDS) for _ in range(place // 4)]
        texts.append(" ".join(words))
    sets = [shingles(one) for one in texts]
    every = {
        (a, b) for a, b in combinations(range(len(texts)), 2) if len(sets[a] & sets[b]) >= 0.6 * len(sets[a] | sets[b])
    }
    assert {(a, b) for a, b, _ in similar(texts, 0.6)} == every
    assert len(every) > 10
    assert {(a, b) for a, b, _ in similar(texts, 0.6, first=40)} == {(a, b) for a, b in every if a < 40 <= b}


def test_a_label_that_length_decides_is_told_with_its_interval(tmp_path: Path) -> None:
    rows = [{**row, "chosen": row["chosen"] + " more of it" * 3} for row in sound_rows(60)]
    checked = check_rows(write(tmp_path / "mine.jsonl", rows))
    assert checked.told[0] == Told(
        "the longer output", 60, 1.0, pytest.approx(0.9398, abs=1e-3), 1.0
    )  # Wilson, by hand
    assert counts(checked)["decided alone"] >= 1


def test_a_marker_nobody_named_is_found(tmp_path: Path) -> None:
    rows = sound_rows(200)
    for row in rows[:80]:
        row["rejected"] = f"Well then, {row['rejected']}"
    told = explain_labels(read_pairs(write(tmp_path / "mine.jsonl", rows))[0])
    assert told[1].feature == "the output that begins with 'well then'"
    assert (told[1].n, told[1].share) == (80, 0.0)
    assert told[1].decides


def learnable(count: int, clear: float) -> list[tuple[str, str, str]]:
    """Pairs whose better output has words of the list's first half, in the share `clear`."""
    draw = random.Random(1)
    half = len(WORDS) // 2
    sides = (WORDS[:half], WORDS[half:])

    def output(side: int) -> str:
        return " ".join(draw.choice(sides[side if draw.random() < clear else 1 - side]) for _ in range(14))

    return [(f"prompt {i}", output(0), output(1)) for i in range(count)]


def test_planted_flips_are_found_where_the_labels_can_be_learned_and_the_figure_says_how_often() -> None:
    """Of labels that are flipped with 5 %: clear ones are found, and chance finds none worth a look."""
    pairs = learnable(500, 0.8)
    wrong = random.Random(5).sample(range(500), 25)
    for place in wrong:
        prompt, chosen, rejected = pairs[place]
        pairs[place] = (prompt, rejected, chosen)
    found = find_flips(pairs)
    suspects = found.suspects
    hits = len({*suspects} & {*wrong})
    assert hits / 25 > 0.8
    assert hits / len(suspects) > 0.8
    assert 0.4 < found.precision <= hits / len(suspects), "what planted ones tell is no more than what holds"
    chance = find_flips(learnable(300, 0.5))
    assert chance.precision < 0.25
    assert 0.4 < chance.accuracy < 0.6


def test_the_command_writes_what_is_left_and_why_the_rest_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-of-nobody"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    rows = sound_rows(30)
    near_duplicate(rows)
    write(Path("mine.jsonl"), rows)
    assert _run("data", "check", "mine.jsonl", "--write", "clean.jsonl") == 0
    said = capsys.readouterr().out
    assert "near duplicates: row 30 (line 31) is" in said
    assert "held against nothing that is evaluated on" in said
    assert [*read_rows("clean.jsonl")] == rows[:30]
    [gone] = read_rows("clean.dropped.jsonl")
    assert gone == {"place": "row 30 (line 31)", "why": "near duplicates", "row": rows[30]}
    assert _run("data", "check", "clean.jsonl", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["pairs"] == 30
    assert not any(found["rows"] for found in document["findings"].values())
    assert _run("data", "check", "mine.jsonl", "--drop", "flips") == 1
    assert "'flips' is no check: choose from" in capsys.readouterr().err
    assert _run("data", "check", "mine.jsonl", "--write", "./mine.jsonl") == 1
    assert "that is the file that is checked" in " ".join(capsys.readouterr().err.split())
    assert len([*read_rows("mine.jsonl")]) == 31
    cached = tmp_path / "cache" / "datasets--tatsu-lab--alpaca_eval" / "snapshots" / "0" / "alpaca_eval.json"
    cached.parent.mkdir(parents=True)
    cached.write_text(json.dumps(EVALUATED))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    assert _run("data", "check", "mine.jsonl", "--json") == 0
    assert "in alpaca_eval.json" in json.loads(capsys.readouterr().out)["findings"]


def _run(*arguments: str) -> int:
    try:
        main(list(arguments))
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.skipif(not (DATA / "hh_rlhf").is_dir(), reason="needs HH-RLHF's test set: AFARM_TEST_DATA")
def test_hh_rlhf_has_what_the_page_says(tmp_path: Path) -> None:
    file = tmp_path / "hh.jsonl"
    file.write_bytes(gzip.decompress((DATA / "hh_rlhf" / "harmless_base_test.jsonl.gz").read_bytes()))
    checked = check_rows(str(file))
    found = counts(checked)
    assert (len(checked.rows), found["broken"], found["near duplicates"]) == (2299, 13, 1)
    assert checked.told[0].share == pytest.approx(0.446, abs=5e-4)
    assert checked.told[1].feature == "the output with an apology"
    assert checked.flips is not None
    assert 0.61 < checked.flips.accuracy < 0.65
