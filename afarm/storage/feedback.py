"""Unpaired feedback: outputs with a thumb up or down each, in the forms that files have.

TRL's (KTO) are `prompt`, `completion`, `label`, afarm's own `instruction`, `input`, `output`, `label`; LLaMA-Factory's
have a `kto_tag`, beside these or beside a whole chat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from afarm.core.errors import DataError
from afarm.core.records import Feedback, Row
from afarm.core.seeding import digest
from afarm.storage.conversations import Unusable, UnusableError, as_instruction, prompt_turns
from afarm.storage.label_scales import LabelScale, as_text
from afarm.storage.labelled_pairs import CHATS, prompt_column, read_chat, require_bare
from afarm.storage.record_fields import short_repr
from afarm.storage.row_claims import require_final
from afarm.storage.row_shapes import FEEDBACK, PAIRED, THUMBS, what_it_holds
from afarm.storage.rows import read_placed_rows, stem

UP = ("true", "1", "up", "thumbs up", "👍", "good", "desirable", "positive", "yes", "like")
DOWN = ("false", "0", "down", "thumbs down", "👎", "bad", "undesirable", "negative", "no", "dislike")
"""What labels say, in lower case, with a space for an underscore."""


def holds_feedback(source: Path | str) -> bool:
    """Tell by its first row if a file, or a data set of the Hub, holds unpaired feedback."""
    return any(_is_feedback(row) for _, row in islice(read_placed_rows(source), 1))


def _is_feedback(row: Row) -> bool:
    paired, thumb = (any(row.keys() >= {*some} for some in fields) for fields in (PAIRED, FEEDBACK))
    return thumb and not paired


def own_feedback(
    source: Path | str, unusable: Unusable | None = None, *, scale: str = "", notes: list[str] | None = None
) -> Iterator[Feedback]:
    """Yield the labelled outputs of a file or of a data set of the Hub.

    `scale` names the labels of a good output and of a bad one, and perhaps of one that is left out, such as "5,1,3";
    empty for true and false, 1 and 0, and the words `UP` and `DOWN`. `unusable` counts the rows that cannot be learned
    from (None: the first is an error) and those without a label. After the last row `notes` has a
    sentence if an output has both labels. Raises `DataError` naming file, row and field if a row is wrong.
    """
    labels, unusable, strict = LabelScale.parse(scale) if scale else None, unusable or Unusable(), unusable is None
    thumbs = Counter[tuple[str, bool]]()
    for where, row in read_placed_rows(source):
        if not _is_feedback(row):
            held = what_it_holds(row, str(source), to_train=True)
            raise DataError(f"{where}: is no unpaired feedback, which has prompt, completion, label; {held}")
        try:
            one = _parse(row, where, stem(str(source)), labels)
            if one:
                require_final(row, where)
                require_bare(one.instruction, [one.output], unusable.special_tokens, where)
        except UnusableError as error:
            if strict:
                raise
            unusable.add(error, where)
        else:
            if one:
                thumbs[digest(one.instruction.id, one.output), one.label] += 1
                yield one
            else:
                unusable.unlabelled += 1
    up, down = ({output for output, label in thumbs if label == way} for way in (True, False))
    if notes is not None and (both := up & down):
        rows = sum(count for (output, _), count in thumbs.items() if output in both)
        outputs = "1 output has" if len(both) == 1 else f"{len(both):,} outputs have"
        notes.append(f"{source}: {outputs} thumbs of both kinds ({rows:,} rows): each counts")


def _parse(row: Row, where: str, rater: str, scale: LabelScale | None) -> Feedback | None:
    """Parse a row; None without a label. Raises `UnusableError`, or `DataError` as `_read_label`."""
    answer = next((name for name in ("completion", "output") if name in row), "")
    asked = prompt_column(row) if answer else next(name for name in CHATS if name in row)
    if not asked or row[answer or asked] is None:
        raise UnusableError(f"{where}: field {answer if asked else 'prompt'!r} is null; write it, or take the row out")
    prompt = prompt_turns(row[asked], row, f"{where}: field {asked!r}") if answer else ()
    chat = read_chat(row, answer or asked, prompt, asked, where)
    further = {**row, "input": row.get("input") if asked != "input" else ""}
    instruction = as_instruction(chat[:-1], further, f"{where}: field {asked!r}")
    label = _read_label(row, next(name for name in THUMBS if name in row), where, scale)
    if label is None:
        return None
    texts = [text if isinstance(text := row.get(name), str) else "" for name in ("annotator", "finish_reason")]
    return Feedback(instruction, chat[-1].content, label, texts[0] or rater, texts[1])


def _read_label(row: Row, name: str, where: str, scale: LabelScale | None) -> bool | None:
    """Return True for a thumb up, False for one down, None for none. Raises `DataError`."""
    value = row[name]
    if value is None or value != value or value == "":  # NaN is how a data frame writes null
        return None
    if scale is None:
        word = as_text(value).replace("_", " ")
        if word in (*UP, *DOWN):
            return word in UP
        meaning = "a label is true or false, 1 or 0, or a word such as up or down; say what others mean with --labels"
        raise DataError(f"{where}: field {name!r} is {short_repr(value)}; {meaning} GOOD,BAD[,NEITHER]")
    known = {scale.first: True, scale.second: False, scale.draw: None}
    if as_text(value) not in known:
        third = "" if scale.draw is None else f", {scale.draw} one that is left out"
        meaning = f"by --labels {scale.first} is a good output, {scale.second} a bad one{third}"
        raise DataError(f"{where}: field {name!r} is {short_repr(value)}; {meaning}")
    return known[as_text(value)]
