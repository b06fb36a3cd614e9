"""Tiny models: a random Llama with a word-level tokenizer runs real code paths in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from afarm.core.config import Config
from afarm.core.interfaces import Decoding, MethodInputs
from afarm.core.judge import ChatRequest
from afarm.core.records import Output, Pair, Preference
from afarm.core.seeding import uniform
from afarm.judging.labelling import rule_or_noise
from afarm.judging.method_judge import PromptedJudge
from afarm.testing.contexts import KeyedReward
from afarm.testing.examples import make_instructions, separable_preferences
from afarm.testing.fake_judge import Answer, FakeJudgeClient

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from afarm.backend import CheckpointPolicy, TorchRewardModel

LABEL_NOISE = 0.25
"""The paper's share of flipped labels, which `tiny_inputs` gives online methods."""

UNREADABLE = 0.125
"""The share of answers to a method's own questions that cannot be read."""

WORDS = [f"w{i}" for i in range(40)]
SPECIAL = ["<pad>", "<eos>", "<unk>", "<q>", "<a>"]
CHAT_TEMPLATE = "{% for m in messages %}<q> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}<a>{% endif %}"

TINY: Mapping[str, Any] = {
    "total_steps": 4,
    "max_steps": 4,
    "rollout_batch_size": 8,
    "mini_batch_size": 4,
    "num_ppo_epochs": 1,
    "num_train_epochs": 1,
    "num_iterations": 2,
    "num_rounds": 2,
    "per_device_train_batch_size": 4,
    "per_device_rollout_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "warmup_steps": 1,
    "save_steps": 2,
    "learning_rate": 0.01,
    "head_learning_rate": 0.01,
    "max_length": 48,
    "max_prompt_length": 32,
    "max_new_tokens": 6,
    "max_completion_length": 6,
    "response_length": 6,
    "n": 3,
    "num_samples": 3,
    "standardize_outputs": 16,
}
"""Values of settings by their names in transformers and TRL, with which training takes seconds."""


def tiny_config(config: type[Config] | None, **values: Any) -> Any:
    """Build `config` with `TINY`'s values for the settings it has, and `values` over them; None for None."""
    if config is None:
        return None
    shared = {name: value for name, value in TINY.items() if name in config.model_fields}
    return config.model_validate(shared | values)


def tiny_policy(
    seed: int = 0, *, tokenizer: PreTrainedTokenizerFast | None = None, **settings: Any
) -> CheckpointPolicy:
    """Make a random policy over 45 tokens (w0 … w39 and special ones); `settings` are `LlamaConfig`'s."""
    from afarm.backend import Backend, CheckpointPolicy, PromptTemplate
    from afarm.core.config import BackendConfig

    tokenizer = tokenizer or tiny_tokenizer()
    template, backend = PromptTemplate("auto", tokenizer), Backend(BackendConfig(device="cpu"))
    return CheckpointPolicy(tiny_model(seed, **settings), tokenizer, template, backend)


def tiny_model(seed: int = 0, **settings: Any) -> LlamaForCausalLM:
    """Make a random Llama for `tiny_tokenizer`, equal for equal seeds; `settings` are `LlamaConfig`'s."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    defaults = {
        "vocab_size": len(SPECIAL) + len(WORDS),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
        "initializer_range": 0.3,  # far enough from uniform that a wrong position or mask shows
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**(defaults | settings))).eval()


def tiny_tokenizer(pad_token: str = SPECIAL[0], chat: bool = True) -> PreTrainedTokenizerFast:
    """Make a tokenizer of one token per word: the special ones, then w0 … w39. `chat` adds a template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=pad_token,
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<q>", "<a>"],
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_reward_model(policy: CheckpointPolicy | None = None, seed: int = 0) -> TorchRewardModel:
    """Make a reward model with the policy's backbone and a random head."""
    import torch

    from afarm.backend import TorchRewardModel

    policy = policy or tiny_policy()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = TorchRewardModel.make_classifier(policy, head_std=0.1).eval()
    return TorchRewardModel(classifier, policy.tokenizer, policy.template, policy.backend)


def tiny_inputs(needs: Iterable[str], count: int = 16) -> MethodInputs:
    """Make inputs for a method with these `needs`; others are empty, as in a run.

    `annotate` flips a quarter of its labels unless they are to be `noiseless`. `judge` answers by `KeyedReward`, and in
    one of eight cases so that it cannot be read.
    """
    needs = set(needs)
    start = tiny_policy()
    instructions = make_instructions(3 * count)
    pairs = separable_preferences(count)
    demonstrations = [
        Output(instruction, " ".join(WORDS[i % 30 : i % 30 + 1 + i % 4]), "demonstrator")
        for i, instruction in enumerate(instructions[:count])
    ]
    return MethodInputs(
        start=start,
        preferences=pairs if "preferences" in needs else (),
        feedback=[thumb for judged in pairs for thumb in judged.feedback] if "feedback" in needs else (),
        reward_model=tiny_reward_model(start) if "reward_model" in needs else None,
        unlabeled=instructions[count : 2 * count] if "unlabeled" in needs else (),
        demonstrations=demonstrations if {"demonstrations", "all_demonstrations"} & needs else (),
        validation=instructions[2 * count : 2 * count + 4] if "validation" in needs else (),
        annotate=_prefer_by_key if "annotator" in needs else None,
        judge=scripted_judge() if "judge" in needs else None,
        decoding=Decoding(max_new_tokens=6),
    )


def _prefer_by_key(pairs: Sequence[Pair], *, noiseless: bool = False) -> list[Preference]:
    """Prefer the output with the higher `KeyedReward`, with label noise as in a run."""
    reward = KeyedReward()
    preferences = []
    for pair in pairs:
        first, second = reward.score([pair.instruction] * 2, [pair.output_1, pair.output_2])
        settled = rule_or_noise(pair, 0, 0.0 if noiseless else LABEL_NOISE)
        preferences.append(settled or Preference(pair.id, float(second.value > first.value)))
    return preferences


def scripted_judge(answer: Answer | None = None) -> PromptedJudge:
    """Make a method's judge without a farm; `answer` writes its replies, by default as in `tiny_inputs`."""
    client = FakeJudgeClient(answer or _judge_by_key)
    return PromptedJudge(lambda: client, "tiny")


def _judge_by_key(request: ChatRequest) -> str:
    """Rate, rank or criticise in this vocabulary; one answer in eight cannot be read."""
    shown = request.comparisons
    if uniform("unreadable", [pair.pair_id for pair in shown]) < UNREADABLE:
        return "" if request.answer_format == "critique" else "I cannot say."
    scores = KeyedReward().score([pair.instruction for pair in shown], [pair.first for pair in shown])
    if request.answer_format == "ranking":
        return " > ".join(str(1 + i) for i in sorted(range(len(scores)), key=lambda i: -scores[i].value))
    share = (1 + scores[0].value) / 2
    return request.labels[int(share * len(request.labels))] if request.labels else f"w{int(share * len(WORDS))} w0"
