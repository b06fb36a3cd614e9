"""What was paid and what was learned, in SQLite.

`completions` holds every answer received, under a digest of what was asked; `judgements` what was read from them, under
who judged what; `in_flight` the intents to ask, which count against a budget until they are resolved. Transport
failures are not answers and are never stored. The promise: no response that reached this process is bought again, so
calls are at most those needed plus kills times requests in flight.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from afarm.errors import StoreError
from afarm.judges import ChatRequest, Completion, Judgement, JudgementKey
from afarm.keyed import digest

SCHEMA = """
CREATE TABLE IF NOT EXISTS completions (
    key TEXT PRIMARY KEY, judge TEXT NOT NULL, role TEXT, annotator TEXT, run TEXT, request TEXT NOT NULL,
    text TEXT NOT NULL, input_tokens INTEGER, output_tokens INTEGER, cached_input_tokens INTEGER, price REAL,
    finish_reason TEXT, model TEXT, seconds REAL, created REAL NOT NULL);
CREATE INDEX IF NOT EXISTS prices ON completions (run, price);
CREATE TABLE IF NOT EXISTS judgements (
    annotator TEXT, pair_id TEXT, shown TEXT, seed INTEGER, draw INTEGER, first REAL, outcome TEXT NOT NULL,
    completion TEXT, created REAL NOT NULL, PRIMARY KEY (annotator, pair_id, shown, seed, draw)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS in_flight (
    key TEXT NOT NULL, owner TEXT NOT NULL, run TEXT, reserved REAL, created REAL NOT NULL);
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
        request.schema,
        asdict(request.tool) if request.tool else None,
        request.top_logprobs,
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
        self._lock = threading.RLock()
        self._owner = uuid.uuid4().hex  # not the process id, which comes back: a container always starts with the same
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
            # WAL needs memory shared between processes, which network file systems do not give.
            self._db.execute(f"PRAGMA journal_mode={'DELETE' if network_file_system(path) else 'WAL'}")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(SCHEMA)
        except (sqlite3.Error, OSError) as error:
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

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or nothing of it. Raises `StoreError` where the disk is full."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise StoreError(f"the ledger {self.path} cannot be written: {error}") from error
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _read(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of a query. Raises `StoreError` where the file is damaged."""
        with self._lock:
            try:
                return self._db.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise StoreError(f"the ledger {self.path} cannot be read: {error}") from error

    # ----------------------------------------------------------------------------------------------- completions

    def completions(self, keys: Sequence[str]) -> dict[str, Completion]:
        """The stored answers among `keys`."""
        columns = "text, input_tokens, output_tokens, cached_input_tokens, price, finish_reason, model, seconds, key"
        found: dict[str, Completion] = {}
        for chunk, marks in _chunks(keys):
            for row in self._read(f"SELECT {columns} FROM completions WHERE key IN ({marks})", chunk):
                found[row[-1]] = Completion(*row)
        return found

    def intend(self, keys: Sequence[str], reserved: Sequence[float], run: str) -> None:
        """Record requests about to be sent, with the most that each can cost in dollars."""
        now = time.time()
        rows = [(key, self._owner, run, price, now) for key, price in zip(keys, reserved, strict=True)]
        with self._transaction() as db:
            db.executemany("INSERT INTO in_flight VALUES (?, ?, ?, ?, ?)", rows)

    def resolve(
        self, answers: Sequence[tuple[ChatRequest, str, Completion]], run: str, abandoned: Sequence[str] = ()
    ) -> None:
        """Store answers as (request, judge identity, completion with its key), and close their intents.

        `abandoned` are the keys of requests that are known to have failed without an answer.
        """
        now = time.time()
        rows = [
            (
                *(c.key, judge, request.role, request.annotator, run, _sent(request), c.text),
                *(c.input_tokens, c.output_tokens, c.cached_input_tokens, c.price),
                *(c.finish_reason, c.model, c.seconds, now),
            )
            for request, judge, c in answers
        ]
        closed = [(key, self._owner) for key in [*(c.key for _, _, c in answers), *abandoned]]
        with self._transaction() as db:
            db.executemany("INSERT OR IGNORE INTO completions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", rows)
            db.executemany("DELETE FROM in_flight WHERE key = ? AND owner = ?", closed)

    def committed(self, run: str) -> float:
        """Dollars of `run` that are spent, or may be: paid answers, and what is in flight or was when it was killed."""
        paid = self._read("SELECT COALESCE(SUM(price), 0) FROM completions WHERE run = ?", [run])
        flying = self._read("SELECT COALESCE(SUM(reserved), 0) FROM in_flight WHERE run = ?", [run])
        return float(paid[0][0]) + float(flying[0][0])

    # ------------------------------------------------------------------------------------------------ judgements

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        """The judgements already learned, of those asked for."""
        found: dict[JudgementKey, Judgement] = {}
        by_annotator: dict[str, list[JudgementKey]] = {}
        for key in keys:
            by_annotator.setdefault(key.annotator, []).append(key)
        for annotator, group in by_annotator.items():
            wanted = set(group)
            for chunk, marks in _chunks(list(dict.fromkeys(k.pair_id for k in group))):
                rows = self._read(
                    "SELECT pair_id, shown, seed, draw, first, outcome, completion FROM judgements "
                    f"WHERE annotator = ? AND pair_id IN ({marks})",
                    [annotator, *chunk],
                )
                for pair_id, shown, seed, draw, first, outcome, completion in rows:
                    key = JudgementKey(annotator, pair_id, shown, seed, draw)
                    if key in wanted:
                        found[key] = Judgement(first, outcome, completion)
        return found

    def learn(self, judgements: Mapping[JudgementKey, Judgement]) -> None:
        """Remember judgements. The first one learned for a key stands, so that two processes agree."""
        now = time.time()
        rows = [
            (k.annotator, k.pair_id, k.order, k.seed, k.draw, j.first, j.outcome, j.completion, now)
            for k, j in judgements.items()
        ]
        with self._transaction() as db:
            db.executemany("INSERT OR IGNORE INTO judgements VALUES (?,?,?,?,?,?,?,?,?)", rows)


def _chunks(values: Sequence[str], size: int = 500) -> Iterator[tuple[Sequence[str], str]]:
    """Parts that SQLite takes in one query, which bounds the number of parameters, each with its placeholders."""
    for start in range(0, len(values), size):
        chunk = values[start : start + size]
        yield chunk, ",".join("?" * len(chunk))


def _sent(request: ChatRequest) -> str:
    unsent = {"comparisons", "answer_format"}
    return encodable(json.dumps({k: v for k, v in asdict(request).items() if k not in unsent}, ensure_ascii=False))


def encodable(text: str) -> str:
    """`text` with halves of surrogate pairs as escapes: models do emit half an emoji, and UTF-8 cannot hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def network_file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The type of the network file system that holds `path`, empty for a local disk or where it cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = str(path.parent.resolve())
    best, kind = "", ""
    for line in lines:
        parts = line.split()
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind if kind in NETWORK_FILE_SYSTEMS else ""
