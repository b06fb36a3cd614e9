"""What is known of annotators from their labels: agreement, bias, variance, price, preferences.

    from afarm.analysis import compare, read_labels
    comparison = compare(read_labels(["human.json", "pool.jsonl"], humans=["human.json"]))

The definitions are those of AlpacaFarm (Dubois et al. 2023, section 4) and of AlpacaEval's leaderboard of evaluators;
`afarm.analysis.measures` states each.
"""

from afarm.analysis.labels import HUMANS, Label, read_labels
from afarm.analysis.measures import Comparison, Figure, Profile, compare

__all__ = ["HUMANS", "Comparison", "Figure", "Label", "Profile", "compare", "read_labels"]
