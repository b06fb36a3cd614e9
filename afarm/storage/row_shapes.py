"""Shapes of rows, told by their fields: for errors about files that are read as something else.

A preference file that is read as annotations would give a system a win rate that nobody measured: a wrong shape is an
error that names it, and the command for such a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Fields = Sequence[tuple[str, ...]]
"""The fields of a shape: any of these sets."""

ANNOTATION_FIELDS = ("output_1", "output_2", "preference")
"""The fields without which a row is no annotation."""
PAIRS = (("output_1", "output_2"), ("response1", "response2"), ("response_1", "response_2"))
"""The names that the two outputs of a labelled pair have."""
SIGNED = ("overall_preference", "preference_strength")
"""HelpSteer's labels: below 0 if the first output is better, and by how much."""
LABELS = ("preference", "label", *SIGNED)
"""The names that a label has."""
PEOPLE = re.compile(r"annotator_?\d+")
VOTES = (
    ("conversation_a", "conversation_b", "winner"),
    ("prompt", "response_a", "response_b", "winner_model_a"),
)
"""The fields of Chatbot Arena's votes, in the two forms that LMSYS has published them in."""
PAIRED: Fields = (("chosen", "rejected"), *PAIRS)
THUMBS = ("label", "kto_tag")
FEEDBACK: Fields = tuple(
    (*answered, thumb)
    for thumb in THUMBS
    for answered in (("prompt", "completion"), ("instruction", "output"), ("messages",), ("conversations",))
)
"""The fields of unpaired feedback, whose rows have no two answers (`PAIRED`)."""
BATTLES = (("model_a", "model_b", "winner"), ("model_a", "model_b", "winner_model_a", "winner_model_b", "winner_tie"))
"""Those that a leaderboard needs of them."""
BETTER_AND_WORSE = "put a better and a worse answer to each into 'chosen' and 'rejected'"
TRAIN = "afarm fit-reward --preferences {file}"
MOST_LISTED = 12
"""Fields that a message lists."""

NO_OUTPUTS: Sequence[tuple[Fields, str]] = (
    ([ANNOTATION_FIELDS], "annotations: afarm evaluate --annotations {file}"),
    ([("chosen", "rejected")], f"preferences to train on, in TRL's form: {TRAIN}"),
    ([("request", "text")], "an export of the ledger, to answer for a judge: --judge replay:{file}"),
    ([("win_rate",)], "a leaderboard: afarm leaderboard {file}"),
    (VOTES, f"votes of Chatbot Arena (LMSYS), preferences to train on: {TRAIN}"),
    (BATTLES, "votes on models without texts: afarm leaderboard {file}"),
    ([(*pair, "annotator1") for pair in PAIRS], f"preferences to train on, labelled by people: {TRAIN}"),
    ([(*pair, label) for pair in PAIRS for label in LABELS], f"preferences to train on: {TRAIN}"),
    (PAIRS, "pairs without labels: 'preference' must say which output is better, 1 or 2"),
)
"""Shapes of rows without a single output, and what to do with such a file."""

UNPAIRED = "unpaired feedback (TRL's KTO), for methods that learn from it: --preferences {file}"
PAIRS_WANTED = "unpaired feedback (TRL's KTO): put a better and a worse answer to each prompt into one row"
DEMONSTRATIONS = "demonstrations, one answer to each prompt: put a better and a worse one into 'chosen' and 'rejected'"
SUMMARIES = "OpenAI's comparisons of summaries: write the task and the post as 'prompt', and 'chosen' by 'choice'"
OTHERS: Sequence[tuple[Fields, str, str]] = (
    ([("prompt", "completion", "label")], UNPAIRED, PAIRS_WANTED),
    (
        [("output",)],
        "one system's outputs; have them judged: afarm evaluate {file} --reference FILE",
        f"one system's outputs: {BETTER_AND_WORSE}; as demonstrations they train by afarm sft --data {{file}}",
    ),
    (
        [("instruction",)],
        "instructions without outputs; have a policy answer them: afarm evaluate --eval-set {file}",
        f"instructions without outputs: {BETTER_AND_WORSE}",
    ),
    ([("messages",), ("conversations",), ("completion",)], DEMONSTRATIONS, DEMONSTRATIONS),
    ([("summaries", "choice")], SUMMARIES, SUMMARIES),
)
"""Other shapes, and what to do with such a file: to judge it, and to train on it."""


def people_columns(row: Iterable[str]) -> list[str]:
    """Return the columns of people's labels, `annotator1`, `annotator2` …, by name."""
    return sorted(name for name in row if PEOPLE.fullmatch(name))


def training_pairs(file: Path | str) -> str:
    """Name the command that trains on a file of preferences."""
    return TRAIN.format(file=file)


def what_it_holds(row: Mapping[str, Any], file: str, to_train: bool = False) -> str:
    """List a row's fields and, if known, what they look like, with the command to judge or train on it."""
    fields = ", ".join(map(repr, list(row)[:MOST_LISTED])) or "none"
    shapes = [*NO_OUTPUTS, *((names, train if to_train else judge) for names, judge, train in OTHERS)]
    meaning = _shape(row, file, shapes)
    if not meaning and (meaning := _shape([name.lower() for name in row], file, shapes)):
        meaning += ", if its names were in lower case: rename them"
    return f"its fields are {fields}" + (f". These look like {meaning}" if meaning else "")


def no_output(row: Mapping[str, Any], file: str) -> str:
    """Say what a row of `file` looks like that was read as an output and is none; empty if it is unknown."""
    meaning = "" if "output" in row else _shape(row, file, NO_OUTPUTS)
    return f". These look like {meaning}" if meaning else ""


def _shape(names: Iterable[str], file: str, shapes: Iterable[tuple[Fields, str]]) -> str:
    """Name the first of `shapes` that a row has, with the command for such a file; empty if none fits."""
    names = {*names, *(["annotator1"] if people_columns(names) else [])}
    meaning = next((meaning for fields, meaning in shapes if any(names >= {*some} for some in fields)), "")
    return meaning.replace("{file}", file)
