"""What was paid and what was learned, in SQLite.

`completions` holds every answer received, under a digest of what was asked; `judgements` what was read from them, under
who judged what; `intents` what is in flight, which counts against a budget until it is resolved. Transport failures
are not answers and are never stored. The promise: no response that reached this process is bought again, so calls are
at most those needed plus kills times requests in flight.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from afarm.errors import StoreError
from afarm.interfaces import ChatRequest, Completion, Judgement, JudgementKey
from afarm.keyed import digest

SCHEMA = """
CREATE TABLE IF NOT EXISTS completions (
    key TEXT PRIMARY KEY, judge TEXT NOT NULL, role TEXT, annotator TEXT, run TEXT, request TEXT NOT NULL,
    text TEXT NOT NULL, input_tokens INTEGER, output_tokens INTEGER, cached_input_tokens INTEGER, price REAL,
    finish_reason TEXT, model TEXT, seconds REAL, created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS judgements (
    annotator TEXT, pair_id TEXT, shown TEXT, seed INTEGER, draw INTEGER, first REAL, outcome TEXT NOT NULL,
    completion TEXT, created REAL NOT NULL, PRIMARY KEY (annotator, pair_id, shown, seed, draw)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS intents (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, run TEXT, reserved REAL, pid INTEGER, created REAL NOT NULL);
"""

NETWORK_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "ceph",
    "gpfs",
    "beegfs",
    "fuse.sshfs",
    "9p",
    "afs",
}


def request_key(request: ChatRequest, judge: str) -> str:
    """Digests what is sent, to whom, for whom and about which pairs, and which draw it is.

    Two annotators that share a prompt, or a pair that occurs twice, are independent draws and not one answer.
    """
    sent = [
        [[m.role, m.content, m.name] for m in request.messages],
        request.prompt,
        request.max_tokens,
        request.temperature,
        request.top_p,
        request.favour,
        request.avoid,
    ]
    about = [[c.pair_id, c.order, c.draw] for c in request.comparisons]
    return digest(
        "completion", judge, sent, request.role, request.annotator, about, request.seed, request.draw, length=32
    )


class Ledger:
    """One SQLite file, safe for several threads and processes at once."""

    def __init__(self, path: Path):
        """Opens or creates `path`. Raises `StoreError` where that cannot be done."""
        self.path = path
        self.note = ""
        self._lock = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
            mode = "WAL"
            if kind := network_file_system(path):
                # WAL needs memory shared between processes, which network file systems do not give.
                mode = "DELETE"
                self.note = (
                    f"the ledger is on a network file system ({kind}): slower locking is used; a local disk is better"
                )
            self._db.execute(f"PRAGMA journal_mode={mode}")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise StoreError(f"the ledger {path} cannot be used: {error}; choose another --output-dir") from error

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run `statement` for all rows in one transaction. Raises `StoreError` where the disk is full."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(statement, rows)
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise StoreError(f"the ledger {self.path} cannot be written: {error}") from error

    def _lookup(self, table: str, columns: str, field: str, keys: Sequence[str]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(keys), 500):  # SQLite bounds the number of parameters
            chunk = keys[start : start + 500]
            marks = ",".join("?" * len(chunk))
            with self._lock:
                rows += self._db.execute(f"SELECT {columns} FROM {table} WHERE {field} IN ({marks})", chunk).fetchall()
        return rows

    # ----------------------------------------------------------------------------------------------- completions

    def completions(self, keys: Sequence[str]) -> dict[str, Completion]:
        """The stored answers among `keys`."""
        columns = "text, input_tokens, output_tokens, cached_input_tokens, price, finish_reason, model, seconds, key"
        rows = self._lookup("completions", columns, "key", list(keys))
        return {row[-1]: Completion(*row) for row in rows}

    def intend(self, keys: Sequence[str], reserved: Sequence[float], run: str) -> None:
        """Record requests about to be sent, with the most that each can cost in dollars."""
        now, pid = time.time(), os.getpid()
        self._many(
            "INSERT INTO intents (key, run, reserved, pid, created) VALUES (?, ?, ?, ?, ?)",
            [(key, run, price, pid, now) for key, price in zip(keys, reserved, strict=True)],
        )

    def resolve(
        self, answers: Sequence[tuple[ChatRequest, str, Completion]], run: str, abandoned: Sequence[str] = ()
    ) -> None:
        """Store answers as (request, judge identity, completion with its key), and close their intents.

        `abandoned` are the keys of requests that are known to have failed without an answer.
        """
        now = time.time()
        if answers:
            self._many(
                "INSERT OR IGNORE INTO completions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                [
                    (
                        *(c.key, judge, request.role, request.annotator, run, _sent(request), c.text),
                        *(c.input_tokens, c.output_tokens, c.cached_input_tokens, c.price),
                        *(c.finish_reason, c.model, c.seconds, now),
                    )
                    for request, judge, c in answers
                ],
            )
        closed = [c.key for _, _, c in answers] + list(abandoned)
        if closed:
            self._many("DELETE FROM intents WHERE key = ? AND pid = ?", [(key, os.getpid()) for key in closed])

    def committed(self, run: str) -> float:
        """Dollars of `run` that are spent, or may be: paid answers, and what is in flight or was when it was killed."""
        with self._lock:
            paid = self._db.execute("SELECT COALESCE(SUM(price), 0) FROM completions WHERE run = ?", [run])
            flying = self._db.execute("SELECT COALESCE(SUM(reserved), 0) FROM intents WHERE run = ?", [run])
            return float(paid.fetchone()[0]) + float(flying.fetchone()[0])

    # ------------------------------------------------------------------------------------------------ judgements

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        """The judgements already learned, of those asked for."""
        found: dict[JudgementKey, Judgement] = {}
        by_annotator: dict[str, list[JudgementKey]] = {}
        for key in keys:
            by_annotator.setdefault(key.annotator, []).append(key)
        for annotator, group in by_annotator.items():
            wanted = set(group)
            ids = list(dict.fromkeys(k.pair_id for k in group))
            for start in range(0, len(ids), 500):
                chunk = ids[start : start + 500]
                marks = ",".join("?" * len(chunk))
                with self._lock:
                    rows = self._db.execute(
                        "SELECT pair_id, shown, seed, draw, first, outcome, completion FROM judgements "
                        f"WHERE annotator = ? AND pair_id IN ({marks})",
                        [annotator, *chunk],
                    ).fetchall()
                for pair_id, shown, seed, draw, first, outcome, completion in rows:
                    key = JudgementKey(annotator, pair_id, shown, seed, draw)
                    if key in wanted:
                        found[key] = Judgement(first, outcome, completion)
        return found

    def learn(self, judgements: Mapping[JudgementKey, Judgement]) -> None:
        """Remember judgements. The first one learned for a key stands, so that two processes agree."""
        now = time.time()
        if judgements:
            self._many(
                "INSERT OR IGNORE INTO judgements VALUES (?,?,?,?,?,?,?,?,?)",
                [
                    (k.annotator, k.pair_id, k.order, k.seed, k.draw, j.first, j.outcome, j.completion, now)
                    for k, j in judgements.items()
                ],
            )


def _sent(request: ChatRequest) -> str:
    unsent = {"comparisons", "answer_format"}
    return json.dumps({k: v for k, v in asdict(request).items() if k not in unsent}, ensure_ascii=False)


def network_file_system(path: Path) -> str:
    """The type of the network file system that holds `path`, empty for a local disk or where it cannot be told."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    real = str(path.parent.resolve())
    best, kind = "", ""
    for line in mounts:
        parts = line.split()
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind if kind in NETWORK_FILE_SYSTEMS else ""
