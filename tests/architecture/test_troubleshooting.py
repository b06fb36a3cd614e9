"""The messages that the page on troubleshooting quotes are those that the code gives."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from places import DOCS
from syntax import ALL

PAGE = (DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")

OTHERS = {"CUDA out of memory"}
"""Messages of other software."""

QUOTED = [" ".join(quoted.split()) for quoted in re.findall(r"^\*\*`([^`]+)`\*\*", PAGE, re.M)]


def words(node: ast.AST) -> str:
    """The text of an expression, with "…" for what it fills in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(words(part) or "…" for part in node.values)
    return ""


@cache
def texts() -> str:
    """Every text in the code, a line each."""
    nodes = (node for module in ALL for node in ast.walk(module.tree))
    return "\n".join(" ".join(words(node).split()) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr))


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 50
    assert len(set(QUOTED)) == len(QUOTED)


@pytest.mark.parametrize("message", [quoted for quoted in QUOTED if quoted not in OTHERS])
def test_a_quoted_message_is_in_the_code(message: str) -> None:
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip(" :;,.()")]
    assert parts, "nothing but gaps"
    assert re.search(".*".join(parts), texts()), "no such message: quote it as it is, with … for what is filled in"
