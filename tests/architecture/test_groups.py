from __future__ import annotations

import pytest


@pytest.mark.xdist_group("groups")
def test_tests_of_a_group_share_a_worker(request: pytest.FixtureRequest) -> None:
    """What they share takes a minute to make, and each worker would make it. pytest-xdist knows a group by its test's
    id, which not every pytest lets it change."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("not run by pytest-xdist with --dist loadgroup")
    assert request.node.nodeid.endswith("@groups"), "install the pytest of constraints.txt"
