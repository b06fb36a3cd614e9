"""Reward models on a sequence classifier, and ensembles of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from afarm.backend.adapters import merged_copy, save_merged, sharing_copy
from afarm.backend.batching import length_sorted_batches, pad
from afarm.backend.cpu import use_onednn
from afarm.backend.logprobs import backbone, base_model, evaluating, hidden_states, position_limit
from afarm.backend.models import describe_model, quiet_transformers, require_finite
from afarm.backend.policy import CheckpointPolicy
from afarm.backend.product_attention import use_product_attention
from afarm.backend.prompts import PromptTemplate
from afarm.backend.sharding import in_step, on_device
from afarm.core.errors import ModelError
from afarm.core.interfaces import ModelBackend, Policy, RewardModel, TrainContext
from afarm.core.records import Instruction, JudgedPair, Output, Sample, Score
from afarm.storage.names import require_plain_names
from afarm.storage.weight_files import require_whole_weights

MEMBERS = "members"
"""The directory, beside the weights, that PEFT saves an ensemble's adapters in."""

CARD_SETTINGS = ("mean", "std", "aggregate", "spread_penalty", "adapters", "reads_cut_off")
"""The arguments of a reward model that its card holds."""

Aggregate = Literal["mean", "min", "penalised"]
"""How an ensemble's rewards become one: the members' mean, the least, or the mean less their spread."""


def tokens_at_once(device: str) -> int:
    """Return how many tokens are scored in one forward pass on a type of device; fewer fit a CPU's caches."""
    return 2048 if device == "cpu" else 16384


def head_scores(head: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Apply K heads to hidden states [..., H]: [..., K], in float32 under mixed precision. Differentiable."""
    with torch.autocast(hidden.device.type, enabled=False):
        return head(hidden.float())


def last_token_scores(model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Apply the K heads at each row's last real token, by the mask: [B, K] in float32. Differentiable."""
    hidden = hidden_states(model, input_ids, attention_mask)
    columns = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    last = (columns * (attention_mask != 0)).argmax(-1)
    rows = torch.arange(len(last), device=last.device)
    return head_scores(base_model(model).score, hidden[rows, last])


@dataclass(eq=False, repr=False)
class TorchRewardModel(RewardModel):
    """A transformers sequence classifier, or an ensemble of several that share its backbone.

    The members of an ensemble are the labels of one head, or the named `adapters` of a PEFT model, each with its own
    head. A member's rewards are standardised as (raw − mean) / std, then aggregated over members by `aggregate`;
    "penalised" is the mean less `spread_penalty` times the standard deviation (Coste et al. 2023, "Reward model
    ensembles help mitigate overoptimization").

    Args:
        model: the classifier, or a PEFT model around it.
        tokenizer: its tokenizer.
        template: its prompt template.
        backend: where it runs.
        mean: of raw rewards, a number or one per member.
        std: of raw rewards, a number or one per member.
        aggregate: mean, min or penalised.
        spread_penalty: the weight of the spread in "penalised".
        adapters: names of the members' adapters.
        reads_cut_off: True if it was fitted to outputs cut off by a length limit, which it then reads unclosed.
    """

    has_backbone: ClassVar[bool] = True

    model: Any
    tokenizer: PreTrainedTokenizerBase
    template: PromptTemplate
    backend: ModelBackend
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    _: KW_ONLY
    aggregate: Aggregate = "mean"
    spread_penalty: float = 1.0
    adapters: Sequence[str] = ()
    reads_cut_off: bool = False

    def __post_init__(self) -> None:
        use_onednn(self.model)
        use_product_attention(self.model)

    def __repr__(self) -> str:
        members = f", {len(self.adapters)} members" if self.adapters else ""
        return f"{type(self).__name__}({describe_model(self.model)}{members}, prompts {self.template.name})"

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id

    @classmethod
    def make_classifier(
        cls, policy: CheckpointPolicy, head_std: float = 0.0, labels: int = 1, *, share_weights: bool = False
    ) -> Any:
        """Make a sequence classifier with `policy`'s backbone and `labels` fresh float32 heads.

        Heads are zero, or normal with deviation `head_std`. With `share_weights` the backbone shares the policy's
        weights, frozen, unless the policy has adapters.
        """
        source = merged_copy(policy.model)
        config = type(source.config).from_dict(source.config.to_dict() | {"pad_token_id": policy.pad_id})
        config.num_labels = labels
        config.architectures = None
        model = AutoModelForSequenceClassification.from_config(config, dtype=policy.backend.dtype)
        if share_weights and source is policy.model:
            setattr(model, model.base_model_prefix, backbone(sharing_copy(source)))
        else:
            getattr(model, model.base_model_prefix).load_state_dict(backbone(source).state_dict())
        model.score.float()
        with torch.no_grad():
            if head_std:
                model.score.weight.normal_(0.0, head_std)
            else:
                model.score.weight.zero_()
        return model.to(next(policy.model.parameters()).device)

    def reads_tokens_of(self, policy: Policy) -> bool:
        """Tell if token ids from `policy` can be scored: if tokenizer and prompt template are the same."""
        if getattr(policy, "tokenizer", None) is self.tokenizer:
            return True
        template = getattr(policy, "template", None)
        return (
            template is not None
            and template.source == self.template.source
            and template.tokenizer.chat_template == self.tokenizer.chat_template
            and template.tokenizer.get_vocab() == self.tokenizer.get_vocab()
        )

    def member_scores(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Score token ids [B, T], prompt and response joined: the K members' standardised rewards [B, K]."""
        scores = []
        for adapter in self.adapters[::-1] or (None,):  # so that the first is active at the end
            if adapter is not None and self.model.active_adapter != adapter:
                self.model.set_adapter(adapter)
            with torch.no_grad(), evaluating(self.model):  # in inference mode, gathered shards could not be trained
                scores.append(last_token_scores(self.model, input_ids, attention_mask))
        return self.standardised(torch.cat(scores[::-1], dim=-1))

    def standardised(self, raw: torch.Tensor) -> torch.Tensor:
        """Standardise raw rewards [..., K] of the members."""
        return (raw - raw.new_tensor(self.mean)) / raw.new_tensor(self.std)

    def aggregated(self, members: torch.Tensor) -> torch.Tensor:
        """Aggregate the rewards [..., K] of the members into one [...]."""
        if self.aggregate == "min":
            return members.amin(-1)
        penalty = self.spread_penalty * members.std(-1, correction=0) if self.aggregate == "penalised" else 0.0
        return members.mean(-1) - penalty

    def scalar_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (weight [1, H], bias [1]) of one head that gives the mean of the members' rewards.

        For an ensemble of adapters, the head of the first.
        """
        head = base_model(self.model).score
        head = head.modules_to_save[self.adapters[0]] if self.adapters else head
        weight = head.weight.detach().float()
        bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.detach().float()
        mean, std = (weight.new_tensor(v).reshape(-1)[: len(weight)] for v in (self.mean, self.std))
        return (weight / std.unsqueeze(-1)).mean(0, keepdim=True), ((bias - mean) / std).mean(0, keepdim=True)

    def score_samples(self, samples: Sequence[Sample]) -> list[float]:
        """Score the tokens that were sampled.

        A response that ended is closed by the tokenizer's end-of-sequence token, whichever token ended it. One that was
        cut off stays open if the model was fitted to such outputs (`reads_cut_off`); else it is closed too.
        """
        end = self.tokenizer.eos_token_id
        rows = []
        for sample in samples:
            has_end, cut_off = sample.finish_reason == "stop", sample.finish_reason == "length"
            response = [*(sample.token_ids[:-1] if has_end else sample.token_ids)]
            if not (cut_off and self.reads_cut_off):
                response.append(end)
            # The closing token may exceed the positions
            room = max(1, self._max_length - len(response))
            rows.append([*self.template.shorten(list(sample.prompt_ids), room), *response])
        return self.score_ids(rows)

    def score_ids(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Score ragged token ids, prompt and response joined, in batches of similar length."""
        return self.aggregated(self.member_score_ids(sequences)).tolist()

    def member_score_ids(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """Score token ids with each member: standardised rewards [N, K], on the CPU.

        If the model is sharded, all processes call it, each with its own sequences (perhaps none).
        """
        count = len(sequences)
        rewards = [torch.empty(0)] * count
        tokens = tokens_at_once(self.backend.device.type)
        longest = max(map(len, sequences), default=1)
        batches = length_sorted_batches([len(s) for s in sequences], max(1, tokens // max(1, longest)))
        rows = [*sequences, [self.pad_id]]  # the last one fills up
        with on_device(self.model, self.backend):
            work = in_step(self.model, batches, [count])
            for batch in self.backend.progress(work, "batches scored", len(batches)) if len(batches) > 1 else work:
                ids, mask = pad([rows[i] for i in batch], self.pad_id, "right", self.backend.device)
                for i, reward in zip(batch, self.member_scores(ids, mask).cpu(), strict=True):
                    if i < count:
                        rewards[i] = reward
        return torch.stack(rewards) if rewards else torch.empty(0, 1)

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        """Score texts as finished responses; an ensemble's `spread` is the members' standard deviation."""
        return self.score_outputs([Output(i, text) for i, text in zip(instructions, outputs, strict=True)])

    def score_outputs(self, outputs: Sequence[Output]) -> list[Score]:
        """Score outputs like `score`, and those cut off by a length limit like `score_samples`."""
        members = self.member_rewards(outputs)
        values: list[float] = self.aggregated(members).tolist()
        if members.shape[-1] == 1:
            return [Score(value) for value in values]
        spreads = members.std(-1, correction=0).tolist()
        return [Score(value, spread=spread) for value, spread in zip(values, spreads, strict=True)]

    def member_rewards(self, outputs: Sequence[Output]) -> torch.Tensor:
        """Score outputs with each member: standardised rewards [N, K], on the CPU; see `score_outputs`."""
        closed = [not self.reads_cut_off or output.details.get("finish_reason") != "length" for output in outputs]
        instructions, texts = [o.instruction for o in outputs], [o.output for o in outputs]
        rows, _ = self.template.encode(instructions, texts, self._max_length, closed)
        return self.member_score_ids([[*p, *r] for p, r in rows])

    def both(self, judged: Sequence[JudgedPair]) -> tuple[torch.Tensor, torch.Tensor]:
        """Score both outputs of each pair: the members' rewards [N, K] of the first ones, and of the second."""
        pairs = [j.pair for j in judged]
        first = [Output(p.instruction, p.output_1, p.generator_1, {"finish_reason": p.finish_reason_1}) for p in pairs]
        second = [Output(p.instruction, p.output_2, p.generator_2, {"finish_reason": p.finish_reason_2}) for p in pairs]
        return self.member_rewards(first), self.member_rewards(second)

    @property
    def _max_length(self) -> int:
        return position_limit(self.model) or 2**31

    def save(self, directory: Path) -> None:
        directory, model = Path(directory), self.model
        if self.adapters:
            require_finite(model)
            with quiet_transformers():
                model.save_pretrained(directory / MEMBERS, selected_adapters=list(self.adapters))
            model = copy.deepcopy(model).unload()
        card = {"prompt_template": self.template.source, **{name: getattr(self, name) for name in CARD_SETTINGS}}
        save_merged(model, self.tokenizer, card, directory)

    def export(self, directory: Path) -> None:
        """Write a sequence classifier with one label, whose rewards differ by a constant from this model's.

        Raises `ModelError` for an ensemble other than a mean of heads on one backbone.
        """
        if self.adapters or (self.aggregate != "mean" and self.model.config.num_labels > 1):
            raise ModelError(f"{self!r} is an ensemble that transformers alone cannot run: use a single reward model")
        model = copy.deepcopy(merged_copy(self.model))
        weight, _ = self.scalar_head()
        model.score = torch.nn.Linear(weight.shape[1], 1, bias=False, dtype=torch.float32, device=weight.device)
        model.score.weight.data.copy_(weight)
        model.config.num_labels = model.num_labels = 1
        with quiet_transformers():
            model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> TorchRewardModel:
        return cls.read(directory, context.backend)

    @classmethod
    def read(cls, directory: Path, backend: ModelBackend) -> TorchRewardModel:
        """Load what `save` wrote into `directory`."""
        model: Any
        model, tokenizer, card = backend.load(str(directory), AutoModelForSequenceClassification)
        if adapters := card.get("adapters"):
            model = load_adapters(model, Path(directory) / MEMBERS, adapters)
        template = PromptTemplate(card.get("prompt_template", "auto"), tokenizer, str(directory))
        settings = {name: card[name] for name in CARD_SETTINGS if name in card}
        return cls(model, tokenizer, template, backend, **settings)


def load_adapters(model: PreTrainedModel, directory: Path, names: Sequence[str]) -> Any:
    """Load the adapters that PEFT saved under these names in `directory`; the first is active."""
    from peft import PeftModel

    from afarm.backend.half_adapters import multiply_in_half

    def place(name: str) -> str:
        return str(directory if name == "default" else directory / name)

    require_plain_names(directory, {f"adapter {number}": name for number, name in enumerate(names, start=1)})
    for name in names:
        require_whole_weights(Path(place(name)))
    with quiet_transformers():
        ensemble = PeftModel.from_pretrained(model, place(names[0]), adapter_name=names[0])
        for name in names[1:]:
            ensemble.load_adapter(place(name), name)
    multiply_in_half(ensemble)
    return ensemble.eval()


def pairwise_accuracy(judged: Sequence[JudgedPair], first: Sequence[float], second: Sequence[float]) -> float:
    """Share of decided pairs whose preferred output has the higher reward; ties count half. NaN if none."""
    right = []
    for judgement, one, two in zip(judged, first, second, strict=True):
        if judgement.p2 is None or judgement.p2 == 0.5:
            continue
        difference = (two - one) * (judgement.p2 - 0.5)
        right.append(0.5 if difference == 0 else float(difference > 0))
    return sum(right) / len(right) if right else float("nan")
