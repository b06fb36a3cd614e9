"""A system's outputs and its reference's brought together by instruction and input, whatever their files are like.

Nothing is lost in silence: what is missing, too much, repeated or empty is counted in a `Coverage`, and what to do
about it is the user's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from afarm.core.errors import ConfigError, DataError, did_you_mean
from afarm.core.records import Instruction, Output, Pair, Row
from afarm.core.seeding import digest

OnMissing = Literal["error", "skip", "loss"]
OnDuplicate = Literal["error", "first"]

REFERENCES = {"text_davinci_003": "AlpacaFarm's reference", "gpt4_1106_preview": "AlpacaEval 2's reference"}
"""Systems that others are compared with."""
ENOUGH = 0.5
"""The share of the reference's instructions below which a comparison is warned of."""


@dataclass(frozen=True, slots=True)
class MatchPolicy:
    """What is done with rows that do not fit.

    `on_missing`: instructions of the reference without an output (and outputs to others) are an "error", or left out
    ("skip"), or the missing ones lost without a call ("loss"). `on_duplicate`: two answers to one instruction are an
    "error", or the "first" stands; the same answer twice is always one.
    """

    on_missing: OnMissing = "error"
    on_duplicate: OnDuplicate = "error"

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a policy that there is not."""
        for option, value, known in (
            ("--on-missing", self.on_missing, get_args(OnMissing)),
            ("--on-duplicate", self.on_duplicate, get_args(OnDuplicate)),
        ):
            if value not in known:
                raise ConfigError([f"{option} {value}: one of {', '.join(known)}.{did_you_mean(value, known)}"])


STRICT = MatchPolicy()


def counted(number: int, what: str) -> str:
    """2 and "row" → "2 rows"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of two sets of outputs is compared, in instructions.

    `reference` and `outputs` are what the two answer, `compared` what both do, `missing` what the system has no output
    to and `lost` those of them that count as losses, `extra` what only the system answers. `repeated` rows held an
    answer again and were dropped; `empty` outputs are judged as they are. Where judging stopped early, `unasked` were
    not judged, and `unshared` never to be, since another system does not answer them.
    """

    reference: int
    outputs: int
    compared: int
    missing: int = 0
    lost: int = 0
    extra: int = 0
    repeated: int = 0
    repeated_reference: int = 0
    empty: int = 0
    empty_reference: int = 0
    unasked: int = 0
    unshared: int = 0

    def to_row(self) -> Row:
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Coverage:
        """What `to_row` wrote; counts that are not there are 0."""
        return cls(**{field.name: int(row.get(field.name) or 0) for field in fields(cls)})

    @property
    def partial(self) -> bool:
        """Whether most of the reference's instructions are not compared."""
        return self.compared + self.lost + self.unasked < ENOUGH * self.reference

    @property
    def sentence(self) -> str:
        """What was compared and what was not, in one line."""
        lost, left_out = self.lost, self.missing - self.lost
        parts = [
            f"{self.compared} of the reference's {self.reference} instructions",
            f"{self.unasked} not asked about" if self.unasked else "",
            f"{self.unshared} that another system does not answer left out" if self.unshared else "",
            f"{left_out} without an output left out" if left_out else "",
            f"{lost} without an output counted as lost" if lost else "",
            f"{self.extra} that the reference does not answer left out" if self.extra else "",
            f"{counted(self.repeated, 'repeated row')} dropped" if self.repeated else "",
            f"{counted(self.repeated_reference, 'repeated row')} of the reference dropped"
            if self.repeated_reference
            else "",
            counted(self.empty, "empty output") if self.empty else "",
            f"{counted(self.empty_reference, 'empty output')} of the reference" if self.empty_reference else "",
        ]
        return "; ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """`outputs` and `reference` answer the same instructions, row by row; those `lost` the system did not answer."""

    outputs: tuple[Output, ...]
    reference: tuple[Output, ...]
    lost: tuple[Output, ...]
    coverage: Coverage

    @property
    def pairs(self) -> list[Pair]:
        """The reference's output and the system's, those lost left out."""
        return [_pair(theirs, mine) for theirs, mine in zip(self.reference, self.outputs, strict=True)]

    @property
    def unanswered(self) -> list[Pair]:
        """The pairs that are lost, with an empty output for the system's."""
        return [_pair(theirs, Output(theirs.instruction, "")) for theirs in self.lost]


def join(
    outputs: Sequence[Output],
    reference: Sequence[Output],
    joining: MatchPolicy = STRICT,
    names: tuple[str, str] = ("the outputs", "the reference"),
    order: Sequence[str] | None = None,
    judged: int = 0,
) -> MatchedRows:
    """Bring rows together. Where an `order` of ids of instructions is given, its first `judged` alone are compared.

    Raises `DataError` where rows do not fit and `joining` does not say what to do, or nothing fits; `names` say whose
    rows those are.
    """
    mine, repeated = distinct(outputs, names[0], joining.on_duplicate)
    theirs, repeated_reference = distinct(reference, names[1], joining.on_duplicate)
    shared = [id for id in mine if id in theirs]
    missing = [row for id, row in theirs.items() if id not in mine]
    extra = [row for id, row in mine.items() if id not in theirs]
    if not shared or (joining.on_missing == "error" and (missing or extra)):
        raise DataError(_mismatch(names[0], mine, theirs, missing, extra, len(shared)))
    lost = missing if joining.on_missing == "loss" else []
    asked, unasked, unshared = shared, 0, 0
    if order is not None:
        among = {*order[:judged]}
        asked = [id for id in shared if id in among]
        unasked, unshared = len(order) - judged, len(shared) + len(lost) - len(order)
        lost = [row for row in lost if row.instruction.id in among]
    answered, compared = tuple(mine[id] for id in asked), tuple(theirs[id] for id in asked)
    coverage = Coverage(
        reference=len(theirs),
        outputs=len(mine),
        compared=len(asked),
        missing=len(theirs) - len(asked) - unasked - unshared,
        lost=len(lost),
        extra=len(extra),
        repeated=repeated,
        repeated_reference=repeated_reference,
        empty=sum(not row.output.strip() for row in answered),
        empty_reference=sum(not row.output.strip() for row in (*compared, *lost)),
        unasked=unasked,
        unshared=unshared,
    )
    return MatchedRows(answered, compared, tuple(lost), coverage)


def distinct(rows: Sequence[Output], where: str, on_duplicate: OnDuplicate = "error") -> tuple[dict[str, Output], int]:
    """The rows by their instruction's id, and how many were dropped: those that repeat an earlier one's answer and,
    with "first", those that give another.

    Raises `DataError` where there are none, or naming the rows that contradict each other.
    """
    found: dict[str, tuple[int, Output]] = {}
    for number, row in enumerate(rows):
        earlier, first = found.setdefault(row.instruction.id, (number, row))
        if first.output != row.output and on_duplicate == "error":
            raise DataError(
                f"{where}: rows {earlier} and {number} hold the same instruction ({_quoted(row.instruction)}) with "
                "different outputs; remove one, or let the first stand: --on-duplicate first"
            )
    if not found:
        raise DataError(f"{where}: no instructions: there are no outputs to compare")
    return {id: row for id, (_, row) in found.items()}, len(rows) - len(found)


def same_answers(systems: Mapping[str, Sequence[Output]]) -> list[tuple[str, str]]:
    """The names of each two systems that give the same answers, one after the other."""
    by_answers: dict[str, list[str]] = {}
    for name, rows in systems.items():
        by_answers.setdefault(digest(sorted((row.instruction.id, row.output) for row in rows)), []).append(name)
    return [(names[0], other) for names in by_answers.values() for other in names[1:]]


def _pair(reference: Output, output: Output) -> Pair:
    instruction = output.instruction if output.instruction.dataset else reference.instruction
    return Pair(instruction, reference.output, output.output, 0, reference.generator, output.generator)


def _mismatch(
    name: str,
    mine: Mapping[str, Output],
    theirs: Mapping[str, Output],
    missing: Sequence[Output],
    extra: Sequence[Output],
    shared: int,
) -> str:
    said = [
        f"{len(rows)} {what}, such as {_quoted(rows[0].instruction)}"
        for rows, what in ((missing, "of the reference's have no output"), (extra, "are not the reference's"))
        if rows
    ]
    text = (
        f"{name}: rows do not match the reference: of {len(mine)} instructions here and {len(theirs)} there, "
        f"{' and '.join(said)}"
    )
    ours = {(row.instruction.instruction.strip(), row.instruction.input.strip()) for row in extra}
    if spaced := sum((row.instruction.instruction.strip(), row.instruction.input.strip()) in ours for row in missing):
        text += (
            f"; {spaced} differ by spaces at an end alone: texts are compared as they are, so strip them in one file"
        )
    if shared:
        lose = ", or --on-missing loss to count those without an output as lost" if missing else ""
        return f"{text}; compare them on the {shared} that both answer with --on-missing skip{lose}"
    by_instruction = {row.instruction.instruction for row in mine.values()}
    alike = sum(row.instruction.instruction in by_instruction for row in theirs.values())
    if alike:
        return f"{text}; {alike} have the same 'instruction' but another 'input': both fields must be equal"
    return text if spaced else f"{text}; none is in both: they answer different sets of instructions"


def _quoted(instruction: Instruction) -> str:
    return repr(instruction.instruction[:60])


def looks_swapped(system: str, reference: str) -> list[str]:
    """A warning where it is the reference that is compared with a system, as far as names tell."""
    known = REFERENCES.get(system)
    if known is None or reference in REFERENCES:
        return []
    return [
        f"{system} is {known}, and stands as the system here: are the two swapped? --reference of afarm evaluate says "
        "which it is"
    ]
