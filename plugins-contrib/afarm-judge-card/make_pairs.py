"""Make the pairs that ship, from LLMBar's files and PandaLM's test set.

    python make_pairs.py LLMBAR PANDALM src/afarm_judge_card/data/pairs.jsonl

LLMBAR is a folder with `natural.json`, `adversarial_neighbor.json` and so on (`Dataset/LLMBar/Natural/dataset.json` of
its repository is the first), PANDALM is `testset-v1.json`; both may be gzipped. Rows are drawn by a digest of their
texts, so that the same files give the same pairs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FROM_LLMBAR = {
    "natural": 18,
    "adversarial_neighbor": 10,
    "adversarial_gptinst": 10,
    "adversarial_gptout": 6,
    "adversarial_manual": 6,
}
FROM_PANDALM = 50
MOST_CHARACTERS = 1000
"""Of an instruction with its input, and of an output: a card must be cheap."""

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Read a JSON file, gzipped if that is there alone."""
    packed = path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    raw = path.read_bytes() if path.suffix != ".gz" and path.is_file() else gzip.decompress(packed.read_bytes())
    rows: list[Row] = json.loads(raw)
    return rows


def order(row: Row, purpose: str = "draw") -> str:
    """The digest that a row is drawn by, or placed by among those drawn."""
    texts = [purpose, row["instruction"], row["input"], *sorted([row["output_1"], row["output_2"]])]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def is_short(row: Row) -> bool:
    """Tell if all texts are there, differ and are short."""
    outputs = row["output_1"], row["output_2"]
    if not all(isinstance(text, str) and text.strip() for text in outputs) or outputs[0] == outputs[1]:
        return False
    return max(len(row["instruction"] + row["input"]), *map(len, outputs)) <= MOST_CHARACTERS


def drawn(rows: list[Row], count: int) -> list[Row]:
    """Draw short pairs, one of each question."""
    by_question = {(row["instruction"], row["input"]): row for row in sorted(filter(is_short, rows), key=order)}
    return sorted(by_question.values(), key=order)[:count]


def from_llmbar(folder: Path) -> list[Row]:
    found = []
    for name, count in FROM_LLMBAR.items():
        rows = [
            {"source": f"LLMBar {name}", "instruction": row["input"], "input": "", **_outputs(row, row["label"])}
            for row in read(folder / f"{name}.json")
        ]
        found += drawn(rows, count)
    return found


def from_pandalm(file: Path) -> list[Row]:
    """Pairs of which at least two of three people prefer the same output, and none the other."""
    rows = []
    for row in read(file):
        people = Counter(row[f"annotator{number}"] for number in (1, 2, 3))
        [(label, votes), *_] = people.most_common(1)
        if label and votes >= 2 and not people[3 - label]:
            first, _, second = row["cmp_key"].partition("_")
            row = {"output_1": row["response1"], "output_2": row["response2"], **row}
            shown = {"source": "PandaLM", "instruction": row["instruction"], "input": row["input"]}
            rows.append({**shown, **_outputs(row, label), "generator_1": first, "generator_2": second})
    return drawn(rows, FROM_PANDALM)


def _outputs(row: Row, label: int) -> Row:
    return {"output_1": row["output_1"], "output_2": row["output_2"], "preference": label}


def turned(row: Row) -> Row:
    """The same pair with its outputs the other way round."""
    turn = {"output_1": "output_2", "output_2": "output_1", "generator_1": "generator_2", "generator_2": "generator_1"}
    return {name: 3 - value if name == "preference" else row[turn.get(name, name)] for name, value in row.items()}


def main(llmbar: str, pandalm: str, target: str) -> None:
    rows = sorted([*from_llmbar(Path(llmbar)), *from_pandalm(Path(pandalm))], key=lambda row: order(row, "place"))
    # the better output comes first in half of them, two rows by two: odd and even rows are shown in different orders
    rows = [row if row["preference"] == 1 + number // 2 % 2 else turned(row) for number, row in enumerate(rows)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    Path(target).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
