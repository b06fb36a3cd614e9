"""A damaged ledger: what is saved of it, and what says so."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from afarm.core.errors import StoreError
from afarm.core.judge import ChatRequest, Completion, Judgement, JudgementKey
from afarm.core.records import Message
from afarm.judging.ledger import Ledger, request_key
from afarm.judging.ledger_recovery import is_sound, recover

ANSWERS = 300


def keys() -> list[str]:
    return [request_key(request(number), "judge") for number in range(ANSWERS)]


def request(number: int) -> ChatRequest:
    return ChatRequest("strong", (Message("user", f"question {number} " + "x" * 500),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with three hundred answers of a cent each, and a judgement of each."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        for number, key in enumerate(keys()):
            answer = Completion(f"answer {number}", 10, 5, price=0.01, key=key)
            ledger.resolve([(request(number), "judge", answer)], "run", stage="annotate/1")
            ledger.learn({JudgementKey("annotator", f"pair {number:03d}", "ab", 1, 0): Judgement(1.0, "decided", key)})
    return path


def overwrite(path: Path, first: int, count: int) -> None:
    """Fill pages with noise."""
    with path.open("r+b") as file:
        file.seek(first * 4096)
        file.write(random.Random(0).randbytes(count * 4096))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 3 // 4 // 4096 * 4096 + 100)


def overwrite_the_root(path: Path) -> None:
    """Fill the page that leads to all the pages of answers with noise."""
    with closing(sqlite3.connect(path)) as db:
        [(root,)] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'completions'").fetchall()
    overwrite(path, root - 1, 1)


DAMAGES: dict[str, tuple[Callable[[Path], None], float]] = {
    "the first page": (lambda path: overwrite(path, 0, 1), 1.0),
    "the root of the answers": (overwrite_the_root, 1.0),
    "a page in the middle": (lambda path: overwrite(path, path.stat().st_size // 8192, 1), 0.9),
    "ten pages": (lambda path: overwrite(path, path.stat().st_size // 8192, 10), 0.6),
    "a part of the last quarter": (cut, 0.5),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_the_answers_that_can_be_read_are_saved_and_the_damaged_file_is_kept(case: str, path: Path) -> None:
    damage, share = DAMAGES[case]
    damage(path)
    damaged = path.read_bytes()
    assert not is_sound(path)
    recovery = recover(path)
    assert recovery.answers >= share * ANSWERS
    assert recovery.damaged.read_bytes() == damaged
    assert is_sound(path)
    with Ledger(path) as ledger:
        stored = ledger.completions(keys())
        assert len(stored) == recovery.answers
        assert all(stored[key].text == f"answer {number}" for number, key in enumerate(keys()) if key in stored)
        assert ledger.committed("run") >= recovery.answers * 0.01 - 1e-9, "budgets count what was paid"
    assert [place.name for place in path.parent.iterdir() if place.name.startswith(".")] == []


def test_what_is_known_to_be_lost_is_counted(path: Path) -> None:
    DAMAGES["ten pages"][0](path)
    recovery = recover(path)
    assert 0 < recovery.lost_answers <= ANSWERS - recovery.answers
    assert recovery.lost_dollars == pytest.approx(0.01 * (ANSWERS - recovery.answers))


def test_answers_that_are_in_the_log_alone_are_saved_if_the_first_page_is_lost(path: Path) -> None:
    with Ledger(path) as ledger:
        late = Completion("late", 10, 5, price=0.01, key=request_key(request(ANSWERS), "judge"))
        ledger.resolve([(request(ANSWERS), "judge", late)], "run")
        files = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    for name, content in files.items():  # as a machine that loses power leaves them
        (path.parent / name).write_bytes(content)
    overwrite(path, 0, 1)
    recovery = recover(path)
    assert recovery.answers == ANSWERS + 1
    assert (recovery.lost_answers, recovery.lost_dollars) == (0, pytest.approx(0))
    left = {file.name for file in path.parent.iterdir()}
    assert left == {path.name, recovery.damaged.name, f"{recovery.damaged.name}-wal"}


def test_a_long_answer_that_fills_pages_of_its_own_is_saved_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    texts = ["é" * length for length in (1, 1_700, 2_000, 4_000, 40_000)]
    with Ledger(path) as ledger:
        for number, text in enumerate(texts):
            answer = Completion(text, 10, 5, price=-0.0, key=keys()[number])
            ledger.resolve([(request(number), "judge", answer)], "run")
    overwrite_the_root(path)
    recover(path)
    with Ledger(path) as ledger:
        assert [ledger.completions(keys())[key].text for key in keys()[: len(texts)]] == texts
    overwrite(path, path.stat().st_size // 4096 - 5, 1)  # within the longest
    overwrite_the_root(path)
    recover(path)
    with Ledger(path) as ledger:
        assert {stored.text for stored in ledger.completions(keys()).values()} == set(texts[:-1])


def test_a_file_of_which_nothing_is_left_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"\xa5" * 8192)
    with pytest.raises(StoreError, match=r"nothing can be read of .* restore a copy"):
        recover(path)
    assert path.read_bytes() == b"\xa5" * 8192


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
