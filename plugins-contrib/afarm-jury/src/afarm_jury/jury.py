"""`jury:FILE.yaml`: jurors vote on each pair, the cheapest first, until the majority is fixed."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from afarm import (
    AnnotateContext,
    Annotator,
    Ask,
    BudgetError,
    BuildContext,
    Capabilities,
    ChatRequest,
    Completion,
    ConfigError,
    DataError,
    Instruction,
    JudgeError,
    Judgement,
    JudgementKey,
    Pair,
    PluginError,
    Preference,
    in_canonical_order,
    read_labelled_pairs,
    seeding,
    why_left_out,
)
from afarm_jury.file import read_jury
from afarm_jury.weights import EVEN, expect_open, is_open, learn_weights

logger = logging.getLogger(__name__)

UNKNOWN = 0.75
"""How often an unknown juror is expected to be right, for estimates of what is asked."""
PROBE = Pair(Instruction("Name a fish.", ""), "Eel.", "An oak is a tree.")
"""The pair that jurors' prices are compared by."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A juror with its place in the file and what its vote counts."""

    name: str
    annotator: Annotator
    judges: Mapping[str, str]
    weight: float
    accuracy: float = UNKNOWN


@dataclass(frozen=True, slots=True)
class JurorAsk:
    """The run's `ask`, by which a juror asks its own judges under its own name."""

    ask: Ask
    name: str
    judges: Mapping[str, str]

    def role(self, role: str) -> str:
        return self.judges.get(role) or self.judges.get("*") or role

    def own(self, request: ChatRequest) -> ChatRequest:
        return replace(request, role=self.role(request.role), annotator=self.name)

    def __call__(self, requests: Sequence[ChatRequest]) -> list[Completion]:
        return self.ask([self.own(request) for request in requests])

    def stream(self, requests: Iterable[ChatRequest]) -> Generator[tuple[int, Completion], None, None]:
        return self.ask.stream(map(self.own, requests))

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        return self.ask.recall(keys)

    def learn(self, judgements: Mapping[JudgementKey, Judgement]) -> None:
        self.ask.learn(judgements)

    def judge(self, role: str) -> str:
        return self.ask.judge(self.role(role))

    def capabilities(self, role: str) -> Capabilities:
        return self.ask.capabilities(self.role(role))

    def degraded(self, request: ChatRequest) -> tuple[str, ...]:
        return self.ask.degraded(self.own(request))

    def worst_case_price(self, request: ChatRequest) -> float | None:
        return self.ask.worst_case_price(self.own(request))


class Jury(Annotator):
    """Labels by the weighted majority of its jurors.

    Even votes are a draw, and a juror without a verdict abstains. Each vote is kept in `Preference.votes`. A juror that
    is not in it was not asked: the majority was fixed.
    """

    def __init__(self, config: None, spec: str, context: BuildContext):
        """Open the jurors that the file `spec` lists. Raises `ConfigError` with all its problems."""
        if not spec:
            raise ConfigError(["name the jury's file after a colon: --annotator jury:jury.yaml"])
        path = Path(spec).expanduser()
        self.spec, self.file = spec, read_jury(path)
        self.labels = self.file.learn
        if self.labels and not self.labels.startswith("hf:"):
            self.labels = str(path.parent / Path(self.labels).expanduser())
        seats: list[Seat] = []
        problems: list[str] = []
        self._identities: dict[str, str] = {}
        for name, juror in self.file.jurors.items():
            try:
                annotator, self._identities[name] = context.annotator(juror.annotator)
                seats.append(Seat(name, annotator, juror.judge, juror.weight))
            except (ConfigError, PluginError) as error:
                found = error.problems if isinstance(error, ConfigError) else [str(error)]
                problems += [f"{path}: {name}: {problem}" for problem in found]
        if problems:
            raise ConfigError(problems)
        self.seats = tuple(seats)
        self.judges = list(dict.fromkeys(spec for seat in seats for spec in seat.judges.values()))
        self._learned: tuple[Seat, ...] = ()
        if self.labels:
            self.labelled = self._read_labels()

    @property
    def identity(self) -> str:
        """Changes with the file, with what its jurors are, and with the labels that weights are learned from."""
        learned = [sorted(self.labelled.items(), key=lambda row: row[0].id)] if self.labels else []
        rows = [[[pair.id, win] for pair, win in one] for one in learned]
        return seeding.digest("jury", self.file.model_dump(mode="json"), sorted(self._identities.items()), *rows)

    # -------------------------------------------------------------------------------------------------- weights

    def _read_labels(self) -> dict[Pair, float | None]:
        """The pairs to learn from, each with the share of people for its output 2; ties are left out."""
        given: dict[str, list[float]] = {}
        pairs: dict[str, Pair] = {}
        for _, _, people in read_labelled_pairs(self.labels, unlabelled=True):
            for one in map(in_canonical_order, people):
                if not one.pair.identical:
                    pairs[one.pair.id] = one.pair
                    given.setdefault(one.pair.id, [])
                    if not why_left_out(one) and one.win is not None:
                        given[one.pair.id].append(one.win)
        means = {id: fmean(wins) if wins else None for id, wins in given.items()}
        found = {pair: means[id] for id, pair in pairs.items() if means[id] != 0.5}
        if not found:
            raise ConfigError([f"{self.spec}: learn: {self.labels} has no pair with a better output to learn from"])
        return found

    def _seats(self, context: AnnotateContext) -> tuple[Seat, ...]:
        """The jurors with their weights, learned once if they are to be, in the order of asking."""
        if not self.labels:
            return self._by_price(self.seats, context)
        if not self._learned:
            once = replace(context, seed=0, order="")  # bought once, whatever the purpose and the seed of a run
            pairs = list(self.labelled)
            votes = [[_side(p.win) for p in self._vote(seat, pairs, once)] for seat in self.seats]
            found = learn_weights(votes, list(self.labelled.values()))
            told = zip(self.seats, found.weights, found.accuracies, strict=True)
            self._learned = tuple(replace(seat, weight=w, accuracy=a) for seat, w, a in told)
            shown = ", ".join(f"{seat.name} {seat.weight:+.2f} ({seat.accuracy:.1%} right)" for seat in self._learned)
            logger.info("jury:%s: weights from %s pairs: %s", self.spec, len(pairs), shown)
        return self._by_price(self._learned, context)

    def _by_price(self, seats: Sequence[Seat], context: AnnotateContext) -> tuple[Seat, ...]:
        """Sort jurors: those that ask no judge, then the cheapest first.

        Of equal prices the one with the most weight is first. Unknown prices are last, and jurors without weight.
        """

        def price(seat: Seat) -> tuple[float, float]:
            prices = [context.ask.worst_case_price(request) for request in self._probe(seat, context)]
            dollars = sum(math.inf if price is None else price for price in prices) if prices else -1.0
            return math.inf if abs(seat.weight) < EVEN else dollars, -abs(seat.weight)

        return tuple(sorted(seats, key=price))

    # --------------------------------------------------------------------------------------------------- asking

    def _of(self, seat: Seat, context: AnnotateContext) -> AnnotateContext:
        return replace(context, ask=JurorAsk(context.ask, seat.name, seat.judges))

    def _plan(self, seat: Seat, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        ask = JurorAsk(context.ask, seat.name, seat.judges)
        return [ask.own(request) for request in seat.annotator.plan(pairs, replace(context, ask=ask))]

    def _probe(self, seat: Seat, context: AnnotateContext) -> list[ChatRequest]:
        """Requests of a juror about a pair that no run has; nothing if it asks no judge."""
        try:
            return self._plan(seat, [PROBE], context)
        except DataError:  # one that knows the instructions of its own world only
            return []

    def _vote(self, seat: Seat, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """Ask a juror. Raises `JudgeError` and `BudgetError` if it fails, unless it may abstain."""
        if not pairs:
            return []
        own = self._of(seat, context)
        try:
            votes = list(seat.annotator.annotate(pairs, own))
        except (JudgeError, BudgetError) as error:
            if self.file.on_failure == "stop":
                how = f"juror {seat.name} of {self.spec}: {error} (on_failure: abstain goes on without it)"
                raise type(error)(how) from error
            there = [pair for pair in pairs if not seat.annotator.plan([pair], own)]  # what it has answered is kept
            answered = {vote.pair_id: vote for vote in seat.annotator.annotate(there, own)} if there else {}
            logger.warning(
                "juror %s of %s abstains from %s of %s pairs: %s",
                *(seat.name, self.spec, len(pairs) - len(answered), len(pairs), error),
            )
            votes = [answered.get(pair.id) or Preference(pair.id, None, "unparsed") for pair in pairs]
        unread = [vote for vote in votes if vote.win is None]
        if unread and self.file.on_unread == "stop":
            first = next(pair for pair, vote in zip(pairs, votes, strict=True) if vote.win is None)
            raise JudgeError(
                f"juror {seat.name} of {self.spec} has no verdict on {len(unread)} of {len(pairs)} pairs "
                f"({unread[0].outcome}), the first about {first.instruction.instruction!r:.60}: "
                "with on_unread: abstain the others decide"
            )
        return votes

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """Ask juror after juror about the pairs whose majority is not fixed. Raises as its jurors do."""
        if not pairs:
            return []
        seats = self._seats(context)
        weights = [seat.weight for seat in seats]
        given: dict[str, list[tuple[Seat, Preference]]] = {pair.id: [] for pair in pairs}
        for number, seat in enumerate(seats):
            left = [pair for pair in pairs if self._is_open(given[pair.id], weights[number:])]
            for vote in self._vote(seat, left, context):
                given[vote.pair_id].append((seat, vote))
        asked = sum(map(len, given.values()))
        logger.info("jury:%s: %s of %s votes asked for", self.spec, asked, len(pairs) * len(seats))
        return [self._label(pair, given[pair.id]) for pair in pairs]

    def _is_open(self, given: Sequence[tuple[Seat, Preference]], weights: Sequence[float]) -> bool:
        return self.file.ask_all or self.file.soft or is_open(_score(given), weights)

    def _label(self, pair: Pair, given: Sequence[tuple[Seat, Preference]]) -> Preference:
        score, cast = _score(given), [(seat, vote) for seat, vote in given if vote.win is not None]
        votes = [vote for _, vote in given]
        p2: float | None = None
        if not cast:
            outcome = "refused" if any(vote.outcome == "refused" for vote in votes) else "unparsed"
        elif abs(score) < EVEN:
            outcome = "draw"
        else:
            outcome, p2 = "decided", float(score > 0)
            if self.file.soft:
                total = sum(abs(seat.weight) for seat, _ in cast)
                p2 = 0.5 * (1 + math.tanh(score / 2)) if self.labels else 0.5 * (1 + score / total)
        judges = {vote.judge for vote in votes}
        return Preference(
            pair.id,
            p2,
            outcome,  # type: ignore[arg-type]
            completion=",".join(dict.fromkeys(key for vote in votes for key in vote.completion.split(",") if key)),
            degraded=tuple(dict.fromkeys(name for vote in votes for name in vote.degraded)),
            judge=judges.pop() if len(judges) == 1 else "",
            votes=tuple((seat.name, vote.win) for seat, vote in given),
        )

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """List what all jurors would be asked.

        A request has the likelihood that the majority is still open when its juror's turn comes.
        """
        requests: list[ChatRequest] = []
        seats = self._learned
        if self.labels and not seats:
            once = replace(context, seed=0, order="")
            requests = [one for seat in self.seats for one in self._plan(seat, list(self.labelled), once)]
            seats = () if requests else self._seats(context)
        seats = self._by_price(seats or self.seats, context)
        weights = [seat.weight for seat in seats]
        if self.file.ask_all or self.file.soft:
            shares = [1.0] * len(seats)
        else:
            shares = expect_open(weights, [seat.accuracy for seat in seats])
        given: dict[str, list[tuple[Seat, Preference]]] = {pair.id: [] for pair in pairs}
        known = 0.0  # the share that the first juror with open questions finds open: these pairs are counted exactly
        for number, (seat, share) in enumerate(zip(seats, shares, strict=True)):
            left = [pair for pair in pairs if self._is_open(given[pair.id], weights[number:])]
            planned = self._plan(seat, left, context) if left else []
            if not planned and not known and left and self._probe(seat, context):  # all its answers are stored
                for vote in self._vote(seat, left, context):
                    given[vote.pair_id].append((seat, vote))
                continue
            known = known or share
            likelihood = round(share / known, 4) if known else 0.0
            requests += [replace(request, likelihood=likelihood) for request in planned]
        return requests


def _side(win: float | None) -> int:
    return 0 if win is None else (win > 0.5) - (win < 0.5)


def _score(given: Sequence[tuple[Seat, Preference]]) -> float:
    return sum(seat.weight * _side(vote.win) for seat, vote in given)
