"""Labelled pairs in the forms that files have them, read as one `JudgedPair` per rater.

| form | fields |
|---|---|
| `ANNOTATION`: alpaca_eval, afarm's own rows | `instruction`, `input`, `output_1`, `output_2`, `preference` |
| `CHOSEN`: TRL, distilabel, ORPO | `prompt`, `chosen`, `rejected`: texts, or lists of messages |
| `CHOSEN`, prompt implicit: UltraFeedback, HH-RLHF | the last two: whole chats, which differ in their last answer |
| `PAIR`: AlpacaFarm; Label Studio and SafeRLHF, renamed | a prompt, two outputs, and a `preference` or `label` |
| `PAIR`, several raters: PandaLM | `instruction`, `response1`, `response2`, `annotator1`, `annotator2` … |
| `VOTE`: Chatbot Arena | `conversation_a`, `conversation_b`, `winner`; or `prompt`, `response_a`, `winner_tie` … |

An `ANNOTATION` is taken as it is stored. In the other forms, which are to be learned from, chats are split into turns,
and identical outputs are a draw whatever their label.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import JudgedPair, LabelOutcome, Message, Pair, Preference, Row
from afarm.core.seeding import uniform
from afarm.storage.conversations import (
    Turns,
    UnusableError,
    as_instruction,
    is_plain,
    parse_turns,
    prompt_turns,
    require_text,
    require_turns,
    split_transcript,
    unpacked,
)
from afarm.storage.label_scales import COLUMN, LabelReader
from afarm.storage.record_fields import short_repr
from afarm.storage.row_shapes import (
    ANNOTATION_FIELDS,
    LABELS,
    PAIRS,
    VOTES,
    people_columns,
    what_it_holds,
)
from afarm.storage.rows import read_placed_rows, stem, why_no_file

ENOUGH_LABELS = 10
"""Labels from which it is odd that all prefer the same side."""
PROMPTS = ("prompt", "question", "instruction", "input")
"""The names that a prompt has; an `input` beside another of them goes below it."""
CHOSEN_REASONS = ("chosen_finish_reason", "rejected_finish_reason")
"""The columns, in afarm's own exports, that say how the chosen and the rejected output ended."""
WINNERS = {"model_a": 0.0, "model_b": 1.0} | dict.fromkeys(("tie", "tie (bothbad)", "both_bad", "bothbad"), 0.5)
"""The words of a vote's `winner`, and the win of model b."""
OUTCOMES = {"winner_model_a": 0.0, "winner_model_b": 1.0, "winner_tie": 0.5}
"""The columns of a vote's outcomes, likewise."""


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


@dataclass(frozen=True, slots=True)
class Form:
    """A form of rows, told by its fields (any of these sets); kind and columns are for errors."""

    kind: str
    columns: str
    fields: Sequence[frozenset[str]]
    read: Callable[[Row, str, LabelReader], Sequence[JudgedPair]]


def read_labelled_pairs(
    source: Path | str,
    scale: str | None = None,
    forms: Sequence[Form] | None = None,
    annotator: str = "",
    average: bool = False,
    as_text: bool = False,
    unusable: Unusable | None = None,
    special_tokens: Collection[str] = (),
) -> Iterator[tuple[str, Row, Sequence[JudgedPair]]]:
    """Yield each row of a file or a data set of the Hub: its place, itself, and the label of each rater.

    Raises `DataError` naming the place and the field if a row is wrong, what it looks like if it has none of `forms`,
    and, after the last row, if the labels can be read in two ways.

    Args:
        source: The file or data set.
        scale: The labels of the first output, of the second and of a draw, such as "0,1" or "A,B,tie"; empty for
            afarm's, 1, 2 and 0; None if the caller has no option for it.
        forms: The forms to read, the first that fits; `PREFERENCES` by default.
        annotator: The rater of rows that name none.
        average: Give rows that several people labelled one label, the mean of theirs. Otherwise each person is a rater,
            called by its column.
        as_text: Take an output of such rows that a table has made a boolean or a number for the text that it was.
        unusable: Counts the rows that cannot be learned from; if None, the first is an error.
        special_tokens: Those of a model's tokenizer, which no row may hold that it is to learn from.
    """
    forms = PREFERENCES if forms is None else forms
    reading = LabelReader(source, scale, annotator, average, as_text)
    special = re.compile("|".join(map(re.escape, sorted(special_tokens, key=len, reverse=True))) or r"(?!)")
    for where, row in read_placed_rows(source):
        try:
            judged = read_row(row, where, reading, forms)
            for label in judged:
                _require_bare(label.pair, special, where)
        except UnusableError as error:
            if unusable is None:
                raise
            unusable.add(error, where)
        else:
            yield where, row, judged
    reading.require_one_reading()


def read_row(row: Row, where: str, reading: LabelReader, forms: Sequence[Form]) -> Sequence[JudgedPair]:
    for form in forms:
        if any(fields <= row.keys() for fields in form.fields):
            return form.read(row, where, reading)
    held = what_it_holds(row, where.rpartition(": ")[0], to_train=CHOSEN in forms)
    kinds = " and no ".join(dict.fromkeys(form.kind for form in forms))
    columns = ", or ".join(form.columns for form in forms)
    raise DataError(f"{where}: is no {kinds}, which has {columns}; {held}")


def _require_bare(pair: Pair, special: re.Pattern[str], where: str) -> None:
    """Raise `UnusableError` for a text that a chat template has rendered already, by a special token in it."""
    task = pair.instruction
    for text in (task.instruction, task.input, *(turn.content for turn in task.messages), pair.output_1, pair.output_2):
        if found := special.search(text):
            raise UnusableError(
                f"{where}: holds {found[0]!r}, a special token of the model, as texts do that a chat template has "
                "rendered, and it would render them again; write the bare texts, or lists of messages"
            )


def read_annotations(source: Path | str, scale: str | None = None) -> Iterator[tuple[str, Row, JudgedPair]]:
    """Yield each annotation with its place and row. Raises as `read_labelled_pairs`, and for a directory."""
    if Path(source).is_dir():
        raise DataError(f"{source}: is {why_no_file(source, 'annotation')}")
    for where, row, [judged] in read_labelled_pairs(source, scale, [ANNOTATION]):
        yield where, row, judged


def own_preferences(
    source: Path | str,
    unusable: Unusable | None = None,
    *,
    scale: str = "",
    notes: list[str] | None = None,
    special_tokens: Collection[str] = (),
) -> Iterator[JudgedPair]:
    """Yield the preferences of a file or of a data set of the Hub, one by one.

    `scale` names the labels of the first output, of the second and of a draw, such as "0,1" or "A,B,tie"; empty for
    afarm's, 1, 2 and 0. Rows that cannot be learned from, as those with `special_tokens` of the model that learns, are
    counted in `unusable`, or an error if it is None. After
    the last row `notes` has a sentence on labels that all prefer one side, and on pairs that are labelled repeatedly.
    Raises `DataError` naming file, row and field if a row is wrong, what the row looks like if it is no preference,
    and, after the last row, if its labels can be read in two ways.
    """
    counts, sides = Counter[str](), Counter[str]()
    preferred = defaultdict[bool, set[str]](set)  # ids of pairs, by whether the first in canonical order is better
    for _, row, [judged] in read_labelled_pairs(
        source, scale, annotator=stem(str(source)), average=True, unusable=unusable, special_tokens=special_tokens
    ):
        pair = judged.pair
        id = replace(pair, occurrence=0).id if pair.occurrence else judged.preference.pair_id
        if judged.chosen_rejected:
            better = judged.chosen_rejected[0]
            preferred[better == pair.canonical[0]].add(id)
            if not {"chosen", "rejected"} <= row.keys():  # else its side is drawn
                sides["first" if better == pair.output_1 else "second"] += 1
        if counts[id] and not pair.occurrence:  # each repeat of a pair keeps a label of its own
            pair = replace(pair, occurrence=counts[id])
            judged = replace(judged, pair=pair, preference=replace(judged.preference, pair_id=pair.id))
        counts[id] += 1
        yield judged
    if notes is None:
        return
    if len(sides) == 1 and sides.total() >= ENOUGH_LABELS:
        [(side, count)] = sides.items()
        notes.append(
            f"{source}: all {count:,} labels prefer the {side} output: unless the better one was put there on purpose, "
            "they are wrong"
        )
    if repeated := sum(count > 1 for count in counts.values()):
        both = [counts[id] for id in preferred[True] & preferred[False]]
        pairs = "1 pair is" if repeated == 1 else f"{repeated:,} pairs are"
        opposite = f", {len(both):,} of them with opposite labels ({sum(both):,} rows)" if both else ""
        notes.append(f"{source}: {pairs} labelled more than once{opposite}: each label counts as one")


def in_canonical_order(judged: JudgedPair) -> JudgedPair:
    """Return the label of the pair in canonical order, whichever of its repeats this is."""
    pair, preference = judged.pair, judged.preference
    if not pair.is_canonical:
        pair, preference = pair.swapped(), preference.swapped()
    return replace(judged, pair=replace(pair, occurrence=0), preference=preference)


def why_left_out(judged: JudgedPair) -> str:
    """Say why a label is none to learn a person's or a judge's taste from; empty if it is one."""
    if judged.pair.identical:
        return "of identical outputs"
    if judged.preference.source in ("noise", "rule"):
        return "left to a coin as label noise" if judged.preference.source == "noise" else "decided by a rule"
    return "without a label" if judged.win is None else ""


# ------------------------------------------------------------------------------------------------- labelled pairs


def _read_annotation(row: Row, where: str, reading: LabelReader) -> Sequence[JudgedPair]:
    is_draw = row["output_1"] == row["output_2"] or row.get("outcome") == "draw"
    label = reading.number(row[COLUMN], COLUMN, where, is_draw)
    return [JudgedPair.from_row({**row, "order": _order(row), COLUMN: label}, where)]


def _order(row: Row) -> str:
    """Return which output was shown first; other data sets have columns of that name with other contents."""
    order = row.get("order")
    return order if isinstance(order, str) else ""


def _read_pair(row: Row, where: str, reading: LabelReader) -> Sequence[JudgedPair]:
    """Parse a pair labelled once or by people; its systems may be the two of `cmp_key` (PandaLM's)."""
    names = next(names for names in PAIRS if row.keys() >= {*names})
    label = next((column for column in LABELS if column in row), "")
    people = [] if label else people_columns(row)
    outputs = [_output(row, name, where, bool(people) and reading.as_text) for name in names]
    if not label and not people:
        raise DataError(
            f"{where}: has no label; call its column 'preference', with 1 or 2 for the better output (other words by "
            f"--labels FIRST,SECOND[,DRAW]); its fields are {', '.join(map(repr, row))}"
        )
    is_draw = outputs[0] == outputs[1] or row.get("outcome") == "draw"
    numbers = [reading.number(row[column], column, where, is_draw) for column in [label] * bool(label) + people]
    systems = str(row.get("cmp_key") or "").split("_")
    plain = {
        **(dict(zip(("generator_1", "generator_2"), systems, strict=True)) if len(systems) == 2 else {}),
        **row,
        **_task(row, where),
        "output_1": outputs[0],
        "output_2": outputs[1],
        "order": _order(row),
        COLUMN: numbers[0] if label else None,
        "annotator": row.get("annotator") or reading.annotator,
    }
    judged = JudgedPair.from_row(plain, where)
    pair = judged.pair
    if label:
        return [replace(judged, preference=_draw(pair)) if pair.identical else judged]
    wins = [None if number is None else 0.5 if number in (0, 1.5) else number - 1 for number in numbers]
    if reading.average:
        answered = [win for win in wins if win is not None]
        return [replace(judged, preference=_by_people(pair, fmean(answered) if answered else None))]
    return [JudgedPair(pair, _by_people(pair, win, _order(row)), name) for name, win in zip(people, wins, strict=True)]


def _output(row: Row, name: str, where: str, as_text: bool) -> str:
    value = row[name]
    if as_text and isinstance(value, bool | int | float):
        return str(value)
    if not isinstance(value, str):
        raise UnusableError(f"{where}: field {name!r} must be text, not {type(value).__name__}; write it in quotes")
    return value


def _task(row: Row, where: str) -> Row:
    """Return the fields of the instruction, a transcript or a list of messages split into turns."""
    name = _prompt_column(row)
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


def _prompt_column(row: Row) -> str:
    return next((name for name in PROMPTS if row.get(name) is not None), "")


def _by_people(pair: Pair, win: float | None, order: str = "") -> Preference:
    """Return people's label: the win of output 2, one half for a draw, None without an answer."""
    if pair.identical:
        return _draw(pair)
    outcome: LabelOutcome = "unparsed" if win is None else "draw" if win == 0.5 else "decided"
    return Preference(pair.id, win if outcome == "decided" else None, outcome, "human", order=order)


def _draw(pair: Pair) -> Preference:
    return Preference(pair.id, None, "draw", "rule")


# --------------------------------------------------------------------------------------------- chosen and rejected


def _read_chosen(row: Row, where: str, reading: LabelReader) -> Sequence[JudgedPair]:
    """Parse `chosen` and `rejected`: answers to a prompt, or whole chats that differ in their last answer."""
    column = _prompt_column(row)
    prompt = prompt_turns(row[column], row, f"{where}: field {column!r}") if column else ()
    chosen = _chat(row, "chosen", prompt, column, where)
    rejected = _chat(row, "rejected", prompt, column, where)
    if chosen[:-1] != rejected[:-1]:
        turns = list(zip_longest(chosen[:-1], rejected[:-1]))
        first = next(number for number, (one, other) in enumerate(turns) if one != other)
        raise UnusableError(
            f"{where}: 'chosen' and 'rejected' differ in turn {first}, before their last answer; give both the same "
            "prompt"
        )
    further = {**row, "input": row.get("input") if column != "input" else ""}
    instruction = as_instruction(chosen[:-1], further, f"{where}: field {column or 'chosen'!r}")
    ends = [reason if isinstance(reason := row.get(column), str) else "" for column in CHOSEN_REASONS]
    judged = _first_over_second(
        Pair(instruction, chosen[-1].content, rejected[-1].content, 0, "", "", *ends), reading.annotator
    )
    _require_agreement(row, judged, where, reading)
    return [judged]


def _first_over_second(pair: Pair, name: str) -> JudgedPair:
    """Label a pair whose first output is better, half of them turned: else its place would tell."""
    if pair.identical:
        return JudgedPair(pair, _draw(pair), name)
    id = pair.id  # a digest, whichever output is first
    if (uniform("side", id) < 0.5) == pair.is_canonical:
        return JudgedPair(pair.swapped(), Preference(id, 1.0), name)
    return JudgedPair(pair, Preference(id, 0.0), name)


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
    # An answer may merely begin like a transcript
    if not is_plain(value) and not (prompt and isinstance(value, str) and prompt[-1] not in split_transcript(value)):
        chat = parse_turns(value, place)
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
        return _require_answer(chat, place)
    if prompt:
        return _require_answer((*prompt, Message("assistant", require_text(value, place).strip())), place)
    if lacking := column or next((name for name in PROMPTS if name in row), ""):
        raise UnusableError(f"{where}: field {lacking!r} is empty; write the prompt, or take the row out")
    raise DataError(
        f"{place} is a text without turns, and the row has no prompt; add the column 'prompt', or write whole "
        "chats: lists of messages with 'role' and 'content', or transcripts of 'Human:' and 'Assistant:'"
    )


def _require_answer(chat: Turns, place: str) -> Turns:
    """Return a chat that ends with the assistant's turn. Raises `UnusableError` for another."""
    if not chat or chat[-1].role != "assistant":
        raise UnusableError(f"{place}: must end with the assistant's turn, which is the answer")
    return require_turns(chat, place)


# ------------------------------------------------------------------------------------------------------- votes


def _read_vote(row: Row, where: str, reading: LabelReader) -> Sequence[JudgedPair]:
    """Parse a vote on two whole chats: of more than one turn they differ earlier, and share no prompt."""
    chats = [_voted_chat(row, side, where) for side in "ab"]
    if chats[0][:-1] != chats[1][:-1]:
        turns = sum(turn.role == "assistant" for turn in chats[0])
        raise UnusableError(f"{where}: is a vote on two chats of {turns} answers each, which share no prompt: drop it")
    models = (model if isinstance(model := row.get(name), str) else "" for name in ("model_a", "model_b"))
    first, second = (chat[-1].content for chat in chats)
    pair = Pair(as_instruction(chats[0][:-1], {}, where), first, second, 0, *models)
    win = None if pair.identical else _win_of_b(row, where)
    return [JudgedPair(pair, _by_people(pair, win), reading.annotator)]


def _voted_chat(row: Row, side: str, where: str) -> Turns:
    name = f"conversation_{side}"
    if name in row:
        return _require_answer(parse_turns(unpacked(row[name]), f"{where}: field {name!r}"), f"{where}: field {name!r}")
    name = f"response_{side}"
    place = f"{where}: field {name!r}"
    asked, answered = _texts(row["prompt"], f"{where}: field 'prompt'"), _texts(row[name], place)
    if len(asked) != len(answered):
        raise UnusableError(f"{place} has {len(answered)} answers to {len(asked)} prompts; take the row out")
    turns = [
        (Message("user", q.strip()), Message("assistant", a.strip())) for q, a in zip(asked, answered, strict=True)
    ]
    return _require_answer(tuple(chain.from_iterable(turns)), place)


def _texts(value: Any, where: str) -> list[str]:
    """Return the texts of a JSON list, or of one text by itself."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip().startswith("[") else [value]
        except ValueError:
            value = [value]
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UnusableError(f"{where} must be a list of texts, not {short_repr(value)}; take the row out")
    return value


def _win_of_b(row: Row, where: str) -> float:
    if "winner" in row:
        if row["winner"] not in WINNERS:
            known = ", ".join(WINNERS)
            raise DataError(f"{where}: field 'winner' is {short_repr(row['winner'])}; it must be one of {known}")
        return WINNERS[row["winner"]]
    marked = [name for name in OUTCOMES if str(row.get(name)) in ("1", "1.0", "True", "true")]
    if len(marked) != 1:
        raise UnusableError(f"{where}: one of {', '.join(OUTCOMES)} must be 1, and {len(marked)} are")
    return OUTCOMES[marked[0]]


ANNOTATION = Form("annotation", ", ".join(ANNOTATION_FIELDS), [frozenset(ANNOTATION_FIELDS)], _read_annotation)
"""Rows as afarm and AlpacaEval store them."""
CHOSEN = Form(
    "preference",
    "prompt, chosen, rejected (or whole chats in the two)",
    [frozenset(("chosen", "rejected"))],
    _read_chosen,
)
PAIR = Form("preference", "instruction, output_1, output_2, preference", [*map(frozenset, PAIRS)], _read_pair)
"""Two outputs with a label, or with those of several people in columns of their own."""
VOTE = Form("preference", ", ".join(VOTES[0]), [*map(frozenset, VOTES)], _read_vote)
PREFERENCES = (CHOSEN, PAIR, VOTE)
"""The forms that are learned from."""
