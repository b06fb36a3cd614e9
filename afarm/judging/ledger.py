"""The ledger: paid answers and the judgements read from them, in a database.

`completions` holds every answer received, under a digest of the request; `judgements` the judgements read from them, by
annotator and pair; `in_flight` the reservations of requests that are being sent, which count against a budget until
they are resolved, and for good if no answer came and the vendor may have charged; `batch_requests` the requests
submitted to a vendor's batch endpoint and not answered yet; `spent` the dollars of each run, `stage_spend` the
purchases for each artifact, and `reuse` the answers that were not paid again. Transport failures are not answers and
are never stored. The promise: no response that reached this process is bought again, so calls are at most those needed
plus kills times requests in flight.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from afarm.core.errors import JudgeError
from afarm.core.judge import ChatRequest, Completion, Judgement, JudgementKey
from afarm.core.seeding import digest
from afarm.judging.database import Place, Row, Transaction, open_database
from afarm.judging.ledger_schema import (
    CHARGE,
    CHARGE_BATCHED,
    COMPLETION,
    decode_completion,
    encode_completion,
    sent_text,
)

LIVE_SECONDS = 6.0
"""Seconds for which another process is seen to give no sign of life before its requests are taken for lost."""

LOOK_SECONDS = 1.0
"""The longest time between two looks at other processes that counts as seen: more is time of not looking."""

ROUNDING = 1e-9
"""Dollars by which sums of prices may be above a budget: 27 times 0.001 is more than 0.027 in floating point."""

STAGE_SPEND = ("calls", "input_tokens", "output_tokens", "dollars", "unpriced_calls")
"""Columns counted for each stage; `dollars` leave out calls whose price is unknown."""

P = ParamSpec("P")
T = TypeVar("T")

Answer = tuple[ChatRequest, str, Completion]
"""The request, the identity of the judge, and the completion with its key."""

BatchedRequest = tuple[str, ChatRequest, Sequence[str], float | None]
"""A request in a batch: its key, the request, its degraded parameters, and the most it can cost."""


COMMITTED = (
    "SELECT COALESCE((SELECT SUM(dollars) FROM spent WHERE run = ?), 0) "
    "+ COALESCE((SELECT SUM(reserved) FROM in_flight WHERE run = ?), 0) "
    "+ COALESCE((SELECT SUM(reserved) FROM batch_requests WHERE run = ?), 0)"
)
"""The dollars of a run that are spent or reserved, in one query."""


def request_key(request: ChatRequest, judge: str, degraded: Sequence[str] = ()) -> str:
    """Digest a request, its judge, its annotator, its pairs and its sample index.

    Two annotators that share a prompt, or a pair that occurs twice, are independent draws and not one answer. The same
    request without the parameters that are `degraded` is another one.
    """
    sent = [
        [[m.role, m.content, m.name] for m in request.messages],
        request.prompt,
        request.max_tokens,
        request.temperature,
        request.top_p,
        request.favoured_tokens,
        request.penalised_tokens,
        request.schema,
        asdict(request.tool) if request.tool else None,
        request.top_logprobs,
    ]
    about = [[c.pair_id, c.order, c.sample_index] for c in request.comparisons]
    without = [list(degraded)] if degraded else []
    return digest(
        "completion",
        judge,
        sent,
        request.role,
        request.annotator,
        about,
        request.seed,
        request.sample_index,
        *without,
        length=32,
    )


@dataclass(slots=True)
class Claim:
    """The outcome of `Ledger.claim`, as keys of requests.

    `granted` may be sent now, `answered` are in the ledger by now, `pending` are in a submitted batch, `held` are in
    flight in another living process. With `over_budget`, the others may not be sent yet, with `committed` dollars spent
    or reserved.
    """

    granted: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    over_budget: bool = False
    committed: float = 0.0


def in_transaction(method: Callable[Concatenate[Ledger, Transaction, P], T]) -> Callable[Concatenate[Ledger, P], T]:
    """Give a method a transaction, alone among writers. It may be repeated, so it changes nothing else."""

    @wraps(method)
    def alone(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.write(lambda db: method(self, db, *args, **kwargs))

    return alone


class Ledger:
    """One ledger, safe for several threads and processes, and on PostgreSQL machines, at once."""

    def __init__(self, place: Place):
        """Open or create a ledger; ":memory:" keeps nothing. Raises `StoreError` if that cannot be done."""
        self.place = place
        self.database = open_database(place)
        self._owner = uuid.uuid4().hex  # not the process id, which comes back: a container always starts with the same
        self._others = OtherOwners()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query. Raises `StoreError` if the ledger cannot be read."""
        return self.database.read(statement, values)

    # ----------------------------------------------------------------------------------------------- completions

    def completions(self, keys: Sequence[str]) -> dict[str, Completion]:
        stored: dict[str, Completion] = {}
        for chunk, marks in query_chunks(keys):
            for row in self.read(f"SELECT {COMPLETION} FROM completions WHERE key IN ({marks})", chunk):
                stored[row[8]] = decode_completion(row)
        return stored

    @in_transaction
    def claim(
        self, db: Transaction, wanted: Sequence[tuple[str, float | None]], run: str, budget: float | None = None
    ) -> Claim:
        """Reserve money for (key, highest price) in order, in one transaction among all processes."""
        claim = Claim()
        answered, pending, held = self._elsewhere(db, [key for key, _ in wanted])
        if budget is not None:
            claim.committed = float(db.execute(COMMITTED, [run] * 3).fetchone()[0])
        rows: list[Row] = []
        now = self.database.now()
        for key, price in wanted:
            if key in answered:
                claim.answered.append(key)
            elif key in pending:
                claim.pending.append(key)
            elif key in held:
                claim.held.append(key)
            elif claim.over_budget:
                continue
            elif budget is not None and claim.committed + (price or 0.0) > budget + ROUNDING:
                claim.over_budget = True
            else:
                claim.granted.append(key)
                claim.committed += price or 0.0
                rows.append((key, self._owner, run, price, now, now))
        db.executemany("INSERT INTO in_flight (key, owner, run, reserved, created, seen) VALUES (?,?,?,?,?,?)", rows)
        return claim

    def _elsewhere(self, db: Transaction, keys: Sequence[str]) -> tuple[set[str], set[str], set[str]]:
        """The keys that are answered, in a pending batch, or in flight in another living process."""
        answered, pending = set[str](), set[str]()
        claims: list[Row] = []
        for chunk, marks in query_chunks(keys):
            for found, table in ((answered, "completions"), (pending, "batch_requests")):
                rows = db.execute(f"SELECT key FROM {table} WHERE key IN ({marks})", chunk).fetchall()
                found.update(key for (key,) in rows)
            of_others = f"SELECT key, owner FROM in_flight WHERE key IN ({marks}) AND owner NOT IN ('', ?)"
            claims += db.execute(of_others, [*chunk, self._owner]).fetchall()
        alive = self._others.alive(db, {owner for _, owner in claims})
        return answered, pending, {key for key, owner in claims if owner in alive}

    @in_transaction
    def heartbeat(self, db: Transaction) -> None:
        """Record that this process is alive and waits for its requests in flight."""
        db.execute("UPDATE in_flight SET seen = ? WHERE owner = ?", [self.database.now(), self._owner])

    @in_transaction
    def resolve(
        self,
        db: Transaction,
        answers: Sequence[Answer],
        run: str,
        free: Sequence[str] = (),
        charged_without_answer: Sequence[str] = (),
        stage: str = "",
    ) -> None:
        """Store answers, bought by `run` to make the artifact `stage`, and close their reservations.

        `free` are the keys of requests that failed and cost nothing; `charged_without_answer` of those that may have
        been charged for, by an amount that nobody has said: their reservation stays counted.
        """
        charged = [(key, self._owner) for key in charged_without_answer]
        keys = dict.fromkeys([*(c.key for _, _, c in answers), *free, *charged_without_answer])
        now = self.database.now()
        rows = [
            encode_completion((c.key, judge, request.role, request.annotator, run, sent_text(request)), c, now)
            for request, judge, c in answers
        ]
        self._store(db, rows, stage)
        db.executemany(CHARGE, charged)
        db.executemany("DELETE FROM in_flight WHERE key = ? AND owner = ?", [(key, self._owner) for key in keys])

    @in_transaction
    def charged_without_answer(self, db: Transaction, key: str) -> None:
        """Count an attempt that may have been charged; nothing stays reserved until `reserve_again`."""
        db.execute(CHARGE, [key, self._owner])
        db.execute("UPDATE in_flight SET reserved = 0 WHERE key = ? AND owner = ?", [key, self._owner])

    @in_transaction
    def reserve_again(self, db: Transaction, key: str, price: float | None, run: str, budget: float | None) -> bool:
        """Reserve `price` for another attempt, if `budget` allows that."""
        if budget is not None:
            committed = float(db.execute(COMMITTED, [run] * 3).fetchone()[0])
            if committed + (price or 0.0) > budget + ROUNDING:
                return False
        db.execute("UPDATE in_flight SET reserved = ? WHERE key = ? AND owner = ?", [price, key, self._owner])
        return True

    def _store(self, db: Transaction, rows: Sequence[tuple[Any, ...]], stage: str) -> None:
        """Insert rows of completions. The first answer to a request stands; every one is paid for."""
        db.executemany(f"INSERT INTO completions VALUES ({','.join('?' * 17)}) ON CONFLICT DO NOTHING", rows)
        paid: dict[str, float] = {}
        for row in rows:
            if row[10]:
                paid[row[4]] = paid.get(row[4], 0.0) + row[10]
        more = "ON CONFLICT (run) DO UPDATE SET dollars = spent.dollars + excluded.dollars"
        db.executemany(f"INSERT INTO spent VALUES (?, ?) {more}", list(paid.items()))
        if stage and rows:
            prices = [row[10] for row in rows]
            tokens = [sum(row[column] or 0 for row in rows) for column in (7, 8)]
            counts = [len(rows), *tokens, sum(price or 0.0 for price in prices), prices.count(None)]
            more = ", ".join(f"{name} = stage_spend.{name} + excluded.{name}" for name in STAGE_SPEND)
            db.execute(
                f"INSERT INTO stage_spend VALUES (?,?,?,?,?,?) ON CONFLICT (stage) DO UPDATE SET {more}",
                [stage, *counts],
            )

    def stage_spend(self, stage: str) -> dict[str, float]:
        """The purchases made for the artifact `stage`, by all runs and processes: `STAGE_SPEND`, by name."""
        rows = self.read(f"SELECT {', '.join(STAGE_SPEND)} FROM stage_spend WHERE stage = ?", [stage])
        return dict(zip(STAGE_SPEND, rows[0] if rows else (0, 0, 0, 0.0, 0), strict=True))

    def committed(self, run: str) -> float:
        """Dollars of `run` that are spent or may be: answers, reservations, charges without an answer."""
        return float(self.read(COMMITTED, [run] * 3)[0][0])

    # --------------------------------------------------------------------------------------------------- batches

    @in_transaction
    def submitted(
        self,
        db: Transaction,
        batch_id: str,
        judge: str,
        run: str,
        requests: Sequence[BatchedRequest],
    ) -> None:
        """Turn the reservations of `requests` into a batch to be collected."""
        now = self.database.now()
        rows = [
            (batch_id, i, key, judge, run, r.role, r.annotator, sent_text(r), json.dumps(list(degraded)), price, now)
            for i, (key, r, degraded, price) in enumerate(requests)
        ]
        db.executemany(f"INSERT INTO batch_requests VALUES ({','.join('?' * 11)})", rows)
        db.executemany("DELETE FROM in_flight WHERE key = ? AND owner = ?", [(r[2], self._owner) for r in rows])

    def pending_batches(self, judge: str, keys: Sequence[str]) -> dict[str, list[str]]:
        """The pending batches of `judge` that hold one of `keys`, by id, with all keys of each, in order."""
        batches: dict[str, list[str]] = {}
        for batch_id, key in self.read(
            "SELECT ticket, key FROM batch_requests WHERE judge = ? ORDER BY ticket, position", [judge]
        ):
            batches.setdefault(batch_id, []).append(key)
        wanted = set(keys)
        return {batch_id: held for batch_id, held in batches.items() if not wanted.isdisjoint(held)}

    @in_transaction
    def collected(self, db: Transaction, batch_id: str, answers: Sequence[Completion | None], stage: str = "") -> None:
        """Store a batch's answers (None: failed) and close it, once. Raises `JudgeError` for another number."""
        columns = "key, judge, role, annotator, run, request, degraded"
        query = f"SELECT {columns} FROM batch_requests WHERE ticket = ? ORDER BY position"
        requests = db.execute(query, [batch_id]).fetchall()
        if requests and len(requests) != len(answers):
            raise JudgeError(
                f"batch {batch_id} of {requests[0][1]} has {len(answers)} answers to {len(requests)} requests"
            )
        now = self.database.now()
        rows = [
            encode_completion(row[:6], replace(answer, degraded=tuple(json.loads(row[6]))), now)
            for row, answer in zip(requests, answers, strict=False)
            if answer is not None
        ]
        self._store(db, rows, stage)
        unpriced = [(batch_id, i) for i, c in enumerate(answers) if c is not None and c.price is None]
        db.executemany(f"{CHARGE_BATCHED} AND position = ? AND reserved > 0", unpriced)
        db.execute("DELETE FROM batch_requests WHERE ticket = ?", [batch_id])

    @in_transaction
    def forget_batch(self, db: Transaction, batch_id: str) -> int:
        """Stop waiting for a batch, which stays counted as charged; return the number of its requests."""
        db.execute(CHARGE_BATCHED, [batch_id])
        return db.execute("DELETE FROM batch_requests WHERE ticket = ?", [batch_id]).rowcount

    # ------------------------------------------------------------------------------------------------ judgements

    def recall(self, keys: Sequence[JudgementKey]) -> dict[JudgementKey, Judgement]:
        """The judgements already learned, of those asked for."""
        stored: dict[JudgementKey, Judgement] = {}
        by_annotator: dict[str, list[JudgementKey]] = {}
        for key in keys:
            by_annotator.setdefault(key.annotator, []).append(key)
        for annotator, group in by_annotator.items():
            wanted = set(group)
            for chunk, marks in query_chunks(list(dict.fromkeys(k.pair_id for k in group))):
                rows = self.read(
                    "SELECT pair_id, shown, seed, draw, first, outcome, completion FROM judgements "
                    f"WHERE annotator = ? AND pair_id IN ({marks})",
                    [annotator, *chunk],
                )
                for pair_id, shown, seed, draw, first, outcome, completion in rows:
                    key = JudgementKey(annotator, pair_id, shown, seed, draw)
                    if key in wanted:
                        stored[key] = Judgement(first, outcome, completion)
        return stored

    @in_transaction
    def learn(self, db: Transaction, judgements: Mapping[JudgementKey, Judgement]) -> None:
        """Remember judgements. The first one learned for a key stands, so that two processes agree."""
        now = self.database.now()
        rows = [
            (k.annotator, k.pair_id, k.order, k.seed, k.sample_index, j.p_first_shown, j.outcome, j.completion, now)
            for k, j in judgements.items()
        ]
        db.executemany("INSERT INTO judgements VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING", rows)

    def reused(self, run: str, keys: Sequence[str]) -> int:
        """Count the answers with these keys as reused by `run`, not paid again. Returns their number."""
        day = time.strftime("%Y-%m-%d", time.localtime(self.database.now()))
        counts: dict[tuple[str, str], list[Any]] = {}
        for chunk, marks in query_chunks(list(dict.fromkeys(keys))):
            grouped = f"FROM completions WHERE key IN ({marks}) GROUP BY judge, annotator"
            for judge, annotator, count, dollars in self.read(
                f"SELECT judge, annotator, COUNT(*), COALESCE(SUM(price), 0) {grouped}", chunk
            ):
                total = counts.setdefault((judge, annotator), [0, 0.0])
                total[0] += count
                total[1] += dollars
        rows = [(run, judge, who, day, count, dollars) for (judge, who), (count, dollars) in counts.items()]
        if rows:
            self._count_reuse(rows)
        return sum(row[4] for row in rows)

    @in_transaction
    def _count_reuse(self, db: Transaction, rows: Sequence[Row]) -> None:
        more = ", ".join(f"{name} = reuse.{name} + excluded.{name}" for name in ("answers", "dollars"))
        day = "(run, judge, annotator, day)"
        db.executemany(f"INSERT INTO reuse VALUES (?,?,?,?,?,?) ON CONFLICT {day} DO UPDATE SET {more}", rows)


class OtherOwners:
    """The other processes that have requests in flight, as this one sees them.

    Clocks of machines differ, so none is compared with another. Each process writes its own time as a sign of life, and
    this one measures, by a clock of its own, for how long it has seen no new sign while it looked.
    """

    def __init__(self) -> None:
        self._signs: dict[str, tuple[float, float, float]] = {}  # the last one, silence since then, last look

    def alive(self, db: Transaction, owners: Iterable[str]) -> set[str]:
        """Return those of `owners` that are alive as far as can be known."""
        alive, now = set(), time.monotonic()
        for chunk, marks in query_chunks(sorted(owners)):
            statement = f"SELECT owner, MAX(seen) FROM in_flight WHERE owner IN ({marks}) GROUP BY owner"
            for owner, sign in db.execute(statement, chunk).fetchall():
                last, silence, looked = self._signs.get(owner, (None, 0.0, now))
                silence = silence + min(now - looked, LOOK_SECONDS) if sign == last else 0.0
                self._signs[owner] = (sign, silence, now)
                if silence < LIVE_SECONDS:
                    alive.add(owner)
        return alive


def query_chunks(values: Sequence[str], size: int = 500) -> Iterator[tuple[Sequence[str], str]]:
    """Yield parts of `values` that fit into the parameters of one query, each with its placeholders."""
    for start in range(0, len(values), size):
        chunk = values[start : start + size]
        yield chunk, ",".join("?" * len(chunk))
