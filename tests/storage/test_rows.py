"""Rows in the formats that users have, and errors that name file, row and field."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub.errors import GatedRepoError

from afarm.core.errors import DataError
from afarm.core.records import Instruction, Output
from afarm.storage import hub
from afarm.storage import rows as files
from afarm.storage.rows import (
    RowsOnDisk,
    names_a_file,
    preferences_on_disk,
    read_outputs,
    read_preferences,
    read_rows,
    require_distinct,
    stem,
    write_rows,
)

ROWS: list[dict[str, Any]] = [
    {"instruction": "Name a colour.", "input": "", "output": "Red.", "generator": "a"},
    {"instruction": "Nenne eine Farbe.", "input": "warm", "output": "", "generator": "a"},
    {"instruction": "色を一つ。", "output": "\u2028 赤 \n😀", "generator": "a"},
]


def as_json(path: Path) -> None:
    path.write_text(json.dumps(ROWS, ensure_ascii=False), encoding="utf-8")


def as_lines(path: Path) -> None:
    path.write_text("\n\n".join(json.dumps(r, ensure_ascii=False) for r in ROWS) + "\n", encoding="utf-8")


def as_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(json.dumps(ROWS).encode()))


def as_gzipped_lines(path: Path) -> None:
    path.write_bytes(gzip.compress("\r\n".join(json.dumps(r) for r in ROWS).encode()))


def as_json_with_a_byte_order_mark(path: Path) -> None:
    path.write_text(json.dumps(ROWS), encoding="utf-8-sig")


def as_parquet(path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)


def as_csv(path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, ["instruction", "input", "output", "generator"], restval="")
        writer.writeheader()
        writer.writerows(ROWS)


FORMATS: dict[str, Callable[[Path], None]] = {
    "outputs.json": as_json,
    "outputs.jsonl": as_lines,
    "outputs.json.gz": as_gzip,
    "outputs.jsonl.gz": as_gzipped_lines,
    "outputs.parquet": as_parquet,
    "outputs.csv": as_csv,
    "windows.json": as_json_with_a_byte_order_mark,
    "lines.json": as_lines,
    "a_list.jsonl": as_json,
    "windows.jsonl": as_json_with_a_byte_order_mark,
    "unzipped.json.gz": as_json,
    "zipped.jsonl": as_gzipped_lines,
    "CAPITALS.JSON": as_json,
}


@pytest.mark.parametrize("name", FORMATS)
def test_outputs_are_read_from_every_format_whatever_the_name_promises(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name)
    assert read_outputs(tmp_path / name) == [
        Output(Instruction("Name a colour."), "Red.", "a"),
        Output(Instruction("Nenne eine Farbe.", "warm"), "", "a"),
        Output(Instruction("色を一つ。"), "\u2028 赤 \n😀", "a"),
    ]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert write_rows(path, iter(ROWS)) == 3
    assert list(read_rows(path)) == ROWS
    assert "色" in path.read_text(encoding="utf-8"), "people should be able to read it too"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"output": "x"}, "row 1: field 'instruction' is missing; its fields are 'output'"),
        ({"instruction": "x"}, "row 1: field 'output' is missing; its fields are 'instruction'"),
        ({"instruction": None, "output": "x"}, "row 1: field 'instruction' is null; it must be text"),
        ({"instruction": ["x"], "output": "x"}, "row 1: field 'instruction' must be text, not list"),
        ({"instruction": "x", "output": "x", "input": 7}, "row 1: field 'input' must be text, not int"),
        (["instruction", "output"], "row 1: must be an object, not list"),
        (None, "row 1: must be an object, not NoneType"),
    ],
)
@pytest.mark.parametrize("name", ["bad.json", "bad.jsonl"])
def test_a_row_that_is_wrong_is_named_with_its_file_and_field(name: str, row: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    rows = [ROWS[0], row]
    is_lines = name == "bad.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) if is_lines else json.dumps(rows))
    with pytest.raises(DataError) as caught:
        read_outputs(path)
    assert str(caught.value) == f"{path}: {said.replace('row 1', 'row 1 (line 2)') if is_lines else said}"


def test_a_preference_that_is_wrong_is_named_with_its_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    good = {"instruction": "i", "output_1": "a", "output_2": "b", "preference": 1}
    path.write_text(json.dumps([good, {**good, "preference": 3}]))
    with pytest.raises(DataError, match=r"p\.json: row 1: field 'preference' is 3"):
        read_preferences(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b'{"instruction": "x"}', "must hold a list of objects, not dict"),
        ("a.json", b"3", "must hold a list of objects, not int"),
        ("a.json", b"[{", "not valid JSON"),
        ("a.json", b" \n", "is empty"),
        ("a.json", b'{"data": [{"instruction": "x"}]}', "an object in each. Write the list of 'data' alone"),
        ("a.json", b'{"a": {"0": "x"}, "b": {"0": "y"}}', "write rows, with pandas by to_json(FILE, orient='records')"),
        ("a.json", b'{"instruction": ["x"], "output": ["y"]}', "It holds columns: write rows"),
        ("a.json", b'{"columns": ["a"], "index": [0], "data": [["x"]]}', "It holds columns: write rows"),
        ("a.json", b'{"a": 1}{"a": 2}', "Extra data; write each object on a line of its own, or all in one list"),
        ("a.json", b"version https://git-lfs.github.com/spec/v1\n", "fetch the file with git lfs pull"),
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS and not the data"),
        ("a.jsonl.gz", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS and not the data"),
        ("a.jsonl", b"\n <!DOCTYPE html><html>Sign in", "a web page, perhaps one to sign in on, and not the data"),
        ("a.parquet", b"\xef\xbb\xbf<HTML>", "a web page, perhaps one to sign in on, and not the data"),
        ("a.csv", b"PK\x03\x04\x14\x00", "an Excel workbook or another archive: save the rows as CSV"),
        ("a.json", b'[{"instruction": "\xff"}]', ": line 1: no UTF-8 text: save it as UTF-8"),
        ("a.json", b'[{},\n{},\n{"instruction": "\xff"}]', ": line 3: no UTF-8 text"),
        ("a.jsonl", b'{"a": 1}\n{"a": "caf\xe9"}\n{"a": 2}', ": line 2: no UTF-8 text"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n{"a": "caf\xc3', mtime=0), ": line 2: no UTF-8 text"),
        ("a.json", '[{"instruction": "x"}]'.encode("utf-16"), "save it as UTF-8"),
        ("a.json", b"[" * 200_000, "nested too deeply"),
        ("a.json", b'[{"instruction": ' + b"9" * 5000 + b"}]", "not valid JSON"),
        (
            "a.jsonl",
            b'{"instruction": "x", "output": "y"}\n\n{"a": nope}',
            "row 1 (line 3): not valid JSON lines: Expecting value at column 7",
        ),
        ("a.xlsx", b"instruction\nx", "reads .json, .jsonl, .csv (also as .gz) and .parquet"),
        ("a.jsonl", b'{"instruction": "x", "output": "y"}\n{"instr', "row 1 (line 2): not valid JSON"),
        ("a.json.gz", b"no gzip", "row 0: not valid JSON"),
        (
            "a.jsonl",
            b'{\n "instruction": "x"\n}',
            "row 0 (line 1): not valid JSON lines: Expecting property name enclosed",
        ),
        ("a.jsonl", b'{\n "instruction": "x"\n}', "at column 1; each row is one line"),
        ("a.json", b'{"instruction": "x", "output": "y"}\n{"instr', "row 1 (line 2): not valid JSON lines"),
        ("a.json", b'{\n "rows": [\n]}', "must hold a list of objects, not dict; or JSON lines, an object in each"),
        ("a.json.gz", gzip.compress(b"[{}]", mtime=0)[:-12], "its gzip is damaged or cut short"),
        ("a.json.gz", gzip.compress(b"[{}]", mtime=0)[:10] + b"\xa5" * 40, "its gzip is damaged or cut short"),
        ("a.parquet", b"PAR1 no", "not valid Parquet"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_an_error(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_outputs(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_file_or_a_directory_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path / "none.csv"):
        with pytest.raises(DataError, match="no such file"):
            read_outputs(path)
    with pytest.raises(DataError, match="a directory with no run and no file of rows"):
        read_outputs(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", Path(os.devnull)):
        with pytest.raises(DataError, match=f"{path}: no regular file"):
            read_outputs(path)


def test_an_empty_list_is_no_set_of_instructions_and_repeats_are_named() -> None:
    with pytest.raises(DataError, match=r"data\.json: no instructions"):
        require_distinct([], "data.json")
    rows = [Output.from_row(row) for row in (ROWS[0], ROWS[1], {**ROWS[0], "output": "Blue.", "dataset": "other"})]
    with pytest.raises(DataError, match=r"data\.json: rows 0 and 2 hold the same instruction.*Name a colour"):
        require_distinct(rows, "data.json")
    assert require_distinct(iter(rows[:2]), "data.json") == rows[:2]
    with pytest.raises(DataError, match=r"rows 0, 1, 2 and 1,997 more hold the same .*; remove 1,999 rows$"):
        require_distinct(rows[:1] * 2000, "data.json")


# -------------------------------------------------------------------------------------------- more than memory holds


@pytest.mark.parametrize("block", [1, 2, 7, 64])
def test_a_json_list_is_read_in_parts_of_any_size(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK", block)
    path = tmp_path / "rows.json"
    for text in (json.dumps(ROWS), json.dumps(ROWS, indent=3, ensure_ascii=False), " \n [ ]\n", "[]"):
        path.write_text(text, encoding="utf-8")
        assert list(read_rows(path)) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"a": 1} {"a": 2}]', "row 0: not valid JSON: Expecting ',' delimiter"),
        ('[{"a": 1}, ]', "row 1: not valid JSON: a comma stands before the closing bracket; take it out"),
        ('[{"a": 1}, {"a": ]', "row 1: not valid JSON: Expecting value"),
        ('[{"a": 1}', "row 0: not valid JSON: Expecting ',' delimiter"),
        (
            '[{"a": 1}] []',
            "row 1: not valid JSON: Extra data; write each object on a line of its own, or all in one list",
        ),
        ("[,]", "row 0: not valid JSON: Expecting value"),
    ],
)
def test_a_json_list_that_is_broken_is_named_with_the_row(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", 4)
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    assert str(caught.value) == f"{path}: {said}"


@pytest.mark.parametrize("block", [7, 1 << 20])
def test_a_key_that_is_there_twice_is_named_with_the_row_and_its_line(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afarm.storage.rows.BLOCK", block)
    row, twice = '{"a": 1,\n  "preference": 2}', '{"preference": 1,\n  "a": 1, "preference": 2}'
    inside = '{"a": [{"role": "user",\n "role": "system"}]}'
    one_line = [text.replace("\n", "") for text in (row, twice)]
    for name, text, where in (
        ("a.json", f"\n[{row},\n\n{row}, {row}\n,{twice}]", "row 3 (line 8): field 'preference'"),
        ("a.json", f"[\n{inside}]", "row 0 (line 2): field 'role'"),
        ("a.jsonl", "\n\n".join(one_line), "row 1 (line 3): field 'preference'"),
        ("a.json", "\n".join([*one_line, one_line[0]]), "row 1 (line 2): field 'preference'"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError) as caught:
            list(read_rows(tmp_path / name))
        assert str(caught.value) == f"{tmp_path / name}: {where} is there twice; take one of the two out"


def test_the_first_rows_of_a_list_are_there_before_the_last_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text("[" + json.dumps({"a": "x" * files.BLOCK}) + ', {"a": 1}, broken')
    assert len(next(read_rows(path))["a"]) == files.BLOCK


def test_rows_stay_on_disk_until_they_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, ({"n": n, "text": "é" * n} for n in range(5)))
    rows = RowsOnDisk(path, lambda row, where: (row["n"], where))
    assert (len(rows), rows[3], rows[-1]) == (5, (3, f"{path}: row 3"), (4, f"{path}: row 4"))
    assert [n for n, _ in rows] == [n for n, _ in rows] == [0, 1, 2, 3, 4]
    assert [n for n, _ in rows[1:4:2]] == [1, 3]
    assert [n for n, _ in rows[::-1]] == [4, 3, 2, 1, 0]
    with pytest.raises(IndexError):
        rows[5]
    judged = tmp_path / "judged.jsonl"
    write_rows(judged, [{"instruction": str(n), "output_1": "a", "output_2": "b", "preference": 1} for n in range(3)])
    held = preferences_on_disk(judged)
    monkeypatch.setattr(files, "IN_MEMORY", 2)
    assert isinstance(preferences_on_disk(judged), RowsOnDisk)
    assert list(preferences_on_disk(judged)) == held == read_preferences(judged)


def test_files_are_told_from_names_and_called_without_their_format(tmp_path: Path) -> None:
    assert [names_a_file(s) for s in ("a.json", "b.csv.gz", "hf:o/n", str(tmp_path), "toy")] == [True] * 4 + [False]
    assert [stem(s) for s in ("x/a.b.json", "a.jsonl.gz", "a.parquet", "a")] == ["a.b", "a", "a", "a"]


# ------------------------------------------------------------------------------------------------------- from the Hub


def fake_hub(monkeypatch: pytest.MonkeyPatch, found: Any) -> list[Any]:
    """Stands at the boundary, for the library that would fetch."""
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def load_dataset(*names: Any, **more: Any) -> Any:
        asked.append((*names, more["split"]))
        if isinstance(found, Exception):
            raise found
        return found if more["split"] is None else found[more["split"]]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "_require_reachable", lambda repository, remedy: None)
    return asked


def test_outputs_are_read_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_hub(monkeypatch, {"eval": ROWS[:2]})
    assert [o.output for o in read_outputs("hf:owner/name")] == ["Red.", ""]
    assert [o.output for o in read_outputs(Path("hf:owner/name/settings:eval"))] == ["Red.", ""]
    assert asked == [("owner/name", None, None), ("owner/name", "settings", "eval")]


def test_what_the_hub_does_not_give_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, {"train": ROWS, "test": ROWS})
    with pytest.raises(DataError, match=r"several splits \(train, test\): name one, such as hf:owner/name:train"):
        read_outputs("hf:owner/name")
    with pytest.raises(DataError, match="name a data set of the Hub as hf:OWNER/NAME"):
        read_outputs("hf:name")
    fake_hub(monkeypatch, {"train": [{"instruction": "x"}]})
    with pytest.raises(DataError, match="hf:owner/name: row 0: field 'output' is missing"):
        read_outputs("hf:owner/name")
    fake_hub(monkeypatch, ValueError("no such split"))
    with pytest.raises(DataError, match=r"owner/name .x. cannot be loaded: no such split.*name a file instead"):
        read_outputs("hf:owner/name:x")
    gated = FileNotFoundError("It is a gated dataset.")
    gated.__cause__ = GatedRepoError("401", response=httpx2.Response(401, request=httpx2.Request("GET", "https://hub")))
    fake_hub(monkeypatch, gated)
    with pytest.raises(DataError, match=r"a gated dataset\. Accept its terms on its page, and run `hf auth login`"):
        read_outputs("hf:owner/name:x")


@pytest.mark.parametrize(
    ("row", "command"),
    [
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "preferences to train on, in TRL's form: afarm fit-reward"),
        (
            {"instruction": "p", "output_1": "a", "output_2": "b", "preference": 1},
            "annotations: afarm evaluate --annotations",
        ),
    ],
)
def test_what_is_no_file_of_outputs_is_named_with_its_command(
    row: dict[str, Any], command: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="field 'output' is missing; its fields are") as caught:
        read_outputs(path)
    assert f". These look like {command}" in str(caught.value)
    assert str(path) in str(caught.value).partition(command)[2]


def test_rows_that_are_being_written_are_not_seen_before_the_last(tmp_path: Path) -> None:
    """Two processes may end one run at once: a third reads either's rows, never a part of them."""
    path = tmp_path / "outputs.jsonl"
    write_rows(path, ROWS)

    def more(number: int) -> Iterator[dict[str, Any]]:
        for row in ROWS[:number]:
            yield row
            assert list(read_rows(path)) == ROWS

    assert write_rows(path, more(2)) == 2
    assert list(read_rows(path)) == ROWS[:2]

    def broken() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(path, broken())
    assert list(read_rows(path)) == ROWS[:2]
    assert list(tmp_path.iterdir()) == [path], "and nothing is left beside"
