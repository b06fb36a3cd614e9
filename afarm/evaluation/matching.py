"""Match a system's outputs to the reference's by instruction and input, and report coverage.

Rows match if they ask the same task, however it is written (`afarm.storage.conversations.Tasks`): AlpacaEval's files,
and those that `afarm export` writes for it, have the input merged into the instruction.

Nothing is dropped in silence: missing, extra, repeated and empty outputs are counted in a `Coverage`, and a
`MatchPolicy` says what is done with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from pydantic.dataclasses import dataclass as checked

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair, Output, Pair, Row
from afarm.core.seeding import digest
from afarm.storage.conversations import Tasks, task_key
from afarm.storage.rows import describe_repeats
from afarm.storage.text import describe_difference, looks_of

OnMissing = Literal["error", "skip", "loss"]
OnDuplicate = Literal["error", "first"]

REFERENCES = {"text_davinci_003": "AlpacaFarm's reference", "gpt4_1106_preview": "AlpacaEval 2's reference"}
"""The usual references of published evaluations."""
ENOUGH = 0.5
"""The share of the reference's instructions below which a comparison gets a warning."""


@checked(frozen=True, slots=True)
class MatchPolicy:
    """The treatment of rows that do not match. Raises `ValidationError` for an unknown word.

    `on_missing`: instructions of the reference without an output (and outputs to others) are an "error", or left out
    ("skip"), or the missing ones count as losses without a call ("loss"). `on_duplicate`: two different outputs for one
    instruction are an "error", or the "first" is used; the same output twice always counts once.
    """

    on_missing: OnMissing = "error"
    on_duplicate: OnDuplicate = "error"


STRICT = MatchPolicy()


def counted(number: int, what: str) -> str:
    """Format a count: 2 and "row" give "2 rows"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Coverage of a comparison of two sets of outputs, in instructions.

    `reference` and `outputs` count the instructions that each of the two answers, `compared` those that both do,
    `missing` lack an output of the system's, `missing_as_loss` of them count as losses, and `extra` are answered by the
    system alone. `merged` of those compared are written otherwise in the two files, as with the input merged into the
    instruction in one of them. `repeated` rows held an answer again and were dropped; `empty` outputs are
    judged unchanged. If judging stopped early, `unasked` were not judged, and `unshared` never would have been, since
    another system does not answer them.
    """

    reference: int
    outputs: int
    compared: int
    missing: int = 0
    missing_as_loss: int = 0
    extra: int = 0
    repeated: int = 0
    repeated_reference: int = 0
    empty: int = 0
    empty_reference: int = 0
    unasked: int = 0
    unshared: int = 0
    merged: int = 0

    def to_row(self) -> Row:
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Coverage:
        """Read what `to_row` wrote; absent counts are 0."""
        return cls(**{field.name: int(row.get(field.name) or 0) for field in fields(cls)})

    @property
    def partial(self) -> bool:
        """True if most of the reference's instructions are not compared."""
        return self.compared + self.missing_as_loss + self.unasked < ENOUGH * self.reference

    @property
    def sentence(self) -> str:
        """Coverage in one line."""
        lost, left_out = self.missing_as_loss, self.missing - self.missing_as_loss
        parts = [
            f"{self.compared} of the reference's {self.reference} instructions",
            f"{self.merged} written otherwise in the two (input merged, spaces, line ends …)" if self.merged else "",
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
    """`outputs` and `reference` answer the same instructions, row by row.

    `missing_as_loss` are outputs of the reference to instructions without an output of the system's, which count as
    lost.
    """

    outputs: tuple[Output, ...]
    reference: tuple[Output, ...]
    missing_as_loss: tuple[Output, ...]
    coverage: Coverage

    @property
    def pairs(self) -> list[Pair]:
        """One pair per instruction that both answer: the reference's output first, the system's second."""
        return [_pair(reference, output) for reference, output in zip(self.reference, self.outputs, strict=True)]

    @property
    def unanswered(self) -> list[Pair]:
        """The pairs that count as lost, with an empty output for the system's."""
        return [_pair(reference, Output(reference.instruction, "")) for reference in self.missing_as_loss]


def match_rows(
    outputs: Sequence[Output],
    reference: Sequence[Output],
    match_policy: MatchPolicy = STRICT,
    names: tuple[str, str] = ("the outputs", "the reference"),
    order: Sequence[str] | None = None,
    judged: int = 0,
) -> MatchedRows:
    """Match outputs to the reference's by instruction and input, in the order of `outputs`.

    Args:
        outputs: the system's.
        reference: what they are compared with.
        match_policy: the treatment of rows that do not match; strict unless given.
        names: of the two sources, for errors.
        order: ids of the instructions in the order they are judged in, if judging may stop early.
        judged: instructions of `order` that were judged, and alone are compared.

    Raises `DataError` if rows do not match and `match_policy` does not say what to do, or if none match.
    """
    reference_by_id, repeated_reference = distinct(reference, names[1], match_policy.on_duplicate)
    given = {row.instruction.id for row in outputs}
    outputs = under(outputs, [row.instruction for row in reference_by_id.values()])
    by_id, repeated = distinct(outputs, names[0], match_policy.on_duplicate)
    shared = [id for id in by_id if id in reference_by_id]
    missing = [row for id, row in reference_by_id.items() if id not in by_id]
    extra = [row for id, row in by_id.items() if id not in reference_by_id]
    if not shared or (match_policy.on_missing == "error" and (missing or extra)):
        raise DataError(_mismatch(names[0], by_id, reference_by_id, missing, extra, len(shared)))
    lost = missing if match_policy.on_missing == "loss" else []
    unasked = unshared = 0
    if order is not None:
        unasked, unshared = len(order) - judged, len(shared) + len(lost) - len(order)
        asked = {*order[:judged]}
        shared = [id for id in shared if id in asked]
        lost = [row for row in lost if row.instruction.id in asked]
    compared = tuple(by_id[id] for id in shared)
    compared_reference = tuple(reference_by_id[id] for id in shared)
    coverage = Coverage(
        reference=len(reference_by_id),
        outputs=len(by_id),
        compared=len(shared),
        missing=len(reference_by_id) - len(shared) - unasked - unshared,
        missing_as_loss=len(lost),
        extra=len(extra),
        repeated=repeated,
        repeated_reference=repeated_reference,
        empty=sum(not row.output.strip() for row in compared),
        empty_reference=sum(not row.output.strip() for row in (*compared_reference, *lost)),
        unasked=unasked,
        unshared=unshared,
        merged=len({*shared} - given),
    )
    return MatchedRows(compared, compared_reference, tuple(lost), coverage)


def distinct(rows: Sequence[Output], where: str, on_duplicate: OnDuplicate = "error") -> tuple[dict[str, Output], int]:
    """Index rows by their instruction's id, and count the repeated ones that were dropped.

    Dropped are rows that repeat an earlier answer and, with "first", rows that give another. Raises `DataError` if
    there are no rows, or counting the instructions whose rows contradict each other, the first of them by name.
    """
    first_rows: dict[str, int] = {}
    contradicting: dict[int, list[int]] = {}  # by the first row
    for number, row in enumerate(rows):
        earlier = first_rows.setdefault(row.instruction.id, number)
        if rows[earlier].output != row.output and on_duplicate == "error":
            contradicting.setdefault(earlier, []).append(number)
    if contradicting:
        *some, remove = describe_repeats(rows, [(first, *further) for first, further in contradicting.items()])
        remove += ", or let the first stand: --on-duplicate first"
        if len(contradicting) == 1:
            raise DataError(f"{where}: {some[0]} with different outputs; {remove}")
        problem = f"{len(contradicting):,} instructions have different outputs"
        raise DataError(f"{where}: {problem}: {'; '.join([*some, remove])}")
    if not first_rows:
        raise DataError(f"{where}: no instructions: there are no outputs to compare")
    return {id: rows[number] for id, number in first_rows.items()}, len(rows) - len(first_rows)


def in_first_form(judged: JudgedPair, tasks: Tasks) -> JudgedPair:
    """Return a judged pair under its instruction as `tasks`, which gets it otherwise, has it."""
    asked = judged.pair.instruction
    if not (alike := tasks.alike(asked)):
        tasks.add(asked)
    if not alike or alike[0].id == asked.id:
        return judged
    pair = replace(judged.pair, instruction=replace(alike[0], dataset=asked.dataset))
    return replace(judged, pair=pair, preference=replace(judged.preference, pair_id=pair.id))


def under(outputs: Iterable[Output], asked: Collection[Instruction]) -> list[Output]:
    """Return each output under the instruction of `asked` that it answers, however it is written."""
    ids, tasks, found = {task.id for task in asked}, Tasks(asked), []
    for row in outputs:
        given = row.instruction
        if given.id not in ids and len(alike := tasks.alike(given)) == 1:
            row = replace(row, instruction=replace(alike[0], dataset=given.dataset or alike[0].dataset))
        found.append(row)
    return found


def among(outputs: Iterable[Output], asked: Collection[Instruction]) -> list[Output]:
    """Keep the outputs that answer an instruction of `asked`, under that one."""
    ids = {instruction.id for instruction in asked}
    return [row for row in under(outputs, asked) if row.instruction.id in ids]


def same_answers(systems: Mapping[str, Sequence[Output]]) -> list[tuple[str, str]]:
    """List pairs of systems, by name, that give the same answers."""
    if len(systems) < 2:
        return []
    by_answers: dict[str, list[str]] = {}
    for name, rows in systems.items():
        by_answers.setdefault(digest(sorted((row.instruction.id, row.output) for row in rows)), []).append(name)
    return [(names[0], other) for names in by_answers.values() for other in names[1:]]


def _pair(reference: Output, output: Output) -> Pair:
    instruction = output.instruction if output.instruction.dataset else reference.instruction
    return replace(Pair.of(reference, output), instruction=instruction)


def _mismatch(
    name: str,
    outputs: Mapping[str, Output],
    reference: Mapping[str, Output],
    missing: Sequence[Output],
    extra: Sequence[Output],
    shared: int,
) -> str:
    problems = [
        f"{len(rows)} {problem}, such as {rows[0].instruction.instruction[:60]!r}"
        for rows, problem in ((missing, "of the reference's have no output"), (extra, "are not the reference's"))
        if rows
    ]
    text = (
        f"{name}: rows do not match the reference: of {len(outputs)} instructions here and {len(reference)} there, "
        f"{' and '.join(problems)}"
    )
    asked, there = ([str(task_key(row.instruction)[1][-1]) for row in rows] for rows in (extra, missing))
    here = {looks_of(task): task for task in asked}
    pairs = [(here.get(looks_of(task), task), task) for task in there]
    if alike := [pair for pair in pairs if pair[0] != pair[1]]:
        text += f"; {len(alike)} look alike; the first {describe_difference(*alike[0])}: write them alike in both files"
    if shared:
        lose = ", or --on-missing loss to count those without an output as lost" if missing else ""
        return f"{text}; compare them on the {shared} that both answer with --on-missing skip{lose}"
    by_instruction = {row.instruction.instruction for row in outputs.values()}
    if same := sum(row.instruction.instruction in by_instruction for row in reference.values()):
        return f"{text}; {same} have the same 'instruction' but another 'input': both fields must be equal"
    return text if alike else f"{text}; they have no instruction in common"


def looks_swapped(system: str, reference: str) -> list[str]:
    """Warn if, going by names, it is a usual reference that is compared with a system."""
    description = REFERENCES.get(system)
    if description is None or reference in REFERENCES:
        return []
    return [
        f"{system} is {description}, and stands as the system here: are the two swapped? --reference of afarm evaluate "
        "says which it is"
    ]
