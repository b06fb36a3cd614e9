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


DAMAGES: dict[str, tuple[Callable[[Path], None], float]] = {
    "the first page": (lambda path: overwrite(path, 0, 1), 1.0),
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
