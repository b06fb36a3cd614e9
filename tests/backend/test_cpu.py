from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
from tiny_models import make_model, make_policy
from torch import nn

from afarm import LoraConfig
from afarm.backend import Backend, add_adapter, cpu, join_and_pad, response_logprobs, token_loss
from afarm.backend.cpu import OneDNNLinear, product, use_onednn
from afarm.backend.logprobs import CPU_LOGITS_BUDGET, chunk_rows
from afarm.core.config import BackendConfig

needs_onednn = pytest.mark.skipif(not cpu._has_onednn(), reason="torch has no oneDNN here")


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest product goes to oneDNN, so that tiny models take the way of large ones."""
    monkeypatch.setattr(cpu, "LARGE", 0)
    monkeypatch.setattr(cpu, "_is_amd", lambda: True)


@needs_onednn
@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5), (1, 5)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.usefixtures("every_size")
def test_a_layer_and_its_gradients_are_those_of_torch(shape: tuple[int, ...], has_bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(5, 4, bias=has_bias)
    quick = copy.deepcopy(plain)
    use_onednn(quick)
    assert type(quick) is OneDNNLinear
    ours = torch.randn(shape, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    found, expected = quick(ours), plain(theirs)
    assert "_Product" in type(found.grad_fn).__name__
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(expected)
    found.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(ours.grad, theirs.grad)
    for own, other in zip(quick.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


@needs_onednn
def test_other_makers_cpus_keep_torchs_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "LARGE", 0)
    for amd in (True, False):
        monkeypatch.setattr(cpu, "_is_amd", lambda amd=amd: amd)
        assert cpu.uses_onednn(torch.ones(3, 5), torch.ones(4, 5)) == amd


@needs_onednn
@pytest.mark.usefixtures("every_size")
def test_a_second_derivative_is_refused_not_wrong() -> None:
    layer = nn.Linear(5, 4)
    use_onednn(layer)
    x = torch.randn(3, 5, requires_grad=True)
    [first] = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


@needs_onednn
@pytest.mark.usefixtures("every_size")
def test_a_frozen_layer_keeps_no_activations() -> None:
    layer = nn.Linear(5, 4)
    use_onednn(layer)
    x = torch.randn(3, 5, requires_grad=True)

    def kept() -> list[tuple[int, ...]]:
        shapes: list[tuple[int, ...]] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t):
            layer(x)
        return shapes

    assert kept() == [(3, 5), (4, 5)]
    layer.requires_grad_(False)
    assert kept() == [(4, 5)]


@needs_onednn
@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("lora", [False, True])
def test_a_model_has_the_same_log_probabilities_and_gradients(lora: bool) -> None:
    batch = join_and_pad([[5, 6, 7], [8]], [[14, 15, 1], [16, 17, 18, 1]], 0)

    def losses(model: nn.Module) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        logprobs = response_logprobs(model, batch.input_ids, batch.attention_mask, batch.response_mask)
        logprobs.square().sum().backward()
        return logprobs, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    def made() -> nn.Module:
        model = make_model()
        return add_adapter(model, LoraConfig(r=2)) if lora else model

    torch.manual_seed(0)
    plain = made()
    torch.manual_seed(0)
    quick = made()
    use_onednn(quick)
    assert sum(type(module) is OneDNNLinear for module in quick.modules()) > 10
    (found, gradients), (expected, wanted) = losses(quick), losses(plain)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(gradients[name], wanted[name], atol=1e-4, rtol=1e-4)


@needs_onednn
@pytest.mark.usefixtures("every_size")
def test_under_autocast_and_in_bfloat16_torch_multiplies() -> None:
    x, weight = torch.randn(3, 5), torch.randn(4, 5)
    assert cpu.uses_onednn(x, weight)
    assert not cpu.uses_onednn(x.bfloat16(), weight.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert not cpu.uses_onednn(x, weight)
        layer = nn.Linear(5, 4)
        use_onednn(layer)
        assert layer(x).dtype == torch.bfloat16


def test_small_products_are_torchs() -> None:
    assert not cpu.uses_onednn(torch.ones(2**10, 2**7), torch.ones(2**5, 2**7))


@pytest.mark.usefixtures("every_size")
def test_without_its_private_name_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = torch.randn(3, 5), torch.randn(4, 5), torch.randn(4)
    cpu._has_onednn.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(torch.ops, "mkldnn", object())
        assert not cpu.uses_onednn(x, weight)
        torch.testing.assert_close(product(x, weight, bias), nn.functional.linear(x, weight, bias))
    cpu._has_onednn.cache_clear()


def test_policies_multiply_by_it_and_are_saved_and_copied_as_they_were() -> None:
    policy = make_policy()
    assert not any(type(module) is nn.Linear for module in policy.model.modules())
    assert policy.model.state_dict().keys() == make_model().state_dict().keys()
    assert any(type(module) is OneDNNLinear for module in policy.copy().model.modules())


def test_the_chunks_of_a_batch_are_about_as_large_and_within_the_budget() -> None:
    model = make_model()
    vocabulary = model.config.vocab_size
    most = CPU_LOGITS_BUDGET // vocabulary
    for count in (1, most, most + 2, 5 * most + 1):
        size = chunk_rows(model, torch.empty(count, 0))
        chunks = -(-count // size)
        assert size <= most
        assert chunks == -(-count // most)
        assert count - (chunks - 1) * size > size - chunks


def test_a_loss_in_chunks_trains_the_head_as_one_in_a_piece() -> None:
    torch.manual_seed(0)
    hidden, targets = torch.randn(7, 32), torch.tensor([3, 3, 9, 1, 0, 44, 2])
    factor = torch.randn(7)

    def gradients(chunk_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        model, inputs = make_model(), hidden.clone().requires_grad_()
        loss = token_loss(
            model, inputs, targets, lambda logprobs, factor: (logprobs * factor).sum(), factor, chunk_size=chunk_size
        )
        loss.backward()
        assert inputs.grad is not None
        return inputs.grad, model.get_output_embeddings().weight.grad

    model, inputs = make_model(), hidden.clone().requires_grad_()
    logits = inputs @ model.get_output_embeddings().weight.T
    (logits.log_softmax(-1)[range(7), targets] * factor).sum().backward()
    for found in (gradients(2), gradients(100)):
        torch.testing.assert_close(found[0], inputs.grad, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found[1], model.get_output_embeddings().weight.grad, atol=1e-6, rtol=1e-5)


PROBE = """
import ctypes, resource, runpy, sys, torch

def pages_cleared():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for step in range(50):
        held = [torch.zeros(2**19).add_(1) for _ in range(6)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # pages of one size, however the system hands out huge ones
given_back = pages_cleared()
runpy.run_path(sys.argv[1])["keep_freed_memory"]()  # the module alone: its package takes seconds to import
print(given_back, pages_cleared())
"""
PAGES_OF_A_STEP = 6 * 4 * 2**19 // 4096


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_not_asked_for_again() -> None:
    # glibc moves its threshold with what is freed, to another value in every run: it is held at the value it starts at
    held = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**17)}
    command = [sys.executable, "-c", PROBE, cpu.__file__]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=held)
    given_back, kept = (int(pages) / PAGES_OF_A_STEP for pages in found.stdout.split())
    assert kept < 10
    assert given_back > 40


@needs_onednn
@pytest.mark.usefixtures("every_size")
def test_the_setting_switches_both_off(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(cpu.ctypes, "CDLL", opened.append)
    try:
        Backend(BackendConfig(device="cpu", cpu_tuning=False))
        assert not cpu.uses_onednn(torch.ones(3, 5), torch.ones(4, 5))
        cpu.keep_freed_memory()
        assert opened == []
    finally:
        Backend(BackendConfig(device="cpu"))
    assert cpu.uses_onednn(torch.ones(3, 5), torch.ones(4, 5))
