"""Artifacts shared through an object store: published whole or not at all, by one writer, for every machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ports import free_port
from s3_server import moto_command, s3_environment

from afarm.core.errors import ConfigError, StoreError
from afarm.storage.artifacts import Store
from afarm.storage.shared_store import open_shared_store
from afarm_plugins.object_store import object_store
from afarm_plugins.object_store.object_store import FORMS, LAST, ObjectStore

NOBODY = 65534
FIELDS = {"stage": "made", "seed": 1}


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """A bucket of moto's S3; without its command, the test is skipped."""
    port = free_port()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(moto_command("127.0.0.1", port), **quiet)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment("127.0.0.1", port).items():
            patch.setenv(name, value)
        deadline = time.monotonic() + 300
        while server.poll() is None and time.monotonic() < deadline:
            try:
                made = urllib.request.Request(f"http://127.0.0.1:{port}/afarm", method="PUT")
                urllib.request.urlopen(made)
                break
            except OSError:
                time.sleep(0.05)
        yield "s3://afarm"
    server.kill()
    server.wait()


@pytest.fixture(params=["s3", "directory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder of each kind."""
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{tmp_path.parent.name}/{tmp_path.name}"
    return str(tmp_path / "shared")


def store(directory: Path, url: str) -> Store:
    return Store(directory, shared=open_shared_store(url)).create()


def wrote(text: str) -> Callable[[Path], dict[str, object]]:
    def write(directory: Path) -> dict[str, object]:
        (directory / "weights").mkdir(exist_ok=True)
        (directory / "weights" / "model").write_text(text)
        (directory / "metrics.jsonl").write_text("{}\n")
        return {"rows": 1}

    return write


def refuse(directory: Path) -> dict[str, object]:
    raise AssertionError("it is made again")


def objects(url: str) -> list[str]:
    shared = ObjectStore(url)
    return sorted(found["path"] for batch in shared._obstore.list(shared._objects) for found in batch)


def test_another_machine_with_an_empty_store_finds_what_one_has_made(url: str, tmp_path: Path) -> None:
    made, reused = store(tmp_path / "one", url).make("made", FIELDS, wrote("a"), label="made")
    assert not reused
    other = store(tmp_path / "other", url)
    found, reused = other.make("made", FIELDS, refuse)
    assert reused
    assert (found.content, found.meta["created"]) == (made.content, made.meta["created"])
    assert (found.path / "weights" / "model").read_text() == "a"
    assert found.path.is_relative_to(tmp_path / "other")
    assert other.inspect("made", found.key) == ("made", [])
    assert not list((tmp_path / "other" / "artifacts" / "made").glob(".*fetched*"))


def test_what_was_made_without_the_store_is_published_when_it_is_used_with_it(url: str, tmp_path: Path) -> None:
    Store(tmp_path / "one").create().make("made", FIELDS, wrote("a"))
    store(tmp_path / "one", url).make("made", FIELDS, refuse)
    assert store(tmp_path / "other", url).make("made", FIELDS, refuse)[1]


def test_of_eight_writers_of_one_artifact_one_publishes_and_nothing_of_the_others_stays(
    url: str, tmp_path: Path
) -> None:
    artifact, _ = Store(tmp_path / "one").create().make("made", FIELDS, wrote("a"))
    with ThreadPoolExecutor(8) as pool:
        for done in [
            pool.submit(ObjectStore(url).publish, "made", artifact.key, artifact.path, artifact.content)
            for _ in range(8)
        ]:
            done.result()
    there = objects(url)
    assert len({path.split("/")[2] for path in there if not path.endswith(LAST)}) == 1, there
    assert store(tmp_path / "other", url).make("made", FIELDS, refuse)[1]


def test_another_content_under_the_same_key_is_an_error_that_names_both_machines(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: "first")
    store(tmp_path / "one", url).make("made", FIELDS, wrote("a"))
    monkeypatch.setattr(platform, "node", lambda: "second")
    Store(tmp_path / "other").create().make("made", FIELDS, wrote("b"))
    with pytest.raises(StoreError, match="made on first with another content than on second") as raised:
        store(tmp_path / "other", url).make("made", FIELDS, refuse)
    shutil.rmtree(str(raised.value).partition("delete ")[2].partition(" ")[0])
    found, _ = store(tmp_path / "other", url).make("made", FIELDS, refuse)
    assert (found.path / "weights" / "model").read_text() == "a"


KILLED = """
import os, signal, sys
from pathlib import Path
from afarm.storage.artifacts import Store
from afarm_plugins.object_store.object_store import ObjectStore

shared = ObjectStore(sys.argv[2])
put = shared._obstore.put

class Dies:
    def __getattr__(self, name):
        return getattr(obstore, name)
    def put(self, objects, path, content, **mode):
        if path.endswith(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return put(objects, path, content, **mode)

obstore, shared._obstore = shared._obstore, Dies()
def write(directory):
    for name in "abc":
        (directory / name).write_text(name * 1000)
    return {}
Store(Path(sys.argv[1]), shared=shared).create().make("made", {"seed": 1}, write)
"""


@pytest.mark.parametrize("at", ["/b", LAST])
def test_a_machine_killed_while_it_uploads_publishes_nothing_and_the_same_command_goes_on(
    url: str, at: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "one"), url]
    assert subprocess.run([*command, at]).returncode == -9
    assert objects(url), "killed in the middle"
    assert not any(path.endswith(LAST) for path in objects(url))
    other = store(tmp_path / "other", url)
    assert other.find("made", next(path.name for path in (tmp_path / "one/artifacts/made").iterdir())) is None
    assert subprocess.run([*command, "never"]).returncode == 0
    found, reused = store(tmp_path / "third", url).make("made", {"seed": 1}, refuse)
    assert reused
    assert (found.path / "c").read_text() == "c" * 1000


def test_a_store_that_cannot_be_used_is_an_error_that_says_so(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the store s3://nowhere cannot be written: .*bucket is there"):
        store(tmp_path, "s3://nowhere").make("made", FIELDS, wrote("a"))


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        ("", FORMS),
        ("mysql://lab/afarm", FORMS),
        ("http://lab/afarm", FORMS),
        ("https://me:secret@lab/afarm", FORMS),
        ("memory://", FORMS),
        ("s3:/lab/afarm", "s3://lab/afarm"),
        ("s3:lab/afarm", "s3://lab/afarm"),
        ("gs:/lab/afarm", "gs://lab/afarm"),
        ("s4:/lab/afarm", FORMS),
        ("file:/lab/afarm", "/lab/afarm"),
        ("file://lab/afarm", "/lab/afarm"),
    ],
)
def test_a_place_that_is_none_is_refused_with_the_right_spelling(
    place: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        open_shared_store(place)
    assert f"name {meant}" in str(refused.value).replace("name the directory itself, ", "name ")
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_url_is_the_directory_and_a_folder_may_be_called_like_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store(tmp_path / "one", f"file://{tmp_path}/shared%20one").make("made", FIELDS, wrote("a"))
    assert store(tmp_path / "other", str(tmp_path / "shared one")).make("made", FIELDS, refuse)[1]
    store(tmp_path / "one", "./s3:/lab").make("made", FIELDS, refuse)
    assert (tmp_path / "s3:" / "lab" / "made").is_dir()


def test_a_missing_directory_is_made_with_its_first_object(tmp_path: Path) -> None:
    shared = ObjectStore(str(tmp_path / "new" / "shared"))
    shared.require_usable()
    assert not shared.fetch("made", "key", tmp_path)
    with pytest.raises(StoreError, match="there is no store at"):
        shared.abandoned()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "new").write_text("a file")
    with pytest.raises(StoreError, match="can be a directory, with rights to read and write it"):
        shared.require_usable()


def deleted_as_told(message: str, url: str) -> None:
    """Do what a message says to delete in a store."""
    told = message.partition("Delete its folder in the store (")[2].partition("),")[0]
    if told.startswith("`"):
        subprocess.run(told.strip("`"), shell=True, check=True)
        return
    shared, folder = ObjectStore(url), told.removeprefix(f"all below {url}/")
    for batch in shared._obstore.list(shared._objects, prefix=folder):
        shared._obstore.delete(shared._objects, [found["path"] for found in batch])


@pytest.mark.parametrize(
    ("ending", "content", "said"),
    [
        ("/weights/model", b"aa", "damaged: weights/model has 2 bytes, not 1"),
        ("/weights/model", b"b", "damaged: weights/model has other bytes"),
        ("/artifact.json", b"{", "damaged: artifact.json: "),
        ("/weights/model", None, "weights/model is missing there"),
        (LAST, b"{", f"{LAST} cannot be used: "),
        (LAST, b"[]", f"{LAST} cannot be used: "),
        (LAST, b"{}", f"{LAST} has no 'upload'"),
        *(
            (LAST, json.dumps({"content": "", "host": "", "upload": upload, "files": [name]}).encode(), "outside of it")
            for upload, name in (
                ("u", "../x"),
                ("u", "/x"),
                ("u", "a/../../x"),
                ("u", "a\\..\\x"),
                ("u", "x\0"),
                ("..", "x"),
            )
        ),
    ],
)
def test_what_is_broken_in_the_store_is_made_again_once_it_is_deleted_there_as_told(
    url: str, ending: str, content: bytes | None, said: str, tmp_path: Path
) -> None:
    made, _ = store(tmp_path / "one", url).make("made", FIELDS, wrote("a"))
    shared, [path] = ObjectStore(url), [path for path in objects(url) if path.endswith(ending)]
    if content is None:
        shared._obstore.delete(shared._objects, path)
    else:
        shared._obstore.put(shared._objects, path, content)
    other = store(tmp_path / "other", url)
    for _ in range(2):  # asked again it is no more used
        with pytest.raises(StoreError) as raised:
            other.make("made", FIELDS, refuse)
    assert f"the artifact made/{made.key} in the store {url} is " in str(raised.value)
    assert said in str(raised.value)
    assert "verify --remove" not in str(raised.value)
    assert "credentials" not in str(raised.value)
    deleted_as_told(str(raised.value), url)
    assert objects(url) == []
    again, reused = other.make("made", FIELDS, wrote("a"))
    assert not reused
    assert again.content == made.content
    assert store(tmp_path / "third", url).make("made", FIELDS, refuse)[1]


def test_the_message_of_a_server_is_told_without_debug_text_or_markup(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        ObjectStore("s3://nowhere").require_usable()
    assert "404" in str(raised.value)
    assert not any(part in str(raised.value) for part in ("Debug", "<", "{", "RetryError"))


def test_an_endpoint_without_encryption_names_the_variable_that_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_environment("127.0.0.1", 9).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreError, match="set AWS_ALLOW_HTTP=true") as raised:
        ObjectStore("s3://lab/afarm").require_usable()
    assert "credentials" not in str(raised.value)


def test_a_directory_without_rights_to_write_is_seen_at_once() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # whose parents anyone may enter
        shared = ObjectStore(directory)
        shared.require_usable()
        assert list(Path(directory).iterdir()) == []
        Path(directory).chmod(0o555)
        was = os.geteuid()
        try:
            if was == 0:
                os.seteuid(NOBODY)
            with pytest.raises(StoreError, match=f"the store {directory} cannot be written: .*denied") as raised:
                shared.require_usable()
            assert "bucket" not in str(raised.value)
            assert "Debug" not in str(raised.value)
        finally:
            os.seteuid(was)
            Path(directory).chmod(0o755)


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped-from-afarm"])
def test_a_store_that_names_files_outside_of_an_artifact_is_refused(tmp_path: Path, name: str) -> None:
    shared = tmp_path / "shared" / "made" / "key"
    (shared / "up").mkdir(parents=True)
    (shared / LAST).write_text(json.dumps({"upload": "up", "content": "c", "host": "h", "files": [name]}))
    with pytest.raises(StoreError, match="outside of it"):
        store(tmp_path / "one", str(tmp_path / "shared")).find("made", "key")


ORPHAN = f"made/0123/{'a' * 32}"


def left_behind(url: str) -> ObjectStore:
    """The store with an upload that was never published, beside whatever is there."""
    opened = ObjectStore(url)
    for name in ("metrics.jsonl", "weights/model"):
        opened._obstore.put(opened._objects, f"{ORPHAN}/{name}", b"half")
    return opened


def test_a_marked_store_is_known_elsewhere_and_the_mark_does_not_stay(url: str) -> None:
    with ObjectStore(url).marked("check-1"):
        ObjectStore(url).require_mark("check-1")
        with pytest.raises(StoreError, match="is not there: name one that all machines share"):
            ObjectStore(url).require_mark("check-2")
    assert objects(url) == []


class Overwriting(BaseHTTPRequestHandler):
    """S3 of servers that do not know `If-None-Match`: whatever is there can be written again."""

    def answer(self) -> None:
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 12:00:00 GMT")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def log_message(self, *said: object) -> None:
        pass


def test_a_store_that_writes_over_what_is_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Overwriting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in s3_environment("127.0.0.1", server.server_port).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StoreError, match="writes over what is there, so of two writers"):
            ObjectStore("s3://lab/afarm").require_mark("check-1")
        server.shutdown()


def test_uploads_that_were_never_finished_are_deleted_and_no_others(url: str, tmp_path: Path) -> None:
    store(tmp_path / "one", url).make("made", FIELDS, wrote("a"))
    before = objects(url)
    opened = left_behind(url)
    assert opened.abandoned() == {}, "an upload that goes on is as young"
    assert opened.abandoned(-5) == {ORPHAN: 8}
    opened.delete_upload(ORPHAN)
    assert opened.abandoned(-5) == {}
    assert objects(url) == before
    assert store(tmp_path / "other", url).make("made", FIELDS, refuse)[1]


def test_an_upload_that_may_have_been_taken_for_abandoned_is_not_published(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as slow:
        slow.setattr(object_store, "LONGEST", -1.0)
        with pytest.raises(StoreError, match=r"took more than .* hours .*: give the same command again"):
            store(tmp_path / "one", url).make("made", FIELDS, wrote("a"))
    assert not [path for path in objects(url) if path.endswith(LAST)]
    store(tmp_path / "one", url).make("made", FIELDS, refuse)
    assert [path for path in objects(url) if path.endswith(LAST)], "the same command goes on"
