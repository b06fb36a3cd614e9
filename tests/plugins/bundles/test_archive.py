"""The file of a bundle: what is not plain, whole and inside is refused before it is written."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from afarm.core.errors import DataError
from afarm_plugins.bundles.archive import MANIFEST, is_inside, unpack_archive


def hostile(path: Path, name: str, data: bytes = b"x", mode: int = 0o644, **listed: object) -> Path:
    """A bundle with one member as an attacker would write it."""
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **listed}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps({"format": 1, "files": {name: entry}}))
        member = zipfile.ZipInfo(name)
        member.external_attr = mode << 16
        archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../outside", "outside of its directory"),
        ("/etc/outside", "outside of its directory"),
        ("runs/../../outside", "outside of its directory"),
        ("runs//x", "outside of its directory"),
        ("runs\\..\\x", "outside of its directory"),
        ("C:/x", "outside of its directory"),
        ("runs/a\nb", "outside of its directory"),
        ("runs/" + 250 * "a", "outside of its directory"),
    ],
)
def test_a_name_outside_is_refused_before_anything_is_written(name: str, reason: str, tmp_path: Path) -> None:
    path, target = hostile(tmp_path / "x.zip", name), tmp_path / "target"
    target.mkdir()
    with pytest.raises(DataError, match=reason):
        unpack_archive(path, target)
    assert list(target.iterdir()) == []
    assert not (tmp_path / "outside").exists()


def test_links_wrong_sizes_bombs_and_cut_off_files_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    cases = {
        "is no plain file": hostile(tmp_path / "link.zip", "link", b"/etc/passwd", 0o120777),
        "is not as its manifest.json lists it": hostile(tmp_path / "size.zip", "x", b"xx", size=1),
        "its digest is not the one listed": hostile(tmp_path / "digest.zip", "x", b"xx", sha256="0" * 64),
    }
    for reason, path in cases.items():
        with pytest.raises(DataError, match=reason):
            unpack_archive(path, target)
    bomb = hostile(tmp_path / "bomb.zip", "x", bytes(10_000_000))
    assert bomb.stat().st_size < 50_000
    with pytest.raises(DataError, match="would unpack to 10,000,"):
        unpack_archive(bomb, target, largest=1_000_000)
    whole = hostile(tmp_path / "whole.zip", "x", bytes(range(256)) * 64).read_bytes()
    for kept in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.zip").write_bytes(whole[:kept])
        with pytest.raises(DataError, match=r"is no bundle|cut off"):
            unpack_archive(tmp_path / "cut.zip", target)
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr(MANIFEST, json.dumps({"format": 1, "files": {}}))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(MANIFEST, json.dumps({"format": 1, "files": {}}))
    with pytest.raises(DataError, match="names a file twice"):
        unpack_archive(tmp_path / "twice.zip", target)
    assert list(target.iterdir()) == []


def test_plain_names_are_inside() -> None:
    assert is_inside("runs/toy-ppo seed 1/run.json")
    assert not is_inside("")
    assert not is_inside("a/./b")
