"""Files of outputs and of annotations on the command line: several systems, rows that do not fit, when to stop."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from light_plugin import CountingJudge
from places import SHARED_DATA
from said import Afarm, Said

LIGHT = ["--recipe", "light.yaml"]
JUDGE = [*LIGHT, "--annotator", "chatgpt_1"]
DATA = SHARED_DATA / "alpaca_eval"


def write_outputs(path: Path, words: Sequence[int], generator: str, first: int = 0) -> str:
    """Each output has so many words; the judge prefers more of them."""
    rows = [
        {"instruction": f"i{n}", "output": " ".join(["word"] * count), "generator": generator}
        for n, count in enumerate(words, first)
    ]
    path.write_text(json.dumps(rows))
    return str(path)


def failed(said: Said, *parts: str) -> None:
    assert said.code == 1, said.err
    assert said.out == ""
    for part in parts:
        assert part in said.err
    assert "Traceback" not in said.err


# ------------------------------------------------------------------------------------------------- several systems


def test_several_systems_are_each_compared_and_then_ranked(afarm: Afarm, tmp_path: Path) -> None:
    good = write_outputs(tmp_path / "good.json", [3] * 9 + [1], "good")
    poor = write_outputs(tmp_path / "poor.json", [3] * 2 + [1] * 8, "poor")
    reference = write_outputs(tmp_path / "ref.json", [2] * 10, "ref")
    said = afarm("evaluate", poor, good, "--reference", reference, *JUDGE, "--json")
    assert said.code == 0, said.err
    assert [(s["system"], s["metrics"]["win_rate"]) for s in said.json["systems"]] == [("poor", 20.0), ("good", 90.0)]
    assert [s["spend"]["this_time"]["calls"] for s in said.json["systems"]] == [10, 7], "each on its own account"
    (board,) = said.json["boards"]
    assert [(e["system"], e["rank"], e["difference"]) for e in board["entries"]] == [
        ("good", 1, None),
        ("poor", 2, -70.0),
    ]
    assert all(Path(s["report"]).is_file() for s in said.json["systems"])
    again = afarm("evaluate", poor, good, "--reference", reference, *JUDGE)
    assert CountingJudge.asked == 17, "nothing is asked twice, nor what both say to an instruction"
    assert "1st" in again.out
    assert "Left out of light.yaml, for they need more than these files: reward" in again.err
    assert "Compared: 10 of the reference's 10 instructions" in again.out


def test_evaluators_are_chosen_by_name_those_over_all_systems_too(afarm: Afarm, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    files = [write_outputs(tmp_path / f"{n}.json", [n, 4 - n, n, 2], f"s{n}") for n in (1, 3)]
    reference = write_outputs(tmp_path / "ref.json", [2] * 4, "ref")
    said = afarm("evaluate", *files, "--reference", reference, *JUDGE, "--evaluator", "elo", "--json")
    assert said.code == 0, said.err
    assert all(set(entry["metrics"]) == {"elo"} for entry in said.json["boards"][0]["entries"])
    assert [r["evaluator"] for r in said.json["systems"][0]["results"]] == ["win_rate"]
    failed(afarm("evaluate", files[0], "--reference", reference, *JUDGE, "--evaluator", "win_rat"), "'win_rate'")
    wrong = afarm("evaluate", files[0], "--reference", reference, *JUDGE, "--evaluator", "reward")
    failed(wrong, "--evaluator reward needs the reward model of a run", "--method NAME", "--annotator reward:DIR")


def test_the_same_system_twice_is_refused(afarm: Afarm, tmp_path: Path) -> None:
    one = write_outputs(tmp_path / "one.json", [1, 2], "one")
    copy = write_outputs(tmp_path / "copy.json", [1, 2], "another name")
    reference = write_outputs(tmp_path / "ref.json", [2, 2], "ref")
    failed(afarm("evaluate", one, one, "--reference", reference, *JUDGE), f"{one} is named twice")
    failed(afarm("evaluate", one, copy, "--reference", reference, *JUDGE), "hold the same outputs")
    assert CountingJudge.asked == 0


def test_two_systems_in_one_file_are_refused_with_a_row_of_each(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", [3, 3, 1], "mine")
    reference = write_outputs(tmp_path / "ref.json", [2, 2, 2], "ref")
    mixed = json.loads(Path(mine).read_text())
    mixed[2]["generator"] = "other"
    (tmp_path / "mixed.json").write_text(json.dumps(mixed))
    said = "mixed.json: row 0 is of 'mine' and row 2 of 'other' (field 'generator')"
    failed(afarm("evaluate", "mixed.json", "--reference", reference, *JUDGE), said)
    failed(afarm("evaluate", mine, "--reference", "mixed.json", *JUDGE), said)
    del mixed[2]["generator"]
    (tmp_path / "mixed.json").write_text(json.dumps(mixed))
    assert afarm("evaluate", "mixed.json", "--reference", reference, *JUDGE).code == 0
    assert CountingJudge.asked == 3


def test_what_an_evaluator_lacks_is_told_before_a_judge_is_asked(afarm: Afarm, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    mine, other = (write_outputs(tmp_path / f"{n}.json", [3] * 5 + [1] * n, f"s{n}") for n in (1, 2))
    reference = write_outputs(tmp_path / "ref.json", [2] * 7, "ref")
    (tmp_path / "d.json").write_text(json.dumps([{"instruction": f"i{n}", "difficulty": n} for n in range(6)]))
    (tmp_path / "w.csv").write_text("model,not_gamed,length,difficulty\nx,0.1,0.2,0.3\n")
    files = ["evaluate", mine, other, "--reference", reference, *JUDGE, "--on-missing", "skip"]
    for how in (["--evaluator", "length_controlled"], ["--set", "evaluate.evaluators=[win_rate,length_controlled]"]):
        lacking = afarm(*files, *how, "--set", "length_controlled.difficulty=d.json")
        failed(lacking, "d.json: 1 of 7 instructions have no difficulty in it, such as 'i6'")
        failed(afarm(*files, *how, "--set", "length_controlled.weights=w.csv"), "w.csv has a coefficient for the diff")
    one, two = (write_outputs(tmp_path / f"{n} words.json", [n], f"{n} words") for n in (3, 2))
    fitted = afarm("evaluate", one, "--reference", two, *JUDGE, "--evaluator", "length_controlled")
    failed(fitted, "--evaluator length_controlled: length control is fitted to 5 instructions or more, and here are 1")
    rated = afarm(*files, "--evaluator", "pointwise")
    failed(rated, "needs ratings, and annotator 'chatgpt_1' gives none", "--annotator ratings or criteria")
    gold = afarm("evaluate", one, "--reference", two, *JUDGE, "--evaluator", "gold")
    failed(gold, "the toy world does not know the instruction 'i0', and only its own have a gold reward: leave it out")
    assert "text_utility" not in gold.err
    assert CountingJudge.asked == 0
    told = afarm("run", *LIGHT, "--set", "evaluate.evaluators=[win_rate,pointwise]", "--dry-run")
    failed(told, "evaluator 'pointwise': needs ratings", "--set evaluate.annotator=ratings")


def test_options_that_would_be_ignored_are_refused(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", [3], "mine")
    reference = write_outputs(tmp_path / "ref.json", [2], "ref")
    judged = write_annotations(tmp_path / "judged.json", "one", [2, 1])
    files = ["evaluate", mine, "--reference", reference, *JUDGE]
    failed(afarm(*files, "--method", "ppo"), f"{mine} and --method contradict each other: files are not trained")
    failed(afarm("cost", *files[1:], "--method", "ppo"), "--method contradict each other")
    failed(afarm(*files, "--alpha", "0.01"), "--alpha says how sure to be with --until decided")
    stored = ["evaluate", "--annotations", judged, *LIGHT]
    failed(afarm(*stored, "--method", "ppo"), "--annotations and --method contradict each other: nothing is trained")
    failed(afarm(*stored, "--budget", "2"), "--annotations and --budget contradict each other: they are judged")
    failed(afarm(*stored, "--eval-set", reference), "--eval-set contradict each other: keep the rows of that set")
    assert CountingJudge.asked == 0


def test_the_json_of_files_begins_with_who_judged(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", [1, 3, 3], "mine")
    files = ["evaluate", mine, "--reference", write_outputs(tmp_path / "ref.json", [2] * 3, "ref")]
    files += ["--recipe", "light.yaml", "--json"]
    for judge, judged_by in [
        (["--judge", "fitted"], "the formula fitted:people"),
        (["--judge", "offline", "--annotator", "chatgpt_1"], "the formula offline:text_utility"),
        (["--annotator", "fitted"], "the formula fitted"),
        (["--judge", "counting", "--annotator", "chatgpt_1"], "counting with prompt chatgpt_1"),
    ]:
        told = afarm(*files, *judge)
        assert told.code == 0, told.err
        assert list(told.json)[:3] == ["system", "reference", "judged_by"]
        for part in (told.json, *told.json["systems"]):
            assert (part["judged_by"], part["annotator"]) == (judged_by, judged_by)


def test_a_system_that_is_the_reference_itself_or_swapped_with_it_is_told(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", [1, 3], "mine")
    known = write_outputs(tmp_path / "known.json", [2, 2], "text_davinci_003")
    itself = afarm("evaluate", mine, "--reference", mine, *JUDGE)
    assert "are the same outputs: every pair is a draw" in itself.err
    swapped = afarm("evaluate", known, "--reference", mine, *JUDGE, "--json")
    assert "text_davinci_003 is AlpacaFarm's reference" in swapped.err
    assert any("swapped" in note for note in swapped.json["notes"])
    assert "swapped" not in afarm("evaluate", mine, "--reference", known, *JUDGE).err


# --------------------------------------------------------------------------------------------- rows that do not fit


def test_missing_rows_are_an_error_or_left_out_or_lost(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", [3, 3, 1], "mine")
    reference = write_outputs(tmp_path / "ref.json", [2] * 5, "ref")
    files = ["evaluate", mine, "--reference", reference, *JUDGE]
    failed(afarm(*files), "2 of the reference's have no output, such as 'i3'", "--on-missing skip")
    assert CountingJudge.asked == 0
    skipped = afarm(*files, "--on-missing", "skip", "--json").json
    assert (skipped["metrics"]["n_wins"], skipped["metrics"]["n_total"]) == (2, 3)
    coverage = skipped["coverage"]
    assert (coverage["compared"], coverage["missing"], coverage["missing_as_loss"]) == (3, 2, 0)
    lost = afarm(*files, "--on-missing", "loss", "--json")
    (result,) = lost.json["results"]
    assert (result["red_flags"]["flags"], result["metrics"]["avg_length"]) == ([], pytest.approx((14 + 14 + 4) / 3))
    assert (lost.json["metrics"]["win_rate"], lost.json["metrics"]["n_total"]) == (40.0, 5)
    assert lost.json["annotators"]["evaluation"]["(no output)"] == 2
    assert CountingJudge.asked == 3, "what is lost costs no call"
    assert "2 without an output counted as lost" in lost.words
    assert "2 without an output counted as lost" in Path(lost.json["report"]).read_text()
    unknown = afarm(*files, "--on-missing", "skp")
    assert (unknown.code, "'skp' is not one of 'error', 'skip', 'loss'" in unknown.err) == (2, True)


def test_what_is_left_out_is_said_before_the_result(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", [3, 3, 1], "mine")
    reference = write_outputs(tmp_path / "ref.json", [2] * 5, "ref")
    said = afarm("evaluate", mine, "--reference", reference, *JUDGE, "--on-missing", "skip")
    assert (
        "mine: 3 of the reference's 5 instructions; 2 without an output left out: the win rate is of these" in said.err
    )


@pytest.mark.skipif(not (SHARED_DATA / "alpaca_farm").is_dir(), reason="the published outputs are not here")
def test_published_outputs_are_compared_whether_their_input_is_merged_or_not(afarm: Afarm, tmp_path: Path) -> None:
    apart = str(SHARED_DATA / "alpaca_farm" / "outputs_sft.json.gz")
    rows = json.loads(gzip.decompress((DATA / "outputs.text_davinci_003.json.gz").read_bytes()))
    merged = tmp_path / "text_davinci_003.json"
    merged.write_text(json.dumps([row for row in rows if row["dataset"] == "selfinstruct"]))
    for files in ((apart, str(merged)), (str(merged), apart)):
        said = afarm("evaluate", files[0], "--reference", files[1], *JUDGE)
        assert said.code == 0, said.err
        merge = "208 written otherwise in the two (input merged, spaces, line ends …)"
        assert f"compared 252 of the reference's 252 instructions; {merge}" in said.words
    part = tmp_path / "part.json"
    part.write_text(json.dumps([row for row in rows if row["dataset"] == "selfinstruct"][:50]))
    named = afarm("evaluate", apart, "--reference", str(merged), "--eval-set", str(part), *JUDGE)
    assert "compared 50 of the reference's 50 instructions" in named.words


def test_most_rows_missing_is_warned_of(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", [3, 3], "mine")
    reference = write_outputs(tmp_path / "ref.json", [2] * 5, "ref")
    said = afarm("evaluate", mine, "--reference", reference, *JUDGE, "--on-missing", "skip", "--json")
    assert "mine: only 2 of the reference's 5 instructions" in said.err
    assert "only 2 of the reference" in Path(said.json["report"]).read_text().replace("&#39;", "'")


def test_one_instruction_has_no_standard_error(afarm: Afarm, tmp_path: Path) -> None:
    mine, other = (write_outputs(tmp_path / f"{n}.json", [n], f"s{n}") for n in (3, 4))
    reference = write_outputs(tmp_path / "ref.json", [2], "ref")
    said = afarm("evaluate", mine, "--reference", reference, *JUDGE)
    assert "s3 against ref" in said.out
    assert "win rate 100.0 %, 95 % interval 0.0 to 100.0" in said.words
    assert "±" not in said.out
    several = afarm("evaluate", mine, other, "--reference", reference, *JUDGE)
    assert several.code == 0, several.err


# ------------------------------------------------------------------------------------------------- evaluation sets


def test_an_evaluation_set_serves_as_the_reference_and_says_which_instructions_count(
    afarm: Afarm, tmp_path: Path
) -> None:
    mine = write_outputs(tmp_path / "mine.json", [3, 1, 3, 3], "mine")
    part = write_outputs(tmp_path / "set.json", [2, 2], "set")
    whole = write_outputs(tmp_path / "ref.json", [2, 2, 2, 2], "ref")
    subset = afarm("evaluate", mine, "--reference", whole, "--eval-set", part, *JUDGE, "--json")
    assert (subset.json["metrics"]["win_rate"], subset.json["metrics"]["n_total"]) == (50.0, 2)
    assert subset.json["coverage"]["reference"] == 2
    alone = afarm("evaluate", mine, "--eval-set", part, *JUDGE, "--on-missing", "skip", "--json").json
    assert (alone["reference"], alone["coverage"]["extra"]) == ("set", 2)
    (tmp_path / "asked.json").write_text(json.dumps([{"instruction": "i0"}]))
    failed(afarm("evaluate", mine, "--eval-set", "asked.json", *JUDGE), "asked.json: has no outputs to compare with")


def test_a_missing_field_lists_those_that_the_file_has(afarm: Afarm, tmp_path: Path) -> None:
    reference = write_outputs(tmp_path / "ref.json", [2], "ref")
    trl = tmp_path / "trl.json"
    trl.write_text(json.dumps([{"prompt": "i0", "chosen": "x", "rejected": "y"}]))
    fields = "its fields are 'prompt', 'chosen', 'rejected'"
    hint = f"These look like preferences to train on, in TRL's form: afarm fit-reward --preferences {trl}"
    failed(afarm("evaluate", str(trl), "--reference", reference, *JUDGE), "field 'output' is missing", fields, hint)
    capitals = tmp_path / "capitals.csv"
    capitals.write_text("Country,Capital\nFrance,Paris\n")
    said = afarm("evaluate", reference, "--reference", str(capitals), *JUDGE)
    failed(said, "line 2: field 'instruction' is missing; its fields are 'Country', 'Capital'")


def test_a_data_set_by_name_can_be_the_reference(afarm: Afarm, tmp_path: Path) -> None:
    rows = [{"instruction": f"evaluation {n}", "output": "word", "generator": "mine"} for n in range(12)]
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    said = afarm("evaluate", "mine.json", "--reference", "numbers", *JUDGE, "--json")
    assert said.code == 0, said.err
    assert (said.json["reference"], said.json["coverage"]["compared"]) == ("people", 12)
    failed(afarm("evaluate", "mine.json", "--reference", "nmbers", *JUDGE), "nmbers")


def test_a_run_is_evaluated_on_another_set(afarm: Afarm, tmp_path: Path) -> None:
    write_outputs(tmp_path / "set.json", [1, 2, 3], "set")
    said = afarm("run", *LIGHT, "--eval-set", "set.json", "--set", "rows.evaluation=all", "--json")
    assert said.code == 0, said.err
    main = said.json["results"][0]["metrics"]
    assert main["n_total"] + main["n_unparsed"] == 3
    failed(
        afarm("run", *LIGHT, "--eval-set", "nowhere.json", "--set", "rows.evaluation=all"), "nowhere.json: no such file"
    )
    failed(afarm("run", *LIGHT, "--eval-set", "numbrs"), "unknown data set 'numbrs'. Did you mean 'numbers'")
    failed(afarm("run", *LIGHT, "--eval-set", "set.json"), "rows.evaluation asks for 10 rows", "set.json")


def test_a_command_tells_what_it_bought_itself_whoever_writes_the_record_last(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = write_outputs(tmp_path / "mine.json", [3, 3, 1], "mine")
    reference = write_outputs(tmp_path / "ref.json", [2, 2, 2], "ref")

    def overwritten(directory: Path) -> None:  # by another process, which waited for the labels
        record = json.loads((directory / "run.json").read_text())
        record["spend"]["this_time"]["calls"] = 0
        (directory / "run.json").write_text(json.dumps(record))

    monkeypatch.setattr("afarm.report.refresh", overwritten)
    said = afarm("evaluate", mine, "--reference", reference, *JUDGE, "--json")
    assert said.json["spend"]["this_time"]["calls"] == said.json["spend"]["calls"] > 0


# ----------------------------------------------------------------------------------------------- stored annotations


def write_annotations(path: Path, system: str, preferences: Sequence[Any], **other: Any) -> str:
    rows = [
        {
            "instruction": f"i{n}",
            "output_1": "the reference",
            "output_2": f"{system} says",
            "generator_1": "ref",
            "generator_2": system,
            "annotator": "people",
            "preference": preference,
            **other,
        }
        for n, preference in enumerate(preferences)
    ]
    path.write_text(json.dumps(rows))
    return str(path)


def test_hostile_names_reach_the_terminal_as_text(afarm: Afarm, tmp_path: Path) -> None:
    mine = write_outputs(tmp_path / "mine.json", [3, 3, 1], "../x[red]\x1b[31mhey\n<script>")
    reference = write_outputs(tmp_path / "ref.json", [2, 2, 2], "ref")
    said = afarm("evaluate", mine, "--reference", reference, *JUDGE)
    assert said.code == 0
    for text in (said.out, said.err):
        assert "\x1b" not in text
        assert r"../x[red]\x1b[31mhey <script>" in text


def test_each_data_set_has_its_own_win_rate_in_the_record(afarm: Afarm, tmp_path: Path) -> None:
    path = write_annotations(tmp_path / "one.json", "one", [2, 2, 1])
    rows = json.loads(Path(path).read_text())
    for row, name in zip(rows, ["koala", "koala", "vicuna"], strict=True):
        row["dataset"] = name
    Path(path).write_text(json.dumps(rows))
    said = afarm("evaluate", "--annotations", path, *LIGHT, "--json")
    found = {row["dataset"]: row["win_rate"] for row in said.json["results"][0]["rows"]}
    assert found == {"koala": 100.0, "vicuna": 0.0}


def test_the_command_for_a_report_is_printed_where_they_are_too_many_to_write(
    afarm: Afarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afarm.cli.evaluate.MANY", 1)
    files = [write_annotations(tmp_path / f"{name}.json", name, [2, 1, 2]) for name in ("one", "two")]
    said = afarm("evaluate", "--annotations", *files, *LIGHT)
    (line,) = [line for line in said.out.splitlines() if "afarm report" in line]
    assert "No reports of 2 systems at once" in line
    written = afarm(*line.partition("one each with: afarm ")[2].split())
    assert written.code == 0, written.err
    assert Path(written.out.strip()).is_file()


def test_preferences_to_train_on_reach_no_board(afarm: Afarm, tmp_path: Path) -> None:
    good = write_annotations(tmp_path / "good.json", "one", [2, 2, 1])
    trl = tmp_path / "trl.jsonl"
    trl.write_text(json.dumps({"prompt": "i", "chosen": "a", "rejected": "b"}) + "\n")
    for command in (["evaluate", "--annotations", good], ["leaderboard", good], ["annotators", "compare", good]):
        light = LIGHT if command[0] == "evaluate" else []
        failed(afarm(*command, str(trl), *light), f"in TRL's form: afarm fit-reward --preferences {trl}")
    outputs = tmp_path / "outputs.jsonl"
    outputs.write_text(json.dumps({"instruction": "i", "output": "a"}) + "\n")
    failed(afarm("evaluate", str(outputs), "--reference", str(trl), *LIGHT), f"afarm fit-reward --preferences {trl}")
    assert not list(tmp_path.glob("afarm-runs/runs/*"))


def test_stored_annotations_are_evaluated_and_nobody_is_asked(afarm: Afarm, tmp_path: Path) -> None:
    one = write_annotations(tmp_path / "one.json", "one", [2, 2, 1, 1.5, None])
    two = write_annotations(tmp_path / "two.json", "two", [1, 1, 1, 2, 0])
    said = afarm("evaluate", "--annotations", one, two, *LIGHT, "--json")
    assert said.code == 0, said.err
    first, second = said.json["systems"]
    assert (first["system"], first["reference"], first["annotator"]) == ("one", "ref", "people")
    assert (first["metrics"]["win_rate"], first["metrics"]["n_unparsed"]) == (62.5, 1)
    assert (second["metrics"]["win_rate"], second["metrics"]["n_draws"]) == (30.0, 1)
    assert (first["judges"], first["spend"]["calls"], CountingJudge.asked) == ([], 0, 0)
    assert not {"judge", "label_noise"} & {*first["config"], *first["config"]["evaluate"]}
    assert [entry["system"] for entry in said.json["boards"][0]["entries"]] == ["one", "two"]
    page = Path(first["report"]).read_text()
    assert 'id="unasked"' not in page
    plain = afarm("evaluate", one, "--annotations", *LIGHT)
    assert "one against ref" in plain.out
    assert "win rate 62.5 %" in plain.words
    assert "not clear from 50 %: with 4 instructions no difference could be told" in plain.words
    assert "judged by people (stored annotations, no judge was asked)" in plain.words
    board = afarm("leaderboard").out
    assert "one" in board
    assert "two" in board
    assert "Left out" not in afarm("evaluate", one, "--annotations").err


def test_a_system_without_labels_does_not_stop_the_others(afarm: Afarm, tmp_path: Path) -> None:
    names: dict[str, list[Any]] = {"one": [2, 1], "silent": [None, None], "two": [2, 2]}
    files = [write_annotations(tmp_path / f"{name}.json", name, given) for name, given in names.items()]
    said = afarm("evaluate", "--annotations", *files, *LIGHT, "--json")
    assert said.code == 1
    assert [s["system"] for s in said.json["systems"]] == ["one", "two"]
    assert "no result for 1 of 3 systems:\n  silent: none of 2 pairs has a usable judgement (2 unparsed)" in said.err
    assert "afarm ledger" not in said.err, "nobody was asked"
    one = afarm("evaluate", "--annotations", *files[:2], *LIGHT, "--json")
    assert (one.code, [s["system"] for s in one.json["systems"]]) == (1, ["one"])


def test_one_file_is_the_same_to_a_board_and_to_an_evaluation(afarm: Afarm, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    path = write_annotations(tmp_path / "one.json", "one", [2, 2, 1, 1.25])
    rows = json.loads(Path(path).read_text())
    sides = {"output_1": "output_2", "output_2": "output_1", "generator_1": "generator_2", "generator_2": "generator_1"}
    rows[2] = {**{sides.get(name, name): value for name, value in rows[2].items()}, "preference": 2}
    Path(path).write_text(json.dumps([*rows, rows[0]]))
    evaluated = afarm("evaluate", "--annotations", path, *LIGHT, "--json").json
    (board,) = afarm("leaderboard", "--annotations", path, "--json").json["boards"]
    (entry,) = board["entries"]
    assert (entry["system"], entry["win_rate"], entry["n"]) == ("one", 56.25, 4)
    assert entry["win_rate"] == evaluated["metrics"]["win_rate"]
    assert board["protocol"] == evaluated["results"][0]["protocol"]
    assert "1 row with the reference 'ref' second: turned" in evaluated["notes"][0]
    assert f"1 row with the reference second: turned; {path}: 1 repeated row dropped" in board["note"]
    assert f"{path}: 1 repeated row dropped" in evaluated["notes"]
    Path(path).write_text(json.dumps([*rows, {**rows[0], "preference": 1}]))
    for command in (["evaluate", "--annotations", path, *LIGHT], ["leaderboard", "--annotations", path]):
        failed(afarm(*command), f"{path}: row 4 and row 0 judge 'one' on the same instruction ('i0') and do not agree")


def test_annotations_that_cannot_be_used_are_explained_and_leave_nothing(afarm: Afarm, tmp_path: Path) -> None:
    good = write_annotations(tmp_path / "good.json", "one", [1, 2])
    bad = write_annotations(tmp_path / "bad.json", "two", [1, 7])
    failed(afarm("evaluate", "--annotations", good, bad, *LIGHT), f"{bad}: row 1: field 'preference' is 7")
    failed(afarm("evaluate", "--annotations", *LIGHT), "--annotations needs files")
    failed(afarm("evaluate", "--annotations", good, good, *LIGHT), f"{good} is named twice")
    failed(afarm("evaluate", "--annotations", good, *JUDGE), "--annotator contradict each other")
    failed(afarm("evaluate", "--annotations", good, *LIGHT, "--on-missing", "loss"), "loss needs the outputs")
    failed(afarm("evaluate", "--annotations", good, *LIGHT, "--until", "decided"), "--until decided needs files")
    unread = write_annotations(tmp_path / "unread.json", "three", [None, None])
    failed(afarm("evaluate", "--annotations", unread, *LIGHT), "none of 2 pairs has a usable judgement")
    assert list((tmp_path / "afarm-runs").glob("runs/*/run.json")) == []


def test_a_file_that_an_evaluator_reads_is_looked_at_again_when_it_has_changed(afarm: Afarm, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    one = write_annotations(tmp_path / "one.json", "one", [2, 2, 1, 1.5, 1, 2, 1, 1])
    arguments = ["evaluate", "--annotations", one, *LIGHT, "--evaluator", "length_controlled"]
    arguments += ["--set", "length_controlled.difficulty=d.json", "--json"]
    found = []
    for slope in (0.1, 0.1, 2.0):
        rows = [{"instruction": f"i{n}", "difficulty": slope * (n - 3)} for n in range(8)]
        (tmp_path / "d.json").write_text(json.dumps(rows))
        said = afarm(*arguments)
        assert said.code == 0, said.err
        found.append(said.json["stages"][0]["reused"])
    assert found == [False, True, False]


def test_a_single_annotation_has_a_win_rate_and_no_error(afarm: Afarm, tmp_path: Path) -> None:
    one = write_annotations(tmp_path / "one.json", "one", [1.25])
    said = afarm("evaluate", "--annotations", one, *LIGHT, "--json")
    assert (said.json["metrics"]["win_rate"], said.json["metrics"]["standard_error"]) == (25.0, None)
    assert said.json["interval"] == [0.0, 100.0], "of one instruction nothing is known"


@pytest.mark.skipif(not DATA.is_dir(), reason=f"AlpacaEval's published data is not at {DATA}")
def test_published_rows_come_out_of_one_command(afarm: Afarm) -> None:
    """Two systems by one annotator, and one of them by another as well."""
    shown = ("alpaca_eval_gpt4.alpaca-7b", "alpaca_eval_gpt4.text_davinci_001", "weighted_gpt4_turbo.alpaca-7b")
    files = [DATA / f"annotations.{name}.json.gz" for name in shown]
    said = afarm("evaluate", "--annotations", *map(str, files), *LIGHT, "--json")
    assert said.code == 0, said.err
    found = {(s["annotator"], s["system"]): s["metrics"] for s in said.json["systems"]}
    assert len(found) == len(files)
    for file in files:
        _, annotator, model = file.name.removesuffix(".json.gz").split(".", 2)
        with (DATA / f"leaderboard.{annotator}.csv").open() as handle:
            (published,) = [row for row in csv.DictReader(handle) if row[""] == model]
        stored = {"weighted_gpt4_turbo": "weighted_alpaca_eval_gpt4_turbo"}.get(annotator, annotator)
        metrics = found[stored, model]
        for name in ("win_rate", "standard_error", "n_wins", "n_wins_base", "n_draws", "n_total"):
            assert metrics[name] == pytest.approx(float(published[name]), rel=0, abs=1e-9), (model, name)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"AlpacaEval's published data is not at {DATA}")
def test_real_outputs_with_two_rows_missing_are_compared_on_the_others(afarm: Afarm) -> None:
    files = [str(DATA / f"outputs.{name}.json.gz") for name in ("text_davinci_001", "text_davinci_003")]
    failed(
        afarm("evaluate", files[0], "--reference", files[1], "--judge", "offline"),
        "2 of the reference's have no output",
    )
    said = afarm("evaluate", files[0], "--reference", files[1], "--judge", "offline", "--on-missing", "skip", "--json")
    assert said.code == 0, said.err
    coverage = said.json["coverage"]
    assert (coverage["reference"], coverage["compared"], coverage["missing"]) == (805, 803, 2)
    assert (said.json["system"], said.json["metrics"]["n_total"]) == ("text_davinci_001", 803)


# ------------------------------------------------------------------------------------------------------- who judged


@pytest.mark.parametrize(
    ("annotator", "judges", "simulated", "said"),
    [
        ("gpt4_4", ["counting:4o"], False, "counting:4o with prompt gpt4_4"),
        ("gpt4_4", ["counting:4o"], True, "the formula counting:4o"),
        ("gpt4_4", ["*=offline", "strong=counting:4o"], False, "counting:4o with prompt gpt4_4"),
        (
            "pool",
            ["*=offline", *(f"{role}=counting:m" for role in ("strong", "light", "completion"))],
            False,
            "counting:m with",
        ),
        ("pool", ["offline:text_utility"], False, "the formula offline:text_utility"),
        ("reward:text_utility", [], False, "reward:text_utility"),
    ],
)
def test_the_judge_is_named_first_wherever_its_figure_stands(
    annotator: str,
    judges: list[str],
    simulated: bool,
    said: str,
    afarm: Afarm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CountingJudge, "simulated", simulated)
    mine = write_outputs(tmp_path / "mine.json", [1, 2, 3] * 4, "mine")
    reference = write_outputs(tmp_path / "ref.json", [2, 3, 1] * 4, "ref")
    named = [option for judge in judges for option in ("--judge", judge.replace("counting", "light/counting"))]
    made = afarm("evaluate", mine, "--reference", reference, "--annotator", annotator, *named, "--json")
    assert made.code == 0, made.err
    screen = made.err.partition("mine against ref")[2]
    rows = [line.strip("│ ") for line in screen.splitlines() if line.startswith("│")]
    assert " ".join(rows[0].replace("│", "").split()).startswith(f"judged by {said}")
    record, formula = made.json, said.startswith("the formula")
    assert record["judged_by"].startswith(said)
    assert {row["judged_by"] for row in record["results"]} == {record["judged_by"]}
    assert json.loads((Path(record["report"]).parent / "run.json").read_text())["judged_by"] == record["judged_by"]
    assert ("is a formula" in made.err) == ('id="simulated"' in Path(record["report"]).read_text()) == formula
    page = Path(record["report"]).read_text()
    head, pairs = page.partition('id="outputs"')[::2]
    assert f"<dt>judged by</dt><dd>{record['judged_by']}</dd>" in head
    assert f"against ref, judged by {record['judged_by']}</p>" in head
    by = set(re.findall(r'class="by">by ([^<]+)<', pairs))
    assert by
    assert all(one.startswith(said) for one in by)
    heading = f"\njudged by {said.partition(' with')[0]}"
    assert simulated or heading in f"\n{afarm('leaderboard').out}", "a board knows first-party formulas alone"


# ------------------------------------------------------------------------------------------------------ when to stop


def test_asking_stops_when_it_is_decided_and_goes_on_for_nothing(afarm: Afarm, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    mine = write_outputs(tmp_path / "mine.json", [3] * 290 + [1] * 10, "mine")
    reference = write_outputs(tmp_path / "ref.json", [2] * 300, "ref")
    files = ["evaluate", mine, "--reference", reference, *JUDGE, "--until", "decided"]
    said = afarm(*files, "--json")
    assert said.code == 0, said.err
    decision = said.json["until"]
    used = said.json["coverage"]["compared"]
    assert (decision["stopped"], decision["of"]) == ("decided", 300)
    assert used == CountingJudge.asked < 100
    assert (decision["comparisons"][0]["side"], decision["comparisons"][0]["n"]) == ("higher", used)
    assert said.json["coverage"]["unasked"] == 300 - used
    assert said.json["metrics"]["standard_error"] is None, "it holds for a number of pairs that was set before"
    assert said.json["spend"]["calls"] == used
    assert "mine is above 50 %; 95 % confidence sequence" in said.words
    assert "±" not in said.err
    page = Path(said.json["report"]).read_text()
    assert "confidence sequence" in page
    again = afarm(*files)
    assert (again.code, CountingJudge.asked) == (0, used)
    assert "judged until it was clear" in afarm("leaderboard").out
    whole = afarm(*files[:-2], "--json")
    assert (whole.json["metrics"]["n_total"], CountingJudge.asked) == (300, 300), "what was judged is not asked again"
    assert whole.json["metrics"]["standard_error"] > 0
    assert afarm(*files[:-1], "soon").code == 2


def test_what_is_even_stays_undecided(afarm: Afarm, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    mine = write_outputs(tmp_path / "mine.json", [3, 1] * 40, "mine")
    reference = write_outputs(tmp_path / "ref.json", [2] * 80, "ref")
    said = afarm("evaluate", mine, "--reference", reference, *JUDGE, "--until", "decided", "--json")
    assert (said.json["until"]["stopped"], said.json["until"]["decided"]) == ("instructions", False)
    assert (said.json["metrics"]["n_total"], said.json["coverage"]["unasked"]) == (80, 0)
    assert "not decided after 80 of 80 instructions" in said.words


def test_two_systems_are_told_apart_on_the_same_instructions(afarm: Afarm, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    good = write_outputs(tmp_path / "good.json", [3] * 270 + [1] * 30, "good")
    poor = write_outputs(tmp_path / "poor.json", [1] * 270 + [3] * 30, "poor")
    reference = write_outputs(tmp_path / "ref.json", [2] * 300, "ref")
    said = afarm("evaluate", poor, good, "--reference", reference, *JUDGE, "--until", "decided", "--json")
    assert said.code == 0, said.err
    first, second = said.json["systems"]
    assert first["coverage"]["compared"] == second["coverage"]["compared"] == CountingJudge.asked / 2 < 150
    (comparison,) = first["until"]["comparisons"]
    assert (comparison["first"], comparison["second"], comparison["side"]) == ("poor", "good", "lower")
    assert comparison["high"] < 0 > comparison["value"]
    assert "good is better" in said.err


def test_each_of_several_systems_says_whether_it_was_clear_of_the_others(afarm: Afarm, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    words = {"good": [3] * 64, "as good": [4] * 64, "poor": [1] * 64}
    files = [write_outputs(tmp_path / f"{name}.json", count, name) for name, count in words.items()]
    reference = write_outputs(tmp_path / "ref.json", [2] * 64, "ref")
    said = afarm("evaluate", *files, "--reference", reference, *JUDGE, "--until", "decided")
    assert said.code == 0, said.err
    for name in ("good", "as good"):
        assert f"{name}: looked at as it went, and not clear to the end, on 64 of 64 instructions" in said.err
    assert "poor: judged until it was clear, on 32 of 64 instructions" in said.err


@pytest.mark.parametrize("evaluator", ["elo", "bradley_terry"])
def test_what_looks_at_all_systems_together_is_refused_where_asking_stops_early(
    evaluator: str, afarm: Afarm, tmp_path: Path
) -> None:
    pytest.importorskip("scipy")
    mine = write_outputs(tmp_path / "mine.json", [3] * 40, "mine")
    reference = write_outputs(tmp_path / "ref.json", [2] * 40, "ref")
    files = ["evaluate", mine, "--reference", reference, *JUDGE, "--until", "decided", "--evaluator", evaluator]
    for dry in ([], ["--dry-run"]):
        failed(afarm(*files, *dry), f"--until decided and --evaluator {evaluator} contradict each other")
    assert CountingJudge.asked == 0


def test_the_budget_ends_what_a_larger_one_goes_on_with(afarm: Afarm, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    mine = write_outputs(tmp_path / "mine.json", [3, 1] * 60, "mine")
    reference = write_outputs(tmp_path / "ref.json", [2] * 120, "ref")
    files = ["evaluate", mine, "--reference", reference, *JUDGE, "--until", "decided", "--json"]
    said = afarm(*files, "--budget", "0.0505")
    assert said.code == 0, said.err
    assert (said.json["until"]["stopped"], said.json["until"]["decided"]) == ("budget", False)
    assert said.json["coverage"]["compared"] == 32
    assert CountingJudge.asked == 50
    assert "a larger one goes on" in said.words
    more = afarm(*files, "--budget", "0.1005").json
    assert (more["until"]["stopped"], more["coverage"]["compared"]) == ("budget", 96)
    assert CountingJudge.asked == 100, "fifty more, on the same account"
    failed(
        afarm(
            "evaluate", mine, "--reference", reference, *JUDGE, "--until", "decided", "--budget", "0.01", "--seed", "7"
        ),
        "budget",
    )
