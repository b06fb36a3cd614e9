"""`Backend`: the device, the precision, and loading a model."""

from __future__ import annotations

import io
import json
import os
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from afarm.backend import cpu, distributed
from afarm.backend.adapters import LowRankUpdate
from afarm.backend.chat_templates import settle_template
from afarm.backend.engines import SamplingEngine, TorchEngine
from afarm.backend.gguf_models import dequantized, parsed_once
from afarm.backend.lost_processes import Launch, first_line
from afarm.backend.models import MODEL_CARD, quiet_transformers, saved_by_afarm
from afarm.backend.policy import UPDATES, CheckpointPolicy
from afarm.backend.prompts import PromptTemplate
from afarm.core.config import BackendConfig
from afarm.core.errors import ConfigError, ModelError
from afarm.core.interfaces import Progress, no_progress
from afarm.storage.model_files import local_path, model_identity
from afarm.storage.prompt_templates import TemplateSource, read_prompt_template
from afarm.storage.weight_files import damaged_gguf, require_whole_weights

T = TypeVar("T")

LogMetrics = Callable[[int, Mapping[str, float]], None]
"""Takes a step and its metrics."""


class Backend:
    """The device and precision that models run in. Raises `ConfigError` if the device is not there.

    With `is_distributed` the processes of a launch connect here and share a unique `session`. If `sharded`, each keeps
    only its shard of what it trains and reads (see `sharding`), on the host if it `offloads`. Policies sample by
    `engine` (default: torch) and report to `progress`.
    """

    def __init__(
        self,
        config: BackendConfig | None = None,
        *,
        is_distributed: bool = False,
        sharded: bool = False,
        offloads: bool = False,
        engine: SamplingEngine | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self.config = config or BackendConfig()
        if self.config.dtype == "auto":
            self.config = self.config.model_copy(update={"dtype": cpu.native_dtype(self.config.device)})
        self.progress = progress
        self.engine: SamplingEngine = engine or TorchEngine()
        self._launch = _connect(self.config, offloads) if is_distributed else None
        self.device = self._launch.device if self._launch else _device(self.config.device)
        self.session = self._launch.session if self._launch else ""
        self.sharded, self.offloads = sharded, offloads
        self.dtype: torch.dtype = getattr(torch, self.config.dtype)
        cpu.switch(self.config.cpu_tuning)
        if self.config.threads:
            torch.set_num_threads(self.config.threads)

    def autocast(self) -> AbstractContextManager[Any]:
        """Enter the configured mixed precision, without a cache of cast weights: a step would make it stale."""
        if self.config.mixed_precision == "no":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def naming_lost(self, what: str) -> AbstractContextManager[Any]:
        """Raise `TrainingError`, naming `what` was going on, if another process is lost (`backend.timeout`)."""
        return self._launch.naming_lost(what) if self._launch else nullcontext()

    def barrier(self) -> None:
        """Wait for all processes."""
        distributed.barrier()

    def together(self, *calls: Callable[[], T]) -> list[T]:
        """Return the results of `calls`, none of which may write what another reads or writes.

        On a CPU with idle cores they run in parallel, since a small model cannot use several cores; otherwise one
        after the other. No result depends on it.
        """
        alone_on_cpu = self.device.type == "cpu" and distributed.world_size() == 1
        workers = min(len(calls), _cores() // torch.get_num_threads()) if alone_on_cpu else 1
        if workers < 2:
            return [call() for call in calls]
        gradients = torch.is_grad_enabled()  # set per thread, as autocast is

        def alike(call: Callable[[], T]) -> T:
            with torch.set_grad_enabled(gradients), self.autocast():
                return call()

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(alike, calls))

    @contextmanager
    def tracked(self, name: str, directory: Path, log: LogMetrics) -> Iterator[LogMetrics]:
        """Have `log` write to the configured trackers (tensorboard, wandb …) too.

        Raises `ConfigError` if one is not installed.
        """
        if not self.config.trackers:
            yield log
            return
        from accelerate import Accelerator

        try:
            accelerator = Accelerator(
                cpu=self.device.type == "cpu", log_with=self.config.trackers, project_dir=str(directory)
            )
            available = {str(getattr(tracker, "value", tracker)) for tracker in accelerator.log_with}
            if missing := {"all"}.isdisjoint(self.config.trackers) and set(self.config.trackers) - available:
                raise ImportError(f"{', '.join(sorted(missing))} is not installed")  # accelerate would leave it out
            accelerator.init_trackers(name)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"backend.trackers {self.config.trackers}: {first_line(error)}") from error

        def both(step: int, metrics: Mapping[str, float]) -> None:
            log(step, metrics)
            accelerator.log(dict(metrics), step=step)

        try:
            yield both
        finally:
            accelerator.end_training()

    def seed(self, seed: int) -> None:
        """Seed Python's, numpy's and torch's global generators: dropout, new weights, shuffling."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def load_policy(self, spec: str | Path, *, prompt_template: TemplateSource = "auto") -> CheckpointPolicy:
        """Load the policy at `spec`: a Hub id, a directory, a `.gguf` file or `pkg:<package>/<path>`.

        `prompt_template` is a template's name, file or texts; "auto" takes the one saved with the checkpoint, else the
        tokenizer's chat template. Raises `ModelError` if the model cannot be loaded or has no template.
        """
        model, tokenizer, card = self.load(spec, AutoModelForCausalLM)
        source = read_prompt_template(prompt_template) if isinstance(prompt_template, str) else prompt_template
        source = card.get("prompt_template", "auto") if source == "auto" else source
        template = PromptTemplate(source, tokenizer, str(spec), card.get("control", ""))
        policy = CheckpointPolicy(model, tokenizer, template, self, tuple(card.get("control_tokens", ())))
        if path := local_path(str(spec)):
            saved = sorted((path / UPDATES).glob("*"), key=lambda path: int(path.name))
            policy.merged = tuple(LowRankUpdate.load(directory) for directory in saved)
        return policy

    def load(self, spec: str | Path, kind: Any) -> tuple[torch.nn.Module, Any, dict[str, Any]]:
        """Load (model, tokenizer, afarm's card beside them or {}) by the transformers auto class `kind`.

        The model is on the device, or on the host if the launch shards. Raises `ModelError`.
        """
        path = local_path(str(spec))
        is_gguf = path is not None and path.suffix == ".gguf"
        where = str(path.parent if is_gguf and path else path or spec)
        options = {"gguf_file": path.name} if is_gguf and path else {}
        if path and path.is_dir():
            require_whole_weights(path)
        if path is None:  # the commit that the artifacts' keys name
            options = {"revision": model_identity(str(spec)).partition("@")[2] or "main"}
        try:
            # The GGUF reader's progress bar cannot be switched off; errors are raised, so stderr holds nothing else.
            with (
                quiet_transformers(),
                _heads_in_float32(),
                redirect_stderr(io.StringIO()) if is_gguf else nullcontext(),
                parsed_once() if is_gguf else nullcontext(),
            ):
                tokenizer = AutoTokenizer.from_pretrained(where, **options)
                # transformers unpacks GGUF weights in float32; they are rounded once, below
                dtype = torch.float32 if is_gguf else self.dtype
                model = kind.from_pretrained(where, dtype=dtype, **options)
        except (OSError, ValueError, ImportError, RuntimeError, LookupError, UnpicklingError, struct.error) as error:
            if is_gguf and path and isinstance(error, LookupError | struct.error):
                raise damaged_gguf(path, error) from error
            raise ModelError(f"model {str(spec)!r} cannot be loaded: {first_line(error)}; check --model") from error
        if is_gguf:
            model = dequantized(model, kind, self.dtype)
        if isinstance(tokenizer.chat_template, str):
            tokenizer.chat_template = settle_template(tokenizer.chat_template, self.config)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        card = json.loads((path / MODEL_CARD).read_text("utf-8")) if path and saved_by_afarm(path) else {}
        return model.to("cpu" if self.sharded else self.device), tokenizer, card


@contextmanager
def _heads_in_float32() -> Iterator[None]:
    """Load classifiers' heads in float32, which transformers sets per class only."""
    before = PreTrainedModel._keep_in_fp32_modules_strict
    PreTrainedModel._keep_in_fp32_modules_strict = {"score"}
    try:
        yield
    finally:
        PreTrainedModel._keep_in_fp32_modules_strict = before


def _cores() -> int:
    """Count the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _connect(config: BackendConfig, offloads: bool) -> Launch:
    """Connect the processes over NCCL, or on CPUs over gloo; over both if they offload from GPUs."""
    name = config.device
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"backend.device {name!r} is one device, and several processes run: use auto, cuda or cpu")
    cpu = name == "cpu" or not torch.accelerator.is_available()
    if cpu and name == "cuda":
        raise ConfigError("backend.device 'cuda' is not available here; use auto or cpu")
    return Launch(cpu, config.timeout, on_host=offloads)


def _device(name: str) -> torch.device:
    if name == "auto":
        # accelerate knows this process's device, also under `accelerate launch`.
        from accelerate import PartialState

        return PartialState().device
    try:
        device = torch.device(name)
        if device.index:  # the trainers below take the first device they see
            raise ConfigError(f"backend.device {name!r}: set CUDA_VISIBLE_DEVICES={device.index} and use cuda instead")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"backend.device {name!r} is not available here ({first_line(error)}); use auto or cpu"
        ) from error
    return device
