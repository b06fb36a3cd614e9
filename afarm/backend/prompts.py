"""Prompt templates: from instructions and responses to token ids."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from afarm.backend.chat_templates import render_chat
from afarm.core.errors import ModelError
from afarm.core.records import Instruction, JudgedPair, Row
from afarm.storage.conversations import chat_messages
from afarm.storage.prompt_templates import NAMED, TemplateSource, render_template

Rows = list[tuple[list[int], list[int]]]
"""Prompts and their responses, as token ids."""

_OPENING = "The following is an instruction for a task"
_WITH_INPUT = _OPENING + ", together with an input to work on"
_CLOSING = ". Write a response that carries it out well.\n\n"


class PromptTemplate:
    """A prompt template and its tokenizer: it renders and encodes prompts and responses.

    `source` is "chat" or "auto" (the tokenizer's chat template), "alpaca" (headed sections), or the texts of a file,
    whose `name` is "file". `control`, with tokens `control_ids`, is a text in front of every prompt, but after a
    beginning-of-sequence token: one that asks for good outputs, say. Raises `ModelError` without a chat template or an
    end-of-sequence token.
    """

    def __init__(
        self,
        source: TemplateSource,
        tokenizer: PreTrainedTokenizerBase,
        model: str = "the model",
        control: str = "",
    ):
        if isinstance(source, str) and source not in NAMED:
            raise ModelError(f"prompt_template is {source!r}; it must be {', '.join(NAMED)} or the texts of a file")
        if source in ("auto", "chat") and not tokenizer.chat_template:
            raise ModelError(
                f"{model} has no chat template; "
                "use an instruction-tuned model, plain headed sections with --set prompt_template=alpaca, or a file"
            )
        if tokenizer.eos_token_id is None:
            raise ModelError(f"the tokenizer of {model} has no end-of-sequence token: set eos_token in its files")
        self.source: TemplateSource = "chat" if source == "auto" else source
        self.name = self.source if isinstance(self.source, str) else "file"
        self.tokenizer = tokenizer
        self.model = model
        self.control = control
        self.control_ids: list[int] = tokenizer(control, add_special_tokens=False).input_ids if control else []

    def with_control(self, control: str) -> PromptTemplate:
        """Copy the template with another `control` in front of its prompts."""
        return PromptTemplate(self.source, self.tokenizer, self.model, control)

    def controlled_chat_template(self) -> str:
        """Return the tokenizer's chat template with the control in front, after a beginning-of-sequence token."""
        bos = self.tokenizer.bos_token or ""
        prompt = self.render(Instruction("x"))
        at = len(bos) if bos and prompt.startswith(bos) else 0
        whole = "{% set whole %}" + self.tokenizer.chat_template + "{% endset %}"
        return f"{whole}{{{{ whole[:{at}] }}}}{{{{ {self.control!r} }}}}{{{{ whole[{at}:] }}}}"

    def render(self, instruction: Instruction) -> str:
        """Render the prompt as text, up to the response. Raises `ConfigError` or `ModelError` if that fails."""
        if not isinstance(self.source, str):
            return render_template(self.source, instruction)
        if self.name == "chat":
            return render_chat(self.tokenizer, chat_messages(instruction), self.model)[0]
        turns_before = "".join(f"### {m.role.capitalize()}:\n{m.content}\n\n" for m in instruction.messages)
        opening = (_WITH_INPUT if instruction.input else _OPENING) + _CLOSING
        input_section = f"### Input:\n{instruction.input}\n\n" if instruction.input else ""
        return f"{opening}{turns_before}### Instruction:\n{instruction.instruction}\n\n{input_section}### Response:\n"

    def turns(self, instruction: Instruction) -> Sequence[Row]:
        """Return the instruction as chat turns that the chat template takes."""
        return render_chat(self.tokenizer, chat_messages(instruction), self.model)[1]

    def encode_prompts(self, instructions: Sequence[Instruction]) -> list[list[int]]:
        """Encode each prompt as token ids; plain text gets the tokenizer's special tokens if it has none."""
        if not instructions:
            return []
        texts = [without_lone_surrogates(self.render(i)) for i in instructions]
        bos = self.tokenizer.bos_token
        is_plain = self.name != "chat" and not (bos and all(text.startswith(bos) for text in texts))
        ids = self.tokenizer(texts, add_special_tokens=is_plain, return_attention_mask=False).input_ids
        if is_plain:  # some tokenizers close every text, and a prompt goes on
            eos = self.tokenizer.eos_token_id
            ids = [row[:-1] if len(row) > 1 and row[-1] == eos else row for row in ids]
        if not self.control:
            return ids
        starts = [int(bool(row) and row[0] == self.tokenizer.bos_token_id) for row in ids]
        return [row[:at] + self.control_ids + row[at:] for row, at in zip(ids, starts, strict=True)]

    def shorten(self, prompt: list[int], limit: int) -> list[int]:
        """Cut the beginning of `prompt` to `limit` tokens; its control stays if one more token fits."""
        if len(prompt) <= limit:
            return prompt
        room = limit - len(self.control_ids)
        return self.control_ids + prompt[-room:] if room > 0 else prompt[-limit:]

    def encode_responses(self, texts: Sequence[str], ended: Sequence[bool] | bool = True) -> list[list[int]]:
        """Encode responses as token ids, each closed by the end-of-sequence token if it `ended`."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(
            [without_lone_surrogates(t) for t in texts], add_special_tokens=False, return_attention_mask=False
        ).input_ids
        closed, end = [ended] * len(ids) if isinstance(ended, bool) else ended, self.tokenizer.eos_token_id
        return [[*row, end] if is_closed else row for row, is_closed in zip(ids, closed, strict=True)]

    def encode(
        self,
        instructions: Sequence[Instruction],
        responses: Sequence[str],
        max_length: int,
        ended: Sequence[bool] | bool = True,
    ) -> tuple[Rows, int]:
        """Encode (prompt, response) of at most `max_length` tokens together; also count how many were cut.

        The prompt's beginning is cut first (one token and the control stay), then the response's end. A response that
        had not `ended` is not closed, so no model learns to stop at a limit.
        """
        encoded = self.encode_responses(responses, ended)
        return self._fit(self.encode_prompts(instructions), encoded, list(map(len, encoded)), max_length)

    def encode_pairs(self, judged: Sequence[JudgedPair], max_length: int) -> tuple[Rows, Rows, int]:
        """Encode both outputs of pairs: (rows of the first outputs, rows of the second, how many were cut).

        Like `encode`, but a pair's prompt is cut once, to make room for the longer output.
        """
        prompts = self.encode_prompts([j.pair.instruction for j in judged])
        first = self.encode_responses([j.pair.output_1 for j in judged], [j.pair.ended[0] for j in judged])
        second = self.encode_responses([j.pair.output_2 for j in judged], [j.pair.ended[1] for j in judged])
        longest = [max(len(one), len(two)) for one, two in zip(first, second, strict=True)]
        rows_1, cut_1 = self._fit(prompts, first, longest, max_length)
        rows_2, cut_2 = self._fit(prompts, second, longest, max_length)
        return rows_1, rows_2, cut_1 + cut_2

    def _fit(
        self, prompts: list[list[int]], responses: list[list[int]], reserved: list[int], max_length: int
    ) -> tuple[Rows, int]:
        """Cut prompts to leave room for the `reserved` tokens, then responses; count the cut prompts."""
        rows: Rows = []
        cut = 0
        for prompt, response, length in zip(prompts, responses, reserved, strict=True):
            room = max_length - length
            if len(prompt) > room:
                cut += 1
                prompt = self.shorten(prompt, max(1, room, min(1 + len(self.control_ids), max_length - 1)))
            rows.append((prompt, response[: max_length - len(prompt)]))
        return rows, cut


def without_lone_surrogates(text: str) -> str:
    """Replace lone surrogates (halves of characters) in `text`, which tokenizers reject."""
    return text.encode("utf-8", "replace").decode("utf-8")
