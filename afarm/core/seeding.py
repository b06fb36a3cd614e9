"""Random draws keyed by purpose: they depend on nothing but their key.

Which annotator judges a pair, which output is shown first and whether a label is flipped must not depend on batching,
concurrency, the order of pairs or restarts. So no generator is advanced: each draw hashes what it is for, such as
`uniform(seed, "order", pair_id)`. Python's own `hash` is salted per process, which made the reference code's draws
unrepeatable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def digest(*parts: object, length: int = 24) -> str:
    """Digest `parts` (JSON values) to `length` hexadecimal digits, equal on every machine."""
    text = _JSON.encode(parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()[:length]


def uniform(*key: object) -> float:
    """Draw a number in [0, 1) for `key`."""
    return int(digest(*key, length=13), 16) / 16**13


def choice(options: Sequence[T], *key: object) -> T:
    """Draw one of `options` for `key`, each equally likely. Raises `ValueError` if there are none."""
    if not options:
        raise ValueError("nothing to choose from")
    return options[int(uniform(*key) * len(options))]


def integer(*key: object) -> int:
    """Draw a 60-bit seed for `key`, for libraries that want an integer."""
    return int(digest(*key, length=15), 16)
