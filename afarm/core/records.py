"""Records that flow between the stages, frozen, and their rows on disk.

On disk the columns have the names that users of AlpacaEval and AlpacaFarm know: `instruction, input, output, output_1,
output_2, preference, generator, dataset, annotator`. A row's `preference` is 1 or 2 for the better output, a float
between for a weighted judge, 0 (identical outputs) or 1.5 for a draw, and null if there is no usable answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar, get_args

from afarm.core.errors import DataError
from afarm.core.seeding import digest

N = TypeVar("N", int, float)
Row = dict[str, Any]

LabelOutcome = Literal["decided", "draw", "unparsed", "refused"]
"""How a label came out; an unreadable answer or a refusal is none."""
Source = Literal["judge", "noise", "human", "rule"]
SCORES = ("score_1", "score_2")
"""The columns of `Preference.scores`."""
FINISH_REASONS = ("finish_reason_1", "finish_reason_2")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. `role` is "system", "user" or "assistant"; `name` tags a turn if the format can."""

    role: str
    content: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A task for the policy. `input` is optional material; `messages` are earlier turns of a chat."""

    instruction: str
    input: str = ""
    dataset: str = ""
    messages: tuple[Message, ...] = ()

    @property
    def id(self) -> str:
        """A digest of instruction, input and earlier turns. The name of the data set does not count."""
        return _compute_id(self)

    def to_row(self) -> Row:
        row: Row = {"instruction": self.instruction, "input": self.input, "dataset": self.dataset}
        if self.messages:
            row["messages"] = [
                {"role": m.role, "content": m.content, **({"name": m.name} if m.name else {})} for m in self.messages
            ]
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str = "row") -> Instruction:
        """Parse a row. Raises `DataError` naming `where` and the field if one is missing or not text."""
        return cls(
            _text(row, "instruction", where),
            _text(row, "input", where, default=""),
            _text(row, "dataset", where, default=""),
            _messages(row, where),
        )


@lru_cache(maxsize=4096)
def _compute_id(task: Instruction) -> str:  # cached: rows of one instruction come by the hundred
    return digest(task.instruction, task.input, [[m.role, m.content, m.name] for m in task.messages])


@dataclass(frozen=True, slots=True)
class Output:
    """One system's answer to an instruction: a demonstration, a reference or an output to evaluate.

    `details` holds further columns (finish reason, reward-model score, tokens), as JSON values.
    """

    instruction: Instruction
    output: str
    generator: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_row(self) -> Row:
        row = {**self.instruction.to_row(), "output": self.output, "generator": self.generator}
        return {**row, **{k: v for k, v in self.details.items() if k not in row}}

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str = "row") -> Output:
        """Parse a row. Raises `DataError` naming `where` and the field if one is missing or not text."""
        fields = {"instruction", "input", "dataset", "messages", "output", "generator"}
        return cls(
            Instruction.from_row(row, where),
            _text(row, "output", where),
            _text(row, "generator", where, default=""),
            {k: v for k, v in row.items() if k not in fields},
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation by a policy. Local models give its tokens too, so that nothing is tokenised twice.

    `token_ids` are the response's, the end-of-sequence token included if it was sampled (`finish_reason` "stop";
    "length" if the limit cut it off). `logprobs` are natural logs under the sampling policy at temperature 1, one per
    token, or None if they were not kept. `score` is the reward model's, if the policy chose by one. `details` are
    further columns of the output, as JSON values.
    """

    text: str
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] | None = None
    finish_reason: str = ""
    score: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """A reward model's score of one output. Higher `value` is better. `spans` are (start, end, value).

    `spread` is the standard deviation over the members of an ensemble, in the unit of `value`; None for one model.
    Raises `ValueError` for NaN and infinity, which would win or lose for no reason, and `TypeError` for no number.
    """

    value: float
    spans: tuple[tuple[int, int, float], ...] | None = None
    spread: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.value))  # JSON has no float32 of numpy
        if self.spread is not None:
            object.__setattr__(self, "spread", float(self.spread))
        if self.spans is not None:
            object.__setattr__(self, "spans", tuple((int(a), int(b), float(value)) for a, b, value in self.spans))
        for number in (self.value, self.spread or 0.0, *(value for *_, value in self.spans or ())):
            if not math.isfinite(number):
                raise ValueError(f"a score must be a finite number, not {number}")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two outputs for one instruction, to be compared. `occurrence` numbers repeats of a pair.

    Finish reasons are as in `Sample`, empty if unknown. They are no part of the id.
    """

    instruction: Instruction
    output_1: str
    output_2: str
    occurrence: int = 0
    generator_1: str = ""
    generator_2: str = ""
    finish_reason_1: str = ""
    finish_reason_2: str = ""

    @classmethod
    def of(cls, first: Output, second: Output) -> Pair:
        """Pair two outputs for one instruction."""
        reasons = (str(output.details.get("finish_reason") or "") for output in (first, second))
        return cls(first.instruction, first.output, second.output, 0, first.generator, second.generator, *reasons)

    @property
    def id(self) -> str:
        """A digest of the instruction and the *unordered* outputs: swapping them mirrors draws and labels."""
        return digest(self.instruction.id, *self.canonical, self.occurrence)

    @property
    def canonical(self) -> tuple[str, str]:
        """The two outputs in an order that does not depend on which is `output_1`."""
        low, high = sorted((self.output_1, self.output_2))
        return low, high

    @property
    def is_canonical(self) -> bool:
        """True if `output_1` comes first in the canonical order."""
        return self.output_1 <= self.output_2

    @property
    def identical(self) -> bool:
        return self.output_1 == self.output_2

    @property
    def ended(self) -> tuple[bool, bool]:
        """False for an output that the length limit cut off."""
        return self.finish_reason_1 != "length", self.finish_reason_2 != "length"

    def swapped(self) -> Pair:
        return replace(
            self,
            output_1=self.output_2,
            output_2=self.output_1,
            generator_1=self.generator_2,
            generator_2=self.generator_1,
            finish_reason_1=self.finish_reason_2,
            finish_reason_2=self.finish_reason_1,
        )


@dataclass(frozen=True, slots=True)
class Preference:
    """The label of one pair.

    `p2` is the probability, in [0, 1], that `output_2` is better; None unless `outcome` is "decided". A draw is not
    p2 = 0.5: "draw" says that neither is better, 0.5 that the annotator is undecided. `strength` says by how much the
    preferred output is better, on the labeller's own scale: "slightly" (0.5) or "clearly" (1), HelpSteer3's 1 to 3, a
    margin. `member` is the pool member that judged, `order` the output it saw first ("12", "21" or "both" in turn),
    `sample_index` tells independent samples of one judgement apart, and `completion` is the ledger's key of the answer,
    or the keys of several, with commas between. `degraded` names what the annotator asked for and the judge could not
    take, and `judge` is the identity of the judge, empty if none was asked. `scores` are the ratings of the two
    outputs, on the annotator's own scale, if each was rated alone. `attributes` are further numbers of them, such as
    ("helpfulness", 4.0, 2.0): a name, and the values of output_1 and output_2. `votes` are those of a jury: a juror and
    the win it credits to output_2, None if it abstained.
    """

    pair_id: str
    p2: float | None
    outcome: LabelOutcome = "decided"
    source: Source = "judge"
    strength: float | None = None
    member: str = ""
    order: str = ""
    sample_index: int = 0
    completion: str = ""
    degraded: tuple[str, ...] = ()
    judge: str = ""
    scores: tuple[float, float] | None = None
    attributes: tuple[tuple[str, float, float], ...] = ()
    votes: tuple[tuple[str, float | None], ...] = ()

    def __post_init__(self) -> None:
        if (self.outcome == "decided") != (self.p2 is not None):
            raise ValueError(f"a preference has p2 exactly when it is decided: {self.outcome}, {self.p2}")
        if self.p2 is not None and not 0 <= self.p2 <= 1:
            raise ValueError(f"p2 must lie in [0, 1], not {self.p2}")

    @property
    def win(self) -> float | None:
        """The win credited to `output_2`: p2, one half for a draw, None without an answer."""
        return 0.5 if self.outcome == "draw" else self.p2

    def swapped(self) -> Preference:
        """Mirror the label, for the pair with its outputs exchanged."""
        order = {"12": "21", "21": "12"}.get(self.order, self.order)
        scores = self.scores and (self.scores[1], self.scores[0])
        attributes = tuple((name, second, first) for name, first, second in self.attributes)
        p2 = None if self.p2 is None else 1 - self.p2
        votes = tuple((juror, None if win is None else 1 - win) for juror, win in self.votes)
        return replace(self, p2=p2, order=order, scores=scores, attributes=attributes, votes=votes)


@dataclass(frozen=True, slots=True)
class Feedback:
    """One output with a thumb: a row of unpaired feedback, as KTO learns from (Ethayarajh et al. 2024).

    `label` is True for a thumb up and False for a thumb down. `finish_reason` is "stop", "length" if a limit cut the
    output off, or empty.
    """

    instruction: Instruction
    output: str
    label: bool
    annotator: str = ""
    finish_reason: str = ""

    def to_row(self) -> Row:
        end = {"finish_reason": self.finish_reason} if self.finish_reason else {}
        row = {"output": self.output, "label": self.label, "annotator": self.annotator, **end}
        return {**self.instruction.to_row(), **row}

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str = "row") -> Feedback:
        """Parse a stored row. Raises `DataError` naming `where` and the field if one is missing or wrong."""
        if not isinstance(row.get("label"), bool):
            raise DataError(f"{where}: field 'label' must be true or false, not {row.get('label')!r}")
        further = (_text(row, name, where, default="") for name in ("annotator", "finish_reason"))
        return cls(Instruction.from_row(row, where), _text(row, "output", where), row["label"], *further)


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A pair with its label and the annotator's name: one row of a preference file."""

    pair: Pair
    preference: Preference
    annotator: str = ""

    @property
    def p2(self) -> float | None:
        return self.preference.p2

    @property
    def win(self) -> float | None:
        return self.preference.win

    @property
    def unanswered(self) -> bool:
        """True if the system of `output_2` has no output and lost by that rule: there is no text to read."""
        decided = self.preference.source == "rule" and self.preference.outcome == "decided"
        return decided and not self.pair.output_2

    @property
    def chosen_rejected(self) -> tuple[str, str] | None:
        """(chosen, rejected), or None if neither is better (a draw, no answer, or p2 = 0.5)."""
        if self.p2 is None or self.p2 == 0.5:
            return None
        first, second = self.pair.output_1, self.pair.output_2
        return (second, first) if self.p2 > 0.5 else (first, second)

    @property
    def feedback(self) -> tuple[Feedback, ...]:
        """A thumb up for the chosen output and one down for the rejected; empty if neither is better."""
        if not (texts := self.chosen_rejected):
            return ()
        task, ends = self.pair.instruction, (self.pair.finish_reason_1, self.pair.finish_reason_2)
        ends = ends if texts[0] == self.pair.output_1 else ends[::-1]
        return tuple(
            Feedback(task, text, up, self.annotator, end)
            for text, up, end in zip(texts, (True, False), ends, strict=True)
        )

    def to_row(self) -> Row:
        pair, preference = self.pair, self.preference
        value: float | int | None
        if preference.outcome == "decided" and preference.p2 is not None:
            value = int(1 + preference.p2) if preference.p2 in (0, 1) else 1 + preference.p2
        elif preference.outcome == "draw":
            value = 0 if preference.source == "rule" else 1.5
        else:
            value = None
        return {
            **pair.instruction.to_row(),
            "output_1": pair.output_1,
            "output_2": pair.output_2,
            "preference": value,
            "annotator": self.annotator,
            "generator_1": pair.generator_1,
            "generator_2": pair.generator_2,
            "outcome": preference.outcome,
            "source": preference.source,
            "strength": preference.strength,
            "member": preference.member,
            "order": preference.order,
            "draw": preference.sample_index,
            "completion": preference.completion,
            "judge": preference.judge,
            "occurrence": pair.occurrence,
            **{n: reason for n in FINISH_REASONS if (reason := getattr(pair, n))},
            **({"degraded": ",".join(preference.degraded)} if preference.degraded else {}),
            **(dict(zip(SCORES, preference.scores, strict=True)) if preference.scores else {}),
            **({"attributes": {name: both for name, *both in preference.attributes}} if preference.attributes else {}),
            **({"votes": dict(preference.votes)} if preference.votes else {}),
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str = "row") -> JudgedPair:
        """Parse a row. Raises `DataError` naming `where` and the field if one is missing or out of range."""
        pair = Pair(
            Instruction.from_row(row, where),
            _text(row, "output_1", where),
            _text(row, "output_2", where),
            _number(row, "occurrence", where, int) or 0,
            _text(row, "generator_1", where, default=""),
            _text(row, "generator_2", where, default=""),
            *(_text(row, name, where, default="") for name in FINISH_REASONS),
        )
        if "preference" not in row:
            raise DataError(f"{where}: field 'preference' is missing; its fields are {', '.join(map(repr, row))}")
        p2, outcome = _read_preference(row["preference"], row.get("outcome"), where)
        # Other data sets have columns of these names with other contents.
        column: Any = row.get("source")
        judge: Any = row.get("judge")
        implied: Source = "rule" if pair.identical and row["preference"] == 0 else "judge"
        source: Source = column if column in get_args(Source) else implied
        if (strength := _number(row, "strength", where, float)) is not None and strength < 0:
            raise DataError(f"{where}: field 'strength' is {strength:g}; it must be at least 0, whichever is better")
        preference = Preference(
            pair.id,
            p2,
            outcome,
            source,
            strength,
            _text(row, "member", where, default=""),
            _text(row, "order", where, default=""),
            _number(row, "draw", where, int) or 0,
            _text(row, "completion", where, default=""),
            tuple(filter(None, _text(row, "degraded", where, default="").split(","))),
            judge if isinstance(judge, str) else "",
            _scores(row, where),
            _attributes(row.get("attributes")),
            _votes(row.get("votes")),
        )
        return cls(pair, preference, _text(row, "annotator", where, default=""))


def _read_preference(value: object, outcome: object, where: str) -> tuple[float | None, LabelOutcome]:
    if value is None or value != value:  # NaN is how a data frame writes null
        return None, "refused" if outcome == "refused" else "unparsed"
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value == 0 or 1 <= value <= 2):
        raise DataError(f"{where}: field 'preference' is {value!r}; it must be 1, 2, a number between, 0, 1.5 or null")
    if value == 0 or (value == 1.5 and outcome != "decided"):
        return None, "draw"
    return float(value) - 1, "decided"


def _scores(row: Mapping[str, Any], where: str) -> tuple[float, float] | None:
    first, second = (_number(row, name, where, float) for name in SCORES)
    if first is None and second is None:
        return None
    if first is None or second is None:
        lacking, other = SCORES if first is None else SCORES[::-1]
        raise DataError(f"{where}: field {lacking!r} is missing, and {other!r} is there; give both or neither")
    return first, second


def _attributes(column: object) -> tuple[tuple[str, float, float], ...]:
    """Return the attributes of stored rows; other data sets have columns of that name with other contents."""
    pairs = column.items() if isinstance(column, dict) else ()
    known = [(name, both) for name, both in pairs if isinstance(both, list) and {*map(type, both)} <= {int, float}]
    return tuple((name, float(both[0]), float(both[1])) for name, both in known if len(both) == 2)


def _votes(column: object) -> tuple[tuple[str, float | None], ...]:
    """Return the votes of stored rows, as `_attributes` does."""
    votes = column if isinstance(column, dict) else {}
    known = all(win is None or (type(win) in (int, float) and 0 <= win <= 1) for win in votes.values())
    return tuple((juror, None if win is None else float(win)) for juror, win in votes.items()) if known else ()


def _messages(row: Mapping[str, Any], where: str) -> tuple[Message, ...]:
    turns = row.get("messages") or ()
    if not isinstance(turns, list | tuple) or not all(isinstance(turn, Mapping) for turn in turns):
        raise DataError(f"{where}: field 'messages' must be a list of turns with 'role' and 'content'")
    inside = [(turn, f"{where}: messages: turn {number}") for number, turn in enumerate(turns)]
    return tuple(
        Message(_text(turn, "role", at), _text(turn, "content", at), _text(turn, "name", at, default=""))
        for turn, at in inside
    )


def _number(row: Mapping[str, Any], name: str, where: str, kind: type[N]) -> N | None:
    value = row.get(name)
    if value is None or value != value:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or kind(value) != value:
        raise DataError(f"{where}: field {name!r} must be a number, not {value!r}")
    return kind(value)


def _text(row: Mapping[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = row.get(name)
    if value is None and default is not None:
        return default
    if name not in row:
        raise DataError(f"{where}: field {name!r} is missing; its fields are {', '.join(map(repr, row))}")
    if value is None:
        raise DataError(f"{where}: field {name!r} is null; it must be text")
    if not isinstance(value, str):
        raise DataError(f"{where}: field {name!r} must be text, not {type(value).__name__}")
    return value


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluator's result: flat numbers, the headline first, named as in `evaluation.metrics`.

    `rows` are optional values per instruction (named there too), data set or system, as the evaluator documents.
    """

    evaluator: str
    system: str
    metrics: Mapping[str, float | int | str | None]
    rows: tuple[Row, ...] = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Evaluation:
        """Parse a stored result."""
        return cls(row["evaluator"], row["system"], row["metrics"], tuple(row.get("rows", ())))
