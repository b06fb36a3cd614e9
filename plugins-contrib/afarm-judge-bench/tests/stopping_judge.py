"""A judge that names the output shown first, for `--plugin-file stopping_judge.py --judge stops`.

It writes each question that it is paid for into the file of `STOPPING_LOG`. After as many as `STOPPING_AFTER` it says
"hangs" there, and answers no more. `stops:claims` says that it gives log-probabilities, and gives none.
`stops:stutters` cannot be read before it is asked again. The annotator
`relay:NAME` has another one judge, as a jury has its jurors.
"""

import asyncio
import os
from pathlib import Path

from afarm import Annotator, Capabilities, Completion, Judge, Price, hookimpl


class Stopping(Judge):
    def __init__(self, spec, config, context):
        self.name = f"stops:{spec}"
        self.capabilities = Capabilities(logit_bias=True, logprobs=spec == "claims")

    @property
    def identity(self):
        return self.name

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
        text = "?" if self.name == "stops:stutters" and request.sample_index == 0 else "Output (a)"
        return Completion(text, 1000, 10, price=0.001, model="stops-2026-01-31")


class Relay(Annotator):
    def __init__(self, config, spec, context):
        self.inner, _ = context.annotator(spec)

    def annotate(self, pairs, context):
        return self.inner.annotate(pairs, context)

    def plan(self, pairs, context):
        return self.inner.plan(pairs, context)


@hookimpl
def register_annotators(register):
    register("relay", Relay, summary="another annotator", spec="NAME")


@hookimpl
def register_judges(register):
    register("stops", Stopping, summary="a judge that answers for a while")
