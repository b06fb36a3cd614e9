"""From several judgements of one pair to its label: over both orders, and over votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from afarm.records import Outcome

EVEN = 1e-9
"""How near to one half a mean may lie to be even: swapping a pair's outputs rounds otherwise."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found about a pair in its own order; `p2` as in `afarm.records.Preference`."""

    p2: float | None
    outcome: Outcome = "decided"


def of_orders(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict over the orders that the outputs were shown in: the mean, and a draw where that is even.

    So of two plain verdicts, agreement gives the label and disagreement a draw; probabilities are averaged. Where one
    order has no verdict there is nothing to agree with, and none is given.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    given = [verdict.p2 for verdict in verdicts if verdict.p2 is not None]
    if len(given) < len(verdicts):
        return _without_verdict(verdicts)
    mean = sum(given) / len(given)
    return Verdict(None, "draw") if abs(mean - 0.5) < EVEN else Verdict(mean)


def of_votes(verdicts: Sequence[Verdict], rule: str) -> Verdict:
    """The verdict of several votes, those without one left out; by `rule`:

    "majority": the side that more votes are on; as many on either is a draw. "mean": the mean of the votes, in which a
    draw counts one half; draws alone are a draw. A single vote stands as it is.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    cast = [0.5 if v.p2 is None else v.p2 for v in verdicts if v.outcome in ("decided", "draw")]
    if not cast:
        return _without_verdict(verdicts)
    if rule == "mean":
        drawn = all(v.outcome != "decided" for v in verdicts)
        return Verdict(None, "draw") if drawn else Verdict(sum(cast) / len(cast))
    lead = sum((p2 > 0.5) - (p2 < 0.5) for p2 in cast)
    return Verdict(float(lead > 0)) if lead else Verdict(None, "draw")


def _without_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    return Verdict(None, "refused" if any(v.outcome == "refused" for v in verdicts) else "unparsed")
