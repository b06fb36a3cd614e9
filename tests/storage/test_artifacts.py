"""Artifacts: whole or absent, made once, found by what they were made from."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import StoreError
from afarm.storage.artifacts import Store, artifact_key
from afarm.storage.checkpoints import CHECKPOINTS, CHECKSUMS, DirectoryCheckpoints, MetricsFile
from afarm.storage.contents import META, content_digest
from afarm.storage.disk import source_digest, source_files, storage_errors, write_json
from afarm.storage.rows import write_rows

MADE_FROM = {"settings": {"beta": 0.1}, "seed": 1}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "out").create()


def write_hello(directory: Path) -> Mapping[str, Any]:
    (directory / "hello.txt").write_text("hello")
    return {"rows": 1}


def must_not_run(directory: Path) -> Mapping[str, Any]:
    raise AssertionError("made a second time")


# ---------------------------------------------------------------------------------------------------------- making


def test_an_artifact_is_made_once_and_then_found(store: Store) -> None:
    made, reused = store.make("sample", MADE_FROM, write_hello)
    assert (reused, made.meta["summary"], made.key_fields) == (False, {"rows": 1}, MADE_FROM)
    again, reused = Store(store.root).make("sample", dict(reversed(MADE_FROM.items())), must_not_run)
    assert reused
    assert (again.key, again.content, again.path) == (made.key, made.content, made.path)
    assert (again.path / "hello.txt").read_text() == "hello"
    assert store.find("sample", made.key) == again
    assert store.find("other", made.key) is None


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_what_libraries_write_for_the_owner_alone_has_the_rights_of_new_files(mask: int, store: Store) -> None:
    """safetensors does: whoever shares an output directory could not load the weights."""

    def write_weights(directory: Path) -> Mapping[str, Any]:
        (directory / "model").mkdir(mode=0o700)
        (directory / "model" / "model.safetensors").touch(mode=0o600)
        return {}

    before = os.umask(mask)
    try:
        made, _ = store.make("train", MADE_FROM, write_weights)
    finally:
        os.umask(before)
    rights = {name: (made.path / name).stat().st_mode & 0o777 for name in ("model", "model/model.safetensors", META)}
    assert rights == {"model": 0o777 & ~mask, "model/model.safetensors": 0o666 & ~mask, META: 0o666 & ~mask}


def test_other_ingredients_make_another_artifact(store: Store) -> None:
    keys = {
        store.make("sample", key_fields, write_hello)[0].key
        for key_fields in (MADE_FROM, {**MADE_FROM, "seed": 2}, {"settings": {"beta": 0.2}, "seed": 1}, {})
    }
    assert len(keys) == 4
    assert len(store.of_stage("sample")) == 4
    assert len({a.content for a in store.all()}) == 1


def test_a_write_that_fails_leaves_nothing_finished_and_hands_its_directory_on(store: Store) -> None:
    def fails(directory: Path) -> Mapping[str, Any]:
        (directory / "half.txt").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.make("train", MADE_FROM, fails)
    assert store.find("train", artifact_key(MADE_FROM)) is None
    assert store.all() == []
    (partial,) = store.partials()

    def goes_on(directory: Path) -> Mapping[str, Any]:
        (directory / "whole.txt").write_text((directory / "half.txt").read_text() + " and half")
        return {}

    made, reused = store.make("train", MADE_FROM, goes_on)
    assert not reused
    assert (made.path / "whole.txt").read_text() == "half and half"
    assert not partial.exists()


def test_checkpoints_are_gone_from_a_finished_artifact_and_do_not_count_as_content(store: Store) -> None:
    def with_checkpoint(directory: Path) -> Mapping[str, Any]:
        DirectoryCheckpoints(directory).save(3, lambda d: (d / "state").write_bytes(b"x") and None)
        return write_hello(directory)

    made, _ = store.make("train", MADE_FROM, with_checkpoint)
    assert not (made.path / CHECKPOINTS).exists()
    plain, _ = store.make("train", {"other": 1}, write_hello)
    assert made.content == plain.content


def test_what_a_kill_leaves_half_written_does_not_change_an_artifacts_content(store: Store) -> None:
    def killed_while_writing_json(directory: Path) -> Mapping[str, Any]:
        (directory / ".class.json.4711.tmp").write_text('{"cla')
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.make("train", MADE_FROM, killed_while_writing_json)
    resumed, _ = store.make("train", MADE_FROM, write_hello)
    untouched, _ = store.make("train", {"other": 1}, write_hello)
    assert resumed.content == untouched.content


def _make_slowly(root: str, log: str) -> None:
    def write(directory: Path) -> Mapping[str, Any]:
        with open(log, "a") as handle:
            handle.write(f"{os.getpid()}\n")
        time.sleep(0.3)
        return write_hello(directory)

    made, _ = Store(Path(root)).make("sample", MADE_FROM, write)
    assert (made.path / "hello.txt").read_text() == "hello"


def test_two_processes_that_want_one_artifact_make_it_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_make_slowly, args=(str(tmp_path / "out"), str(log))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(log.read_text().splitlines()) == 1


KILLED = """
import sys, time
from pathlib import Path
from afarm.storage.artifacts import Store

def write(directory):
    (directory / "first.txt").write_text("first")
    print("ready", flush=True)
    time.sleep(600)

Store(Path(sys.argv[1])).make("train", {"a": 1}, write)
"""


def test_a_killed_process_leaves_no_artifact_and_no_lock(store: Store) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert store.all() == []

    def goes_on(directory: Path) -> Mapping[str, Any]:
        return {"found": (directory / "first.txt").read_text()}

    made, _ = store.make("train", {"a": 1}, goes_on)
    assert made.meta["summary"] == {"found": "first"}


# --------------------------------------------------------------------------------------------------------- digests


def test_content_is_the_names_and_bytes_of_files_logs_apart(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        (directory / "sub").mkdir(parents=True)
        (directory / "sub" / "a").write_bytes(b"12")
        (directory / "b").write_bytes(b"3")
    (two / "metrics.jsonl").write_text("{}")
    (two / META).write_text("{}")
    (two / "trackers" / "tensorboard").mkdir(parents=True)
    (two / "trackers" / "tensorboard" / "events.123").write_bytes(b"at 12:03")
    assert content_digest(one) == content_digest(two)
    (two / "b").write_bytes(b"4")
    assert content_digest(one) != content_digest(two)
    (two / "b").write_bytes(b"3")
    (two / "sub" / "a").rename(two / "a")
    assert content_digest(one) != content_digest(two)


def test_source_is_python_and_data_without_bytecode_and_hidden_files(tmp_path: Path) -> None:
    package = tmp_path / "plugin"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("a = 1\n")
    (package / "data.yaml").write_text("x: 1\n")

    def digest() -> str:
        return source_digest(source_files(package, tmp_path))

    assert set(source_files(package, tmp_path)) == {"plugin/__init__.py", "plugin/data.yaml"}
    before = digest()
    (package / "__pycache__" / "x.pyc").write_bytes(b"123")
    (package / ".data.yaml.swp").write_bytes(b"123")
    assert digest() == before
    (package / "data.yaml").write_text("x: 2\n")
    edited = digest()
    assert edited != before
    (package / "__init__.py").write_text("a = 2\n")
    assert digest() not in (before, edited)


# ------------------------------------------------------------------------------------------------- what is in use


def test_only_what_a_finished_run_refers_to_is_in_use(store: Store) -> None:
    kept, _ = store.make("sample", MADE_FROM, write_hello)
    loose, _ = store.make("sample", {"other": 1}, write_hello)
    write_json(store.run_dir("one") / "run.json", {"stages": [{"kind": "sample", "key": kept.key}]})
    store.run_dir("unfinished")
    assert store.in_use() == {kept.name}
    assert store.uses() == {"one": {kept.name}}
    assert {a.name for a in store.all()} == {kept.name, loose.name}


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"stages": [{}]}', '{"stages": 3}', "\x80"])
def test_a_damaged_run_hides_nothing_that_it_uses(store: Store, damage: str) -> None:
    (store.run_dir("one") / "run.json").write_bytes(damage.encode("latin-1"))
    with pytest.raises(StoreError, match=r"one/run\.json is damaged .*: fix or delete it"):
        store.in_use()


def test_what_is_young_or_being_written_is_not_abandoned(store: Store) -> None:
    partial = store.artifacts / "train" / "0123.partial"
    (partial / "checkpoints").mkdir(parents=True)
    state = partial / "checkpoints" / "state"
    state.write_text("x")
    later = time.time() + 10
    assert store.abandoned(later) == [partial]
    os.utime(state, (later + 10, later + 10))
    assert store.abandoned(later) == [], "a file deep inside is young"
    with store._locked("train", "0123"):
        assert store.abandoned(later + 20) == [], "its writer is at work"
    assert store.abandoned(later + 20) == [partial]


@pytest.mark.parametrize("damage", ["{", "", "{}", "[]", '{"content": "x"}', "\x80"])
def test_a_damaged_artifact_is_an_error_that_says_what_to_delete(store: Store, damage: str) -> None:
    made, _ = store.make("sample", MADE_FROM, write_hello)
    (made.path / META).write_bytes(damage.encode("latin-1"))
    with pytest.raises(StoreError, match="damaged") as caught:
        store.make("sample", MADE_FROM, must_not_run)
    assert str(made.path) in str(caught.value)


DEEP = "[" * 100_000 + "]" * 100_000
WRONG_FIELDS: dict[str, Any] = {
    "created": [None, "today", True, {}],
    "seconds": [None, "1", []],
    "versions": [None, [], {"torch": 2}],
    "spend": [None, {"dollars": "1"}],
    "summary": [None, []],
    "files": [None, [], {"a": None}, {"a": {"size": "1"}}],
    "key_fields": [None, []],
    "content": [None, 1],
    "label": [None, 3],
}


@pytest.mark.parametrize("field", WRONG_FIELDS)
@pytest.mark.parametrize("with_digest", [True, False])
def test_metadata_are_validated_in_one_place(store: Store, field: str, with_digest: bool) -> None:
    made, _ = store.make("sample", MADE_FROM, write_hello, {"torch": "2"}, label="sample")
    written = json.loads((made.path / META).read_text())
    if not with_digest:
        written.pop("digest", None)
    wrong: list[Any] = [{**written, field: value} for value in WRONG_FIELDS[field]]
    for text in [json.dumps(each) for each in wrong] + [
        json.dumps({**written, "summary": 7})[:-1] + f', "x": {DEEP}}}'
    ]:
        (made.path / META).write_text(text)
        with pytest.raises(StoreError, match=r"is damaged: artifact\.json: .*`afarm artifacts verify --remove"):
            store.make("sample", MADE_FROM, must_not_run)
        assert store.inspect("sample", made.key)[1][0].startswith("artifact.json cannot be read: ")
    if with_digest or field in ("created", "seconds", "content"):
        (made.path / META).write_text(json.dumps({k: v for k, v in written.items() if k != field}))
        with pytest.raises(StoreError, match="is damaged"):
            store.find("sample", made.key)
    store.remove("sample", made.key)
    assert store.make("sample", MADE_FROM, write_hello)[1] is False


def test_what_another_run_uses_is_not_deleted(store: Store) -> None:
    made, _ = store.make("sample", MADE_FROM, write_hello)
    reader = Store(store.root)
    assert reader.make("sample", MADE_FROM, must_not_run)[1]
    store.release()
    assert store.remove("sample", made.key) is False
    assert (made.path / "hello.txt").exists()
    reader.release()
    assert store.remove("sample", made.key) is True
    assert not made.path.exists()
    made, _ = reader.make("sample", MADE_FROM, write_hello)
    assert store.remove("sample", made.key) is False, "held from its making on"
    del reader
    gc.collect()
    assert store.remove("sample", made.key) is True


def test_what_is_deleted_by_hand_is_made_again_while_it_is_in_use(store: Store) -> None:
    made, _ = store.make("sample", MADE_FROM, write_hello)
    shutil.rmtree(made.path)
    assert Store(store.root).make("sample", MADE_FROM, write_hello)[1] is False


def test_a_directory_without_its_metadata_is_the_remains_of_a_deletion(store: Store) -> None:
    made, _ = store.make("sample", MADE_FROM, write_hello)
    (made.path / META).unlink()
    again, reused = store.make("sample", MADE_FROM, write_hello)
    assert (reused, again.content) == (False, made.content)


# ------------------------------------------------------------------------------------------ checkpoints and metrics


def save(checkpoints: DirectoryCheckpoints, step: int) -> None:
    checkpoints.save(step, lambda directory: (directory / "state").write_text(str(step)) and None)


def test_the_newest_checkpoint_is_kept_and_half_written_ones_are_not_seen(tmp_path: Path) -> None:
    checkpoints = DirectoryCheckpoints(tmp_path)
    assert checkpoints.latest() is None
    save(checkpoints, 9)
    save(checkpoints, 10)
    assert checkpoints.latest() == (10, tmp_path / CHECKPOINTS / "step-00000010")
    assert [p.name for p in (tmp_path / CHECKPOINTS).iterdir()] == ["step-00000010"]

    def dies(directory: Path) -> None:
        (directory / "state").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(11, dies)
    resumed = DirectoryCheckpoints(tmp_path)
    newest = resumed.latest()
    assert newest is not None
    assert (newest[0], (newest[1] / "state").read_text()) == (10, "10")
    save(resumed, 11)
    assert (tmp_path / CHECKPOINTS / "step-00000011" / "state").read_text() == "11"
    assert [path.name for path in tmp_path.rglob("state")] == ["state"]


@pytest.mark.parametrize("name", ["state", "deep/weights.pt", CHECKSUMS])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "delete", "add"])
def test_a_checkpoint_with_other_bytes_than_were_written_is_refused(damage: str, name: str, tmp_path: Path) -> None:
    checkpoints = DirectoryCheckpoints(tmp_path)
    checkpoints.require_sound()  # none is there

    def write(directory: Path) -> None:
        (directory / "deep").mkdir()
        for path in (directory / "state", directory / "deep" / "weights.pt"):
            path.write_bytes(bytes(range(256)) * 100)

    checkpoints.save(3, write)
    checkpoints.require_sound()
    newest = checkpoints.latest()
    assert newest is not None
    path = newest[1] / name
    whole = path.read_bytes()
    middle = len(whole) // 2
    changed = {
        "flip": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "cut": whole[:middle],
        "empty": b"",
    }
    if damage in changed:
        path.write_bytes(changed[damage])
    elif damage == "add":
        (path.parent / "more").write_text("")
    elif name != CHECKSUMS:  # without it, the checkpoint is an older version's
        path.unlink()
    else:
        return
    with pytest.raises(StoreError, match=r"step-00000003 is damaged: .*Remove that directory"):
        checkpoints.require_sound()


def test_a_resumed_stage_drops_the_metrics_after_its_checkpoint_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path)
    for step in (1, 2, 3):
        first(step, {"loss": 1 / step})
    with path.open("a") as handle:
        handle.write('{"step": 4, "lo')
    again = MetricsFile(path, resume_from=2)
    again(2, {"loss": 0.5})  # a stage that is resumed at its very end says its last line again
    again(3, {"loss": 7.0})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 0.5},
        {"step": 3, "loss": 7.0},
    ]
    MetricsFile(path)
    assert path.read_text() == ""


def test_a_kill_while_metrics_are_cut_back_loses_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path)(1, {"loss": 1.0})

    def killed(self: Path, text: str, encoding: str) -> int:
        self.open("w").close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            MetricsFile(path, resume_from=1)
    assert MetricsFile(path, resume_from=1).path.read_text() == '{"step": 1, "loss": 1.0}\n'


# -------------------------------------------------------------------------------------------------- disk and rights


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one MiB."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a full disk needs the right to mount a small tmpfs")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def test_a_full_disk_is_explained_and_what_is_finished_stays(small_disk: Path) -> None:
    store = Store(small_disk / "out").create()
    store.make("sample", MADE_FROM, write_hello)
    rows = ({"text": "x" * 1000} for _ in range(2000))

    def too_much(directory: Path) -> Mapping[str, Any]:
        return {"rows": write_rows(directory / "rows.jsonl", rows)}

    with pytest.raises(StoreError, match=r"No space left.*MiB free.*run the same command"):
        store.make("sample", {"big": 1}, too_much)
    assert [a.key_fields for a in store.all()] == [MADE_FROM]
    (partial,) = store.partials()
    assert not list(partial.glob("**/*rows*")), "half a file keeps no room"
    made, reused = store.make("sample", {"big": 1}, write_hello)
    assert not reused
    assert store.find("sample", made.key) is not None


def test_a_full_disk_is_recognised_behind_the_errors_of_libraries(small_disk: Path) -> None:
    def library(message: str) -> None:
        with storage_errors(small_disk / "model"):
            raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="shape"):
        library("shape mismatch")
    with pytest.raises(StoreError, match="No space left"):
        library("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(OSError), (small_disk / "filler").open("wb") as handle:  # noqa: PT012
        while True:
            handle.write(b"x" * 4096)
    with pytest.raises(StoreError, match=r"No space left.*\(0 MiB free\)"):
        library("[enforce fail at inline_container.cc:672] . unexpected pos 1615040 vs 1614928")


def test_a_full_disk_keeps_the_last_checkpoint(small_disk: Path) -> None:
    checkpoints = DirectoryCheckpoints(small_disk)
    save(checkpoints, 1)
    with pytest.raises(StoreError, match="No space left"):
        checkpoints.save(2, lambda d: (d / "state").write_bytes(b"x" * 2**21) and None)
    assert checkpoints.latest() == (1, small_disk / CHECKPOINTS / "step-00000001")
    save(checkpoints, 2)
    assert checkpoints.latest() == (2, small_disk / CHECKPOINTS / "step-00000002")


def test_an_output_directory_that_cannot_be_made_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(StoreError, match=r"cannot be written.*--output-dir") as caught:
            Store(root).create()
        assert str(root) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_directory_without_rights_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=r"Permission denied.*--output-dir"):
        Store(tmp_path / "out").create()


def test_other_operating_system_errors_keep_their_own_type(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), storage_errors(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "gone")
