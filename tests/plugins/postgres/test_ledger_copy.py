"""A ledger copied to another place is the same there, once and whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted_judges import question

from afarm.core.errors import StoreError
from afarm.core.judge import Completion, Judgement, JudgementKey
from afarm.judging.database import Row
from afarm.judging.ledger import Ledger, request_key
from afarm.judging.ledger_schema import LEDGER_COLUMNS
from afarm_plugins.postgres import ledger_copy
from afarm_plugins.postgres.ledger_copy import copy_ledger


def answered(prompt: str, price: float | None = 0.25) -> tuple[object, str, Completion]:
    request = question(prompt)
    return (
        request,
        "judge",
        Completion("naïve 😀", 11, 3, 5, price, "stop", "model-1", 0.5, request_key(request, "judge")),
    )


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A ledger with rows in every table, one reservation being of a process that was killed."""
    monkeypatch.setattr(ledger_copy, "ROWS", 2)
    monkeypatch.setattr(ledger_copy, "LIVE_SECONDS", 0.3)
    monkeypatch.setattr(ledger_copy, "LOOK_SECONDS", 0.02)
    with Ledger(tmp_path / "source.sqlite") as ledger:
        answers = [answered(f"q{n}", None if n == 3 else 0.25) for n in range(5)]
        ledger.resolve(answers, "run", stage="annotate/1")  # type: ignore[arg-type]
        ledger.learn({JudgementKey("a", "p", "12", 1, 0): Judgement(0.5, "decided", answers[0][2].key)})
        ledger.claim([("lost", 0.5)], "run")
        ledger.submitted("batch", "judge", "run", [("batched", question("b"), (), 0.125)])
        ledger.reused("other run", [answers[0][2].key])
        yield ledger


def rows(ledger: Ledger) -> dict[str, list[Row]]:
    tables = {table: ledger.read(f"SELECT {columns} FROM {table}") for table, columns in LEDGER_COLUMNS.items()}
    return {table: sorted(found, key=repr) for table, found in tables.items()}


def test_all_that_is_in_a_ledger_is_in_its_copy_and_in_a_copy_of_that(
    source: Ledger, new_ledger: Callable[[], Path | str], tmp_path: Path
) -> None:
    place = new_ledger()
    assert copy_ledger(source, place) == 5
    with Ledger(place) as copied:
        assert all(rows(copied).values()), "a table without rows would show nothing"
        assert rows(copied) == rows(source)
        assert copied.committed("run") == pytest.approx(4 * 0.25 + 0.5 + 0.125)
        order = f"SELECT key FROM completions ORDER BY {copied.database.row_number}"
        assert copied.read(order) == source.read("SELECT key FROM completions ORDER BY rowid")
        assert copy_ledger(copied, tmp_path / "back.sqlite") == 5
    with Ledger(tmp_path / "back.sqlite") as back:
        assert rows(back) == rows(source)


def test_what_would_count_twice_is_refused(source: Ledger, new_ledger: Callable[[], Path | str]) -> None:
    place = new_ledger()
    copy_ledger(source, place)
    with pytest.raises(StoreError, match="holds answers or spending already, which a copy would count twice"):
        copy_ledger(source, place)
    with pytest.raises(StoreError, match="is the ledger itself"):
        copy_ledger(source, source.place)
    with Ledger(place) as copied:
        assert rows(copied) == rows(source)


def test_a_ledger_that_a_living_process_uses_is_not_copied(source: Ledger, tmp_path: Path) -> None:
    ended = threading.Event()
    with Ledger(source.place) as other:
        other.claim([("asked", 0.5)], "run")

        def live() -> None:
            while not ended.wait(0.05):
                other.heartbeat()

        living = threading.Thread(target=live)
        living.start()
        try:
            with pytest.raises(StoreError, match="is in use by another process: stop it, then copy the ledger"):
                copy_ledger(source, tmp_path / "copy.sqlite")
        finally:
            ended.set()
            living.join()


def test_a_copy_that_fails_at_its_end_leaves_nothing(
    source: Ledger, new_ledger: Callable[[], Path | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_ledger()
    monkeypatch.setitem(LEDGER_COLUMNS, "batch_requests", "ticket, position, key, judge, no_such_column")
    with pytest.raises(StoreError):
        copy_ledger(source, place)
    monkeypatch.undo()
    with Ledger(place) as target:
        assert not any(rows(target).values())
