"""For the tests over the wire: a local server in the vendors' place, planted keys, retries without the wait."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from wire_server import WireServer


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer() as running:
        yield running


@pytest.fixture(autouse=True)
def _wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDKs' first wait is half a second, twice as long each time; how often they retry is as it is."""
    if not request.module.__name__.startswith("test_wire"):
        return
    from wire_judges import KEY

    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.delenv("OPENAI_COMPATIBLE_API_KEY", raising=False)
    for scheme in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(scheme, raising=False)
        monkeypatch.delenv(scheme.upper(), raising=False)
    for sdk in ("openai", "anthropic"):
        monkeypatch.setattr(importlib.import_module(f"{sdk}._base_client"), "INITIAL_RETRY_DELAY", 0.001)
