"""First lines of docstrings: a verb or a noun phrase that fits on a line."""

from __future__ import annotations

import re

import pytest
from syntax import modules

LONGEST = 100
CLAUSE = re.compile(r"(What|Whether|How|Which|Those|Who|Whose|Where|That)\b")

FOLDERS = ("afarm", "afarm_plugins", "tools", "plugins-contrib")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_docstring_opens_with_a_verb_or_a_noun_in_one_line(folder: str) -> None:
    wrong = [
        f"{module.path}:{line} {opening}"
        for module in modules(folder)
        for line, text in module.docstrings()
        if CLAUSE.match(opening := text.splitlines()[0]) or len(opening) > LONGEST or opening[-1] not in ".:?!"
    ]
    assert wrong == []
