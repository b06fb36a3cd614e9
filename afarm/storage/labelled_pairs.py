"""Labelled pairs in the forms that files have them, read as one `JudgedPair` per rater.

| form | fields |
|---|---|
| `ANNOTATION`: alpaca_eval, afarm's own rows | `instruction`, `input`, `output_1`, `output_2`, `preference` |
| `CHOSEN`: TRL, distilabel, ORPO | `prompt`, `chosen`, `rejected`: texts, or lists of messages |
| `CHOSEN`, prompt implicit: UltraFeedback, HH-RLHF | the last two: whole chats, which differ in their last answer |
| `PAIR`: AlpacaFarm; Label Studio and SafeRLHF, renamed | a prompt, two outputs, and a `preference` or `label` |
| `PAIR`, several raters: PandaLM | `instruction`, `response1`, `response2`, `annotator1`, `annotator2` … |
| `CHOSEN`, once per two answers: rankings | those of `afarm.storage.rankings` |
| `VOTE`: Chatbot Arena | `conversation_a`, `conversation_b`, `winner`; or `prompt`, `response_a`, `winner_tie` … |

An `ANNOTATION` is taken as it is stored. In the other forms, which are to be learned from, chats are split into turns,
and identical outputs are a draw whatever their label.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair, Message, Pair, Preference, Row
from afarm.core.seeding import uniform
from afarm.storage.conversations import (
    Turns,
    Unusable,
    UnusableError,
    as_instruction,
    is_plain,
    parse_turns,
    prompt_turns,
    require_answer,
    require_text,
    same_form,
    unpacked,
)
from afarm.storage.label_scales import COLUMN, LabelReader
from afarm.storage.rankings import ANSWERS, comparisons, with_trees_as_rankings
from afarm.storage.record_fields import short_repr
from afarm.storage.row_claims import require_agreement, require_final, with_numbers
from afarm.storage.row_shapes import (
    ANNOTATION_FIELDS,
    BATTLES,
    LABELS,
    PAIRS,
    VOTES,
    people_columns,
    what_it_holds,
)
from afarm.storage.rows import read_placed_rows, stem, why_no_file
from afarm.storage.votes import draw_by_rule, label_by_people, read_battle, read_vote

ENOUGH_LABELS = 10
"""Labels from which it is odd that all prefer the same side."""
PROMPTS = ("prompt", "question", "instruction", "input")
"""The names that a prompt has; an `input` beside another of them goes below it."""
CHOSEN_REASONS = ("chosen_finish_reason", "rejected_finish_reason")
"""The columns, in afarm's own exports, that say how the chosen and the rejected output ended."""
CHATS = ("conversations", "messages")
"""The names of a chat that is the prompt, if the answers are single messages or texts (ShareGPT's)."""


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
    unlabelled: bool = False,
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
        unlabelled: Take two outputs without a label for a pair that nobody has labelled yet.
    """
    forms = PREFERENCES if forms is None else forms
    reading = LabelReader(source, scale, annotator, average, as_text, unlabelled)
    placed, special = read_placed_rows(source), unusable.special_tokens if unusable else ()
    for where, row in with_trees_as_rankings(placed) if CHOSEN in forms else placed:
        try:
            rows = [row] if CHOSEN not in forms or _form(row, forms) else comparisons(row, where)
            read = [(one, read_row(one, where, reading, forms)) for one in rows]
            for label in chain.from_iterable(judged for _, judged in read):
                pair = label.pair
                require_bare(pair.instruction, (pair.output_1, pair.output_2), special, where)
        except UnusableError as error:
            if unusable is None:
                raise
            unusable.add(error, where)
        else:
            yield from ((where, one, judged) for one, judged in read)
    reading.require_one_reading()


def read_row(row: Row, where: str, reading: LabelReader, forms: Sequence[Form]) -> Sequence[JudgedPair]:
    if form := _form(row, forms):
        judged = form.read(row, where, reading)
        if any(one.win is not None for one in judged):
            require_final(row, where)
        label = "winner" if form is VOTE else next((name for name in LABELS if name in row), "")
        if form is not CHOSEN and label and judged and not why_left_out(judged[0]):
            require_agreement(row, where, judged[0].win, label)
        return judged if form is ANNOTATION else [with_numbers(one, row) for one in judged]
    held = what_it_holds(row, where.rpartition(": ")[0], to_train=CHOSEN in forms)
    kinds = " and no ".join(dict.fromkeys(form.kind for form in forms))
    columns = ", or ".join(form.columns for form in forms)
    raise DataError(f"{where}: is no {kinds}, which has {columns}; {held}")


def _form(row: Row, forms: Sequence[Form]) -> Form | None:
    return next((form for form in forms if any(fields <= row.keys() for fields in form.fields)), None)


def require_bare(task: Instruction, outputs: Sequence[str], special_tokens: Collection[str], where: str) -> None:
    """Raise `UnusableError` for texts that a chat template has rendered, by a special token in them."""
    texts = [task.instruction, task.input, *(turn.content for turn in task.messages), *outputs]
    if found := [token for token in special_tokens if any(token in text for text in texts)]:
        raise UnusableError(
            f"{where}: holds {max(found, key=len)!r}, a special token of the model, as texts do that a chat template "
            "has rendered, and it would render them again; write the bare texts, or lists of messages"
        )


def read_annotations(
    source: Path | str, scale: str | None = None, with_battles: bool = False
) -> Iterator[tuple[str, Row, JudgedPair]]:
    """Yield each annotation with its place and row. Raises as `read_labelled_pairs`, and for a directory."""
    if Path(source).is_dir():
        raise DataError(f"{source}: is {why_no_file(source, 'annotation')}")
    forms = [ANNOTATION, BATTLE][: 1 + with_battles]
    for where, row, [judged] in read_labelled_pairs(source, scale, forms):
        yield where, row, judged


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
    counts, sides = Counter[str](), Counter[str]()
    preferred = defaultdict[bool, set[str]](set)  # ids of pairs, by whether the first in canonical order is better
    for _, row, [judged] in read_labelled_pairs(
        source, scale, annotator=stem(str(source)), average=True, unusable=unusable
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
    if (zeroth := names[0][:-1] + "0") in row:
        raise DataError(f"{where}: field {zeroth!r} is an output too; call the two compared {' and '.join(names)}")
    label = next((column for column in LABELS if column in row), "")
    people = [] if label else people_columns(row)
    outputs = [_output(row, name, where, bool(people) and reading.as_text) for name in names]
    if not label and not people and not reading.unlabelled:
        raise DataError(
            f"{where}: has no label; call its column 'preference', with 1 or 2 for the better output (other words by "
            f"--labels FIRST,SECOND[,DRAW]); its fields are {', '.join(map(repr, row))}"
        )
    is_draw = outputs[0] == outputs[1] or row.get("outcome") == "draw"
    reading.is_foreign |= label not in ("", COLUMN) or (not people and {"annotator", "generator_1"}.isdisjoint(row))
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
    if not people:
        return [replace(judged, preference=draw_by_rule(pair)) if pair.identical else judged]
    wins = [None if number is None else 0.5 if number in (0, 1.5) else number - 1 for number in numbers]
    if reading.average:
        answered = [win for win in wins if win is not None]
        return [replace(judged, preference=label_by_people(pair, fmean(answered) if answered else None))]
    return [
        JudgedPair(pair, label_by_people(pair, win, _order(row)), name) for name, win in zip(people, wins, strict=True)
    ]


def _output(row: Row, name: str, where: str, as_text: bool) -> str:
    value = row[name]
    if as_text and isinstance(value, bool | int | float):
        return str(value)
    if not isinstance(value, str):
        raise UnusableError(f"{where}: field {name!r} must be text, not {type(value).__name__}; write it in quotes")
    return value


def _task(row: Row, where: str) -> Row:
    """Return the fields of the instruction, a transcript or a list of messages split into turns."""
    name = prompt_column(row)
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


def prompt_column(row: Row) -> str:
    name = next((name for name in PROMPTS if row.get(name) is not None), "")
    return name or ("context" if isinstance(row.get("context"), list) else "")  # HelpSteer3's; others' is a passage


# --------------------------------------------------------------------------------------------- chosen and rejected


def _read_chosen(row: Row, where: str, reading: LabelReader) -> Sequence[JudgedPair]:
    """Parse `chosen` and `rejected`: answers to a prompt, or whole chats that differ in their last answer."""
    column = prompt_column(row)
    if not column and (isinstance(row["chosen"], Mapping) or is_plain(row["chosen"])):
        column = next((name for name in CHATS if row.get(name)), "")
    prompt = prompt_turns(row[column], row, f"{where}: field {column!r}") if column else ()
    chosen = read_chat(row, "chosen", prompt, column, where)
    rejected = read_chat(row, "rejected", prompt, column, where)
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
    pair = Pair(instruction, chosen[-1].content, rejected[-1].content, 0, "", "", *ends)
    judged = _first_over_second(pair, reading.annotator)
    if not pair.identical and require_agreement(row, where, _second_wins(row, pair, where, reading)):
        return [JudgedPair(pair, Preference(pair.id, None, "draw"), reading.annotator)]
    return [judged]


def _second_wins(row: Row, pair: Pair, where: str, reading: LabelReader) -> float | None:
    """Return 0.0 if the chosen output is the first of a row's other columns, 1.0 if the second, else None.

    Raises `UnusableError` if the row has a `preference` too, and it says otherwise.
    """
    texts = [pair.output_1, pair.output_2]
    sides = next(([row[first], row[second]] for first, second in PAIRS if {first, second} <= row.keys()), texts)
    sides = next((row[name] for name in ANSWERS if isinstance(row.get(name), list)), sides)
    sides = [text.strip() if isinstance(text, str) else text for text in sides]
    if sides not in (texts, texts[::-1]):
        return None
    win = float(sides != texts)
    label = None
    with suppress(DataError):  # a column of another meaning
        label = reading.number(row.get(COLUMN), COLUMN, where, is_draw=True)
    if label is not None and win != (0.5 if label in (0, 1.5) else label > 1.5):
        said = f"field {COLUMN!r} is {short_repr(row[COLUMN])}"
        raise UnusableError(f"{where}: {said}, which contradicts 'chosen' and 'rejected'; leave out what is wrong")
    return win


def _first_over_second(pair: Pair, name: str) -> JudgedPair:
    """Label a pair whose first output is better, half of them turned: else its place would tell."""
    if pair.identical:
        return JudgedPair(pair, draw_by_rule(pair), name)
    id = pair.id  # a digest, whichever output is first
    if (uniform("side", id) < 0.5) == pair.is_canonical:
        return JudgedPair(pair.swapped(), Preference(id, 1.0), name)
    return JudgedPair(pair, Preference(id, 0.0), name)


def read_chat(row: Row, field: str, prompt: Turns, column: str, where: str) -> Turns:
    """Return the whole chat of one side, the answer last. Raises `DataError`."""
    value: Any = [row[field]] if isinstance(row[field], Mapping) else unpacked(row[field])
    place = f"{where}: field {field!r}"
    asked = same_form(prompt[-1].content) if prompt else ""
    chat = parse_turns(value, place) if not is_plain(value) else None
    has_prompt = any(same_form(turn.content) == asked for turn in chat or ())
    # An answer may merely begin like a transcript
    if chat is not None and (has_prompt or not prompt or not isinstance(value, str)):
        spoken = [turn for turn in chat if turn.role != "system"]
        if prompt and spoken and spoken[0].role == "assistant":
            chat = (*prompt, *chat)
        elif prompt and not has_prompt:
            raise UnusableError(
                f"{place}: holds a whole chat without the prompt of field {column!r}; let them agree, or take the "
                f"column {column!r} out"
            )
        elif prompt and prompt[0].role == "system" and chat[0].role != "system":
            chat = (prompt[0], *chat)
        return require_answer(chat, place)
    if prompt:
        before, _, after = same_form(require_text(value, place)).partition(asked)
        if re.fullmatch(r"\s*[^\s:]+:\s*", before) and re.match(r"\s*\n\s*[^\s:]+:", after):
            raise UnusableError(
                f"{place}: holds the prompt too, as a transcript; write the answer alone, or the turns as messages"
            )
        return require_answer((*prompt, Message("assistant", value.strip())), place)
    if lacking := column or next((name for name in PROMPTS if name in row), ""):
        raise UnusableError(f"{where}: field {lacking!r} is empty; write the prompt, or take the row out")
    raise DataError(
        f"{place} is a text without turns, and the row has no prompt; add the column 'prompt', or write whole "
        "chats: lists of messages with 'role' and 'content', or transcripts of 'Human:' and 'Assistant:'"
    )


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
VOTE = Form("preference", ", ".join(VOTES[0]), [*map(frozenset, VOTES)], read_vote)
BATTLE = Form("battle", ", ".join(BATTLES[0]), [*map(frozenset, BATTLES)], read_battle)
"""Votes with texts or without, for ranking the models alone."""
PREFERENCES = (CHOSEN, PAIR, VOTE)
"""The forms that are learned from."""
