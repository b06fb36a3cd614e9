"""Instructions from the user's own files: disjoint splits, real mess, and clear errors."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from places import SHARED_DATA

from afarm.core.errors import ConfigError, DataError
from afarm.storage import hub
from afarm.storage.rows import read_outputs
from afarm_plugins.datasets import FilesConfig
from afarm_plugins.datasets.files import SPLITS, Files

EVEN = dict.fromkeys(SPLITS, 0.2)
DATA = SHARED_DATA / "alpaca_eval"


def rows(count: int) -> list[dict[str, Any]]:
    return [{"instruction": f"instruction {i}", "output": f"output {i}"} for i in range(count)]


def files(path: Path, content: list[dict[str, Any]], **settings: Any) -> Files:
    path.write_text("\n".join(map(json.dumps, content)))
    return Files(FilesConfig(path=str(path), **{"shares": EVEN, **settings}))


def instructions(dataset: Files, split: str) -> set[str]:
    return {row.instruction.instruction for row in dataset.load(split)}


# -------------------------------------------------------------------------------------------------- one file, cut up


def test_splits_are_disjoint_cover_everything_and_have_their_shares(tmp_path: Path) -> None:
    dataset = files(tmp_path / "data.jsonl", rows(2000), shares={**EVEN, "sft": 0.1, "preference": 0.3})
    found = {split: instructions(dataset, split) for split in SPLITS}
    assert sum(map(len, found.values())) == len(set().union(*found.values())) == 2000
    # Binomial: 2000 at 0.3 has a standard deviation of 20.5.
    assert abs(len(found["preference"]) - 600) < 5 * 20.5
    assert abs(len(found["sft"]) - 200) < 5 * 13.4


def test_an_instruction_belongs_to_one_split_whatever_else_is_in_the_file(tmp_path: Path) -> None:
    content = rows(300)
    shuffled = content[:]
    random.Random(0).shuffle(shuffled)
    for split in SPLITS:
        whole = instructions(files(tmp_path / "a.jsonl", content), split)
        assert instructions(files(tmp_path / "b.jsonl", shuffled), split) == whole
        half = instructions(files(tmp_path / "c.jsonl", content[:150]), split)
        assert half == {i for i in whole if int(i.split()[1]) < 150}


def test_splits_do_not_depend_on_the_order_in_which_shares_are_given(tmp_path: Path) -> None:
    content = rows(300)
    one = files(tmp_path / "a.jsonl", content, shares={"preference": 0.5, "evaluation": 0.5})
    other = files(tmp_path / "a.jsonl", content, shares={"evaluation": 0.5, "preference": 0.5})
    assert instructions(one, "evaluation") == instructions(other, "evaluation")


def test_a_repeated_instruction_is_named_by_its_rows_in_the_file_whatever_the_split(tmp_path: Path) -> None:
    dataset = files(tmp_path / "a.jsonl", [*rows(100), rows(8)[7]])
    for split in SPLITS:
        with pytest.raises(DataError, match=r"a\.jsonl: rows 7 and 100 hold the same instruction"):
            dataset.load(split)


# --------------------------------------------------------------------------------------------- outputs, where needed


def test_demonstrations_without_text_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    content = [{**row, "output": "" if i % 2 else "text"} for i, row in enumerate(rows(200))]
    kept = files(tmp_path / "a.jsonl", content, shares={"sft": 1.0}).load("sft")
    assert len(kept) == 100
    assert len(files(tmp_path / "a.jsonl", content, shares={"sft": 1.0}, drop_empty=False).load("sft")) == 200
    assert len(files(tmp_path / "a.jsonl", content, shares={"preference": 1.0}).load("preference")) == 200


def test_instructions_alone_are_enough_where_no_output_is_needed(tmp_path: Path) -> None:
    content = [{"instruction": row["instruction"]} for row in rows(200)]
    dataset = files(tmp_path / "a.jsonl", content)
    for split in ("preference", "unlabeled", "validation", "evaluation"):
        loaded = dataset.load(split)
        assert loaded
        assert {row.output for row in loaded} == {""}
    with pytest.raises(DataError, match=r"a\.jsonl: row \d+ \(line \d+\): field 'output' is missing"):
        dataset.load("sft")


def test_a_reference_that_is_missing_among_others_is_named(tmp_path: Path) -> None:
    content = [*rows(3), {"instruction": "no output"}]
    with pytest.raises(DataError, match=r"a\.jsonl: row 3 \(line 4\): field 'output' is missing"):
        files(tmp_path / "a.jsonl", content, shares={"evaluation": 1.0}).load("evaluation")


def test_a_split_can_have_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "eval.json").write_text(json.dumps([{"instruction": "only", "output": "this"}]))
    dataset = files(tmp_path / "a.jsonl", rows(50), evaluation=str(tmp_path / "eval.json"))
    assert instructions(dataset, "evaluation") == {"only"}
    own = Files(FilesConfig(evaluation=str(tmp_path / "eval.json")))
    with pytest.raises(DataError, match=r"'preference' has no file: --set files\.preference=FILE"):
        own.load("preference")


# --------------------------------------------------------------------------------------------------------- problems


def test_all_problems_of_the_settings_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Files(FilesConfig(path="none.json", sft="nor.json", shares={"evalution": 0.2, "sft": 0.9}))
    problems = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 4
    for said in ("files.path: none.json: no such file", "files.sft: ", "'evaluation'", "exceed 1"):
        assert said in problems
    with pytest.raises(ConfigError, match="--data FILE"):
        Files(FilesConfig())


def test_a_split_whose_outputs_are_all_empty_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl: split 'sft' is empty.*has an empty 'output'"):
        files(tmp_path / "a.jsonl", [{"instruction": "x", "output": " "}], shares={"sft": 1.0}).load("sft")


def test_an_empty_split_says_how_to_fill_it(tmp_path: Path) -> None:
    defaults = FilesConfig().shares
    found = files(tmp_path / "a.jsonl", rows(6), shares=defaults)
    with pytest.raises(DataError) as caught:
        [found.load(split) for split in ("validation", "evaluation", "preference", "unlabeled")]
    said = str(caught.value)
    split = re.findall("split '(\\w+)' is empty", said)[0]
    assert "it got none of 6 rows" in said
    assert f"--set files.{split}=FILE" in said
    assert all(f"--set files.shares.{name}={share:g}" in said for name, share in defaults.items())


def test_a_file_without_rows_and_a_blank_instruction_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl: no instructions"):
        files(tmp_path / "a.jsonl", []).load("preference")
    with pytest.raises(DataError, match=r"a\.jsonl: row 2 \(line 3\): field 'instruction' is blank"):
        files(tmp_path / "a.jsonl", [*rows(2), {"instruction": " \n"}]).load("preference")


def test_a_row_without_an_instruction_is_named_in_a_file_that_is_cut_up(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl: row 1 \(line 2\): field 'instruction' is missing"):
        files(tmp_path / "a.jsonl", [*rows(1), {"output": "x"}]).load("preference")


# ------------------------------------------------------------------------------------------------- CSV, and the Hub


def test_a_table_and_the_hub_are_taken_wherever_a_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "a.csv"
    table.write_text("instruction,output\n" + "".join(f"instruction {n},{n}\n" for n in range(200)))
    plain = files(tmp_path / "a.jsonl", rows(200))
    assert instructions(Files(FilesConfig(path=str(table), shares=EVEN)), "sft") == instructions(plain, "sft")
    table.write_text('instruction,output\n"a\nb",1\n ,2\n')
    with pytest.raises(DataError, match=r"a\.csv: line 4: field 'instruction' is blank"):
        Files(FilesConfig(path=str(table), shares=EVEN)).load("sft")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(hub, "_require_reachable", lambda repository, remedy: None)
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **more: {more["split"]: rows(200)}[more["split"]])
    remote = Files(FilesConfig(path="hf:owner/name:train", shares=EVEN))
    assert (remote.remote, plain.remote) == (True, False), "a dry run looks at it only if it must"
    assert instructions(remote, "sft") == instructions(plain, "sft")


# -------------------------------------------------------------------------------------------------------- real data


@pytest.mark.skipif(not DATA.is_dir(), reason=f"AlpacaEval's published data is not at {DATA}")
def test_real_instructions_split_apart_and_empty_references_are_left_out() -> None:
    path = DATA / "outputs.text_davinci_003.json.gz"
    dataset = Files(FilesConfig(path=str(path), shares={"preference": 0.4, "unlabeled": 0.4, "evaluation": 0.2}))
    loaded = {split: dataset.load(split) for split in ("preference", "unlabeled", "evaluation")}
    assert all(row.output.strip() for row in loaded["evaluation"])
    ids = [row.instruction.id for split in loaded.values() for row in split]
    everything = read_outputs(path)
    empty = [row for row in everything if not row.output.strip()]
    assert len(empty) == 2, "the published reference has two empty outputs"
    assert len(ids) == len(set(ids)) >= len(everything) - 2
    assert len(read_outputs(DATA / "outputs.text_davinci_001.json.gz")) == 803
    whole = Files(FilesConfig(evaluation=str(path)))
    assert len(whole.load("evaluation")) == 803


def test_demonstrations_without_an_output_list_the_fields_that_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "trl.json"
    path.write_text(json.dumps([{"prompt": f"p{n}", "chosen": "x", "rejected": "y"} for n in range(40)]))
    with pytest.raises(DataError, match=r"field 'output' is missing; its fields are 'prompt', 'chosen', 'rejected'$"):
        Files(FilesConfig(sft=str(path))).load("sft")


def test_an_output_that_its_row_calls_bad_is_no_demonstration(tmp_path: Path) -> None:
    thumbs = [{"prompt": f"p {n}", "completion": "x", "label": n != 2} for n in range(4)]
    with pytest.raises(DataError, match=r"row 2 \(line 3\): field 'label' says that the output is bad.*--preferences"):
        files(tmp_path / "a.jsonl", thumbs).load("sft")
    asked = [{"prompt": f"p {n}", "label": False} for n in range(40)]
    assert files(tmp_path / "b.jsonl", asked).load("unlabeled"), "a label of something else"
