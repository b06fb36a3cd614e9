"""Annotation files: stored judgements by system, reference and annotator, in either order.

Files are read once, row by row, and their rows kept on disk by system. Memory holds digests, names and each instruction
once, which rows are put under however they write it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair
from afarm.core.seeding import digest
from afarm.evaluation.matching import REFERENCES, Coverage, MatchPolicy, counted, in_first_form
from afarm.evaluation.protocol import EvaluationProtocol, answers_digest, instructions_digest
from afarm.evaluation.spilled_rows import SpilledRows, read_each
from afarm.storage.conversations import Tasks
from afarm.storage.labelled_pairs import read_annotations
from afarm.storage.row_shapes import training_pairs
from afarm.storage.rows import stem

MOST_NAMED = 3
"""Annotators of one file that are named; of more, their number is."""

Players = tuple[str, str]
"""`generator_1` and `generator_2` of a row."""
Names = tuple[str, str, tuple[str, ...]]
"""A system, its reference and its annotators."""


@dataclass(frozen=True, slots=True)
class AnnotatedSystem:
    """The judgements of `system` (output_2) against `reference` (output_1) by `annotators`, from `files`.

    `rows` is the file of them, `judges` are the identities they name. `answers` are digests of what the reference
    answered, by instruction's id, also of instructions that only other systems were judged on; if it answered
    some, `changed`, otherwise than to other systems, its answers to this one alone. `swapped` rows had the reference
    second. `first` names the file, the row and the field where the system first occurs. `doubt` says if other files
    have the two the other way round, `repeats` which file had rows that were dropped, since they stand in it or in an
    earlier one already.
    """

    system: str
    reference: str
    annotators: tuple[str, ...]
    files: tuple[str, ...]
    rows: Path
    coverage: Coverage
    answers: Mapping[str, str]
    judges: tuple[str, ...] = ()
    swapped: int = 0
    changed: int = 0
    first: str = ""
    doubt: str = ""
    repeats: tuple[str, ...] = ()

    @property
    def annotator(self) -> str:
        """The annotators' names; several of one file are a pool."""
        names = self.annotators
        return " + ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} annotators"

    @property
    def protocol(self) -> EvaluationProtocol:
        return EvaluationProtocol(
            annotator=self.annotator,
            settings=digest(self.annotators) if len(self.annotators) > MOST_NAMED else "",
            judges={str(number): judge for number, judge in enumerate(self.judges)},
            reference=self.reference,
            reference_outputs=answers_digest(self.answers),
            instructions=instructions_digest(self.answers),
        )


@dataclass(slots=True)
class _Part:
    """The rows of one file with the same generators in the same order.

    `first` is the number of its first row, `answers` are digests of `output_1` by instruction, `empty` counts empty
    outputs on either side.
    """

    rows: Path
    first: int
    count: int = 0
    repeated: int = 0
    empty: tuple[int, int] = (0, 0)
    answers: dict[str, str] = field(default_factory=dict)
    judges: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _File:
    source: str
    parts: dict[Players, _Part] = field(default_factory=dict)
    annotators: set[str] = field(default_factory=set)

    def where(self, players: Players) -> str:
        return f"row {self.parts[players].first} compares {players[1]!r} with {players[0]!r}"


def annotated_systems(
    files: Sequence[Path | str],
    directory: Path,
    reference: str = "",
    match_policy: MatchPolicy | None = None,
    scale: str | None = None,
) -> list[AnnotatedSystem]:
    """Read the systems that `files` are about, in order of appearance. Their rows go to `directory`.

    One file may hold several systems, and several files may be about one. Which generator is the reference follows from
    each file alone: rows of it with the reference second are swapped. `reference` names it for all files, `scale` the
    scale of their labels (`afarm.storage.label_scales`).

    Raises `DataError` naming file, row and field if a row is wrong, two contradict each other, there is none, it cannot
    be told which generator is the reference, files disagree on it, or systems were judged on different instructions.
    """
    match_policy = match_policy or MatchPolicy("skip")
    reader = _Reader(directory, match_policy, reference, scale)
    grouped: dict[Names, list[tuple[_File, _Part, bool]]] = {}
    for file in [reader.read(str(path)) for path in files]:
        of_file = _reference(file, reference)
        for players, part in file.parts.items():
            swapped = players[1] == of_file != players[0]
            system, other = (players[0], players[1]) if swapped else (players[1], players[0])
            grouped.setdefault((system, other, tuple(sorted(file.annotators))), []).append((file, part, swapped))
    for (system, other, annotators), parts in grouped.items():
        if (turned := grouped.get((other, system, annotators))) and system != other:
            raise DataError(
                f"{parts[0][0].source} and {turned[0][0].source} compare the same two systems and disagree on which is "
                "the reference: say it with afarm evaluate --annotations FILE… --reference "
                f"{system if system in REFERENCES else other}"
            )
    systems = [
        reader.merge(names, parts)
        for names, parts in grouped.items()
        if any(part.count for _, part, _ in parts)  # others' rows are all in other files too
    ]
    return [_with_doubt(one, systems) for one in _over_one_set(systems, match_policy)]


def rows_by_annotators(files: Sequence[Path], directory: Path) -> Iterator[tuple[str, tuple[str, ...], Path]]:
    """Read each part of `files`, annotations or votes: (file, its annotators, the file of its rows).

    Raises `DataError` naming file, row and field if a row is wrong, two contradict each other, or there is none.
    """
    reader = _Reader(directory, MatchPolicy("skip"))
    read = [reader.read(str(path), with_battles=True) for path in files]
    reader.rows.flush()
    for file in read:
        for part in file.parts.values():
            yield file.source, tuple(sorted(file.annotators)), part.rows


class _Reader:
    """A reader that splits files by the generators that their rows name, and drops repeated judgements."""

    def __init__(self, directory: Path, match_policy: MatchPolicy, reference: str = "", scale: str | None = None):
        self.rows = SpilledRows(directory)
        self._scale = scale
        self._match_policy = match_policy
        self._reference = reference
        # Hashes stand for texts: within one process that is enough, and a row needs little memory.
        self._seen: dict[int, tuple[int, int, str, int]] = {}
        self._digests: dict[int, str] = {}
        self._tasks = Tasks()

    def read(self, source: str, with_battles: bool = False) -> _File:
        """Read one file. Raises `DataError` as `annotated_systems` does."""
        file, first_named = _File(source), None
        for at, (_, _, judged) in enumerate(read_annotations(source, self._scale, with_battles)):
            named = bool(judged.pair.generator_1), bool(judged.pair.generator_2)
            first_named = first_named or named
            if named != first_named:
                lacking = "generator_1" if named[0] != first_named[0] else "generator_2"
                raise DataError(f"{source}: row {at}: field {lacking!r} is missing here or in row 0, and not in both")
            judged = in_first_form(self._with_players(judged, source, at), self._tasks)
            players = (judged.pair.generator_1, judged.pair.generator_2)
            part = file.parts.get(players)
            if part is None:
                part = file.parts[players] = _Part(self.rows.new_file(), at)
            file.annotators.add(judged.annotator or Path(source).name)
            if self._is_repeated(judged, source, at):
                part.repeated += 1
                continue
            pair = judged.pair
            part.count += 1
            part.judges.add(judged.preference.judge)
            empty = not pair.output_1.strip(), not pair.output_2.strip() and not judged.unanswered
            part.empty = (part.empty[0] + empty[0], part.empty[1] + empty[1])
            part.answers[self._digest(pair.instruction)] = self._digest(pair.output_1)
            self.rows.add(part.rows, judged)
        if not file.parts:
            raise DataError(f"{source}: holds no annotations")
        return file

    def _with_players(self, judged: JudgedPair, source: str, at: int) -> JudgedPair:
        """Name both generators. Raises `DataError` if one is not known, or if both are the same."""
        pair = judged.pair
        if not (pair.generator_1 or pair.generator_2 or judged.annotator or self._reference):
            raise DataError(
                f"{source}: row {at} names neither generators nor an annotator. These look like preferences to train "
                f"on, as AlpacaFarm's: {training_pairs(source)}. If output_1 is a reference's, name it: afarm evaluate "
                f"--annotations {source} --reference NAME"
            )
        first = pair.generator_1 or self._reference or "reference"
        pair = replace(pair, generator_1=first, generator_2=pair.generator_2 or stem(source))
        if pair.generator_1 == pair.generator_2 and not (pair.identical and judged.win == 0.5):
            raise DataError(
                f"{source}: row {at}: {first!r} is compared with itself in 'generator_1' and 'generator_2', and not as "
                f"a draw of identical outputs. Two samples of one model are preferences to train on: "
                f"{training_pairs(source)}"
            )
        return replace(judged, pair=pair)

    def _is_repeated(self, judged: JudgedPair, source: str, at: int) -> bool:
        """Tell if a judgement was seen before. Raises `DataError` for contradictions, unless the first stands."""
        pair, preference = judged.pair, judged.preference
        p2 = preference.p2 if preference.p2 is None or pair.is_canonical else 1 - preference.p2
        who = (judged.annotator, preference.judge, preference.member, preference.sample_index, pair.occurrence)
        key = hash((frozenset((pair.generator_1, pair.generator_2)), who, self._digest(pair.instruction)))
        outputs, label = hash(pair.canonical), hash((p2, preference.outcome))
        first = self._seen.setdefault(key, (outputs, label, source, at))
        if first == (outputs, label, source, at):
            return False
        if first[:2] != (outputs, label) and self._match_policy.on_duplicate == "error":
            where = f"row {first[3]}" if first[2] == source else f"{first[2]}: row {first[3]}"
            what = "about other outputs" if first[0] != outputs else "and do not agree"
            raise DataError(
                f"{source}: row {at} and {where} judge {pair.generator_2!r} on the same instruction "
                f"({pair.instruction.instruction[:60]!r}) {what}; remove one, or let the first stand: afarm evaluate "
                "--annotations FILE… --on-duplicate first"
            )
        return True

    def _digest(self, content: Instruction | str) -> str:
        """Return an instruction's id or a text's digest, computed once and held in memory once."""
        key = hash(content)
        if key not in self._digests:
            self._digests[key] = digest(content) if isinstance(content, str) else content.id
        return self._digests[key]

    def merge(self, names: Names, parts: Sequence[tuple[_File, _Part, bool]]) -> AnnotatedSystem:
        """Merge (file, part, swap)s into one system; rows are swapped if `swap`."""
        rows = self.rows.merge([(part.rows, swapped) for _, part, swapped in parts])
        answers: dict[str, str] = {}
        for _, part, swapped in parts:
            if swapped:
                pairs = (row.pair for row in read_each(part.rows))
                answers |= {self._digest(pair.instruction): self._digest(pair.output_2) for pair in pairs}
            else:
                answers |= part.answers
        first_file, first_part, first_swapped = parts[0]
        by_source: dict[str, list[_Part]] = {}  # a file may have rows of both orientations
        for file, part, _ in parts:
            by_source.setdefault(file.source, []).append(part)
        repeats = [
            f"{source}: {counted(repeated, 'repeated row')} dropped"
            if any(part.count for part in theirs)
            else f"{source}: all its rows ({repeated:,}) are of {names[0]!r} and stand in an earlier file; dropped"
            for source, theirs in by_source.items()
            if (repeated := sum(part.repeated for part in theirs))
        ]
        return AnnotatedSystem(
            *names,
            tuple(dict.fromkeys(file.source for file, _, _ in parts)),
            rows,
            Coverage(
                reference=len(answers),
                outputs=len(answers),
                compared=len(answers),
                repeated=sum(part.repeated for _, part, _ in parts),
                empty=sum(part.empty[not swapped] for _, part, swapped in parts),
                empty_reference=sum(part.empty[swapped] for _, part, swapped in parts),
            ),
            answers,
            tuple(sorted({judge for _, part, _ in parts for judge in part.judges if judge})),
            sum(part.count for _, part, swapped in parts if swapped),
            repeats=tuple(repeats),
            first=f"{first_file.source}: row {first_part.first} ('generator_{1 if first_swapped else 2}')",
        )


def _with_doubt(one: AnnotatedSystem, systems: Sequence[AnnotatedSystem]) -> AnnotatedSystem:
    """Doubt the orientation of a system that is the same annotators' reference elsewhere."""
    others = [other for other in systems if other.reference == one.system != one.reference]
    if not any(other.annotators == one.annotators for other in others):
        return one
    return replace(
        one,
        doubt=f"{', '.join(one.files)}: {one.system!r} stands as the system against {one.reference!r} here, and is the "
        f"reference elsewhere; if it is here too: afarm evaluate --annotations FILE… --reference {one.system}",
    )


def _reference(file: _File, named: str) -> str | None:
    """The reference of a file: named, in every row, or more often first. None: the first of each row."""
    pairs = list(file.parts)
    if named:
        for players in pairs:
            if named not in players:
                raise DataError(f"{file.source}: {file.where(players)}, and neither is the reference {named!r}")
        return named
    common = set(pairs[0]).intersection(*pairs[1:])
    if len(common) == 1:
        (one,) = common
        return one if any(players[0] == one for players in pairs) else None
    if not common:
        seconds = {players[1]: players for players in pairs}
        both = next((players for players in pairs if players[0] in seconds), None)
        if both is None:
            return None
        raise DataError(
            f"{file.source}: {file.where(both)}, but {file.where(seconds[both[0]])}: {both[0]!r} stands on either "
            "side, and no generator is in every row: say which is the reference with afarm evaluate --annotations "
            "FILE… --reference NAME, or ask for a board without one: afarm leaderboard FILE… --order-by bradley_terry"
        )
    firsts = Counter({players[0]: file.parts[players].count for players in pairs})
    (one, count), *rest = firsts.most_common()
    if rest and rest[0][1] == count:
        raise DataError(
            f"{file.source}: {file.where(pairs[0])}, but {file.where(pairs[1])}, and as often: say which is the "
            f"reference with afarm evaluate --annotations FILE… --reference {pairs[0][0]}"
        )
    return one


def _over_one_set(systems: Sequence[AnnotatedSystem], match_policy: MatchPolicy) -> list[AnnotatedSystem]:
    """Count the instructions that each system lacks. Raises `DataError` for disjoint sets, or by policy."""
    together: dict[tuple[str, tuple[str, ...]], list[AnnotatedSystem]] = {}
    for one in systems:
        together.setdefault((one.reference, one.annotators), []).append(one)
    completed = []
    for others in together.values():
        answers: dict[str, str] = {}
        for one in others:
            if answers and answers.keys().isdisjoint(one.answers):
                raise DataError(
                    f"{others[0].system!r}, first in {others[0].first}, and {one.system!r}, first in {one.first}, were "
                    "judged on different sets of instructions, with none in common: correct the name where the two are "
                    "one system, or give each a file and evaluate them apart"
                )
            answers = {**one.answers, **answers}
        judges = tuple(sorted({judge for one in others for judge in one.judges}))
        for one in others:
            missing = len(answers) - len(one.answers)
            if missing and match_policy.on_missing == "error":
                raise DataError(
                    f"{one.system!r} ({', '.join(one.files)}) was judged on {len(one.answers)} of the {len(answers)} "
                    "instructions that other systems were judged on; --on-missing skip takes it as it is"
                )
            changed = sum(answers[id] != answer for id, answer in one.answers.items())
            coverage = replace(one.coverage, reference=len(answers), missing=missing)
            known = one.answers if changed else answers
            completed.append(replace(one, judges=judges, coverage=coverage, answers=known, changed=changed))
    place = {one.rows: number for number, one in enumerate(systems)}
    return sorted(completed, key=lambda one: place[one.rows])
