"""Text shown to people: on one line, shortened, escaped, and amounts of dollars.

Names and outputs come from anybody's files: no control character, markup or table delimiter in them is let through.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from itertools import takewhile, zip_longest

_MARKDOWN = str.maketrans({**{c: f"\\{c}" for c in "\\`*_[]|#~!"}, "<": "&lt;", ">": "&gt;", "&": "&amp;"})


_DIRECTIONS = [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_CONTROLS = [*range(32), *range(127, 160), *_DIRECTIONS, *range(0xD800, 0xE000)]
_VISIBLE = {c: f"\\x{c:02x}" if c < 256 else f"\\u{c:04x}" for c in _CONTROLS if chr(c) not in "\t\n\r"}
"""What a terminal or a browser acts on instead of showing it: C0 and C1 controls, and those of writing direction. And
halves of surrogate pairs, which no stream takes."""


_NAMES = {"": "nothing", "\n": "a line break", "\r": "a carriage return", "\t": "a tab", "\ufeff": "a byte order mark"}
"""What characters are called that Unicode has no plain name for."""

_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-(?=[\w-]{0,99}[0-9])(?=[\w-]{0,99}[A-Za-z0-9]{10})[\w-]{16,}"
    r"|(?:gsk_|hf_|xai-|pplx-)[A-Za-z0-9]{30,}|AIza[\w-]{35})",
    re.ASCII,
)
"""Keys as vendors begin them. Other long names are accounts and deployments as often as keys."""


def visible(text: str) -> str:
    r"""Show control characters of `text` as text, such as \x1b; tabs and line ends are left alone."""
    return text.translate(_VISIBLE)


def one_line(text: str, most: int = 80) -> str:
    """Put `text` on one line, control characters shown as text, cut after `most` characters."""
    printable = " ".join("".join(c if c.isprintable() else " " for c in visible(text)).split())
    return printable if len(printable) <= most else f"{printable[: most - 1]}…"


def holds_key(text: str) -> bool:
    """Tell if something in `text` looks like a vendor's key."""
    return bool(_KEY.search(text))


def without_keys(text: str) -> str:
    """Replace vendors' keys, and in URLs user names, passwords and parameters, which may be keys."""
    named = re.sub(r"(https?:/{1,2})[^\s/@]+@", r"\1[key]@", _KEY.sub("[key]", text))
    return without_passwords(re.sub(r"(https?:/{1,2}[^\s?#]*)[?#][^\s'\",;)]+", r"\1?[key]", named))


def without_passwords(text: str) -> str:
    """Remove the passwords from URLs of databases."""
    named = re.sub(r"(postgres(?:ql)?://[^\s:@/]*):\S*@", r"\1@", text)
    return re.sub(r"((?:ssl)?password)=[^\s&'\"]*", r"\1=[password]", named)


def markdown(text: str) -> str:
    """Escape `text` so that Markdown shows it as it is, on one line."""
    return one_line(text, 600).translate(_MARKDOWN)


def code(text: object) -> str:
    """Write `text` as a code span of Markdown, on one line."""
    line = one_line(str(text), 600)
    fence = "`" * (longest_run(line) + 1)
    return f"{fence} {line} {fence}" if len(fence) > 1 else f"`{line}`"


def code_block(lines: Iterable[str], language: str = "") -> list[str]:
    """Fence `lines` as a code block of Markdown, control characters shown as text."""
    body = [visible(line) for line in lines]
    fence = "`" * max(3, longest_run("\n".join(body)) + 1)
    return [f"{fence}{language}", *body, fence]


def longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def markup(text: str) -> str:
    """Escape `text` so that nothing in it is read as rich's console markup."""
    from rich.markup import escape

    return escape(text)


def shortened(text: str, other: str, width: int = 40) -> str:
    """At most `width` characters of `text`, from shortly before it begins to differ from `other`."""
    if len(text) <= width:
        return text
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))
    start = max(0, shared - width // 4)
    return ("…" if start else "") + text[start : start + width] + ("…" if start + width < len(text) else "")


def looks_of(text: str) -> str:
    """Return what a reader sees of `text`: no spaces, invisible characters or kinds of quotes and dashes."""
    kinds = {"Pd": "-", "Pi": "'", "Pf": "'"}
    plain = (c for c in unicodedata.normalize("NFKC", text).replace('"', "'") if c.isprintable() and c != " ")
    return "".join(kinds.get(unicodedata.category(c), c) for c in plain)


def describe_difference(text: str, other: str) -> str:
    """Say where `text` begins to differ: "has no-break space at character 9 where the other has space"."""
    pairs = zip_longest(text, other, fillvalue="")
    at, pair = next((at, pair) for at, pair in enumerate(pairs, start=1) if pair[0] != pair[1])
    here, there = (_NAMES.get(c) or unicodedata.name(c, repr(c)).lower() for c in pair)
    return f"has {here} at character {at} where the other has {there}"


def dollars(amount: float) -> str:
    """Format an amount in cents, or to two digits if it is less: nothing above zero is shown as "$0.00"."""
    places = 2 if amount <= 0 else max(2, 1 - math.floor(math.log10(amount)))
    whole, _, rest = f"{amount:,.{places}f}".partition(".")
    return f"${whole}.{rest.rstrip('0').ljust(2, '0')}"
