"""DPO, KTO and the reward model: N pairs, or N rows, desirable or not. `v` is as in `on_policy`."""

from __future__ import annotations

import numpy as np

from afarm_golden_traces.model import Array, Batch, log_sigmoid, scores_at, token_logprobs
from afarm_golden_traces.quantities import Formula, Method, Quantity, Values, reading

PAIRS, ROWS = ("pair",), ("row",)
SIDES = {"chosen": ("prompts", "chosen_responses"), "rejected": ("prompts", "rejected_responses")}
THUMBS = {"labelled": ("prompts", "responses"), "mismatched": ("prompts", "mismatched_responses")}
LEARNS = "the policy that learns"


def responses(prefix: str, batch: str, weights: str, whose: str, axis: str) -> list[Quantity]:
    """The quantities of a batch of responses: `…logprobs` of tokens, and sums, `…sequence_logprobs`."""
    tokens = f"{prefix}logprobs"

    def with_the_prompt(v: Values) -> Array:
        whole = v[batch]._replace(mask=v[batch].attention[:, 1:].astype(float))
        return token_logprobs(v[weights], whole).sum(-1)

    summed = Quantity(
        f"{prefix}sequence_logprobs", (axis,), f"sum of {tokens} over each response",
        lambda v: (getattr(v, tokens) * getattr(v, batch).mask).sum(-1), batch,
        mistakes={
            "a mean over the response's tokens": lambda v: (v[tokens] * v[batch].mask).sum(-1) / v[batch].mask.sum(-1),
            "the prompt's tokens are summed too": with_the_prompt,
        },
    )  # fmt: skip
    return [reading(tokens, axis, batch, weights, whose), summed]


# --------------------------------------------------------------------------------------------------------------- DPO


def rewards_of(side: str) -> Quantity:
    def formula(v: Values) -> Array:
        ratios = getattr(v, f"{side}_sequence_logprobs") - getattr(v, f"ref_{side}_sequence_logprobs")
        return v.beta * ratios / (v[side].mask.sum(-1) if v.loss_type == "ipo" else 1)

    says = f"beta · ({side}_sequence_logprobs − ref_{side}_sequence_logprobs); for loss_type ipo per token"
    return Quantity(f"{side}_rewards", PAIRS, says, formula, side)


def dpo_losses(v: Values) -> Array:
    if v.loss_type == "ipo":
        return (v.margins / v.beta - 1 / (2 * v.beta)) ** 2
    return -(1 - v.label_smoothing) * log_sigmoid(v.margins) - v.label_smoothing * log_sigmoid(-v.margins)


MEAN = Quantity("loss", (), "mean of losses", lambda v: v.losses.mean())
PAIR_MISTAKES: dict[str, Formula] = {
    "σ(−margin), not −log σ(margin)": lambda v: 1 / (1 + np.exp(v.margins)),
    "hinge": lambda v: np.maximum(0, 1 - v.margins),
}

DPO = Method("dpo", "DPO (Rafailov et al. 2023)", [
    *responses("ref_chosen_", "chosen", "reference_weights", "the reference", "pair"),
    *responses("ref_rejected_", "rejected", "reference_weights", "the reference", "pair"),
], [
    *responses("chosen_", "chosen", "weights", LEARNS, "pair"),
    *responses("rejected_", "rejected", "weights", LEARNS, "pair"),
    rewards_of("chosen"),
    rewards_of("rejected"),
    Quantity("margins", PAIRS, "chosen_rewards − rejected_rewards", lambda v: v.chosen_rewards - v.rejected_rewards),
    Quantity(
        "losses", PAIRS, "−log σ(margin), with label_smoothing ε −(1 − ε) log σ(margin) − ε log σ(−margin); "
        "for loss_type ipo (margin / beta − 1 / (2 beta))²", dpo_losses, mistakes=PAIR_MISTAKES,
    ),
    MEAN,
    Quantity("accuracy", (), "share of pairs with a margin above 0", lambda v: (np.real(v.margins) > 0).mean()),
], SIDES, {"ipo": {"loss_type": "ipo"}, "conservative": {"label_smoothing": 0.1}})  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- KTO


def reference_point(v: Values, lowest: float = 0.0) -> Array:
    if v.loss_type == "apo_zero_unpaired":
        return np.zeros(())
    ratios = np.real(v.mismatched_sequence_logprobs) - v.ref_mismatched_sequence_logprobs
    return np.maximum(lowest, ratios.mean())


def kto_losses(v: Values) -> Array:
    distance, good = v.beta * (v.log_ratios - v.reference_point), np.array(v.labels, dtype=bool)
    weights = np.where(good, v.desirable_weight, v.undesirable_weight)
    return weights * (1 - np.exp(log_sigmoid(np.where(good, distance, -distance))))


KTO = Method("kto", "KTO (Ethayarajh et al. 2024)", [
    *responses("ref_", "labelled", "reference_weights", "the reference", "row"),
    *responses("ref_mismatched_", "mismatched", "reference_weights", "the reference", "row"),
], [
    *responses("", "labelled", "weights", LEARNS, "row"),
    *responses("mismatched_", "mismatched", "weights", LEARNS, "row"),
    Quantity(
        "reference_point", (), "z₀: the mean over mismatched responses of their log ratio, summed over tokens, at "
        "least 0, and held constant; 0 for loss_type apo_zero_unpaired", reference_point,
        mistakes={
            "not clamped at 0": lambda v: reference_point(v, -np.inf),
            "of the labelled responses, not of the mismatched ones": lambda v: np.maximum(
                0, (np.real(v.sequence_logprobs) - v.ref_sequence_logprobs).mean()
            ),
        },
    ),
    Quantity(
        "log_ratios", ROWS, "sequence_logprobs − ref_sequence_logprobs",
        lambda v: v.sequence_logprobs - v.ref_sequence_logprobs,
    ),
    Quantity(
        "losses", ROWS, "desirable_weight · (1 − σ(beta · (log ratio − z₀))) of a desirable response, "
        "undesirable_weight · (1 − σ(beta · (z₀ − log ratio))) of an undesirable one", kto_losses,
    ),
    MEAN,
], THUMBS, {"apo_zero_unpaired": {"loss_type": "apo_zero_unpaired"}})  # fmt: skip


# ---------------------------------------------------------------------------------------------------- the reward model


def last_places(batch: Batch) -> Array:
    """The column of each response's last token [B]."""
    return batch.ids.shape[1] - batch.mask.shape[1] + batch.lengths - 1


def scores_of(side: str) -> Quantity:
    def at(move: int, keep: int = 1) -> Formula:
        return lambda v: scores_at(v.weights, v[side], keep * last_places(v[side]) + move)

    says = f"the head's score at the last token of each {side} response"
    return Quantity(
        f"{side}_scores", PAIRS, says, lambda v: scores_at(v.weights, getattr(v, side), last_places(v[side])), side,
        mistakes={"read one token before the last": at(-1), "read at the last column, pads included": at(-1, 0)},
    )  # fmt: skip


def centred_loss(v: Values) -> Array:
    squares = (v.chosen_scores + v.rejected_scores) ** 2
    return v.losses.mean() + v.center_rewards_coefficient * squares.mean()


REWARD = Method("reward", "the Bradley–Terry reward model (Stiennon et al. 2020; Ouyang et al. 2022)", [], [
    scores_of("chosen"),
    scores_of("rejected"),
    Quantity(
        "margins", PAIRS, "chosen_scores − rejected_scores; with use_margins less each pair's margin",
        lambda v: v.chosen_scores - v.rejected_scores - (np.array(v.pair_margins) if v.use_margins else 0),
    ),
    Quantity("losses", PAIRS, "−log σ(margin)", lambda v: -log_sigmoid(v.margins), mistakes=PAIR_MISTAKES),
    Quantity(
        "loss", (), "mean of losses + center_rewards_coefficient · mean of (chosen_scores + rejected_scores)²",
        centred_loss,
    ),
    Quantity(
        "accuracy", (), "share of pairs whose chosen response has the higher score",
        lambda v: (np.real(v.chosen_scores) > np.real(v.rejected_scores)).mean(),
    ),
], SIDES, {"margin": {"use_margins": True}, "centred": {"center_rewards_coefficient": 0.05}})  # fmt: skip
