"""Measure the base model on instructions it has not seen, and write the model card.

The decisive figure is how well the base tells right answers from wrong ones: a reward model cannot learn from noisy
preferences what the base cannot see. The other is the headroom: how far SFT stays behind the careful demonstrators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch

from afarm.core.records import Instruction, Output
from afarm_plugins.toy.authors import CAREFUL, draw_author, write_answer
from afarm_plugins.toy.dataset import ToyDataset
from afarm_plugins.toy.fingerprint import fingerprint
from afarm_plugins.toy.world import CORE_RANGE, FAMILIES, gold, grade, read_answer, read_task
from tools.toy.train_base import IGNORED, VERDICTS, Encoder, Settings, pad

SFT_EPOCHS, SFT_BATCH, SFT_LEARNING_RATE = 2, 64, 3e-4
LONGEST_ANSWER = 48
WRONG, SLIP, FINE = range(3)


def auc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """The area under the ROC curve: P(a positive scores above a negative), ties counted half."""
    values, places = torch.tensor([*positive, *negative]).unique(return_inverse=True)
    counts = torch.bincount(places, minlength=len(values)).double()
    ranks = counts.cumsum(0) - (counts - 1) / 2  # tied values share the mean of their ranks
    n = len(positive)
    return float((ranks[places[:n]].sum() - n * (n + 1) / 2) / (n * len(negative)))


@torch.inference_mode()
def verdict_ability(model: Any, encoder: Encoder, instructions: Sequence[Instruction]) -> dict[str, float]:
    """AUC of the base's verdict on authors' answers: of wrong cores, in all and by family, and of slips."""
    chance = Random("verdict ability")
    families, truths, rows = [], [], []
    for instruction in instructions:
        task = read_task(instruction.instruction, instruction.input)
        answer = write_answer(task, draw_author(chance), chance)
        families.append(task.family)
        truths.append(list(VERDICTS).index(grade(read_answer(task, answer))))
        rows.append([*encoder.prompt(instruction), *encoder.answer(answer)])
    marks = [encoder.vocabulary[token] for token in VERDICTS.values()]
    shares: list[list[float]] = []
    for start in range(0, len(rows), 256):
        ids = pad(rows[start : start + 256], encoder.tokenizer.pad_token_id)
        mask = (ids != encoder.tokenizer.pad_token_id).long()
        logits = model(input_ids=ids, attention_mask=mask).logits
        shares += logits[torch.arange(len(ids)), mask.sum(1) - 1][:, marks].softmax(-1).tolist()
    judged = list(zip(families, truths, shares, strict=True))

    def wrong_core(chosen: Sequence[str]) -> float:
        of = [(true, share[WRONG]) for family, true, share in judged if family in chosen]
        return auc([s for true, s in of if true == WRONG], [s for true, s in of if true != WRONG])

    right = [(true, share[SLIP] / (share[SLIP] + share[FINE])) for _, true, share in judged if true != WRONG]
    return {
        "wrong core": wrong_core(FAMILIES),
        **{f"wrong core, family {family}": wrong_core([family]) for family in FAMILIES},
        "slip in an answer with a right core": auc(
            [s for true, s in right if true == SLIP], [s for true, s in right if true == FINE]
        ),
    }


def quick_sft(model: Any, encoder: Encoder, demonstrations: Sequence[Output]) -> Any:
    """A plain fine-tuned copy, the loss on answers only: a yardstick for the card, not the method `sft`."""
    model = deepcopy(model).train()
    rows = []
    for row in demonstrations:
        prompt, answer = encoder.prompt(row.instruction), encoder.answer(row.output)
        rows.append(([*prompt, *answer], [*[IGNORED] * len(prompt), *answer]))
    chance = Random("quick sft")
    epochs = [chance.sample(rows, len(rows)) for _ in range(SFT_EPOCHS)]
    batches = [epoch[i : i + SFT_BATCH] for epoch in epochs for i in range(0, len(epoch), SFT_BATCH)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=SFT_LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(batches))
    for batch in batches:
        ids = pad([ids for ids, _ in batch], encoder.tokenizer.pad_token_id)
        mask = (ids != encoder.tokenizer.pad_token_id).long()
        loss = model(input_ids=ids, attention_mask=mask, labels=pad([labels for _, labels in batch], IGNORED)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.inference_mode()
def sample(model: Any, encoder: Encoder, instructions: Sequence[Instruction], temperature: float) -> list[str]:
    """One answer an instruction by plain `generate`."""
    torch.manual_seed(0)
    tokenizer = encoder.tokenizer
    answers: list[str] = []
    for start in range(0, len(instructions), 128):
        rows = [encoder.prompt(instruction) for instruction in instructions[start : start + 128]]
        longest = max(map(len, rows))
        ids = torch.tensor([[*[tokenizer.pad_token_id] * (longest - len(row)), *row] for row in rows])
        mask = (ids != tokenizer.pad_token_id).long()
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=temperature,
            top_k=0,
            max_new_tokens=LONGEST_ANSWER,
        )
        answers += tokenizer.batch_decode(out[:, longest:], skip_special_tokens=True)
    return answers


def headroom(model: Any, encoder: Encoder) -> dict[str, tuple[float, float]]:
    """(mean gold reward, share of right cores) on the validation split of authors, base and SFT."""
    instructions = [row.instruction for row in ToyDataset().load("validation")]
    tasks = [read_task(i.instruction, i.input) for i in instructions]
    chance = Random("headroom")
    sft = quick_sft(model, encoder, ToyDataset().load("sft"))
    answers = {
        "careful demonstrators": [write_answer(task, CAREFUL, chance) for task in tasks],
        "all demonstrators": [write_answer(task, draw_author(chance), chance) for task in tasks],
        "base, temperature 1": sample(model, encoder, instructions, 1.0),
        "SFT, temperature 1": sample(sft, encoder, instructions, 1.0),
        "SFT, temperature 0.7": sample(sft, encoder, instructions, 0.7),
    }
    return {
        name: (
            fmean(gold(i, answer) for i, answer in zip(instructions, texts, strict=True)),
            fmean(read_answer(t, a).core == CORE_RANGE[1] for t, a in zip(tasks, texts, strict=True)),
        )
        for name, texts in answers.items()
    }


def write_card(directory: Path, settings: Settings, model: Any, encoder: Encoder) -> None:
    """Measure the base and write MODEL_CARD.md beside it."""
    held_out = [row.instruction for split in ("evaluation", "validation") for row in ToyDataset().load(split)]
    weights = directory / "model.safetensors"
    abilities = "\n".join(
        f"| {name} | {value:.3f} |" for name, value in verdict_ability(model, encoder, held_out).items()
    )
    gaps = "\n".join(f"| {name} | {g:.2f} | {right:.0%} |" for name, (g, right) in headroom(model, encoder).items())
    listed = "\n".join(f"- {name}: {value}" for name, value in asdict(settings).items())
    (directory / "MODEL_CARD.md").write_text(
        CARD.format(
            parameters=sum(p.numel() for p in model.parameters()),
            size=weights.stat().st_size / 1e6,
            sha256=hashlib.sha256(weights.read_bytes()).hexdigest(),
            world=fingerprint(),
            settings=listed,
            abilities=abilities,
            headroom=gaps,
            n=len(held_out),
            torch=torch.__version__,
        ),
        encoding="utf-8",
    )


CARD = """# The toy world's base model

A Llama of {parameters:,} parameters (float32, {size:.2f} MB) that speaks the language of afarm's toy world. It is an
instrument for trying methods that learn from feedback; it knows nothing about the world outside. Licence: Apache-2.0,
like afarm.

- World: `{world}` (sha256 of the frozen world, `afarm_plugins/toy/fingerprint.py`; a test compares it with the code)
- Weights: `{sha256}` (sha256 of model.safetensors)
- Made by: `python -m tools.toy.train_base`, one CPU thread, torch {torch}

## Training

Generated text only. Some of it is facts, and questions with a clean answer as running text. Some is in the instruction
format, but what stands behind an instruction mostly is the answer to another one, or another instruction: so the base
knows, and does not follow. The rest is answers by careful and careless authors,
each followed after its end by a verdict (wrong, slip or fine) on which alone the loss falls: so the base can tell good
answers from bad ones, as large models can, and does not learn to write bad ones. The verdict is blind to length and to
the number of details. Instructions of the splits "evaluation" and "validation" are left out.

{settings}

## Ability to verify answers

Area under the ROC curve of the base's verdict, {n} answers by careful and careless authors to instructions left out of
training:

| verdict | AUC |
|---|---|
{abilities}

## Headroom

Mean gold reward and share of right cores on the 500 validation instructions; SFT here is two plain epochs on the 4,000
demonstrations. A right core with two true details earns 2.2.

| answers by | gold | right core |
|---|---|---|
{headroom}
"""
