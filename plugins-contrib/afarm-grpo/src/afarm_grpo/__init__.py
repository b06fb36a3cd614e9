"""GRPO and the methods that are settings of it: Dr. GRPO, DAPO, GSPO, CISPO and RLOO."""

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


class GRPOConfig(OnPolicyConfig):
    """Settings of GRPO (Shao et al. 2024), by TRL's names; the other methods change some."""

    method_name: ClassVar[str] = "GRPO"

    num_generations: int = setting(8, "responses sampled per prompt, which are compared with each other", gt=1)
    reward: Literal["reward_model", "rating", "ranking"] = setting(
        "reward_model",
        "reward_model: its score; rating: the mark that the judge gives each response alone; ranking: the response's "
        "place in the judge's order of its group",
    )
    rubric: str = setting("", "what the judge is told to go by, in plain words (empty: afarm's own)")
    num_iterations: int = setting(1, "passes over each rollout", gt=0)
    learning_rate: float = setting(1e-6, "peak learning rate", gt=0)
    kl_coef: float = setting(0.04, "weight of the KL to the start policy (TRL's beta)", ge=0)
    kl_in: Literal["loss", "reward"] = setting(
        "loss",
        "loss: each token's KL (k3) is added to its loss; reward: each response's KL (k1) is taken off its reward",
    )
    use_bias_correction_kl: bool = setting(
        True,
        "multiply the KL in the loss by the ratio: its gradient is that of KL(π ‖ start) (DeepSeek-V3.2); false, as "
        "in GRPO's paper: its gradient is that of KL(start ‖ π)",
    )
    baseline: Literal["mean", "leave_one_out"] = setting(
        "mean", "what is subtracted from a reward: the mean of its group, or of the others in it"
    )
    scale_rewards: Literal["group", "batch", "none"] = setting(
        "group", "divide advantages by the rewards' standard deviation in the group or in the rollout"
    )
    loss_type: Literal["grpo", "dr_grpo", "dapo", "cispo"] = setting(
        "grpo",
        "grpo: mean over each response's tokens, then over responses; dr_grpo: sum over tokens, divided by responses × "
        "response_length; dapo: mean over all tokens; cispo: as dapo, and a clipped ratio only weighs its token",
    )
    importance_sampling_level: Literal["token", "sequence", "product"] = setting(
        "token",
        "the ratio π/π_old that is clipped: each token's; sequence: the geometric mean over the response (GSPO); "
        "product: the whole response's (RLOO)",
    )
    epsilon: float = setting(0.2, "how far the ratio may move below 1 before it is clipped", gt=0, lt=1)
    epsilon_high: float | None = setting(None, "how far above 1 (unset: epsilon)", gt=0)
    dynamic_sampling: int = setting(
        0, "further rollouts a step may sample to replace groups whose rewards are equal (0: none are replaced)", ge=0
    )
    overlong_share: float = setting(
        0.0, "last share of response_length over which overlong_penalty grows from 0 (0: no penalty)", ge=0, le=1
    )
    overlong_penalty: float = setting(1.0, "taken off the reward of a response of response_length tokens", gt=0)
    mask_truncated_completions: bool = setting(False, "learn nothing from responses that were cut off")

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        level = self.importance_sampling_level
        if level != "token" and self.loss_type != "grpo":
            raise ValueError(
                f"importance_sampling_level={level} is one ratio per response, loss_type={self.loss_type} sums tokens: "
                f"--set {self.section}.loss_type=grpo or --set {self.section}.importance_sampling_level=token"
            )
        return self


class GRPO(Method):
    """Raises the probability of responses with higher rewards than others to their prompt."""

    config: GRPOConfig
    needs = frozenset({"reward_model", "unlabeled"})
    measures_kl = True
    search_space = {
        "learning_rate": (1e-6, 1e-3),
        "kl_coef": (1e-3, 1.0),
        "num_generations": [4, 8, 16],
        "num_iterations": [1, 2, 4],
    }

    def __init__(self, config: GRPOConfig):
        super().__init__(config)
        if config.reward != "reward_model":
            self.needs = self.needs - {"reward_model"} | {"judge"}

    def plan_judging(self, instructions: Mapping[str, Sequence[Instruction]], judge: MethodJudge) -> None:
        config, tasks = self.config, instructions["unlabeled"]
        n, count = config.num_generations, config.total_steps * config.rollout_batch_size // config.num_generations
        asked = [tasks[number % len(tasks)] for number in range(count)]
        if config.reward == "rating":
            judge.rate([task for task in asked for _ in range(n)], [""] * n * count, rubric=config.rubric)
        elif config.reward == "ranking":
            judge.rank(asked, [[""] * n] * count, rubric=config.rubric)

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises `TrainingError` if it diverges before a checkpoint, `DataError` if no prompt is short enough."""
        from afarm_grpo.grpo import train_grpo

        return train_grpo(self.config, inputs, context)


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("policy optimisation relative to groups of responses, without a value model", {}),
    "dr_grpo": (
        "GRPO without its biases towards length and difficulty (Liu et al. 2025)",
        {"loss_type": "dr_grpo", "scale_rewards": "none", "kl_coef": 0.0},
    ),
    "dapo": (
        "GRPO with clip-higher, token-level loss, dynamic sampling and overlong shaping (Yu et al. 2025)",
        {
            "loss_type": "dapo",
            "kl_coef": 0.0,
            "epsilon_high": 0.28,
            "dynamic_sampling": 3,
            "overlong_share": 0.2,
        },
    ),
    "gspo": (
        "GRPO that clips a response's ratio, not a token's (Zheng et al. 2025)",
        {"importance_sampling_level": "sequence", "kl_coef": 0.0, "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    "cispo": (
        "GRPO whose clipped ratios are weights, so that every token learns (MiniMax 2025)",
        {"loss_type": "cispo", "kl_coef": 0.0, "epsilon_high": 4.0},
    ),
    "rloo": (
        "REINFORCE with the group's other responses as baseline (Ahmadian et al. 2024)",
        {
            "baseline": "leave_one_out",
            "scale_rewards": "none",
            "importance_sampling_level": "product",
            "kl_in": "reward",
            "num_generations": 4,
            "kl_coef": 0.05,
        },
    ),
}
"""What each name is, and its settings where they are not GRPO's."""

# The best of a few trials of GRPO: docs/methods/grpo.md. The other names inherit them, with their own defaults beside.
TOY: dict[str, Any] = {
    "total_steps": 24,
    "rollout_batch_size": 256,
    "mini_batch_size": 128,
    "per_device_train_batch_size": 32,
    "per_device_rollout_batch_size": 64,
    "num_iterations": 2,
    "learning_rate": 1e-4,
    "kl_coef": 0.32,
    "warmup_steps": 2,
    "max_prompt_length": 48,
    "response_length": 48,
    "save_steps": 5,
    "checkpoint": "last",
}
SMOL: dict[str, Any] = {
    "total_steps": 16,
    "rollout_batch_size": 64,
    "mini_batch_size": 32,
    "per_device_train_batch_size": 16,
    "per_device_rollout_batch_size": 64,
    "learning_rate": 5e-4,
    "kl_coef": 0.05,
    "warmup_steps": 1,
    "max_prompt_length": 128,
    "response_length": 48,
    "save_steps": 2,
    "checkpoint": "last",
    "lora": {"r": 16, "alpha": 32},
}


@hookimpl
def register_methods(register: Register) -> None:
    for name, (summary, defaults) in VARIANTS.items():
        recipes = {"toy": TOY, "smol": SMOL}
        register(name, GRPO, config=GRPOConfig, summary=summary, defaults=defaults, recipes=recipes)
