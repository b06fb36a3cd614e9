"""Texts of our own to summarise: running text alone, each once, on one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from afarm_plugins.datasets import SummariesConfig
from afarm_plugins.datasets.summaries import Summaries
from tools import own_texts

PAGE = """# A heading of a page that is long enough to be a text but is none at all

A paragraph with a [link](there.md),
on two lines, and long enough.

- a list item that is long enough to be a text, but is an item of a list

| a table | that is long enough to be a text | but is a row of one |

```python
code = "that is long enough to be a text, but is code between two fences"
```

    code = "that is long enough to be a text, but is indented as code is"

A paragraph with a [link](there.md),
on two lines, and long enough.

Too short.
"""


def test_paragraphs_of_pages_are_read_as_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reference").mkdir()
    for name in ("page.md", "reference/generated.md"):
        (tmp_path / name).write_text(PAGE)
    out = tmp_path / "texts.jsonl"
    monkeypatch.setattr(sys, "argv", ["own_texts", str(tmp_path), str(out), "--fewest", "50"])
    own_texts.main()
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"text": "A paragraph with a link, on two lines, and long enough."}
    ]
    (_, output), *others = Summaries(SummariesConfig(path=str(out))).keyed_rows()
    assert output.instruction.input == "A paragraph with a link, on two lines, and long enough."
    assert others == []
