"""A damaged ledger: what is saved of it, and what says so."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from places import ROOT

from afarm.core.errors import StoreError
from afarm.core.judge import ChatRequest, Completion, Judgement, JudgementKey
from afarm.core.records import Message
from afarm.judging.ledger import Ledger, request_key
from afarm.judging.ledger_recovery import PAGE, is_sound, recover

ANSWERS = 300


def keys() -> list[str]:
    return [request_key(request(number), "judge") for number in range(ANSWERS)]


def request(number: int) -> ChatRequest:
    return ChatRequest("strong", (Message("user", f"question {number} " + "x" * 500),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with three hundred answers of a cent each, and a judgement of each."""
    return make_ledger(tmp_path / "ledger.sqlite", ANSWERS)


def make_ledger(path: Path, answers: int) -> Path:
    with Ledger(path) as ledger:
        for number, key in enumerate(keys()[:answers]):
            answer = Completion(f"answer {number}", 10, 5, price=0.01, key=key)
            ledger.resolve([(request(number), "judge", answer)], "run", stage="annotate/1")
            ledger.learn({JudgementKey("annotator", f"pair {number:03d}", "ab", 1, 0): Judgement(1.0, "decided", key)})
    return path


def overwrite(path: Path, first: int, count: int) -> None:
    """Fill pages with noise."""
    with path.open("r+b") as file:
        file.seek(first * PAGE)
        file.write(random.Random(0).randbytes(count * PAGE))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 3 // 4 // PAGE * PAGE + 100)


def overwrite_the_root(path: Path, table: str) -> None:
    """Fill the page that leads to all the pages of a table with noise."""
    with closing(sqlite3.connect(path)) as db:
        [(root,)] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchall()
    overwrite(path, root - 1, 1)


DAMAGES: dict[str, tuple[Callable[[Path], None], float]] = {
    "the first page": (lambda path: overwrite(path, 0, 1), 1.0),
    "the root of the answers": (lambda path: overwrite_the_root(path, "completions"), 0.0),
    "the page of what was spent": (lambda path: overwrite_the_root(path, "spent"), 1.0),
    "a page in the middle": (lambda path: overwrite(path, path.stat().st_size // PAGE // 2, 1), 0.9),
    "ten pages": (lambda path: overwrite(path, path.stat().st_size // PAGE // 2, 10), 0.6),
    "a part of the last quarter": (cut, 0.5),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_ledger_is_set_aside_and_its_spending_and_what_can_be_read_go_on(case: str, path: Path) -> None:
    damage, share = DAMAGES[case]
    damage(path)
    damaged = path.read_bytes()
    assert not is_sound(path)
    recovery = recover(path)
    assert recovery.answers >= share * ANSWERS
    assert recovery.damaged.read_bytes() == damaged
    assert bool(recovery.incomplete) == (case != "the first page")
    assert recovery.lost_dollars == pytest.approx(0.01 * (ANSWERS - recovery.answers))
    assert is_sound(path)
    with Ledger(path) as ledger:
        stored = ledger.completions(keys())
        assert len(stored) == recovery.answers
        assert all(stored[key].text == f"answer {number}" for number, key in enumerate(keys()) if key in stored)
        assert ledger.committed("run") == pytest.approx(0.01 * ANSWERS), "lost answers are spent all the same"
    assert [place.name for place in path.parent.iterdir() if place.name.startswith(".")] == []


@pytest.mark.parametrize("content", [b"\xa5", b"\0"])
def test_no_page_alone_makes_a_budget_forget(content: bytes, tmp_path: Path) -> None:
    """Each page in turn is lost. Reservations of dead processes and batches count as long as they can be read."""
    path = make_ledger(tmp_path / "ledger.sqlite", 60)
    with Ledger(path) as ledger:
        ledger.claim([("dead", 0.5), ("batched", 0.25)], "run")
        ledger.submitted("batch", "judge", "run", [("batched", request(0), (), 0.25)])
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE in_flight SET seen = 0")
        db.commit()
    sound, forgotten = path.read_bytes(), []
    for page in range(len(sound) // PAGE):
        for file in tmp_path.iterdir():
            file.unlink()
        path.write_bytes(sound[: page * PAGE] + content * PAGE + sound[(page + 1) * PAGE :])
        recovery = recover(path)
        expected = 0.6 + (0.5 if "in_flight" not in recovery.incomplete else 0)
        expected += 0.25 if "batch_requests" not in recovery.incomplete else 0
        with Ledger(path) as ledger:
            if ledger.committed("run") != pytest.approx(expected):
                forgotten.append((page, recovery, ledger.committed("run")))
    assert forgotten == []


def test_nothing_is_replaced_if_budgets_would_forget_what_was_spent(path: Path) -> None:
    overwrite_the_root(path, "spent")
    DAMAGES["a page in the middle"][0](path)
    damaged = path.read_bytes()
    with pytest.raises(StoreError, match=r"what was spent cannot be read .* restore a copy .* --start-anew"):
        recover(path)
    assert (path.read_bytes(), len(list(path.parent.glob("*.damaged*")))) == (damaged, 0)


def test_answers_that_are_in_the_log_alone_are_saved_if_the_first_page_is_lost(path: Path) -> None:
    with Ledger(path) as ledger:
        late = Completion("late", 10, 5, price=0.01, key=request_key(request(ANSWERS), "judge"))
        ledger.resolve([(request(ANSWERS), "judge", late)], "run")
        files = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    for name, content in files.items():  # as a machine that loses power leaves them
        (path.parent / name).write_bytes(content)
    overwrite(path, 0, 1)
    recovery = recover(path)
    assert (recovery.answers, recovery.incomplete) == (ANSWERS + 1, ())
    assert recovery.lost_dollars == pytest.approx(0)
    left = {file.name for file in path.parent.iterdir()}
    assert left == {path.name, recovery.damaged.name, f"{recovery.damaged.name}-wal"}


@pytest.mark.parametrize("from_the_end", [5, 1])
def test_a_long_answer_that_fills_pages_of_its_own_is_saved_whole_or_not_at_all(
    from_the_end: int, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.sqlite"
    texts = ["é" * length for length in (1, 1_700, 2_000, 4_000, 40_000)]
    with Ledger(path) as ledger:
        for number, text in enumerate(texts):
            answer = Completion(text, 10, 5, price=-0.0, key=keys()[number])
            ledger.resolve([(request(number), "judge", answer)], "run")
    overwrite(path, path.stat().st_size // PAGE - from_the_end, 1)  # within the longest
    recover(path)
    with Ledger(path) as ledger:
        saved = {stored.text for stored in ledger.completions(keys()).values()}
    assert set(texts[:3]) <= saved <= set(texts[:4]), "Python's sqlite3 may drop the row before an error"


def test_a_file_of_which_nothing_is_left_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    for content in (b"\xa5" * 2 * PAGE, b"\xa5"):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"what was spent cannot be read from .* restore a copy"):
            recover(path)
        assert path.read_bytes() == content


def test_answers_that_another_tool_read_are_added_by_the_guide_s_statement(path: Path, tmp_path: Path) -> None:
    """SQLite's `.recover` writes the tables that it finds into a new file, here a copy of the sound ledger."""
    guide = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    [statement] = re.findall(r'sqlite3 ledger\.sqlite "(ATTACH .*)"', guide)
    shutil.copyfile(path, tmp_path / "more.sqlite")
    overwrite_the_root(path, "completions")
    assert recover(path).answers == 0
    with closing(sqlite3.connect(path)) as db:
        db.executescript(statement.replace("more.sqlite", str(tmp_path / "more.sqlite")))
    with Ledger(path) as ledger:
        assert len(ledger.completions(keys())) == ANSWERS
        assert ledger.committed("run") == pytest.approx(0.01 * ANSWERS), "paid once"


def test_a_ledger_that_a_living_process_uses_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afarm.judging.ledger_recovery.LIVE_SECONDS", 3600.0)  # however busy the machine
    with Ledger(path) as other:
        other.claim([("k", 1.0)], "run")
        with pytest.raises(StoreError, match="in use by another process"):
            recover(path)


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_ledger_names_the_command_that_recovers_it(case: str, path: Path) -> None:
    DAMAGES[case][0](path)

    def use() -> None:
        with Ledger(path) as ledger:
            ledger.completions(keys())
            ledger.recall([JudgementKey("annotator", f"pair {n:03d}", "ab", 1, 0) for n in range(ANSWERS)])
            ledger.committed("run")

    with pytest.raises(StoreError, match=r"is damaged .*`afarm ledger --recover --output-dir \S+`"):
        use()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_prompts_and_outputs_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            ledger.resolve([(request(0), "judge", Completion("answer", key="k"))], "run")
            files = list(tmp_path.iterdir())
            assert {mode_of(file) for file in files} == {0o600}
            assert len(files) == 3, "its log and the index of that too"
        old = tmp_path / "old.sqlite"
        with closing(sqlite3.connect(old)) as db:
            db.execute("PRAGMA journal_mode = WAL")
        assert mode_of(old) == 0o644
        with Ledger(old):
            assert mode_of(old) == 0o600
    finally:
        os.umask(before)
