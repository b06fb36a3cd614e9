"""Lost processes of a launch: the others stop within the timeout and name those that do not respond.

A collective has the time limit `backend.timeout`. When it fails, each process signs in at the launch's store (torch's
`TCPStore`), and those that do not are named. Processes may wait for a file of the main process for hours, while it asks
judges; so they also watch the store, which the main process holds. A process leaves the launch before it ends.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import platform
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from afarm.backend import distributed
from afarm.core.errors import ConfigError, TrainingError

T = TypeVar("T")

PAUSE = 0.1
"""Seconds between two looks at who has signed in."""

ROLL_CALL = 10.0
"""Seconds that processes have to sign in, since their collectives do not fail at the same time."""

LEAVING = 20.0
"""Seconds that a process has to leave a launch whose other processes may be dead or cut off."""

OF_COLLECTIVES = re.compile(r"gloo|nccl|pair closure|connection (closed|reset)|broken pipe|time(d )?out", re.IGNORECASE)
IN_TIME = re.compile(r"time(d )?out", re.IGNORECASE)
"""Words of failed collectives, which have no exception type of their own, and of timeouts among them."""

GO_ON = (
    "What was trained is kept: give the same command to all processes again, and it goes on from the last checkpoint"
)


class Launch:
    """Processes that were started together: their machines by rank, and a unique session.

    Connects this process over gloo if `cpu`, else over NCCL; `on_host` also over gloo, for tensors on the host. Raises
    `TrainingError` if some do not connect within `timeout` seconds, and `ConfigError` if a group that others made lacks
    gloo.
    """

    def __init__(self, cpu: bool, timeout: float, *, on_host: bool = False):
        from accelerate import PartialState

        self.timeout = timeout
        self.session = ""
        self.machines: list[str] = []
        self._ends = threading.Event()
        self._watcher: threading.Thread | None = None
        self._made_group = not dist.is_initialized()  # Ray Train ends its own
        atexit.register(self._leave)
        try:
            over = {}  # accelerate's own choice
            if on_host and not cpu and (kind := torch.accelerator.current_accelerator()):  # as accelerate offloads
                over["backend"] = f"{kind.type}:{dist.get_default_backend_for_device(kind.type)},cpu:gloo"
            device: torch.device = PartialState(cpu=cpu, timeout=timedelta(seconds=timeout), **over).device
        except RuntimeError as error:  # gloo has no exception type of its own
            raise TrainingError(
                f"the processes did not come together in {timeout:,.0f} s ({_cause(error)}): start as many as "
                "the launch says, and name the address of the first on all"
            ) from error
        if on_host:
            require_connected_hosts()
        self.device = torch.device("cpu") if cpu else device  # what is saved of "cpu:0" cannot be loaded
        with self.naming_lost("start"):
            greetings = distributed.all_gather_object((secrets.token_hex(8), platform.node()))
            store = _store().clone()  # type: ignore[attr-defined]  # a connection for the thread
        self.session = greetings[0][0]
        self.machines = [machine for _, machine in greetings]
        if distributed.rank():
            self._watcher = threading.Thread(target=self._watch, args=(store,), name="afarm-launch", daemon=True)
            self._watcher.start()

    @contextmanager
    def naming_lost(self, what: str) -> Iterator[None]:
        """Raise `TrainingError` naming the lost processes if a collective of `what` fails."""
        try:
            yield
        except RuntimeError as error:
            if not (isinstance(error, dist.DistError) or OF_COLLECTIVES.search(str(error))):
                raise
            raise TrainingError(f"{what}: {self._loss(error)}. {GO_ON}") from error

    def _loss(self, error: RuntimeError) -> str:
        """Say which processes are lost, and how."""
        seconds = min(ROLL_CALL, self.timeout)
        answered = _within(2 * seconds, lambda: self._call_roll(seconds))
        lost = [0] if answered is None else answered  # the first one holds the store
        cause = _cause(error)
        if not lost:
            return f"the processes lost each other, though all are there ({cause})"
        named = ", ".join(f"process {rank}{self._place(rank)}" for rank in lost)
        if IN_TIME.search(str(error)):
            return f"no word from {named} for {self.timeout:,.0f} s (backend.timeout)"
        return f"{named} {'are' if len(lost) > 1 else 'is'} gone ({cause})"

    def _place(self, rank: int) -> str:
        return f" on {self.machines[rank]}" if self.machines else ""

    def _call_roll(self, seconds: float) -> Sequence[int]:
        """Sign in, and return the ranks that have not signed in within `seconds`."""
        store, until = _store(), time.monotonic() + seconds
        store.set(f"{self.session} lost, {distributed.rank()}", "here")
        missing = list(range(distributed.world_size()))
        while missing and time.monotonic() < until:
            time.sleep(PAUSE)
            missing = [r for r in missing if not store.check([f"{self.session} lost, {r}"])]
        return missing

    def _watch(self, store: dist.Store) -> None:
        """End this process once the store has not answered for `timeout` seconds."""
        pause = min(self.timeout / 4, ROLL_CALL)
        until = time.monotonic() + self.timeout
        while time.monotonic() < until:
            if self._ends.wait(pause):
                return
            if _within(pause, lambda: store.num_keys()):
                until = time.monotonic() + self.timeout
        text = f"no word from process 0{self._place(0)} for {self.timeout:,.0f} s (backend.timeout)"
        # Straight to the terminal: followers' stderr is closed, and an exception would end only this thread.
        print(f"Error in process {distributed.rank()}: {text}. {GO_ON}", file=sys.__stderr__, flush=True)
        os._exit(1)

    def _leave(self) -> None:
        """Stop the watch and end the process group: a thread in torch's code at exit aborts the process."""
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later(LEAVING, exit=True, file=nowhere)  # ends the process if all else hangs
            self._ends.set()
            if self._watcher is not None:
                self._watcher.join()
            if self._made_group and dist.is_initialized():
                dist.destroy_process_group()
            faulthandler.cancel_dump_traceback_later()


def _within(seconds: float, call: Callable[[], T]) -> T | None:
    """Return the result of `call`; None if it fails or takes longer, as the store may without a network."""
    results: list[T] = []

    def answer() -> None:
        with suppress(RuntimeError):
            results.append(call())

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def _store() -> dist.Store:
    """Return the launch's store, which has no public name in torch."""
    return dist.distributed_c10d._get_default_store()


def require_connected_hosts() -> None:
    """Raise `ConfigError` if the process group (perhaps others') cannot reduce tensors on the host."""
    if "cpu:" not in (connections := dist.get_backend_config()):
        raise ConfigError(f"shards on the host are added up by gloo, and these processes have {connections}: use fsdp2")


def _cause(error: BaseException) -> str:
    """Return the first sentence of an error, without file names of gloo's source."""
    return re.sub(r"\[/[^\]]*\] *", "", first_line(error)).split(". ")[0]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
