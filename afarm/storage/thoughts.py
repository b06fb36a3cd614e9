"""A model's thoughts within an answer or an output, by the marks of each vendor."""

from __future__ import annotations

import re

_NAMES = r"(?:\w+:)?(?:think|thinking|thoughts?|thought_process|reasoning|reflection|scratchpad|analysis)"

MARKS = (
    (rf"<{_NAMES}>", rf"</{_NAMES}>"),  # DeepSeek, Qwen, EXAONE, Seed, and prompts that ask for thoughts
    (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    (r"◁think▷", r"◁/think▷"),  # Kimi
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),  # Sky-T1, OpenThinker
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Command A
    (r"<\|channel>thought", r"<channel\|>"),  # Gemma
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
    (r"<start_working_out>", r"<end_working_out>"),  # notebooks that train reasoning
    (r"(?!)", r"\[BEGIN FINAL RESPONSE\]"),  # Apriel, which begins in words that anyone may say
    (  # gpt-oss
        r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)",
        r"<\|channel\|>final(?:\s?<\|constrain\|>\w+)?<\|message\|>",
    ),
    (r"\A(?-i:analysis(?=[A-Z]))", r"assistantfinal"),  # gpt-oss, from servers that strip its control tokens
    (r"\AHere is my thought process:", r"^Here is my response:"),  # Granite
)
"""Patterns of the marks that open and close thoughts. A chat template may have written the opening one."""

_ANY = "|".join(f"(?P<opens{i}>{o})|(?P<closes{i}>{c})" for i, (o, c) in enumerate(MARKS))
_MARK = re.compile(rf"(?=[<\[◁]|A[NS]|HE)(?:{_ANY})", re.I | re.M)  # how marks begin: four times as fast
_CONTROL_TOKENS = re.compile(r"\A(?:\s*<\|\w{1,40}\|>)+|(?:(?:<\|\w{1,40}\|>|\[END FINAL RESPONSE\])\s*){1,4}\Z")
_SENTENCE_ENDS = (".", "!", "?", ")", "]", "…", "。", "！", "？")
_INTRODUCES = (":", ",", '"', "'", "`", "“", "‘", "«", ">", "：")


def find_thoughts(text: str) -> str:
    """Return the first mark of thoughts in an output, empty without any.

    A mark in the middle of a sentence or behind a colon is quoted, and plain words close nothing that was not opened.
    """
    mark = _MARK.search(text)
    if mark is None or not _may_begin(text[: mark.start()]):
        return ""
    closes = (mark.lastgroup or "").startswith("closes")
    return "" if closes and mark[0][0].isalpha() else mark[0]


def cut_thoughts(text: str) -> str:
    """Return what follows the last closing mark of a thought, or the final channel.

    Nothing is left of a reply that ends within a thought: its verdict would have followed. Nor is anything of one whose
    first mark stands in the middle of a sentence or behind a colon: there it is quoted, and so may be what follows.
    """
    marks = list(_MARK.finditer(text))
    if marks:
        if (marks[-1].lastgroup or "").startswith("opens") or not _may_begin(text[: marks[0].start()]):
            return ""
        text = text[marks[-1].end() :]
    return _CONTROL_TOKENS.sub("", text.strip()).strip()


def _may_begin(before: str) -> bool:
    """Tell if a thought may begin or end behind `before`: it is empty, a whole sentence or a whole line."""
    said = before.rstrip()
    is_line = "\n" in before[len(said) :] and not said.endswith(_INTRODUCES)
    return not said or is_line or said.endswith(_SENTENCE_ENDS)
