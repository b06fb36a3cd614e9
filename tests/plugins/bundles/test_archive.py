"""The file of a bundle: what is not plain, whole and inside is refused before it is written."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from afarm.core.errors import DataError
from afarm_plugins.bundles.archive import MANIFEST, is_inside, unpack_archive


def hostile(path: Path, name: str, data: bytes = b"x", mode: int = 0o644) -> Path:
    """A bundle with one member as an attacker would write it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, json.dumps({"format": 1}))
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


def test_links_bombs_and_damaged_files_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(DataError, match="is no plain file"):
        unpack_archive(hostile(tmp_path / "link.zip", "link", b"/etc/passwd", 0o120777), target)
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
        archive.writestr(MANIFEST, json.dumps({"format": 1}))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(MANIFEST, json.dumps({"format": 1}))
    with pytest.raises(DataError, match="names a file twice"):
        unpack_archive(tmp_path / "twice.zip", target)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(DataError, match=r"is no bundle: it has no manifest\.json"):
        unpack_archive(tmp_path / "other.zip", target)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_changed_byte_or_size_is_seen(method: int, tmp_path: Path) -> None:
    """A size that is less than what is there writes no more than it says."""
    path, data = tmp_path / "x.zip", bytes(range(256)) * 64
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(MANIFEST, json.dumps({"format": 1}))
        archive.writestr("x", data)
        [member] = [member for member in archive.infolist() if member.filename == "x"]
    whole = path.read_bytes()
    at = member.header_offset + 30 + len("x") + member.compress_size // 2
    size = whole.rindex(len(data).to_bytes(4, "little"))  # in the central directory, which counts
    for changed in (
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
        whole[:size] + b"\1\0\0\0" + whole[size + 4 :],
    ):
        path.write_bytes(changed)
        with pytest.raises(DataError, match="was cut off"):
            unpack_archive(path, tmp_path / "target")
        assert (tmp_path / "target" / "x").stat().st_size <= len(data)


def test_plain_names_are_inside() -> None:
    assert is_inside("runs/toy-ppo seed 1/run.json")
    assert not is_inside("")
    assert not is_inside("a/./b")
