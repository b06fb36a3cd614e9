"""Preferences in the forms that users have: one reader, which tells a row's form by its fields.

| form | fields |
|---|---|
| afarm, alpaca_eval, AlpacaFarm | `instruction`, `input`, `output_1`, `output_2`, `preference` |
| people's labels (PandaLM) | `instruction`, `input`, `response1`, `response2`, `annotator1`, `annotator2` … |
| TRL | `prompt`, `chosen`, `rejected`: texts, or lists of messages |
| TRL with the prompt implicit | `chosen`, `rejected`: whole chats, which differ in their last answer |
| HH-RLHF | the same, as transcripts of "Human:" and "Assistant:" |
| Chatbot Arena | `conversation_a`, `conversation_b`, `winner`; or `prompt`, `response_a`, `response_b`, `winner_…` |
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair, Message, Pair, Preference, Row
from afarm.core.seeding import uniform
from afarm.storage.arena_votes import is_vote, read_vote
from afarm.storage.contents import file_digest
from afarm.storage.conversations import (
    Turns,
    UnusableError,
    as_instruction,
    is_plain,
    is_transcript,
    prompt_turns,
    require_text,
    require_turns,
    split_transcript,
    turns_of,
    unpacked,
)
from afarm.storage.hub import is_on_hub
from afarm.storage.label_scales import COLUMN, LabelReader
from afarm.storage.people_rows import PAIRS, people_columns, win_of_label
from afarm.storage.record_fields import short_repr
from afarm.storage.row_shapes import LABELS, what_it_holds
from afarm.storage.rows import placed_rows, read_rows, stem, why_no_file

PROMPTS = ("prompt", "question", "instruction", "input")
"""The names that a prompt has; an `input` beside another of them goes below it."""

CHOSEN_REASONS = ("chosen_finish_reason", "rejected_finish_reason")
"""The columns, in afarm's own exports, that say how the chosen and the rejected output ended."""

FORMS = "prompt, chosen, rejected (or whole chats in the two), or instruction, output_1, output_2, preference"


ENOUGH_LABELS = 10
"""Labels from which it is odd that all prefer the same side."""


@dataclass(slots=True)
class Unusable:
    """The rows of a file that cannot be learned from: how many, and the first of each kind."""

    rows: int = 0
    examples: list[str] = field(default_factory=list)
    _kinds: set[str] = field(default_factory=set)

    def add(self, error: UnusableError, where: str) -> None:
        """Count a row and keep what is wrong with it, if it is the first of its kind."""
        self.rows += 1
        kind = re.sub(r"\d+", "", str(error).removeprefix(where))
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.examples.append(str(error))


def own_preferences(
    source: Path | str, unusable: Unusable | None = None, *, scale: str = "", notes: list[str] | None = None
) -> Iterator[JudgedPair]:
    """Yield the preferences of a file or of a data set of the Hub, one by one.

    `scale` names the labels of the first output, of the second and of a draw, such as "0,1" or "A,B,tie"; empty for
    afarm's, 1, 2 and 0. Rows that cannot be learned from are counted in `unusable`, or an error if it is None. After
    the last row `notes` has a sentence on labels that all prefer one side, and on pairs that are labelled repeatedly.
    Raises `DataError` naming file, row and field if a row is wrong, what the row looks like if it is no preference,
    and, after the last row, if its labels can be read in two ways.
    """
    name = stem(str(source))
    repeats, sides = _Repeats(), Counter[str]()
    labels = LabelReader(source, scale)
    for where, row in placed_rows(source):
        try:
            judged = judged_row(row, where, name, labels)
        except UnusableError as error:
            if unusable is None:
                raise
            unusable.add(error, where)
            continue
        if judged.chosen_rejected and not {"chosen", "rejected"} <= row.keys():  # else its side is drawn
            sides["first" if judged.chosen_rejected[0] == judged.pair.output_1 else "second"] += 1
        yield repeats.numbered(judged)
    labels.require_one_reading()
    if notes is not None:
        notes += [f"{source}: {note}" for note in (*_one_sided(sides), *repeats.notes())]


def source_digest_of(source: str) -> str:
    """Digest a file's content, or the rows of a data set of the Hub. Raises `DataError` if there is none."""
    if is_on_hub(source):
        rows = hashlib.sha256()
        for row in read_rows(source):
            rows.update(json.dumps(row, sort_keys=True, default=str).encode("utf-8", "backslashreplace"))
        return rows.hexdigest()
    path = Path(source).expanduser()
    if problem := why_no_file(path):
        raise DataError(f"{source}: {problem}")
    try:
        return file_digest(path)
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from error


def _one_sided(sides: Counter[str]) -> Iterator[str]:
    """Say that all labels prefer the same side."""
    if len(sides) == 1 and sides.total() >= ENOUGH_LABELS:
        [(side, count)] = sides.items()
        yield (
            f"all {count:,} labels prefer the {side} output: unless the better one was put there on purpose, they are "
            "wrong"
        )


class _Repeats:
    """The pairs of a file, in whichever order their outputs stand, and how each was labelled."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}  # four times their number, and the sides of their labels: 1, 2, or 3 for both

    def numbered(self, judged: JudgedPair) -> JudgedPair:
        """Number the repeats of a pair, so that each keeps a label of its own."""
        pair = judged.pair
        id = replace(pair, occurrence=0).id if pair.occurrence else judged.preference.pair_id
        side = 0 if judged.chosen_rejected is None else 1 + (judged.chosen_rejected[0] == pair.canonical[0])
        seen = self._seen.get(id, 0)
        self._seen[id] = (seen + 4) | side
        if not seen or pair.occurrence:
            return judged
        pair = replace(pair, occurrence=seen // 4)
        return replace(judged, pair=pair, preference=replace(judged.preference, pair_id=pair.id))

    def notes(self) -> Iterator[str]:
        """Say how many pairs are there several times, and how many of them with opposite labels."""
        repeated = [seen for seen in self._seen.values() if seen >= 8]
        both = [seen // 4 for seen in repeated if seen & 3 == 3]
        if repeated:
            pairs = "1 pair is" if len(repeated) == 1 else f"{len(repeated):,} pairs are"
            opposite = f", {len(both):,} of them with opposite labels ({sum(both):,} rows)" if both else ""
            yield f"{pairs} labelled more than once{opposite}: each label counts as one"


def judged_row(row: Row, where: str, name: str = "", labels: LabelReader | None = None) -> JudgedPair:
    """Parse one row; `name` is the annotator's if the row has none. Raises as `own_preferences` does."""
    if {"chosen", "rejected"} <= row.keys():
        judged = _from_chosen(row, where, name)
        _require_agreement(row, judged, where, labels or LabelReader(where, ""))
        return judged
    for first, second in PAIRS:
        if first in row and second in row:
            return _from_pair(row, (first, second), where, name, labels or LabelReader(where, ""))
    if is_vote(row):
        return read_vote(row, where, name)
    held = what_it_holds(row, where.rpartition(": ")[0], to_train=True)
    raise DataError(f"{where}: is no preference, which has {FORMS}; {held}")


# ------------------------------------------------------------------------------------------------- labelled pairs


def _from_pair(row: Row, names: tuple[str, str], where: str, name: str, labels: LabelReader) -> JudgedPair:
    """Parse a pair of outputs with a label, or with those of several people: p2 is then their mean."""
    for output in names:
        if not isinstance(row[output], str):
            kind = type(row[output]).__name__
            raise UnusableError(f"{where}: field {output!r} must be text, not {kind}; write it in quotes")
    people = people_columns(row)
    label = next((column for column in LABELS if column in row), "")
    if not label and not people:
        raise DataError(
            f"{where}: has no label; call its column 'preference', with 1 or 2 for the better output (other words by "
            f"--labels FIRST,SECOND[,DRAW]); its fields are {', '.join(map(repr, row))}"
        )
    first, second = row[names[0]], row[names[1]]
    is_draw = first == second or row.get("outcome") == "draw"
    votes = [labels.number(row[column], column, where, is_draw) for column in ([label] if label else people)]
    plain = {
        **row,
        **_task(row, where),
        "output_1": first,
        "output_2": second,
        "preference": votes[0] if label else None,
        "annotator": row.get("annotator") or name,
    }
    judged = JudgedPair.from_row(plain, where)
    if judged.pair.identical:
        return replace(judged, preference=_draw(judged.pair))
    if label:
        return judged
    return replace(judged, preference=_vote(judged.pair, [win_of_label(vote) for vote in votes if vote is not None]))


def _task(row: Row, where: str) -> Row:
    """Return the fields of the instruction, a transcript or a list of messages split into turns."""
    name = next((name for name in PROMPTS if row.get(name) is not None), "")
    if not name:
        if lacking := next((name for name in PROMPTS if name in row), ""):
            raise UnusableError(f"{where}: field {lacking!r} is null; write the prompt, or take the row out")
        raise DataError(f"{where}: field 'instruction' is missing; its fields are {', '.join(map(repr, row))}")
    value, place = unpacked(row[name]), f"{where}: field {name!r}"
    further = {**row, "input": row.get("input") if name != "input" else ""}
    if is_plain(value) and not value.strip() and not further["input"]:
        raise UnusableError(f"{place} is blank; write the prompt, or take the row out")
    if is_plain(value) and name == "instruction" and not row.get("system"):
        return {"instruction": value}  # as it is
    return {"messages": (), **as_instruction(prompt_turns(value, row, place), further, place).to_row()}


def _vote(pair: Pair, wins: Sequence[float]) -> Preference:
    """Return the label that people's votes, each the win of output 2, make together."""
    if not wins:
        return Preference(pair.id, None, "unparsed", "human")
    mean = fmean(wins)
    return Preference(pair.id, None, "draw", "human") if mean == 0.5 else Preference(pair.id, mean, source="human")


# --------------------------------------------------------------------------------------------- chosen and rejected


def _from_chosen(row: Row, where: str, name: str) -> JudgedPair:
    """Parse `chosen` and `rejected`: answers to a prompt, or whole chats that differ in their last answer."""
    column = next((column for column in PROMPTS if row.get(column) is not None), "")
    prompt = prompt_turns(row[column], row, f"{where}: field {column!r}") if column else ()
    chosen = _chat(row, "chosen", prompt, column, where)
    rejected = _chat(row, "rejected", prompt, column, where)
    if chosen[:-1] != rejected[:-1]:
        raise UnusableError(
            f"{where}: 'chosen' and 'rejected' differ in turn {_first_difference(chosen[:-1], rejected[:-1])}, before "
            "their last answer; give both the same prompt"
        )
    further = {**row, "input": row.get("input") if column != "input" else ""}
    instruction = as_instruction(chosen[:-1], further, f"{where}: field {column or 'chosen'!r}")
    ends = [reason if isinstance(reason := row.get(column), str) else "" for column in CHOSEN_REASONS]
    pair = Pair(instruction, chosen[-1].content, rejected[-1].content, 0, "", "", *ends)
    return _first_over_second(pair, name)


def _first_over_second(pair: Pair, name: str) -> JudgedPair:
    """Label a pair whose first output is better, half of them turned: else its place would tell."""
    if pair.identical:
        return JudgedPair(pair, _draw(pair), name)
    id = pair.id  # a digest, whichever output is first
    if (uniform("side", id) < 0.5) == pair.is_canonical:
        return JudgedPair(pair.swapped(), Preference(id, 1.0), name)
    return JudgedPair(pair, Preference(id, 0.0), name)


def _draw(pair: Pair) -> Preference:
    """Return the label of identical outputs."""
    return Preference(pair.id, None, "draw", "rule")


def _require_agreement(row: Row, judged: JudgedPair, where: str, labels: LabelReader) -> None:
    """Raise `UnusableError` if the row has a `preference` too, and it says otherwise."""
    if judged.chosen_rejected is None or row.get(COLUMN) is None:
        return
    chosen, rejected = judged.chosen_rejected
    sides = next(([row[first], row[second]] for first, second in PAIRS if {first, second} <= row.keys()), None)
    sides = sides or [chosen, rejected]
    try:
        label = labels.number(row[COLUMN], COLUMN, where, is_draw=True)
    except DataError:  # a column of another meaning
        return
    if label is None or chosen not in sides or rejected not in sides:
        return
    if label in (0, 1.5) or sides[label > 1.5] != chosen:
        raise UnusableError(
            f"{where}: field {COLUMN!r} is {short_repr(row[COLUMN])}, which contradicts 'chosen' and 'rejected'; leave "
            "out what is wrong"
        )


def _chat(row: Row, field: str, prompt: Turns, column: str, where: str) -> Turns:
    """Return the whole chat of one side, the answer last. Raises `DataError`."""
    value, place = unpacked(row[field]), f"{where}: field {field!r}"
    if isinstance(value, str) and not _is_whole(value, prompt):
        lacking = column or next((name for name in PROMPTS if name in row), "")
        if not prompt and lacking:
            raise UnusableError(f"{where}: field {lacking!r} is empty; write the prompt, or take the row out")
        if not prompt:
            raise DataError(
                f"{place} is a text without turns, and the row has no prompt; add the column 'prompt', or write whole "
                "chats: lists of messages with 'role' and 'content', or transcripts of 'Human:' and 'Assistant:'"
            )
        chat = (*prompt, Message("assistant", require_text(value, place).strip()))
    else:
        chat = turns_of(value, place)
        spoken = [turn for turn in chat if turn.role != "system"]
        if prompt and spoken and spoken[0].role == "assistant":
            chat = (*prompt, *chat)
        elif prompt and prompt[-1] not in chat:
            raise UnusableError(
                f"{place}: holds a whole chat without the prompt of field {column!r}; let them agree, or take the "
                f"column {column!r} out"
            )
        elif prompt and prompt[0].role == "system" and chat[0].role != "system":
            chat = (prompt[0], *chat)
    if not chat or chat[-1].role != "assistant":
        raise UnusableError(f"{place}: must end with the assistant's turn, which is the answer")
    return require_turns(chat, place)


def _is_whole(text: str, prompt: Turns) -> bool:
    """Tell a transcript of a whole chat from an answer that merely begins like one."""
    return is_transcript(text) and (not prompt or prompt[-1] in split_transcript(text))


def _first_difference(chosen: Turns, rejected: Turns) -> int:
    return next(
        (n for n, (one, other) in enumerate(zip(chosen, rejected, strict=False)) if one != other),
        min(len(chosen), len(rejected)),
    )
