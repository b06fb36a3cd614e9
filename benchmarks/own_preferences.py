"""A reward model fitted to people's preferences of one's own: `python -m benchmarks.own_preferences FILE`.

The model is tiny (two layers, from random weights, with a tokenizer made from the file's texts, labels unseen), so that
this takes minutes on a CPU: it shows that the way from a file to a reward model works, not how good one can be. Each
seed holds out other prompts. Pairs held out by several seeds make their errors depend on each other, so the interval is
over the seeds' accuracies, and beside it that of chance for pairs as many as one seed holds out.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

from afarm import Farm, Unusable, own_preferences

VOCABULARY = 4096
EPOCHS, HELD_OUT, LONGEST = 3, 0.2, 256
CHAT = (
    "{% for turn in messages %}<|{{ turn['role'] }}|>{{ turn['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = tiny_base(given.file, Path(directory) / "model")
        found = [accuracy(given.file, model, seed, Path(directory) / "out") for seed in range(given.seeds)]
    for seed, (share, pairs) in enumerate(found):
        sys.stdout.write(f"seed {seed}: {100 * share:.1f} % of {pairs} held-out pairs\n")
    shares = [share for share, _ in found]
    error = stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan
    chance = 50 / math.sqrt(found[0][1])
    sys.stdout.write(
        f"mean {100 * fmean(shares):.1f} % ± {100 * error:.1f} (standard error over seeds); "
        f"chance alone: 50 % ± {chance:.1f} for one seed\n"
    )


def tiny_base(file: str, directory: Path) -> Path:
    """Save a random two-layer Llama with a chat template and a tokenizer of the file's texts."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<pad>", "<end>", "<|user|>", "<|assistant|>", "<|system|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts(file), trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    wrapped.chat_template = CHAT
    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    LlamaForCausalLM(settings).save_pretrained(directory)
    wrapped.save_pretrained(directory)
    return directory


def texts(file: str) -> Iterator[str]:
    """Yield every text of the file."""
    for judged in own_preferences(file, Unusable()):
        pair = judged.pair
        yield from (turn.content for turn in pair.instruction.messages)
        yield from (pair.instruction.instruction, pair.output_1, pair.output_2)


def accuracy(file: str, model: Path, seed: int, directory: Path) -> tuple[float, int]:
    """Fit a reward model; return its share of held-out pairs that it orders as people did, and their number."""
    section = {
        "num_train_epochs": EPOCHS,
        "eval_fraction": HELD_OUT,
        "max_length": LONGEST,
        "learning_rate": 1e-3,
        "head_learning_rate": 1e-3,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 1,
        "lora": None,
    }
    settings = [{"bradley_terry": section, "rows": {"evaluation": 1, "unlabeled": 1}, "prompts": SHARES}]
    choices = {"model": str(model), "preferences": file, "on_unusable": "drop", "seed": seed}
    with Farm("smol", settings=settings, output_dir=directory, **choices) as farm:
        farm.fit_reward()
        summary = farm.workspace.history["fit-reward"].artifact.meta["summary"]
    return summary["eval_accuracy"], int(summary["eval_pairs"])


SHARES = {"shares": {"unlabeled": 0.5, "evaluation": 0.01}}
"""Almost all prompts: the reward model holds out its own."""

if __name__ == "__main__":
    main()
