"""Half-finished and finished directories of somebody else's: nothing in them is unpickled, no name in them followed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tasks
import torch
import torch.distributed as dist
from light_farm import Make
from tiny_models import make_policy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from afarm.backend import Backend
from afarm.backend.checkpoint_selection import BEST_WEIGHTS_FILE
from afarm.backend.resume import SHARDS, restore_checkpoint, write_checkpoint
from afarm.backend.reward_model import load_adapters
from afarm.core.config import BackendConfig
from afarm.core.errors import DataError, ModelError, StoreError, TrainingError


class Trap:
    """What makes a file when it is unpickled."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.place),)


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    return tmp_path / "sprung"


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    dist.destroy_process_group()


def trained(mesh: DeviceMesh | None, value: float) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
    """Weights, sharded if there is a mesh, after one step."""
    whole = {"layer": torch.full((4, 3), value), "head": torch.full((2,), value)}
    tensors = {name: distribute_tensor(x, mesh) if mesh and name == "layer" else x for name, x in whole.items()}
    weights = {name: nn.Parameter(x) for name, x in tensors.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=0.1, foreach=False)
    for weight in weights.values():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    return weights, optimizer


def whole(weights: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> list[Tensor]:
    tensors = [x for p in weights.values() for x in (p.data, *optimizer.state[p].values())]
    return [x.full_tensor() if isinstance(x, DTensor) else x for x in tensors]


@pytest.mark.parametrize("file", [".metadata", "00000.pt", "00001.pt", "__0_0.distcp"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside shards"])
def test_no_file_among_shards_is_unpickled(
    mesh: DeviceMesh, tmp_path: Path, sprung: Path, file: str, beside: bool
) -> None:
    weights, optimizer = trained(mesh, 1.0)
    write_checkpoint(tmp_path / "kept", weights, optimizer, steps=1)
    shards = tmp_path / "kept" / SHARDS
    if not beside:
        (shards / "00000.pt").unlink()
    (shards / file).write_bytes(pickle.dumps(Trap(sprung), protocol=2))
    other, own = trained(mesh, 5.0)
    if beside and not file.endswith(".pt"):
        restore_checkpoint(tmp_path / "kept", other, own)
        torch.testing.assert_close(whole(other, own), whole(weights, optimizer), rtol=0, atol=0)
    else:
        with pytest.raises(TrainingError, match="remove"):
            restore_checkpoint(tmp_path / "kept", other, own)
    assert not sprung.exists()


def test_shards_that_are_whole_again_are_the_same_bytes_and_go_on_whole(mesh: DeviceMesh, tmp_path: Path) -> None:
    weights, optimizer = trained(mesh, 1.0)
    write_checkpoint(tmp_path / "kept", weights, optimizer, steps=7)
    for place in (mesh, None):
        other, own = trained(place, 5.0)
        assert restore_checkpoint(tmp_path / "kept", other, own) == {"steps": 7}
        torch.testing.assert_close(whole(other, own), whole(weights, optimizer), rtol=0, atol=0)


def test_shards_of_which_rows_are_missing_are_damaged(mesh: DeviceMesh, tmp_path: Path) -> None:
    weights, optimizer = trained(mesh, 1.0)
    write_checkpoint(tmp_path / "kept", weights, optimizer)
    path = tmp_path / "kept" / SHARDS / "00000.pt"
    held = torch.load(path, weights_only=True)
    for key in ("weights.layer", "optimizer.layer:exp_avg"):
        shape, begin, rows = held[key]
        for left in ((shape, begin, rows[:3]), (shape, begin + 1, rows), (shape, begin, rows[:, :1]), (shape, rows)):
            torch.save({**held, key: left}, path)
            with pytest.raises(TrainingError, match=r"shards is truncated or damaged .*remove that directory"):
                restore_checkpoint(tmp_path / "kept", *trained(mesh, 5.0))
    torch.save({**held, "optimizer.other:exp_avg": held["optimizer.layer:exp_avg"]}, path)
    with pytest.raises(TrainingError, match="truncated or damaged"):
        restore_checkpoint(tmp_path / "kept", *trained(mesh, 5.0))
    torch.save({**held, "weights.layer": ([3, 3], 0, held["weights.layer"][2][:3])}, path)
    with pytest.raises(TrainingError, match="of another model or of other settings"):
        restore_checkpoint(tmp_path / "kept", *trained(mesh, 5.0))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(TrainingError, match="truncated or damaged"):
        restore_checkpoint(tmp_path / "kept", *trained(mesh, 5.0))


READ = ("trainer.pt", "rng_state.pth", BEST_WEIGHTS_FILE)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a training that was stopped after two steps."""
    directory = tmp_path_factory.mktemp("stopped")
    tasks.dpo_adapters(directory, 2)
    return directory


@pytest.mark.parametrize("file", [*READ, "training_args.bin", "optimizer.pt", "scheduler.pt"])
def test_no_file_of_a_trainer_is_unpickled(stopped: Path, tmp_path: Path, sprung: Path, file: str) -> None:
    shutil.copytree(stopped, tmp_path / "left")
    [checkpoint] = (tmp_path / "left" / "checkpoints").iterdir()
    assert (checkpoint / file).is_file() or file not in READ
    (checkpoint / file).write_bytes(pickle.dumps(Trap(sprung), protocol=2))
    with pytest.raises((TrainingError, pickle.UnpicklingError)) if file in READ else nullcontext():
        tasks.dpo_adapters(tmp_path / "left")
    assert not sprung.exists()


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_no_weights_are_unpickled(tmp_path: Path, sprung: Path, file: str) -> None:
    make_policy().save(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / file).write_bytes(pickle.dumps(Trap(sprung), protocol=2))
    with pytest.raises(ModelError):
        Backend(BackendConfig(device="cpu")).load_policy(tmp_path / "model")
    assert not sprung.exists()


@pytest.mark.parametrize("kind", ["policy", "reward_model"])
@pytest.mark.parametrize("named", ["joblib:numpy_pickle", "pickle:loads", "afarm.core.config:LoraConfig", "os:mkdir"])
def test_a_class_that_is_no_policy_loads_nothing(
    farm: Make, tmp_path: Path, sprung: Path, kind: str, named: str
) -> None:
    """`joblib.numpy_pickle.load` takes a path and something more, as `Policy.load` does."""
    pytest.importorskip("joblib")
    (tmp_path / "class.json").write_text(json.dumps({"class": named, "kind": kind}))
    (tmp_path / "model").write_bytes(pickle.dumps(Trap(sprung), protocol=2))
    with pytest.raises(StoreError, match=f"names {named} as its class, which is no"):
        farm().workspace.components.load(tmp_path)
    assert not sprung.exists()


@pytest.mark.parametrize("name", ["../other", "/other", "a/b", "..", ""])
def test_adapters_lie_in_the_directory_of_their_reward_model(tmp_path: Path, name: str) -> None:
    model: Any = make_policy().model
    with pytest.raises(DataError, match="adapter 2 must be the name of one file or folder"):
        load_adapters(model, tmp_path, ["default", name])
