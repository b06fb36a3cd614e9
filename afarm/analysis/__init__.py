"""What is known of annotators from their labels: agreement, bias, variance, price, preferences.

    from afarm.analysis import compare, read_labels
    comparison = compare(read_labels(["human.json", "pool.jsonl"], humans=["human.json"]))

The definitions are those of AlpacaFarm (Dubois et al. 2023, section 4) and of AlpacaEval's leaderboard of evaluators;
`afarm.analysis.agreement` states each.
"""

from afarm.analysis.agreement import Comparison, Figure, Profile, compare
from afarm.analysis.labels import HUMANS, Label, read_labels

__all__ = ["HUMANS", "Comparison", "Figure", "Label", "Profile", "compare", "read_labels"]
