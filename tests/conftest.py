"""What tests of several rooms share. Helpers are in `tests/support`; what needs torch is imported when it is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from places import ROOT

if TYPE_CHECKING:
    from light_farm import Make


@pytest.fixture(scope="session")
def gguf() -> str:
    """SmolLM2-135M-Instruct as a GGUF file; without one, the test is skipped."""
    for place in (os.environ.get("AFARM_TEST_GGUF"), ROOT / ".cache" / "smollm2.gguf"):
        if place and Path(place).is_file():
            return str(place)
    pytest.skip("no SmolLM2 GGUF: set AFARM_TEST_GGUF, or put .cache/smollm2.gguf")


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Make]:
    """A maker of torch-free farms that share an output directory, as one command after the other does."""
    from light_farm import light_farm
    from light_plugin import RAN, CountingJudge

    made: list[Any] = []
    RAN.clear()
    CountingJudge.asked = 0

    def make(*settings: str, **choices: object) -> Any:
        made.append(light_farm(tmp_path, *settings, **choices))
        return made[-1]

    yield make
    for farm in made:
        farm.close()


@pytest.fixture
def policy() -> Any:
    """A tiny causal language model as a checkpoint policy."""
    from tiny_models import make_policy

    return make_policy()


@pytest.fixture(scope="session")
def run_tasks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """A function that runs all of `tasks` in two processes over gloo, with the given environment, and in one."""
    import tasks
    from launches import Results, finish, launched

    def run(**environment: str) -> Results:
        directory = tmp_path_factory.mktemp("two")
        finish(launched([tasks.__file__, str(directory)], **environment))
        return Results(directory, tmp_path_factory.mktemp("one"))

    return run
