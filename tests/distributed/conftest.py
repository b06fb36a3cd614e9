"""Two processes over gloo, once for all tests of a module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tasks
from launches import Results, finish, launched


@pytest.fixture(scope="session")
def run_tasks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Results]:
    """Runs all tasks in two processes, those for sharded weights where the environment says so."""

    def run(**environment: str) -> Results:
        directory = tmp_path_factory.mktemp("two")
        finish(launched([tasks.__file__, str(directory)], **environment))
        return Results(directory, tmp_path_factory.mktemp("one"))

    return run
