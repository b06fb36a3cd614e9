"""Labels read from files with one row per label, of one annotator or of several."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError, did_you_mean
from afarm.core.judge import Completion
from afarm.core.records import JudgedPair, Preference
from afarm.evaluation.matching import in_first_form
from afarm.evaluation.metrics import finite_number
from afarm.storage.conversations import Tasks
from afarm.storage.labelled_pairs import read_annotations
from afarm.storage.rows import stem

HUMANS = "humans"
"""The name of all people together: each of their labels is one of the same annotator's."""
HUMAN_NAMES = {"human", "humans"}
NOISE = "(noise)"
"""The member that labels drawn by label noise belong to, if a pool is split by member."""

Completions = Callable[[Sequence[str]], Mapping[str, Completion]]


@dataclass(frozen=True, slots=True)
class Label:
    """One judgement of one pair by one annotator.

    `p2` is the probability that output_2 is better, 0.5 for a draw, None if there is no readable answer. `canonical` is
    True if output_1 comes first in the pair's canonical order: files may hold a pair either way round. `shown_first` is
    1 or 2 if it is known which output the annotator saw first. `price` (US dollars) and `seconds` are None if unknown.
    `annotator` is what the row or its file calls it, whichever judge it asked; `judge` is that one's identity, empty if
    none was asked or the file does not say.
    """

    pair_id: str
    annotator: str
    p2: float | None
    canonical: bool
    output_1: str
    output_2: str
    generator_1: str = ""
    generator_2: str = ""
    shown_first: int | None = None
    price: float | None = None
    seconds: float | None = None
    completion: str = ""
    judge: str = ""
    member: str = ""
    both_orders: bool = False
    file: str = ""

    @property
    def choice(self) -> str | None:
        """The better output in the pair's canonical order, "low" or "high", or "draw"; None if unread."""
        if self.p2 is None:
            return None
        if self.p2 == 0.5:
            return "draw"
        return "low" if (self.p2 < 0.5) == self.canonical else "high"


def read_labels(
    files: Sequence[Path | str],
    humans: Sequence[str] = (),
    by_member: bool = False,
    by_file: bool = False,
    scale: str | None = None,
) -> dict[str, list[Label]]:
    """Read the labels of each annotator, by name, people's under `HUMANS`.

    A row belongs to the annotator it names, or to its file if it names none; with `by_member`, a pool's rows to the
    member that judged, or to `NOISE`; with `by_file`, each file's rows are an annotator of their own. An annotator that
    asked several judges, or judged in one order here and in both there, is several (`split_by_judge`). People are the
    annotators and files that `humans` names (a file that is not among `files` is read too); unless it names any,
    annotators called "human" or "humans", and rows whose source is human. Pairs of identical outputs are left out:
    those are draws by rule, and agreeing on them is no merit. `scale` is the labels' scale
    (`afarm.storage.label_scales`). Raises `DataError` naming file, row and field if a row is no judged pair, and if
    `humans` names nobody.
    """
    named, there = set(humans), {Path(file).resolve() for file in files}
    further = [name for name in dict.fromkeys(humans) if Path(name).is_file() and Path(name).resolve() not in there]
    files = [*files, *further]
    met: set[str] = set()
    found: dict[str, list[Label]] = {}
    names, tasks = {str(file) for file in files}, Tasks()
    shorter: tuple[Callable[[str], str], ...] = (stem, lambda file: f"{Path(file).parent.name}/{stem(file)}")
    titled = next((each for each in shorter if len(set(map(each, names))) == len(names)), str)
    for file in files:
        path, own_name, title = Path(file), stem(str(file)), titled(str(file))
        aliases = {str(file), path.name, own_name}
        for _, row, judged in read_annotations(path, scale):
            if judged.pair.identical:
                continue
            judged = in_first_form(judged, tasks)
            name = (_member(judged.preference) if by_member else "") or judged.annotator or own_name
            called = {name, *aliases} & named
            met |= called
            unnamed = not named and (name in HUMAN_NAMES or judged.preference.source == "human")
            annotator = HUMANS if called or unnamed else name
            apart = by_file and annotator not in (HUMANS, title)
            key = f"{annotator} ({title})" if apart else annotator
            found.setdefault(key, []).append(to_label(judged, annotator, row, title))
    if missing := sorted(named - met):
        raise DataError(
            f"--humans {missing[0]}: no file and no annotator in these files is called that."
            f"{did_you_mean(missing[0], found)}"
        )
    if not found:
        raise DataError(f"{', '.join(map(str, files))}: no labels of different outputs")
    named_apart = {
        key: labels
        for name, given in found.items()
        for key, labels in ({name: given} if name == HUMANS else split_by_judge(name, given)).items()
    }
    return {name: named_apart[name] for name in sorted(named_apart, key=lambda name: (name != HUMANS, name))}


def split_by_judge(name: str, labels: Sequence[Label]) -> dict[str, list[Label]]:
    """Split the labels of the annotator `name` by judge, if there are several.

    It is one annotator as long as each of its members asked one judge, in one order or in both: a pool may ask a judge
    for each role. Otherwise each file is one, called by its judges in the order of the members; a file that is itself
    mixed goes by the judge of each row, and files whose judges only changed places by their names.
    """
    if not _mixed(labels):
        return {name: list(labels)}
    several = len({label.judge for label in labels if label.member != NOISE}) > 1
    found: dict[str, list[Label]] = {}
    for given in _grouped(labels, attrgetter("file")).values():
        for group in [[label] for label in given] if _mixed(given) else [given]:
            found.setdefault(_called(name, _way(group, several)), []).extend(group)
    for key in [key for key, given in found.items() if _mixed(given)]:
        found |= {_called(key, file): given for file, given in _grouped(found.pop(key), attrgetter("file")).items()}
    return found


def _mixed(labels: Iterable[Label]) -> bool:
    """Return True if a member judged in more than one way."""
    ways: dict[str, set[tuple[str, bool]]] = {}
    for label in labels:
        ways.setdefault(label.member, set()).add((label.judge, label.both_orders))
    return any(len(found) > 1 for found in ways.values())


def _way(labels: Iterable[Label], with_judges: bool) -> str:
    """Describe how `labels` were made: the judges, unless the annotator has one, and "both orders"."""
    asked = sorted({(label.member, label.judge, label.both_orders) for label in labels if label.member != NOISE})
    if not asked:
        return "noise"
    judges = [judge for _, judge, _ in asked if judge and with_judges]
    return ", ".join(dict.fromkeys([*judges, *("both orders" for _, _, both in asked if both)]))


def _called(name: str, how: str) -> str:
    return f"{name} ({how})" if how else name


def with_prices(labels: Mapping[str, Sequence[Label]], completions: Completions) -> dict[str, list[Label]]:
    """Add price and time to `labels` that lack them: each completion's, shared evenly by its labels."""
    priced = {}
    for name, given in labels.items():
        wanted = Counter(key for label in given if label.price is None for key in _keys(label))
        known = completions(list(wanted)) if wanted else {}
        priced[name] = [
            _shared(label, [(known[key], wanted[key]) for key in _keys(label)])
            if label.price is None and label.completion and all(key in known for key in _keys(label))
            else label
            for label in given
        ]
    return priced


def _keys(label: Label) -> list[str]:
    return [key for key in label.completion.split(",") if key]


def _shared(label: Label, given: Sequence[tuple[Completion, int]]) -> Label:
    """Add to `label` its share of each completion, of which so many labels were read."""
    prices = [None if completion.price is None else completion.price / among for completion, among in given]
    known = [price for price in prices if price is not None]
    seconds = sum(completion.seconds / among for completion, among in given)
    return replace(label, price=sum(known) if len(known) == len(prices) else None, seconds=seconds or None)


def _member(preference: Preference) -> str:
    return preference.member or (NOISE if preference.source == "noise" else "")


def to_label(judged: JudgedPair, annotator: str, row: Mapping[str, Any] | None = None, file: str = "") -> Label:
    """Return the label of a judged pair. Price and time come from its `row`, if it has them."""
    pair, preference, row = judged.pair, judged.preference, row or {}
    return Label(
        pair.id,
        annotator,
        preference.win,
        pair.is_canonical,
        pair.output_1,
        pair.output_2,
        pair.generator_1,
        pair.generator_2,
        {"12": 1, "21": 2}.get(preference.order),
        finite_number(row.get("price_per_example")),
        finite_number(row.get("time_per_example")),
        preference.completion,
        preference.judge,
        _member(preference),
        preference.order == "both",
        file,
    )


def member_family(name: str) -> str:
    """Return the family of a pool's member: its name without its number, as gpt4 of gpt4_1."""
    return re.sub(r"[_-]\d+$", "", name)


def by_pair(labels: Iterable[Label]) -> dict[str, list[Label]]:
    """Group labels by the pair they judge."""
    return _grouped(labels, attrgetter("pair_id"))


def _grouped(labels: Iterable[Label], key: Callable[[Label], str]) -> dict[str, list[Label]]:
    found: dict[str, list[Label]] = {}
    for label in labels:
        found.setdefault(key(label), []).append(label)
    return found
