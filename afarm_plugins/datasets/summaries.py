"""Texts to summarise, perhaps with summaries: posts with their TL;DR, articles, documents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from afarm import DataError, Instruction, Output, Row, did_you_mean, read_placed_rows
from afarm_plugins.datasets.one_file import OneFile

TEXTS = ("post", "article", "document", "text", "content", "body", "dialogue", "prompt")
"""Names of the column of texts in public data sets, the most specific first."""

SUMMARIES = ("summary", "highlights", "tldr", "completion", "chosen")
"""Names of the column of summaries."""

_CLOSING = re.compile(r"\s*TL;?DR:?\s*\Z", re.IGNORECASE)


class Summaries(OneFile):
    """Texts of a file, each an input under one instruction, with its summary as output.

    Blank texts are passed over. A row may be nested as in OpenAI's comparisons of summaries: the text in `info`, the
    summaries in a list, and the number of the better one in `choice`.
    """

    section = "summaries"
    path_option = "--set summaries.path=FILE"

    def keyed_rows(self) -> Iterator[tuple[str, Output]]:
        for where, row in read_placed_rows(self.config.path):
            fields = flat(row)
            text = self._text(fields, self.config.text, TEXTS, where)
            if text is None:
                raise DataError(
                    f"{where}: has no text; its fields are {', '.join(map(repr, fields))}: "
                    "--set summaries.text=FIELD names the one to summarise"
                )
            title = self._text(fields, "", ("title",), where)
            text = _CLOSING.sub("", text).strip()
            if not text:
                continue
            material = f"{title.strip()}\n\n{text}" if title and title.strip() and title.strip() not in text else text
            task = Instruction(self.config.instruction, material, str(fields.get("subreddit") or ""))
            summary = self._text(fields, self.config.summary, SUMMARIES, where) or ""
            yield task.id, Output(task, summary.strip(), "summary")

    def _text(self, fields: Row, chosen: str, names: tuple[str, ...], where: str) -> str | None:
        """Return the text of the chosen field, or else of the first of `names` that exists."""
        if chosen and chosen not in fields:
            near = did_you_mean(chosen, fields)
            raise DataError(f"{where}: has no field {chosen!r}.{near} Its fields are {', '.join(map(repr, fields))}")
        value = fields[chosen] if chosen else next((v for n in names if isinstance(v := fields.get(n), str)), None)
        if value is not None and not isinstance(value, str):
            raise DataError(f"{where}: field {chosen!r} must be text, not {type(value).__name__}")
        return value


def flat(row: Row) -> dict[str, Any]:
    """Return a row's fields with those of its `info`, and the better of its `summaries` as `summary`."""
    info = row.get("info")
    fields = {**(info if isinstance(info, Mapping) else {}), **{k: v for k, v in row.items() if k != "info"}}
    listed, choice = fields.get("summaries"), fields.get("choice")
    if isinstance(listed, list) and isinstance(choice, int) and 0 <= choice < len(listed):
        better = listed[choice]
        fields["summary"] = better.get("text", "") if isinstance(better, Mapping) else better
    return fields
