"""`--store`: artifacts of one directory in another one, by the command line."""

from __future__ import annotations

import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from light_plugin import RAN, CountingJudge
from s3_server import s3_environment
from said import Afarm, Said

LIGHT = ["--recipe", "light.yaml"]


def failed(said: Said, *parts: str, code: int = 1) -> None:
    assert said.code == code
    assert said.out == "", "nothing but results goes to stdout"
    for part in parts:
        assert part in said.err
    assert "Traceback" not in said.err


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


def test_what_a_shared_store_gives_needs_no_ledger_of_those_who_paid(afarm: Afarm) -> None:
    run = ["run", "--recipe", "light.yaml", "--store", "shared", "--json", "--output-dir"]
    spent = [afarm(*run, directory) for directory in ("one", "other")]
    assert [said.code for said in spent] == [0, 0], spent[1].err
    first, second = (said.json["spend"] for said in spent)
    assert first["this_time"]["calls"] == first["calls"] == second["calls"] > 0
    assert second["this_time"]["calls"] == 0


def test_uploads_to_a_shared_store_that_were_never_finished_are_deleted_once_they_are_a_day_old(
    afarm: Afarm, tmp_path: Path
) -> None:
    half = tmp_path / "shared" / "train" / "0123" / ("a" * 32) / "model"
    half.parent.mkdir(parents=True)
    half.write_text("half")
    assert "0 uploads" in afarm("artifacts", "gc", "--store", "shared", "--yes").out
    os.utime(half, (0, 0))
    assert f"train/0123/{'a' * 32}" in afarm("artifacts", "gc", "--store", "shared").out
    assert half.exists()
    assert "1 uploads that were never finished" in afarm("artifacts", "gc", "--store", "shared", "--yes").out
    assert not half.exists()
    assert "may still be going on" in afarm("artifacts", "gc", "--store", "shared", "--days", "0.5").err
    failed(afarm("artifacts", "gc", "--store", "none"), "there is no store at none")
    for command in (["run", *LIGHT], ["artifacts", "gc"]):
        failed(afarm(*command, "--store", ""), "--store is empty: name s3://")
    assert afarm("run", *LIGHT, "--store", "none", "--dry-run").code == 0
    assert not Path("none").exists()


def test_what_is_broken_in_a_shared_store_is_made_again_once_it_is_deleted_there(afarm: Afarm) -> None:
    run = ["run", *LIGHT, "--store", "shared lab", "--ledger", "answers.sqlite"]
    assert afarm(*run).code == 0
    published = sorted(Path("shared lab").glob("*/*/published.json"))
    changed = next(Path("shared lab").rglob("outputs.jsonl"))
    with changed.open("a") as file:
        file.write("{}\n")
    other = [*run, "--output-dir", "other"]
    said = afarm(*other)
    failed(said, "outputs.jsonl has ", "in the store shared lab is damaged")
    subprocess.run(said.err.partition("(`")[2].partition("`)")[0], shell=True, check=True)
    assert not changed.exists()
    assert afarm(*other).code == 0
    assert sorted(Path("shared lab").glob("*/*/published.json")) == published
    assert afarm(*run, "--output-dir", "third").code == 0
