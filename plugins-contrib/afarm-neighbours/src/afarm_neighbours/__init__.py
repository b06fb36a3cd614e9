"""Neighbours of RLHF: other ways to learn from feedback, and what got worse while the mean got better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from afarm import (
    CheckpointChoice,
    Config,
    Instruction,
    Method,
    MethodInputs,
    MethodJudge,
    OnPolicyConfig,
    Policy,
    Register,
    RewardModel,
    TrainContext,
    TrainerConfig,
    hookimpl,
    setting,
)


class ChainOfHindsightConfig(CheckpointChoice, TrainerConfig):
    """Chain of Hindsight (Liu et al. 2023). What it does not set is as in SFT."""

    learns_pairs: ClassVar[bool] = True
    """An example is two responses: `afarm memory` counts both."""

    control: Literal["text", "token"] = setting(
        "text", "what says how good an output is: the two texts below, or two tokens added to the vocabulary"
    )
    good_text: str = setting(
        "A good response follows.\n\n", "in front of better outputs, and of prompts to sample", min_length=1
    )
    bad_text: str = setting("A bad response follows.\n\n", "in front of worse outputs", min_length=1)
    order: Literal["both", "worse_first", "better_first"] = setting(
        "both", "the order of a pair's outputs in a sequence; both: a sequence for each order"
    )
    mask_ratio: float = setting(
        0.05, "hide at most this share of a sequence's tokens from those after them, drawn anew each step", ge=0, lt=1
    )
    demonstration_weight: float = setting(
        0.0, "weight of a demonstration's token, learned so that the start is not forgotten (0: none are)", ge=0
    )
    max_length: int = setting(
        1024, "tokens of prompt, both outputs and phrases together; the excess is cut and counted", ge=2
    )

    @model_validator(mode="after")
    def _texts_differ(self) -> Self:
        if self.good_text == self.bad_text:
            raise ValueError("good_text and bad_text are the same: nothing would tell good from bad outputs")
        return self


class ChainOfHindsight(Method):
    """Learns both outputs of pairs in one sequence, behind phrases; asks for good ones."""

    config: ChainOfHindsightConfig
    needs = frozenset({"preferences"})
    samples = False
    search_space = {"learning_rate": (1e-6, 1e-3), "num_train_epochs": [1, 2, 3], "mask_ratio": [0.0, 0.05, 0.15]}

    def __init__(self, config: ChainOfHindsightConfig):
        super().__init__(config)
        if config.demonstration_weight:
            self.needs = self.needs | {"demonstrations"}

    def check(self, reward_model: type[RewardModel] | None = None) -> Sequence[str]:
        if self.config.lora is None or self.config.control == "text":
            return ()
        return (
            "LoRA freezes the embeddings, so new tokens would never be learned; "
            f"use --set {self.config.section}.control=text",
        )

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_neighbours.hindsight import train_hindsight

        return train_hindsight(self.config, inputs, context)


def require_words(setting_name: str, text: str, words: Sequence[str]) -> None:
    """Raise `ValueError` unless the text holds each word behind a $, and no other."""
    template = Template(text)
    if not template.is_valid() or {*words} != {*template.get_identifiers()}:
        wanted = ", ".join(f"${word}" for word in words)
        raise ValueError(f"{setting_name} must hold {wanted}, and no other word behind a $ (a plain one is written $$)")


class LanguageFeedbackConfig(CheckpointChoice, TrainerConfig):
    """Imitation learning from language feedback (Scheurer et al. 2023). What it does not set is as in SFT."""

    num_prompts: int | None = setting(
        None, "unlabeled instructions to answer, the first ones: two questions to the judge each (unset: all)", gt=0
    )
    n: int = setting(8, "refinements sampled of each answer, of which the best is learned", ge=1)
    choose_by: Literal["judge", "reward_model"] = setting(
        "judge", "who ranks the refinements: the judge, or the reward model"
    )
    learn: Literal["best", "better"] = setting(
        "best", "best: the best refinement of each answer; better: only if it is ranked above the answer"
    )
    rubric: str = setting("", "what the judge is told to go by, in plain words (empty: afarm's own)")
    refine_text: str = setting(
        "$task\n\nHere is an answer to this task:\n$answer\n\nIt was criticised so:\n$criticism\n\n"
        "Write a better answer to the task, and nothing else.",
        "what the policy is asked, with the words $task, $answer and $criticism",
    )
    temperature: float = setting(1.0, "temperature of answers and refinements", gt=0)
    response_length: int = setting(300, "tokens after which an answer or a refinement is cut off", gt=0)
    per_device_rollout_batch_size: int = setting(
        32, "responses sampled at once; bounds memory", changes_result=False, gt=0
    )

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.response_length >= self.max_length:
            raise ValueError(
                f"response_length ({self.response_length}) leaves no room for a prompt in max_length "
                f"({self.max_length}): --set {self.section}.max_length={2 * self.response_length}"
            )
        require_words("refine_text", self.refine_text, ("task", "answer", "criticism"))
        return self


def chosen_prompts(config: LanguageFeedbackConfig, unlabeled: Sequence[Instruction]) -> Sequence[Instruction]:
    """Return the instructions that are answered."""
    return unlabeled[: config.num_prompts]


class LanguageFeedback(Method):
    """Learns the best refinement of each of its answers, written after the judge's criticism."""

    config: LanguageFeedbackConfig
    needs = frozenset({"judge", "unlabeled"})
    search_space = {"learning_rate": (1e-6, 1e-3), "n": [4, 8, 16], "num_train_epochs": [1, 2, 3]}

    def __init__(self, config: LanguageFeedbackConfig):
        super().__init__(config)
        if config.choose_by == "reward_model":
            self.needs = self.needs | {"reward_model"}

    def plan_judging(self, instructions: Mapping[str, Sequence[Instruction]], judge: MethodJudge) -> None:
        tasks, n = chosen_prompts(self.config, instructions["unlabeled"]), self.config.n
        judge.criticise(tasks, [""] * len(tasks), rubric=self.config.rubric)
        if self.config.choose_by == "judge":
            judge.rank(tasks, [[""] * (1 + n) for _ in tasks], rubric=self.config.rubric)

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        from afarm_neighbours.language_feedback import train_on_refinements

        return train_on_refinements(self.config, inputs, context)


class SegmentConfig(OnPolicyConfig):
    """A policy gradient on rewards of segments, which are differences of a reward model's scores."""

    method_name: ClassVar[str] = "segment_reinforce"

    segment_at: str = setting(".!?\n", "a segment ends behind a token whose text ends in one of these", min_length=1)
    segment_tokens: int = setting(4, "fewest tokens of a segment; shorter segments are merged with the next one", gt=0)
    gamma: float = setting(
        1.0, "how much a segment learns from the one after it; 0: each from its own reward alone", ge=0, le=1
    )
    num_iterations: int = setting(1, "passes over each rollout", gt=0)
    epsilon: float = setting(0.2, "how far the ratio π/π_old may move from 1 before it is clipped", gt=0, lt=1)


class SegmentReinforce(Method):
    """Raises the probability of the segments of responses that add to the reward model's score."""

    config: SegmentConfig
    needs = frozenset({"reward_model", "unlabeled"})
    measures_kl = True
    search_space = {"learning_rate": (1e-6, 1e-3), "kl_coef": (1e-3, 1.0), "gamma": [0.0, 0.5, 1.0]}

    def train(self, inputs: MethodInputs, context: TrainContext) -> Policy:
        """Raises `TrainingError` if it diverges before a checkpoint, `DataError` if no prompt is short enough."""
        from afarm_neighbours.segments import train_segments

        return train_segments(self.config, inputs, context)


class PTrueConfig(Config):
    """The question whether an answer is good, as a policy is asked."""

    section: ClassVar[str] = "p_true"

    judge_text: str = setting(
        "Task:\n$task\n\nProposed answer:\n$answer\n\nIs the proposed answer a good one? Reply yes or no, and nothing "
        "else.",
        "what it is asked, with the words $task and $answer",
    )
    yes: str = setting("yes", "the reply that means a good answer", min_length=1)
    no: str = setting("no", "the reply that means a bad one", min_length=1)
    max_length: int = setting(1024, "tokens of question and reply; the excess is cut from the beginning", ge=2)
    per_device_batch_size: int = setting(16, "outputs judged in one forward pass", ge=1, changes_result=False)

    @model_validator(mode="after")
    def _question_is_whole(self) -> Self:
        require_words("judge_text", self.judge_text, ("task", "answer"))
        return self


class SelfRewardConfig(PTrueConfig, TrainerConfig):
    """A self-judge fitted from the start policy. What it does not set is as in SFT."""

    section: ClassVar[str] = "self_reward"

    learn: bool = setting(True, "first learn to say yes of better outputs and no of worse ones; false: judge as it is")
    eval_fraction: float = setting(0.05, "share of the instructions held out to measure on", ge=0, lt=1)
    num_train_epochs: float = setting(1.0, "passes over the preferences", gt=0)


# Rates, passes and batches are those of reward conditioning, which were searched for it: docs/notes/toy-trials.md.
HINDSIGHT_TOY: dict[str, Any] = {
    "control": "token",  # the vocabulary of the toy world has no word for good
    "learning_rate": 1.55e-4,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "max_length": 160,
}
HINDSIGHT_SMOL: dict[str, Any] = {
    "learning_rate": 2.0e-4,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_length": 384,
    "lora": {"r": 16, "alpha": 32},
}
# As expert iteration, the nearest method that was searched. The toy world's model follows no request to refine.
FEEDBACK_TOY: dict[str, Any] = {
    "refine_text": "$answer $criticism $task",
    "learn": "better",
    "n": 4,
    "response_length": 48,
    "per_device_rollout_batch_size": 256,
    "learning_rate": 1.31e-3,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "max_length": 96,
}
FEEDBACK_SMOL: dict[str, Any] = {
    "num_prompts": 256,
    "n": 4,
    "response_length": 48,
    "per_device_rollout_batch_size": 128,
    "learning_rate": 1.7e-3,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_length": 256,
    "lora": {"r": 16, "alpha": 32},
}
# As GRPO, which has no value model either: docs/methods/grpo.md.
SEGMENTS_TOY: dict[str, Any] = {
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
}
SEGMENTS_SMOL: dict[str, Any] = {
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
    "lora": {"r": 16, "alpha": 32},
}


@hookimpl
def register_methods(register: Register) -> None:
    register(
        "chain_of_hindsight",
        ChainOfHindsight,
        config=ChainOfHindsightConfig,
        summary="worse and better output in one sequence behind phrases, sampled behind the good one",
        recipes={"toy": HINDSIGHT_TOY, "smol": HINDSIGHT_SMOL},
    )
    register(
        "language_feedback",
        LanguageFeedback,
        config=LanguageFeedbackConfig,
        summary="SFT on refinements of its own answers, written after a judge's criticism",
        recipes={"toy": FEEDBACK_TOY, "smol": FEEDBACK_SMOL},
    )
    register(
        "segment_reinforce",
        SegmentReinforce,
        config=SegmentConfig,
        summary="a clipped policy gradient on what each sentence adds to the reward model's score",
        recipes={"toy": SEGMENTS_TOY, "smol": SEGMENTS_SMOL},
    )


SELF_REWARD_TOY: dict[str, Any] = {  # as the Bradley-Terry reward model, with the rate of SFT
    "learning_rate": 1.0e-3,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 2,
    "per_device_batch_size": 256,
}
SELF_REWARD_SMOL: dict[str, Any] = {
    "learning_rate": 3.0e-4,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_length": 384,
    "lora": {"r": 16, "alpha": 32},
}


@hookimpl
def register_reward_models(register: Register) -> None:
    register(
        "self_reward",
        "afarm_neighbours.self_judging:SelfReward",
        config=SelfRewardConfig,
        summary="the start policy as judge of answers: log odds of its yes, after learning to judge by preferences",
        recipes={"toy": SELF_REWARD_TOY, "smol": SELF_REWARD_SMOL},
    )
    register(
        "p_true",
        "afarm_neighbours.self_judging:PTrue",
        config=PTrueConfig,
        summary="any model as judge of answers, as it is: p_true:ORG/NAME of the Hub, or p_true:DIRECTORY",
        spec="MODEL",
    )


@hookimpl
def register_sections(sections: dict[str, Any]) -> None:
    from afarm_neighbours.regressions import write_section

    sections["Regressions"] = write_section


@hookimpl
def register_commands(app: Any) -> None:
    from afarm_neighbours.command import add_commands

    add_commands(app)
