"""`afarm tune`: settings chosen by trials."""

from __future__ import annotations

import csv
import importlib
import json
import math
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from light_plugin import RAN, CountingJudge, Direct, Nudge, Teach, WordPolicy, WordsSaid
from said import Afarm

from afarm import Evaluation, EvaluationInputs
from afarm.core.errors import TrainingError
from afarm.core.judge import Price
from afarm.experiment.plugin_code import files_digest
from afarm_plugins.tuning.tuning import Trial, Tuning

TUNE = ["tune", "--recipe", "light.yaml", "--methods", "nudge", "--seeds", "1001"]
SKILLS = ["--space", "nudge.skill=0.05:0.9"]


def test_trials_begin_with_the_recipes_settings_and_the_best_becomes_a_recipe(afarm: Afarm, tmp_path: Path) -> None:
    said = afarm(*TUNE, *SKILLS, "--trials", "4", "--json")
    assert said.code == 0, said.err
    trials = said.json["trials"]["nudge"]
    assert len(trials) == 4
    assert trials[0]["values"] == {"skill": 0.5}
    assert all(0.05 <= trial["values"]["skill"] <= 0.9 for trial in trials)
    best = max(trials, key=lambda trial: trial["win_rate"])
    assert said.json["best"]["nudge"] == best["number"]
    recipe = yaml.safe_load(Path(said.json["recipe"]).read_text())
    assert recipe == {"based_on": str(tmp_path / "light.yaml"), "nudge": best["values"]}
    assert afarm("run", "--recipe", said.json["recipe"], "--method", "nudge", "--dry-run").code == 0
    rows = list(csv.DictReader(Path(said.json["page"]).with_suffix(".csv").open()))
    assert [json.loads(row["values"]) for row in rows] == [trial["values"] for trial in trials]
    assert [float(row["win_rate"]) for row in rows] == [trial["win_rate"] for trial in trials]


def test_the_recipe_holds_what_options_gave_and_the_choices_of_earlier_searches(afarm: Afarm) -> None:
    options = ["--set", "rows.evaluation=8", "--set", "nudge.batch=4", "--label-noise", "0.125"]
    one = afarm(*TUNE, *SKILLS, "--trials", "3", "--json", *options)
    other = ["tune", "--recipe", "light.yaml", "--methods", "direct", "--space", "direct.skill=0.1:0.9"]
    two = afarm(*other, "--trials", "2", "--json", *options)
    assert one.json["recipe"] == two.json["recipe"]
    recipe = yaml.safe_load(Path(two.json["recipe"]).read_text())
    best = {
        name: said.json["trials"][name][said.json["best"][name]]["values"]
        for name, said in (("nudge", one), ("direct", two))
    }
    assert recipe["nudge"] == {"batch": 4, **best["nudge"]}
    assert recipe["direct"] == best["direct"]
    assert (recipe["rows"], recipe["annotate"]) == ({"evaluation": 8}, {"label_noise": 0.125})
    assert "evaluate" not in recipe


def test_the_page_and_the_table_keep_the_trials_behind_every_choice_of_the_recipe(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second search adds its method; repeated, each stands there once, with the command that made it."""
    nudge = [*TUNE, *SKILLS, "--trials", "3"]
    direct = ["tune", "--recipe", "light.yaml", "--methods", "direct", "--space", "direct.skill=0.1:0.9"]

    def sections(command: list[str]) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["afarm", *command])
        said = afarm(*command, "--json")
        return Path(said.json["page"]).read_text().split("\n## ")

    _, of_nudge = sections(nudge)
    for _ in range(2):
        head, of_direct, kept = sections([*direct, "--seeds", "1001", "--trials", "2"])
        assert head.startswith("`afarm tune --recipe light.yaml --methods direct")
        assert of_direct.startswith("direct\n\n")
        assert "earlier search" not in of_direct
        command, trials = kept.removeprefix("nudge\n\nBy an earlier search: ").split("\n", 1)
        assert command.startswith("`afarm tune --recipe light.yaml --methods nudge")
        assert trials.strip() == of_nudge.removeprefix("nudge\n").strip()
        [table] = Path("afarm-runs/tunings").glob("*/trials.csv")
        assert [row["method"] for row in csv.DictReader(table.open())] == ["direct"] * 2 + ["nudge"] * 3
    again = sections(nudge)
    assert again[1].strip() == of_nudge.strip()
    assert again[2].startswith("direct\n\nBy an earlier search: `afarm tune --recipe light.yaml --methods direct")


def test_a_tuned_recipe_that_was_damaged_is_named_before_the_first_trial(afarm: Afarm) -> None:
    path = Path(afarm(*TUNE, *SKILLS, "--trials", "2", "--json").json["recipe"])
    before = len(RAN)
    for damaged in (b"a: [1", b"- 1", b"", b"\xff"):
        path.write_bytes(damaged)
        said = afarm(*TUNE, *SKILLS, "--trials", "3")
        assert (said.code, RAN[before:]) == (1, [])
        assert "remove it (trials are kept)" in " ".join(said.err.split())
    path.unlink()
    assert afarm(*TUNE, *SKILLS, "--trials", "3").code == 0


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"win_rate": 1e9},
            {"win_rate": float("nan")},
            {"win_rate": "99"},
            {"values": None},
            {"values": {"bogus": 1}},
        ),
        *({"figures": "x"}, {"number": 7}, {"method": "ppo"}, {"seconds": None}, {"error": 5}),
    ],
)
def test_trials_that_were_edited_are_refused(afarm: Afarm, change: dict[str, object]) -> None:
    page = Path(afarm(*TUNE, *SKILLS, "--trials", "2", "--json").json["page"])
    [path] = page.parent.glob("nudge-*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | (change if row["number"] else {})) + "\n" for row in rows))
    said = afarm(*TUNE, *SKILLS, "--trials", "2")
    assert said.code == 1
    assert "remove" in said.err


def test_trials_that_lack_the_first_are_refused(afarm: Afarm) -> None:
    page = Path(afarm(*TUNE, *SKILLS, "--trials", "2", "--json").json["page"])
    [path] = page.parent.glob("nudge-*.jsonl")
    path.write_text(path.read_text().splitlines()[1] + "\n")
    assert "row 0 is no trial of this search" in " ".join(afarm(*TUNE, *SKILLS, "--trials", "2").err.split())


def test_the_best_trials_are_decided_over_all_seeds(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that wins with the first seed and fails with the others is not chosen, and one is enough to say so."""
    search = (*TUNE, *SKILLS, "--trials", "6", "--finalists", "2", "--json")
    alone = afarm(*search).json
    winner = alone["trials"]["nudge"][alone["best"]["nudge"]]["values"]["skill"]
    train = Teach.train

    def collapse(self: Teach, inputs: Any, context: Any) -> WordPolicy:
        policy = cast(WordPolicy, train(self, inputs, context))
        return WordPolicy(0.0) if self.config.skill == winner else policy

    monkeypatch.setattr(Teach, "train", collapse)
    assert alone["finals"] == {"nudge": []}
    before = len(RAN)
    said = afarm(*search, "--seeds", "1001,1002,1003")
    assert said.code == 0, said.err
    assert said.json["trials"] == alone["trials"], "the same search"
    finals = {trial["number"]: trial for trial in said.json["finals"]["nudge"]}
    ranked = sorted(alone["trials"]["nudge"], key=lambda trial: -trial["win_rate"])
    assert set(finals) == {0, *(trial["number"] for trial in ranked[:2])}
    assert sum(line == "Nudge step 1" for line in RAN[before:]) == 2 * len(finals), "the first seed was there"
    chosen = finals[said.json["best"]["nudge"]]
    assert chosen["values"]["skill"] != winner
    assert chosen["win_rate"] == max(trial["win_rate"] for trial in finals.values())
    assert {trial["seeds"] for trial in finals.values()} == {3}
    assert yaml.safe_load(Path(said.json["recipe"]).read_text())["nudge"] == chosen["values"]
    page = Path(said.json["page"]).read_text()
    assert f"| {chosen['number'] + 1} (chosen) |" in page.split("finalists with 3 seeds")[1]
    rows = list(csv.DictReader(Path(said.json["page"]).with_suffix(".csv").open()))
    assert [row["seeds"] for row in rows] == ["1"] * 6 + ["3"] * len(finals)
    before = len(RAN)
    again = afarm(*search, "--seeds", "1001,1002,1003")
    assert (again.json["finals"], RAN[before:]) == (said.json["finals"], [])


def test_trials_that_differ_by_chance_are_said_to(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of policies that are one, none is known to be better."""
    monkeypatch.setattr(Teach, "train", lambda self, inputs, context: WordPolicy(0.5))
    said = afarm(*TUNE, *SKILLS, "--trials", "4", "--json")
    p = said.json["p_equal"]["nudge"]
    assert 0.5 < p <= 1
    note = f"Equal settings would lie as far apart in {100 * p:.0f} % of searches: no trial is known to be better than"
    assert f"nudge: {note}" in said.err
    assert note in Path(said.json["page"]).read_text()


BY_WORDS = ("--set", "evaluate.evaluators=[win_rate,words_said]")


def test_settings_are_chosen_by_the_win_rate_of_another_evaluator(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge likes long outputs, and the evaluator short ones: each chooses its own end of the range."""

    def terse(self: WordsSaid, inputs: EvaluationInputs) -> Evaluation:
        mean = statistics.fmean(len(output.output.split()) for output in inputs.outputs)
        each = [
            {"instruction": output.instruction.id, "terse_win_rate": 100 - 10 * len(output.output.split())}
            for output in inputs.outputs
        ]
        metrics = {"terse_win_rate": 100 - 10 * mean, "terse_se": 0.5, "words": mean}
        return Evaluation("words_said", inputs.system, metrics, tuple(each))

    monkeypatch.setattr(WordsSaid, "evaluate", terse)
    search = (*TUNE, *BY_WORDS, "--space", "nudge.skill=0.1,0.5,0.9", "--trials", "3", "--json")
    drawn = afarm(*search).json
    said = afarm(*search, "--by", "words_said")
    assert said.code == 0, said.err
    trials = said.json["trials"]["nudge"]
    best = {found["by"]: found["trials"]["nudge"][found["best"]["nudge"]]["values"] for found in (drawn, said.json)}
    assert best == {"win_rate": {"skill": 0.9}, "words_said": {"skill": 0.1}}
    assert [trial["figures"]["win_rate"] for trial in trials] == [t["win_rate"] for t in drawn["trials"]["nudge"]]
    assert [trial["win_rate"] for trial in trials] == [
        trial["figures"]["terse_win_rate"] for trial in drawn["trials"]["nudge"]
    ]
    assert [(trial["standard_error"], "terse_win_rate" in trial["figures"]) for trial in trials] == [(0.5, False)] * 3
    assert said.json["p_equal"]["nudge"] < 0.01 < drawn["p_equal"]["nudge"], "labels are drawn, words are not"
    assert said.json["page"] != drawn["page"]
    assert "Win rate by words_said on the validation split" in said.err
    assert "| win rate by words_said, % | win_rate |" in Path(said.json["page"]).read_text()
    assert yaml.safe_load(Path(said.json["recipe"]).read_text())["nudge"] == {"skill": 0.1}


def test_figures_of_two_evaluators_with_one_name_stand_apart_and_change_no_limit(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A judge fitted to other labels reads beside the shipped one, and a figure called length is no length."""
    monkeypatch.setattr(
        WordsSaid, "evaluate", lambda self, inputs: Evaluation("words_said", inputs.system, {"length": 1})
    )
    for name, weight in (("long", 1.0), ("short", -1.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "judge.json").write_text(json.dumps({"format": 1, "features": {"length": weight}}))
    search = (*TUNE, "--space", "nudge.skill=0.1,0.5,0.9", "--trials", "3", "--json", "--by", "fitted:./long")
    said = afarm(*search, "--set", "evaluate.evaluators=[win_rate,words_said,fitted:./long,fitted:./short]")
    assert said.code == 0, said.err
    for trial in said.json["trials"]["nudge"]:
        figures = trial["figures"]
        assert figures["fitted:./short fitted_win_rate"] == pytest.approx(100 - trial["win_rate"])
        assert (figures["length"] > 4, figures["words_said length"]) == (True, 1)
    of_labels = afarm(
        *search, "--by", "win_rate", "--set", "evaluate.evaluators=[win_rate,fitted:./long,fitted:./short]"
    )
    (figures, *_) = [trial["figures"] for trial in of_labels.json["trials"]["nudge"]]
    assert figures["fitted_win_rate"] + figures["fitted:./short fitted_win_rate"] == pytest.approx(100)
    swapped = "evaluate.evaluators=[win_rate,words_said,fitted:./short,fitted:./long]"
    again = afarm(*search, "--set", swapped).json
    assert [t["win_rate"] for t in again["trials"]["nudge"]] == [t["win_rate"] for t in said.json["trials"]["nudge"]]
    for name, weight in (("long", -1.0), ("short", 1.0)):
        (tmp_path / name / "judge.json").write_text(json.dumps({"format": 1, "features": {"length": weight}}))
    turned = afarm(*search, "--set", swapped)
    assert turned.json["page"] != again["page"], "trials by another judge are another search"
    assert [t["win_rate"] for t in turned.json["trials"]["nudge"]] == [
        pytest.approx(100 - t["win_rate"]) for t in again["trials"]["nudge"]
    ], "the judge that is there now, not the one whose figures lay there under its name"


def test_what_gives_no_win_rate_chooses_no_settings(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {
        ("--by", "words_said"): """add --set 'evaluate.evaluators=["win_rate", "reward", "words_said"]'""",
        ("--by", "words_sad"): "Did you mean 'words_said'?",
        ("--by", ""): "unknown evaluator ''",
        ("--by", "reward"): "--by reward: it reads no judgements",
        ("--by", "words_said", "--set", "evaluate.evaluators=[words_said]"): "add win_rate to evaluate.evaluators",
    }
    for options, message in refused.items():
        for further in ([], ["--dry-run"]):
            said = afarm(*TUNE, *SKILLS, "--trials", "2", *options, *further)
            assert (said.code, RAN) == (1, [])
            assert message in " ".join(said.err.split())
    by_words = (*TUNE, *SKILLS, *BY_WORDS, "--trials", "2", "--by", "words_said")
    said = afarm(*by_words)
    assert said.code == 1
    assert "chosen by a win rate in percent, and this evaluator gives words_said" in " ".join(said.err.split())
    assert sum(line == "Nudge step 1" for line in RAN) == 1, "the first trial ends it"
    metrics: dict[str, Any] = {"a_win_rate": None, "a_warning": "too few"}
    monkeypatch.setattr(WordsSaid, "evaluate", lambda self, inputs: Evaluation("words_said", inputs.system, metrics))
    nothing = afarm(*by_words, "--output-dir", "other", "--json")
    errors = [trial["error"] for trial in nothing.json["trials"]["nudge"]]
    assert errors == ["evaluator words_said gave no figure of what nudge made: too few"] * 2
    metrics["a_win_rate"] = 101
    assert "metric 'a_win_rate' is 101" in " ".join(afarm(*by_words, "--output-dir", "more").err.split())


def test_trials_are_paired_by_the_instructions_that_all_of_them_have() -> None:
    def trial(number: int, *values: float, win_rate: float | None = 50) -> Trial:
        return Trial("m", number, {}, win_rate, 4, by_instruction=dict(zip("abcd", values, strict=False)))

    two, failed = [trial(0, 40, 50, 60, 7), trial(1, 50, 70, 90)], trial(2, win_rate=None)
    cases = {"p": [*two, failed], "few": [*two, trial(2, 1, 2, 3)], "some": [*two, trial(2)], "one": [two[0], failed]}
    tuning = Tuning(Path(), "r", cases, {})
    # Differences 10, 20 and 30: t = 20 / (10 / √3) = 2 √3 on 2 degrees of freedom, whose tails are 1 − t / √(t² + 2)
    assert tuning.p_equal("p") == pytest.approx(1 - math.sqrt(12 / 14))
    assert [tuning.p_equal(name) for name in ("few", "some", "one")] == [None] * 3


def test_trials_are_compared_on_the_validation_split_and_leave_no_run(afarm: Afarm) -> None:
    assert afarm(*TUNE, *SKILLS, "--trials", "2").code == 0
    judged = [
        json.loads(line)
        for path in Path("afarm-runs/artifacts/evaluate").glob("*/judgements.jsonl")
        for line in path.open()
    ]
    assert judged
    assert {row["instruction"].split()[0] for row in judged} == {"validation"}
    assert not list(Path("afarm-runs/runs").glob("*"))


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(afarm: Afarm) -> None:
    whole = afarm(*TUNE, *SKILLS, "--trials", "8", "--output-dir", "whole", "--json").json["trials"]["nudge"]
    assert afarm(*TUNE, *SKILLS, "--trials", "3").code == 0
    before = len(RAN)
    said = afarm(*TUNE, *SKILLS, "--trials", "8", "--json")
    assert said.code == 0, said.err
    extended = said.json["trials"]["nudge"]
    assert [trial["values"] for trial in extended] == [trial["values"] for trial in whole]
    assert [trial["win_rate"] for trial in extended] == [trial["win_rate"] for trial in whole]
    assert sum(line == "Nudge step 1" for line in RAN[before:]) == 5, "three trials were there"


def test_a_trial_that_fails_is_kept_and_the_search_goes_on(afarm: Afarm) -> None:
    said = afarm(
        "tune",
        "--recipe",
        "light.yaml",
        "--methods",
        "diverges",
        "--space",
        "diverges.skill=0.1:0.9",
        "--trials",
        "2",
        "--json",
    )
    assert said.code == 1, "no trial of it succeeded"
    trials = said.json["trials"]["diverges"]
    assert ["loss is [nan]" in trial["error"] for trial in trials] == [True, True]
    assert said.json["best"] == {"diverges": None}
    assert said.json["recipe"] is None
    assert r"loss is \[nan\]" in Path(said.json["page"]).read_text()


def test_a_method_that_was_mended_is_tried_anew(afarm: Afarm, own_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = own_site / "light-1.2.dist-info" / "entry_points.txt"
    points.write_text(f"{points.read_text()}mine = mine\n")
    source = (
        "from afarm import hookimpl\nfrom light_plugin import Teach, TeachConfig\n\n"
        "class Mine(Teach):\n    def train(self, inputs, context):\n        {}return super().train(inputs, context)\n\n"
        "@hookimpl\ndef register_methods(register):\n    register('mine', Mine, config=TeachConfig)\n"
    )
    named = ("mine" if word == "nudge" else word for word in TUNE)
    search = (*named, "--space", "mine.skill=0.05:0.9", "--trials", "2")
    for mistake, code in (("raise KeyError('x')\n        ", 1), ("", 0)):
        (own_site / "mine.py").write_text(source.format(mistake))
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        importlib.invalidate_caches()
        files_digest.cache_clear()
        said = afarm(*search)
        assert said.code == code, said.err
        assert ("mine: nothing is chosen, since every trial failed" in said.out) is bool(code)
    assert "made before" not in said.err
    assert "made before" in afarm(*search).err


def test_what_exceeds_a_limit_is_not_chosen(afarm: Afarm) -> None:
    free = afarm(*TUNE, *SKILLS, "--trials", "6", "--json").json["trials"]["nudge"]
    ratios = sorted(trial["figures"]["length_ratio"] for trial in free)
    limit = (ratios[0] + ratios[1]) / 2
    said = afarm(*TUNE, *SKILLS, "--trials", "6", "--max-length-ratio", str(limit), "--json")
    trials = said.json["trials"]["nudge"]
    chosen = trials[said.json["best"]["nudge"]]
    assert chosen["figures"]["length_ratio"] <= limit
    assert any(trial["win_rate"] > chosen["win_rate"] for trial in trials)
    assert "past a limit" in said.err


def test_a_kl_past_the_limit_is_not_chosen_though_it_wins_more_often(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drift(self: Teach, inputs: Any, context: Any) -> WordPolicy:
        context.log_metrics(1, {"objective/kl": 10 * self.config.skill})
        return WordPolicy(inputs.start.skill + self.config.skill)

    monkeypatch.setattr(Teach, "train", drift)
    search = (*TUNE, "--space", "nudge.skill=0.1,0.5,0.9", "--trials", "3", "--json")
    free = afarm(*search, "--output-dir", "free").json
    assert free["trials"]["nudge"][free["best"]["nudge"]]["values"] == {"skill": 0.9}
    said = afarm(*search, "--max-kl", "6")
    assert said.code == 0, said.err
    trials = {trial["values"]["skill"]: trial for trial in said.json["trials"]["nudge"]}
    assert {skill: trial["excess"] for skill, trial in trials.items()} == {0.1: 0, 0.5: 0, 0.9: pytest.approx(0.5)}
    assert said.json["best"]["nudge"] == trials[0.5]["number"] != trials[0.9]["number"]
    assert trials[0.9]["win_rate"] > trials[0.5]["win_rate"]
    assert f"| {trials[0.9]['number'] + 1} (past a limit) | 0.9 |" in Path(said.json["page"]).read_text()
    assert yaml.safe_load(Path(said.json["recipe"]).read_text())["nudge"] == {"skill": 0.5}


def test_finalists_that_all_exceed_a_limit_with_other_seeds_are_said_to(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page shows trials within the limit: what lost them is the seeds that followed."""

    trained: list[Teach] = []

    def drift(self: Teach, inputs: Any, context: Any) -> WordPolicy:
        trained.extend([self] * isinstance(self, Nudge))
        context.log_metrics(1, {"objective/kl": 90 if len(trained) > 2 else 1})
        return WordPolicy(inputs.start.skill + self.config.skill)

    monkeypatch.setattr(Teach, "train", drift)
    said = afarm(*TUNE, *SKILLS, "--trials", "2", "--max-kl", "9", "--seeds", "1001,1002")
    assert said.code == 1
    assert "nothing is chosen, since every finalist with all seeds failed or is past a limit" in said.out
    assert all(trial["excess"] == 0 for trial in _stored("nudge-*.jsonl"))


def _stored(name: str) -> list[dict[str, Any]]:
    [path] = Path("afarm-runs/tunings").glob(f"*/{name}")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "nudge"], "nudge: it states no settings to search (search_space): name some with --space"),
        (["--methods", "nudge", "--space", "nudge.skil=0.1:0.9"], "no such setting to search. Did you mean 'skill'"),
        (["--methods", "nudge", "--space", "nudge.skill=0.9:0.1"], "is no range: two numbers, the lower first"),
        (["--methods", "nudge", "--space", "nudge.skill=-1:0.5"], "-1 is refused"),
        (["--methods", "nudge", "--space", "nudge.skill=0.5"], "leaves nothing to choose"),
        (["--methods", "nudge", "--space", "skill"], "write METHOD.SETTING=LOW:HIGH"),
        (["--methods", "nudge", "--space", "direct.skill=0.1:0.9"], "direct is not among --methods nudge"),
        (["--methods", "direct", *["--space", "direct.skill=0.1:0.9"] * 2], "--space direct.skill is given twice"),
        (["--methods", "nudg", *SKILLS], "Did you mean 'nudge'"),
        (["--methods", "nudge", *SKILLS, "--seeds", "a"], "whole numbers"),
        (["--methods", "nudge", *SKILLS, "--max-kl", "1", "--set", "evaluate.evaluators=[reward]"], "add win_rate"),
    ],
)
def test_a_search_that_can_choose_nothing_is_refused_before_it_begins(
    afarm: Afarm, arguments: list[str], message: str
) -> None:
    said = afarm("tune", "--recipe", "light.yaml", *arguments)
    assert said.code == 1
    assert message in said.err
    assert RAN == []


def test_an_error_breaks_no_table_of_the_page(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Teach, inputs: Any, context: Any) -> WordPolicy:
        if isinstance(self, Nudge) and self.config.skill != 0.5:
            raise TrainingError("rank 0 | rank 1: no memory")
        return WordPolicy(0.5)

    monkeypatch.setattr(Teach, "train", fail)
    page = Path(afarm(*TUNE, *SKILLS, "--trials", "2", "--json").json["page"]).read_text()
    header, _, first, failed = [line for line in page.splitlines() if line.startswith("|")]
    assert r"rank 0 \| rank 1: no memory" in failed
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in (header, first, failed)}) == 1


@pytest.mark.parametrize("further", [[], ["--dry-run"]])
def test_a_missing_optuna_is_said_before_the_first_trial(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch, further: list[str]
) -> None:
    """The first trial has the recipe's own settings: only the second would need it."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = afarm(*TUNE, *SKILLS, "--trials", "2", *further)
    assert (said.code, RAN) == (1, [])
    assert "tuning needs Optuna: pip install" in said.err


def test_one_trial_is_wrong_usage(afarm: Afarm) -> None:
    said = afarm(*TUNE, *SKILLS, "--trials", "1")
    assert said.code == 2
    assert "--trials" in said.err


def test_the_plan_says_how_many_trials_there_would_be(afarm: Afarm) -> None:
    said = afarm(*TUNE, *SKILLS, "--trials", "5", "--seeds", "1,2", "--dry-run")
    assert said.code == 0
    assert "10 times" in said.out
    assert RAN == []


def test_a_trial_whose_kl_is_no_number_has_failed(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(self: Teach, inputs: Any, context: Any) -> WordPolicy:
        context.log_metrics(1, {"objective/kl": math.nan if self.config.skill != 0.5 else 0.1})
        return WordPolicy(inputs.start.skill + self.config.skill)

    monkeypatch.setattr(Teach, "train", diverge)
    said = afarm(*TUNE, *SKILLS, "--trials", "3", "--max-kl", "1", "--json")
    assert said.code == 0, said.err
    [first, *others] = said.json["trials"]["nudge"]
    assert (first["error"], said.json["best"]["nudge"]) == ("", 0)
    assert all("the KL of what nudge made is NaN" in trial["error"] for trial in others)


def test_a_space_that_holds_few_configurations_is_tried_once_and_the_search_ends(afarm: Afarm) -> None:
    said = afarm(*TUNE, "--space", "nudge.skill=0.2,0.5,0.9", "--trials", "16", "--json")
    assert said.code == 0, said.err
    values = [trial["values"]["skill"] for trial in said.json["trials"]["nudge"]]
    assert values[0] == 0.5, "the recipe's own, which is one of the three"
    assert sorted(values) == [0.2, 0.5, 0.9]
    assert "nudge: 3 trials instead of 16, which are all configurations of its space." in said.err
    assert "3 trials instead of 16" in Path(said.json["page"]).read_text()
    before = len(RAN)
    assert afarm(*TUNE, "--space", "nudge.skill=0.2,0.5,0.9", "--trials", "16").code == 0
    assert RAN[before:] == []


def test_the_plan_counts_no_more_trials_than_a_space_holds(afarm: Afarm) -> None:
    said = afarm(*TUNE, "--space", "nudge.skill=0.2,0.9", "--trials", "16", "--seeds", "1,2", "--dry-run")
    assert "nudge 6 times" in said.out, "the recipe's own and two, for each of two seeds"


def test_a_range_and_a_list_of_the_same_numbers_are_two_searches(afarm: Afarm) -> None:
    ends = afarm(*TUNE, "--space", "nudge.skill=0.2,0.9", "--trials", "3", "--json").json["trials"]["nudge"]
    within = afarm(*TUNE, "--space", "nudge.skill=0.2:0.9", "--trials", "3", "--json").json["trials"]["nudge"]
    assert {trial["values"]["skill"] for trial in ends[1:]} == {0.2, 0.9}
    assert not {trial["values"]["skill"] for trial in within[1:]} & {0.2, 0.9}


def test_a_limit_on_what_a_method_does_not_measure_is_refused_before_the_first_trial(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Direct, "measures_kl", False, raising=False)
    command = ("tune", "--recipe", "light.yaml", "--methods", "direct", "--space", "direct.skill=0.1:0.9")
    said = afarm(*command, "--max-kl", "1")
    assert said.code == 1
    assert "direct: it measures no KL to the start" in said.err
    assert RAN == []
    for limit in (["--max-kl", "0"], ["--max-length-ratio", "0"], ["--max-kl", "inf"]):
        refused = afarm(*TUNE, *SKILLS, *limit)
        assert (refused.code, "above 0" in refused.err) == (1, True), refused.err
    assert RAN == []


def test_the_page_marks_the_trials_past_a_limit(afarm: Afarm) -> None:
    said = afarm(*TUNE, *SKILLS, "--trials", "6", "--max-length-ratio", "1.05", "--json")
    past = [trial["number"] + 1 for trial in said.json["trials"]["nudge"] if trial["excess"] > 0]
    page = Path(said.json["page"]).read_text()
    assert past
    assert [int(n) for n in re.findall(r"^\| (\d+) \(past a limit\) \|", page, re.MULTILINE)] == past


def test_a_configuration_that_is_refused_is_a_trial_that_failed(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value alone is fine, but one does not go with the recipe's other settings."""

    def check(self: Teach, reward_model: object = None) -> list[str]:
        return ["skill 0.9 needs more"] if self.config.skill == 0.9 else []

    monkeypatch.setattr(Teach, "check", check)
    said = afarm(*TUNE, "--space", "nudge.skill=0.2,0.9", "--trials", "3", "--json")
    assert said.code == 0, said.err
    errors = {trial["values"]["skill"]: trial["error"] for trial in said.json["trials"]["nudge"]}
    assert "skill 0.9 needs more" in errors[0.9]
    assert (errors[0.5], errors[0.2]) == ("", "")


def test_a_search_that_does_not_fit_its_budget_says_so_before_it_buys(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, "price", lambda self: Price(10, 10))
    one = afarm("cost", "--recipe", "light.yaml", "--method", "nudge", "--json").json
    budget = ["--budget", str(3 * sum(judge["dollars"] for judge in one["judges"]))]
    fits = afarm(*TUNE, *SKILLS, "--trials", "2", *budget, "--dry-run")
    assert "does not fit the budget" not in fits.err
    search = (*TUNE, *SKILLS, "--trials", "8", *budget)
    for command in ((*search, "--dry-run"), search):
        assert "does not fit the budget" in " ".join(afarm(*command).err.split())


def test_numbers_of_a_space_are_numbers_however_they_are_written(afarm: Afarm) -> None:
    said = afarm(*TUNE, "--space", "nudge.skill=2e-1,5e-1", "--trials", "4", "--json")
    assert [trial["values"]["skill"] for trial in said.json["trials"]["nudge"]] == [0.5, 0.2], "its own is one of them"
    assert afarm(*TUNE, "--space", "nudge.skill=1e-3:5e-1", "--trials", "2").code == 0


def test_a_search_that_is_killed_within_a_trial_goes_on_to_the_same_trials(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = afarm(*TUNE, *SKILLS, "--trials", "4", "--output-dir", "whole", "--json").json["trials"]["nudge"]
    train = Teach.train

    def die(self: Teach, inputs: Any, context: Any) -> WordPolicy:
        if self.config.skill == whole[2]["values"]["skill"]:
            raise KeyboardInterrupt
        return cast(WordPolicy, train(self, inputs, context))

    with monkeypatch.context() as killed:
        killed.setattr(Teach, "train", die)
        said = afarm(*TUNE, *SKILLS, "--trials", "4")
    assert said.code == 130
    assert "run the same command to go on" in said.err
    again = afarm(*TUNE, *SKILLS, "--trials", "4", "--json").json["trials"]["nudge"]
    kept = ("values", "win_rate", "standard_error", "figures")
    assert [[trial[name] for name in kept] for trial in again] == [[trial[name] for name in kept] for trial in whole]


def test_a_trial_took_what_its_own_stages_took_though_they_are_reused(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Teach.train

    def take_time(self: Teach, inputs: Any, context: Any) -> WordPolicy:
        time.sleep(0.4)
        return cast(WordPolicy, train(self, inputs, context))

    monkeypatch.setattr(Teach, "train", take_time)
    said = afarm(*TUNE, *SKILLS, "--trials", "2", "--json")
    [trials] = Path(said.json["page"]).parent.glob("nudge-*.jsonl")
    trials.unlink()
    again = afarm(*TUNE, *SKILLS, "--trials", "2", "--json")
    took = [[trial["seconds"] for trial in each.json["trials"]["nudge"]] for each in (said, again)]
    assert took[0] == took[1]
    assert min(took[0]) >= 0.4
