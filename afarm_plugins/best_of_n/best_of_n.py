"""Best-of-n (AlpacaFarm, section 3.2): sample n times and return the sample with the highest reward.

Nothing is trained. Samples stream, so memory does not grow with n.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module, resources
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2

from afarm import (
    BuildContext,
    Config,
    Decoding,
    Instruction,
    ModelError,
    Policy,
    RewardModel,
    Sample,
    TrainContext,
)
from afarm.backend import CheckpointPolicy, TorchRewardModel, best_sample, position_limit, sample_scorer, scored_samples
from afarm_plugins.best_of_n.subsets import Winners

logger = logging.getLogger(__name__)

BEST_OF_N_CARD = "best_of_n.json"


@dataclass(eq=False, repr=False)
class BestOfNPolicy(Policy):
    """A policy that samples `n` times from `policy` and returns the sample with the highest reward.

    It samples at its own `temperature`. With `keep_scores`, `Sample.details` hold the rewards of all n and the winners
    of every smaller n; see `Winners`.
    """

    policy: Policy
    reward_model: RewardModel
    n: int
    temperature: float = 1.0
    keep_scores: bool = False

    def __post_init__(self) -> None:
        self._scores = sample_scorer(self.reward_model, self.policy)

    def __repr__(self) -> str:
        return f"BestOfNPolicy(best of {self.n} from {self.policy!r} by {self.reward_model!r})"

    def _repr_html_(self) -> str:
        inner = (f"<li><code>{escape(repr(part))}</code></li>" for part in (self.policy, self.reward_model))
        return f"best of {self.n} at temperature {self.temperature:g}, from and by<ul>{''.join(inner)}</ul>"

    def decoding(self, default: Decoding) -> Decoding:
        return replace(default, temperature=self.temperature)

    def sample(self, instructions: Sequence[Instruction], decoding: Decoding, *, seed: int) -> Iterator[Sample]:
        """Yield `decoding.n` samples per instruction, each the best (of equals the first) of its own `n`.

        `counted` has how many were the first of `n` with equal rewards. It warns if at least half were.
        """
        inner = replace(self.decoding(decoding), n=self.n * decoding.n)
        scored = scored_samples(self.policy, self._scores, instructions, inner, seed=seed)
        count, equal, lowest = len(instructions) * decoding.n, 0, math.inf

        def candidates() -> Iterator[tuple[Sample, float]]:
            nonlocal lowest
            for sample, reward in islice(scored, self.n):
                lowest = min(lowest, reward)
                yield sample, reward

        for _ in range(count):
            lowest, winners = math.inf, Winners()
            best = best_sample(winners.watch(candidates()) if self.keep_scores else candidates())
            equal += self.n > 1 and best.score == lowest
            self.counted = {"equal_rewards": equal}
            yield replace(best, details=winners.details()) if self.keep_scores else best
        if equal and 2 * equal >= count:
            logger.warning(
                f"best of {self.n}: in {equal} of {count} groups all rewards are equal, and the first response was "
                "taken: the reward model does not distinguish these responses. Look at its scores, or name another "
                "with --reward-model"
            )

    def save(self, directory: Path) -> None:
        """Save the policy, the reward model (the config of one that was not fitted) and the settings."""
        directory = Path(directory)
        card: dict[str, Any] = {"n": self.n, "temperature": self.temperature, "keep_scores": self.keep_scores}
        card["policy"] = _target(type(self.policy))
        for part in ("policy", "reward_model"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        self.policy.save(directory / "policy")
        card["reward_model"] = _target(type(self.reward_model))
        try:
            self.reward_model.save(directory / "reward_model")
        except NotImplementedError:
            (directory / "reward_model").rmdir()
            config = getattr(self.reward_model, "config", None)
            card["config"] = config.model_dump(mode="json") if isinstance(config, Config) else None
            card["config_class"] = _target(type(config)) if isinstance(config, Config) else None
            card["spec"] = getattr(self.reward_model, "spec", None)
        (directory / BEST_OF_N_CARD).write_text(json.dumps(card, indent=2) + "\n", "utf-8")

    def export(self, directory: Path) -> None:
        """Write policy and reward model for transformers alone, and a script that runs them.

        Raises `ModelError` if one has no weights (a formula, say).
        """
        from transformers import GenerationConfig

        policy, reward_model = self.policy, self.reward_model
        if not isinstance(policy, CheckpointPolicy) or not isinstance(reward_model, TorchRewardModel):
            raise ModelError(
                f"the best of {self.n} by {reward_model!r} cannot be exported: other software runs a policy and a "
                "reward model of weights alone; train with --reward-model bradley_terry"
            )
        policy.export(directory / "policy")
        reward_model.export(directory / "reward_model")
        # A new one, without the base model's penalties and limits.
        GenerationConfig(
            do_sample=True,
            temperature=self.temperature,
            top_p=self.default_decoding.top_p,
            top_k=0,
            num_return_sequences=self.n,
            max_new_tokens=self.default_decoding.max_new_tokens,
            eos_token_id=policy.eos_ids,
            pad_token_id=policy.pad_id,
            suppress_tokens=policy.tokenizer.convert_tokens_to_ids(list(policy.control_tokens)) or None,
        ).save_pretrained(directory / "policy")
        template = resources.files("afarm_plugins.best_of_n") / "best_of_n.py.jinja"
        prompt = policy.template.render(Instruction("{instruction}"))
        script = jinja2.Template(template.read_text("utf-8"), keep_trailing_newline=True).render(
            n=self.n,
            chat=policy.template.name == "chat",
            prompt=repr(policy.template.control + prompt),
            special=not prompt.startswith(policy.tokenizer.bos_token or "\0"),
            positions=position_limit(policy.model) or 2**31,
            reads_cut_off=reward_model.reads_cut_off,
        )
        (directory / "best_of_n.py").write_text(script, "utf-8")

    @classmethod
    def load(cls, directory: Path, context: TrainContext) -> BestOfNPolicy:
        directory = Path(directory)
        card = json.loads((directory / BEST_OF_N_CARD).read_text("utf-8"))
        policy = _class(card["policy"], Policy).load(directory / "policy", context)
        kind = _class(card["reward_model"], RewardModel)
        reward_model: RewardModel
        if "config_class" in card:
            reward_model = _built(kind, card, context)
        else:
            reward_model = kind.load(directory / "reward_model", context)
        return cls(policy, reward_model, card["n"], card["temperature"], card["keep_scores"])


def _built(kind: Any, card: Mapping[str, Any], context: TrainContext) -> RewardModel:
    """Build a reward model that was not fitted, as a run does: from its config and spec, if it has them."""
    config = _class(card["config_class"], Config)(**card["config"]) if card["config_class"] else None
    made: RewardModel
    if card.get("spec") is not None:
        made = kind(config, card["spec"], BuildContext(context.reward_model, backend=lambda: context.backend))
    else:
        made = kind() if config is None and kind.__init__ is object.__init__ else kind(config)
    return made


def _target(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(target: str, base: type) -> Any:
    module, _, name = target.partition(":")
    kind = getattr(import_module(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ModelError(f"the best-of-n policy was saved with {target!r}, which is no {base.__name__} here")
    return kind
