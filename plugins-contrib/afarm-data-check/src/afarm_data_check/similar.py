"""Near duplicates: every two texts whose word shingles overlap enough, found exactly.

The similarity is Jaccard's over shingles of three words. The join is by prefixes (Bayardo, Ma and Srikant 2007): with
shingles ordered from the rarest, two sets with a similarity of t or more share one among the first
n - ceil(t n) + 1 of each. No hash, no seed, and none is missed.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

SHINGLE = 3


def normalised(text: str) -> str:
    """A text in small letters, its words alone, with one space between."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def shingles(text: str) -> frozenset[str]:
    """The runs of three words of a text; of a shorter one, itself."""
    words = normalised(text).split()
    return frozenset(" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1)))


def similar(texts: Sequence[str], threshold: float, first: int | None = None) -> Iterator[tuple[int, int, float]]:
    """Yield the places of two texts, the earlier first, and their similarity, if `threshold` or more.

    With `first` only a text among the first so many and one behind them are compared.
    """
    sets = [shingles(text) for text in texts]
    counts = Counter(shingle for found in sets for shingle in found)
    having = defaultdict[str, list[int]](list)
    for place, found in enumerate(sets):
        ordered = sorted(found, key=lambda shingle: (counts[shingle], shingle))
        prefix = ordered[: len(found) - math.ceil(threshold * len(found)) + 1]
        asks = first is None or place >= first
        for other in sorted({one for shingle in prefix for one in having[shingle]} if asks else ()):
            smaller, larger = sorted((len(found), len(sets[other])))
            if smaller < threshold * larger:
                continue
            shared = len(found & sets[other])
            if (likeness := shared / (smaller + larger - shared)) >= threshold:
                yield other, place, likeness
        if first is None or place < first:
            for shingle in prefix:
                having[shingle].append(place)
