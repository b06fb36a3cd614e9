"""Judges behind OpenAI's API, and behind servers that speak its format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlsplit

from afarm import BuildContext, Capabilities, ChatRequest, Completion, JudgeError
from afarm_plugins.judges.payloads import closed, make_batch_id, margin, parse_batch_id, sendable, texts, turns, written
from afarm_plugins.judges.settings import VendorConfig
from afarm_plugins.judges.vendor import LIMIT, SYSTEM, Form, VendorJudge, require_package
from afarm_plugins.judges.vendor_errors import redacted

require_package("openai")

FAVOUR, AVOID = 7, -100
"""Logit bias of AlpacaFarm's annotators (its released configurations; see docs/guides/annotators.md)."""

COMPLETION_MODELS = re.compile(r"instruct|^(text-)?(davinci|babbage|curie|ada)\b")
REASONING_MODELS = re.compile(r"^(o\d|codex|gpt-([5-9]|\d\d))(?!.*-chat)")
"""They take no temperature, logit bias or log-probabilities, but for some where effort is "none"."""

CL100K_MODELS = re.compile(r"^(gpt-3\.5|gpt-35|gpt-4(?![.o\d])|(text-)?(davinci|babbage|curie|ada)\b)")
"""Of the older tokenizer, and older than schemas."""

MOST_IN_A_BATCH = 50_000
CHAT, COMPLETIONS = "/chat/completions", "/completions"


class OpenAIJudge(VendorJudge):
    """`openai:MODEL`: chat, or text completion for the models that only do that."""

    sdk_name = "openai"
    section, vendor, vendor_url = "openai", "OpenAI", "https://api.openai.com/v1"
    limit_names = ("max_completion_tokens", "max_tokens")
    """The parameter of an answer's limit, and what servers call it that refuse that."""

    def capabilities_of_model(self) -> Capabilities:
        samples = not self.thinks
        chats = not COMPLETION_MODELS.search(self._base_model)
        return Capabilities(
            chat=chats,
            completion=not chats,
            temperature=samples,
            logit_bias=not self._reasons,
            logprobs=samples,
            schema=chats and not CL100K_MODELS.match(self._base_model),
            tool=chats,
            batch=chats,
        )

    @property
    def thinks(self) -> bool:
        return self._reasons and self.config.effort != "none"

    @property
    def _reasons(self) -> bool:
        return REASONING_MODELS.match(self._base_model) is not None

    @property
    def _base_model(self) -> str:
        """The model that a fine-tuned one (ft:MODEL:…) was made from."""
        return self.model.split(":")[1] if self.model.startswith("ft:") else self.model

    def client(self, **options: Any) -> Any:
        return self.sdk.AsyncOpenAI(**options)

    # ------------------------------------------------------------------------------------------------ what is sent

    def payload(self, request: ChatRequest, form: Form = frozenset()) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"model": self.model}
        if request.messages:
            path = CHAT
            body["messages"] = [
                {"role": m.role, "content": sendable(m.content), **({"name": m.name} if m.name else {})}
                for m in request.messages
            ]
            if SYSTEM in form:
                body["messages"] = turns(request, is_moved=True)[1]
            body[self.limit_names[LIMIT in form]] = self.most_output_tokens(request)
            self._constrain(request, body)
        else:
            path, body["prompt"] = COMPLETIONS, sendable(request.prompt)
            body["max_tokens"] = request.max_tokens
        if request.temperature != 1.0:
            body["temperature"] = request.temperature
        if request.top_p != 1.0:
            body["top_p"] = request.top_p
        if request.favoured_tokens or request.penalised_tokens:
            body["logit_bias"] = logit_bias(self.encoding_name, request.favoured_tokens, request.penalised_tokens)
        if request.top_logprobs and path == CHAT:
            body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        elif request.top_logprobs:
            body["logprobs"] = request.top_logprobs
        return path, body

    def _constrain(self, request: ChatRequest, body: dict[str, Any]) -> None:
        """The tool to call, or the schema to answer in, and how hard to think."""
        if request.tool is not None:
            tool = request.tool
            function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            body["tools"] = [{"type": "function", "function": function}]
            body["tool_choice"] = {"type": "function", "function": {"name": tool.name}}
        elif request.schema is not None and self.capabilities.schema:
            schema = {"name": "answer", "schema": closed(request.schema), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.config.effort:
            body["reasoning_effort"] = self.config.effort

    # -------------------------------------------------------------------------------------------- what is received

    def holds_answer(self, body: Any) -> bool:
        choices = body.get("choices") if isinstance(body, Mapping) else None
        first = choices[0] if isinstance(choices, list) and choices else None
        return isinstance(first, Mapping) and (isinstance(first.get("message"), Mapping) or "text" in first)

    def read(self, body: Mapping[str, Any]) -> Completion:
        choice = body["choices"][0]
        message = choice.get("message") or {}
        refusal = self.word(message, "refusal")
        text = refusal or self.called(message) or written(message.get("content", choice.get("text")))
        finish = self.word(choice, "finish_reason")
        given, made = self.counts(body, "usage", "prompt_tokens", "completion_tokens")
        cached = self.counts(body["usage"], "prompt_tokens_details", "cached_tokens")[0] if given else 0
        return Completion(
            text,
            input_tokens=given,
            output_tokens=made,
            cached_input_tokens=min(cached, given),
            finish_reason="refusal" if refusal else FINISH.get(finish, finish),
            model=self.word(body, "model") or self.model,
            logprobs=self.logprobs(choice),
        )

    def called(self, message: Mapping[str, Any]) -> str:
        """The arguments of the first call, empty where none was made."""
        try:
            arguments = ((message.get("tool_calls") or [{}])[0].get("function") or {}).get("arguments")
        except (AttributeError, LookupError, TypeError):
            self.dropped["tool_calls"] += 1
            return ""
        return arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""

    def logprobs(self, choice: Mapping[str, Any]) -> tuple[Mapping[str, float], ...] | None:
        """The log-probabilities of an answer, None if there are none that can be read."""
        try:
            return parse_logprobs(choice.get("logprobs"))
        except (AttributeError, LookupError, TypeError, ValueError):
            self.dropped["logprobs"] += 1
            return None

    # -------------------------------------------------------------------------------------- the batch endpoint

    async def submit(self, requests: Sequence[ChatRequest]) -> str:
        """See `Judge.submit`. A file of requests, then a batch that names it."""
        payloads = [self.sent(request) for request in requests]
        endpoints = {f"/v1{path}" for path, _ in payloads}
        if len(endpoints) != 1 or len(payloads) > MOST_IN_A_BATCH:
            raise JudgeError(
                f"a batch for {self.identity} takes 1 to {MOST_IN_A_BATCH} requests, all of one kind", charged=False
            )
        [endpoint] = endpoints
        lines = [
            json.dumps({"custom_id": name, "method": "POST", "url": endpoint, "body": body})
            for name, (_, body) in zip(self.names_in_batch(requests), payloads, strict=True)
        ]
        with self.explaining(free=True):
            file = await self._client.files.create(
                file=("afarm.jsonl", "\n".join(lines).encode(), "application/jsonl"), purpose="batch"
            )
        with self.explaining():
            # Not sent again after a broken connection: the first may have arrived, and would be paid for as well.
            batch = await self._client.with_options(max_retries=0).batches.create(
                input_file_id=file.id, endpoint=endpoint, completion_window="24h"
            )
        return make_batch_id(batch.id, len(requests))

    async def collect(self, batch_id: str) -> Sequence[Completion | None] | None:
        """See `Judge.collect`. What a batch answered before it expired or was cancelled is taken too."""
        name, count = parse_batch_id(batch_id)
        with self.explaining(missing=f"the batch {name} is not known to {self.vendor} (any more)"):
            batch = await self._client.batches.retrieve(name)
            if batch.status == "failed":
                reasons = [str(error.message) for error in (batch.errors and batch.errors.data) or ()]
                raise JudgeError(
                    f"{self.identity}: the batch {name} was refused: {redacted('; '.join(reasons), self._key)}"
                )
            if batch.status not in ("completed", "expired", "cancelled"):
                return None
            files = [f for f in (batch.output_file_id, batch.error_file_id) if f]
            lines = [line for f in files for line in (await self._client.files.content(f)).text.splitlines()]
        return self.in_order(count, [(row["custom_id"], row.get("response") or {}) for row in map(json.loads, lines)])

    def answer_in_batch(self, result: Mapping[str, Any]) -> Mapping[str, Any] | None:
        body = result.get("body")
        return body if result.get("status_code") == 200 and self.holds_answer(body) else None

    # --------------------------------------------------------------------------------------------------- its tokens

    @property
    def encoding_name(self) -> str:
        return "cl100k_base" if CL100K_MODELS.match(self._base_model) else "o200k_base"

    def count_tokens(self, request: ChatRequest) -> int:
        """Exact for the texts, and about four a message for the format."""
        return sum(token_count(self.encoding_name, text) for text in texts(request)) + 4 * len(request.messages)

    def most_input_tokens(self, request: ChatRequest) -> int:
        return sum(token_count(self.encoding_name, text) for text in texts(request)) + margin(request)


class EndpointJudge(OpenAIJudge):
    """A judge behind another endpoint that speaks OpenAI's format. What its tokenizer is, is not known."""

    limit_names = ("max_tokens", "max_completion_tokens")
    beyond = frozenset({"logit_bias", "batch"})

    def client(self, **options: Any) -> Any:
        """A client that keeps to itself what the environment says about OpenAI's own API."""
        client = self.sdk.AsyncOpenAI(**options)
        client.organization = client.project = client.admin_api_key = None
        return client

    count_tokens = VendorJudge.count_tokens
    most_input_tokens = VendorJudge.most_input_tokens


class CompatibleJudge(EndpointJudge):
    """`openai-compatible:MODEL@URL`: a server of one's own. Takes no key where the server asks for none.

    Such servers differ: what is declared is what all of them have, and the settings say what more one can.
    """

    section, vendor = "openai-compatible", "the server"
    priced_as = ""  # by nobody, though a model may be named as a vendor's
    needs_key = False

    def __init__(self, spec: str, config: VendorConfig, context: BuildContext):
        model, _, url = spec.rpartition("@")
        parts = urlsplit(url)
        if not model or parts.scheme not in ("http", "https") or "//" in model:
            raise JudgeError(
                "--judge openai-compatible:… is not of the form MODEL@URL, such as "
                "openai-compatible:llama3:8b@http://localhost:11434/v1 (a key goes into the environment variable "
                f"{config.key_variable}, never into the URL)"
            )
        if parts.query or parts.fragment:
            raise JudgeError("the URL of --judge openai-compatible:MODEL@URL must end with its path, such as …/v1")
        self.vendor_url = url.rstrip("/")
        super().__init__(model, config, context)
        self.spec = f"{model}@{self.vendor_url}"

    def capabilities_of_model(self) -> Capabilities:
        return Capabilities(chat=True, temperature=True)

    @property
    def thinks(self) -> bool:
        return bool(self.config.effort) and self.config.effort != "none"


FINISH = {"tool_calls": "stop", "function_call": "stop"}


def parse_logprobs(given: Any) -> tuple[Mapping[str, float], ...] | None:
    """Parse log-probabilities by position, in the form of the chat or the older completion endpoint.

    Raises one of Python's errors for any other form.
    """
    if not given:
        return None
    if "content" in given:
        likely = [[position, *(position.get("top_logprobs") or ())] for position in given["content"] or ()]
        positions = [[(token["token"], token["logprob"]) for token in tokens] for tokens in likely]
    else:
        positions = [list((position or {}).items()) for position in given.get("top_logprobs") or ()]
    return tuple({str(token): float(value) for token, value in tokens} for tokens in positions)


# --------------------------------------------------------------------------------------------------------- tokenizer


@cache
def _encoding(name: str) -> Any:
    import bpe_openai  # type: ignore[import-untyped]  # its tables are inside the package; reading them takes a tenth of a second

    return bpe_openai.get_encoding(name)


@lru_cache(maxsize=1024)  # requests share their examples, and each is counted for its price and for its bound
def token_count(encoding: str, text: str) -> int:
    """Exact, and an upper bound (UTF-8 bytes) for a text that the tokenizer finds too long."""
    try:
        return len(_encoding(encoding).encode_ordinary(text))
    except Exception:  # its errors share no class of their own
        return len(text.encode("utf-8", "replace"))


@lru_cache(maxsize=256)
def logit_bias(encoding: str, favour: Sequence[str], avoid: Sequence[str]) -> dict[str, int]:
    """Token ids and their bias: against strings that are one token, for every token of the labels."""
    encode = _encoding(encoding).encode_ordinary
    against = [tokens[0] for tokens in map(encode, avoid) if len(tokens) == 1]
    favoured = [token for label in favour for token in encode(label)]
    return {str(token): AVOID for token in against} | {str(token): FAVOUR for token in favoured}
