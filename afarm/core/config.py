"""Configs: the declaration of settings, and the configs that several plugins share.

Every config is a pydantic model that forbids unknown fields. Every field has a description and says if it changes the
result. Fields that do are part of an artifact's key; the others (batch sizes for memory, trackers) are not. Names
follow Hugging Face and TRL. No torch here.
"""

from __future__ import annotations

import datetime
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

Scheduler = Literal["linear", "cosine", "constant", "constant_with_warmup"]


class Config(BaseModel):
    """The base of every config: unknown fields are errors, values are checked, instances are frozen."""

    # Validators are built when a config is first used: building all plugins' at import took a quarter of the start.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    default_label_noise: ClassVar[float | None] = None
    """Of an annotator: the label noise where a command names the annotator and no noise; None for the recipe's."""

    @field_validator("*", mode="before")
    @classmethod
    def _read_as_meant(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's yes is true, and Python's true would pass for 1; one name is a list of one."""
        wanted = cls.model_fields[info.field_name].annotation if info.field_name else None
        if isinstance(value, bool) and {int, float} & {wanted, *get_args(wanted), *map(type, get_args(wanted))}:
            raise ValueError(f"must be a number, not {str(value).lower()}")
        return [value] if wanted == list[str] and isinstance(value, str) else value

    def result_fields(self) -> dict[str, Any]:
        """Return the settings that change the result, as JSON values: an artifact's key digests them."""
        dumped = self.model_dump(mode="json")
        values = {name: getattr(self, name) for name, info in type(self).model_fields.items() if changes_result(info)}
        return {name: v.result_fields() if isinstance(v, Config) else dumped[name] for name, v in values.items()}


def setting(default: Any, description: str, *, changes_result: bool = True, **constraints: Any) -> Any:
    """Declare a config field. `constraints` are pydantic's (`gt`, `ge`, `le` …).

    Pass `...` as default for a required field. If the default is another config, pass what makes it (its class, if that
    has all defaults): made here, every start would wait for its validators to be built.
    """
    arguments: dict[str, Any] = {"default_factory" if callable(default) else "default": default}
    arguments["json_schema_extra"] = {"changes_result": changes_result}
    return Field(description=description, **arguments, **constraints)


def changes_result(info: Any) -> bool:
    """Read from a config field if it changes the result; one that does not say so does."""
    extra = info.json_schema_extra
    return bool(extra.get("changes_result", True)) if isinstance(extra, dict) else True


class BackendConfig(Config):
    """Device and precision that models run in."""

    device: str = setting(
        "auto", "auto (an accelerator if any), cpu, cuda, cuda:1 or mps. Recorded, in no key", changes_result=False
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "float32",
        "weights and arithmetic: float32, bfloat16, float16, or auto (bfloat16 where the device computes in it, else "
        "float32). Keys and records hold what auto has chosen, and a run goes on in it",
    )
    mixed_precision: Literal["no", "bf16"] = setting(
        "no",
        "no or bf16 (fp16 would lose small gradients): weights stay in dtype and matrix products run in this one; with "
        "float32 weights small updates count, which weights in half precision would round away",
    )
    date: datetime.date = setting(
        datetime.date(2024, 7, 26), "the date that chat templates are told which write today's (Llama 3.2, Granite)"
    )
    thinking: bool = setting(
        False, "let policies think before they answer, if their chat template has a switch for it (Qwen3)"
    )
    sampler: str = setting(
        "torch",
        "engine that samples: torch, or a plugin's, such as vllm@URL; the keys of what is sampled name it and its "
        "version, not its URL",
    )
    threads: int = setting(
        0, "CPU threads for torch; 0 leaves torch's choice. Recorded, not part of a key", ge=0, changes_result=False
    )
    cpu_tuning: bool = setting(
        True, "on a CPU keep freed memory; on AMD's multiply float32 by oneDNN. In no key", changes_result=False
    )
    timeout: float = setting(600, "seconds that processes wait for one another", gt=0, changes_result=False)
    trackers: list[str] = setting([], "accelerate's trackers to log to (tensorboard, wandb)", changes_result=False)

    def result_fields(self) -> dict[str, Any]:
        """Leave out what chat templates are told unless it was set: earlier keys do not have it."""
        told = {name for name in ("date", "thinking") if getattr(self, name) == type(self).model_fields[name].default}
        return {name: value for name, value in super().result_fields().items() if name not in told}

    @field_validator("mixed_precision", mode="before")
    @classmethod
    def _yaml_reads_no_as_false(cls, value: object) -> object:
        return "no" if value is False else value


class LoraConfig(Config):
    """Low-rank adapters (Hu et al. 2021) instead of training every weight."""

    r: int = setting(16, "rank of the adapters", ge=1)
    alpha: float = setting(32, "the adapters' output is scaled by alpha / r", gt=0)
    dropout: float = setting(0.0, "dropout on the adapters' input", ge=0, lt=1)
    target_modules: str | list[str] = setting(
        "all-linear", "modules that get an adapter: all-linear (all but the output head), or a list of names"
    )


class TrainerConfig(Config):
    """Settings of training by epochs, like SFT; the defaults are the paper's for SFT (App. B)."""

    learning_rate: float = setting(2e-5, "peak learning rate of AdamW", gt=0)
    lr_scheduler_type: Scheduler = setting("cosine", "how the learning rate falls after warm-up")
    warmup_ratio: float = setting(0.03, "share of the steps over which the learning rate rises", ge=0, lt=1)
    num_train_epochs: float = setting(3.0, "passes over the data", gt=0)
    per_device_train_batch_size: int = setting(
        128, "examples in one forward pass; times gradient_accumulation_steps it is the batch of one step", ge=1
    )
    gradient_accumulation_steps: int = setting(1, "forward passes per step: raise it if memory is short", ge=1)
    weight_decay: float = setting(0.0, "AdamW's weight decay", ge=0)
    max_grad_norm: float = setting(1.0, "gradients are scaled down to this L2 norm", gt=0)
    max_length: int = setting(512, "tokens of prompt and response together; the excess is cut and counted", ge=2)
    gradient_checkpointing: bool = setting(
        False, "recompute activations in the backward pass: less memory, slower", changes_result=False
    )
    save_steps: int = setting(200, "most steps between checkpoints to resume from; 0: none", ge=0, changes_result=False)
    lora: LoraConfig | None = setting(None, "train adapters instead of all weights (unset: all weights)")


class CheckpointChoice(Config):
    """Settings of methods that may keep the best of their checkpoints: asking the annotator costs labels."""

    checkpoint: Literal["best", "last"] = setting(
        "last", "best: of the checkpoints, that with the highest win rate over the start policy on the validation split"
    )

    @cached_property
    def section(self) -> str:
        """The section of these settings in a recipe: the name that the method is registered under."""
        name: str = getattr(self, "method_name", type(self).__name__.removesuffix("Config"))
        return name.lower()  # until `Component.settings` says

    def model_post_init(self, context: Any, /) -> None:
        vars(self).update(context or {})


class OnPolicyConfig(CheckpointChoice):
    """Settings of methods that learn from their own responses, scored by a reward model."""

    method_name: ClassVar[str]
    """As messages write it, "PPO"; in lower case it is a part of every seed."""

    total_steps: int = setting(
        390,
        "rollouts collected and trained on; the learning rate falls to 0 over them (390: 10 passes of 20k prompts)",
        gt=0,
    )
    rollout_batch_size: int = setting(512, "responses sampled per step", gt=0)
    num_generations: int = setting(1, "responses sampled per prompt; rollout_batch_size is a multiple of it", gt=0)
    mini_batch_size: int = setting(256, "responses per optimiser step; the last of a pass may be smaller", gt=0)
    per_device_train_batch_size: int = setting(
        8, "responses per forward and backward pass; bounds memory", changes_result=False, gt=0
    )
    per_device_rollout_batch_size: int = setting(
        32, "responses sampled or scored at once; bounds memory", changes_result=False, gt=0
    )
    gradient_checkpointing: bool = setting(
        False, "recompute activations in the backward pass: less memory, more time", changes_result=False
    )
    learning_rate: float = setting(1e-5, "peak learning rate", gt=0)
    warmup_steps: int = setting(5, "steps over which the learning rate rises", ge=0)
    adam_epsilon: float = setting(1e-5, "Adam's ε", gt=0)
    max_grad_norm: float = setting(1.0, "L2 norm that gradients are clipped to", gt=0)
    kl_coef: float = setting(0.05, "weight of the KL to the start policy at each token", ge=0)
    max_kl: float | None = setting(
        200.0, "training stops if the KL exceeds it, in nats per response; the checkpoint kept before counts", gt=0
    )
    temperature: float = setting(1.0, "temperature of rollouts", gt=0)
    max_prompt_length: int = setting(192, "tokens; longer prompts are left out and counted", gt=0)
    response_length: int = setting(300, "tokens after which a response is cut off", gt=0)
    lora: LoraConfig | None = setting(
        None, "train low-rank adapters instead of all weights, which are then held once (unset: all weights)"
    )
    save_steps: int = setting(20, "steps between checkpoints, to resume from and to choose from", gt=0)

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        sizes = self.rollout_batch_size, self.mini_batch_size
        if sizes[1] > sizes[0]:
            raise ValueError(f"mini_batch_size ({sizes[1]}) exceeds rollout_batch_size ({sizes[0]})")
        if sizes[0] % self.num_generations:
            raise ValueError(f"rollout_batch_size ({sizes[0]}) must be a multiple of num_generations")
        if self.warmup_steps >= self.total_steps:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) must be below total_steps ({self.total_steps}): "
                f"--set {self.section}.warmup_steps={self.total_steps // 10}"
            )
        if self.lora is not None and self.lora.dropout:
            raise ValueError("lora.dropout has no effect here: dropout is off throughout")
        return self
