"""The messages that the page on troubleshooting quotes are those that the code gives."""

from __future__ import annotations

import ast
import re

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


def texts() -> str:
    """Every text in the code, a line each."""
    nodes = (node for module in ALL for node in module.nodes)
    return "\n".join(" ".join(words(node).split()) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr))


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 50
    assert len(set(QUOTED)) == len(QUOTED)


def test_each_quoted_message_is_in_the_code() -> None:
    """As it is, with … for what is filled in."""
    code = texts()
    parts = {
        message: [re.escape(part.strip()) for part in message.split("…") if part.strip(" :;,.()")]
        for message in QUOTED
        if message not in OTHERS
    }
    assert all(parts.values()), "nothing but gaps"
    assert [message for message, some in parts.items() if not re.search(".*".join(some), code)] == []
