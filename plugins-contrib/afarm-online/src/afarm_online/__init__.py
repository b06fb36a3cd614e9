"""Methods with the annotator in the loop: online DPO, iterative DPO, XPO and Nash-MD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from afarm import (
    Instruction,
    Method,
    MethodInputs,
    MethodJudge,
    OnPolicyConfig,
    Policy,
    Register,
    TrainContext,
    hookimpl,
    setting,
)


class OnlineConfig(OnPolicyConfig):
    """Settings of all four. TRL's names, but `kl_coef` for its β."""

    even_sizes: ClassVar[Sequence[str]] = ("rollout_batch_size", "mini_batch_size", "pairs_per_step")
    responses_per_pair: ClassVar[int] = 2
    """How many responses of the policy a pair has; 1 if another policy writes the second."""

    total_steps: int = setting(300, "rollouts sampled, labelled and learned from; the learning rate falls to 0", gt=0)
    rollout_batch_size: int = setting(128, "responses that the policy samples per step", gt=0)
    mini_batch_size: int = setting(64, "pairs per optimiser step; the last of a pass may be smaller", gt=0)
    learning_rate: float = setting(5e-7, "peak learning rate", gt=0)
    labels: Literal["annotator", "reward_model", "rating", "ranking"] = setting(
        "annotator",
        "who says which response is better. annotator: the run's, two at a time; reward_model: the higher score; "
        "rating: the higher mark of the run's judge, which sees each alone; ranking: the judge's order of the group",
    )
    rubric: str = setting("", "what the judge is told to go by when it rates or ranks (empty: afarm's own)")

    @property
    def groups_per_step(self) -> int:
        """The groups of responses to one prompt, of which a step makes pairs."""
        per_group = self.num_generations if self.responses_per_pair == 2 else 1
        return self.rollout_batch_size // per_group

    @property
    def group_size(self) -> int:
        """The responses of a group, those of another policy counted."""
        return self.num_generations if self.responses_per_pair == 2 else 2

    @property
    def pairs_per_step(self) -> int:
        """The pairs of a step: each two for the annotator, else the best and the worst of a group."""
        return self.groups_per_step * (self.group_size // 2 if self.labels == "annotator" else 1)

    @model_validator(mode="after")
    def _responses_pair_up(self) -> Self:
        n = self.num_generations
        if self.responses_per_pair == 2 and (n < 2 or (n % 2 and self.labels == "annotator")):
            raise ValueError(
                f"num_generations ({n}) responses to a prompt do not make pairs: --set {self.section}.num_generations="
                f"{n + 1}"
            )
        return self


class OnlineDPOConfig(OnlineConfig):
    """Online DPO (Guo et al. 2024, OAIF): DPO on pairs that the policy has just sampled."""

    method_name: ClassVar[str] = "Online DPO"

    num_generations: int = setting(2, "responses sampled per prompt, which make pairs", gt=1)
    kl_coef: float = setting(0.1, "DPO's β (TRL's beta): how strongly the policy is held to its start", gt=0)
    loss_type: Literal["sigmoid", "ipo", "hinge"] = setting(
        "sigmoid", "sigmoid is DPO's; ipo (Azar et al. 2023) and hinge (SLiC, Zhao et al. 2023) bound the margin"
    )
    num_iterations: int = setting(1, "passes over each step's pairs", gt=0)


class IterativeDPOConfig(OnlineDPOConfig):
    """Iterative DPO (Xiong et al. 2024, Dong et al. 2024): few rounds of many pairs, and epochs."""

    method_name: ClassVar[str] = "Iterative DPO"

    total_steps: int = setting(3, "rounds; each samples and labels the policy of the one before", gt=0)
    rollout_batch_size: int = setting(8192, "responses that the policy samples per round", gt=0)
    num_iterations: int = setting(2, "passes over a round's pairs", gt=0)
    warmup_steps: int = setting(0, "rounds over which the learning rate rises", ge=0)
    save_steps: int = setting(1, "rounds between checkpoints, to resume from and to choose from", gt=0)
    pool: Literal["accumulate", "replace"] = setting(
        "accumulate", "accumulate: a round learns from the pairs of all rounds so far; replace: from its own"
    )


class XPOConfig(OnlineConfig):
    """Exploratory preference optimisation (Xie et al. 2024): online DPO with a bonus."""

    method_name: ClassVar[str] = "XPO"
    responses_per_pair: ClassVar[int] = 1

    rollout_batch_size: int = setting(64, "responses of the policy per step, each paired with one of its start", gt=0)
    kl_coef: float = setting(0.1, "DPO's β (TRL's beta): how strongly the policy is held to its start", gt=0)
    alpha: float = setting(1e-5, "weight of the bonus: log π of the start's responses is lowered", ge=0)
    loss_type: Literal["sigmoid", "ipo", "hinge"] = setting("sigmoid", "as in online DPO")
    num_iterations: int = setting(1, "passes over each step's pairs", gt=0)


class NashMDConfig(OnlineConfig):
    """Nash-MD (Munos et al. 2023): policy gradients against a mixture of the policy and its start."""

    method_name: ClassVar[str] = "Nash-MD"
    responses_per_pair: ClassVar[int] = 1

    rollout_batch_size: int = setting(64, "responses of the policy per step, each paired with one of the mixture", gt=0)
    kl_coef: float = setting(0.1, "τ (TRL's beta): weight of the KL to the start policy", ge=0)
    mixture_coef: float = setting(
        0.125, "β, the start's share in the opponent's logits; 0: self-play, 1: against the start alone", ge=0, le=1
    )
    kl_level: Literal["token", "sequence"] = setting(
        "token",
        "token: a token answers for its own KL alone, as in TRL; sequence: for that of the whole response, as in the "
        "paper's formula, which is unbiased and noisier",
    )


class Online(Method):
    """The base of the four: their needs, and the questions that they ask."""

    config: OnlineConfig
    needs = frozenset({"unlabeled", "annotator"})
    measures_kl = True
    search_space: ClassVar[Mapping[str, Any]] = {"learning_rate": (1e-7, 1e-3), "kl_coef": (0.01, 1.0)}

    def __init__(self, config: OnlineConfig):
        super().__init__(config)
        source = {"rating": "judge", "ranking": "judge"}.get(config.labels, config.labels)
        if source != "annotator":
            chooses = {"annotator"} if config.checkpoint == "best" else set()
            self.needs = self.needs - {"annotator"} | {source} | chooses

    def plan_pairs(self, instructions: Mapping[str, Sequence[Instruction]]) -> Sequence[Instruction]:
        tasks, count = instructions["unlabeled"], self.config.total_steps * self.config.pairs_per_step
        if self.config.labels != "annotator":
            return ()
        return [tasks[number % len(tasks)] for number in range(count)]

    def plan_judging(self, instructions: Mapping[str, Sequence[Instruction]], judge: MethodJudge) -> None:
        config, tasks = self.config, instructions["unlabeled"]
        n, count = config.group_size, config.total_steps * config.groups_per_step
        asked = [tasks[number % len(tasks)] for number in range(count)]
        if config.labels == "rating":
            judge.rate([task for task in asked for _ in range(n)], [""] * n * count, rubric=config.rubric)
        elif config.labels == "ranking":
            judge.rank(asked, [[""] * n] * count, rubric=config.rubric)


class OnlineDPO(Online):
    """Samples pairs, has them labelled, takes a step of DPO, and samples anew."""

    config: OnlineDPOConfig
    search_space = {**Online.search_space, "num_iterations": [1, 2, 4]}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises `TrainingError` if it diverges before a checkpoint, `DataError` if no prompt is short enough."""
        from afarm_online.online_dpo import train_online_dpo

        return train_online_dpo(self.config, inputs, context)


class IterativeDPO(Online):
    """Rounds of sampling, labelling, and DPO for epochs."""

    config: IterativeDPOConfig
    search_space = {**Online.search_space, "num_iterations": [1, 2, 3]}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises as `OnlineDPO.train` does."""
        from afarm_online.iterative_dpo import train_iterative_dpo

        return train_iterative_dpo(self.config, inputs, context)


class XPO(Online):
    """Online DPO of the policy's responses against its start's, with an exploration bonus."""

    config: XPOConfig
    search_space = {**Online.search_space, "alpha": (1e-6, 1e-2)}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises as `OnlineDPO.train` does."""
        from afarm_online.xpo import train_xpo

        return train_xpo(self.config, inputs, context)


class NashMD(Online):
    """Raises what is preferred to the responses of a mixture of the policy and its start."""

    config: NashMDConfig
    search_space = {**Online.search_space, "mixture_coef": [0.0, 0.125, 0.25, 0.5]}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises as `OnlineDPO.train` does, and `TrainingError` if the engine cannot sample a mixture."""
        from afarm_online.nash_md import train_nash_md

        return train_nash_md(self.config, inputs, context)


# The best of a few trials of online DPO: docs/methods/online.md. The other names inherit them.
TOY: dict[str, Any] = {
    "total_steps": 24,
    "rollout_batch_size": 256,
    "mini_batch_size": 64,
    "per_device_train_batch_size": 64,
    "per_device_rollout_batch_size": 128,
    "learning_rate": 1.66e-4,
    "kl_coef": 0.223,
    "warmup_steps": 2,
    "max_prompt_length": 48,
    "response_length": 48,
    "save_steps": 5,
    "checkpoint": "last",
}
SMOL: dict[str, Any] = {
    "total_steps": 16,
    "rollout_batch_size": 64,
    "mini_batch_size": 16,
    "per_device_train_batch_size": 16,
    "per_device_rollout_batch_size": 64,
    "learning_rate": 5e-4,
    "kl_coef": 0.1,
    "warmup_steps": 1,
    "max_prompt_length": 128,
    "response_length": 48,
    "save_steps": 2,
    "checkpoint": "last",
    "lora": {"r": 16, "alpha": 32},
}
PASSES = {"num_iterations": 2}
ROUNDS = {"total_steps": 3, "warmup_steps": 0, "save_steps": 1}

METHODS: Mapping[str, tuple[type[Online], type[OnlineConfig], str, Mapping[str, Any], Mapping[str, Any]]] = {
    "online_dpo": (OnlineDPO, OnlineDPOConfig, "DPO on pairs that the policy has just sampled", TOY | PASSES, SMOL),
    "iterative_dpo": (
        IterativeDPO,
        IterativeDPOConfig,
        "rounds of sampling, labelling, and DPO on all pairs so far",
        {**TOY, **PASSES, **ROUNDS, "rollout_batch_size": 2048},
        {**SMOL, **ROUNDS, "rollout_batch_size": 256},
    ),
    "xpo": (
        XPO,
        XPOConfig,
        "online DPO against the start policy's responses, with a bonus for exploring",
        {**TOY, **PASSES, "rollout_batch_size": 128},
        {**SMOL, "rollout_batch_size": 32},
    ),
    "nash_md": (
        NashMD,
        NashMDConfig,
        "policy gradients towards what is preferred to a mixture of policy and start",
        {**TOY, "rollout_batch_size": 128, "mini_batch_size": 128},
        {**SMOL, "rollout_batch_size": 32, "mini_batch_size": 32},
    ),
}
"""Each method's class and config, what it is, and its settings under toy and smol."""


@hookimpl
def register_methods(register: Register) -> None:
    for name, (method, config, summary, toy, smol) in METHODS.items():
        register(name, method, config=config, summary=summary, recipes={"toy": toy, "smol": smol})
