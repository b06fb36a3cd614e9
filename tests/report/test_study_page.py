"""The page of a study as text: its numbers are those of its tables, and nothing that it shows is markup."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from afarm.experiment.studies.progress import GridProgress
from afarm.experiment.studies.study import Bounded, Findings, FinishedRun, StudyRun
from afarm.report.study_page import MOST_RUNS, ShownStudy, cell_parts, number_columns, render_study

Study = tuple[GridProgress, Findings]


def test_cells_have_their_text_their_interval_and_the_number_they_sort_by(findings: Study) -> None:
    table = findings[1].tables[0]
    assert number_columns(table) == [False, True, True]
    forms = list(table.columns.values())
    assert [cell_parts(row[1], forms[1])[2] for row in table.rows] == ["0.1", "", "1.0", "0.03"]
    assert [cell_parts(row[2], forms[2]) for row in table.rows] == [
        ("+60.0", "55.0 to 65.0", "60.0"),
        ("–", "", ""),
        ("−2.0", "−3.0 to +1.0", "-2.0"),
        ("+50.0", "", "50.0"),
    ]


def test_a_number_that_json_does_not_know_is_unknown() -> None:
    assert cell_parts(Bounded(float("nan")), ".1f")[2] == ""


def test_a_page_says_what_is_missing_what_failed_and_that_judges_are_formulas(
    findings: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afarm.report.page_shell.plotly_script", lambda: None)
    progress, found = findings
    page = render_study(ShownStudy("sweep", "afarm study sweep", progress, found))
    assert "1 run has failed." in page
    assert "These preferences are simulated." in page
    assert "offline judge" not in page, "it may be a fitted one"
    assert 'id="stopped"' not in page
    one = replace(found, plots=[replace(found.plots[2], series=[found.plots[2].series[0]._replace(name="crowd")])])
    assert '<span class="by">crowd</span>' in render_study(ShownStudy("sweep", "", progress, one))
    assert "pip install" in page, "as there is no plotly"
    stopped = replace(progress, failed={})
    assert "2 of 3 runs are there, 1 missing" in render_study(ShownStudy("sweep", "", stopped, found))


def test_flags_stand_before_the_ranking_and_not_among_the_notes(findings: Study) -> None:
    progress, found = findings
    page = render_study(ShownStudy("x", "", progress, replace(found, notes=["Read it so.", "Flag: ppo: by place"])))
    listed = "<li>Flag: ppo: by place</li>"
    assert page.count(listed) == 1
    assert page.index('id="flags"') < page.index(listed) < page.index('id="result"') < page.index("Read it so.")


def test_nothing_of_a_study_is_markup(findings: Study) -> None:
    page = render_study(ShownStudy("<b>", "<b>", *findings))
    assert "<img" not in page
    assert "<b>" not in page
    assert page.count("<script") == page.count("</script>") == 4
    links = re.findall(r'href="([^"#][^"]*)"', page)
    assert all(re.fullmatch(r"(\.\./\.\./runs/)?[\w.%-]+(/report\.html)?|data:,", link) for link in links), links


def test_of_many_runs_the_first_are_listed() -> None:
    runs = [StudyRun("ppo", seed) for seed in range(MOST_RUNS + 7)]
    progress = GridProgress(runs, [FinishedRun(run, f"run-{run.seed}", {"kl": 1.0}) for run in runs])
    page = render_study(ShownStudy("sweep", "", progress, Findings()))
    assert page.count("report.html") == MOST_RUNS
    assert "7 more are in the file" in page
