"""The columns of tables of annotators."""

from __future__ import annotations

COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("agreement", "agreement, %", 1),
    ("bias", "bias, %", 1),
    ("variance", "variance, %", 1),
    ("unparsed", "unparsed, %", 1),
    ("price", "$ per 1,000", 2),
    ("seconds", "s per 1,000", 0),
    ("spearman", "Spearman", 2),
    ("pearson", "Pearson", 2),
    ("prefers_longer", "prefers longer", 2),
    ("prefers_lists", "prefers lists", 2),
    ("prefers_first", "prefers output_1", 2),
    ("prefers_first_shown", "prefers first shown", 2),
    ("prefers_own_family", "prefers own family", 2),
)
"""The columns of the table of annotators: the field, its heading and its decimals."""
PREFERENCES = ("prefers_longer", "prefers_lists", "prefers_first", "prefers_first_shown", "prefers_own_family")
"""The columns that show what annotators prefer."""
