"""A store that was tampered with: links, named pipes and files in the place of directories, and edits in disguise."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from afarm.cli import main
from afarm.core.errors import DataError, StoreError
from afarm.storage.artifacts import Store, artifact_key
from afarm.storage.contents import META
from afarm.storage.disk import write_whole
from afarm.storage.runs import read_run

MADE_FROM = {"seed": 1}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "out").create()


def write_rows(directory: Path) -> Mapping[str, Any]:
    (directory / "rows.jsonl").write_text('{"preference": 1}\n')
    (directory / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    return {"rows": 1}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A whole artifact outside the store, where nothing may ever be deleted."""
    other = Store(tmp_path / "elsewhere").create()
    made, _ = other.make("sample", MADE_FROM, write_rows)
    other.release()
    return made.path


Replace = Callable[[Path, Path], None]
REPLACEMENTS: dict[str, Replace] = {
    "a symbolic link": lambda place, elsewhere: place.symlink_to(elsewhere),
    "a named pipe": lambda place, elsewhere: os.mkfifo(place),
    "a file": lambda place, elsewhere: place.write_text("x") and None,
}
PLACES: dict[str, Callable[[Store, str], Path]] = {
    "artifact": lambda store, key: store.artifacts / "sample" / key,
    "kind of stage": lambda store, key: store.artifacts / "sample",
    "unfinished artifact": lambda store, key: store.partial("sample", key),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", REPLACEMENTS)
def test_what_stands_in_the_place_of_a_directory_is_named_and_only_it_is_removed(
    what: str, place: str, store: Store, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = artifact_key(MADE_FROM)
    replaced = PLACES[place](store, key)
    replaced.parent.mkdir(parents=True, exist_ok=True)
    REPLACEMENTS[what](replaced, elsewhere.parent if place == "kind of stage" else elsewhere)
    with pytest.raises(StoreError, match=rf"{replaced} is {what}, no directory.*verify --remove --output-dir"):
        store.make("sample", MADE_FROM, write_rows)
    root = str(store.root)
    for command, code in ((["verify"], 1), (["list"], 0), (["verify", "--remove"], 0), (["verify"], 0)):
        with pytest.raises(SystemExit) as stop:
            main(["artifacts", *command, "--output-dir", root])
        assert stop.value.code == code, command
        said = capsys.readouterr().out
        if command == ["verify"] and code:
            assert f"{replaced} is {what}, no directory of afarm's" in said
    assert not os.path.lexists(replaced)
    assert sorted(path.name for path in elsewhere.iterdir()) == [META, "metrics.jsonl", "rows.jsonl"]
    assert store.make("sample", MADE_FROM, write_rows)[1] is False


@pytest.mark.parametrize("what", ["a symbolic link", "a named pipe"])
@pytest.mark.parametrize("name", [META, "rows.jsonl", "metrics.jsonl"])
def test_a_file_that_is_none_is_damage_and_never_opened(
    name: str, what: str, store: Store, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _ = store.make("sample", MADE_FROM, write_rows)
    store.release()
    (made.path / name).unlink()
    REPLACEMENTS[what](made.path / name, elsewhere / name)
    with pytest.raises(StoreError, match=what):
        Store(store.root).make("sample", MADE_FROM, write_rows)
    with pytest.raises(SystemExit) as stop:
        main(["artifacts", "verify", "--remove", "--json", "--output-dir", str(store.root)])
    assert stop.value.code == 0
    [row] = json.loads(capsys.readouterr().out)["damaged"]
    assert what in row["damages"][0]
    assert row["removed"]
    assert (elsewhere / name).is_file()


@pytest.mark.parametrize("name", ["checkpoints", "rows.jsonl", ".judged", "weights/model"])
def test_a_link_in_what_a_killed_stage_left_is_never_written_through(name: str, store: Store, elsewhere: Path) -> None:
    partial = store.partial("sample", artifact_key(MADE_FROM))
    link = partial / name
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere if name == "checkpoints" else elsewhere / "rows.jsonl")
    with pytest.raises(StoreError, match=f"{name} is a symbolic link, which no stage leaves: delete {partial}"):
        store.make("sample", MADE_FROM, lambda directory: pytest.fail("it was begun"))
    shutil.rmtree(partial)
    assert store.make("sample", MADE_FROM, write_rows)[1] is False


def test_a_link_in_the_place_of_a_lock_empties_nothing(store: Store, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    lock = store.artifacts / "sample" / f".{artifact_key(MADE_FROM)}.lock"
    lock.parent.mkdir()
    lock.symlink_to(precious)
    with pytest.raises(StoreError, match=rf"the lock {lock} is a symbolic link: delete it"):
        store.make("sample", MADE_FROM, write_rows)
    assert precious.read_text() == "precious"


def test_an_edit_that_restores_size_and_time_is_seen_by_the_next_run(store: Store) -> None:
    made, _ = store.make("sample", MADE_FROM, write_rows)
    rows = made.path / "rows.jsonl"
    before = rows.stat()
    rows.write_text('{"preference": 2}\n')
    os.utime(rows, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (rows.stat().st_size, rows.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(StoreError, match=r"rows\.jsonl has other bytes than were written"):
        Store(store.root).make("sample", MADE_FROM, write_rows)


def test_logs_are_no_content_but_an_edited_one_is_damage(store: Store) -> None:
    def write_later(directory: Path) -> Mapping[str, Any]:
        summary = write_rows(directory)
        (directory / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5, "seconds": 7}\n')
        return summary

    made, _ = store.make("sample", MADE_FROM, write_rows)
    later, _ = store.make("sample", {"seed": 2}, write_later)
    assert made.content == later.content
    (made.path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.1}\n')
    with pytest.raises(StoreError, match=r"metrics\.jsonl has other bytes than were written"):
        Store(store.root).make("sample", MADE_FROM, write_rows)
    written = json.loads((later.path / META).read_text())
    written["files"]["metrics.jsonl"]["sha256"] = "0" * 64
    (later.path / META).write_text(json.dumps(written))
    with pytest.raises(StoreError, match="not as it was written"):
        store.find("sample", later.key)


def test_metadata_without_their_digest_are_not_reused(store: Store) -> None:
    made, _ = store.make("sample", MADE_FROM, write_rows)
    written = json.loads((made.path / META).read_text())
    del written["digest"]
    (made.path / META).write_text(json.dumps({**written, "summary": {"rows": 1_000}}))
    with pytest.raises(StoreError, match=r"artifact\.json: it is not as it was written"):
        Store(store.root).make("sample", MADE_FROM, write_rows)


def test_a_stage_that_writes_a_link_or_a_pipe_is_refused_and_a_trackers_link_is_not(store: Store) -> None:
    def write_pipe(directory: Path) -> Mapping[str, Any]:
        (directory / "model").mkdir()
        os.mkfifo(directory / "model" / "weights")
        return {}

    def write_trackers(directory: Path) -> Mapping[str, Any]:
        (directory / "trackers").mkdir()
        (directory / "trackers" / "latest-run").symlink_to("nowhere")
        return {}

    with pytest.raises(StoreError, match=r"stage 'train x' has written model/weights, which is a named pipe"):
        store.make("train", MADE_FROM, write_pipe, label="train x")
    assert store.all() == []
    shutil.rmtree(store.partials()[0])
    assert store.make("train", MADE_FROM, write_trackers)[1] is False
    assert store.make("train", MADE_FROM, write_trackers)[1] is True


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{}", 'there is no list of "stages"'),
        ('{"stages": {}}', 'there is no list of "stages"'),
        ('{"stages": [{"kind": "sample"}]}', 'entry 1 of "stages" has no "kind" and "key"'),
        (None, "is no file"),
    ],
)
def test_a_record_that_names_no_stages_is_told_in_words(store: Store, written: str | None, told: str) -> None:
    path = store.run_dir("one") / "run.json"
    os.mkfifo(path) if written is None else path.write_text(written)
    with pytest.raises(StoreError, match=rf"one/run\.json is damaged .*{told}.*fix or delete it"):
        store.uses()


@pytest.mark.parametrize("name", ["metrics.jsonl", "outputs.jsonl", "run.json"])
def test_a_named_pipe_beside_a_record_is_refused_and_never_opened(store: Store, name: str) -> None:
    directory = store.run_dir("one")
    (directory / "run.json").write_text('{"stages": []}')
    (directory / name).unlink(missing_ok=True)
    os.mkfifo(directory / name)
    with pytest.raises(DataError, match=rf"one/{name}: is no file; delete it"):
        read_run(directory)


def test_a_file_that_cannot_be_written_is_named_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *arguments: Any, **named: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StoreError, match=r"page\.html: cannot be written \(Read-only file system\); choose another"):
        write_whole(tmp_path / "page.html", "text", "choose another")
