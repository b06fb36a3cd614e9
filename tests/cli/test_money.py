"""`afarm cost`, `afarm ledger` and the options about money."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from light_plugin import RAN, CountingJudge
from said import Afarm

from afarm.core.judge import ChatRequest, Completion, Price
from afarm.experiment.dry_run import ENOUGH_ANSWERS
from afarm.judging.ledger import Ledger
from afarm.storage.text import dollars


def test_cost_and_dry_run_agree_and_send_nothing(afarm: Afarm) -> None:
    cost = afarm("cost", "--recipe", "light.yaml", "--json")
    dry = afarm("run", "--recipe", "light.yaml", "--dry-run", "--json")
    assert (cost.code, dry.code) == (0, 0)
    assert cost.json == dry.json
    (judge,) = cost.json["judges"]
    assert judge["calls"] > 0
    assert judge["most_dollars"] > 0
    assert (RAN, CountingJudge.asked) == ([], 0)
    shown = afarm("cost", "--recipe", "light.yaml")
    assert f"About {judge['calls']} judge calls" in shown.out
    assert f"at most {dollars(judge['most_dollars'])}" in shown.out


def test_what_a_model_may_think_is_in_the_tokens_and_the_dollars_of_an_estimate(afarm: Afarm) -> None:
    judge = ["--judge", "openai:gpt-5", "--price", "openai:gpt-5=0/1", "--allow-degraded"]
    found = afarm("cost", "--recipe", "light.yaml", *judge, "--json").json
    (total,) = found["judges"]
    for tokens, figure in (("output_tokens", "dollars"), ("most_output_tokens", "most_dollars")):
        assert total[tokens] > 4096 * total["calls"] > 0
        assert total[figure] == pytest.approx(total[tokens] / 1e6)
        assert sum(stage[figure] for stage in found["stages"]) == pytest.approx(total[figure])
    without = afarm("cost", "--recipe", "light.yaml", *judge, "--set", "openai.thinking_tokens=0", "--json").json
    (less,) = without["judges"]
    assert total["most_output_tokens"] - less["most_output_tokens"] == 4096 * total["calls"]


THINKS = ["--judge", "openai:gpt-5", "--price", "openai:gpt-5=0/100", "--allow-degraded"]


def test_a_plan_over_its_budget_says_so_and_which_setting_makes_it_fit(afarm: Afarm) -> None:
    plan = afarm("cost", "--recipe", "light.yaml", *THINKS, "--json").json["judges"][0]
    assert plan["least_dollars"] < plan["dollars"] / 2
    assert plan["assumed"] == plan["calls"]
    budget = str(2 * plan["least_dollars"])
    dry = afarm("run", "--recipe", "light.yaml", *THINKS, "--budget", budget, "--dry-run")
    for word in (
        "The plan does not fit the budget",
        "of the estimate is reasoning tokens, at their limit, because no answers exist yet to estimate from",
        f"with --set openai.effort=none it is expected to cost {dollars(plan['least_dollars'])}",
    ):
        assert word in " ".join(dry.out.split())
    mended = afarm(
        "run", "--recipe", "light.yaml", *THINKS, "--budget", budget, "--dry-run", "--set", "openai.effort=none"
    )
    assert "does not fit" not in mended.out
    assert "does not fit" not in afarm("run", "--recipe", "light.yaml", *THINKS, "--budget", "1e6", "--dry-run").out


def test_an_estimate_goes_by_the_first_answers_of_the_judge(afarm: Afarm) -> None:
    judge = afarm("cost", "--recipe", "light.yaml", *THINKS, "--json").json["judges"][0]
    with Ledger(Path("afarm-runs/ledger.sqlite")) as ledger:
        for number in range(ENOUGH_ANSWERS):
            answer = Completion("Output (a)", 100, 250, key=f"k{number}")
            ledger.resolve([(ChatRequest("strong", annotator="somebody"), judge["judge"], answer)], "earlier")
    learned = afarm("cost", "--recipe", "light.yaml", *THINKS, "--json").json["judges"][0]
    assert learned["output_tokens"] == 250 * learned["calls"] < judge["output_tokens"]
    assert learned["assumed"] == 0
    assert learned["most_dollars"] == judge["most_dollars"], "a budget reserves the worst case all the same"


def test_the_same_command_again_still_says_what_the_run_has_cost(afarm: Afarm) -> None:
    first = afarm("run", "--recipe", "light.yaml")
    calls = afarm("run", "--recipe", "light.yaml", "--json")
    spend = calls.json["spend"]
    assert re.search(rf"for {spend['calls']} calls +│", first.out), "none was reused"
    shown = " ".join(calls.err.replace("│", " ").split())
    assert f"for {spend['calls']} calls (this time $0.00 for 0)" in shown
    assert spend["calls"] > 0


def test_what_is_reused_is_counted_in_answers_as_the_ledger_counts(afarm: Afarm) -> None:
    """One answer of a batch holds several judgements."""
    afarm("annotate", "--recipe", "light.yaml", "--annotator", "gpt4_1")
    counted = CountingJudge.asked
    shutil.rmtree("afarm-runs/artifacts/annotate")
    again = afarm("run", "--recipe", "light.yaml", "--annotator", "gpt4_1", "--json").json["spend"]["this_time"]
    assert again["answers_reused"] == sum(row["reused"] for row in afarm("ledger", "--json").json["by"]["run"])
    assert 0 < again["answers_reused"] <= counted


def test_half_the_estimate_as_a_budget_stops_at_or_under_it_and_says_how_to_go_on(afarm: Afarm) -> None:
    most = afarm("cost", "--recipe", "light.yaml", "--json").json["judges"][0]["most_dollars"]
    stopped = afarm("run", "--recipe", "light.yaml", "--budget", str(most / 2))
    assert stopped.code == 1
    assert "larger --budget to go on" in stopped.err
    spent = sum(account["dollars"] for account in afarm("ledger", "--json").json["by"]["run"])
    assert 0 < spent <= most / 2 + 1e-9
    asked = CountingJudge.asked
    assert afarm("run", "--recipe", "light.yaml", "--budget", str(most * 2)).code == 0
    rows = afarm("ledger", "--json").json["by"]["judge"]
    assert sum(row["answers"] for row in rows) == CountingJudge.asked > asked


def test_the_ledger_is_shown_and_exported(afarm: Afarm, tmp_path: Path) -> None:
    nothing = afarm("ledger")
    assert nothing.code == 1
    assert "no ledger" in nothing.err
    assert afarm("ledger", "--output-dir", "typo").code == 1
    assert not (tmp_path / "typo").exists()
    assert afarm("annotate", "--recipe", "light.yaml").code == 0
    shown = afarm("ledger")
    for word in ("by run", "by judge", "by annotator", "by day", "counting", "chatgpt_1"):
        assert word in shown.out
    assert afarm("ledger", "--export", "all.jsonl").code == 0
    rows = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    assert len(rows) == CountingJudge.asked
    assert "no batch 'x'" in afarm("ledger", "--forget", "x").err
    assert afarm("ledger", "--export", "no/such/place.csv").code == 1


def test_the_figures_of_the_ledger_are_whole_in_a_narrow_terminal(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert afarm("annotate", "--recipe", "light.yaml").code == 0
    with closing(sqlite3.connect("afarm-runs/ledger.sqlite")) as database, database:
        database.execute("UPDATE completions SET price = NULL, input_tokens = 12345678 WHERE rowid % 2 = 0")
        database.execute("UPDATE completions SET run = 'a-run-whose-name-is-as-long-as-names-of-runs-are-toy-ppo-42'")
        database.execute(
            "INSERT INTO reuse SELECT run, judge, annotator, '2026-11-21', 12, 0.5 FROM completions LIMIT 1"
        )
    shown = afarm("ledger").out
    for heading in ("answers", "tokens in", "out", "dollars", "unpriced", "reused", "saved"):
        assert f" {heading}" in shown.splitlines()[2]
    assert "…" not in shown


def test_options_about_money_become_settings(afarm: Afarm) -> None:
    wrong = afarm("cost", "--recipe", "light.yaml", "--price", "counting=1")
    assert "--price counting=1 is not of the form" in wrong.err
    for option in ("counting", "1/2", "=1/2"):
        malformed = afarm("cost", "--recipe", "light.yaml", "--price", option)
        assert malformed.err.startswith(f"Error: --price {option} is not of the form"), "one error, and no other"
    right = ["--price", "counting=1/2/0.5", "--max-concurrency", "3", "--allow-degraded"]
    assert afarm("cost", "--recipe", "light.yaml", *right).code == 0
    assert "--batch-api: no batch endpoint" in afarm("cost", "--recipe", "light.yaml", "--batch-api").err
    assert "greater than 0" in afarm("cost", "--recipe", "light.yaml", "--max-concurrency", "0").err


def test_what_a_judge_would_cost_is_told_without_a_key_and_asking_it_is_not_begun(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    judge = ["--recipe", "light.yaml", "--judge", "openai:gpt-4.1", "--allow-degraded"]
    assert "Nothing was sent" in afarm("cost", *judge).out
    assert afarm("run", *judge, "--dry-run").code == 0
    assert afarm("sample", *judge[:2], "--policy", "openai:gpt-4.1", "--dry-run").code == 0
    RAN.clear()
    for command in (["run", *judge], ["sample", *judge[:2], "--policy", "openai:gpt-4.1"]):
        said = afarm(*command)
        assert (said.code, RAN) == (1, [])
        assert "set the environment variable OPENAI_API_KEY" in said.err


def test_a_damaged_ledger_is_recovered_by_the_command_that_the_error_names(afarm: Afarm) -> None:
    assert afarm("run", "--recipe", "light.yaml").code == 0
    assert "nothing to recover" in afarm("ledger", "--recover").err
    ledger = Path("afarm-runs/ledger.sqlite")
    with ledger.open("r+b") as file:
        file.write(b"\xa5" * 4096)  # the first page
    shutil.rmtree("afarm-runs/artifacts/annotate")
    failed = afarm("run", "--recipe", "light.yaml")
    assert (failed.code, "`afarm ledger --recover --output-dir afarm-runs`" in failed.err) == (1, True)
    recovered = afarm("ledger", "--recover", "--json")
    assert recovered.code == 0
    assert "answers are saved in afarm-runs/ledger.sqlite, with all spending; the damaged file is" in recovered.err
    assert "Nothing is lost." in recovered.err
    asked = CountingJudge.asked
    assert sum(row["answers"] for row in recovered.json["by"]["judge"]) == asked
    assert afarm("run", "--recipe", "light.yaml").code == 0
    assert CountingJudge.asked == asked
    with ledger.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 4096)  # the page that leads to the answers
    lost = afarm("ledger", "--recover").err
    assert lost.startswith("0 answers are saved in afarm-runs/ledger.sqlite, with all spending")
    assert "Damaged in it: completions; answers that cost $" in lost
    assert "`sqlite3 afarm-runs/ledger.damaged-2.sqlite .recover` may read more" in lost


@pytest.mark.parametrize("empty", [True, False])
def test_a_ledger_that_is_gone_beside_what_it_paid_for_is_noticed(afarm: Afarm, empty: bool) -> None:
    assert afarm("run", "--recipe", "light.yaml").code == 0
    asked, ledger = CountingJudge.asked, Path("afarm-runs/ledger.sqlite")
    ledger.unlink()
    if empty:
        ledger.touch()
    shutil.rmtree("afarm-runs/artifacts/annotate")
    refused = afarm("run", "--recipe", "light.yaml")
    assert refused.code == 1
    assert "is missing or empty, and 1 artifacts in afarm-runs were made with" in refused.err
    assert CountingJudge.asked == asked
    assert afarm("ledger", "--start-anew").code == 0
    assert afarm("run", "--recipe", "light.yaml").code == 0
    assert CountingJudge.asked > asked
    assert "is there: move it away first" in afarm("ledger", "--start-anew").err


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        (["run"], "rows.preference, rows.evaluation"),
        (["run", "--set", "evaluate.split=validation"], "rows.preference, rows.validation"),
        (["annotate"], "rows.preference"),
        (["fit-reward"], "rows.preference"),
        (["compare", "--methods", "direct,nudge"], "rows.preference, rows.evaluation"),
    ],
    ids=str,
)
def test_every_command_that_buys_says_first_that_its_plan_does_not_fit_the_budget(
    afarm: Afarm, command: list[str], rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingJudge, "price", lambda judge: Price(1.0, 100.0))
    most = afarm("cost", "--recipe", "light.yaml", "--json").json["judges"][0]["most_dollars"]
    said = afarm(*command, "--recipe", "light.yaml", "--budget", str(most / 1000))
    assert said.code == 1
    text = " ".join(said.err.split())
    assert "The plan does not fit the budget" in text
    needed = float(text.partition("it takes --budget ")[2].partition(",")[0])
    [expected] = re.findall(r"expected to cost \$([0-9.]+)", text)
    assert float(expected) <= needed <= float(expected) + 0.011
    assert f"less than 1% of the rows ({rows})" in text
    assert CountingJudge.asked == 0


def test_best_of_several_n_that_does_not_fit_its_budget_says_so(afarm: Afarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr("afarm_plugins.best_of_n.command.curve", lambda farm, numbers: iter(()))
    asked = ("--judge", "openai:gpt-4o", "--preferences", "own.json", "--set", "rows.evaluation=40")
    command = ("best-of-n", *asked)
    nouns = ("cat", "dog", "fox", "goat", "fig", "plum", "oak", "drum")
    tasks = [f"Describe the {noun} without the words new and wet." for noun in nouns]
    Path("own.json").write_text(json.dumps([{"prompt": task, "chosen": "yes", "rejected": "no"} for task in tasks]))
    once = afarm("cost", "--method", "best_of_n", *asked, "--json").json["judges"][0]["dollars"]
    for n, fits in (("1", True), ("1,2,4", False)):
        said = afarm(*command, "--n", n, "--budget", str(1.5 * once))
        assert said.code == 0, said.err
        assert ("does not fit the budget" not in said.err) is fits
    planned = afarm(*command, "--n", "1,2,4", "--dry-run", "--json", "--output-dir", "looked-at").json
    assert [judge["dollars"] for judge in planned["judges"]] == pytest.approx([3 * once])
    assert not Path("looked-at").exists()


def refuse_in(directory: Path) -> Callable[[Path], None]:
    def keep_private(path: Path) -> None:
        if directory.samefile(path.parent):
            raise OSError(errno.EROFS, "Read-only file system")

    return keep_private


def test_a_ledger_that_may_only_be_read_is_shown_with_what_its_log_holds(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    afarm("annotate", "--recipe", "light.yaml")
    directory = tmp_path / "afarm-runs"
    whole = afarm("ledger", "--json").json["by"]["run"]
    with Ledger(directory / "ledger.sqlite") as writer:  # while it is open, its log holds what it writes
        writer.database.write(lambda database: database.execute("UPDATE completions SET price = 2 * price"))
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        monkeypatch.setattr("afarm.judging.sqlite_database.keep_private", refuse_in(directory))
        said = afarm("ledger", "--json")
        assert said.code == 0, said.err
        shown = said.json["by"]["run"]
        assert [row["dollars"] for row in shown] == [pytest.approx(2 * row["dollars"]) for row in whole]
    said = afarm("run", "--recipe", "light.yaml", "--seed", "9")
    assert "ledger.sqlite cannot be used: [Errno 30] Read-only file system; make room and see to it" in said.err
