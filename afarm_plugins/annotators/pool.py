"""Prompt annotators: which member judges a pair, and in which order it sees the outputs first.

All draws are keyed by the seed and the pair, so labels do not depend on batching, concurrency or restarts:

    member   choice(seed, "member", pair id)      uniform over the configured members
    order    uniform(seed, "order", pair id)      over the canonical order, so that swapping the outputs mirrors labels

Source: Dubois et al. 2023 (AlpacaFarm), sections 3 and App. C.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from afarm import (
    AnnotateContext,
    Annotator,
    BuildContext,
    ChatRequest,
    ConfigError,
    Pair,
    Preference,
    ShownPair,
    seeding,
)
from afarm.judging.pairwise import Look, judge, plan
from afarm_plugins.annotators import PromptAnnotatorConfig
from afarm_plugins.annotators.bound_prompt import Assigned, assign
from afarm_plugins.annotators.prompt_library import load_member
from afarm_plugins.annotators.user_pools import read_pool


class PromptAnnotator(Annotator):
    """Draws a member for each pair and asks its judge. A single annotator is a pool of one."""

    def __init__(self, config: PromptAnnotatorConfig, spec: str = "", context: BuildContext | None = None):
        """`spec` is the YAML file of a pool of the user's own (`afarm_plugins.annotators.user_pools`), empty for none.

        Raises `ConfigError` with every problem of that file.
        """
        self.config = config
        self.spec = spec
        if spec and "members" in config.model_fields_set:
            raise ConfigError([f"pool:{spec} names its members in the file: leave pool.members out"])
        self.members = read_pool(Path(spec).expanduser()) if spec else [load_member(name) for name in config.members]

    @property
    def identity(self) -> str:
        """A digest of all that the user's file says, templates included; empty without one."""
        return seeding.digest([member.fingerprint() for member in self.members]) if self.spec else ""

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """One preference a pair, in order; "unparsed" (or "refused") where no draw gave a readable verdict.

        Judgements already learned are not asked for again. Raises `JudgeError` and `BudgetError` as `context.ask` does.
        """
        return judge(pairs, self._looks(pairs, context), self.config, context)

    def plan(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[ChatRequest]:
        """What `annotate` would send now: the draws that are not known yet. Re-asks after them cannot be foreseen."""
        return plan(self._looks(pairs, context), self.config, context)

    def _looks(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Look]:
        """The first look at each pair."""
        assigned: dict[str, Assigned] = {}
        looks = []
        for pair in pairs:
            pair_id = pair.id
            member = seeding.choice(self.members, context.seed, "member", pair_id)
            if member.name not in assigned:
                assigned[member.name] = assign(member, context.ask)
            shown = compare(pair, pair_id, context.seed)
            # With an input and without, the prompts differ.
            looks.append(Look(assigned[member.name], shown, batch=bool(pair.instruction.input)))
        return looks


def compare(pair: Pair, pair_id: str, seed: int) -> ShownPair:
    """The pair as the judge is shown it, in an order drawn for (seed, pair)."""
    order = "ab" if seeding.uniform(seed, "order", pair_id) < 0.5 else "ba"
    first, second = pair.canonical if order == "ab" else pair.canonical[::-1]
    return ShownPair(pair_id, pair.instruction, first, second, order)
