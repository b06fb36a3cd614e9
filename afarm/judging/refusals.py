"""Requests that a judge refuses, and whose fault that is; answers of no use.

The fault is the request's own, or the run's. It follows from who gets the refusal, whatever its words. If no request
of an annotator to a judge was ever answered, earlier starts included, and five different ones are refused alike, then
the run asks for something that the judge does not take: it ends with the vendor's words. Otherwise each is that
request's own (a prompt that is too long, say): it is left without an answer, counted, and the run goes on.

Answers of no use are each request's own as well, unless all of the first ones are: see `USELESS`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from afarm.core.errors import JudgeError
from afarm.core.judge import ChatRequest
from afarm.judging.ledger import Ledger
from afarm.judging.rate_limit import RequestRefused

if TYPE_CHECKING:
    from afarm.judging.dispatch import PendingRequest

logger = logging.getLogger(__name__)

REQUEST_REFUSED = "request_refused"
"""The finish reason of a request that a judge did not take; its answer has no text and costs nothing."""
USELESS = {"lost": 10, "empty": 10, "unreadable": 20}
"""Answers of no use, by the kind of the last one, before a first one of use, after which a run ends. Those that cannot
be read are of one prompt, and to as many different questions."""
GO_ON = "the same command goes on from here then: nothing that was answered is asked again"
ALIKE, IN_ALL = 5, 10
"""Different requests that are refused, with the same words or whatever words, before a run is at fault."""


@dataclass(slots=True)
class FirstAnswers:
    """Answers until one is of use: what they are `about`, None after that, and why the last is of none."""

    about: set[Hashable] | None = field(default_factory=set)
    why: str = ""

    def add(self, kind: str, why: str, about: Hashable = None) -> bool:
        """Count an answer of no use, of a kind in `USELESS`. True if they are too many to go on."""
        if self.about is None:
            return False
        self.about.add(about or object())
        self.why = why
        return len(self.about) >= USELESS[kind]

    def add_unreadable(self, text: str, judge: str, request: ChatRequest) -> None:
        """Count an answer that has a text which cannot be read. Raises `JudgeError` if they are too many."""
        why = f"{text!r:.200} is not in the form that {request.annotator} asks for"
        if text.strip() and self.add("unreadable", why, tuple(shown.pair_id for shown in request.comparisons)):
            mend = f"What is paid for is kept. Choose another judge: {judge_option(request.role)}"
            raise JudgeError(f"{judge}{self}. {mend}")

    def __str__(self) -> str:
        return (
            f" has given no answer that can be used: {len(self.about or ())} came to nothing, the last one: {self.why}"
        )


def judge_option(role: str) -> str:
    """Write the option that names a role's judge: the usual role need not be named."""
    return "--judge …" if role == "strong" else f"--judge {role}=…"


class Refusals:
    """Refusals that the streams of one client have met."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.answered: dict[tuple[str, str], bool] = {}
        """Whether a judge ever answered a request of an annotator, as far as it was looked up."""
        self.known: dict[Hashable, RequestRefused] = {}
        """Refusals by what they are about: such requests are not sent again, in other words."""

    def is_own_fault(self, pending: PendingRequest) -> bool:
        """True if the judge has answered others of this annotator, in this process or any before it."""
        if pending.asker not in self.answered:
            query = "SELECT 1 FROM completions WHERE judge = ? AND annotator = ? AND TRIM(text) <> '' LIMIT 1"
            self.answered[pending.asker] = bool(self.ledger.read(query, pending.asker))
        return self.answered[pending.asker]

    def remember(self, pending: PendingRequest, refusal: RequestRefused) -> None:
        """Remember a request that is left without an answer, and say so for the first one."""
        if not self.known:
            about = [repr(shown.instruction.instruction) for shown in pending.request.comparisons] or ["this one"]
            logger.warning("%s; it has answered others, so %.60s is not, as are more like it", refusal, about[0])
        self.known[subject(pending)] = refusal


def subject(pending: PendingRequest) -> Hashable:
    """Return the subject of a request, however it is worded."""
    request = pending.request
    pairs = tuple((shown.pair_id, shown.order) for shown in request.comparisons)
    return pending.asker, pairs or (request.prompt, request.messages)


def find_fault(refused: Sequence[tuple[PendingRequest, RequestRefused]], is_all: bool) -> JudgeError | None:
    """The error that ends a run whose requests are all refused; None while that is not certain.

    `is_all` says that nothing else is left to be asked.
    """
    alike: dict[Hashable, set[Hashable]] = {}
    for pending, refusal in refused:
        for words, enough in (("", IN_ALL), (re.sub(r"\d+", "0", str(refusal)), ALIKE)):
            found = alike.setdefault((pending.asker, words), set())
            found.add((pending.request.prompt, pending.request.messages))
            if len(found) >= enough or (is_all and pending is refused[-1][0]):
                many = f"{len(found)} different requests were" if len(found) > 1 else "the request was"
                none = f"none of {pending.request.annotator or 'the run'} was ever answered"
                return JudgeError(f"{refusal}; {many} refused, and {none}", charged=False)
    return None
