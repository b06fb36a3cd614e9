"""The model of the local judge: prompts, answers in words, and probabilities of the two labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from afarm import ChatRequest, Completion, Decoding, JudgeError, ModelBackend, ModelError, seeding
from afarm.backend import TorchSampler, hidden_states, join_and_pad, pad, project, render_chat
from afarm_plugins.judges.payloads import TOO_LONG

ANSWER_LABELS = ("Output (a)", "Output (b)")
FAVOURED_BIAS = 7.0
"""Added to the logits of favoured tokens (AlpacaFarm, App. C)."""
PENALISED_BIAS = -100.0
"""Added to those of hedges that are single tokens."""

POSITIONS = 256
"""Positions of an answer whose logits exist at once."""


class LocalModel:
    """A causal LM with its tokenizer. Raises `ModelError` if it cannot be loaded."""

    def __init__(self, spec: str, backend: ModelBackend):
        # A judge's prompts are the annotator's: the template by which a policy is prompted is not used.
        self.policy = backend.load_policy(spec, prompt_template="alpaca")
        self.spec = spec
        self.backend = backend
        self.model = self.policy.model.eval()
        self.tokenizer = self.policy.tokenizer
        control = [re.escape(t) for t in self.tokenizer.get_added_vocab() if len(t) > 1 and not t.isspace()]
        self._control = re.compile("|".join(sorted(control, key=len, reverse=True)) or r"(?!)")

    def write(self, requests: Sequence[ChatRequest]) -> list[Completion]:
        """Answer each of `requests`, which share their sampling parameters, in words."""
        first = requests[0]
        prompts = [self.prompt_ids(request) for request in requests]
        answers = {
            i: Completion("", len(ids), price=0.0, finish_reason=TOO_LONG)
            for i, ids in enumerate(prompts)
            if len(ids) + first.max_tokens > self.context_length
        }
        fitting = [i for i in range(len(requests)) if i not in answers]
        bias = self.logit_bias(first)
        sampler = TorchSampler(self.model, self.policy.eos_ids, self.policy.pad_id, logit_bias=bias)
        decoding = Decoding(first.temperature, first.top_p, first.max_tokens, 1, len(requests))
        keys = []  # of draws: by who asks, the pairs, the prompt and the number of the draw
        for i in fitting:
            asked = requests[i]
            about = [[c.pair_id, c.order, c.sample_index] for c in asked.comparisons]
            keys.append(seeding.digest(asked.seed, asked.annotator, asked.sample_index, about, list(prompts[i])))
        with self.backend.autocast():
            generations = list(sampler.generate([prompts[i] for i in fitting], keys, decoding, seed=0))
            for i, generation in zip(fitting, generations, strict=True):
                text = self.tokenizer.decode(generation.token_ids, skip_special_tokens=True)
                counts = len(prompts[i]), len(generation.token_ids)
                answers[i] = Completion(text, *counts, price=0.0, finish_reason=generation.finish_reason)
            if first.top_logprobs and fitting:
                # The token that ends an answer is none of its text.
                tokens = [g.token_ids[:-1] if g.finish_reason == "stop" else g.token_ids for g in generations]
                likeliest = self._likeliest([prompts[i] for i in fitting], tokens, first.top_logprobs)
                for i, logprobs in zip(fitting, likeliest, strict=True):
                    answers[i] = replace(answers[i], logprobs=logprobs)
        return [answers[i] for i in range(len(requests))]

    def _likeliest(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], count: int
    ) -> list[tuple[Mapping[str, float], ...]]:
        """Find the `count` likeliest tokens per position, at temperature 1, without logit bias."""
        batch = join_and_pad(prompts, answers, self.policy.pad_id, self.model.device)
        by_answer = []
        with torch.inference_mode():
            hidden = hidden_states(self.model, batch.input_ids, batch.attention_mask)
            for row, prompt, answer in zip(hidden, prompts, answers, strict=True):
                positions: list[Mapping[str, float]] = []
                for hidden_chunk in row[len(prompt) - 1 : len(prompt) + len(answer) - 1].split(POSITIONS):
                    logprobs = project(self.model, hidden_chunk).log_softmax(-1)
                    best = logprobs.topk(min(count, logprobs.shape[-1]))
                    for values, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                        texts = self.tokenizer.batch_decode([[token] for token in ids])
                        positions.append(dict(reversed(list(zip(texts, values, strict=True)))))
                by_answer.append(tuple(positions))
        return by_answer

    def weigh(self, requests: Sequence[ChatRequest]) -> list[Completion]:
        """Compute the labels' log-probabilities, over the two, at the first token in which they differ."""
        rows = [self.label_ids(request) for request in requests]
        fitting = [i for i, (context, _) in enumerate(rows) if len(context) < self.context_length]
        answers = {
            i: Completion("", len(context), price=0.0, finish_reason=TOO_LONG)
            for i, (context, _) in enumerate(rows)
            if i not in fitting
        }
        if fitting:
            with self.backend.autocast(), torch.inference_mode():
                device = self.model.device
                ids, mask = pad([rows[i][0] for i in fitting], self.policy.pad_id, "left", device)
                logits = project(self.model, hidden_states(self.model, ids, mask)[:, -1])
                labels = torch.tensor([rows[i][1] for i in fitting], device=device)
                both = logits.gather(-1, labels).double().log_softmax(-1).tolist()
            for i, (first, second) in zip(fitting, both, strict=True):
                likelier = ANSWER_LABELS[0] if first >= second else ANSWER_LABELS[1]
                weights = dict(zip(ANSWER_LABELS, (first, second), strict=True))
                answers[i] = Completion(
                    likelier, len(rows[i][0]), 1, price=0.0, finish_reason="probabilities", logprobs=(weights,)
                )
        return [answers[i] for i in range(len(requests))]

    # ------------------------------------------------------------------------------------------------- what it reads

    @property
    def context_length(self) -> int:
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 2**31

    def prompt_ids(self, request: ChatRequest) -> list[int]:
        """Encode the request up to the start of the answer."""
        return self._encode(self._text(request), request)

    def label_ids(self, request: ChatRequest) -> tuple[list[int], tuple[int, int]]:
        """Encode the prompt with the tokens that both labels begin with, and the token in which each goes on."""
        text = self._text(request)
        text += "" if request.messages or text[-1:].isspace() else " "  # a text goes on after a space, a turn starts
        ids_1, ids_2 = (self._encode(text + label, request) for label in ANSWER_LABELS)
        common = next(i for i, (a, b) in enumerate(zip(ids_1, ids_2, strict=False)) if a != b)
        return ids_1[:common], (ids_1[common], ids_2[common])

    def logit_bias(self, request: ChatRequest) -> dict[int, float]:
        """Bias all tokens of favoured texts and penalised single-token texts, also behind a space."""
        bias: dict[int, float] = {}
        for texts, value in ((request.favoured_tokens, FAVOURED_BIAS), (request.penalised_tokens, PENALISED_BIAS)):
            for text in (start + text for text in texts for start in ("", " ")):
                ids = self.tokenizer(text, add_special_tokens=False).input_ids
                if value == FAVOURED_BIAS or len(ids) == 1:
                    bias |= dict.fromkeys(ids, value)
        return bias

    def _encode(self, text: str, request: ChatRequest) -> list[int]:
        """Encode a text; chat templates have written special tokens already, plain text gets the tokenizer's."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=not request.messages).input_ids
        closed = not request.messages and len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id
        return ids[:-1] if closed else ids  # some tokenizers close every text; a prompt is still open

    def _text(self, request: ChatRequest) -> str:
        if not request.messages:
            return self._harmless(request.prompt)
        if not self.tokenizer.chat_template:
            raise JudgeError(
                f"local:{self.spec} has no chat template, so it cannot be asked as a chat, as "
                f"{request.annotator or 'this annotator'} does: use an instruction-tuned model, or an annotator with "
                "completion prompts (davinci003_1 … davinci003_4)"
            )
        turns = [{"role": m.role, "content": self._harmless(m.content)} for m in request.messages]
        try:
            # Models that may think first are to answer at once: their thoughts would fill the few tokens of an answer.
            switches = {"enable_thinking": False, "thinking": False}
            return render_chat(self.tokenizer, turns, f"local:{self.spec}", **switches)[0]
        except ModelError as error:
            raise JudgeError(str(error)) from error

    def _harmless(self, text: str) -> str:
        """Break up control tokens in `text`: outputs that hold `<|im_end|>` must not end a turn."""
        valid = text.encode("utf-8", "replace").decode("utf-8")  # halves of characters are no text to a tokenizer
        return self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", valid)
