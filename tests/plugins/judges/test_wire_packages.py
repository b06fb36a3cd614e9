"""The vendors' packages: which command installs a missing one, and that judges do without aiohttp."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import SUPPORT
from wire_judges import KEY
from wire_server import Hang, WireServer


def run(code: str, *arguments: str) -> str:
    """What `code` printed in a process of its own, whose modules it can take away."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=SUPPORT, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["openai", "anthropic", "openai-compatible"])
def test_a_missing_package_is_an_error_that_says_what_to_install(name: str) -> None:
    code = """
import sys
sys.modules["openai"] = sys.modules["anthropic"] = None
from afarm.core.errors import PluginError
from afarm.core.plugins import discover
try:
    discover().get("judges", sys.argv[1]).load()
except PluginError as error:
    print(error)
"""
    assert "pip install 'afarm[judges]'" in run(code, name)


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_judges_do_without_aiohttp(server: WireServer, name: str) -> None:
    """Answers, and finds a hang, through the SDKs' own transport."""
    code = f"""
import asyncio, os, sys
sys.modules["aiohttp"] = None
os.environ.update(OPENAI_API_KEY={KEY!r}, ANTHROPIC_API_KEY={KEY!r})
from afarm.core.interfaces import BuildContext
from afarm.core.judge import ChatRequest
from afarm.core.plugins import discover
from afarm.core.records import Message
component = discover().get("judges", sys.argv[1])
config = component.settings({{"base_url": sys.argv[2], "timeout": 3, "max_retries": 0}})
judge = component.load()("some-model", config, BuildContext(lambda name: None))
request = ChatRequest("strong", (Message("user", "?"),))
async def ask():
    print((await judge.complete(request)).text)
    try:
        await judge.complete(request)
    except Exception as error:
        print(error)
asyncio.run(ask())
"""
    server.script(None, Hang())
    said = run(code, name, server.openai_url if name == "openai" else server.url)
    assert said.startswith("Output (a)\n")
    assert "did not answer within 3 s, once" in said
