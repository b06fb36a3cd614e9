"""Changes with which a stage fits a card: not made yet, and each counted again before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from afarm import TrainerConfig
from afarm_plugins.memory.stages import GB, Choices, StageOnCard

if TYPE_CHECKING:
    from afarm import BackendConfig
    from afarm.backend import Held

WHOLE = {"sample": "the model is", "outputs": "the models are", "evaluate": "the reward model is"}
"""The stages that the first process runs alone, and what it then has on one card."""

SAME = "changes no result"


@dataclass(frozen=True)
class Remedy:
    """One thing to change: its values, the mildest first.

    Each is what to set or a number of cards; or it is to offload.
    """

    values: Sequence[tuple[str, ...]] = ()
    note: str = ""
    cards: Sequence[int] = ()
    offload: bool = False

    @property
    def ways(self) -> list[Chosen]:
        by_setting, by_cards = (
            [Chosen(self, settings=v) for v in self.values],
            [Chosen(self, cards=n) for n in self.cards],
        )
        return [*by_setting, *by_cards, *[Chosen(self)] * self.offload]


@dataclass(frozen=True)
class Chosen:
    """A change with one of its values."""

    change: Remedy
    settings: tuple[str, ...] = ()
    cards: int = 0


def changes_that_help(stage: StageOnCard, held: Held, backend: BackendConfig, choices: Choices, card: float) -> str:
    """Say which changes make the stage fit: each that does alone, else several together."""
    gpus = choices.gpus

    def host(*chosen: Chosen) -> int | None:
        settings, cards = [s for one in chosen for s in one.settings], max([gpus, *(one.cards for one in chosen)])
        offload = choices.offload or any(one.change.offload for one in chosen)
        return choices.host_if_held(stage.label, settings, cards, offload, card)

    def fit(*chosen: Chosen) -> bool:
        return host(*chosen) is not None

    possible = list(_possible(stage, backend, choices))
    alone = [next((way for way in change.ways if fit(way)), None) for change in possible]
    said = [_words([way], host(way)) for way in alone if way]
    if not said and (together := _together(possible, fit)):
        said = [_words(together, host(*together))]
    slow = held.moment == "sampling"  # on the host: only if nothing else will do
    if stage.label in WHOLE and held.weights > card and backend.device != "cpu" and not (slow and said):
        said.append(f"--set backend.device=cpu for this stage ({WHOLE[stage.label]} whole on one card)")
    most = max([gpus, *(n for change in possible for n in change.cards)])
    return ", or ".join(said) or (
        f"no setting is enough on up to {most} cards: a smaller model (--model), or larger cards (--card)"
    )


def _together(possible: Sequence[Remedy], fit: Callable[..., bool]) -> list[Chosen]:
    """Find a few changes that together are enough: none can be left out, each as mild as the others allow."""
    chosen: list[Chosen] = []
    for change in possible:
        chosen.append(change.ways[-1])
        if fit(*chosen):
            break
    else:
        return []
    for one in list(chosen):
        others = [other for other in chosen if other is not one]
        if fit(*others):
            chosen = others
    for number, one in enumerate(chosen):
        milder = ([*chosen[:number], way, *chosen[number + 1 :]] for way in one.change.ways)
        chosen = next(ways for ways in milder if fit(*ways))
    return chosen


def _possible(stage: StageOnCard, backend: BackendConfig, choices: Choices) -> Iterator[Remedy]:
    """Yield what can still be changed for a stage, first what changes no result."""
    section, config, gpus = stage.section, stage.config, choices.gpus
    scores = stage.label == "evaluate"
    for name in ("per_device_batch_size", "per_device_rollout_batch_size"):
        rows = getattr(config, name, 1)
        if not scores and rows > 1:
            yield Remedy([(f"{section}.{name}={n}",) for n in _halves(rows)], SAME)
    if getattr(config, "gradient_checkpointing", True) is False:
        yield Remedy([(f"{section}.gradient_checkpointing=true",)], f"slower, {SAME}")
    if getattr(config, "per_device_train_batch_size", 1) > 1:
        yield Remedy(list(_smaller_passes(section, config)), SAME)
    if scores:
        yield Remedy([("evaluate.evaluators=[win_rate]",)], "the reward model scores no outputs then")
    elif backend.sampler == "torch":
        yield Remedy([("backend.sampler=vllm@URL",)], "a vLLM server of one or more cards samples")
    yield Remedy(cards=[n for n in (2, 4, 8, 2 * gpus, 4 * gpus) if n > gpus], note="cards share it in shards")
    if not choices.offload:
        yield Remedy(offload=True, note=f"slower, {SAME}")
    if backend.dtype == "float32":
        yield Remedy([("backend.dtype=bfloat16",)], "half of all, another result")
    if getattr(config, "lora", config) is None:
        yield Remedy([(f"{section}.lora={{}}",)], "adapters, another result")


def _halves(rows: int) -> Iterator[int]:
    while rows > 1:
        rows //= 2
        yield rows


def _smaller_passes(section: str, config: Any) -> Iterator[tuple[str, ...]]:
    """Yield smaller forward passes of the same batch."""
    rows = config.per_device_train_batch_size
    for fewer in _halves(rows):
        smaller = f"{section}.per_device_train_batch_size={fewer}"
        if not isinstance(config, TrainerConfig):  # whose batch is mini_batch_size
            yield (smaller,)
        elif rows % fewer == 0:
            passes = config.gradient_accumulation_steps * rows // fewer
            yield smaller, f"{section}.gradient_accumulation_steps={passes}"


def _words(chosen: Sequence[Chosen], host: int | None) -> str:
    """Write them as they are typed, with what they cost: to offload costs each process `host` bytes."""
    typed, notes = [], dict[str, None]()
    for one in chosen:
        ways = ["--offload"] * one.change.offload + [f"--gpus {one.cards}"] * bool(one.cards)
        typed.append(" ".join([*ways, *(f"--set {s}" for s in one.settings)]))
        on_host = f"shards wait on the host, {(host or 0) / GB:,.0f} GB of it for each process; " * one.change.offload
        notes[on_host + one.change.note] = None
    return f"{' '.join(typed)} ({'; '.join(notes)})"
