"""The local judge: any Hugging Face causal LM or GGUF file as the judge, on the shared backend.

Requests that wait at the same time are answered as one batch, on a thread beside the event loop. Answers are text, or
the probabilities of the two labels where the answer would start: small models that cannot keep to a format can often
still tell which label is likelier. No torch here; the model itself is in `local_model`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from afarm import (
    BuildContext,
    Capabilities,
    ChatRequest,
    Completion,
    Judge,
    JudgeError,
    ModelError,
    Price,
    local_path,
    model_identity,
    require_local,
    seeding,
)
from afarm_plugins.judges.settings import LocalConfig

if TYPE_CHECKING:
    from afarm_plugins.judges.local_model import LocalModel

logger = logging.getLogger(__name__)

Waiting = tuple[ChatRequest, "asyncio.Future[Completion]"]

SHORT = 2000
"""Characters up to which prompts are short: how much longer one is than another matters little."""


class LocalJudge(Judge):
    """A judge on a local model, whose `spec` is as for `--model`: a Hub id, a directory, a `.gguf` file.

    An answer depends on the model, the request and its draw, not on what shares its batch (up to the last bits that
    batch shapes change in matrix products; with `per_device_batch_size` 1 not even those).
    """

    capabilities = Capabilities(chat=True, completion=True, temperature=True, logit_bias=True, logprobs=True)

    def __init__(self, spec: str, config: LocalConfig | None, context: BuildContext):
        """Raise `JudgeError` if no model is named, `ModelError` if there is none at its path."""
        if not spec:
            raise JudgeError(
                "the judge local needs a model: --judge local:MODEL, a Hub id (org/name), a directory or a .gguf file"
            )
        with _named_by_judge(spec):
            require_local(spec)
        self.spec = spec
        self.config = config or LocalConfig()
        self.capabilities = replace(type(self).capabilities, alone=self.config.answer == "text")
        self._context = context
        self._model: LocalModel | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._waiting: list[Waiting] = []
        self._worker: asyncio.Task[None] | None = None

    @cached_property
    def identity(self) -> str:
        """The model's name and a digest of its files or Hub commit, answer mode, precision and source."""
        path = local_path(self.spec)
        backend = self._context.backend().config.result_fields()
        precision = {name: value for name, value in backend.items() if name != "sampler"}  # which is for policies
        what = [model_identity(self.spec), self.config.result_fields(), precision, self._context.source]
        return f"local:{path.name if path else self.spec}@{seeding.digest(what, length=12)}"

    def price(self) -> Price:
        return Price(0.0, 0.0)

    async def complete(self, request: ChatRequest) -> Completion:
        """Answer in a batch with the other waiting requests.

        A prompt that is longer than the model's context gets an empty answer with finish reason "context_length": the
        model cannot judge that pair, and to cut the prompt would be to judge another. Raises `JudgeError` for a chat if
        the model has no chat template, and for requests that probabilities cannot answer.
        """
        if self.config.answer == "probabilities":
            _require_one_label(request)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._worker is None or self._worker.done():
            # It starts once the running callbacks end, so requests that are sent together are all waiting by then.
            self._worker = asyncio.create_task(self._work())
        return await future

    async def close(self) -> None:
        """Wait for the running batch, and free the model."""
        if self._thread is not None:
            self._thread.shutdown()
        self._thread = self._model = None

    async def _work(self) -> None:
        """Answer waiting requests, batch after batch, until there are none."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="afarm-local")
        while batch := self._next_batch():
            requests = [request for request, _ in batch]
            try:
                answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, requests)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            else:
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():  # whoever asked may have been cancelled
                        future.set_result(answer)

    def _next_batch(self) -> list[Waiting]:
        """Take the request that has waited longest, with like ones near its length: a batch costs its longest."""
        self._waiting = [waiting for waiting in self._waiting if not waiting[1].done()]
        if not self._waiting:
            return []
        first = self._waiting[0][0]
        length = _characters(first)
        alike = []
        for waiting in self._waiting:
            low, high = sorted((length, _characters(waiting[0])))
            if _parameters(waiting[0]) == _parameters(first) and high <= max(2 * low, SHORT):
                alike.append((high - low, waiting))
        alike.sort(key=lambda each: each[0])
        batch = [waiting for _, waiting in alike[: self.config.per_device_batch_size]]
        taken = {id(future) for _, future in batch}
        self._waiting = [waiting for waiting in self._waiting if id(waiting[1]) not in taken]
        return batch

    def _answer(self, requests: Sequence[ChatRequest]) -> list[Completion]:
        """Answer on the worker's thread: nothing else touches the model."""
        if self._model is None:
            from afarm_plugins.judges.local_model import LocalModel

            backend = self._context.backend()
            if not backend.engine.runs_here:
                logger.warning(
                    "the judge local:%s answers by torch in this process: backend.sampler is for policies, whose model "
                    "the server holds. Have a judge's model served by one of its own: --judge "
                    "openai-compatible:MODEL@URL/v1",
                    self.spec,
                )
            with _named_by_judge(self.spec):
                self._model = LocalModel(self.spec, backend)
        started = time.monotonic()
        model = self._model
        answers = model.weigh(requests) if self.config.answer == "probabilities" else model.write(requests)
        seconds = (time.monotonic() - started) / len(requests)
        name = self.identity.removeprefix("local:")
        return [replace(answer, model=name, seconds=seconds) for answer in answers]


def _require_one_label(request: ChatRequest) -> None:
    if request.answer_format == "single" and len(request.comparisons) == 1:
        return
    asks = f"answers in the format {request.answer_format or 'of its own'!r} about {len(request.comparisons)} pairs"
    raise JudgeError(
        "local.answer=probabilities reads one label about one pair, and "
        f"{request.annotator or 'the request'} asks for {asks}: choose an annotator that judges one pair with a label "
        "(gpt4_4, chatgpt_1, chatgpt_3, chatgpt_4, davinci003_2, davinci003_4), or set local.answer=text"
    )


def _parameters(request: ChatRequest) -> tuple[object, ...]:
    sampling = request.temperature, request.top_p, request.max_tokens
    return *sampling, request.favoured_tokens, request.penalised_tokens, request.top_logprobs


def _characters(request: ChatRequest) -> int:
    return len(request.prompt) + sum(len(message.content) for message in request.messages)


@contextmanager
def _named_by_judge(spec: str) -> Iterator[None]:
    """Name the option that the model came from in errors about it."""
    try:
        yield
    except ModelError as error:
        raise ModelError(str(error).replace("check --model", f"check --judge local:{spec}")) from error
