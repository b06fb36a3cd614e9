"""Settings of a run: the parts that it is made of, and what belongs to no plugin."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import field_validator

from afarm.core.config import BackendConfig, Config, setting
from afarm.core.errors import ConfigError, did_you_mean
from afarm.core.interfaces import Decoding
from afarm.storage.label_scales import LabelScale
from afarm.storage.text import without_keys

ALL: Final = "all"
Rows = int | Literal["all"]
"""A number of rows, or all of a split."""


class RowsConfig(Config):
    """The rows of each split that are used, from the first on; `all` (or null) takes all."""

    sft: Rows = setting(ALL, "demonstrations for SFT; all: every one")
    preference: Rows = setting(ALL, "instructions for which samples are compared; all: every one")
    unlabeled: Rows = setting(ALL, "instructions that methods sample on (PPO, expert iteration); all: every one")
    validation: Rows = setting(ALL, "instructions to choose checkpoints on; all: every one")
    evaluation: Rows = setting(ALL, "instructions on which systems are compared; all: every one")

    @field_validator("*", mode="before")
    @classmethod
    def _is_a_number_or_all(cls, value: object) -> object:
        if value is None or value == ALL:
            return ALL
        try:
            number = None if isinstance(value, bool) else int(str(value))
        except ValueError:
            number = None
        if number is None:
            raise ValueError(f"must be a number of rows, or all, not {value!r}")
        if number < 1:
            raise ValueError(f"{number} takes no rows: write a number from 1, or all for every row")
        return number


class SampleConfig(Config):
    """The sampling of the outputs to be compared, from the SFT policy (paper, section 3.1)."""

    n: int = setting(2, "outputs for each instruction; each two in turn make a pair", ge=2)
    temperature: float = setting(1.0, "sampling temperature", ge=0)
    top_p: float = setting(1.0, "nucleus sampling: the share of probability kept", gt=0, le=1)
    max_new_tokens: int = setting(300, "the longest response, in tokens", gt=0)
    per_device_batch_size: int = setting(64, "rows sampled at once: memory and speed", gt=0, changes_result=False)

    @property
    def decoding(self) -> Decoding:
        """The decoding of these outputs."""
        return Decoding(self.temperature, self.top_p, self.max_new_tokens, self.n, self.per_device_batch_size)


class AnnotateConfig(Config):
    """The training labels: their annotator and noise (paper, section 3.2 and appendix C)."""

    annotator: str = setting("pool", "the annotator of the training labels")
    label_noise: float = setting(
        0.25, "share of labels flipped: a pair is left to a fair coin with twice this probability", ge=0, le=0.5
    )


class EvaluateConfig(Config):
    """The comparison of a policy with its reference (paper, section 3.3)."""

    annotator: str = setting("pool", "the annotator that judges")
    label_noise: float = setting(0.0, "share of judgements flipped", ge=0, le=0.5)
    label_seed: int | None = setting(
        None, "the seed of the judgements' draws, if not the run's: further labels of the same outputs", ge=0
    )
    reference: Literal["sft", "data"] = setting(
        "sft", "what systems are compared with: sft, or data (the data set's own outputs)"
    )
    split: Literal["evaluation", "validation"] = setting(
        "evaluation",
        "the instructions that systems are compared on: evaluation, or validation while settings are still chosen",
    )
    evaluators: list[str] = setting(["win_rate", "reward"], "evaluators to run", min_length=1)
    temperature: float = setting(0.7, "sampling temperature of the outputs that are judged", ge=0)
    top_p: float = setting(1.0, "nucleus sampling of those outputs", gt=0, le=1)
    max_new_tokens: int = setting(300, "the longest output, in tokens", gt=0)
    per_device_batch_size: int = setting(64, "rows sampled at once: memory and speed", gt=0, changes_result=False)

    @property
    def decoding(self) -> Decoding:
        """The decoding of systems that are compared, unless they ask for something else."""
        return Decoding(self.temperature, self.top_p, self.max_new_tokens, 1, self.per_device_batch_size)


class AnswersConfig(Config):
    """The request to a judge LLM that answers the instructions itself (paper, section 4: API baselines)."""

    system_prompt: str = setting(
        "You are a helpful assistant. Your whole answer must be shorter than {max_characters} characters.",
        "what it is told first; {max_characters} stands for the number below",
    )
    max_characters: int = setting(
        1000, "the length it is asked to keep to (the paper: 1000 for ChatGPT, 500 for GPT-4)", gt=0
    )
    max_tokens: int = setting(1024, "the longest answer, in tokens", gt=0)
    temperature: float = setting(0.7, "sampling temperature of its answers", ge=0)

    @property
    def prompt(self) -> str:
        """The system prompt with its number."""
        return self.system_prompt.replace("{max_characters}", str(self.max_characters))


JUDGE_ROLES = ("strong", "light", "completion", "*")


class RunConfig(Config):
    """A run: its parts, and the settings of no plugin. A plugin's own are a section by its name."""

    summary: str = setting("", "one line about the recipe", changes_result=False)
    model: str = setting(..., "the base model: a Hub id, a local directory, a .gguf file, or pkg:<package>/<path>")
    prompt_template: str = setting(
        "auto",
        "chat (the tokenizer's own), alpaca (plain text sections), auto (the first if there is one), dialogue or "
        "summary (for base models), or a .jinja or .json file of your own",
    )
    start: Literal["sft", "model"] = setting(
        "sft", "sft trains the base model on demonstrations first; model starts from it as it is"
    )
    dataset: str = setting("toy", "the data set")
    eval_set: str = setting(
        "",
        "where the evaluation instructions and their outputs come from: another data set by its name, a file, or "
        "hf:OWNER/NAME[/CONFIGURATION][:SPLIT]; empty for the data set's own",
    )
    preferences: str = setting(
        "",
        "your own preferences to train on, instead of labelled samples: a file, or "
        "hf:OWNER/NAME[/CONFIGURATION][:SPLIT]; empty for samples that the annotator labels",
    )
    on_unusable: Literal["error", "drop"] = setting(
        "error", "rows of `preferences` that cannot be learned from: error, or drop"
    )
    labels: str = setting(
        "",
        "the labels of the first output, the second and a draw in `preferences`, such as 0,1 or A,B,tie; empty for "
        "1,2,0, a number between being weighted",
    )
    method: str = setting("ppo", "the method")
    reward_model: str = setting("bradley_terry", "the reward model that is fitted or used")
    judge: dict[str, str] = setting(
        {}, "the judge for each family role (strong, light, completion; * for all), or one for all; null: nobody"
    )
    seed: int = setting(42, "the seed that all draws derive from", ge=0)
    budget: float | None = setting(None, "dollars that judges may cost in this run", ge=0, changes_result=False)
    prices: str = setting("", "a YAML file of prices, by judge spec; see docs/guides/costs.md", changes_result=False)
    price: dict[str, str] = setting(
        {},
        "prices by judge spec, as INPUT/OUTPUT or INPUT/OUTPUT/CACHED in dollars per million tokens",
        changes_result=False,
    )
    max_concurrency: int = setting(
        64,
        "requests in flight at once to each judge; fewer while it says that this is too much",
        gt=0,
        changes_result=False,
    )
    allow_degraded: bool = setting(
        False, "leave out what a judge cannot take (a temperature, say) instead of refusing; every label then says so"
    )
    batch_api: bool = setting(
        False,
        "ask through the batch endpoints of judges that have one: half the price, an answer within a day",
        changes_result=False,
    )
    batch_poll_seconds: float = setting(
        60.0, "seconds between two looks at a pending batch", gt=0, changes_result=False
    )
    rows: RowsConfig = setting(RowsConfig, "rows used of each split")
    sample: SampleConfig = setting(SampleConfig, "the outputs to compare")
    annotate: AnnotateConfig = setting(AnnotateConfig, "the training labels")
    evaluate: EvaluateConfig = setting(EvaluateConfig, "the comparison with the reference")
    answers: AnswersConfig = setting(AnswersConfig, "judge LLMs that answer the instructions themselves")
    backend: BackendConfig = setting(BackendConfig, "devices and precision")

    @field_validator("labels")
    @classmethod
    def _is_a_scale(cls, labels: str) -> str:
        if labels:
            try:
                LabelScale.parse(labels)
            except ConfigError as error:
                raise ValueError(str(error).removeprefix("labels: ")) from error
        return labels

    @field_validator("judge", mode="before")
    @classmethod
    def _one_judge_is_for_all_roles(cls, judge: object) -> object:
        return {"*": judge} if isinstance(judge, str) else judge or {}

    @field_validator("judge")
    @classmethod
    def _refuse_unknown_roles(cls, judge: dict[str, str]) -> dict[str, str]:
        unknown = [f"unknown role {role!r}.{did_you_mean(role, JUDGE_ROLES)}" for role in judge.keys() - JUDGE_ROLES]
        with_keys = [role for role, spec in judge.items() if without_keys(spec) != spec]  # or a user name, parameters
        unknown += [f"{role}: a key goes into an environment variable, never into a URL" for role in with_keys]
        if unknown:
            raise ValueError("; ".join(sorted(unknown)))
        return judge
