"""Judges behind a vendor's HTTP API: one client, the vendor's own retries, prices, plain errors.

The SDKs send and retry. Four things of ours stand in their way, around each attempt of the HTTP client, so that they
hold with every transport: an attempt ends after `timeout` seconds, or 4 MB of a body; an answer that asks
to slow down is not retried but handed to afarm's engine, which sends the request again when the judge has room; an
answer with status 200 that holds no answer (cut off JSON, no choices) is turned into a broken connection, which the
SDKs retry; and before another attempt the engine is told of each that may have been charged for, as all are that were
neither refused nor unsent. Requests go through the SDKs' generic `post` and answers are read as plain JSON: building
their typed objects took as long as all the rest.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import logging
import os
import re
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from types import ModuleType
from typing import Any

import httpx2

from afarm import BuildContext, Capabilities, ChatRequest, Completion, Judge, JudgeError, Price
from afarm.judging import RequestRefused, SlowDown, answer_lost, unsupported
from afarm_plugins.judges.payloads import margin, texts, unwrapped, wrapped
from afarm_plugins.judges.rate_headers import allowance, in_words
from afarm_plugins.judges.settings import VendorConfig
from afarm_plugins.judges.vendor_errors import (
    CAPABILITY_OF,
    REFUSED,
    NoAnswer,
    asks_to_slow_down,
    details,
    is_filtered,
    lacks_credit,
    list_causes,
    nonsense,
    parsed,
    redacted,
    seconds_to_wait,
    status_of,
    unsent,
    vendor_words,
)

logger = logging.getLogger(__name__)

GO_ON = "the same command goes on from here: nothing that was answered is asked again"
CONNECT_SECONDS = 10.0
MOST_TOKENS = 10**9
"""The largest number that is believed to be a count of an answer's tokens."""
LARGEST_BODY = 4 * 2**20
"""Bytes of an answer, unpacked, beyond which it is no answer: 64 are read at once. 100,000 tokens of thoughts have
0.6 MB, and 4,000 tokens with five log-probabilities each 2.5."""
READ = "afarm_read"
Form = frozenset[str]
"""How requests differ from the usual, in words."""
SYSTEM, LIMIT = "with the system text before the user's", "with the other name of its token limit"
ROLE = re.compile(r"\broles?\b|system (message|prompt)|template", re.IGNORECASE)

BEYOND = {
    "completion": "complete a text",
    "logit_bias": "bias tokens (no tokenizer is known)",
    "logprobs": "ask for log-probabilities",
    "batch": "hand in batches",
}


def require_package(name: str) -> None:
    """Raise `ModuleNotFoundError` if a package is not installed. Does not import it."""
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


read_certificates = cache(httpx2.create_ssl_context)
"""The certificates that the system trusts, read once: that takes longer than a request."""


class VendorJudge(Judge):
    """A judge behind a vendor's API. Subclasses say how a request and an answer look there.

    `model` is the vendor's name of the model, `sdk_name` the vendor's package, `section` the judge's name and settings.
    """

    sdk_name: str
    section: str
    vendor: str
    vendor_url: str
    priced_as: str | None = None
    """The provider in lists of prices, where it is not the judge's own name; empty if there is none."""

    needs_key = True
    beyond: frozenset[str] = frozenset()
    """Capabilities that no setting can give."""

    def __init__(self, model: str, config: VendorConfig, context: BuildContext):
        if not model:
            raise JudgeError(f"--judge {self.section} names no model: write --judge {self.section}:MODEL")
        if "@http" in model:
            name = model.partition("@http")[0]  # the address may hold a key
            raise JudgeError(f"--judge {self.section} takes no address: openai-compatible:{name}@URL takes one")
        self.model = self.spec = model
        self.config = config
        self.base_url = config.base_url or self.vendor_url
        self._context = context
        self.dropped: Counter[str] = Counter()
        """Odd fields of answers that were dropped, by name."""
        if beyond := sorted(name for name in self.beyond if config.capabilities.get(name)):
            raise JudgeError(
                f"judge {self.section} has no way to {' or '.join(BEYOND[name] for name in beyond)}: take it out of "
                f"{self.section}.capabilities"
            )
        self.capabilities = replace(self.capabilities_of_model(), **config.capabilities)
        self._form: Form = frozenset() if self.capabilities.system else frozenset({SYSTEM})
        self._is_form_known = False

    # ------------------------------------------------------------------------------- what a vendor's class fills in

    @abstractmethod
    def capabilities_of_model(self) -> Capabilities:
        """The capabilities of the model, as far as its name tells."""

    @abstractmethod
    def client(self, **options: Any) -> Any:
        """The vendor's asynchronous client."""

    @abstractmethod
    def payload(self, request: ChatRequest, form: Form = frozenset()) -> tuple[str, dict[str, Any]]:
        """The path and the JSON body of `request`, which the model can take."""

    @abstractmethod
    def holds_answer(self, body: Any) -> bool:
        """True if `body`, the JSON of a successful response, has an answer in it, however odd."""

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> Completion:
        """The answer in `body`, with its tokens and no price."""

    def answer_in_batch(self, result: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The body of an answer in one result of a batch, None where it failed."""
        raise NotImplementedError(f"{self.vendor} has no batch endpoint")

    # --------------------------------------------------------------------------------------------------- as a judge

    @property
    def identity(self) -> str:
        """The model, and every setting that changes answers and is not what it is by itself."""
        usual = VendorConfig.model_fields
        changed = {name: v for name, v in self.config.result_fields().items() if v != usual[name].default}
        notes = [f"{name}={json.dumps(v, sort_keys=True)}" for name, v in sorted(changed.items())]
        return f"{self.section}:{self.spec}" + (f"[{','.join(notes)}]" if notes else "")

    async def complete(self, request: ChatRequest) -> Completion:
        """See `Judge.complete`. What is filtered has an empty, free answer.

        Until a first answer, a request that is refused for its system role, or for the name of its limit, is sent in
        the other form; what is answered is the form of all requests after it.
        """
        form, tried = self._form, set[Form]()
        refusal: Any = None
        while True:
            tried.add(form)
            try:
                answer = await self._ask(request, form)
            except self.sdk.APIStatusError as error:
                if is_filtered(error):
                    return Completion("", price=0.0, finish_reason="content_filter", model=self.model)
                if asks_to_slow_down(error.status_code, error.response.headers):
                    raise self.explained(error) from None
                refusal = refusal or error
                form = form | self._other_form(request, error) if self._form in tried else self._form
                if form in tried:
                    raise self.explained(refusal) from None
            except Exception as error:  # whatever else an SDK or a transport raises must not carry a key outside
                raise self.explained(error) from None
            else:
                if learned := " and ".join(form - self._form):
                    logger.warning("%s; from here on it is sent %s", self.explained(refusal), learned)
                self._form, self._is_form_known = self._form | form, True
                return answer

    async def _ask(self, request: ChatRequest, form: Form) -> Completion:
        path, body = self.sent(request, form)
        client, started = self._client, time.perf_counter()
        response = await client.post(path, cast_to=httpx2.Response, body=body)
        seconds = time.perf_counter() - started
        answer = self.answer(response.extensions[READ], in_object=self.wraps(request))
        return replace(
            answer,
            seconds=seconds,
            degraded=("system",) if SYSTEM in form and any(m.role == "system" for m in request.messages) else (),
        )

    def _other_form(self, request: ChatRequest, error: Any) -> Form:
        """Choose what to send differently after a refusal that names a parameter or role."""
        words = vendor_words(parsed(error))
        if self._is_form_known or not (error.status_code in REFUSED or error.status_code >= 500):
            return frozenset()
        if ROLE.search(words) and any(m.role == "system" for m in request.messages):
            return frozenset({SYSTEM})
        return frozenset({LIMIT} if request.messages and re.search(r"\bmax_(completion_)?tokens\b", words) else ())

    def sent(self, request: ChatRequest, form: Form | None = None) -> tuple[str, dict[str, Any]]:
        """`payload`, checked first. Raises `JudgeError` naming what the model does not take."""
        takes, lacks = self.capabilities, list(unsupported(request, self.capabilities))
        if not (takes.chat if request.messages else takes.completion):
            lacks.append("chat" if request.messages else "text completion")
        if lacks:
            raise JudgeError(
                f"{self.identity} takes no {' or '.join(lacks)}, which {request.annotator or 'a request'} asks for: "
                f"choose another judge, or say what it takes in the settings {self.section}.capabilities",
                charged=False,
            )
        form = self._form if form is None else form
        return self.payload(request, form)

    def answer(self, read: Completion, *, in_object: bool, in_batch: bool = False) -> Completion:
        """The answer that was read with its price, which is unknown where the vendor did not count all tokens."""
        price, dollars = self.price(), None
        if price is not None and read.input_tokens and (read.output_tokens or not read.text):
            dollars = price.of(read.input_tokens, read.output_tokens, read.cached_input_tokens)
            dollars *= price.batch if in_batch else 1.0
        return replace(read, text=unwrapped(read.text) if in_object else read.text, price=dollars)

    def word(self, fields: Mapping[str, Any], name: str) -> str:
        """A field that is a text; any other value is dropped and counted."""
        value = fields.get(name)
        self.dropped[name] += not (value is None or isinstance(value, str))
        return value if isinstance(value, str) else ""

    def counts(self, fields: Mapping[str, Any], field: str, *names: str) -> list[int]:
        """A vendor's counts of tokens: all 0, as where none were counted, if one is no count."""
        usage = fields.get(field)
        counts = [usage.get(name) or 0 for name in names] if isinstance(usage, Mapping) else []
        fits = all(type(count) is int and 0 <= count <= MOST_TOKENS for count in counts)
        self.dropped[field] += not (fits and (counts or usage is None))
        return counts if counts and fits else [0] * len(names)

    def wraps(self, request: ChatRequest) -> bool:
        """True if the list that `request` asks for is sent as an object around it."""
        return self.capabilities.schema and request.tool is None and wrapped(request.schema)

    # -------------------------------------------------------------------------------------------------- as a batch

    def names_in_batch(self, requests: Sequence[ChatRequest]) -> list[str]:
        """Name each request by its place and by whether its answer is wrapped: all that reading it needs."""
        return [f"{i}-{'wrapped' if self.wraps(request) else 'plain'}" for i, request in enumerate(requests)]

    def in_order(self, count: int, results: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Completion | None]:
        """The answers of a batch of `count` requests, from results by name in any order."""
        found: list[Completion | None] = [None] * count
        for name, result in results:
            place, _, kind = name.partition("-")
            body = self.answer_in_batch(result)
            if body is not None:
                found[int(place)] = self.answer(self.read(body), in_object=kind == "wrapped", in_batch=True)
        return found

    # ------------------------------------------------------------------------------------------------------- prices

    def price(self) -> Price | None:
        return self._price

    @cached_property
    def _price(self) -> Price | None:
        return self._context.price(self.section if self.priced_as is None else self.priced_as, self.model)

    def worst_case_price(self, request: ChatRequest) -> float | None:
        price = self.price()
        return None if price is None else price.of(self.most_input_tokens(request), self.most_output_tokens(request))

    def most_input_tokens(self, request: ChatRequest) -> int:
        """UTF-8 bytes, since no tokenizer makes more tokens than that, and what the vendor adds around them."""
        return sum(len(text.encode("utf-8", "replace")) for text in texts(request)) + margin(request)

    def most_output_tokens(self, request: ChatRequest) -> int:
        return request.max_tokens + (self.config.thinking_tokens if self.thinks else 0)

    @property
    def thinks(self) -> bool:
        """True if the model thinks before it answers, which takes tokens of the answer's limit."""
        return False

    @property
    def without_thoughts(self) -> str:
        """The setting that keeps the model from thinking; empty if it does not think."""
        return f"{self.section}.effort=none" if self.thinks else ""

    def check_access(self) -> Sequence[str]:
        """Report a missing or broken key before anything runs."""
        name = self.config.key_variable
        if not self._key and self.needs_key:
            return [f"{self.section} needs a key: set the environment variable {name}, such as export {name}=…"]
        if self._key and not re.fullmatch(r"[!-~]+", self._key):
            return [f"the key in the environment variable {name} has characters that no key has: set it again"]
        return ()

    # ---------------------------------------------------------------------------------------------------- the client

    @cached_property
    def sdk(self) -> ModuleType:
        """The vendor's package, imported to send the first request: that takes a second."""
        return importlib.import_module(self.sdk_name)

    @property
    def _key(self) -> str:
        return os.environ.get(self.config.key_variable, "").strip() if self.config.key_variable else ""

    @cached_property
    def _client(self) -> Any:
        """One client for the judge's life, made where it is first used: inside the engine's loop."""
        if problems := self.check_access():
            raise JudgeError(problems[0], charged=False)
        timeout = httpx2.Timeout(self.config.timeout, connect=min(self.config.timeout, CONNECT_SECONDS))
        try:
            http = self.sdk.DefaultAioHttpClient(timeout=timeout, verify=read_certificates())
        except RuntimeError:  # aiohttp is not installed
            http = self.sdk.DefaultAsyncHttpxClient(timeout=timeout, verify=read_certificates())
        http.send = partial(self._attempt, http.send)
        return self.client(
            api_key=self._key or "none",
            base_url=self.base_url,
            timeout=timeout,
            max_retries=self.config.max_retries,
            http_client=http,
        )

    async def close(self) -> None:
        if dropped := ", ".join(f"{name} ({count})" for name, count in self.dropped.most_common() if count):
            logger.warning("%s: odd fields of answers were dropped, their texts kept: %s", self.identity, dropped)
        self.dropped.clear()
        client = self.__dict__.pop("_client", None)
        if client is not None:
            await client.close()

    async def _attempt(self, send: Callable[..., Awaitable[Any]], request: Any, **options: Any) -> Any:
        """One attempt of the SDK's: see the module."""
        asks = request.url.path.endswith(("/completions", "/messages"))
        try:
            try:  # HTTP clients bound the wait for each piece only
                async with asyncio.timeout(self.config.timeout if asks else None):
                    response = await send(request, **options | {"stream": True} if asks else options)
                    response = await read_whole(response) if asks else response
            except TimeoutError as error:
                raise httpx2.ReadTimeout("no answer in time", request=request) from error
            except Exception as error:
                if isinstance(error, httpx2.RequestError):
                    raise
                # A transport's own, of a status line that is none, say: SDKs would not send again.
                raise httpx2.RemoteProtocolError(str(error), request=request) from error
            self._inspect(response, asks)
        except Exception as error:
            last = int(request.headers.get("x-stainless-retry-count", 0)) >= self.config.max_retries
            if asks and not last and not unsent(error):
                await answer_lost(self._failure_of(error))
            raise
        return response

    def _inspect(self, response: Any, asks: bool) -> None:
        """Raises `NoAnswer` if a response that was to hold one does not."""
        is_of_form = response.status_code >= 500 and not self._is_form_known and ROLE.search(response.text)
        if is_of_form or asks_to_slow_down(response.status_code, response.headers):
            response.headers["x-should-retry"] = "false"  # which both SDKs obey
        elif response.is_success and asks:
            body = parsed_body(response.content)
            if not self.holds_answer(body):
                raise NoAnswer(nonsense(body, response.text), request=response.request)
            read = response.extensions[READ] = self.read(body)
            allowed = allowance(response.headers, read.input_tokens + read.output_tokens)
            if allowed:
                self._context.allowed(*allowed)

    # ------------------------------------------------------------------------------------------------------- errors

    @contextmanager
    def explaining(self, missing: str = "", free: bool = False) -> Iterator[None]:
        """Raise `JudgeError` for any error inside; `missing` explains a 404, `free` says nothing was charged."""
        try:
            yield
        except Exception as error:
            if missing and getattr(error, "status_code", None) == 404:
                raise JudgeError(f"{self.identity}: {missing}") from None
            explained = self.explained(error)
            explained.charged &= not free
            raise explained from None

    def explained(self, error: Exception) -> JudgeError:
        """Explain an error and its fix. The message holds nothing that looks like the key."""
        if isinstance(error, JudgeError):
            return error
        if isinstance(error, self.sdk.APIStatusError):
            message = self._of_status(status_of(error), self.quote(error), error)
            if asks_to_slow_down(error.status_code, error.response.headers) and not lacks_credit(error):
                return SlowDown(message, seconds_to_wait(error))
            refused = status_of(error) in REFUSED and not lacks_credit(error)
            return RequestRefused(message) if refused else JudgeError(message, charged=False)
        failure = f"{self._failure_of(error)}, {self._tries}"
        return JudgeError(f"{self.identity} {failure}; {GO_ON}", charged=not unsent(error))

    def _failure_of(self, error: Exception) -> str:
        """Say what became of an attempt that no status came of."""
        causes = list_causes(error)
        cause = next((cause for cause in reversed(causes) if str(cause)), error)
        said = f"({type(cause).__name__}: {self.quote(cause)})"
        if isinstance(cause, NoAnswer):
            return f"answered with an unreadable reply ({self.quote(cause)})"
        if any(isinstance(cause, httpx2.ReadTimeout) for cause in causes):
            return f"did not answer within {self.config.timeout:g} s"
        if unsent(error):
            return f"could not be reached at {self.base_url} {said}"
        if any(isinstance(cause, httpx2.DecodingError) for cause in causes):
            return f"sent a body that cannot be unpacked {said}"
        if isinstance(error, self.sdk.APIConnectionError | httpx2.TransportError):
            return f"broke the connection off before a whole answer {said}"
        return f"failed: {type(error).__name__}: {self.quote(error)}"

    @property
    def _tries(self) -> str:
        return f"{self.config.max_retries + 1} times" if self.config.max_retries else "once"

    def _of_status(self, status: int, said: str, error: Any) -> str:
        name = self.config.key_variable
        if status in (401, 403) and said.startswith("a web page"):
            return f"{self.identity}: not the API answered ({status}: {said}): look at {self.base_url} and at any proxy"
        if status in (401, 403):
            held = f"set {name} to one that may use {self.model}" if name else "see the settings of the server"
            return f"{self.identity}: the key was refused ({status}: {said}); {held}"
        if status == 404:
            is_named = self.needs_key or "model" in said.lower()
            no_api = "" if is_named else ", or this is not where its API is (often …/v1)"
            return (
                f"{self.identity}: {self.vendor} at {self.base_url} has no model {self.model!r} (any more){no_api} "
                f"({said}); name another with --judge"
            )
        if lacks_credit(error):
            return f"{self.identity}: the account has no credit left ({said}); add some, and {GO_ON}"
        if asks_to_slow_down(status, error.response.headers):
            seconds = seconds_to_wait(error)
            wait = f" and wait {in_words(seconds)}" if seconds and seconds >= 1 else ""
            return (
                f"{self.identity} asks to slow down{wait} ({status}: {said}); {GO_ON}, and a lower --max-concurrency "
                "asks less at once"
            )
        if status >= 500 or status in (408, 409):
            return f"{self.identity} failed {self._tries} ({status}: {said}); {GO_ON}"
        return f"{self.identity} refused the request ({status}: {said}){self._fix(error)}"

    def _fix(self, error: Any) -> str:
        """The setting that leaves a parameter out, where the vendor's error is about one."""
        named = re.findall(r"\w+", f"{details(error).get('param')} {vendor_words(parsed(error))}")
        capability = next((CAPABILITY_OF[name] for name in named if name in CAPABILITY_OF), None)
        if capability is None:
            return ""
        degraded = "" if capability == "schema" else " --allow-degraded"  # the prompt asks for the format as well
        return f"; leave it out with --set {self.section}.capabilities.{capability}=false{degraded}"

    def quote(self, error: BaseException) -> str:
        """The vendor's own words, where there are some."""
        words = vendor_words(parsed(error)) or "no reason given" if hasattr(error, "response") else str(error)
        return redacted(words, self._key)


async def read_whole(response: Any) -> httpx2.Response:
    """Read a response's body, unpacked. Raises `NoAnswer` if it is larger than any answer."""
    parts, size = [], 0
    try:
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > LARGEST_BODY:
                raise NoAnswer(f"more than {LARGEST_BODY >> 20} MB: no answer is as long", request=response.request)
    except httpx2.TransportError:
        if size > LARGEST_BODY or parsed_body(b"".join(parts)) is None:
            raise
        # Cut off behind the answer's last byte: what is paid for is whole.
    finally:
        await response.aclose()
    packed = {"content-encoding", "content-length", "transfer-encoding"}
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in packed]
    options = {"request": response.request, "extensions": response.extensions}
    return httpx2.Response(response.status_code, headers=headers, content=b"".join(parts), **options)


def parsed_body(content: bytes) -> Any:
    """Parse the JSON of a body; None if it is none. Bytes that are no text are replaced."""
    try:
        text = content.decode(json.detect_encoding(content), "replace")
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 20 else float(digits))
    except (ValueError, RecursionError):
        return None
