"""What each kind of labels is worth, judged by people, against differences worked by hand."""

from __future__ import annotations

import pytest

from afarm import Bounded, ConfigError, FinishedRun, StudyRequest
from afarm.core.plugins import discover
from afarm_plugins.studies.settings import TransferConfig
from afarm_plugins.studies.transfer import Transfer

REQUEST = StudyRequest("ppo", (1, 2, 3))


def test_labels_differ_and_people_judge_all() -> None:
    runs = Transfer(TransferConfig(methods="ppo", labelled_by="crowd,pool+0.25")).grid(REQUEST)
    assert len(runs) == 6
    assert {run.settings[2] for run in runs} == {"evaluate.annotator=crowd"}
    assert {run.settings[:2] for run in runs} == {
        ("annotate.annotator=crowd", "annotate.label_noise=0"),
        ("annotate.annotator=pool", "annotate.label_noise=0.25"),
    }


def test_the_difference_from_peoples_labels_is_paired_by_seed() -> None:
    study = Transfer(TransferConfig(methods="ppo", labelled_by="crowd,pool+0.25"))
    rates = {"crowd": 50.0, "pool + 25% flipped": 46.0}
    finished = [
        FinishedRun(run, run.label, {"win_rate": rates[str(run.place["labels"])] + 10 * run.seed})
        for run in study.grid(REQUEST)
    ]
    [table] = study.analyse(finished).tables
    assert [row[:3] for row in table.rows] == [["ppo", "crowd", 3], ["ppo", "pool + 25% flipped", 3]]
    assert [row[-1] for row in table.rows] == [None, Bounded(-4, -4, -4)]
    halfway = study.analyse(finished[:4]).tables[0].rows  # the pool has its first seed alone
    assert halfway[1][-1] == Bounded(-4)


def test_without_peoples_labels_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(ConfigError, match="must name crowd"):
        Transfer(TransferConfig(labelled_by="pool,greedy_gpt4"))


def test_peoples_own_preferences_take_the_place_of_the_stand_ins() -> None:
    study = Transfer(TransferConfig(methods="ppo,dpo", labelled_by="crowd,pool", people_preferences=["ppo=mine.jsonl"]))
    runs = study.grid(StudyRequest("ppo", (1,)))
    assert [(run.method, run.place["labels"], run.settings) for run in runs] == [
        ("ppo", "people", ("preferences=mine.jsonl",)),
        ("ppo", "pool", ("annotate.annotator=pool", "annotate.label_noise=0")),
        ("dpo", "pool", ("annotate.annotator=pool", "annotate.label_noise=0")),
    ]
    findings = study.analyse([FinishedRun(run, run.label, {"win_rate": 50.0 + n}) for n, run in enumerate(runs)])
    [found] = findings.tables
    assert found.title.startswith("Win rate by the recipe's annotator")
    assert [row[-1] for row in found.rows] == [None, Bounded(1), None]
    assert "dpo has no preferences of people: it learned from simulated labels alone." in findings.notes


@pytest.mark.parametrize(("name", "runs"), [("kl", 12), ("data-size", 12)])
def test_a_sweep_with_a_name_has_values_of_its_own(name: str, runs: int) -> None:
    component = discover(check_configs=False).get("studies", name)
    assert len(component.load()(component.settings({})).grid(REQUEST)) == runs
