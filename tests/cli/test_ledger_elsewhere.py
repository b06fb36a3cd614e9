"""`--ledger`: the answers of judges in a database of one's own, whatever the command and whoever runs the stages."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from light_plugin import RAN, CountingJudge
from postgres_server import PostgresServer
from purchases import purchases
from s3_server import s3_environment
from said import Afarm

from afarm.core.errors import StoreError
from afarm.judging.sqlite_database import require_usable

PASSWORD = "hunter2"


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A database, by a URL with a password, which the socket does not ask for."""
    login, at, rest = postgres.database().partition("@")
    return f"{login}:{PASSWORD}{at}{rest}"


def test_every_command_that_needs_the_ledger_takes_one_on_a_server(
    afarm: Afarm, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ["--ledger", url]
    monkeypatch.setattr("sys.argv", ["afarm", "run", *ledger])  # which the record of a run quotes
    assert "no ledger at postgresql://" in afarm("ledger", *ledger).err
    said = [
        afarm("run", "--recipe", "light.yaml", "--json", *ledger),
        afarm("ledger", "--json", *ledger),
        afarm("cost", "--recipe", "light.yaml", "--method", "direct", "--json", *ledger),
        afarm("ledger", "--export", "answers.jsonl", *ledger),
        afarm("train", "--recipe", "light.yaml", "--method", "direct", *ledger),
        afarm("ledger", *ledger),
    ]
    assert [one.code for one in said] == [0] * len(said), [one.err for one in said]
    run, accounts, *_ = said
    assert run.json["spend"]["calls"] == sum(row["answers"] for row in accounts.json["by"]["run"]) > 0
    assert accounts.json["by"]["day"][0]["name"].count("-") == 2
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert [answer["created"] for answer in answers] == sorted(answer["created"] for answer in answers)
    assert not list(tmp_path.rglob("*.sqlite")), "no other ledger is made"
    everything = [one.out + one.err for one in said]
    everything += [path.read_text() for path in tmp_path.rglob("*") if path.suffix in (".json", ".html", ".jsonl")]
    assert not any(PASSWORD in text for text in everything)
    assert f"--ledger '{url.replace(f':{PASSWORD}', '')}'" in run.json["command"]


def test_answers_of_one_directory_are_not_bought_again_for_another(afarm: Afarm, url: str) -> None:
    assert afarm("run", "--recipe", "light.yaml", "--ledger", url, "--output-dir", "one").code == 0
    asked = CountingJudge.asked
    assert afarm("run", "--recipe", "light.yaml", "--ledger", url, "--output-dir", "other").code == 0
    assert CountingJudge.asked == asked
    shutil.rmtree("other/artifacts/annotate")
    forgotten = afarm("run", "--recipe", "light.yaml", "--output-dir", "other")
    assert "other/ledger.sqlite is missing or empty" in forgotten.err
    assert "name theirs with --ledger" in forgotten.err


def test_a_ledger_in_a_file_moves_to_a_server_with_all_that_was_paid(afarm: Afarm, url: str) -> None:
    assert afarm("run", "--recipe", "light.yaml", "--output-dir", "one").code == 0
    asked, shown = CountingJudge.asked, url.replace(f":{PASSWORD}", "")
    moved = afarm("ledger", "--output-dir", "one", "--copy-to", url)
    assert moved.code == 0, moved.err
    assert "answers, with their judgements and all spending, are copied to" in moved.err
    assert f"from now on give --ledger '{shown}'" in moved.err
    assert PASSWORD not in moved.err + moved.out
    assert afarm("run", "--recipe", "light.yaml", "--output-dir", "other", "--ledger", url).code == 0
    assert CountingJudge.asked == asked, "no answer is bought again"
    again = afarm("ledger", "--output-dir", "one", "--copy-to", url)
    assert again.code == 1
    assert "a copy would count twice" in again.err


def test_stages_side_by_side_share_a_ledger_on_a_server(afarm: Afarm, url: str, tmp_path: Path) -> None:
    (tmp_path / "site" / "light-1.2.dist-info" / "entry_points.txt").write_text("[afarm]\nlight = light_worker\n")
    said = afarm(
        *("compare", "--recipe", "light.yaml", "--methods", "nudge,direct", "--json"),
        *("--launcher", "local:2", "--ledger", url),
    )
    assert said.code == 0, said.err
    assert not list(tmp_path.rglob("*.sqlite"))
    assert PASSWORD not in said.out + said.err
    paid, answers = purchases(url)
    assert paid == answers > 0


def test_a_ledger_file_can_lie_elsewhere(afarm: Afarm, tmp_path: Path) -> None:
    assert afarm("run", "--recipe", "light.yaml", "--ledger", "shared/answers.sqlite").code == 0
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.sqlite")] == [Path("shared/answers.sqlite")]
    assert afarm("ledger", "--ledger", "shared/answers.sqlite").code == 0
    refused = afarm("run", "--recipe", "light.yaml", "--ledger", "mysql://lab/afarm")
    assert "name a file, or postgresql://HOST/DATABASE" in refused.err
    typo = afarm("run", "--recipe", "light.yaml", "--ledger", f"postgres:/me:{PASSWORD}@lab/afarm")
    assert "--ledger postgres:… is no URL: name a file, or postgresql://HOST/DATABASE" in typo.err
    assert typo.code == 1
    assert PASSWORD not in typo.err
    assert not Path("postgres:").exists()


class Denying(BaseHTTPRequestHandler):
    """S3 for somebody who may read what is there, nothing, and not write."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        denied = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(denied)))
        self.end_headers()
        self.wfile.write(denied)

    def log_message(self, *said: object) -> None:
        pass


def test_a_store_that_may_not_be_written_is_named_before_the_first_stage(
    afarm: Afarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Denying) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in s3_environment("127.0.0.1", server.server_port).items():
            monkeypatch.setenv(name, value)
        for more in ([], ["--launcher", "local:2"], ["--dry-run"]):
            refused = afarm("run", "--recipe", "light.yaml", "--store", "s3://lab/afarm", *more)
            assert refused.code == 1
            said = " ".join(refused.err.split())
            assert "the store s3://lab/afarm cannot be written: " in said
            assert "403" in said
            assert "credentials that may read and write it" in said
        server.shutdown()
    assert not list(Path("afarm-runs").rglob("artifact.json"))
    assert RAN == [], "nothing was made that could not be published"


def test_artifacts_and_answers_of_one_directory_serve_another_through_a_store(afarm: Afarm) -> None:
    shared = ["run", "--recipe", "light.yaml", "--json", "--store", "shared", "--ledger", "answers.sqlite"]
    first = afarm(*shared, "--output-dir", "one")
    asked = CountingJudge.asked
    second = afarm(*shared, "--output-dir", "other")
    assert second.code == 0, second.err
    assert CountingJudge.asked == asked
    assert all(stage["reused"] for stage in second.json["stages"])
    assert second.json["headline"] == first.json["headline"]


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("full", "the ledger .*/full is a directory"),
        ("full/file/ledger.sqlite", r"the ledger .*/full/file/ledger\.sqlite cannot be made: .*/full/file is a file"),
    ],
)
def test_a_ledger_that_cannot_be_written_is_named_before_anything_is_made(
    place: str, problem: str, afarm: Afarm, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    said = afarm("run", "--recipe", "light.yaml", "--ledger", place)
    assert said.code == 1
    assert re.search(f"{problem}.*; name another file with --ledger", " ".join(said.err.split())), said.err
    assert not list(Path("afarm-runs").glob("artifacts/*/*")), "nothing was made in vain"


def test_rights_that_a_ledger_needs_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere: what the system says of rights is given here."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(StoreError, match=f"cannot be written: {tmp_path} gives you no right to"):
        require_usable(tmp_path / "ledger.sqlite")
    (tmp_path / "ledger.sqlite").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "ledger.sqlite")
    with pytest.raises(StoreError, match=r"ledger\.sqlite cannot be written: it gives you no right to"):
        require_usable(tmp_path / "ledger.sqlite")


def test_what_a_shared_store_gives_needs_no_ledger_of_those_who_paid(afarm: Afarm) -> None:
    run = ["run", "--recipe", "light.yaml", "--store", "shared", "--json", "--output-dir"]
    spent = [afarm(*run, directory) for directory in ("one", "other")]
    assert [said.code for said in spent] == [0, 0], spent[1].err
    first, second = (said.json["spend"] for said in spent)
    assert first["this_time"]["calls"] == first["calls"] == second["calls"] > 0
    assert second["this_time"]["calls"] == 0
