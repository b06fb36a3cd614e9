"""Unpaired feedback: outputs with a thumb up or down each, in the forms that files have.

| form | fields |
|---|---|
| TRL (KTO) | `prompt`, `completion`, `label`: texts, or lists of messages |
| afarm's own rows | `instruction`, `input`, `output`, `label` |
| LLaMA-Factory | the same, or a whole chat in `messages` or `conversations`, with `kto_tag` (or `label`) |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from afarm.core.errors import DataError
from afarm.core.records import Feedback, Instruction, Row
from afarm.core.seeding import digest
from afarm.storage.conversations import Unusable, UnusableError, as_instruction, prompt_turns
from afarm.storage.label_scales import LabelScale, as_text
from afarm.storage.labelled_pairs import CHATS, prompt_column, read_chat, require_bare
from afarm.storage.record_fields import short_repr
from afarm.storage.row_claims import require_final
from afarm.storage.row_shapes import FEEDBACK, PAIRED, what_it_holds
from afarm.storage.rows import read_placed_rows, stem

ANSWERS = ("completion", "output")
"""The names of an answer that stands beside its prompt."""
THUMBS = ("label", "kto_tag")
UP = ("true", "1", "up", "thumbs up", "👍", "good", "desirable", "positive", "yes", "like")
DOWN = ("false", "0", "down", "thumbs down", "👎", "bad", "undesirable", "negative", "no", "dislike")
"""What labels say, in lower case, with a space for an underscore."""


def holds_feedback(source: Path | str) -> bool:
    """Tell by its first row if a file, or a data set of the Hub, holds unpaired feedback."""
    return any(is_feedback(row) for _, row in islice(read_placed_rows(source), 1))


def is_feedback(row: Row) -> bool:
    """Tell if a row has the fields of unpaired feedback, and not those of a pair."""
    paired, thumb = (any(row.keys() >= {*some} for some in fields) for fields in (PAIRED, FEEDBACK))
    return thumb and not paired


def own_feedback(
    source: Path | str, unusable: Unusable | None = None, *, scale: str = "", notes: list[str] | None = None
) -> Iterator[Feedback]:
    """Yield the labelled outputs of a file or of a data set of the Hub; rows without a label are left out.

    `scale` names the labels of a good output and of a bad one, and perhaps of one that is left out, such as "5,1,3";
    empty for true and false, 1 and 0, and the words `UP` and `DOWN`. `unusable` counts the rows that cannot be learned
    from; None: the first is an error. After the last row `notes` has a sentence if all labels are alike, and if an
    output has several. Raises `DataError` naming file, row and field if a row is wrong.
    """
    yield from (one for _, one in read_feedback(source, unusable, scale=scale, notes=notes) if one)


def read_feedback(
    source: Path | str, unusable: Unusable | None = None, *, scale: str = "", notes: list[str] | None = None
) -> Iterator[tuple[Instruction, Feedback | None]]:
    """Yield the instruction of each row with its labelled output, None without a label: see `own_feedback`."""
    labels, special = LabelScale.parse(scale) if scale else None, unusable.special_tokens if unusable else ()
    thumbs = Counter[tuple[str, bool]]()
    for where, row in read_placed_rows(source):
        try:
            if not is_feedback(row):
                held = what_it_holds(row, str(source), to_train=True)
                raise DataError(f"{where}: is no unpaired feedback, which has prompt, completion, label; {held}")
            instruction, one = _parse(row, where, str(source), labels)
            if one:
                require_final(row, where)
                require_bare(instruction, [one.output], special, where)
        except UnusableError as error:
            if unusable is None:
                raise
            unusable.add(error, where)
            continue
        if one:
            thumbs[digest(instruction.id, one.output), one.label] += 1
        yield instruction, one
    if notes is not None:
        notes += _odd_labels(source, thumbs)


def _parse(row: Row, where: str, source: str, scale: LabelScale | None) -> tuple[Instruction, Feedback | None]:
    column = next((name for name in ANSWERS if name in row), "")
    if column:
        asked = prompt_column(row)
        if not asked:
            raise UnusableError(f"{where}: has no prompt; write it into 'prompt', or take the row out")
        prompt = prompt_turns(row[asked], row, f"{where}: field {asked!r}")
    else:
        asked = column = next(name for name in CHATS if name in row)
        prompt = ()
    if row[column] is None:
        raise UnusableError(f"{where}: field {column!r} is null; write the answer, or take the row out")
    chat = read_chat(row, column, prompt, asked, where)
    further = {**row, "input": row.get("input") if asked != "input" else ""}
    instruction = as_instruction(chat[:-1], further, f"{where}: field {asked!r}")
    name = next(name for name in THUMBS if name in row)
    label = _read_label(row, name, where, scale)
    if label is None:
        return instruction, None
    rater, end = row.get("annotator"), row.get("finish_reason")
    rater = rater if isinstance(rater, str) and rater else stem(source)
    return instruction, Feedback(instruction, chat[-1].content, label, rater, end if isinstance(end, str) else "")


def _read_label(row: Row, name: str, where: str, scale: LabelScale | None) -> bool | None:
    """Return True for a thumb up, False for one down, None for no label. Raises `DataError` for another value."""
    value = row[name]
    if value is None or value != value or value == "":  # NaN is how a data frame writes null
        return None
    said = f"{where}: field {name!r} is {short_repr(value)}"
    if scale is not None:
        third = "" if scale.draw is None else f", {scale.draw} one that is left out"
        meaning = f"by --labels {scale.first} is a good output, {scale.second} a bad one{third}"
        try:
            number = scale.number(value)
        except ValueError as error:
            raise DataError(f"{said}; {meaning}") from error
        if number not in (0, 1, 2):
            raise DataError(f"{said}, which lies between; {meaning}")
        return {0: None, 1: True, 2: False}[int(number)]
    word = as_text(value).replace("_", " ")
    if word not in (*UP, *DOWN):
        raise DataError(
            f"{said}; a label is true or false, 1 or 0, or a word such as up or down; say what others mean with "
            "--labels GOOD,BAD[,NEITHER]"
        )
    return word in UP


def _odd_labels(source: Path | str, thumbs: Counter[tuple[str, bool]]) -> Iterator[str]:
    by_label, by_output = Counter[bool](), defaultdict[str, list[int]](list)
    for (output, label), count in thumbs.items():
        by_label[label] += count
        by_output[output].append(count)
    if len(by_label) == 1:
        [(label, count)] = by_label.items()
        way, other = ("up", "bad") if label else ("down", "good")
        yield f"{source}: all {count:,} thumbs are {way}: nothing in it says what a {other} output is"
    if repeated := [counts for counts in by_output.values() if sum(counts) > 1]:
        both = [counts for counts in repeated if len(counts) > 1]
        outputs = "1 output has" if len(repeated) == 1 else f"{len(repeated):,} outputs have"
        opposite = f", {len(both):,} of them opposite ones ({sum(map(sum, both)):,} rows)" if both else ""
        yield f"{source}: {outputs} several thumbs{opposite}: each counts"
