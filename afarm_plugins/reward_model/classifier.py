"""Any sequence classifier as a reward model: `classifier:ORG/NAME` or `classifier:DIRECTORY`.

It has its own format and tokenizer, so a policy's samples are decoded for it. The reward is the logit of a single
label, or the difference of two (label 1 less label 0, the log odds of "good"). A model saved by afarm, such as a fitted
one's artifact, is read as it was fitted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from afarm import (
    BuildContext,
    ConfigError,
    Instruction,
    ModelBackend,
    ModelError,
    Output,
    RewardModel,
    Score,
    TrainContext,
    local_path,
    model_identity,
    require_local,
    require_on_hub,
)
from afarm.backend import (
    PromptTemplate,
    TorchRewardModel,
    last_token_scores,
    length_sorted_batches,
    pad,
    quiet_transformers,
    render_chat,
    saved_by_afarm,
    without_lone_surrogates,
)
from afarm_plugins.reward_model import ClassifierConfig

logger = logging.getLogger(__name__)

CONFIG = "classifier.json"


class ClassifierRewardModel(RewardModel):
    """A classifier trained by others, a Hub id or a directory (`spec`), opened at its first score."""

    def __init__(self, config: ClassifierConfig, spec: str, context: BuildContext):
        """Load nothing yet. Raises `ConfigError` without a spec, `ModelError` if there is no classifier."""
        if not spec:
            raise ConfigError("name the model after a colon: classifier:ORG/NAME of the Hub, or classifier:DIRECTORY")
        self.config = config
        try:
            path = local_path(spec)
            inside = path / "model" if path else None  # of an artifact
            self.spec = str(inside) if saved_by_afarm(inside) else spec
            require_local(self.spec)
            require_on_hub(self.spec)
        except ModelError as error:  # its advice is for the base model
            raise ModelError(str(error).replace("check --model", f"check --reward-model classifier:{spec}")) from error
        directory = local_path(self.spec)
        file = directory / "config.json" if directory else None
        kinds = json.loads(file.read_text("utf-8")).get("architectures") if file and file.is_file() else None
        if kinds and not any("ForSequenceClassification" in kind for kind in kinds):
            raise ModelError(
                f"reward model {self.spec!r} is a {kinds[0]}, no sequence classifier: name one trained to score"
            )
        self._context = context

    @property
    def identity(self) -> str:
        """The Hub's commit, or a digest of the files."""
        return model_identity(self.spec)

    @cached_property
    def reader(self) -> Reader | TorchRewardModel:
        """The opened classifier. Raises `ModelError` if it cannot be loaded or gives no reward."""
        backend = self._context.backend()
        path = local_path(self.spec)
        if path and saved_by_afarm(path):
            return TorchRewardModel.read(path, backend)
        return Reader(self.spec, self.config, backend)

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        return self.reader.score(instructions, outputs) if outputs else []

    def score_outputs(self, outputs: Sequence[Output]) -> Sequence[Score]:
        reader = self.reader if outputs else None
        return reader.score_outputs(outputs) if isinstance(reader, TorchRewardModel) else super().score_outputs(outputs)

    def save(self, directory: Path) -> None:
        directory = Path(directory)
        self.reader.save(directory)
        (directory / CONFIG).write_text(self.config.model_dump_json() + "\n", "utf-8")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> ClassifierRewardModel:
        config = ClassifierConfig.model_validate_json((Path(directory) / CONFIG).read_text("utf-8"))
        return cls(config, str(directory), BuildContext(_none_other, backend=lambda: context.backend))


def _none_other(name: str) -> RewardModel:
    raise NotImplementedError(f"a classifier opens no reward model such as {name!r}")


class Reader:
    """A classifier that others trained, on the device, with its tokenizer and the format that it reads."""

    def __init__(self, spec: str, config: ClassifierConfig, backend: ModelBackend):
        self.config = config
        self.spec = spec
        self.backend = backend
        self.model: Any
        self.model, self.tokenizer, _ = backend.load(spec, _WithItsHead)
        self.model.eval()
        labels = self.model.config.num_labels
        if labels not in (1, 2):
            raise ModelError(
                f"reward model {spec!r} has {labels} labels: a reward is the logit of one, or the difference of two"
            )
        self.template = config.template
        if config.template == "auto":
            self.template = "chat" if self.tokenizer.chat_template else "pair"
        if self.template == "chat" and not self.tokenizer.chat_template:
            raise ModelError(f"reward model {spec!r} has no chat template: set classifier.template to pair or alpaca")
        positions = getattr(self.model.config, "max_position_embeddings", None) or config.max_length
        # Some count positions from the pad token's id, and have fewer than the config says.
        self.max_length = min(config.max_length, self.tokenizer.model_max_length, positions)

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        rows = self.encode(instructions, outputs)
        values = [0.0] * len(rows)
        for batch in length_sorted_batches([len(row["input_ids"]) for row in rows], self.config.per_device_batch_size):
            for i, value in zip(batch, self._logits([rows[i] for i in batch]).tolist(), strict=True):
                values[i] = value
        return [Score(value) for value in values]

    def encode(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[dict[str, list[int]]]:
        """Encode each row in at most `max_length` tokens; log how many were cut."""
        if self.template == "pair":
            encoded_pairs = [self._pair(_task(i), output) for i, output in zip(instructions, outputs, strict=True)]
            rows, cut = [row for row, _ in encoded_pairs], sum(was_cut for _, was_cut in encoded_pairs)
        elif self.template == "alpaca":
            encoded, cut = PromptTemplate("alpaca", self.tokenizer).encode(instructions, outputs, self.max_length)
            rows = [{"input_ids": [*prompt, *response]} for prompt, response in encoded]
        else:
            texts = [self._conversation(i, output) for i, output in zip(instructions, outputs, strict=True)]
            untruncated = self.tokenizer(texts, add_special_tokens=False).input_ids
            rows = [{"input_ids": row[-self.max_length :]} for row in untruncated]
            cut = sum(len(row) > self.max_length for row in untruncated)
        if cut:
            logger.warning("%d of %d outputs were cut to the reward model's %d tokens", cut, len(rows), self.max_length)
        return rows

    def _pair(self, task: str, output: str) -> tuple[dict[str, list[int]], bool]:
        """Encode task and output as two texts, and tell if they were cut: the task first, but for a token."""
        row = self.tokenizer(without_lone_surrogates(task), without_lone_surrogates(output))
        excess = max(0, len(row["input_ids"]) - self.max_length)
        dropped: set[int] = set()
        if excess:
            text = row.sequence_ids()  # of each token: 0 of the task, 1 of the output
            of_task, of_output = ([at for at, number in enumerate(text) if number == which] for which in (0, 1))
            dropped = set([*of_task[:-1], *reversed(of_output)][:excess])
        shortened = {k: [x for at, x in enumerate(row[k]) if at not in dropped] for k in row if k != "attention_mask"}
        return shortened, excess > 0

    def _conversation(self, instruction: Instruction, output: str) -> str:
        task = _task(instruction)
        turns = [{"role": m.role, "content": m.content} for m in instruction.messages]
        turns += [{"role": "user", "content": task}, {"role": "assistant", "content": output}]
        text, _ = render_chat(self.tokenizer, turns, f"classifier:{self.spec}", answer=False)
        return without_lone_surrogates(text)

    def _logits(self, rows: Sequence[dict[str, list[int]]]) -> torch.Tensor:
        """Compute the rewards [B] of encoded rows."""
        ids, mask = pad([r["input_ids"] for r in rows], self.tokenizer.pad_token_id, "right", self.backend.device)
        with torch.inference_mode():
            if hasattr(self.model, "score"):  # a decoder: read at the last real token
                logits = last_token_scores(self.model, ids, mask)
            else:
                types = [r["token_type_ids"] for r in rows if "token_type_ids" in r]
                more = {"token_type_ids": pad(types, 0, "right", self.backend.device)[0]} if types else {}
                logits = self.model(input_ids=ids, attention_mask=mask, **more).logits.float()
        return logits[:, 0] if logits.shape[-1] == 1 else logits[:, 1] - logits[:, 0]

    def save(self, directory: Path) -> None:
        with quiet_transformers():
            self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)


class _WithItsHead:
    """A loader of sequence classifiers that refuses a model without a head: transformers would invent it."""

    @staticmethod
    def from_pretrained(where: str, **options: Any) -> Any:
        model, found = AutoModelForSequenceClassification.from_pretrained(where, output_loading_info=True, **options)
        if missing := sorted(found["missing_keys"]):
            raise ModelError(
                f"reward model {where!r} is no sequence classifier: it has no weights for {', '.join(missing[:3])}; "
                "name one that was trained to score"
            )
        return model


def _task(instruction: Instruction) -> str:
    return "\n".join(filter(None, (instruction.instruction, instruction.input)))
