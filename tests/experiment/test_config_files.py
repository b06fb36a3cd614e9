"""YAML files that people write: bounds, places of faults, and the fields of a config."""

from __future__ import annotations

from pathlib import Path

import pytest

from afarm import Config, ConfigError, read_config_file, setting
from afarm.experiment.config_files import LARGEST


class Fish(Config):
    name: str = setting("eel", "its name")
    fins: int = setting(..., "how many", ge=0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"name: eel\nfins: [", "is no valid YAML: line 2, column 8: "),
        (b"[1]", "must be a mapping of name, fins"),
        (b"", "fins: is missing"),
        (b"fins: -1\nnmae: x", "nmae: unknown field. Did you mean 'name'?"),
        (b"fins: 2020-99-99", "fins: must be a whole number (given: '2020-99-99')"),
        (b"fins: 0b_", "is no valid YAML"),
        (b"fins: " + b"[" * 9_999, "nested too deeply"),
        (b"name: \xff", "is no UTF-8 text: save it as UTF-8"),
        (b"&a [*a]", "its aliases (*name) multiply"),
        (b'name: "\\ud83d"', r"has '\ud83d', half of a character"),
        (b"# " + b"x" * LARGEST, "is larger than 300,000 bytes"),
    ],
)
def test_a_fault_is_said_with_the_file_and_its_place(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "fish.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as raised:
        read_config_file(path, Fish)
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_is_read_as_a_config(tmp_path: Path) -> None:
    path = tmp_path / "fish.yaml"
    path.write_text("fins: 2\n")
    assert read_config_file(path, Fish) == Fish(fins=2)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_config_file(tmp_path / "none.yaml", Fish)
