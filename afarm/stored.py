"""Stored annotations as systems: whose judgements a file holds, against which reference, and which way round.

Files are read once, row by row, and written beside as one file a system; memory holds digests and names, and no texts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from afarm.errors import DataError
from afarm.files import judged_pair, preferences_on_disk, read_rows, stem, write_rows
from afarm.joining import Coverage, Joining
from afarm.keyed import digest
from afarm.records import JudgedPair

BUFFER = 8 << 20
"""Characters held before they are written."""
NAMED = 3
"""Annotators of one file that are named; of more, their number."""

Players = tuple[str, str]
"""`generator_1` and `generator_2` of a row."""


@dataclass(frozen=True, slots=True)
class StoredSystem:
    """The judgements of `system` (output_2) against `reference` (output_1) by `annotator`, from `files`.

    They are in `path`, as JSON lines, and `judges` are the identities they name. `answers` are digests of what the
    reference answered, by instruction's id, also of instructions that only other systems were judged on. `notes` say
    what was odd about the rows.
    """

    system: str
    reference: str
    annotator: str
    files: tuple[str, ...]
    path: Path
    coverage: Coverage
    answers: Mapping[str, str]
    judges: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Part:
    """The rows of one file with the same generators in the same order. `first` is the number of its first row,
    `answers` are digests of `output_1` by instruction, `empty` counts empty outputs on either side."""

    path: Path
    first: int
    rows: int = 0
    repeated: int = 0
    empty: tuple[int, int] = (0, 0)
    answers: dict[str, str] = field(default_factory=dict)
    judges: set[str] = field(default_factory=set)

    def judged(self, turned: bool) -> Iterator[JudgedPair]:
        for row in preferences_on_disk(self.path) if self.rows else ():
            yield JudgedPair(row.pair.swapped(), row.preference.swapped(), row.annotator) if turned else row


@dataclass(slots=True)
class _File:
    source: str
    parts: dict[Players, _Part] = field(default_factory=dict)
    annotators: set[str] = field(default_factory=set)

    @property
    def annotator(self) -> str:
        names = sorted(self.annotators)
        return " + ".join(names) if len(names) <= NAMED else f"{len(names)} annotators"

    def says(self, players: Players) -> str:
        return f"row {self.parts[players].first} compares {players[1]!r} with {players[0]!r}"


def stored_systems(
    files: Sequence[Path | str], directory: Path, reference: str = "", joining: Joining | None = None
) -> list[StoredSystem]:
    """The systems that `files` are about, in the order in which they come, their rows kept below `directory`.

    One file may hold several systems where the reference is the same for all, and several files may be about one. What
    is stored with the reference second is turned. `reference` names it where rows do not tell.

    Raises `DataError` naming file, row and field where a row is wrong, two contradict each other, there is none, it
    cannot be told which generator is the reference, or systems were judged on different instructions.
    """
    reader = _Reader(directory, joining or Joining("skip"))
    read = [reader.read(str(path), number) for number, path in enumerate(files)]
    grouped: dict[tuple[str, str, str], list[tuple[_File, _Part, bool]]] = {}
    for file, of_file in zip(read, _references(read, reference), strict=True):
        for players, part in file.parts.items():
            turned = players[1] == of_file
            system = players[0] if turned else players[1]
            grouped.setdefault((system, of_file, file.annotator), []).append((file, part, turned))
    found = [
        _system(names, parts, directory / f"system-{number}.jsonl")
        for number, (names, parts) in enumerate(grouped.items())
    ]
    return _over_one_set(found, joining or Joining("skip"))


# ---------------------------------------------------------------------------------------------------------- reading


class _Reader:
    """Splits files by the generators that their rows name, and leaves out what it has seen before."""

    def __init__(self, directory: Path, joining: Joining):
        self._directory = directory
        self._joining = joining
        # Hashes stand for texts: within one process that is enough, and a row needs little memory.
        self._seen: dict[int, tuple[int, str, int]] = {}
        self._digests: dict[int, str] = {}
        self._buffers: dict[Path, list[str]] = {}
        self._held = 0

    def read(self, source: str, number: int) -> _File:
        """Raises `DataError` as `stored_systems` says."""
        file = _File(source)
        for at, row in enumerate(read_rows(source)):
            judged = judged_pair(row, f"{source}: row {at}")
            players = (judged.pair.generator_1 or "reference", judged.pair.generator_2 or stem(source))
            if players[0] == players[1]:
                raise DataError(f"{source}: row {at}: {players[0]!r} is compared with itself in 'generator_1' and '_2'")
            judged = replace(judged, pair=replace(judged.pair, generator_1=players[0], generator_2=players[1]))
            path = self._directory / f"part-{number}-{len(file.parts)}.jsonl"
            part = file.parts.setdefault(players, _Part(path, at))
            file.annotators.add(judged.annotator or Path(source).name)
            if self._is_repeated(judged, source, at):
                part.repeated += 1
            else:
                self._keep(judged, part)
        self._flush()
        if not file.parts:
            raise DataError(f"{source}: holds no annotations")
        return file

    def _is_repeated(self, judged: JudgedPair, source: str, at: int) -> bool:
        """Whether the same judgement came before. Raises `DataError` where another one did, unless the first stands."""
        pair, preference = judged.pair, judged.preference
        mine = preference if pair.is_canonical else preference.swapped()
        who = (judged.annotator, preference.judge, preference.member, preference.draw, pair.occurrence)
        key = hash((frozenset((pair.generator_1, pair.generator_2)), who, pair.instruction))
        said = hash((pair.canonical, mine.p2, mine.outcome))
        if key not in self._seen:
            self._seen[key] = (said, source, at)
            return False
        before, earlier, row = self._seen[key]
        if before != said and self._joining.on_duplicate == "error":
            where = f"row {row}" if earlier == source else f"{earlier}: row {row}"
            asked = pair.instruction.instruction[:60]
            raise DataError(
                f"{source}: row {at} and {where} judge {pair.generator_2!r} on the same instruction ({asked!r}) and do "
                "not agree; remove one, or let the first stand: --on-duplicate first"
            )
        return True

    def _keep(self, judged: JudgedPair, part: _Part) -> None:
        pair = judged.pair
        part.rows += 1
        part.judges |= {judged.preference.judge} - {""}
        part.empty = (part.empty[0] + (not pair.output_1.strip()), part.empty[1] + (not pair.output_2.strip()))
        part.answers[self._digest(pair.instruction, pair.instruction.id)] = self._digest(pair.output_1)
        line = json.dumps(judged.to_row(), ensure_ascii=False)
        self._buffers.setdefault(part.path, []).append(line)
        self._held += len(line)
        if self._held > BUFFER:
            self._flush()

    def _digest(self, what: object, made: str = "") -> str:
        """Of a text; the same text has the same one in memory."""
        return self._digests.setdefault(hash(what), made or digest(what))

    def _flush(self) -> None:
        for path, lines in self._buffers.items():
            with path.open("a", encoding="utf-8", errors="backslashreplace") as handle:
                handle.writelines(f"{line}\n" for line in lines)
        self._buffers.clear()
        self._held = 0


# ------------------------------------------------------------------------------------------------------ orientation


def _references(files: Sequence[_File], named: str) -> list[str]:
    """The reference of each file. Raises `DataError` where it cannot be told."""
    found = [_reference(file, named) for file in files]
    if named:
        return found
    used = Counter(found)
    for number, file in enumerate(files):
        pairs = {frozenset(players) for players in file.parts}
        if len(pairs) > 1:
            continue
        (other,) = next(iter(pairs)) - {found[number]}
        # By the format it is the first of the two; but where other files say that it is the second, it is.
        if used[other] and used[found[number]] == 1:
            if used[other] == 1 and len(files) == 2 and _is_pair(files, found):
                raise DataError(
                    f"{files[0].source} and {files[1].source} compare the same two systems and disagree on which is "
                    f"the reference: say it with --reference {found[0]}"
                )
            found[number] = other
    return found


def _is_pair(files: Sequence[_File], found: Sequence[str]) -> bool:
    """Whether two files are about the same two systems, each the other's reference."""
    return all({*found} == {*players} for file in files for players in file.parts)


def _reference(file: _File, named: str) -> str:
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
        # The first two rows that share no generator, or else the first and one without what those share.
        first = pairs[0]
        other = next((p for p in pairs[1:] if not {*p} & {*first}), next(p for p in pairs[1:] if p[0] != first[0]))
        raise DataError(
            f"{file.source}: {file.says(first)}, but {file.says(other)}: no generator is in every row, so there is no "
            "reference; say which is with --reference NAME, or evaluate its systems from files of their own"
        )
    firsts = Counter({players[0]: file.parts[players].rows for players in pairs})
    (one, count), *rest = firsts.most_common()
    if rest and rest[0][1] == count:
        raise DataError(
            f"{file.source}: {file.says(pairs[0])}, but {file.says(pairs[1])}, and as often: say which is the "
            f"reference with --reference {pairs[0][0]}"
        )
    return one


# --------------------------------------------------------------------------------------------------------- systems


def _system(names: tuple[str, str, str], parts: Sequence[tuple[_File, _Part, bool]], path: Path) -> StoredSystem:
    """One system's rows, in one file, the reference first."""
    notes, answers, turned = [], dict[str, str](), [part for _, part, turned in parts if turned]
    for file, part, is_turned in parts:
        if is_turned:
            notes.append(f"{file.source}: {part.rows} rows have the reference {names[1]!r} second: turned")
    if turned or len(parts) > 1:
        write_rows(path, (row.to_row() for _, part, is_turned in parts for row in part.judged(is_turned)))
    else:
        path = parts[0][1].path
    for _, part, is_turned in parts:
        given = part.answers
        if is_turned:
            given = {row.pair.instruction.id: digest(row.pair.output_1) for row in part.judged(True)}
        answers |= given
    coverage = Coverage(
        len(answers),
        len(answers),
        len(answers),
        repeated=sum(part.repeated for _, part, _ in parts),
        empty=sum(part.empty[not is_turned] for _, part, is_turned in parts),
        empty_reference=sum(part.empty[is_turned] for _, part, is_turned in parts),
    )
    files = tuple(dict.fromkeys(file.source for file, _, _ in parts))
    judges = tuple(sorted({judge for _, part, _ in parts for judge in part.judges}))
    return StoredSystem(*names, files, path, coverage, answers, judges, tuple(notes))


def _over_one_set(found: Sequence[StoredSystem], joining: Joining) -> list[StoredSystem]:
    """The systems with what they lack of the instructions that others with their reference and annotator have.

    Raises `DataError` where two share none, or one lacks some and that is not to be.
    """
    wholes: dict[tuple[str, str], dict[str, str]] = {}
    judges: dict[tuple[str, str], set[str]] = {}
    firsts: dict[tuple[str, str], StoredSystem] = {}
    for one in found:
        key = (one.reference, one.annotator)
        whole, first = wholes.setdefault(key, {}), firsts.setdefault(key, one)
        if whole and whole.keys().isdisjoint(one.answers):
            raise DataError(
                f"{one.system!r} ({', '.join(one.files)}) and {first.system!r} ({', '.join(first.files)}) were judged "
                "on different sets of instructions, with none in common: evaluate them apart"
            )
        judges.setdefault(key, set()).update(one.judges)
        for id, answer in one.answers.items():
            whole.setdefault(id, answer)
    same = [replace(one, judges=tuple(sorted(judges[one.reference, one.annotator]))) for one in found]
    return [_against(one, wholes[one.reference, one.annotator], joining) for one in same]


def _against(one: StoredSystem, whole: Mapping[str, str], joining: Joining) -> StoredSystem:
    notes, missing = list(one.notes), len(whole) - len(one.answers)
    if missing and joining.on_missing == "error":
        raise DataError(
            f"{one.system!r} ({', '.join(one.files)}) was judged on {len(one.answers)} of the {len(whole)} "
            "instructions that other systems were judged on; --on-missing skip takes it as it is"
        )
    coverage = replace(one.coverage, reference=len(whole), missing=missing)
    if coverage.partial:
        notes.append(f"{one.system}: only {coverage.sentence}: the win rate is of these alone")
    if changed := sum(whole[id] != answer for id, answer in one.answers.items()):
        notes.append(
            f"{one.system}: {one.reference} answered {changed} of these instructions otherwise than in other files: "
            "its win rate is against another reference than theirs"
        )
    answers = one.answers if changed else whole
    return replace(one, coverage=coverage, answers=answers, notes=tuple(notes))
