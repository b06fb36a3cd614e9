"""Calls side by side, and what a thread would otherwise forget."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from afarm.backend import Backend, device
from afarm.core.config import BackendConfig
from afarm.core.errors import ConfigError


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_cores", lambda: 2 * torch.get_num_threads())


def test_calls_run_at_the_same_time_and_keep_their_order(cores: None) -> None:
    meeting = threading.Barrier(2, timeout=120)  # neither gets past it alone

    def call(value: int) -> int:
        meeting.wait()
        return value

    assert Backend(BackendConfig(device="cpu")).together(lambda: call(1), lambda: call(2)) == [1, 2]


def test_calls_take_the_callers_grad_mode_and_precision_along(cores: None) -> None:
    backend = Backend(BackendConfig(device="cpu", mixed_precision="bf16"))
    weight = torch.ones(2, 2, requires_grad=True)

    def call() -> tuple[bool, torch.dtype]:
        product = weight @ weight
        return product.requires_grad, product.dtype

    assert backend.together(call, call) == [(True, torch.bfloat16)] * 2
    with torch.no_grad():
        assert backend.together(call, call) == [(False, torch.bfloat16)] * 2


def test_a_call_that_fails_fails_the_whole(cores: None) -> None:
    def fails() -> None:
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        Backend(BackendConfig(device="cpu")).together(lambda: None, fails)


def test_one_after_the_other_where_no_core_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_cores", torch.get_num_threads)
    here = threading.get_ident()
    assert Backend(BackendConfig(device="cpu")).together(threading.get_ident, threading.get_ident) == [here, here]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed here")
def test_a_tracker_that_is_not_installed_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    backend = Backend(BackendConfig(device="cpu", trackers=["tensorboard", "wandb"]))
    with (
        pytest.raises(ConfigError, match="wandb is not installed"),
        backend.tracked("run", tmp_path, lambda step, metrics: None),
    ):
        pass


def test_mixed_precision_without_a_gradient_scaler_is_not_offered() -> None:
    assert BackendConfig(mixed_precision="bf16").mixed_precision == "bf16"
    with pytest.raises(ValidationError, match="mixed_precision"):
        BackendConfig(mixed_precision="fp16")
