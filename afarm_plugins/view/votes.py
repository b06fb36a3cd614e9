"""Votes on one pair: the order it was shown in, the raw answer, its reason and price."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from afarm import DataError, JudgedPair, Row
from afarm.results import Ledger, column_names

MOST_VOTES = 100
"""Votes of a pair that are shown, the newest."""

MOST_TEXT = 50_000
"""Characters of an answer or a prompt that are shown."""

MOST_BETWEEN = 400
"""Characters that a prompt has between the texts of a comparison, and before them from its number on."""

OF_ANSWER = ("judge", "annotator", "run", "price", "seconds", "model", "finish_reason", "input_tokens", "output_tokens")
"""What a vote says of the answer that it was read from."""

_ANSWERS, _JUDGEMENTS = column_names("completions"), column_names("judgements")
_PLACE = re.compile(r"(?:comparison|pair|example|case|item|task)\W{0,3}(\d{1,3})\b", re.IGNORECASE)
_REASONS = ("explanation", "concise_explanation", "reason", "rationale", "reasoning")


def votes_on(ledger: Ledger, row: Row) -> list[Row]:
    """List a pair's votes, its label's first; none if `row` is no pair. Raises `StoreError`."""
    try:
        judged = JudgedPair.from_row(row)
    except DataError:
        return []
    pair = judged.pair
    own = [key for key in judged.preference.completion.split(",") if key]
    votes = _judgements(ledger, pair.id)
    keys = dict.fromkeys([*own, *(vote["completion"] for vote in votes if vote["completion"])])
    looked_up = list(keys)[: 4 * MOST_VOTES]
    statement = f"SELECT {', '.join(_ANSWERS)} FROM completions WHERE key IN ({','.join('?' * len(looked_up))})"
    answers = {found[0]: dict(zip(_ANSWERS, found, strict=True)) for found in ledger.read(statement, looked_up)}
    known = {vote["completion"] for vote in votes}
    # An answer may be there whose judgement is not: of a ledger that was recovered, say.
    votes += [
        {"completion": key, "shown": "", "first": None, "outcome": "", "draw": None} for key in own if key not in known
    ]
    described = [_describe(ledger, vote, answers.get(vote["completion"], {}), judged) for vote in votes]
    described.sort(key=lambda vote: (vote["completion"] not in own, -(vote["created"] or 0.0), vote["order"]))
    return [{**vote, "own": vote["completion"] in own} for vote in described[:MOST_VOTES]]


def _judgements(ledger: Ledger, pair_id: str) -> list[Row]:
    """The judgements of a pair by all annotators, found by the table's key: it begins with the annotator."""
    statement = (
        f"SELECT {', '.join(_JUDGEMENTS)} FROM judgements "
        "WHERE annotator IN (SELECT DISTINCT annotator FROM judgements) AND pair_id = ? ORDER BY created DESC"
    )
    return [dict(zip(_JUDGEMENTS, found, strict=True)) for found in ledger.read(statement, [pair_id])][:MOST_VOTES]


def _describe(ledger: Ledger, vote: Mapping[str, Any], answer: Mapping[str, Any], judged: JudgedPair) -> Row:
    pair, first, outcome = judged.pair, vote["first"], vote["outcome"]
    order = ""
    if vote["shown"]:
        order = "12" if (vote["shown"] == "ab") == pair.is_canonical else "21"
    p2 = None if first is None else 1 - first if order == "12" else first
    if p2 is None or p2 == 0.5:
        says = "draw" if p2 == 0.5 or outcome == "draw" else outcome
    else:
        says = "output_2" if p2 > 0.5 else "output_1"
    described: Row = {
        "completion": vote["completion"],
        "order": order,
        "p2": p2,
        "says": says if outcome else "",
        "sample": vote["draw"],
        "created": answer.get("created", vote.get("created")),
        **{name: answer.get(name) for name in OF_ANSWER},
        **dict.fromkeys(("text", "prompt", "shared_by", "place")),
        "reason": "",
    }
    if not answer:
        return described
    prompt, task = _prompt(answer["request"]), pair.instruction
    place = find_comparison(prompt, task.instruction, task.input, pair.output_1, pair.output_2)
    [(shared,)] = ledger.read("SELECT COUNT(*) FROM judgements WHERE completion = ?", [answer["key"]])
    return {
        **described,
        "text": answer["text"][:MOST_TEXT],
        "prompt": prompt[:MOST_TEXT],
        "reason": find_reason(answer["text"], place),
        "shared_by": shared or None,
        "place": place if shared > 1 else None,
    }


def _prompt(request: str) -> str:
    """Write a request as text: the messages under the names of their roles, or the prompt."""
    try:
        sent = json.loads(request)
        messages = sent.get("messages") or []
        lines = [f"[{message.get('role')}]\n{message.get('content')}" for message in messages]
        return "\n\n".join(lines) or str(sent.get("prompt") or "")
    except (ValueError, AttributeError, RecursionError):
        return request


def find_comparison(prompt: str, instruction: str, *others: str) -> int | None:
    """Find the number of the comparison in a prompt that has all these texts in order; None without one."""
    length = sum(map(len, (instruction, *others))) + MOST_BETWEEN
    at = prompt.rfind(instruction) if instruction.strip() else -1
    while at >= 0 and any(prompt.find(text, at, at + length) < 0 for text in others):
        at = prompt.rfind(instruction, 0, at + len(instruction) - 1)
    found = list(_PLACE.finditer(prompt, max(0, at - MOST_BETWEEN), at)) if at >= 0 else []
    return int(found[-1][1]) if found else None


def find_reason(answer: str, place: int | None) -> str:
    """Find the judge's reason for the comparison `place` in a JSON answer; empty without one."""
    begin = min((at for at in (answer.find("["), answer.find("{")) if at >= 0), default=-1)
    if begin < 0:
        return ""
    try:
        value, _ = json.JSONDecoder().raw_decode(answer[begin:])
    except (ValueError, RecursionError):
        return ""
    objects = [value] if isinstance(value, dict) else [one for one in value if isinstance(one, dict)]
    about = [one for one in objects if place is not None and one.get("index") == place] or objects
    if len(about) != 1:
        return ""
    return next((str(about[0][name]) for name in _REASONS if about[0].get(name)), "")
