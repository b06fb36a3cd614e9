"""What the page says that judges said, against the ledger of a real light run and answers worked by hand."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from afarm.core.errors import StoreError
from afarm.core.records import JudgedPair
from afarm.judging.ledger import Ledger
from afarm.results.read_only_ledger import open_ledger
from afarm.storage.rows import read_rows
from afarm_plugins.view.app import View
from afarm_plugins.view.stores import ledger_accounts
from afarm_plugins.view.votes import find_comparison, find_reason, votes_on

IdOf = Callable[[View, str], str]


def test_votes_in_both_orders_make_the_label(view: View, made: Path, id_of: IdOf) -> None:
    run = view.run(id_of(view, "nudge"))
    checked = 0
    with open_ledger(made / "ledger.sqlite") as ledger:
        assert ledger is not None
        for row in read_rows(run.directory / "outputs.jsonl"):
            judged = JudgedPair.from_row(row)
            if judged.pair.identical:
                assert votes_on(ledger, row) == []
                continue
            own = [vote for vote in votes_on(ledger, row) if vote["own"]]
            assert sorted(vote["order"] for vote in own) == ["12", "21"]
            assert sum(vote["p2"] for vote in own) / 2 == pytest.approx(judged.win)
            # The judge prefers more words, and the first of two that have as many.
            words = [len(text.split()) for text in (judged.pair.output_1, judged.pair.output_2)]
            for vote in own:
                first, second = words if vote["order"] == "12" else words[::-1]
                assert vote["p2"] == float((first >= second) == (vote["order"] == "21"))
            assert {vote["annotator"] for vote in own} == {row["member"]}
            assert all(vote["price"] == 0.001 and vote["text"] and vote["prompt"] for vote in own)
            checked += 1
    assert checked >= 3


def test_a_pair_has_its_figures_and_votes_on_the_page(view: View, id_of: IdOf) -> None:
    run = id_of(view, "nudge")
    shown = view.outputs(run, {"verdict": "win", "count": "1"})["rows"][0]
    pair = view.pair(run, shown["number"])
    assert pair["verdict"] == "win"
    assert any(vote["says"] == "output_2" for vote in pair["votes"])


def test_looking_changes_nothing_not_even_beside_the_ledger(made: Path) -> None:
    def state() -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in made.iterdir() if p.is_file()}

    before, mode = state(), (made / "ledger.sqlite").stat().st_mode
    with open_ledger(made / "ledger.sqlite") as ledger:
        assert ledger is not None
        ledger.read("SELECT COUNT(*) FROM completions")
        with pytest.raises(StoreError, match="open for reading only"):
            ledger.resolve([], "run")
    assert state() == before
    assert (made / "ledger.sqlite").stat().st_mode == mode


def test_a_ledger_that_is_written_meanwhile_is_read(tmp_path: Path) -> None:
    place = tmp_path / "ledger.sqlite"
    with Ledger(place) as writing:
        writing.database.write(lambda db: db.execute("INSERT INTO spent VALUES ('run', 2.5)"))
        with open_ledger(place) as ledger:
            assert ledger is not None
            assert ledger.read("SELECT dollars FROM spent") == [(2.5,)]
            writing.database.write(lambda db: db.execute("UPDATE spent SET dollars = 3"))
            assert ledger.read("SELECT dollars FROM spent") == [(3.0,)]


def test_ledgers_that_cannot_be_read_say_so(tmp_path: Path) -> None:
    assert ledger_accounts(tmp_path / "none")["missing"] is True
    (tmp_path / "text").write_text("no database" * 100)
    assert "cannot be read" in ledger_accounts(tmp_path / "text")["problem"]
    with Ledger(tmp_path / "newer") as ledger:
        ledger.database.write(lambda db: db.execute("PRAGMA user_version = 99"))
    assert "another version" in ledger_accounts(tmp_path / "newer")["problem"]
    assert sorted(os.listdir(tmp_path)) == ["newer", "text"]


def test_accounts_are_those_of_the_command(made: Path, view: View, id_of: IdOf) -> None:
    by = ledger_accounts(made / "ledger.sqlite")["by"]
    [judge] = by["judge"]
    calls = sum(row["answers"] for row in by["account"])
    assert (judge["name"], judge["answers"]) == ("counting:", calls)
    assert judge["dollars"] == pytest.approx(0.001 * calls)


def test_what_a_study_paid_is_told_by_run_and_a_shared_stage_counts_once(made: Path, view: View, id_of: IdOf) -> None:
    [ledger] = view.ledgers()["ledgers"]
    runs = {run.id: run for run in view.sources.runs().values()}
    oldest = list(runs.values())[-1]
    spent = {row["id"]: row for row in ledger["by"]["run"]}
    assert spent.keys() <= runs.keys()
    assert sum(row["dollars"] for row in spent.values()) == pytest.approx(ledger["by"]["judge"][0]["dollars"])
    for run in runs.values():
        assert run.record is not None
        stages = [s for s in run.record.stages if run is oldest or s["kind"] == "evaluate"]
        assert spent[run.id]["answers"] == sum(s["spend"].get("calls", 0) for s in stages)
    [nobodys] = ledger_accounts(made / "ledger.sqlite")["by"]["run"]
    assert (nobodys["id"], nobodys["name"]) == ("", "")


BATCH = json.dumps(
    [{"index": 1, "explanation": "the first is kinder"}, {"index": 2, "explanation": "the other is true"}]
)


@pytest.mark.parametrize(
    ("answer", "place", "reason"),
    [
        (BATCH, 2, "the other is true"),
        (BATCH, 3, ""),
        (BATCH, None, ""),
        (f"Here you are:\n{BATCH}\nDone.", 1, "the first is kinder"),
        ('{"rationale": "short and right", "better": 2}', None, "short and right"),
        ('{"better": 2}', None, ""),
        ("Output (a)", 1, ""),
        ("[1, 2", 1, ""),
        ("[" * 5000, 1, ""),
        ("", None, ""),
    ],
)
def test_reasons_are_read_off_answers(answer: str, place: int | None, reason: str) -> None:
    assert find_reason(answer, place) == reason


def test_a_comparison_is_found_among_those_of_a_prompt() -> None:
    prompt = "## Comparison 1\nInstruction:\nName a tree\n…\n## Comparison 2\nInstruction:\nName a lake\n…"
    assert [find_comparison(prompt, task) for task in ("Name a tree", "Name a lake", "Name a river", "")] == [
        1,
        2,
        None,
        None,
    ]


def test_comparisons_that_share_an_instruction_are_told_apart_by_their_outputs() -> None:
    tasks = [("Name a tree", "oak", "elm"), ("Name a tree", "ash", "oak"), ("Name a tree and say why", "fir", "")]
    texts = [f"## Comparison {n}\n{task}\n(a)\n{a}\n(b)\n{b}" for n, (task, a, b) in enumerate(tasks, start=1)]
    assert [find_comparison("\n".join(texts), *task) for task in tasks] == [1, 2, 3]
    assert find_comparison("\n".join(texts), "Name a tree", "ash", "yew") is None
