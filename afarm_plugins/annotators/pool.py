"""Pools of prompt annotators: one member, and the order it sees the outputs in, are drawn per pair.

All draws are keyed by the seed and the pair, so labels do not depend on batching, concurrency or restarts:

    member   choice(seed, "member", pair id)      uniform over the configured members
    order    uniform(seed, "order", pair id)      over the canonical order, so that swapping the outputs mirrors labels

A calibrated pool draws members by their weights, and a label from each verdict (`calibration.py`).

Source: Dubois et al. 2023 (AlpacaFarm), sections 3 and App. C.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from afarm import AnnotateContext, Ask, BuildContext, ConfigError, Pair, Preference, seeding
from afarm.judging import PairwiseAnnotator, Presentation, draw_order, show_pair
from afarm_plugins.annotators.bound_prompt import BoundPrompt, bind
from afarm_plugins.annotators.prompt_library import load_member
from afarm_plugins.annotators.settings import PoolConfig
from afarm_plugins.annotators.user_pools import read_pool


class PoolAnnotator(PairwiseAnnotator):
    """Draws a member for each pair and asks its judge. A single annotator is a pool of one."""

    def __init__(self, config: PoolConfig, spec: str = "", context: BuildContext | None = None):
        """Load the members of `config`, or of the file `spec`. Raises `ConfigError` with all its problems."""
        self.config = config
        self.spec = spec
        if spec and "members" in config.model_fields_set:
            raise ConfigError([f"pool:{spec} names its members in the file: leave pool.members out"])
        if spec:
            self.members, self.calibration = read_pool(Path(spec).expanduser())
        else:
            self.members, self.calibration = [load_member(name) for name in config.members], None

    @property
    def identity(self) -> str:
        """A digest of all that the user's file says, templates included; empty without one."""
        if not self.spec:
            return ""
        fitted = [self.calibration.model_dump()] if self.calibration else []
        return seeding.digest([member.fingerprint() for member in self.members], *fitted)

    @property
    def has_own_noise(self) -> bool:
        """True for a calibrated pool: a run that flips further labels counts noise twice."""
        return self.calibration is not None

    def bind_members(self, ask: Ask) -> list[tuple[str, BoundPrompt]]:
        """Bind each member, for `calibrate`; return roles and prompts. Raises `JudgeError` without a judge."""
        return [(member.spec.role, bind(member, ask)) for member in self.members]

    def present(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Presentation]:
        """See `PairwiseAnnotator.present`. Raises `JudgeError` if a drawn member has no judge."""
        bound: dict[str, BoundPrompt] = {}
        presentations = []
        names, by_name = [member.name for member in self.members], {member.name: member for member in self.members}
        for pair in pairs:
            pair_id = pair.id
            if self.calibration:
                member = by_name[self.calibration.draw_member(names, context.seed, pair_id)]
            else:
                member = seeding.choice(self.members, context.seed, "member", pair_id)
            if member.name not in bound:
                bound[member.name] = bind(member, context.ask)
            shown = show_pair(pair, draw_order(context.seed, pair_id), pair_id)
            # With an input and without, the prompts differ.
            presentations.append(Presentation(bound[member.name], shown, batch=bool(pair.instruction.input)))
        return presentations

    def annotate(self, pairs: Sequence[Pair], context: AnnotateContext) -> list[Preference]:
        """See `PairwiseAnnotator.annotate`; a calibrated pool draws its labels from the verdicts."""
        verdicts = super().annotate(pairs, context)
        if self.calibration is None:
            return verdicts
        return [self.calibration.label(pair, found, context.seed) for pair, found in zip(pairs, verdicts, strict=True)]
