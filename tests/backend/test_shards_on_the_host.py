"""Shards on the host, the rest of a model on a card: no arithmetic joins the two.

The card is a pretended one. The shards are what FSDP2 makes of weights that it offloads: DTensors on the CPU, of a mesh
of cards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pretend_card import CARD, OnCard, PretendCard
from tiny_models import make_policy
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from afarm.backend import Backend, all_reduce_gradients, gathered_weights, parameter_groups, shard_model
from afarm.backend.lost_processes import require_connected_hosts
from afarm.backend.resume import SHARDS, restore_checkpoint, write_checkpoint
from afarm.backend.sharding import all_finite, clip_gradients, move_ends, transformer_layers
from afarm.core.config import BackendConfig
from afarm.core.errors import ConfigError

LAYERS = ("layer.weight", "layer.bias")
SHAPES = {"embeddings": (5, 3), "layer.weight": (4, 3), "layer.bias": (4,), "head": (5, 3)}
PLACES = {name: torch.device("cpu") if name in LAYERS else CARD for name in SHAPES}


@pytest.fixture
def group() -> Iterator[None]:
    """A launch of this one process, over gloo."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def mesh(group: None) -> DeviceMesh:
    return DeviceMesh.from_group(dist.group.WORLD, "cuda")


@pytest.fixture
def card() -> Iterator[None]:
    with PretendCard():
        yield


def numbers(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def sharded(values: Tensor, mesh: DeviceMesh) -> DTensor:
    meta = TensorMeta(values.shape, values.stride(), values.dtype)
    spec = DTensorSpec(mesh, (Shard(0),), tensor_meta=meta)
    return DTensor(values.clone(), spec, requires_grad=False)  # type: ignore[call-arg]


def on_both(values: Mapping[str, Tensor], mesh: DeviceMesh) -> dict[str, Tensor]:
    """Those of layers in shards on the host, the others on the card."""
    return {name: sharded(x, mesh) if name in LAYERS else OnCard(x.clone()) for name, x in values.items()}


def model_on_both(mesh: DeviceMesh, seed: int = 0) -> dict[str, nn.Parameter]:
    """Weights with gradients."""
    weights = {name: nn.Parameter(x) for name, x in on_both(numbers(seed), mesh).items()}
    for name, gradient in on_both(numbers(seed + 1), mesh).items():
        weights[name].grad = gradient
    return weights


def model_here(seed: int = 0) -> dict[str, nn.Parameter]:
    """The same, all on the CPU."""
    weights = {name: nn.Parameter(x) for name, x in numbers(seed).items()}
    for name, gradient in numbers(seed + 1).items():
        weights[name].grad = gradient
    return weights


def optimizer_of(weights: Mapping[str, nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameter_groups([{"params": list(weights.values())}]), lr=0.1)


def test_the_card_is_as_strict_as_one(card: None) -> None:
    here, there = torch.ones(2), torch.ones(2, device=CARD)
    assert (there + torch.tensor(1.0)).cpu().tolist() == [2, 2]
    for mixed in (
        lambda: here + there,
        lambda: torch.zeros(()).add_(there.sum()),
        lambda: torch.stack([here.sum(), there.sum()]),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_gradients_on_both_are_clipped_together(mesh: DeviceMesh, card: None, max_norm: float) -> None:
    expected, found = model_here(), model_on_both(mesh)
    norm = clip_gradients(found.values(), max_norm)
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(expected.values(), max_norm)))
    gradients = gathered_weights({name: p.grad for name, p in found.items() if p.grad is not None})
    torch.testing.assert_close(gradients, {name: p.grad for name, p in expected.items()})


def test_gradients_of_shards_alone_are_clipped(mesh: DeviceMesh) -> None:
    found = {name: p for name, p in model_on_both(mesh).items() if name in LAYERS}
    expected = [p for name, p in model_here().items() if name in LAYERS]
    assert clip_gradients(found.values(), 1.0) == pytest.approx(float(nn.utils.clip_grad_norm_(expected, 1.0)))


@pytest.mark.parametrize("broken", [None, "embeddings", "layer.bias", "head"])
def test_a_number_that_is_not_finite_is_found_on_both(mesh: DeviceMesh, card: None, broken: str | None) -> None:
    values = numbers(0)
    if broken:
        values[broken].view(-1)[1] = torch.nan
    assert all_finite(on_both(values, mesh).values()) == (broken is None)


def test_missing_gradients_are_made_where_their_weights_are(
    mesh: DeviceMesh, card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = model_on_both(mesh)
    for name in ("embeddings", "layer.bias"):
        found[name].grad = None
    reduced: list[Any] = []
    monkeypatch.setattr("afarm.backend.sharding.world_size", lambda: 2)
    monkeypatch.setattr("afarm.backend.sharding.all_reduce_sum", reduced.extend)
    all_reduce_gradients(found.values())
    assert all(p.grad is not None and p.grad.device == p.device for p in found.values())
    assert [x.device for x in reduced] == [CARD] * 2, "what is sharded is added up by FSDP"


def test_the_state_of_the_optimiser_is_where_the_weights_are(mesh: DeviceMesh, card: None) -> None:
    expected, found = model_here(), model_on_both(mesh)
    own = optimizer_of(found)
    for optimizer in (optimizer_of(expected), own):
        optimizer.step()
        optimizer.step()
    torch.testing.assert_close(gathered_weights(found), {name: p.detach() for name, p in expected.items()})
    devices = {name: {own.state[p][key].device for key in ("exp_avg", "exp_avg_sq")} for name, p in found.items()}
    assert devices == {name: {place} for name, place in PLACES.items()}


def test_a_checkpoint_of_whole_weights_is_restored_to_both(mesh: DeviceMesh, card: None, tmp_path: Path) -> None:
    trained, found = model_here(), model_on_both(mesh, seed=5)
    optimizer, other = optimizer_of(trained), optimizer_of(found)
    optimizer.step()
    write_checkpoint(tmp_path / "kept", trained, optimizer, steps=1)
    assert restore_checkpoint(tmp_path / "kept", found, other)["steps"] == 1
    assert_alike(found, other, trained, optimizer)
    assert {name: other.state[p]["exp_avg"].device for name, p in found.items()} == PLACES


def test_a_checkpoint_of_shards_is_restored(mesh: DeviceMesh, tmp_path: Path) -> None:
    """Without the card: torch takes weights on `meta` for such as are to be made."""
    trained, found = ({name: p for name, p in model_on_both(mesh, seed).items() if name in LAYERS} for seed in (0, 5))
    optimizer, other = optimizer_of(trained), optimizer_of(found)
    optimizer.step()
    write_checkpoint(tmp_path / "kept", trained, optimizer, steps=1)
    assert list((tmp_path / "kept" / SHARDS).glob("*.pt"))
    assert restore_checkpoint(tmp_path / "kept", found, other)["steps"] == 1
    assert_alike(found, other, trained, optimizer)
    assert {other.state[p]["exp_avg"].device.type for p in found.values()} == {"cpu"}


def assert_alike(
    found: Mapping[str, nn.Parameter],
    of_found: torch.optim.Optimizer,
    expected: Mapping[str, nn.Parameter],
    of_expected: torch.optim.Optimizer,
) -> None:
    """Compare weights and the state of their optimisers."""
    torch.testing.assert_close(gathered_weights(found), gathered_weights(expected))
    for key in ("exp_avg", "exp_avg_sq"):
        ours = gathered_weights({name: of_found.state[p][key] for name, p in found.items()})
        torch.testing.assert_close(ours, gathered_weights({n: of_expected.state[p][key] for n, p in expected.items()}))


def test_shards_stay_where_they_are_as_the_rest_is_moved() -> None:
    model = make_policy().model
    layers = list(transformer_layers(model))
    move_ends(model, layers, "meta")
    inside = {id(p) for layer in layers for p in layer.parameters()}
    moved = {name: p.device.type for name, p in model.named_parameters() if id(p) not in inside}
    assert set(moved.values()) == {"meta"}
    assert {p.device.type for layer in layers for p in layer.parameters()} == {"cpu"}
    assert len(moved) >= 3


def test_a_group_without_a_connection_of_hosts_is_refused(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    require_connected_hosts()
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(ConfigError, match="these processes have cuda:nccl: use fsdp2"):
        require_connected_hosts()


@pytest.mark.parametrize("offloads", [False, True])
def test_layers_are_offloaded_if_the_launch_says_so(
    group: None, monkeypatch: pytest.MonkeyPatch, offloads: bool
) -> None:
    places: list[Any] = []
    fully_shard = fsdp.fully_shard

    def watched(layer: nn.Module, **how: Any) -> Any:
        places.append(how["offload_policy"])
        return fully_shard(layer, **how)

    def moved(layer: nn.Module, *how: Any, **more: Any) -> None:
        raise AssertionError("a shard would follow the rest of the model to the card")

    monkeypatch.setattr(fsdp, "fully_shard", watched)
    monkeypatch.setattr(fsdp.FSDPModule, "_apply", moved)
    model = make_policy().model
    shard_model(model, Backend(BackendConfig(device="cpu"), sharded=True, offloads=offloads))
    assert len(places) == model.config.num_hidden_layers
    assert {isinstance(place, fsdp.CPUOffloadPolicy) for place in places} == {offloads}
    assert not any(getattr(place, "pin_memory", False) for place in places), "no card could read what is pinned"
