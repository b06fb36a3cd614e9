"""Stored annotations as systems: whose judgements files hold, against which reference, and which way round.

Files are read once, row by row. What is kept of a row is for the caller to say (`RowSink`); here memory holds digests
and names, and no texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from afarm.core.errors import DataError
from afarm.core.records import Instruction, JudgedPair
from afarm.core.seeding import digest
from afarm.evaluation.matching import REFERENCES, Coverage, MatchPolicy
from afarm.evaluation.protocol import EvaluationProtocol, answers_digest, instructions_digest
from afarm.storage.rows import judged_pair, read_rows, stem

NAMED = 3
"""Annotators of one file that are named; of more, their number."""

Players = tuple[str, str]
"""`generator_1` and `generator_2` of a row."""

K = TypeVar("K")


class RowSink(ABC, Generic[K]):
    """What is kept of the rows of a part: those of one file with the same generators in the same order."""

    @abstractmethod
    def part(self) -> K:
        """One that holds nothing yet."""

    @abstractmethod
    def add(self, part: K, judged: JudgedPair) -> None:
        """Keep what is needed of a row."""

    @abstractmethod
    def whole(self, parts: Sequence[tuple[K, bool]]) -> K:
        """The rows of one system, the reference first: `parts` put together, turned where that is said."""


@dataclass(frozen=True, slots=True)
class AnnotatedSystem(Generic[K]):
    """The judgements of `system` (output_2) against `reference` (output_1) by `annotators`, from `files`.

    `kept` is what was kept of them, and `judges` are the identities they name. `answers` are digests of what the
    reference answered, by instruction's id, also of instructions that only other systems were judged on; where it
    answered some, `changed`, otherwise than to other systems, its answers to this one alone. `turned` rows had the
    reference second. `first` says where the first row of it stands, and which field names the system there.
    """

    system: str
    reference: str
    annotators: tuple[str, ...]
    files: tuple[str, ...]
    kept: K
    coverage: Coverage
    answers: Mapping[str, str]
    judges: tuple[str, ...] = ()
    turned: int = 0
    changed: int = 0
    first: str = ""

    @property
    def annotator(self) -> str:
        """Whose labels these are; several of one file are a pool."""
        names = self.annotators
        return " + ".join(names) if len(names) <= NAMED else f"{len(names)} annotators"

    @property
    def protocol(self) -> EvaluationProtocol:
        return EvaluationProtocol(
            annotator=self.annotator,
            settings=digest(self.annotators) if len(self.annotators) > NAMED else "",
            judges={str(number): judge for number, judge in enumerate(self.judges)},
            reference=self.reference,
            reference_outputs=answers_digest(self.answers),
            instructions=instructions_digest(self.answers),
        )


@dataclass(slots=True)
class _Part(Generic[K]):
    """`first` is the number of its first row, `answers` are digests of `output_1` by instruction, `empty` counts empty
    outputs on either side."""

    kept: K
    first: int
    rows: int = 0
    repeated: int = 0
    empty: tuple[int, int] = (0, 0)
    answers: dict[str, str] = field(default_factory=dict)
    judges: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _File(Generic[K]):
    source: str
    parts: dict[Players, _Part[K]] = field(default_factory=dict)
    annotators: set[str] = field(default_factory=set)
    named: tuple[bool, bool] | None = None
    """Whether its rows say whose the first output is, and whose the second."""

    def says(self, players: Players) -> str:
        return f"row {self.parts[players].first} compares {players[1]!r} with {players[0]!r}"


def annotated_systems(
    files: Sequence[Path | str], keeping: RowSink[K], reference: str = "", match_policy: MatchPolicy | None = None
) -> list[AnnotatedSystem[K]]:
    """The systems that `files` are about, in the order in which they come.

    One file may hold several systems, and several files may be about one. What is stored with the reference second is
    turned. `reference` names it where rows do not tell.

    Raises `DataError` naming file, row and field where a row is wrong, two contradict each other, there is none, it
    cannot be told which generator is the reference, or systems were judged on different instructions.
    """
    match_policy = match_policy or MatchPolicy("skip")
    reader = _Reader(keeping, match_policy)
    read = [reader.read(str(path)) for path in files]
    grouped: dict[tuple[str, str, tuple[str, ...]], list[tuple[_File[K], _Part[K], bool]]] = {}
    for file, of_file in zip(read, _references(read, reference), strict=True):
        for players, part in file.parts.items():
            turned = players[1] == of_file
            system, other = (players[0], players[1]) if turned else (players[1], players[0])
            grouped.setdefault((system, other, tuple(sorted(file.annotators))), []).append((file, part, turned))
    found = [
        _system(names, parts, keeping, reader)
        for names, parts in grouped.items()
        if any(part.rows for _, part, _ in parts)  # others' rows are all in other files too
    ]
    return _over_one_set(found, match_policy)


def rows_by_annotators(files: Sequence[Path | str], keeping: RowSink[K]) -> Iterator[tuple[str, tuple[str, ...], K]]:
    """Of each part of `files`: its file, the annotators of that, and what is kept; whoever is the reference.

    Raises `DataError` naming file, row and field where a row is wrong, two contradict each other, or there is none.
    """
    reader = _Reader(keeping, MatchPolicy("skip"))
    for path in files:
        file = reader.read(str(path))
        for part in file.parts.values():
            yield file.source, tuple(sorted(file.annotators)), part.kept


# ---------------------------------------------------------------------------------------------------------- reading


class _Reader(Generic[K]):
    """Splits files by the generators that their rows name, and leaves out what it has seen before."""

    def __init__(self, keeping: RowSink[K], match_policy: MatchPolicy):
        self._keeping = keeping
        self._match_policy = match_policy
        # Hashes stand for texts: within one process that is enough, and a row needs little memory.
        self._seen: dict[int, tuple[int, int, str, int]] = {}
        self._digests: dict[int, str] = {}

    def read(self, source: str) -> _File[K]:
        """Raises `DataError` as `annotated_systems` says."""
        file: _File[K] = _File(source)
        for at, row in enumerate(read_rows(source)):
            judged = judged_pair(row, f"{source}: row {at}")
            named = bool(judged.pair.generator_1), bool(judged.pair.generator_2)
            file.named = file.named or named
            if named != file.named:
                lacking = "generator_1" if named[0] != file.named[0] else "generator_2"
                raise DataError(f"{source}: row {at}: field {lacking!r} is missing here or in row 0, and not in both")
            if not all(named):
                called = (judged.pair.generator_1 or "reference", judged.pair.generator_2 or stem(source))
                judged = replace(judged, pair=replace(judged.pair, generator_1=called[0], generator_2=called[1]))
            players = (judged.pair.generator_1, judged.pair.generator_2)
            if players[0] == players[1]:
                raise DataError(f"{source}: row {at}: {players[0]!r} is compared with itself in 'generator_1' and '_2'")
            part = file.parts.get(players)
            if part is None:
                part = file.parts[players] = _Part(self._keeping.part(), at)
            file.annotators.add(judged.annotator or Path(source).name)
            if self._is_repeated(judged, source, at):
                part.repeated += 1
            else:
                self._keep(judged, part)
        if not file.parts:
            raise DataError(f"{source}: holds no annotations")
        return file

    def _is_repeated(self, judged: JudgedPair, source: str, at: int) -> bool:
        """Whether the same judgement came before. Raises `DataError` where another one did, unless the first stands."""
        pair, preference = judged.pair, judged.preference
        p2 = preference.p2 if preference.p2 is None or pair.is_canonical else 1 - preference.p2
        who = (judged.annotator, preference.judge, preference.member, preference.sample_index, pair.occurrence)
        key = hash((frozenset((pair.generator_1, pair.generator_2)), who, self.id_of(pair.instruction)))
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

    def _keep(self, judged: JudgedPair, part: _Part[K]) -> None:
        pair = judged.pair
        part.rows += 1
        if judged.preference.judge:
            part.judges.add(judged.preference.judge)
        empty = not pair.output_1.strip(), not pair.output_2.strip() and not judged.unanswered
        part.empty = (part.empty[0] + empty[0], part.empty[1] + empty[1])
        part.answers[self.id_of(pair.instruction)] = self.digest_of(pair.output_1)
        self._keeping.add(part.kept, judged)

    def id_of(self, instruction: Instruction) -> str:
        """Its id; the same text in memory for the same one."""
        key = hash(instruction)
        if key not in self._digests:
            self._digests[key] = instruction.id
        return self._digests[key]

    def digest_of(self, text: str) -> str:
        """As `id_of`, of an output."""
        key = hash(text)
        if key not in self._digests:
            self._digests[key] = digest(text)
        return self._digests[key]

    def answers_second(self, file: _File[K], part: _Part[K]) -> Iterator[tuple[str, str]]:
        """The `answers` of `output_2` in a part, which is read again for them: few files have any that is turned."""
        players = next(players for players, found in file.parts.items() if found is part)
        for at, row in enumerate(read_rows(file.source)):
            pair = judged_pair(row, f"{file.source}: row {at}").pair
            if (pair.generator_1 or "reference", pair.generator_2 or stem(file.source)) == players:
                yield self.id_of(pair.instruction), self.digest_of(pair.output_2)


# ------------------------------------------------------------------------------------------------------ orientation


def _references(files: Sequence[_File[K]], named: str) -> list[str | None]:
    """The reference of each file, None where it is the first of each row. Raises `DataError` where none can be told."""
    found = [_reference(file, named) for file in files]
    if named:
        return found
    used = Counter(name for file, one in zip(files, found, strict=True) for name in _firsts(file, one))
    for number, file in enumerate(files):
        pairs, mine = {frozenset(players) for players in file.parts}, found[number]
        if mine is None or len(pairs) > 1:
            continue
        (other,) = next(iter(pairs)) - {mine}
        # By the format it is the first of the two; but where other files say that it is the second, it is.
        if used[other] and used[mine] == 1:
            if used[other] == 1 and len(files) == 2 and _is_pair(files, found):
                known = other if other in REFERENCES else mine
                raise DataError(
                    f"{files[0].source} and {files[1].source} compare the same two systems and disagree on which is "
                    f"the reference: say it with afarm evaluate --annotations FILE… --reference {known}"
                )
            found[number] = other
    return found


def _firsts(file: _File[K], reference: str | None) -> set[str]:
    return {players[0] for players in file.parts} if reference is None else {reference}


def _is_pair(files: Sequence[_File[K]], found: Sequence[str | None]) -> bool:
    """Whether two files are about the same two systems, each the other's reference."""
    return all({*found} == {*players} for file in files for players in file.parts)


def _reference(file: _File[K], named: str) -> str | None:
    """The one that is in every row; where there is none, the first of each row, unless it is the second of others."""
    pairs = list(file.parts)
    if named:
        for players in pairs:
            if named not in players:
                raise DataError(f"{file.source}: {file.says(players)}, and neither is the reference {named!r}")
        return named
    common = set(pairs[0]).intersection(*pairs[1:])
    if len(common) == 1:
        return next(iter(common))
    if not common:
        seconds = {players[1]: players for players in pairs}
        both = next((players for players in pairs if players[0] in seconds), None)
        if both is None:
            return None
        raise DataError(
            f"{file.source}: {file.says(both)}, but {file.says(seconds[both[0]])}: {both[0]!r} stands on either side, "
            "and no generator is in every row: say which is the reference with afarm evaluate --annotations FILE… "
            "--reference NAME, or ask for a board without one: afarm leaderboard FILE… --order-by bradley_terry"
        )
    firsts = Counter({players[0]: file.parts[players].rows for players in pairs})
    (one, count), *rest = firsts.most_common()
    if rest and rest[0][1] == count:
        raise DataError(
            f"{file.source}: {file.says(pairs[0])}, but {file.says(pairs[1])}, and as often: say which is the "
            f"reference with afarm evaluate --annotations FILE… --reference {pairs[0][0]}"
        )
    return one


# --------------------------------------------------------------------------------------------------------- systems


def _system(
    names: tuple[str, str, tuple[str, ...]],
    parts: Sequence[tuple[_File[K], _Part[K], bool]],
    keeping: RowSink[K],
    reader: _Reader[K],
) -> AnnotatedSystem[K]:
    answers: dict[str, str] = {}
    for file, part, turned in parts:
        answers |= dict(reader.answers_second(file, part)) if turned else part.answers
    coverage = Coverage(
        reference=len(answers),
        outputs=len(answers),
        compared=len(answers),
        repeated=sum(part.repeated for _, part, _ in parts),
        empty=sum(part.empty[not turned] for _, part, turned in parts),
        empty_reference=sum(part.empty[turned] for _, part, turned in parts),
    )
    return AnnotatedSystem(
        *names,
        tuple(dict.fromkeys(file.source for file, _, _ in parts)),
        keeping.whole([(part.kept, turned) for _, part, turned in parts]),
        coverage,
        answers,
        tuple(sorted({judge for _, part, _ in parts for judge in part.judges})),
        sum(part.rows for _, part, turned in parts if turned),
        first=f"{parts[0][0].source}: row {parts[0][1].first} ('{'generator_1' if parts[0][2] else 'generator_2'}')",
    )


def _over_one_set(found: Sequence[AnnotatedSystem[K]], match_policy: MatchPolicy) -> list[AnnotatedSystem[K]]:
    """The systems with what they lack of the instructions that others with their reference and annotators have.

    Raises `DataError` where two share none, or one lacks some and that is not to be.
    """
    together: dict[tuple[str, tuple[str, ...]], list[AnnotatedSystem[K]]] = {}
    wholes: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
    for one in found:
        key = one.reference, one.annotators
        whole, others = wholes.setdefault(key, {}), together.setdefault(key, [])
        if whole and whole.keys().isdisjoint(one.answers):
            raise DataError(
                f"{others[0].system!r}, first in {others[0].first}, and {one.system!r}, first in {one.first}, were "
                "judged on different sets of instructions, with none in common: correct the name where the two are one "
                "system, or give each a file and evaluate them apart"
            )
        others.append(one)
        wholes[key] = {**one.answers, **whole}
    return [
        _against(one, together[key], wholes[key], match_policy)
        for one in found
        for key in [(one.reference, one.annotators)]
    ]


def _against(
    one: AnnotatedSystem[K], others: Sequence[AnnotatedSystem[K]], whole: Mapping[str, str], match_policy: MatchPolicy
) -> AnnotatedSystem[K]:
    missing = len(whole) - len(one.answers)
    if missing and match_policy.on_missing == "error":
        raise DataError(
            f"{one.system!r} ({', '.join(one.files)}) was judged on {len(one.answers)} of the {len(whole)} "
            "instructions that other systems were judged on; --on-missing skip takes it as it is"
        )
    changed = sum(whole[id] != answer for id, answer in one.answers.items())
    return replace(
        one,
        judges=tuple(sorted({judge for other in others for judge in other.judges})),
        coverage=replace(one.coverage, reference=len(whole), missing=missing),
        answers=one.answers if changed else whole,
        changed=changed,
    )
