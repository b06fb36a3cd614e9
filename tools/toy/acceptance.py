"""Acceptance bounds of the toy world's base model: `python -m tools.toy.acceptance DIR`.

A base model is accepted on facts of the AlpacaFarm paper about data, base and annotators (docs/notes/toy-world.md says
which), before any method runs from it. Nothing here trains on a preference or a reward, so nothing here can tell how a
method will fare. All answers are to the validation split; what is reported elsewhere is of the evaluation split.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from afarm.core.records import Instruction, Pair
from afarm_plugins.toy.authors import CAREFUL, write_answer
from afarm_plugins.toy.dataset import ToyDataset
from afarm_plugins.toy.world import CORE_RANGE, gold, read_answer, read_task
from tools.toy.calibrate import POOL, crowd_chances, judge_chances, mixture, offline_judge, statistics
from tools.toy.measure_base import quick_sft, sample, verdict_ability
from tools.toy.train_base import Encoder


@dataclass(frozen=True, slots=True)
class Bound:
    """The least and the most that a figure may be, and the fact behind it."""

    least: float
    most: float
    fact: str


BOUNDS: Mapping[str, Bound] = {
    "base's win rate against SFT": Bound(
        10, 35, "LLaMA 7B 11.3, SFT 36.7, both against Davinci003: by Bradley and Terry 18 against each other"
    ),
    "SFT's gold above the base's": Bound(0.6, 3, "SFT follows instructions, the base does not"),
    "careful authors' gold above SFT's": Bound(0.5, 1.5, "SFT copies careless authors too: room for every method"),
    "AUC of verdicts, wrong core": Bound(0.97, 1, "a language model can verify; as an earlier base, 0.98"),
    "AUC of verdicts, slips": Bound(0.97, 1, "as an earlier base, 0.98"),
    "right cores of the base in running text": Bound(0.6, 1, "the base knows what it is asked in running text"),
    "SFT's characters over its authors'": Bound(0.8, 1.2, "SFT imitates lengths"),
    "evaluation pool: variance": Bound(0.23, 0.29, "0.26"),
    "evaluation pool: agreement": Bound(0.62, 0.68, "0.65"),
    "evaluation pool: longer": Bound(0.60, 0.68, "0.64"),
    "training pool: variance": Bound(0.41, 0.45, "0.43"),
    "crowd: variance": Bound(0.33, 0.37, "0.35"),
    "crowd: longer": Bound(0.58, 0.66, "0.62"),
}
"""By figure; those of annotators are on pairs of different samples of SFT at temperature 1."""


def failures(measured: Mapping[str, float], slack: float = 0.0) -> list[str]:
    """Say which figures are missing or out of their bounds by more than `slack` of a bound's width."""
    problems = []
    for name, bound in BOUNDS.items():
        value, more = measured.get(name, float("nan")), slack * (bound.most - bound.least)
        if not bound.least - more <= value <= bound.most + more:
            problems.append(f"{name}: {value:.3g} is not from {bound.least:g} to {bound.most:g}")
    return problems


def measure(model: Any, encoder: Encoder) -> dict[str, float]:
    """Measure all that is bounded, of a base model and of a plain SFT of it.

    Takes about half a minute of one core.
    """
    base = MeasuredBase.of(model, encoder)
    return {**base.figures, **measure_sft(base, quick_sft(model, encoder, ToyDataset().load("sft")))}


@dataclass(frozen=True, slots=True)
class MeasuredBase:
    """A base model's own figures, and its answers to the validation split, for any SFT to be held against."""

    encoder: Encoder
    answers: Sequence[str]
    figures: Mapping[str, float]

    @classmethod
    def of(cls, model: Any, encoder: Encoder) -> MeasuredBase:
        """Measure a base model."""
        dataset = ToyDataset()
        instructions = [row.instruction for row in dataset.load("validation")]
        held_out = [row.instruction for split in ("evaluation", "validation") for row in dataset.load(split)]
        verdicts = verdict_ability(model, encoder, held_out)
        in_text = sample(model, RunningText(encoder.tokenizer), instructions, 1.0)
        figures = {
            "AUC of verdicts, wrong core": verdicts["wrong core"],
            "AUC of verdicts, slips": verdicts["slip in an answer with a right core"],
            "right cores of the base in running text": right_cores(instructions, in_text),
        }
        return cls(encoder, sample(model, encoder, instructions, 0.7), figures)


def measure_sft(base: MeasuredBase, sft: Any) -> dict[str, float]:
    """Measure what is bounded of a model after SFT, beside its base."""
    dataset = ToyDataset()
    rows = dataset.load("validation")
    instructions = [row.instruction for row in rows]
    theirs = sample(sft, base.encoder, instructions, 0.7)
    chance = Random("acceptance")
    careful = [write_answer(read_task(i.instruction, i.input), CAREFUL, chance) for i in instructions]
    return {
        "base's win rate against SFT": 100 * expected_wins(instructions, base.answers, theirs),
        "SFT's gold above the base's": mean_gold(instructions, theirs) - mean_gold(instructions, base.answers),
        "careful authors' gold above SFT's": mean_gold(instructions, careful) - mean_gold(instructions, theirs),
        "SFT's characters over its authors'": fmean(map(len, theirs)) / fmean(len(row.output) for row in rows),
        **annotators(sft, base.encoder, [row.instruction for row in dataset.load("preference")[:1000]]),
        "SFT's gold": mean_gold(instructions, theirs),
    }


class RunningText(Encoder):
    """Token ids of an instruction as text, without the marks of the instruction format."""

    def prompt(self, instruction: Instruction) -> list[int]:
        return self.text(f"{instruction.instruction} {instruction.input}")


def mean_gold(instructions: Sequence[Instruction], answers: Sequence[str]) -> float:
    return fmean(gold(i, answer) for i, answer in zip(instructions, answers, strict=True))


def right_cores(instructions: Sequence[Instruction], answers: Sequence[str]) -> float:
    tasks = [read_task(i.instruction, i.input) for i in instructions]
    return fmean(read_answer(task, text).core == CORE_RANGE[1] for task, text in zip(tasks, answers, strict=True))


def expected_wins(instructions: Sequence[Instruction], ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Share of comparisons that `ours` win under the evaluation pool, exact over members, orders, noise."""
    pairs = [Pair(i, b, a) for i, a, b in zip(instructions, ours, theirs, strict=True)]
    judge = offline_judge()
    pool = mixture((POOL[role], judge_chances(judge, role, pairs)) for role in POOL)
    return fmean(0.5 if pair.identical else chance.second for pair, chance in zip(pairs, pool, strict=True))


def annotators(sft: Any, encoder: Encoder, instructions: Sequence[Instruction]) -> dict[str, float]:
    """The annotator statistics of the paper on pairs of different samples of `sft`."""
    answers = sample(sft, encoder, [i for i in instructions for _ in range(2)], 1.0)
    pairs = [Pair(i, *answers[2 * place : 2 * place + 2]) for place, i in enumerate(instructions)]
    pairs = [pair for pair in pairs if not pair.identical]
    judge = offline_judge()
    pool = mixture((POOL[role], judge_chances(judge, role, pairs)) for role in POOL)
    people = crowd_chances(pairs)
    columns = {
        "evaluation pool": statistics(pairs, pool, people),
        "training pool": statistics(pairs, [chance.flipped(0.25) for chance in pool], people),
        "crowd": statistics(pairs, people, people),
    }
    return {f"{name}: {figure}": value for name, figures in columns.items() for figure, value in figures.items()}


def load(directory: Path) -> tuple[Any, Encoder]:
    """Load a base model and its encoder from a directory."""
    return AutoModelForCausalLM.from_pretrained(directory).eval(), Encoder(AutoTokenizer.from_pretrained(directory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="a base model, as tools.toy.train_base writes it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured = measure(*load(arguments.directory))
    print("| figure | measured | bounds | the paper, or why |\n|---|---|---|---|")
    for name, value in measured.items():
        bound = BOUNDS.get(name)
        limits = f"{bound.least:g} to {bound.most:g} | {bound.fact}" if bound else "|"
        print(f"| {name} | {value:.3g} | {limits} |")
    broken = failures(measured)
    print("\n" + ("All bounds are met." if not broken else "Not met:\n- " + "\n- ".join(broken)))


if __name__ == "__main__":
    main()
