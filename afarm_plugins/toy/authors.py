"""The people who write the toy world's demonstrations: half are careful, half careless.

Each demonstration has one author, so that flaws come together: whoever misses the point also forgets the stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from afarm_plugins.toy.world import (
    ADJECTIVES,
    CATEGORIES,
    DETAIL_OPENINGS,
    TRUE_OF,
    Task,
    with_article,
)

JUNK = ("thank you", "that is all", "good question")
CONFUSED_WITH = {
    "animal": "tree",
    "tree": "animal",
    "fruit": "drink",
    "drink": "fruit",
    "tool": "instrument",
    "instrument": "tool",
    "vehicle": "garment",
    "garment": "vehicle",
}


@dataclass(frozen=True, slots=True)
class Author:
    """Chances that describe how an author writes.

    Sequences are by a detail's position; the last one holds for all later ones.
    """

    core_error: float
    final_stop: float
    new_true_detail: Sequence[float]
    another_detail: Sequence[float]
    junk: float


CAREFUL = Author(0.05, 0.95, (0.95, 0.9, 0.75, 0.6, 0.5, 0.4), (0.65, 0.5, 0.35, 0.3), 0.01)
CARELESS = Author(0.5, 0.65, (0.65, 0.55, 0.4, 0.3, 0.25, 0.2), (0.55, 0.5), 0.08)
EDITOR = Author(0.0, 1.0, (1.0,), (0.65, 0.5, 0.35, 0.3), 0.0)
"""Writes the clean text that the base model is pretrained on."""

MOST_DETAILS = 6


def draw_author(random: Random) -> Author:
    """Draw a careful or a careless author, with even chances."""
    return CAREFUL if random.random() < 0.5 else CARELESS


def write_answer(task: Task, author: Author, random: Random) -> str:
    """Write an answer such as "oak. it is big. it looks old."; all chance is `random`'s."""
    sentences = [_core(task, random.random() < author.core_error, random)]
    used: list[str] = []
    while len(used) < MOST_DETAILS and random.random() < _position_chance(author.another_detail, len(used)):
        adjective = _adjective(
            task, used, random.random() < _position_chance(author.new_true_detail, len(used)), random
        )
        if adjective is None:
            break
        used.append(adjective)
        openings = DETAIL_OPENINGS[2:] if task.family == "list" else DETAIL_OPENINGS[:2]
        sentences.append(" ".join((*random.choice(openings), adjective)))
        if random.random() < author.junk:
            sentences.append(random.choice(JUNK))
    return ". ".join(sentences) + ("." if random.random() < author.final_stop else "")


def _position_chance(chances: Sequence[float], position: int) -> float:
    return chances[min(position, len(chances) - 1)]


def _adjective(task: Task, used: list[str], good: bool, random: Random) -> str | None:
    """Choose a new true adjective or, unless `good`, a repeated or false one. None if no true one is left."""
    if good:
        left = [word for word in task.true_details if word not in used]
        return random.choice(left) if left else None
    if used and random.random() < 0.5:
        return random.choice(used)
    return random.choice([word for word in ADJECTIVES if word not in task.true_details and word not in used])


def _core(task: Task, mistaken: bool, random: Random) -> str:
    if task.family == "list":
        words = random.sample(task.allowed, task.count)
        if mistaken:
            words[random.randrange(task.count)] = random.choice((*task.others, *CATEGORIES[CONFUSED_WITH[task.topic]]))
        return f"{', '.join(words[:-1])} and {words[-1]}"
    words = list(task.right)
    if task.family == "opposite":
        if mistaken:
            place = random.randrange(len(words))
            words[place] = random.choice([w for w in (task.others[place], *TRUE_OF[task.topic]) if w != words[place]])
        return " and ".join(words)
    if task.family == "describe":
        return f"the {words[0]} is {with_article(CONFUSED_WITH[words[1]] if mistaken else words[1])}"
    if task.family == "is":
        return {"yes": "no", "no": "yes"}[words[0]] if mistaken else words[0]
    return random.choice(task.others) if mistaken else words[0]
