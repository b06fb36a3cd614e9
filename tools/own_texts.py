"""Write texts of our own to summarise: the paragraphs of these docs that are long enough, one per row.

    python -m tools.own_texts docs texts.jsonl

A paragraph is running text: no heading, list, table, quotation or code.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

NOT_TEXT = re.compile(r"[ \t#|>!`<]|[-*] |\d+\. |:::")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def paragraphs(page: str, fewest: int) -> Iterator[str]:
    """Yield a page's paragraphs of at least so many characters, each on one line."""
    for block in re.split(r"\n\s*\n", FENCED.sub("", page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
        if not NOT_TEXT.match(block) and len(text) >= fewest:
            yield text


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("docs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--fewest", type=int, default=200, help="characters of a text")
    given = parser.parse_args()
    pages = sorted(path for path in given.docs.rglob("*.md") if "reference" not in path.parts)
    texts = dict.fromkeys(text for page in pages for text in paragraphs(page.read_text("utf-8"), given.fewest))
    given.out.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    print(f"{len(texts)} texts of {len(pages)} pages")


if __name__ == "__main__":
    main()
