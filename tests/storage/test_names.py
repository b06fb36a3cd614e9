"""Names from files: exactly one component of a path, wherever they become one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from afarm.core.errors import DataError, ModelError
from afarm.experiment.studies.record import read_study_record
from afarm.storage.names import LONGEST, is_plain_name, is_plain_path
from afarm.storage.runs import read_run
from afarm.storage.weight_files import require_whole_weights

OUTSIDE = ["", ".", "..", "...", " ", "/", "/etc", "a/b", "../a", "a/..", "a\\b", "..\\a", "C:\\a", "a\0", "\ud800"]
OUTSIDE.append((LONGEST + 1) * "a")
PLAIN = ["a", "toy-ppo seed 1", ".hidden", "..a", "alpaca_eval:mine_x", "é" * (LONGEST // 2), "a[bold]\x1b"]


@pytest.mark.parametrize("name", OUTSIDE, ids=lambda name: repr(name)[:12])
def test_a_path_is_no_name(name: str) -> None:
    assert not is_plain_name(name)


@pytest.mark.parametrize("name", PLAIN, ids=lambda name: repr(name)[:12])
def test_names_of_runs_are_plain(name: str) -> None:
    assert is_plain_name(name)
    assert is_plain_path(f"runs/{name}/run.json")


@pytest.mark.parametrize("other", [None, 1, ["a"], {"a": 1}, True])
def test_what_is_no_text_is_no_name(other: object) -> None:
    assert not is_plain_name(other)
    assert not is_plain_path(other)


@pytest.mark.parametrize("path", ["/a", "a/", "a//b", "a/../b", "./a", "a/b\\c", ""])
def test_a_path_leads_nowhere_else(path: str) -> None:
    assert not is_plain_path(path)


def record(**changed: object) -> dict[str, Any]:
    stage = {"stage": "annotate", "kind": "annotate", "key": "0a"}
    own = {name: value for name, value in changed.items() if name not in stage}
    return {"name": "a", "stages": [{**stage, **{n: v for n, v in changed.items() if n in stage}}], **own}


@pytest.mark.parametrize("field", ["name", "kind", "key"])
@pytest.mark.parametrize("name", [*OUTSIDE, 7, ["a"]], ids=lambda name: repr(name)[:12])
def test_a_record_of_a_run_whose_names_lead_elsewhere_is_not_read(tmp_path: Path, field: str, name: object) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(record()))
    assert read_run(tmp_path).artifacts == {"annotate/0a"}
    path.write_text(json.dumps(record(**{field: name})))
    with pytest.raises(DataError, match=rf"run\.json: .*{field}.* must be the name of one file or folder"):
        read_run(tmp_path)


def test_a_record_of_a_study_whose_runs_lie_elsewhere_is_not_read(tmp_path: Path) -> None:
    study: Mapping[str, Any] = {"name": "sweep", "command": "", "settings": {}, "runs": [], "failed": {}, "judging": {}}
    request = {"method": "ppo", "seeds": [1]}
    for name in OUTSIDE:
        (tmp_path / "study.json").write_text(json.dumps({**study, "request": request, "records": {"one": name}}))
        with pytest.raises(DataError, match=r"the record of 'one' must be the name of one file"):
            read_study_record(tmp_path)


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "a/x.safetensors", "..\\x.safetensors", 3])
def test_an_index_of_weights_names_files_beside_it(tmp_path: Path, name: object) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    require_whole_weights(tmp_path)
    index.write_text(json.dumps({"weight_map": {"v": "model-00001-of-00001.safetensors", "w": name}}))
    with pytest.raises(ModelError, match="it names files outside of its directory"):
        require_whole_weights(tmp_path)
