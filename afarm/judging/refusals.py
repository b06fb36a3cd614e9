"""Requests that a judge refuses, and whose fault that is: the request's own, or the run's.

It follows from who gets the refusal, whatever its words. If no request of an annotator to a judge was ever answered,
earlier starts included, and five different ones are refused alike, then the run asks for something that the judge does
not take: it ends with the vendor's words. Otherwise each is that request's own (a prompt that is too long, say): it is
left without an answer, counted, and the run goes on.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afarm.core.errors import JudgeError
from afarm.judging.ledger import Ledger
from afarm.judging.rate_limit import RequestRefused

if TYPE_CHECKING:
    from afarm.judging.dispatch import PendingRequest

logger = logging.getLogger(__name__)

REQUEST_REFUSED = "request_refused"
"""The finish reason of a request that a judge did not take; its answer has no text and costs nothing."""
ALIKE, IN_ALL = 5, 10
"""Different requests that are refused, with the same words or whatever words, before a run is at fault."""


@dataclass(slots=True)
class Refusals:
    """What is known of refused requests: by all streams of one client."""

    ledger: Ledger
    answered: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether a judge ever answered a request of an annotator, as far as it was looked up."""
    known: dict[Hashable, RequestRefused] = field(default_factory=dict)
    """Refusals by what they are about: such requests are not sent again, in other words."""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def is_own_fault(self, pending: PendingRequest) -> bool:
        """True if the judge has answered others of this annotator, in this process or any before it."""
        asked = (pending.queue.identity, pending.request.annotator)
        if asked not in self.answered:
            query = "SELECT 1 FROM completions WHERE judge = ? AND annotator = ? AND TRIM(text) <> '' LIMIT 1"
            self.answered[asked] = bool(self.ledger.read(query, asked))
        return self.answered[asked]

    def count(self, pending: PendingRequest, refusal: RequestRefused) -> None:
        """Count a request that is left without an answer, and say so for the first of its annotator."""
        asked = (pending.queue.identity, pending.request.annotator)
        self.known[about(pending)] = refusal
        self.counts[asked] += 1
        if self.counts[asked] == 1:
            logger.warning("%s; it has answered others, so this one has no answer, as have more like it", refusal)


def about(pending: PendingRequest) -> Hashable:
    """What a request is about, in whatever words."""
    request = pending.request
    pairs = tuple((shown.pair_id, shown.order) for shown in request.comparisons)
    return pending.queue.identity, request.annotator, pairs or (request.prompt, request.messages)


def find_fault(refused: Sequence[tuple[PendingRequest, RequestRefused]], is_all: bool) -> JudgeError | None:
    """The error that ends a run whose requests are all refused; None while that is not certain.

    `is_all` says that nothing else is left to be asked.
    """
    asking: dict[tuple[str, str], dict[str, set[Hashable]]] = {}
    for pending, refusal in refused:
        alike = asking.setdefault((pending.queue.identity, pending.request.annotator), {})
        for words in ("", re.sub(r"\d+", "0", str(refusal))):
            alike.setdefault(words, set()).add((pending.request.prompt, pending.request.messages))
    for (judge, annotator), alike in asking.items():
        count = len(alike.pop(""))
        if is_all or count >= IN_ALL or max(map(len, alike.values())) >= ALIKE:
            last = next(
                r for p, r in reversed(refused) if (p.queue.identity, p.request.annotator) == (judge, annotator)
            )
            many = f"{count} different requests were" if count > 1 else "the request was"
            return JudgeError(
                f"{last}; {many} refused, and none of {annotator or 'the run'} was ever answered", charged=False
            )
    return None
