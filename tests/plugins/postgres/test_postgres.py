"""A ledger on a PostgreSQL server: what network and server do to it, and what is said when it cannot be used."""

from __future__ import annotations

import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from postgres_server import USER, PostgresServer, Wire
from scripted_judges import ScriptedJudge, question, questions

from afarm.core.errors import AfarmError, ConfigError, StoreError
from afarm.core.judge import ChatRequest, Completion
from afarm.judging.client import JudgeClient
from afarm.judging.database import is_there, open_database, redact_place
from afarm.judging.ledger import Ledger, request_key
from afarm_plugins.postgres import postgres_database

PASSWORD = "se/c@ret%"
"""As awkward as one can be in a URL."""


def answered(prompt: str, price: float = 0.5) -> tuple[ChatRequest, str, Completion]:
    request = question(prompt)
    return request, "judge", Completion("an answer", 11, 3, price=price, key=request_key(request, "judge"))


# ----------------------------------------------------------------------------------------- the network and the server


class Scissors:
    """Cuts a wire once, at the first message that holds `word`."""

    def __init__(self, word: bytes, when: str):
        self.word, self.when = word, when
        self.cut = False

    def __call__(self, sent: bytes) -> str:
        if self.cut or self.word not in sent:
            return ""
        self.cut = True
        return self.when


@pytest.mark.parametrize(("word", "when"), [(b"COMMIT", "after"), (b"COMMIT", "before"), (b"completions", "after")])
def test_a_purchase_is_counted_once_whatever_became_of_the_connection_that_told_of_it(
    postgres: PostgresServer, word: bytes, when: str
) -> None:
    place = postgres.database()
    with Ledger(place):  # its tables
        pass
    scissors = Scissors(word, when)
    wire = Wire(postgres, lambda sent: scissors(sent) if armed.is_set() else "")
    armed = threading.Event()
    with Ledger(postgres.url(place.rpartition("?")[0].rpartition("/")[2], wire.port)) as ledger:
        ledger.claim([(answered("q")[2].key, 0.5), ("lost", 0.25)], "run")
        armed.set()
        ledger.resolve([answered("q")], "run", charged_without_answer=["lost"], stage="annotate/x")
        assert scissors.cut
        assert ledger.committed("run") == 0.75
        assert ledger.stage_spend("annotate/x")["calls"] == 1
        assert ledger.read("SELECT COUNT(*) FROM in_flight") == [(1,)]
    wire.close()


def test_a_server_that_crashes_and_comes_back_while_answers_arrive_costs_nothing_twice() -> None:
    server, restarts = PostgresServer(), list[threading.Thread]()
    try:

        def crash(prompt: str) -> None:
            if prompt in ("q40", "q120"):
                for thread in restarts:  # a server that is still starting cannot crash
                    thread.join()
                server.stop("immediate")
                restarts.append(threading.Thread(target=server.start))
                restarts[-1].start()

        judge = ScriptedJudge(price=0.01, worst=0.01, fail=crash)
        with Ledger(server.database()) as ledger, Ledger(ledger.place) as other:
            texts = [answer.text for answer in JudgeClient({"*": judge}, ledger, run="run")(questions(200))]
            assert texts == [f"echo q{i}" for i in range(200)]
            assert len(restarts) == 2
            assert sorted(judge.asked) == sorted(q.prompt for q in questions(200)), "each once"
            assert other.committed("run") == pytest.approx(2.0), "also by a connection that was idle meanwhile"
    finally:
        for thread in restarts:
            thread.join()
        server.remove()


# ------------------------------------------------------------------------------------------ what it is refused, and why


@pytest.fixture
def visitor(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database that is another's, for a user with a password."""
    place = postgres.database()
    name = place.rpartition("?")[0].rpartition("/")[2]
    postgres.sql(f"CREATE ROLE visitor LOGIN PASSWORD '{PASSWORD}'")
    yield postgres.url(name, postgres.port, f"visitor:{quote(PASSWORD, safe='')}")
    postgres.sql("DROP SCHEMA IF EXISTS afarm CASCADE", "DROP OWNED BY visitor", "DROP ROLE visitor", database=name)


def refusal(url: str) -> str:
    with pytest.raises(AfarmError) as raised:
        open_database(url)
    chain = [raised.value, raised.value.__cause__, raised.value.__context__ if raised.value.__cause__ else None]
    assert not any(secret in f"{error}" for error in chain for secret in (PASSWORD, quote(PASSWORD, safe="")))
    return str(raised.value)


def mended_by(said: str, postgres: PostgresServer) -> None:
    """Do what an error says with psql."""
    command = shlex.split(said.partition(": psql ")[2])
    postgres.sql(*command[2].split(";"), database=command[0])


def test_a_user_without_rights_is_told_the_command_that_gives_them(postgres: PostgresServer, visitor: str) -> None:
    name = visitor.rpartition("/")[2]
    assert not is_there(visitor)
    said = refusal(visitor)
    assert f"permission denied for database {name}" in said
    mended_by(said, postgres)
    with Ledger(visitor) as ledger:
        ledger.resolve([answered("q")], "run")
    postgres.sql("ALTER SCHEMA afarm OWNER TO CURRENT_USER", database=name)
    tables = ["completions", "judgements", "in_flight", "spent", "stage_spend", "reuse", "batch_requests", "version"]
    postgres.sql(*(f"ALTER TABLE afarm.{table} OWNER TO CURRENT_USER" for table in tables), database=name)
    assert is_there(visitor)
    said = refusal(visitor)
    assert "permission denied for schema afarm" in said
    mended_by(said, postgres)
    with Ledger(visitor) as ledger:
        ledger.resolve([answered("r")], "run")
        assert ledger.committed("run") == 1.0


def test_a_wrong_password_a_missing_database_or_user_and_an_absent_server_are_told_apart(
    postgres: PostgresServer, visitor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "STARTING", 0.0)
    wrong = visitor.replace("visitor:", "visitor:not")
    assert "put the right one into ~/.pgpass or the variable PGPASSWORD" in refusal(wrong)
    assert wrong.partition("not")[2] not in refusal(wrong)
    assert "make it: createdb nowhere" in refusal(postgres.url("nowhere"))
    assert "USER@HOST" in refusal(postgres.url("postgres", login="nobody_here"))
    with socket.socket() as held:  # bound and not listening: who connects is refused
        held.bind(("127.0.0.1", 0))
        assert "start the server" in refusal(postgres.url("postgres", held.getsockname()[1]))


def test_tables_of_another_version_and_an_encoding_that_cannot_hold_all_texts_are_refused(
    postgres: PostgresServer,
) -> None:
    place = postgres.database()
    name = place.rpartition("?")[0].rpartition("/")[2]
    Ledger(place).close()
    for number, said in ((99, "newer afarm"), (2, "older afarm")):
        postgres.sql(f"UPDATE afarm.version SET tables = {number}", database=name)
        assert said in refusal(place)
    postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    assert "createdb --encoding UTF8" in refusal(postgres.url("latin"))


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'afarm\[postgres\]'"):
        Ledger("postgresql://lab/afarm")


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("postgresql://me:pa:ss@lab/afarm", "postgresql://me@lab/afarm"),
        ("postgresql://me:p?a@ss@lab/afarm?sslmode=require", "postgresql://me@lab/afarm?sslmode=require"),
        ("postgres://lab:5432/afarm?password=pass&x=1", "postgres://lab:5432/afarm?password=[password]&x=1"),
        ("postgresql://me@lab/afarm", "postgresql://me@lab/afarm"),
        ("runs/ledger.sqlite", "runs/ledger.sqlite"),
    ],
)
def test_a_password_is_never_shown(url: str, seen: str) -> None:
    assert redact_place(url) == seen


def test_a_url_of_another_kind_or_that_cannot_be_read_is_refused_without_its_password() -> None:
    for url in ("mysql://me:pass@lab/afarm", "postgresql://me:pass@lab:port:port/afarm?sslmode=x&y"):
        with pytest.raises(ConfigError) as raised:
            Ledger(url)
        assert "pass" not in str(raised.value)


def test_times_are_the_servers(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    with Ledger(postgres.database()) as ledger:
        ledger.resolve([answered("q")], "run")
        [(age,)] = ledger.read("SELECT extract(epoch FROM clock_timestamp()) - created FROM completions")
        assert abs(age) < 60
        assert USER in redact_place(ledger.place)


def test_a_ledger_that_cannot_be_reached_any_more_is_an_error_that_names_it(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "PATIENCE", 0.0)
    name = postgres.database().rpartition("?")[0].rpartition("/")[2]
    wire = Wire(postgres, lambda sent: "before" if b"BEGIN" in sent and cut.is_set() else "")
    cut = threading.Event()
    with Ledger(postgres.url(name, wire.port)) as ledger:
        cut.set()
        with pytest.raises(StoreError, match=rf"the ledger .*{name} cannot be written: .*then goes on"):
            ledger.heartbeat()
    wire.close()
