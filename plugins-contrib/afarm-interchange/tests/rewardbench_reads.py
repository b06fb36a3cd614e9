"""Read RewardBench's files with `rewardbench` itself; fails if it finds other shares."""

import json
import sys
from pathlib import Path

from analysis.utils import load_results
from datasets import Dataset
from rewardbench import process_single_model

root = Path(sys.argv[1])
for file in root.glob("eval-set/*/*.json"):
    shares = json.loads(file.read_text())
    columns = json.loads((root / "eval-set-scores" / file.relative_to(root / "eval-set")).read_text())
    rows = Dataset.from_dict({name: column for name, column in columns.items() if isinstance(column, list)})
    for subset in set(columns["subset"]):
        part = rows.select([n for n, name in enumerate(columns["subset"]) if name == subset])
        found = process_single_model(part)[1] if subset == "Ties" else sum(part["results"]) / len(part)
        assert abs(found - shares[subset]) < 1e-9, (subset, found, shares[subset])
table = load_results(root, "eval-set/")
assert list(table["model"]) == [json.loads(file.read_text())["model"] for file in root.glob("eval-set/*/*.json")]
