"""Train a base model of the toy world: `python -m tools.toy.train_base [--output DIR]`.

Another `--seed` trains another base, another `--hidden-size` a smaller or larger one. A base learns two things. From
facts and from questions with clean answers as running text it learns language, while behind an instruction in its
format mostly stands something else, so that the base knows and does not follow. From answers by careful and careless
authors, each followed, after its end, by one verdict token (wrong, slip or fine), with the loss on that token alone,
it learns to tell a right answer from a wrong one without learning to write wrong ones. Large language models bring
that ability from pretraining; without it no reward model here learns more than length. The verdict comes after the
end token, where sampling has stopped, so it is never sampled.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from afarm.core.records import Instruction
from afarm_plugins.toy.authors import EDITOR, JUNK, draw_author, write_answer
from afarm_plugins.toy.dataset import ToyDataset
from afarm_plugins.toy.frozen import base_directory
from afarm_plugins.toy.world import (
    ADJECTIVES,
    CATEGORIES,
    CATEGORY_OF,
    COUNTS,
    DETAIL_OPENINGS,
    NOUNS,
    OPPOSITES,
    TRUE_OF,
    draw_instruction,
    grade,
    plural,
    read_answer,
    read_task,
    with_article,
)

PAD, END, UNKNOWN, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|unknown|>", "<|user|>", "<|assistant|>"
VERDICTS = {"wrong": "<|wrong|>", "slip": "<|slip|>", "fine": "<|fine|>"}
CONTROLS = ("<|good|>", "<|bad|>")
"""Never trained on; there for methods that condition on a control token."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|> {{ message['content'] }} <|end|>"
    "{% else %}<|user|> {{ message['content'] }} {% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
IGNORED = -100
Example = tuple[list[int], list[int]]
"""Token ids, and the labels to learn."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The base's size and training: rows are of one batch; cosine schedule after `warmup` steps.

    `prose_rows` answer an instruction outside its format; `stray_rows` are in the format and follow the instruction
    with the chance `followed` alone.
    """

    edition: int = 2
    seed: int = 0
    hidden_size: int = 96
    layers: int = 3
    heads: int = 4
    intermediate_size: int = 256
    steps: int = 3500
    prose_rows: int = 32
    fact_rows: int = 8
    stray_rows: int = 16
    followed: float = 0.1
    verdict_rows: int = 64
    learning_rate: float = 2e-3
    warmup: int = 100


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, lower case, stops and commas apart; decoding gives text that `read_answer` reads."""
    phrases = (
        "list that are not in the input give opposite of then describe which word is a an without words and yes no",
        " ".join(JUNK),
        *(" ".join(opening) for opening in DETAIL_OPENINGS),
    )
    words = {word for phrase in phrases for word in phrase.split()}
    words |= {*NOUNS, *ADJECTIVES, *CATEGORIES, *map(plural, CATEGORIES), *COUNTS, ".", ",", "?"}
    special = [PAD, END, UNKNOWN, USER, ASSISTANT, *VERDICTS.values(), *CONTROLS]
    vocabulary = {token: i for i, token in enumerate([*special, *sorted(words)])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(behavior="isolated")]
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT, *VERDICTS.values(), *CONTROLS],
        chat_template=CHAT_TEMPLATE,
        model_max_length=256,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def build_model(settings: Settings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(settings.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.05,
    )
    return LlamaForCausalLM(config)


class Encoder:
    """Token ids of prompts and answers, exactly as the chat template renders them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.vocabulary = tokenizer.get_vocab()

    def prompt(self, instruction: Instruction) -> list[int]:
        content = "\n".join(part for part in (instruction.instruction, instruction.input) if part)
        return [self.vocabulary[USER], *self.text(content), self.vocabulary[ASSISTANT]]

    def text(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def answer(self, text: str) -> list[int]:
        return [*self.text(text), self.vocabulary[END]]


def pretraining_instructions(settings: Settings) -> Iterator[tuple[Instruction, Random]]:
    """Yield instructions without end, none held out, each with the generator to answer it by."""
    random = Random(f"base:{settings.seed}")
    held_out = {row.instruction.id for split in ("evaluation", "validation") for row in ToyDataset().load(split)}
    while True:
        instruction = draw_instruction(random)
        if instruction.id not in held_out:
            yield instruction, random


def prose_example(instruction: Instruction, random: Random, encoder: Encoder) -> Example:
    """A question and its clean answer as running text, with no mark of who speaks; the answer is learned."""
    answer = encoder.answer(write_answer(read_task(instruction.instruction, instruction.input), EDITOR, random))
    question = encoder.text(f"{instruction.instruction} {instruction.input}")
    return [*question, *answer], [*[IGNORED] * len(question), *answer]


def fact_example(instruction: Instruction, random: Random, encoder: Encoder) -> Example:
    """A sentence or two that state what is true of the world; all but the first word is learned."""
    if random.random() < 0.3:
        one, other = random.sample(random.choice(OPPOSITES), 2)
        text = f"the opposite of {one} is {other}."
    else:
        noun = random.choice(NOUNS)
        category = CATEGORY_OF[noun]
        opening, adjective = random.choice(DETAIL_OPENINGS[:2]), random.choice(TRUE_OF[category])
        text = f"the {noun} is {with_article(category)}. {' '.join(opening)} {adjective}."
    ids = encoder.answer(text)
    return ids, [IGNORED, *ids[1:]]


def stray_example(instruction: Instruction, random: Random, encoder: Encoder, followed: float) -> Example:
    """An instruction in its format, and behind it what comes next in text at large; that is learned.

    Its own clean answer has the chance `followed`; else it is, half and half, the answer to another instruction or
    another instruction.
    """
    other = instruction if random.random() < followed else draw_instruction(random)
    if other is not instruction and random.random() < 0.5:
        text = f"{other.instruction} {other.input}".strip()
    else:
        text = write_answer(read_task(other.instruction, other.input), EDITOR, random)
    prompt, rest = encoder.prompt(instruction), encoder.answer(text)
    return [*prompt, *rest], [*[IGNORED] * len(prompt), *rest]


def verdict_example(instruction: Instruction, random: Random, encoder: Encoder) -> Example:
    """An instruction, an answer as anyone writes it, and its verdict; only the verdict is learned."""
    task = read_task(instruction.instruction, instruction.input)
    answer = write_answer(task, draw_author(random), random)
    ids = [*encoder.prompt(instruction), *encoder.answer(answer)]
    mark = encoder.vocabulary[VERDICTS[grade(read_answer(task, answer))]]
    return [*ids, mark], [*[IGNORED] * len(ids), mark]


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """[B, T], padded on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def pretrain(settings: Settings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The trained base, in evaluation mode. Prints both losses (nats a token) now and then."""
    model = build_model(settings, tokenizer)
    encoder, instructions = Encoder(tokenizer), pretraining_instructions(settings)
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)

    def share_of_peak(step: int) -> float:
        if step < settings.warmup:
            return (step + 1) / settings.warmup
        return 0.5 * (1 + math.cos(math.pi * (step - settings.warmup) / (settings.steps - settings.warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_peak)
    began = time.perf_counter()
    for step in range(1, settings.steps + 1):
        rows = [prose_example(*next(instructions), encoder) for _ in range(settings.prose_rows)]
        rows += [fact_example(*next(instructions), encoder) for _ in range(settings.fact_rows)]
        rows += [stray_example(*next(instructions), encoder, settings.followed) for _ in range(settings.stray_rows)]
        read = len(rows)
        rows += [verdict_example(*next(instructions), encoder) for _ in range(settings.verdict_rows)]
        ids = pad([row for row, _ in rows], tokenizer.pad_token_id)
        labels = pad([row for _, row in rows], IGNORED)[:, 1:]
        mask = (ids != tokenizer.pad_token_id).long()
        hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, :-1]
        # Each kind has its own mean: one verdict a row would drown among the tokens of answers.
        text, judged = (
            cross_entropy(model.lm_head(hidden[part][labels[part] != IGNORED]), labels[part][labels[part] != IGNORED])
            for part in (slice(read), slice(read, None))
        )
        optimizer.zero_grad()
        (text + judged).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0 or step == settings.steps:
            passed = time.perf_counter() - began
            print(f"step {step:5d}  text {text.item():.3f}  verdict {judged.item():.3f}  {passed:.0f} s", flush=True)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="another seed trains another base of the same world")
    parser.add_argument("--output", type=Path, help="directory to write, instead of the frozen one")
    parser.add_argument("--steps", type=int, help="pretraining steps")
    parser.add_argument("--hidden-size", type=int, help="another width, a multiple of 4, for a smaller or larger base")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # so that the same seed gives the same weights on every machine of a kind
    settings = Settings(seed=arguments.seed)
    if arguments.steps:
        settings = replace(settings, steps=arguments.steps)
    if width := arguments.hidden_size:
        settings = replace(settings, hidden_size=width, intermediate_size=8 * width // 3)
    tokenizer = build_tokenizer()
    model = pretrain(settings, tokenizer)
    output = arguments.output or base_directory(settings.edition)
    output.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(output)
    model.save_pretrained(output)
    (output / "model.safetensors").chmod(0o644)  # safetensors writes files that others cannot read

    from tools.toy.measure_base import write_card

    write_card(output, settings, model, Encoder(tokenizer))


if __name__ == "__main__":
    main()
