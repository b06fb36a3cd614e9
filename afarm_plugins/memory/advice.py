"""Suggest settings that make a stage fit in a GPU's memory, each re-estimated before it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import TYPE_CHECKING

from afarm import TrainerConfig
from afarm_plugins.memory.stages import GB, Choices, StageOnCard

if TYPE_CHECKING:
    from afarm import BackendConfig
    from afarm_plugins.memory.estimate import Held

WHOLE = {"sample": "the model is", "outputs": "the models are", "evaluate": "the reward model is"}
"""The stages that the first process runs alone, and what is then whole on one card."""

SAME = "changes no result"

MOST_TOGETHER = 3
"""Most changes in one suggestion."""


@dataclass(frozen=True)
class Remedy:
    """A possible change: of settings, the number of cards, or offloading."""

    note: str
    settings: tuple[str, ...] = ()
    cards: int = 0
    offload: bool = False


def changes_that_help(stage: StageOnCard, held: Held, backend: BackendConfig, choices: Choices, card: float) -> str:
    """Suggest changes that make the stage fit: each that suffices alone, else the first combination."""
    possible = list(_possible(stage, backend, choices))

    @cache
    def host(changes: tuple[Remedy, ...]) -> int | None:
        settings = [setting for change in changes for setting in change.settings]
        cards = max(choices.gpus, *(change.cards for change in changes))
        offload = choices.offload or any(change.offload for change in changes)
        return choices.host_if_held(stage.label, settings, cards, offload, card)

    suggestions: list[str] = []
    for number in range(1, MOST_TOGETHER + 1):
        for several in combinations(possible, number):
            if number > 1 and (suggestions or host(tuple(values[-1] for values in several)) is None):
                continue
            mildest = next((one for one in product(*several) if host(one) is not None), None)
            if mildest:
                suggestions.append(_words(mildest, host(mildest)))
    slow = held.moment == "sampling"  # on a CPU: the last resort
    if stage.label in WHOLE and held.weights > card and backend.device != "cpu" and not (slow and suggestions):
        suggestions.append(f"--set backend.device=cpu for this stage ({WHOLE[stage.label]} whole on one card)")
    most = max(choices.gpus, *(change.cards for values in possible for change in values))
    return ", or ".join(suggestions) or (
        f"no setting is enough on up to {most} cards: a smaller model (--model), or larger cards (--card)"
    )


def _possible(stage: StageOnCard, backend: BackendConfig, choices: Choices) -> Iterator[list[Remedy]]:
    """Yield the values to try of each change: those that change no result first, the mildest value first."""
    section, config, gpus = stage.section, stage.config, choices.gpus
    scores = stage.label == "evaluate"
    for name in ("per_device_batch_size", "per_device_rollout_batch_size"):
        rows = getattr(config, name, 1)
        if not scores and rows > 1:
            yield [Remedy(SAME, (f"{section}.{name}={fewer}",)) for fewer in _halves(rows)]
    if getattr(config, "gradient_checkpointing", True) is False:
        yield [Remedy(f"slower, {SAME}", (f"{section}.gradient_checkpointing=true",))]
    rows = getattr(config, "per_device_train_batch_size", 1)
    if rows > 1 and not isinstance(config, TrainerConfig):  # on-policy: mini_batch_size is the batch
        yield [Remedy(SAME, (f"{section}.per_device_train_batch_size={fewer}",)) for fewer in _halves(rows)]
    elif rows > 1:
        yield [
            Remedy(
                SAME,
                (
                    f"{section}.per_device_train_batch_size={fewer}",
                    f"{section}.gradient_accumulation_steps={config.gradient_accumulation_steps * rows // fewer}",
                ),
            )
            for fewer in _halves(rows)
            if rows % fewer == 0
        ]
    if scores:
        yield [Remedy("the reward model scores no outputs then", ("evaluate.evaluators=[win_rate]",))]
    elif backend.sampler == "torch":
        yield [Remedy("a vLLM server of one or more cards samples", ("backend.sampler=vllm@URL",))]
    yield [Remedy("cards share it in shards", cards=n) for n in (2, 4, 8, 2 * gpus, 4 * gpus) if n > gpus]
    if not choices.offload:
        yield [Remedy(f"slower, {SAME}", offload=True)]
    if backend.dtype == "float32":
        yield [Remedy("half of all, another result", ("backend.dtype=bfloat16",))]
    if getattr(config, "lora", config) is None:
        yield [Remedy("adapters, another result", (f"{section}.lora={{}}",))]


def _halves(rows: int) -> list[int]:
    return [rows >> times for times in range(1, rows.bit_length())]


def _words(changes: Sequence[Remedy], host: int | None) -> str:
    """Write changes as options, with notes. `host` is bytes of host memory per process."""
    typed: list[str] = []
    notes: dict[str, None] = {}
    for change in changes:
        note = change.note
        if change.offload:
            typed.append("--offload")
            note = f"shards wait on the host, {(host or 0) / GB:,.0f} GB of it for each process; {note}"
        if change.cards:
            typed.append(f"--gpus {change.cards}")
        typed += [f"--set {setting}" for setting in change.settings]
        notes[note] = None
    return f"{' '.join(typed)} ({'; '.join(notes)})"
