"""Stored annotations read as systems: whose they are, which way round, and what contradicts what."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import DataError
from afarm.evaluation.annotation_files import AnnotatedSystem, annotated_systems
from afarm.evaluation.labels import by_pair, read_labels
from afarm.evaluation.matching import MatchPolicy
from afarm.storage.rows import read_preferences


def annotation(
    asked: str, system: str = "sys", reference: str = "ref", preference: Any = 2, **other: Any
) -> dict[str, Any]:
    return {
        "instruction": asked,
        "output_1": f"{reference} on {asked}",
        "output_2": f"{system} on {asked}",
        "generator_1": reference,
        "generator_2": system,
        "annotator": "judge",
        "preference": preference,
        **other,
    }


def turned(row: dict[str, Any]) -> dict[str, Any]:
    swapped = {
        "output_1": "output_2",
        "output_2": "output_1",
        "generator_1": "generator_2",
        "generator_2": "generator_1",
    }
    return {**{swapped.get(name, name): value for name, value in row.items()}, "preference": 3 - row["preference"]}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows))
    return path


def read(tmp_path: Path, *files: list[dict[str, Any]], **given: Any) -> list[AnnotatedSystem]:
    paths = [written(tmp_path / f"{name}.json", rows) for name, rows in zip("abcdef", files, strict=False)]
    directory = tmp_path / f"kept {len(list(tmp_path.iterdir()))}"
    directory.mkdir()
    return annotated_systems(paths, directory, **given)


def test_files_that_write_one_instruction_otherwise_are_about_the_same_one(tmp_path: Path) -> None:
    one = [annotation("café\nq", "a"), annotation("do", "a", input="it")]
    two = [annotation("cafe\u0301\r\nq ", "b"), annotation("do\n\nit", "b")]
    for systems in (read(tmp_path, one, two), read(tmp_path, one + two)):
        assert [(system.coverage.compared, system.coverage.missing) for system in systems] == [(2, 0), (2, 0)]
        assert systems[0].protocol.instructions == systems[1].protocol.instructions
        ids = [{row.pair.instruction.id for row in read_preferences(system.rows)} for system in systems]
        assert ids[0] == ids[1]
    rows = [{**row, "output_1": f"ref on {n}", "output_2": f"a on {n}"} for n, row in enumerate(one)]
    again = [{**row, "output_1": f"ref on {n}", "output_2": f"a on {n}"} for n, row in enumerate(two)]
    labels = read_labels([written(tmp_path / "x.json", rows), written(tmp_path / "y.json", again)])
    assert len(by_pair(labels["judge"])) == 2, "labelled twice each"


def test_what_its_data_set_is_called_makes_no_other_instruction(tmp_path: Path) -> None:
    one = [annotation("q", dataset="a"), annotation("q", dataset="b")]
    (system,) = read(tmp_path, one)
    assert (len(labels(system)), system.coverage.repeated) == (1, 1)
    with pytest.raises(DataError, match="do not agree"):
        read(tmp_path, [one[0], {**one[1], "preference": 1}])


def labels(system: AnnotatedSystem) -> list[tuple[str, float | None]]:
    for row in read_preferences(system.rows):
        assert (row.pair.generator_1, row.pair.generator_2) == (system.reference, system.system)
        assert row.pair.output_2.startswith(system.system)
    return [(row.pair.instruction.instruction, row.p2) for row in read_preferences(system.rows)]


ASKED = ("i", "j", "k")


def test_each_file_is_a_system_against_the_reference_they_share(tmp_path: Path) -> None:
    one = [annotation(asked, "one", preference=p) for asked, p in zip(ASKED, (1, 2, 1.25), strict=True)]
    two = [annotation(asked, "two", preference=p) for asked, p in zip(ASKED, (0, 1.5, None), strict=True)]
    first, second = read(tmp_path, one, two)
    assert (first.system, first.reference, first.annotator) == ("one", "ref", "judge")
    assert labels(first) == [("i", 0.0), ("j", 1.0), ("k", 0.25)]
    assert (second.system, labels(second)) == ("two", [("i", None), ("j", None), ("k", None)])
    assert (first.coverage.reference, first.coverage.compared, first.swapped, first.changed) == (3, 3, 0, 0)


def test_a_file_of_several_systems_is_split_where_the_reference_is_one(tmp_path: Path) -> None:
    mixed = [annotation(asked, system, preference=p) for asked in ASKED for system, p in (("one", 1), ("two", 2))]
    assert [(s.system, labels(s)) for s in read(tmp_path, mixed)] == [
        ("one", [("i", 0.0), ("j", 0.0), ("k", 0.0)]),
        ("two", [("i", 1.0), ("j", 1.0), ("k", 1.0)]),
    ]


def test_several_references_of_one_file_part_its_systems_unless_they_are_systems_too(tmp_path: Path) -> None:
    rows = [annotation("i", "one", "ref"), annotation("j", "one", "ref"), annotation("i", "two", "other")]
    assert [(s.system, s.reference, len(labels(s))) for s in read(tmp_path, rows)] == [
        ("one", "ref", 2),
        ("two", "other", 1),
    ]
    with pytest.raises(DataError, match="row 2 compares 'two' with 'other', and neither is the reference 'ref'"):
        read(tmp_path, rows, reference="ref")
    circle = [annotation("i", "b", "a"), annotation("i", "c", "b"), annotation("i", "a", "c")]
    with pytest.raises(DataError) as caught:
        read(tmp_path, circle)
    assert "a.json: row 0 compares 'b' with 'a', but row 2 compares 'a' with 'c': 'a' stands on either side" in str(
        caught.value
    )
    assert "--reference NAME" in str(caught.value)


def test_rows_with_the_reference_second_are_turned_and_told(tmp_path: Path) -> None:
    rows = [annotation("i", preference=1), turned(annotation("j", preference=1.25)), annotation("k", preference=2)]
    (system,) = read(tmp_path, rows)
    assert sorted(labels(system)) == [("i", 0.0), ("j", 0.25), ("k", 1.0)]
    assert system.swapped == 1
    assert system.answers == read(tmp_path, [annotation(asked) for asked in ASKED])[0].answers


def test_no_file_turns_another_round(tmp_path: Path) -> None:
    # A judge's file on gpt4 against davinci, and another judge's in which gpt4 is the reference.
    won = [annotation(asked, "gpt4", "davinci", preference=p) for asked, p in zip(ASKED, (2, 2, 1.75), strict=True)]
    other = [annotation(asked, "constant", "gpt4", annotator="weighted", preference=1) for asked in ASKED]
    for files in ((won, other), (other, won)):
        found = {s.system: s for s in read(tmp_path, *files)}
        assert (found["gpt4"].reference, found["gpt4"].annotator, found["gpt4"].swapped) == ("davinci", "judge", 0)
        assert labels(found["gpt4"]) == [("i", 1.0), ("j", 1.0), ("k", 0.75)]
        assert (found["constant"].reference, found["constant"].doubt, found["gpt4"].doubt) == ("gpt4", "", "")


def test_a_reference_that_one_file_has_as_its_system_is_doubted_and_not_turned(tmp_path: Path) -> None:
    one, two, three = (
        [annotation(asked, name, preference=1.25) for asked in ASKED] for name in ("one", "two", "three")
    )
    files = one, [turned(row) for row in two], three
    found = read(tmp_path, *files)
    assert [(s.system, s.reference) for s in found] == [("one", "ref"), ("ref", "two"), ("three", "ref")]
    assert labels(found[1]) == [("i", 0.75), ("j", 0.75), ("k", 0.75)]
    assert [bool(system.doubt) for system in found] == [False, True, False]
    assert "b.json: 'ref' stands as the system against 'two' here" in found[1].doubt
    assert found[1].doubt.endswith("--reference ref")
    settled = read(tmp_path, *files, reference="ref")
    assert [(s.system, s.reference, s.swapped, s.doubt) for s in settled][1] == ("two", "ref", 3, "")
    assert labels(settled[1]) == [("i", 0.25), ("j", 0.25), ("k", 0.25)]
    assert len({system.protocol.id for system in settled}) == 1


def test_a_system_that_is_second_throughout_is_no_reference_though_it_is_in_every_row(tmp_path: Path) -> None:
    rows = [annotation("i", "sys", "one"), annotation("j", "sys", "two")]
    assert [(s.system, s.reference, s.swapped) for s in read(tmp_path, rows)] == [("sys", "one", 0), ("sys", "two", 0)]


def test_a_system_against_itself_is_even_and_stops_nobody(tmp_path: Path) -> None:
    drawn = [annotation(asked, "ref", "ref", preference=p) for asked, p in zip(ASKED, (0, 1.5, 1.5), strict=True)]
    found = read(tmp_path, [annotation(asked) for asked in ASKED], drawn)
    assert [(s.system, s.reference, s.swapped) for s in found] == [("sys", "ref", 0), ("ref", "ref", 0)]
    assert labels(found[1]) == [("i", None), ("j", None), ("k", None)]


def test_where_it_cannot_be_told_which_is_the_reference_it_must_be_said(tmp_path: Path) -> None:
    half = [annotation("i"), turned(annotation("j"))]
    with pytest.raises(DataError, match="and as often: say which is the reference"):
        read(tmp_path, half)
    assert [s.system for s in read(tmp_path, half, reference="ref")] == ["sys"]
    assert [(s.system, labels(s)[0][1]) for s in read(tmp_path, half, reference="sys")] == [("ref", 0.0)]
    with pytest.raises(DataError, match=r"disagree on which is the reference: say it with .* --reference ref"):
        read(tmp_path, [annotation("i")], [turned(annotation("i"))])


def test_different_judges_and_references_are_systems_apart(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        [annotation("i")],
        [annotation("i", annotator="other judge", preference=1)],
        [annotation("i", reference="other ref")],
    )
    assert [(s.system, s.reference, s.annotator) for s in found] == [
        ("sys", "ref", "judge"),
        ("sys", "ref", "other judge"),
        ("sys", "other ref", "judge"),
    ]


def test_several_annotators_in_one_file_are_pooled(tmp_path: Path) -> None:
    rows = [annotation(asked, annotator=who) for asked in ASKED for who in ("x", "y")]
    (system,) = read(tmp_path, rows)
    assert (system.annotator, len(labels(system)), system.coverage.compared) == ("x + y", 6, 3)
    many, others = ([annotation("i", annotator=f"{name} {n}") for n in range(4)] for name in ("x", "y"))
    found = read(tmp_path, many, others)
    assert [s.annotator for s in found] == ["4 annotators", "4 annotators"]
    assert len({s.protocol.id for s in found}) == 2, "of one number, and not the same"


def test_the_same_row_twice_is_one_and_another_label_is_an_error_that_names_both(tmp_path: Path) -> None:
    rows = [annotation("i"), annotation("j"), annotation("i")]
    (system,) = read(tmp_path, rows)
    assert (labels(system), system.coverage.repeated) == ([("i", 1.0), ("j", 1.0)], 1)
    assert system.repeats == (f"{tmp_path / 'a.json'}: 1 repeated row dropped",)
    (facing,) = read(tmp_path, [*rows[:2], turned(annotation("i"))])
    assert facing.repeats == system.repeats, "of the same file, the other way round"
    (across,) = read(tmp_path, rows[:2], rows[:1])
    assert (labels(across), across.coverage.repeated) == ([("i", 1.0), ("j", 1.0)], 1)
    # A file of one system that holds another's rows, as published: it is named, and does not vanish.
    assert across.repeats == (
        f"{tmp_path / 'b.json'}: all its rows (1) are of 'sys' and stand in an earlier file; dropped",
    )
    other = [*rows, annotation("j", preference=1)]
    with pytest.raises(DataError, match=r"a\.json: row 3 and row 1 judge 'sys' on the same instruction \('j'\) and do"):
        read(tmp_path, other)
    with pytest.raises(DataError, match=r"row 3 and row 0 judge 'sys' on the same instruction \('i'\) about other"):
        read(tmp_path, [*rows, annotation("i", output_2="sys says more")])
    assert labels(read(tmp_path, other, match_policy=MatchPolicy("skip", "first"))[0]) == [("i", 1.0), ("j", 1.0)]
    with pytest.raises(DataError, match=r"b\.json: row 0 and .*a\.json: row 1 judge"):
        read(tmp_path, rows, other[3:])
    independent = [annotation("i"), annotation("i", preference=1, draw=1)]
    assert labels(read(tmp_path, independent)[0]) == [("i", 1.0), ("i", 0.0)], "another draw is another judgement"


def test_systems_on_different_instructions_are_told_or_refused(tmp_path: Path) -> None:
    one, two = [annotation(asked, "one") for asked in "ijklm"], [annotation(asked, "two") for asked in "ij"]
    found = read(tmp_path, one, two)
    assert (found[1].coverage.reference, found[1].coverage.compared, found[1].coverage.missing) == (5, 2, 3)
    assert found[1].coverage.partial
    assert found[0].answers.keys() == found[1].answers.keys(), "what is comparable is the whole set"
    with pytest.raises(DataError, match=r"'two' \(.*b\.json\) was judged on 2 of the 5 instructions"):
        read(tmp_path, one, two, match_policy=MatchPolicy("error"))
    with pytest.raises(DataError, match="different sets of instructions, with none in common"):
        read(tmp_path, one, [annotation("x", "two")])


def test_a_misspelt_system_is_named_with_its_row_and_field(tmp_path: Path) -> None:
    rows = [annotation("i"), annotation("j"), turned(annotation("k", "sis"))]
    with pytest.raises(DataError) as caught:
        read(tmp_path, rows)
    said = str(caught.value)
    assert f"'sys', first in {tmp_path / 'a.json'}: row 0 ('generator_2')" in said
    assert f"'sis', first in {tmp_path / 'a.json'}: row 2 ('generator_1')" in said
    assert "correct the name" in said


def test_a_reference_that_answered_otherwise_is_told(tmp_path: Path) -> None:
    found = read(tmp_path, [annotation("i", "one")], [annotation("i", "two", output_1="another answer")])
    assert [system.changed for system in found] == [0, 1]
    assert found[0].protocol.id != found[1].protocol.id


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (annotation("j", preference=3), "row 1: field 'preference' is 3"),
        (annotation("j", preference=0.5), "row 1: field 'preference' is 0.5"),
        (annotation("j", preference=float("inf")), "row 1: field 'preference' is inf"),
        (annotation("j", preference="two"), "row 1: field 'preference' is 'two'"),
        ({**annotation("j"), "output_2": None}, "row 1: field 'output_2' is null"),
        (annotation("j", "ref"), "row 1: 'ref' is compared with itself"),
        (annotation("j", "ref", output_2="else", preference=1.5), "row 1: 'ref' is compared with itself"),
        (annotation("j", ""), "row 1: field 'generator_2' is missing here or in row 0"),
    ],
)
def test_a_row_that_is_wrong_is_named_with_its_file_and_field(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, [annotation("i"), row])
    assert f"a.json: {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "i", "chosen": "a", "rejected": "b"}, "TRL's form: afarm fit-reward --preferences FILE"),
        ({"instruction": "i", "output": "a"}, "one system's outputs; have them judged: afarm evaluate FILE --ref"),
        ({"instruction": "i", "input": ""}, "instructions without outputs"),
        ({"name": "a", "win_rate": 3.0}, "a leaderboard: afarm leaderboard FILE"),
        ({"instruction": "i", "output_1": "a", "output_2": "b"}, "pairs without labels"),
        ({"instruction": "i", "response1": "a", "response2": "b"}, "pairs without labels"),
        (
            {"instruction": "i", "input": "", "response1": "a", "response2": "b", "annotator1": 1, "annotator2": 2},
            "preferences to train on, labelled by people: afarm fit-reward --preferences FILE",
        ),
        (
            {"model_a": "x", "model_b": "y", "winner": "model_a", "conversation_a": [], "conversation_b": []},
            "votes of Chatbot Arena (LMSYS), preferences to train on: afarm fit-reward --preferences FILE",
        ),
        (
            {"model_a": "x", "model_b": "y", "prompt": "p", "response_a": "a", "response_b": "b", "winner_model_a": 1},
            "votes of Chatbot Arena (LMSYS)",
        ),
        (
            {"instruction": "i", "input": "", "output_1": "a", "output_2": "b", "preference": 1},
            "as AlpacaFarm's: afarm fit-reward --preferences FILE. If output_1 is a reference's",
        ),
        (
            annotation("i", "sft", "sft", output_1="a", output_2="b", preference=1),
            "Two samples of one model are preferences to train on: afarm fit-reward --preferences FILE",
        ),
        ({"text": "a"}, "its fields are 'text'"),
    ],
)
def test_what_is_no_annotation_is_named_with_the_command_for_it(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, [row])
    assert said in str(caught.value).replace(str(tmp_path / "a.json"), "FILE")


def test_a_directory_is_named_for_what_it_holds(tmp_path: Path) -> None:
    def said(directory: Path) -> str:
        with pytest.raises(DataError) as caught:
            annotated_systems([directory], tmp_path)
        return str(caught.value)

    for name in ("published/model/weighted", "runs", "annotator", "empty"):
        (tmp_path / name).mkdir(parents=True)
    file = written(tmp_path / "published/model/weighted/annotations.json", [])
    written(tmp_path / "published/model/model_outputs.json", [])
    (tmp_path / "annotator" / "configs.yaml").write_text("{}")
    assert f"is a directory: name a file in it, such as {file}" in said(tmp_path / "published" / "model")
    assert f"a directory of runs: afarm leaderboard {tmp_path}" in said(tmp_path)
    assert f"--annotator alpaca_eval:{tmp_path / 'annotator'}" in said(tmp_path / "annotator")
    assert "a directory with no run and no file of rows" in said(tmp_path / "empty")


def test_nan_is_no_answer_and_nothing_is_no_system(tmp_path: Path) -> None:
    (system,) = read(tmp_path, [annotation("i", preference=float("nan")), annotation("j")])
    assert labels(system) == [("i", None), ("j", 1.0)]
    with pytest.raises(DataError, match=r"a\.json: holds no annotations"):
        read(tmp_path, [])


def test_files_that_name_no_generators_are_called_by_their_own_name(tmp_path: Path) -> None:
    nameless = {k: v for k, v in annotation("i").items() if not k.startswith("generator")}
    written(tmp_path / "mine.json", [nameless])
    (tmp_path / "kept").mkdir()
    (system,) = annotated_systems([tmp_path / "mine.json"], tmp_path / "kept")
    assert (system.system, system.reference) == ("mine", "reference")
    written(tmp_path / "mine.json", [{k: v for k, v in nameless.items() if k != "annotator"}])
    (system,) = annotated_systems([tmp_path / "mine.json"], tmp_path / "kept", reference="theirs")
    assert (system.system, system.reference) == ("mine", "theirs")


PEAK = """
import sys
from pathlib import Path
from afarm.evaluation.annotation_files import annotated_systems
annotated_systems(sys.argv[1:2], Path(sys.argv[2]))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""
"""The most memory held at once, in KiB. A child's `ru_maxrss` would begin at its parent's."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process here")
def test_memory_does_not_hold_the_rows(tmp_path: Path) -> None:
    """A row has 4,000 characters: what is read is 40 MB, of which memory may hold a few."""
    peaks = []
    for name, count in (("few", 100), ("many", 10_000)):
        with (tmp_path / f"{name}.json").open("w") as handle:
            rows = (annotation(f"i{n % 500}", f"s{n // 500}", output_2=f"{n:04000d}") for n in range(count))
            handle.writelines(f"{',' if n else '['}{json.dumps(row)}\n" for n, row in enumerate(rows))
            handle.write("]")
        (tmp_path / name).mkdir()
        said = subprocess.run(
            [sys.executable, "-c", PEAK, str(tmp_path / f"{name}.json"), str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        peaks.append(int(said) / 1024)
    assert peaks[1] - peaks[0] < 25, f"MiB at most, for 100 rows and for 10,000: {peaks}"
