"""A sequence classifier as a reward model."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from afarm.backend.adapters import merged_copy
from afarm.backend.batching import length_sorted_batches, pad
from afarm.backend.cpu import use_onednn
from afarm.backend.device import CARD, Backend, quiet
from afarm.backend.logprobs import base_model, evaluating, hidden_states
from afarm.backend.prompts import PromptTemplate
from afarm.core.interfaces import Policy, RewardModel, TrainContext
from afarm.core.records import Instruction, JudgedPair, Sample, Score

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from afarm.backend.policy import CheckpointPolicy

TOKENS_PER_BATCH, TOKENS_PER_BATCH_ON_CPU = 16384, 2048
"""Tokens scored in one forward pass, on a CPU few enough for its caches. Changes no result."""

MEMBERS = "members"
"""Beside the weights: the adapters of an ensemble of adapters, in the directories that PEFT gives them."""

Aggregate = Literal["mean", "min", "penalised"]
"""How the rewards of an ensemble's members become one: their mean, the least, or the mean less their spread."""


def head_scores(head: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """K heads on hidden states [..., H]: [..., K], in float32 under mixed precision too. Differentiable.

    Rounded to bfloat16, a third of a thousand rewards would be equal to others.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        scores: torch.Tensor = head(hidden.float())
    return scores


def last_token_scores(model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """The K heads at each row's last real token, [B, K] in float32. Differentiable; either side may be padded.

    Found by the mask: where the pad token is also the end-of-sequence token, its id says nothing.
    """
    hidden = hidden_states(model, input_ids, attention_mask)
    columns = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    last = (columns * (attention_mask != 0)).argmax(-1)
    rows = torch.arange(len(last), device=last.device)
    return head_scores(base_model(model).score, hidden[rows, last])


class TorchRewardModel(RewardModel):
    """A transformers sequence classifier, or an ensemble of several that share its backbone.

    The members of an ensemble are the labels of one head, or the named `adapters` of a PEFT model, each with a head of
    its own. Each member's rewards are standardised as (raw − mean) / std, with `mean` and `std` numbers or a list of
    one for each member, and then become one by `aggregate`; "penalised" is the mean less `spread_penalty` times the
    standard deviation over members (Coste et al. 2023, "Reward model ensembles help mitigate overoptimization").
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        template: PromptTemplate,
        backend: Backend,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        *,
        aggregate: Aggregate = "mean",
        spread_penalty: float = 1.0,
        adapters: Sequence[str] = (),
    ):
        use_onednn(model)
        self.model = model
        self.tokenizer = tokenizer
        self.template = template
        self.backend = backend
        self.mean = mean
        self.std = std
        self.aggregate = aggregate
        self.spread_penalty = spread_penalty
        self.adapters = tuple(adapters)

    @property
    def pad_id(self) -> int:
        return self.tokenizer.pad_token_id

    @classmethod
    def classifier_from(cls, policy: CheckpointPolicy, head_std: float = 0.0, labels: int = 1) -> Any:
        """A sequence classifier with the weights of `policy`'s backbone and fresh float32 heads (normal or zero)."""
        from transformers import AutoModelForSequenceClassification

        source = merged_copy(policy.model)
        config = type(source.config).from_dict(source.config.to_dict() | {"pad_token_id": policy.pad_id})
        config.num_labels = labels
        config.architectures = None
        model = AutoModelForSequenceClassification.from_config(config, dtype=policy.backend.dtype)
        backbone = getattr(source, source.base_model_prefix)
        getattr(model, model.base_model_prefix).load_state_dict(backbone.state_dict())
        model.score.float()
        with torch.no_grad():
            if head_std:
                model.score.weight.normal_(0.0, head_std)
            else:
                model.score.weight.zero_()
        return model.to(policy.backend.device)

    def reads_tokens_of(self, policy: Policy) -> bool:
        """Whether `score_tokens` can be given the token ids that `policy` samples: same tokenizer, same prompts."""
        if getattr(policy, "tokenizer", None) is self.tokenizer:
            return True
        theirs = getattr(policy, "template", None)
        return (
            theirs is not None
            and theirs.name == self.template.name
            and theirs.tokenizer.chat_template == self.tokenizer.chat_template
            and theirs.tokenizer.get_vocab() == self.tokenizer.get_vocab()
        )

    def score_tokens(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Rewards [B] of token ids [B, T], prompt and response joined, read at the last real token. No gradient."""
        return self.aggregated(self.member_scores(input_ids, attention_mask))

    def member_scores(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The standardised rewards [B, K] of each of the K members; see `score_tokens`."""
        found = []
        for adapter in self.adapters[::-1] or (None,):  # the first is left active
            if adapter is not None and self.model.active_adapter != adapter:
                self.model.set_adapter(adapter)
            with torch.inference_mode(), evaluating(self.model):
                found.append(last_token_scores(self.model, input_ids, attention_mask))
        return self.standardised(torch.cat(found[::-1], dim=-1))

    def standardised(self, raw: torch.Tensor) -> torch.Tensor:
        """Raw rewards [..., K] of the members on their scale."""
        return (raw - raw.new_tensor(self.mean)) / raw.new_tensor(self.std)

    def aggregated(self, members: torch.Tensor) -> torch.Tensor:
        """One reward [...] from those of the members [..., K]."""
        if self.aggregate == "min":
            return members.amin(-1)
        penalty = self.spread_penalty * members.std(-1, correction=0) if self.aggregate == "penalised" else 0.0
        return members.mean(-1) - penalty

    def scalar_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(weight [1, H], bias [1]) of one head on the backbone that gives the mean of the members' rewards.

        Where members are adapters, each with a backbone of its own, the first one's, the active one of `self.model`.
        """
        head = base_model(self.model).score
        head = head.modules_to_save[self.adapters[0]] if self.adapters else head
        weight = head.weight.detach().float()
        bias = weight.new_zeros(len(weight)) if head.bias is None else head.bias.detach().float()
        mean, std = (weight.new_tensor(v).reshape(-1)[: len(weight)] for v in (self.mean, self.std))
        return (weight / std.unsqueeze(-1)).mean(0, keepdim=True), ((bias - mean) / std).mean(0, keepdim=True)

    def score_samples(self, samples: Sequence[Sample]) -> list[float]:
        """Rewards of the very tokens that were sampled.

        All are closed by the tokenizer's end-of-sequence token, as every text is that this model learns from: one that
        was cut off, and one that another end token ended. The head was fitted there and says nothing elsewhere.
        """
        end = self.tokenizer.eos_token_id
        closed = [(*(s.token_ids[:-1] if s.finish_reason == "stop" else s.token_ids), end) for s in samples]
        return self.score_ids([[*s.prompt_ids, *c] for s, c in zip(samples, closed, strict=True)])

    def score_ids(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Rewards of ragged token ids, prompt and response joined, in batches of like length."""
        rewards: list[float] = self.aggregated(self.member_score_ids(sequences)).tolist()
        return rewards

    def member_score_ids(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """The standardised rewards [N, K], on the CPU, of each member; see `score_ids`."""
        rewards = [torch.empty(0)] * len(sequences)
        tokens = TOKENS_PER_BATCH_ON_CPU if self.backend.device.type == "cpu" else TOKENS_PER_BATCH
        longest = max(map(len, sequences), default=1)
        for batch in length_sorted_batches([len(s) for s in sequences], max(1, tokens // max(1, longest))):
            ids, mask = pad([sequences[i] for i in batch], self.pad_id, "right", self.backend.device)
            for i, reward in zip(batch, self.member_scores(ids, mask).cpu(), strict=True):
                rewards[i] = reward
        return torch.stack(rewards) if rewards else torch.empty(0, 1)

    def score(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> list[Score]:
        """Rewards of texts, each closed by the end-of-sequence token as a finished response is.

        Those of an ensemble say by how much its members differ.
        """
        if not outputs:
            return []
        members = self.member_rewards(instructions, outputs)
        values: list[float] = self.aggregated(members).tolist()
        if members.shape[-1] == 1:
            return [Score(value) for value in values]
        spreads = members.std(-1, correction=0).tolist()
        return [Score(value, spread=spread) for value, spread in zip(values, spreads, strict=True)]

    def member_rewards(self, instructions: Sequence[Instruction], outputs: Sequence[str]) -> torch.Tensor:
        """The standardised rewards [N, K] of each member; see `score`."""
        rows, _ = self.template.encode(instructions, outputs, self._max_length)
        return self.member_score_ids([[*p, *r] for p, r in rows])

    @property
    def _max_length(self) -> int:
        return getattr(self.model.config, "max_position_embeddings", None) or 2**31

    def save(self, directory: Path) -> None:
        directory = Path(directory)
        with quiet():
            if self.adapters:
                copy.deepcopy(self.model).unload().save_pretrained(directory)
                self.model.save_pretrained(directory / MEMBERS, selected_adapters=list(self.adapters))
            else:
                merged_copy(self.model).save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        card = {
            "prompt_template": self.template.name,
            "mean": self.mean,
            "std": self.std,
            "aggregate": self.aggregate,
            "spread_penalty": self.spread_penalty,
            "adapters": self.adapters,
        }
        (directory / CARD).write_text(json.dumps(card) + "\n", "utf-8")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> TorchRewardModel:
        return cls.read(directory, context.backend)

    @classmethod
    def read(cls, directory: Path, backend: Backend) -> TorchRewardModel:
        """What `save` wrote."""
        from transformers import AutoModelForSequenceClassification

        model: Any
        model, tokenizer, card = backend.load(str(directory), AutoModelForSequenceClassification)
        adapters = card.get("adapters", ())
        if adapters:
            model = load_adapters(model, Path(directory) / MEMBERS, adapters)
        template = PromptTemplate(card.get("prompt_template", "auto"), tokenizer, str(directory))
        how = {name: card[name] for name in ("mean", "std", "aggregate", "spread_penalty") if name in card}
        return cls(model, tokenizer, template, backend, adapters=adapters, **how)


def load_adapters(model: PreTrainedModel, directory: Path, names: Sequence[str]) -> Any:
    """`model` with the adapters that PEFT saved under these names in `directory`; the first is active."""
    from peft import PeftModel

    def place(name: str) -> str:
        return str(directory if name == "default" else directory / name)

    with quiet():
        whole = PeftModel.from_pretrained(model, place(names[0]), adapter_name=names[0])
        for name in names[1:]:
            whole.load_adapter(place(name), name)
    return whole.eval()


def pair_rewards(reward_model: RewardModel, judged: Sequence[JudgedPair]) -> tuple[list[float], list[float]]:
    """The rewards of the first and of the second output of each pair."""
    instructions = [j.pair.instruction for j in judged]
    first = reward_model.score(instructions, [j.pair.output_1 for j in judged])
    second = reward_model.score(instructions, [j.pair.output_2 for j in judged])
    return [s.value for s in first], [s.value for s in second]


def agreement(judged: Sequence[JudgedPair], first: Sequence[float], second: Sequence[float]) -> float:
    """Share of pairs with a preferred output that rewards rank as the judgement does; equal rewards count a half.

    NaN where no pair has a preferred output: there is nothing to agree with.
    """
    right = []
    for judgement, one, two in zip(judged, first, second, strict=True):
        if judgement.p2 is None or judgement.p2 == 0.5:
            continue
        difference = (two - one) * (judgement.p2 - 0.5)
        right.append(0.5 if difference == 0 else float(difference > 0))
    return sum(right) / len(right) if right else float("nan")
