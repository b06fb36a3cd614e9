"""CSV as spreadsheets and scripts write it, with errors that name the line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from afarm.core.errors import DataError
from afarm.core.records import Message
from afarm.storage.rows import read_outputs, read_placed_rows, read_preferences, read_rows


def write(directory: Path, text: str, name: str = "a.csv", encoding: str = "utf-8") -> Path:
    path = directory / name
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_cells_are_text_whatever_they_look_like_and_whatever_parts_them(delimiter: str, tmp_path: Path) -> None:
    rows = ["instruction,output", '"Add 40, 2; now",42', "Say,true", "Nothing,"]
    text = "\r\n".join(row if '"' in row else row.replace(",", delimiter) for row in rows)
    text = text.replace('now",42', f'now"{delimiter}42')
    outputs = read_outputs(write(tmp_path, text, encoding="utf-8-sig"))
    assert [(row.instruction.instruction, row.output) for row in outputs] == [
        ("Add 40, 2; now", "42"),
        ("Say", "true"),
        ("Nothing", ""),
    ]


def test_labels_are_numbers_and_empty_ones_null(tmp_path: Path) -> None:
    path = write(tmp_path, "instruction,output_1,output_2,preference\na,1,2,1\nb,3,4,1.75\nc,5,6,\nd,7,8,1.5\n")
    labels = [(judged.p2, judged.preference.outcome) for judged in read_preferences(path)]
    assert labels == [(0.0, "decided"), (0.75, "decided"), (None, "unparsed"), (None, "draw")]


def test_a_row_is_placed_by_its_line_even_behind_texts_of_several_lines(tmp_path: Path) -> None:
    path = write(tmp_path, 'instruction,preference\n"one\ntwo\n\nthree",1\n\nlast,2\n')
    assert [where for where, _ in read_placed_rows(path)] == [f"{path}: line 2", f"{path}: line 7"]
    path = write(tmp_path, 'instruction,output_1,output_2,preference\n"a\nb",x,y,1\nc,x,y,left\n')
    with pytest.raises(DataError, match=r"a\.csv: line 4: field 'preference' is 'left'"):
        read_preferences(path)


def test_a_spreadsheets_blank_rows_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("instruction,output\r\na,b\r\n,\r\nc,d\r\n,,,,\r\n , \r\n,,,,\r\n")
    assert [(where[-1], row) for where, row in read_placed_rows(tmp_path / "a.csv")] == [
        ("2", {"instruction": "a", "output": "b"}),
        ("4", {"instruction": "c", "output": "d"}),
    ]
    (tmp_path / "b.csv").write_text("instruction,output\na,b,,,\nc,d,,e\n")
    rows = read_placed_rows(tmp_path / "b.csv")
    assert next(rows)[1] == {"instruction": "a", "output": "b"}
    with pytest.raises(DataError, match="line 3: has 4 cells"):
        next(rows)


def test_a_first_line_may_say_what_parts_the_cells(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('sep=|\r\ninstruction|output\r\n"a, b; c"|d\r\ne|f\r\n')
    assert [(where.rpartition(" ")[2], *row.values()) for where, row in read_placed_rows(tmp_path / "a.csv")] == [
        ("3", "a, b; c", "d"),
        ("4", "e", "f"),
    ]


def test_a_chat_is_a_json_list_in_its_cell(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": 'Say "a, b".'}]
    cell = json.dumps(turns).replace('"', '""')
    path = write(tmp_path, f'messages,instruction,output\n"{cell}",Again.,ok\n,Again.,[{{no list}}]\n')
    chat, alone = read_outputs(path)
    assert chat.instruction.messages == (Message("user", 'Say "a, b".'),)
    assert (alone.instruction.messages, alone.output) == ((), "[{no list}]")
    as_python = repr(turns).replace('"', '""')
    path = write(tmp_path, f'messages,instruction,output\n"{as_python}",Again.,ok\n')
    assert read_outputs(path)[0].instruction == chat.instruction, "as pandas writes it"


def test_a_cell_may_be_long_and_the_file_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(f"instruction,output\nx,{'y' * 300_000}\n".encode()))
    assert len(read_outputs(path)[0].output) == 300_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: must name the columns"),
        (",\nx,y\n", "line 1: must name the columns"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n", "line 1: begins like a table of Markdown: save it as CSV"),
        ("a,b,a\n", "line 1: column 'a' is there twice"),
        ("a,b\n1,2\n1,2,3\n", "line 3: has 3 cells, and line 1 names 2 columns"),
        ("a,b\n1\n", "line 2: has 1 cells, and line 1 names 2 columns"),
        ('a,b\n1,"2\n3\n', "line 2: not valid CSV: a double quote is opened and never closed"),
        ('a,b\n1,2\n"x"y,2\n', "line 3: not valid CSV: a quote stands within a quoted text"),
    ],
)
def test_an_error_names_the_line_and_how_to_mend_it(text: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    assert str(caught.value).startswith(f"{path}: {said}")


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "instruction,output\nGrüß,x\n", encoding="latin-1")
    with pytest.raises(DataError, match=r"a\.csv: line 2: no UTF-8 text: save it as UTF-8"):
        list(read_rows(path))
