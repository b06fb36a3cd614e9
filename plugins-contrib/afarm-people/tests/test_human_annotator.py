"""`human:FILE`: whose labels a pair gets, and what is said where it has none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from afarm_people.annotator import HumanAnnotator
from afarm_people.settings import HumanConfig
from label_client import make_project, make_rows, write_pairs

from afarm import BuildContext, ConfigError, DataError, Instruction, Pair, RewardModel, read_rows, write_rows
from afarm.testing import annotate_context, check_annotator

TASK = Instruction("say it")
PAIR = Pair(TASK, "a", "b")


def no_reward_model(name: str) -> RewardModel:
    raise AssertionError(name)


def annotator(file: Path, **settings: Any) -> HumanAnnotator:
    return HumanAnnotator(HumanConfig(**settings), str(file), BuildContext(no_reward_model))


def labels(path: Path, *given: Mapping[str, Any]) -> Path:
    rows = [{**TASK.to_row(), "output_1": "a", "output_2": "b", "source": "human", **row} for row in given]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def people(*preferences: float, **more: Any) -> list[dict[str, Any]]:
    return [{"preference": p, "annotator": f"person-{n}", **more} for n, p in enumerate(preferences)]


@pytest.mark.parametrize(
    ("given", "settings", "win"),
    [
        (people(2), {}, 1.0),
        (people(1, 2, 2), {}, 1.0),
        (people(1, 2), {}, None),
        (people(1.5, 1.5, 2), {}, 1.0),
        (people(1, 2, 2, 2), {"vote": "mean"}, 0.75),
        (people(2, strength=0.5), {}, 1.0),
        (people(1, strength=0.5), {"slight": "soft"}, 0.25),
        (people(2, 2, strength=0.5) + people(1), {"slight": "drop"}, 0.0),
        (people(1, 1, 1), {"vote": "one"}, 0.0),
        ([{"output_1": "b", "output_2": "a", "preference": 1}], {}, 1.0),
        ([{"preference": "B"}], {"scale": "A,B,tie"}, 1.0),
    ],
)
def test_a_pair_gets_the_label_that_people_gave_it(
    given: list[dict[str, Any]], settings: dict[str, Any], win: float | None, tmp_path: Path
) -> None:
    human = annotator(labels(tmp_path / "labels.jsonl", *given), **settings)
    [label, turned] = human.annotate([PAIR, PAIR.swapped()], annotate_context())
    assert (label.p2, label.outcome, label.source) == (win, "draw" if win is None else "decided", "human")
    assert turned.p2 == (None if win is None else 1 - win)


def test_a_draw_has_no_strength_and_what_is_decided_has(tmp_path: Path) -> None:
    for given, strength in ((people(1, 2, strength=1.0), None), (people(2, 2, strength=0.5), 0.5)):
        human = annotator(labels(tmp_path / "labels.jsonl", *given))
        assert human.annotate([PAIR], annotate_context())[0].strength == strength


def test_pairs_that_come_in_parts_are_collected_in_one_file(tmp_path: Path) -> None:
    """A run's pairs come in parts or with each step: the next ones join the first, labelled or not."""
    file = tmp_path / "labels.v1.jsonl"
    parts = [[Pair(Instruction(f"{part} {n}"), "a", "b") for n in range(2)] for part in range(3)]
    for part in parts:
        with pytest.raises(DataError, match=r"afarm label \S+labels\.v1\.pairs\.jsonl"):
            annotator(file).annotate(part, annotate_context())
        rows = list(read_rows(tmp_path / "labels.v1.pairs.jsonl"))
        assert [row["instruction"] for row in rows] == [
            f"{n} {m}" for n in range(parts.index(part) + 1) for m in range(2)
        ]
        write_rows(
            file, [{**row, "preference": 2} for row in rows[:-1]]
        )  # people skip the last, which was theirs to label
        labels = annotator(file).annotate(part, annotate_context())
        assert [one.outcome for one in labels] == ["decided", "unparsed"]
    mixed = [parts[0][0], Pair(Instruction("new"), "a", "b")]
    assert annotator(file).count_waiting(mixed) == 1
    with pytest.raises(DataError, match="of 5 pairs, and of 1 of the 2 that need one"):
        annotator(file).annotate(mixed, annotate_context())
    assert len(list(read_rows(tmp_path / "labels.v1.pairs.jsonl"))) == 7


def test_one_persons_label_is_drawn_by_seed(tmp_path: Path) -> None:
    human = annotator(labels(tmp_path / "labels.jsonl", *people(1, 2)), vote="one")
    drawn = [human.annotate([PAIR], annotate_context(seed=seed))[0].p2 for seed in range(20)]
    assert set(drawn) == {0.0, 1.0}
    assert drawn == [human.annotate([PAIR], annotate_context(seed=seed))[0].p2 for seed in range(20)]


def test_pairs_without_a_label_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    human = annotator(labels(tmp_path / "labels.jsonl", *people(2)))
    other = Pair(Instruction("another"), "a", "b")
    assert [one.outcome for one in human.annotate([PAIR, other], annotate_context())] == ["decided", "unparsed"]
    assert "has no label for 1 of 2 pairs: they are left out" in caplog.text


def test_without_any_label_it_stops_writes_the_pairs_and_names_the_command(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    pairs = tmp_path / "labels.pairs.jsonl"
    for write, what in (
        (lambda: None, "is not there yet"),
        (lambda: labels(file, {"preference": None}), "holds no labels"),
        (
            lambda: labels(file, {**people(2)[0], "instruction": "other"}),
            "has labels of 1 pairs, and of none of the 1 ",
        ),
    ):
        write()
        with pytest.raises(DataError) as told:
            annotator(file).annotate([PAIR], annotate_context())
        assert f"human:{file} {what}" in str(told.value)
        assert f"afarm label {pairs}, then afarm label {pairs} --export {file}" in str(told.value)
        assert json.loads(pairs.read_text()) == {
            "instruction": "say it", "input": "", "dataset": "", "output_1": "a", "output_2": "b",
            "generator_1": "", "generator_2": "",
        }  # fmt: skip


def test_a_wrong_file_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="human needs the file"):
        HumanAnnotator(HumanConfig(), "", BuildContext(no_reward_model))
    with pytest.raises(DataError, match="row 0"):
        annotator(labels(tmp_path / "labels.jsonl", {"preference": 7}))


def test_its_identity_is_the_labels(tmp_path: Path) -> None:
    first = annotator(labels(tmp_path / "a.jsonl", *people(1, 2))).identity
    assert annotator(labels(tmp_path / "b.jsonl", *people(1, 2, reason="x"))).identity == first
    assert annotator(labels(tmp_path / "c.jsonl", *people(2, 2))).identity != first
    assert annotator(labels(tmp_path / "d.jsonl", *people(1, 2, strength=0.5))).identity != first


def test_it_keeps_the_promises_of_an_annotator_once_its_pairs_are_labelled(tmp_path: Path) -> None:
    file, rows = tmp_path / "labels.jsonl", list[dict[str, Any]]()
    for _ in range(5):
        try:
            check_annotator(annotator(file))
        except DataError:  # it wrote the pairs that have no label, hostile texts among them
            rows += [{**row, "preference": 1} for row in read_rows(tmp_path / "labels.pairs.jsonl")]
            write_rows(file, rows)
        else:
            break
    else:
        raise AssertionError("it asks for ever more labels")
    assert len(rows) > 30


def test_what_the_page_exports_is_what_it_reads(tmp_path: Path) -> None:
    project = make_project(tmp_path, count=5)
    person = project.enter("ann")
    for choice in (-2, -1, 0, 1, 2):
        number = project.next_number(person)
        assert number
        project.answer(person, number, choice, "", 0, None)
    write_rows(tmp_path / "labels.jsonl", project.export())
    wins = {one.pair.id: one.win for one in project.store.labels()}
    human = annotator(tmp_path / "labels.jsonl")
    pairs = [Pair(Instruction(row["instruction"]), row["output_1"], row["output_2"]) for row in make_rows(5)]
    assert [one.win for one in human.annotate(pairs, annotate_context())] == [wins[pair.id] for pair in pairs]
    assert sorted(wins.values()) != [1.0] * 5
    assert write_pairs(tmp_path / "again.jsonl", list(project.export())).exists()
