"""The engine `vllm`: which server, and which of its models is the policy.

Asking for the version, as an artifact's key does, loads no torch.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from afarm import BuildContext, ConfigError, ModelError
from afarm_plugins.vllm.config import VllmConfig
from afarm_plugins.vllm.server import VllmServer

if TYPE_CHECKING:
    from afarm.backend import CheckpointPolicy
    from afarm_plugins.vllm.sampler import Adapter, Proof, VllmSampler


KEPT = 2
"""Adapters that the server keeps loaded."""


class VllmEngine:
    """Samples by the vLLM server at `spec`, a URL, which gets adapters as files.

    An adapter's name digests its content, so neither a request nor vLLM's prefix cache, keyed by name and path, can hit
    another step's weights, and several runs can share a server.
    """

    takes_whole_weights: ClassVar[bool] = False
    runs_here: ClassVar[bool] = False

    def __init__(self, config: VllmConfig, spec: str, context: BuildContext):
        url = spec.rstrip("/").removesuffix("/v1")
        if not re.fullmatch(r"https?://[^/@?#\s]+", url):
            raise ConfigError(
                f"backend.sampler=vllm@{spec}: write vllm@http://HOST:PORT, the address of a vLLM server without "
                f"path or key (a key goes into the environment variable {config.key_variable})"
            )
        self.config = config
        self.server = VllmServer(url, config)
        self.place: int | None = None
        """How many of a policy's low-rank updates the server's own weights contain, by the last proof."""
        self.proofs: list[Proof] = []
        """The last proofs of different weights that the server has passed."""
        self._adapters: list[str] = []

    @cached_property
    def version(self) -> str:
        """vLLM's version, from the settings or else the server."""
        return f"vllm {self.config.version or self.server.first_version()}"

    def require_version(self) -> None:
        """Raise `ModelError` if the server runs another version of vLLM than the artifacts' keys name."""
        if (running := f"vllm {self.server.version()}") != self.version:
            raise ModelError(
                f"the server at {self.server.url} is {running}, and this run's artifacts are keyed by {self.version}: "
                "start that version, or name the other one (--set vllm.version=…) and sample anew"
            )

    @cached_property
    def directory(self) -> Path:
        """The directory of adapters for the server."""
        if self.config.adapter_dir:
            directory = Path(self.config.adapter_dir).expanduser().absolute()
            directory.mkdir(parents=True, exist_ok=True)
            return directory
        self._temporary = tempfile.TemporaryDirectory(prefix="afarm-adapters-")
        return Path(self._temporary.name)

    def keep(self, adapter: Adapter | None) -> None:
        """Unload all adapters but this one and the one before, which may still be sampled from."""
        if adapter is None:
            return
        self._adapters = [*(name for name in self._adapters if name != adapter.name), adapter.name]
        while len(self._adapters) > KEPT:
            forgotten = self._adapters.pop(0)
            self.server.unload_adapter(forgotten)
            shutil.rmtree(self.directory / forgotten, ignore_errors=True)

    def sampler(self, policy: CheckpointPolicy) -> VllmSampler:
        """Hand over the policy's adapters, if any, and have the server prove that it holds its weights."""
        from afarm_plugins.vllm.sampler import proved_sampler

        return proved_sampler(self, policy)
