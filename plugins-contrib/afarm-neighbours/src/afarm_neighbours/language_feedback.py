"""Imitation learning from language feedback (Scheurer et al. 2023, arXiv 2303.16755, algorithm 1).

The policy answers a prompt; the judge says what is wrong with the answer; the policy, given prompt, answer and
criticism, writes refinements; the best of these is learned as the answer to the prompt alone, by SFT.

Of every few prompts the refinements chosen are written to disk: a killed training samples them once. What the judge
said is in the ledger anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from string import Template
from typing import Any

from afarm import DataError, Decoding, Instruction, MethodInputs, Sample, TrainContext, read_rows, seeding, write_rows
from afarm.backend import (
    CheckpointPolicy,
    all_gather,
    all_gather_object,
    barrier,
    fit_supervised,
    make_selection,
    rank,
    require_checkpoint,
    sample_scorer,
    shard,
    short_prompts,
)
from afarm_neighbours import LanguageFeedbackConfig, chosen_prompts

PROMPTS_AT_ONCE = 64
"""Prompts whose answers are criticised and refined together. Fixed: a resumed training must go on with the same."""


@dataclass(frozen=True, slots=True)
class Refinement:
    """The best refinement of an answer, in tokens, with its place among all texts ranked (1.0 the best)."""

    prompt_ids: list[int]
    token_ids: list[int]
    place: float
    answers_place: float
    criticism: str
    answer: str
    text: str

    @property
    def is_better(self) -> bool:
        """True if it was ranked above the answer that it refines."""
        return self.place < self.answers_place


def train_on_refinements(
    config: LanguageFeedbackConfig, inputs: MethodInputs, context: TrainContext
) -> CheckpointPolicy:
    """Train a copy of `inputs.start` on refinements. Raises `DataError` if there are none to learn from."""
    start = require_checkpoint(inputs.start, config.section)
    asked = chosen_prompts(config, inputs.unlabeled)
    longest = config.max_length - config.response_length
    prompts = short_prompts(start, asked, longest, config.response_length, f"{config.section}.max_length")
    found = list(refine(config, start, prompts, inputs, context))
    learned = [one for one in found if one.is_better or config.learn == "best"]
    if not learned:
        raise DataError(
            f"{config.section} has nothing to learn from: of {len(prompts)} answers {len(found)} were criticised and "
            f"refined, and no refinement was ranked above its answer: --set {config.section}.learn=best, or raise n"
        )
    if context.checkpoints.latest() is None:  # else it is logged already
        context.log_metrics(
            1,
            {
                "objective/refined": len(found) / len(prompts),
                "objective/better": sum(one.is_better for one in found) / len(found),
                "objective/answers_place": sum(one.answers_place for one in found) / len(found),
                "objective/length": sum(len(one.token_ids) for one in found) / len(found),
                "data/prompts_left_out": len(asked) - len(prompts),
            },
        )
    examples = [(one.prompt_ids, one.token_ids) for one in learned]
    selection = make_selection(config, inputs, context)
    return fit_supervised(start, examples, config, context, config.section, selection=selection)


def refine(
    config: LanguageFeedbackConfig,
    start: CheckpointPolicy,
    prompts: Sequence[Instruction],
    inputs: MethodInputs,
    context: TrainContext,
) -> Iterator[Refinement]:
    """Yield the best refinement of the policy's answer to each prompt, or read it from disk."""
    directory = context.directory / "refinements"
    directory.mkdir(parents=True, exist_ok=True)
    [there, *_] = all_gather_object(sorted(path.name for path in directory.glob("*.jsonl")))
    chunks = range(0, len(prompts), PROMPTS_AT_ONCE)
    for first in context.progress(chunks, "answers criticised and refined", len(chunks)):
        path = directory / f"{first:08d}.jsonl"
        if path.name not in there:
            chosen = refine_chunk(config, start, prompts[first : first + PROMPTS_AT_ONCE], inputs, context.seed)
            if rank() == 0:
                write_rows(path, map(asdict, chosen))  # whole or not at all
            if context.should_stop():
                raise KeyboardInterrupt("stopped while refining; the same command goes on from there")
    barrier()
    for path in sorted(directory.glob("*.jsonl")):
        yield from (Refinement(**row) for row in read_rows(path))


def refine_chunk(
    config: LanguageFeedbackConfig,
    start: CheckpointPolicy,
    tasks: Sequence[Instruction],
    inputs: MethodInputs,
    seed: int,
) -> list[Refinement]:
    """Answer, criticise, refine and choose: processes sample and score shards, and share the results."""
    assert inputs.judge is not None  # named in `needs`
    answers = sample(config, start, tasks, 1, seeding.integer(seed, config.section, "answers"))
    said = inputs.judge.criticise(tasks, [answer.text for answer in answers], rubric=config.rubric)
    rows = [row for row in zip(tasks, answers, said, strict=True) if row[2] is not None]
    asked = [ask_for_refinement(config, task, answer.text, words or "") for task, answer, words in rows]
    drawn = sample(config, start, asked, config.n, seeding.integer(seed, config.section, "refinements"))
    groups = [  # the answer first; as if all were written to the prompt alone
        [answer, *(replace(one, prompt_ids=answer.prompt_ids) for one in drawn[i * config.n : (i + 1) * config.n])]
        for i, (_, answer, _) in enumerate(rows)
    ]
    chosen = []
    for (_, answer, words), group, places in zip(
        rows, groups, rank_groups(config, rows, groups, start, inputs), strict=True
    ):
        if places is None:  # the judge's ranking could not be read
            continue
        best = min(range(1, len(group)), key=places.__getitem__)  # of equals the first
        place, text = places[best], group[best].text
        ids = list(answer.prompt_ids), list(group[best].token_ids)
        chosen.append(Refinement(*ids, place, places[0], words or "", answer.text, text))
    return chosen


def sample(
    config: LanguageFeedbackConfig, start: CheckpointPolicy, tasks: Sequence[Instruction], n: int, seed: int
) -> list[Sample]:
    """Sample n responses to each task, in order."""
    size = config.per_device_rollout_batch_size
    decoding = Decoding(config.temperature, max_new_tokens=config.response_length, n=n, per_device_batch_size=size)
    own = list(start.sample(shard(tasks), decoding, seed=seed))
    groups = all_gather([own[i : i + n] for i in range(0, len(own), n)])
    return [one for group in groups for one in group]


def ask_for_refinement(config: LanguageFeedbackConfig, task: Instruction, answer: str, criticism: str) -> Instruction:
    """Make the instruction to write a refinement; earlier turns of a chat stay before it."""
    whole = "\n\n".join(filter(None, (task.instruction, task.input)))
    text = Template(config.refine_text).substitute(task=whole, answer=answer, criticism=criticism)
    return replace(task, instruction=text, input="")


def rank_groups(
    config: LanguageFeedbackConfig,
    rows: Sequence[tuple[Instruction, Any, Any]],
    groups: Sequence[Sequence[Sample]],
    start: CheckpointPolicy,
    inputs: MethodInputs,
) -> Sequence[Sequence[float] | None]:
    """Rank each group of an answer and its refinements: places from 1.0, the best."""
    tasks = [task for task, _, _ in rows]
    if config.choose_by == "judge":
        assert inputs.judge is not None
        texts = [[one.text for one in group] for group in groups]
        return inputs.judge.rank(tasks, texts, rubric=config.rubric)
    assert inputs.reward_model is not None
    owners = [task for task, group in zip(tasks, groups, strict=True) for _ in group]
    samples = [one for group in groups for one in group]
    rewards = iter(all_gather(sample_scorer(inputs.reward_model, start)(shard(owners), shard(samples))))
    scored = [[next(rewards) for _ in group] for group in groups]
    return [[sum(other > own for other in group) + (group.count(own) + 1) / 2 for own in group] for group in scored]
