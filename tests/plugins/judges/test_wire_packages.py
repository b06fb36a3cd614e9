"""The vendors' packages: which command installs a missing one, and that judges do without aiohttp."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_missing_package_is_an_error_that_says_what_to_install() -> None:
    code = """
import sys
sys.modules["openai"] = sys.modules["anthropic"] = None
from afarm.core.errors import PluginError
from afarm.core.plugins import discover
for name in sys.argv[1:]:
    try:
        discover().get("judges", name).load()
    except PluginError as error:
        print(" ".join(str(error).split()))
"""
    said = run(code, "openai", "anthropic", "openai-compatible").splitlines()
    assert ["pip install 'afarm[judges]'" in line for line in said] == [True] * 3


def test_judges_do_without_aiohttp(server: WireServer) -> None:
    """Answers, and finds a hang, through the SDKs' own transport."""
    code = f"""
import asyncio, os, sys
sys.modules["aiohttp"] = None
os.environ.update(OPENAI_API_KEY={KEY!r}, ANTHROPIC_API_KEY={KEY!r})
from afarm.core.interfaces import BuildContext
from afarm.core.judge import ChatRequest
from afarm.core.plugins import discover
from afarm.core.records import Message

def make(name, url):
    component = discover().get("judges", name)
    config = component.settings({{"base_url": url, "timeout": 3, "max_retries": 0}})
    return component.load()("some-model", config, BuildContext(lambda name: None))

async def ask(judges):
    request = ChatRequest("strong", (Message("user", "?"),))
    for judge in judges:
        print((await judge.complete(request)).text)
    for error in await asyncio.gather(*(judge.complete(request) for judge in judges), return_exceptions=True):
        print(error)

asyncio.run(ask([make("openai", sys.argv[1]), make("anthropic", sys.argv[2])]))
"""
    server.script(None, None, Hang(), Hang())
    openai, anthropic, *hangs = run(code, server.openai_url, server.url).splitlines()
    assert (openai, anthropic) == ("Output (a)", "Output (a)")
    assert ["did not answer within 3 s, once" in line for line in hangs] == [True] * 2
