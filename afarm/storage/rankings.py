"""Rankings of several answers to one prompt, made into rows with `chosen` and `rejected`.

| data | form |
|---|---|
| Nectar, UltraFeedback | `answers` (or `completions` …): objects with a text and a `rank` or an `overall_score` |
| distilabel | `generations`: texts, with one number each in `ratings` |
| LLaMA-Factory | `output`: texts, best first |
| HelpSteer2 | `prompt`, `response`, `helpfulness` and other ratings: an answer per row, those to a prompt together |
| OpenAssistant | a message per row, with `parent_id` and, if it is an answer, `rank` |

Each answer is compared with each that is worse; equal ones are draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, groupby
from typing import Any

from afarm.core.records import Row
from afarm.storage.conversations import UnusableError
from afarm.storage.label_scales import number_of

ANSWERS = ("answers", "completions", "generations", "responses", "outputs", "output")
"""The names of a list of answers, which are texts or objects."""
TEXTS = ("answer", "response", "text", "output", "completion", "generation", "content")
"""The names of an answer's text in its object."""
MARKS = {"rank": -1, "ranks": -1} | dict.fromkeys(
    ("rating", "score", "overall_score", "avg_rating", "avg_score", "reward", "ratings", "scores", "rewards"), 1
)
"""The names of a number, or of one per answer, that is lower for the better answer (-1) or higher (1)."""
RATED = {"prompt", "response", "helpfulness"}
"""The fields of HelpSteer's rows, an answer each, those to one prompt together."""
TREE = {"message_id", "parent_id", "role", "text", "rank"}
"""The fields of OpenAssistant's messages."""


def with_trees_as_rankings(placed: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    """Yield placed rows as they are, but OpenAssistant's as one per prompt with its ranked `answers`."""
    first = next(placed, ("", {}))
    placed = chain([first] if first[0] else [], placed)
    if first[1].keys() >= RATED and first[1].keys().isdisjoint(ANSWERS):
        for _, group in groupby(placed, key=lambda one: one[1].get("prompt")):
            rated = [(where, {**row, "rating": row.get("helpfulness")}) for where, row in group]
            if len(rated) > 1:
                yield rated[0][0], {"prompt": rated[0][1]["prompt"], "answers": [row for _, row in rated]}
        return
    if not first[1].keys() >= TREE:
        yield from placed
        return
    rows, replies = {row["message_id"]: (where, row) for where, row in placed}, dict[str, list[Row]]()
    for _, row in rows.values():
        is_there = str(row.get("deleted")).casefold() != "true"
        # People's turns have ranks too.
        if is_there and row["role"] == "assistant" and number_of(str(row["rank"])) is not None:
            replies.setdefault(row["parent_id"], []).append(row)
    for parent, answers in replies.items():
        if len(answers) == 1:  # as many are: it is compared with nothing
            continue
        turns, up = list[Row](), parent
        while up in rows:
            _, said = rows[up]
            turns.insert(0, {"role": said["role"], "content": said["text"]})
            up = said["parent_id"]
        lacking = "" if turns else f": the message {parent!r} that it answers is not in the file"
        yield rows[answers[0]["message_id"]][0] + lacking, {"prompt": turns, "answers": answers}


def comparisons(row: Row, where: str) -> Sequence[Row]:
    """Return a ranking as a row for each two of its answers, another row as it is. Raises `UnusableError`."""
    name = next((name for name in ANSWERS if isinstance(row.get(name), list)), "")
    if not name:
        return [row]
    answers, ranked = row[name], list[tuple[float, Any, Row]]()
    columns = {key: row[key] for key in MARKS if isinstance(row.get(key), list) and len(row[key]) == len(answers)}
    if not columns and name == "output":
        columns = {"rank": range(len(answers))}
    for number, answer in enumerate(answers):
        fields = answer if isinstance(answer, Mapping) else {}
        marks = {**{key: column[number] for key, column in columns.items()}, **fields}
        numbers = ((s, mark) for key, s in MARKS.items() if (mark := number_of(str(marks.get(key)))) is not None)
        if found := next(numbers, None):
            further = {**_attributes(fields), ("score" if found[0] > 0 else "rank"): found[1]}
            text = next((fields[key] for key in TEXTS if key in fields), answer)
            ranked.append((found[0] * found[1], text, further))
    if len(ranked) < 2:
        raise UnusableError(
            f"{where}: field {name!r} has {len(ranked)} answers with a 'rank' (lower is better), a 'rating' or a "
            "'score' (higher is better); a ranking needs two"
        )
    ranked.sort(key=lambda one: -one[0])
    rest = {key: value for key, value in row.items() if key not in (name, *columns)}
    return [
        {
            **rest,
            **{f"{name}_chosen": value for name, value in good.items()},
            **{f"{name}_rejected": value for name, value in bad.items()},
            "chosen": better,
            "rejected": worse,
        }
        for (_, better, good), (_, worse, bad) in combinations(ranked, 2)
    ]


def _attributes(answer: Mapping[str, Any]) -> Row:
    """Return an answer's further numbers, and UltraFeedback's ratings of its aspects."""
    aspects = answer["annotations"] if isinstance(answer.get("annotations"), Mapping) else {}
    rated = {name: of.get("Rating") if isinstance(of, Mapping) else None for name, of in aspects.items()}
    numbers = {name: value for name, value in answer.items() if type(value) in (int, float) and name not in MARKS}
    return {name: value for name, value in {**numbers, **rated}.items() if number_of(str(value)) is not None}
