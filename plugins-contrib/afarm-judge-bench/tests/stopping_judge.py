"""A judge that names the output shown first, as a plugin of one file: `--plugin-file stopping_judge.py --judge stops`.

It writes each question that it is paid for into the file of `STOPPING_LOG`. After as many as `STOPPING_AFTER` it says
"hangs" there, and answers no more.
"""

import asyncio
import os
from pathlib import Path

from afarm import Capabilities, Completion, Judge, Price, hookimpl


class Stopping(Judge):
    capabilities = Capabilities(logit_bias=True)

    def __init__(self, spec, config, context):
        pass

    @property
    def identity(self):
        return "stops"

    def price(self):
        return Price(1.0, 1.0)

    async def complete(self, request):
        log = Path(os.environ["STOPPING_LOG"])
        shown = request.comparisons[0]
        hangs = len(log.read_text().splitlines()) >= int(os.environ.get("STOPPING_AFTER", "1000"))
        with log.open("a", encoding="utf-8") as written:
            written.write("hangs\n" if hangs else f"{shown.pair_id} {shown.order} {request.sample_index}\n")
        if hangs:
            await asyncio.Event().wait()
        return Completion("Output (a)", 1000, 10, price=0.001, model="stops-2026-01-31")


@hookimpl
def register_judges(register):
    register("stops", Stopping, summary="a judge that answers for a while")
