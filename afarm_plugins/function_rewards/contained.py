"""Stdout and the global random states, kept from a function of a user's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

PRINTS = "prints to stdout (shown on stderr)"
DRAWS = "changes the global random state of {} (restored after each call: draw from a generator of its own)"


class _Stderr:
    """In the place of stdout: hands text on to stderr, and tells once that there was some."""

    def __init__(self, name: str, told: set[str]):
        self._name, self._told = name, told

    def write(self, text: str) -> int:
        if text:
            _tell(PRINTS, self._name, self._told)
        return sys.stderr.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


@contextmanager
def contained(name: str, told: set[str]) -> Iterator[None]:
    """Send stdout to stderr and restore global random states; tell once, as `told` remembers."""
    before = _states()
    try:
        with redirect_stdout(_Stderr(name, told)):
            yield
    finally:
        for module, state in _states().items():
            if module in before and state != before[module]:
                _tell(DRAWS.format(module), name, told)
                _restore(module, before[module])


def _states() -> dict[str, Any]:
    """Read the states of the generators that are loaded."""
    states: dict[str, Any] = {"random": random.getstate()}
    if numpy := sys.modules.get("numpy.random"):
        name, keys, *rest = numpy.get_state()
        states["numpy.random"] = (name, tuple(keys.tolist()), *rest)
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _restore(module: str, state: Any) -> None:
    if module == "random":
        random.setstate(state)
    elif module == "numpy.random":
        sys.modules["numpy.random"].set_state(state)
    else:
        torch: Any = sys.modules["torch"]
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _tell(what: str, name: str, told: set[str]) -> None:
    if what not in told:
        told.add(what)
        sys.stderr.write(f"{name} {what}\n")
