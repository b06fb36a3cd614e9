"""Reading the sets: one table of forms, each with where its file comes from and how it is scored.

A file is of the form whose fields its first row has. All its rows must have them, ids must be there once, and a tie
may stand only where the benchmark means one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from afarm import DataError, Instruction, JudgedPair, Pair, Row, named_file, read_labelled_pairs, read_placed_rows
from afarm_judge_bench.items import (
    FIRST,
    SECOND,
    TIE,
    BenchSet,
    Group,
    Item,
    Scoring,
    as_given,
    both_orders,
    decide,
    mean_of_orders,
    sum_of_orders,
)


@dataclass(frozen=True)
class Form:
    """A benchmark's file: its fields, its origin and its scoring.

    `read` gets a row and its place. `id` is the column of ids, which are there once; empty if the form has none.
    """

    name: str
    fields: tuple[str, ...]
    origin: str
    score: str
    scoring: Scoring | None
    read: Callable[[Row, str], Item | Group]
    id: str = ""


def _label(row: Row, field: str, labels: Mapping[Any, float], where: str, bench: str) -> float:
    """Return a row's label. Raises `DataError` for another, and says so of a tie that is not meant."""
    value = row[field]
    found = None if isinstance(value, bool | list | dict) else labels.get(value)
    if found is not None:
        return found
    known = ", ".join(map(repr, labels))
    if TIE not in labels.values() and str(value).lower() in ("tie", "a=b", "0", "draw", "both", "1.5"):
        raise DataError(
            f"{where}: field {field!r} is {value!r}, a tie, and {bench} means none: one of both outputs is right; "
            f"take the file from its source, or leave the row out"
        )
    raise DataError(f"{where}: field {field!r} is {value!r}; {bench} has {known}: is this another version of the file?")


def _text(row: Row, field: str, where: str) -> str:
    value = row[field]
    if isinstance(value, bool):  # a table made a boolean of a text
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"{where}: field {field!r} must be a text, not {value!r}")
    return value


def _pair(row: Row, where: str, prompt: str, first: str, second: str, context: str = "") -> Pair:
    task = Instruction(_text(row, prompt, where), _text(row, context, where) if context else "")
    return Pair(task, _text(row, first, where), _text(row, second, where))


def _read_judgebench(row: Row, where: str) -> Item:
    label = _label(row, "label", {"A>B": FIRST, "B>A": SECOND}, where, "JudgeBench")
    source = _text(row, "source", where)
    subset = "knowledge" if source.startswith("mmlu-pro") else JUDGEBENCH_SUBSETS.get(source)
    if subset is None:
        known = ", ".join(("mmlu-pro-…", *JUDGEBENCH_SUBSETS))
        raise DataError(f"{where}: field 'source' is {source!r}; JudgeBench has {known}")
    return Item(str(row["pair_id"]), _pair(row, where, "question", "response_A", "response_B"), label, where, subset)


def _read_llmbar(row: Row, where: str) -> Item:
    label = _label(row, "label", {1: FIRST, 2: SECOND}, where, "LLMBar")
    return Item("", _pair(row, where, "input", "output_1", "output_2"), label, where)


def _read_pandalm(row: Row, where: str) -> Item:
    fields = ("annotator1", "annotator2", "annotator3")
    people = tuple(_label(row, name, {1: FIRST, 2: SECOND, 0: TIE}, where, "PandaLM") for name in fields)
    pair = _pair(row, where, "instruction", "response1", "response2", "input")
    return Item(str(row["idx"]), pair, majority(people), where, people=people)


def _read_autoj(row: Row, where: str) -> Item:
    label = _label(row, "label", {0: FIRST, 1: SECOND, 2: TIE}, where, "Auto-J")
    return Item(
        "", _pair(row, where, "prompt", "response 1", "response 2"), label, where, _text(row, "scenario", where)
    )


def _read_rewardbench(row: Row, where: str) -> Group:
    right: Any = row["chosen"]
    wrong: Any = row["rejected"]
    if not all(isinstance(v, list) and v and all(isinstance(t, str) for t in v) for v in (right, wrong)):
        raise DataError(
            f"{where}: RewardBench 2 has lists of texts in 'chosen' and 'rejected'; of RewardBench 1, which has one "
            "text each, leave out the column 'num_correct', and it is read as pairs of your own"
        )
    correct, subset = row["num_correct"], _text(row, "subset", where)
    if correct != len(right):
        raise DataError(f"{where}: field 'num_correct' is {correct!r}, and 'chosen' has {len(right)} answers")
    if subset.lower() != TIES and len(right) != 1:
        raise DataError(
            f"{where}: {len(right)} answers are chosen, and only the subset Ties has several that are right"
        )
    name = str(row["id"])
    if subset.lower() == TIES and not (name.startswith(("ref:", "tied:")) and name.partition(":")[2].isdecimal()):
        raise DataError(f"{where}: field 'id' is {name!r}; of the subset Ties it is ref:NUMBER or tied:NUMBER")
    task = Instruction(_text(row, "prompt", where))
    texts = [*right, *wrong]
    return Group(name, tuple(Pair(task, texts[0], other) for other in texts[1:]), correct, subset, where)


def majority(people: Sequence[float]) -> float:
    """Return the label that most people gave; a tie if no label leads."""
    (most, count), *others = Counter(people).most_common()
    return TIE if others and others[0][1] == count else most


TIES = "ties"
JUDGEBENCH_SUBSETS = {"livebench-reasoning": "reasoning", "livebench-math": "mathematics", "livecodebench": "coding"}
PUBLISHED = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text("utf-8"))
"""Others' figures in percent, by judge, each with its set, the number of its rows, and perhaps a column's value."""
OWN = "own pairs"

FORMS = (
    Form(
        "JudgeBench",
        ("pair_id", "source", "question", "response_A", "response_B", "label"),
        "github.com/ScalerLab/JudgeBench, data/; or hf:ScalerLab/JudgeBench:gpt and :claude",
        "right over both orders together",
        sum_of_orders,
        _read_judgebench,
        "pair_id",
    ),
    Form(
        "PandaLM",
        ("idx", "instruction", "input", "response1", "response2", "annotator1", "annotator2", "annotator3"),
        "github.com/WeOpenML/PandaLM, data/testset-v1.json",
        "equal to the label of most people, in the file's order, unread counted as a tie",
        as_given,
        _read_pandalm,
        "idx",
    ),
    Form(
        "Auto-J",
        ("scenario", "prompt", "response 1", "response 2", "label"),
        "github.com/GAIR-NLP/auto-j, data/test/testdata_pairwise.jsonl",
        "equal to the label in both orders",
        both_orders,
        _read_autoj,
    ),
    Form(
        "RewardBench 2",
        ("id", "prompt", "chosen", "rejected", "num_correct", "subset"),
        "hf:allenai/reward-bench-2",
        "best of four, and ties",
        None,
        _read_rewardbench,
        "id",
    ),
    Form(
        "LLMBar",
        ("input", "output_1", "output_2", "label"),
        "github.com/princeton-nlp/LLMBar, Dataset/ (LLMBar's five sets, and people's labels of MT-Bench): "
        "name each, as natural=FILE",
        "mean over both orders",
        mean_of_orders,
        _read_llmbar,
    ),
)
"""What files are told by: the first form whose fields are all there. Others are pairs of one's own."""


def read_set(files: Sequence[str], scale: str | None = None) -> BenchSet:
    """Read the files, or data sets of the Hub, of one benchmark, each given as FILE or NAME=FILE.

    `scale` is how labels of one's own pairs are written, as `read_labelled_pairs` takes it. Raises `DataError` naming
    file and row if one is wrong, if ids are missing or there twice, and if the files are of several benchmarks.
    """
    named = [named_file(text) for text in files]
    if twice := [path for path, count in Counter(path for _, path in named).items() if count > 1]:
        raise DataError(f"{twice[0]} is named twice, and its rows would count twice: name each file once")
    read = [_read_file(path, name, scale, several=len(named) > 1) for name, path in named]
    names = {path: one.name for (_, path), one in zip(named, read, strict=True)}
    if len(set(names.values())) > 1:
        told = ", ".join(f"{path} is {name}" for path, name in names.items())
        raise DataError(f"one benchmark at a time, as each is scored in its own way: {told}")
    items, groups = tuple(i for one in read for i in one.items), tuple(g for one in read for g in one.groups)
    seen: dict[str, str] = {}
    rows: list[Item | Group] = [*items, *groups]
    for row in rows:
        if row.id and row.id in seen:
            raise DataError(
                f"{row.place}: the id {row.id!r} is in {seen[row.id]} already, and {read[0].name} has each once: "
                "leave one of both out"
            )
        seen[row.id] = row.place
    return replace(
        read[0],
        items=_numbered(items),
        groups=groups,
        published=read[0].published if len(read) == 1 else None,
        notes=tuple(dict.fromkeys([*(note for one in read for note in one.notes), *_remarks(items)])),
    )


def _remarks(items: Sequence[Item]) -> list[str]:
    """Say what the benchmarks' own files have too, and what may be a slip in another one."""
    repeats = len(items) - len({item.pair.id for item in items})
    equal = [item.place for item in items if item.pair.identical and item.label != TIE]
    return [
        *([f"pairs that are there more than once, and count each time: {repeats}"] if repeats else []),
        *([f"equal outputs of which one is labelled as better, a draw for all judges: {equal[0]}"] if equal else []),
    ]


def _read_file(path: str, name: str, scale: str | None, several: bool) -> BenchSet:
    placed = list(read_placed_rows(path))
    if not placed:
        raise DataError(f"{path}: has no rows")
    first = placed[0][1]
    form = next((form for form in FORMS if first.keys() >= {*form.fields}), None)
    if form is None or (form.name == "LLMBar" and first.keys() & {"preference", "annotator", "instruction"}):
        return _read_own(path, first, scale)
    read: list[Item | Group] = []
    for where, row in placed:
        if lacking := [field for field in form.fields if field not in row]:
            raise DataError(
                f"{where}: field {lacking[0]!r} is missing, which {form.name} has; is this another version of the "
                f"file? Its source: {form.origin}"
            )
        if form.id and (row[form.id] is None or row[form.id] == ""):
            raise DataError(f"{where}: field {form.id!r} is empty, by which {form.name} tells its rows")
        read.append(form.read(row, where))
    items = [one for one in read if isinstance(one, Item)]
    if form.name == "LLMBar":
        items = [replace(one, subset=name) for one in items]
    elif several and form.name != "Auto-J":
        items = [replace(one, subset=f"{name}: {one.subset}" if one.subset else name) for one in items]
    groups = tuple(one for one in read if isinstance(one, Group))
    whole = (one for one in PUBLISHED if (one["set"], one["rows"]) == (form.name, len(placed)))
    of_column = (one for one in whole if all(row.get(k) == v for k, v in one["where"].items() for _, row in placed))
    told: dict[str, Any] = next(of_column, {})  # measured on just these rows
    figures, source = told.get("figures"), told.get("source", "")
    return BenchSet(form.name, form.score, form.scoring, tuple(items), groups, figures, source)


def _numbered(items: Sequence[Item]) -> tuple[Item, ...]:
    """Number a pair's repeats, so that each has its own id, and name those that have none by it."""
    seen: Counter[str] = Counter()
    numbered = []
    for item in items:
        pair = replace(item.pair, occurrence=seen[item.pair.id])
        seen[item.pair.id] += 1
        numbered.append(replace(item, id=item.id or pair.id, pair=pair))
    return tuple(numbered)


def _read_own(path: str, first: Row, scale: str | None) -> BenchSet:
    """Read pairs with labels in any form that afarm reads; several people's labels of a pair are one item."""
    by_pair: dict[str, list[tuple[JudgedPair, str, str]]] = {}
    near = max(FORMS, key=lambda form: len({*form.fields} & first.keys()) / len(form.fields))
    lacks = [field for field in near.fields if field not in first]
    hint = f"near to {near.name}, but lacks {', '.join(map(repr, lacks))}"
    try:
        for where, row, judged in read_labelled_pairs(path, scale, as_text=True):
            subset = row.get("subset")
            for one in judged:
                if one.win is not None:
                    named = subset if isinstance(subset, str) else ""
                    by_pair.setdefault(one.pair.id, []).append((one, where, named))
    except DataError as error:
        if 2 * len(lacks) > len(near.fields):
            raise
        raise DataError(
            f"{error}\nIt is {hint}: is it another version of the file? Its source: {near.origin}"
        ) from error
    items = []
    for rows in by_pair.values():
        shown, where, subset = rows[0]
        wins = tuple(_win(one, shown.pair) for one, _, _ in rows)
        people = wins if len(wins) > 1 else ()
        items.append(Item("", shown.pair, majority(wins), where, subset, people))
    if not items:
        raise DataError(f"{path}: no row has a label to measure judges by")
    is_strange = len(lacks) == 1 and len(near.fields) > 4  # three of LLMBar's four fields are anybody's
    notes = (f"{path}: {hint}; read as pairs of your own",) if is_strange else ()
    return BenchSet(OWN, "mean over both orders", mean_of_orders, tuple(items), notes=notes)


def _win(one: JudgedPair, pair: Pair) -> float:
    """The label of a judged pair as of `pair`, which may show the outputs the other way round."""
    plain = decide(one.win) or FIRST
    return plain if one.pair.output_1 == pair.output_1 else 1 - plain
