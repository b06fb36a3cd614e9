"""Objects about comparisons in JSON that a judge wrote freely: in prose, cut off, or ill-quoted.

A judge without a schema that quotes an output may forget to escape it, so the output's own `{"first_is_better": …}`
stands naked inside the judge's object. The text is therefore scanned once, with the containers that are open kept on a
stack: an object inside another's is not read, and one that breaks off counts as there, without a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from afarm_plugins.annotators.own_words import is_embedded
from afarm_plugins.annotators.verdict_grammar import takes_back

VERDICT, INDEX, EXPLANATION = "first_is_better", "index", "explanation"

_TOKEN = re.compile(
    r'\s*+(?:(?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*+"|\x27\w{1,30}\x27)'
    r"|(?P<literal>-?[0-9][0-9.eE+-]*+|(?:[Tt]rue|[Ff]alse|null|None)\b)"
    r"|(?P<mark>[{}\[\]:,]))",
    re.DOTALL,
)
_SPACE = re.compile(r"\s*+")
_OPENING = re.compile(r"[{\[]")
_BRACE = re.compile(r"[{}]")
_ORPHAN = re.compile(r":\s*(?:true|false)\s*[,}\]]", re.IGNORECASE)
_WRAPPER = re.compile(
    r"\Z|[0-9]|(?:final_?)?(?:verdict|result|answer|comparison|judge?ment|evaluation|annotation|preference|response|output"
    r"|item|data)",
    re.IGNORECASE,
)
_WORDS = {"true": True, "false": False, "null": None, "none": None}


def comparison_objects(text: str) -> list[Mapping[str, Any]]:
    """The objects in `text` that are about a comparison, in order, alone or inside lists and wrappers.

    Each has its `index` and `first_is_better` as they are there; one that is broken or cut off has no
    `first_is_better`, nor has one in the middle of a sentence or introduced as another's words. Objects inside one
    about a comparison, or in an explanation, are quotations and left out. Linear in the length of the text.
    """
    scan = _Scan(text)
    while scan.step():
        pass
    return scan.read


@dataclass(slots=True)
class _Container:
    """An object or list that is open: behind which position, and how many objects were read before it."""

    is_object: bool
    start: int
    read_before: int
    awaits: str
    fields: dict[str, Any] = field(default_factory=dict)
    key: str = ""

    def put(self, value: Any) -> None:
        """Take a value. A key given two values has none: Python would silently take the last."""
        if self.is_object:
            self.fields[self.key] = value if self.fields.get(self.key, value) == value else None
        self.awaits = ","


@dataclass(slots=True)
class _Scan:
    """One pass over `text`, a token a step; `stack` holds the containers that are open at `position`.

    `outermost` is where the outermost container opened last, `read_before` how many objects were read before it.
    """

    text: str
    position: int = 0
    outermost: int = 0
    read_before: int = 0
    stack: list[_Container] = field(default_factory=list)
    read: list[Mapping[str, Any]] = field(default_factory=list)

    def step(self) -> bool:
        """Take one token. False if the text is at its end."""
        if not self.stack:
            opening = _OPENING.search(self.text, self.position)
            after = self.text[self.position : opening.start() if opening else len(self.text)]
            # What was read may have ended too early: then the rest of an object stands here, with its own verdict.
            if self.read and (_ORPHAN.search(after) or takes_back(after)):
                self.read = _without_verdicts(self.read)
            if opening:
                self.outermost, self.read_before, self.position = opening.start(), len(self.read), opening.end()
                self._open(opening[0], opening.end())
            return opening is not None
        token = _TOKEN.match(self.text, self.position)
        if token and self._take(token):
            self.position = token.end()
            if not self.stack and is_embedded(self.text, self.outermost, self.position):
                self.read[self.read_before :] = _without_verdicts(self.read[self.read_before :])
            return True
        space = _SPACE.match(self.text, self.position)
        at = space.end() if space else self.position
        if at == len(self.text) or (token is None and self.text[at] == '"'):  # the end, or a text that never closes
            while self.stack:
                self._close(whole=False)
            return False
        return self._leave_broken()

    def _take(self, token: re.Match[str]) -> bool:
        """Put a token where it belongs. False if it cannot stand there."""
        top, mark = self.stack[-1], token["mark"]
        if top.awaits == ":":
            top.awaits = "value" if mark == ":" else ":"
            return mark == ":"
        if mark == ("}" if top.is_object else "]"):
            if top.is_object and top.awaits == "value":
                return False
            self._close(whole=True)
        elif top.awaits == ",":
            if mark == "{" and not top.is_object:  # a forgotten comma
                self._open(mark, token.end())
                return True
            top.awaits = "key" if top.is_object else "value"
            return mark == ","
        elif top.awaits in ("key", "first key"):
            if not token["string"]:
                return False
            top.key, top.awaits = token["string"][1:-1], ":"
        elif mark in ("{", "["):
            self._open(mark, token.end())
        elif mark:
            return False
        else:
            literal = token["literal"]
            top.put(token["string"][1:-1] if literal is None else _value(literal))
        return True

    def _open(self, mark: str, start: int) -> None:
        self.stack.append(_Container(mark == "{", start, len(self.read), "first key" if mark == "{" else "value"))

    def _close(self, whole: bool) -> None:
        """Close the innermost container and keep what it says about a comparison."""
        closed = self.stack.pop()
        keys = {*closed.fields, closed.key}
        explains_only = EXPLANATION in keys and len(self.read) == closed.read_before
        if VERDICT in keys or INDEX in keys or explains_only:
            del self.read[closed.read_before :]
            self.read.append({k: v for k, v in closed.fields.items() if whole or k == INDEX})
        if self.stack:
            if not _WRAPPER.match(self.stack[-1].key):
                del self.read[closed.read_before :]
            self.stack[-1].put(None)

    def _leave_broken(self) -> bool:
        """Go on after the innermost object, which is broken here. False if nothing tells where it ends."""
        while self.stack and not self.stack[-1].is_object:
            self.stack.pop()
        if not self.stack:
            return True
        if len(self.stack) == 1 and not self.stack[0].fields and self.stack[0].awaits in ("first key", ":"):
            self.position = self.stack.pop().start  # a bracket in prose
            return True
        depth = 1
        for brace in _BRACE.finditer(self.text, self.position):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                self.position = brace.end()
                self._close(whole=False)
                return True
        while self.stack:
            self._close(whole=False)
        return False


def _without_verdicts(items: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The objects of another, or broken ones: they are there, and say nothing."""
    return [{k: v for k, v in item.items() if k == INDEX} for item in items]


def _value(literal: str) -> Any:
    """A boolean, a null or a number: a short whole one, or 0.5 for any other, which is no index."""
    if literal.lower() in _WORDS:
        return _WORDS[literal.lower()]
    return int(literal) if re.fullmatch("[0-9]{1,6}", literal) else 0.5
