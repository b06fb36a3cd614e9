"""Methods that learn from preferences: KTO, and twelve losses of pairs, alone or as weighted sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from afarm import (
    CheckpointChoice,
    Method,
    MethodInputs,
    Policy,
    Register,
    Scheduler,
    TrainContext,
    TrainerConfig,
    did_you_mean,
    hookimpl,
    setting,
)

REFERENCE: Mapping[str, Literal["optional", "needed", "unused"]] = {
    "sigmoid": "optional",
    "sigmoid_norm": "optional",
    "hinge": "optional",
    "ipo": "optional",
    "robust": "optional",
    "sppo_hard": "needed",
    "apo_zero": "needed",
    "apo_down": "needed",
    "bco_pair": "needed",
    "simpo": "unused",
    "odds_ratio": "unused",
    "sft": "unused",
}
"""The losses, and if they look at a reference policy. `afarm_preferences.losses` has what they compute.

A difference of log ratios is one of log-probabilities without a reference; a target for a log ratio is nothing.
"""


class PairwiseConfig(CheckpointChoice, TrainerConfig):
    """Losses of pairs, by TRL's names; the method says which it begins with."""

    learns_pairs: ClassVar[bool] = True
    """An example is two responses: `afarm memory` counts both."""

    learning_rate: float = setting(1e-6, "peak learning rate of AdamW", gt=0)
    lr_scheduler_type: Scheduler = setting("cosine", "how the learning rate falls after warm-up")
    warmup_ratio: float = setting(0.1, "share of the steps over which the learning rate rises", ge=0, lt=1)
    num_train_epochs: float = setting(1.0, "passes over the preferences", gt=0)
    per_device_train_batch_size: int = setting(
        128, "pairs in one forward pass; times gradient_accumulation_steps it is the batch of one step", ge=1
    )
    loss_type: list[str] = setting(["sigmoid"], f"losses that are summed: {', '.join(REFERENCE)}", min_length=1)
    loss_weights: list[float] | None = setting(None, "the weight of each loss in the sum (unset: 1 each)")
    beta: float = setting(
        0.1,
        "scales log ratios: how strongly the policy is held to its reference; ipo's τ, sppo_hard's 1/η, odds_ratio's λ",
        gt=0,
    )
    simpo_gamma: float = setting(1.0, "margin that simpo wants between the two rewards", ge=0)
    label_smoothing: float = setting(
        0.0, "probability that a label is taken to be wrong; for robust, the share that is", ge=0, lt=0.5
    )
    reference: Literal["auto", "start", "none"] = setting(
        "auto", "start: the start policy; none: log-probabilities in the place of log ratios; auto: what the losses use"
    )
    keep_draws: bool = setting(False, "learn from draws as even preferences (p2 = 0.5) instead of dropping them")

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each loss."""
        return dict(zip(self.loss_type, self.loss_weights or [1.0] * len(self.loss_type), strict=True))

    @property
    def uses_reference(self) -> bool:
        """True if a loss looks at the start policy's log-probabilities."""
        return self.reference != "none" and any(REFERENCE[loss] != "unused" for loss in self.loss_type)

    @model_validator(mode="after")
    def _losses_can_be_summed(self) -> Self:
        losses, weights = self.loss_type, self.loss_weights
        for loss in losses:
            if loss not in REFERENCE:
                near = did_you_mean(loss, REFERENCE)
                raise ValueError(f"unknown loss {loss!r} in loss_type.{near} Known: {', '.join(REFERENCE)}")
        if len(set(losses)) < len(losses):
            raise ValueError(f"loss_type names a loss twice: {', '.join(losses)}; give it a weight in loss_weights")
        if weights is not None and len(weights) != len(losses):
            raise ValueError(
                f"loss_weights has {len(weights)} weights for the {len(losses)} of loss_type ({', '.join(losses)}): "
                "give one each, in this order"
            )
        if weights is not None and not (min(weights) >= 0 and 0 < sum(weights) < math.inf):
            raise ValueError(f"loss_weights {weights} must not be negative, and not all 0: nothing would be learned")
        uses = {REFERENCE[loss] for loss in losses}
        if self.reference == "start" and uses == {"unused"}:
            raise ValueError(
                f"reference is 'start', and {' and '.join(losses)} look{'s' * (len(losses) == 1)} at no reference: "
                "leave it at auto, or choose a loss that does, such as sigmoid"
            )
        if self.reference == "none" and "needed" in uses:
            needing = " and ".join(loss for loss in losses if REFERENCE[loss] == "needed")
            raise ValueError(f"reference is 'none', and {needing} cannot do without: leave it at auto")
        return self


SEARCH_SPACE = {"learning_rate": (1e-7, 1e-3), "beta": (0.01, 1.0), "num_train_epochs": [1, 2, 3]}


class Pairwise(Method):
    """Learns from `inputs.preferences` by the losses of its config. No reward model, no sampling."""

    config: PairwiseConfig
    needs = frozenset({"preferences"})
    samples = False
    search_space: ClassVar[Mapping[str, Any]] = SEARCH_SPACE

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_preferences.pairwise import train_pairwise

        return train_pairwise(self.config, inputs, context)


class SimPO(Pairwise):
    """Searches larger values of β than the others, since its rewards are per token, and the margin too."""

    search_space = {**Pairwise.search_space, "beta": (1.0, 20.0), "simpo_gamma": (0.1, 5.0)}


class KTOConfig(CheckpointChoice, TrainerConfig):
    """Kahneman-Tversky optimisation. The learning rate is the paper's for AdamW, β and weights are TRL's."""

    learning_rate: float = setting(5e-6, "peak learning rate of AdamW", gt=0)
    lr_scheduler_type: Scheduler = setting("cosine", "how the learning rate falls after warm-up")
    warmup_ratio: float = setting(0.1, "share of the steps over which the learning rate rises", ge=0, lt=1)
    num_train_epochs: float = setting(1.0, "passes over the rows", gt=0)
    per_device_train_batch_size: int = setting(
        32, "rows in one forward pass; times gradient_accumulation_steps it is the batch of one step", ge=1
    )
    loss_type: Literal["kto", "apo_zero_unpaired"] = setting(
        "kto", "kto, or apo_zero_unpaired, whose reference point is 0 and not the KL, which it need not read"
    )
    beta: float = setting(0.1, "how strongly the policy is held to its reference, and how soon gains saturate", gt=0)
    desirable_weight: float = setting(1.0, "weight of desirable rows, λ_D", gt=0)
    undesirable_weight: float = setting(1.0, "weight of undesirable rows, λ_U", gt=0)


class KTO(Method):
    """Learns from `inputs.feedback`: desirable and undesirable outputs, of a file or of pairs."""

    config: KTOConfig
    needs = frozenset({"feedback"})
    samples = False
    search_space: ClassVar[Mapping[str, Any]] = SEARCH_SPACE

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_preferences.kto import train_kto

        return train_kto(self.config, inputs, context)


# Under toy and smol, rates, passes and batches are those of DPO, which were searched for it: docs/notes/toy-trials.md.
TOY = {
    "learning_rate": 3.23e-4,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.03,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "max_length": 96,
}
SMOL = {
    "learning_rate": 1.7e-3,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.03,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_length": 256,
    "lora": {"r": 16, "alpha": 32},
}

# KTO's under toy are the best of six trials: docs/methods/kto.md
KTO_TOY = {**TOY, "learning_rate": 1.28e-4, "beta": 0.47, "num_train_epochs": 3}
KTO_SMOL = {**SMOL, "beta": 0.25}

Settings = Mapping[str, Any]
METHODS: Mapping[str, tuple[str, Settings, Settings, Settings]] = {
    "ipo": ("identity preference optimisation: a margin to reach, not to exceed", {"loss_type": ["ipo"]}, {}, {}),
    "simpo": (
        "log-probabilities per token and a margin, without a reference",
        {"loss_type": ["simpo"], "beta": 2.0},
        {},
        {},
    ),
    "orpo": (
        "SFT on the chosen output and an odds ratio, without a reference",
        {"loss_type": ["sft", "odds_ratio"], "learning_rate": 8e-6},
        {},
        {},
    ),
    "cpo": (
        "DPO's loss without a reference, and SFT on the chosen output",
        {"loss_type": ["sigmoid", "sft"], "reference": "none"},
        {},
        {},
    ),
    "conservative_dpo": (
        "DPO under labels of which some are wrong, by smoothing them",
        {"label_smoothing": 0.1},
        {"beta": 0.0453, "label_smoothing": 0.25},
        {"beta": 0.25},
    ),
    "robust_dpo": (
        "DPO without the bias of a known share of wrong labels",
        {"loss_type": ["robust"], "label_smoothing": 0.1},
        {"beta": 0.0453, "label_smoothing": 0.25},
        {"beta": 0.25},
    ),
    "sppo": (
        "self-play preference optimisation: a target for each log ratio",
        {"loss_type": ["sppo_hard"], "learning_rate": 5e-7, "beta": 0.001},
        {},
        {},
    ),
    "apo_zero": ("raises chosen outputs and lowers rejected ones", {"loss_type": ["apo_zero"]}, {}, {}),
    "apo_down": ("lowers both outputs, and rejected ones more", {"loss_type": ["apo_down"]}, {}, {}),
    "mpo": (
        "mixed preference optimisation: a weighted sum of losses, yours by loss_type and loss_weights",
        {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
        {},
        {},
    ),
}
"""Methods of pairs, each with its summary, its own defaults, and its settings under toy and under smol."""


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "kto",
        KTO,
        config=KTOConfig,
        summary="desirable and undesirable outputs, one at a time",
        recipes={"toy": KTO_TOY, "smol": KTO_SMOL},
    )
    for name, (summary, defaults, toy, smol) in METHODS.items():
        register(
            name,
            SimPO if name == "simpo" else Pairwise,
            config=PairwiseConfig,
            summary=summary,
            defaults=defaults,
            recipes={"toy": {**TOY, **toy}, "smol": {**SMOL, **smol}},
        )
