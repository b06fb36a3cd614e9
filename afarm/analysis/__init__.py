"""Analysis of finished results: annotators' labels, judges over time, differences between runs.

    from afarm.analysis import compare_annotators, read_labels
    report = compare_annotators(read_labels(["human.json", "pool.jsonl"], humans=["human.json"]))

The definitions are those of AlpacaFarm (Dubois et al. 2023, section 4) and of AlpacaEval's leaderboard of evaluators;
`afarm.analysis.agreement` states each.
"""

from afarm.analysis.agreement import AnnotatorReport, Profile, compare_annotators
from afarm.analysis.labels import HUMANS, Label, read_labels

__all__ = ["HUMANS", "AnnotatorReport", "Label", "Profile", "compare_annotators", "read_labels"]
