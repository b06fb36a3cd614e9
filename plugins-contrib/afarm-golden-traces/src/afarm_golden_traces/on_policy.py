"""PPO, GRPO and RLOO: B responses to prompts that stand in groups, R tokens in the longest.

`v` holds inputs, hyperparameters and the quantities before. Names that end in `_weights` are those of the policy that
sampled (`old`), of the reference, and of the value model when the responses were sampled (`old_value`).
"""

from __future__ import annotations

import numpy as np

from afarm_golden_traces.model import Array, by_row, by_token, clip, maximum, minimum, token_values
from afarm_golden_traces.quantities import Formula, Method, Quantity, Values, part, reading

TOKENS, ROWS = ("row", "token"), ("row",)
BATCH = {"batch": ("prompts", "responses")}


def surrogate(v: Values, pick: Formula = maximum) -> Array:
    """The larger of −A · ratio and −A · clipped ratio."""
    low, high = bounds(v)
    return pick(-spread(v) * v.ratio, -spread(v) * clip(v.ratio, 1 - low, 1 + high))


def spread(v: Values) -> Array:
    """A, what a ratio is multiplied by: PPO's whitened advantages; a response's, for each of its tokens."""
    if "whitened_advantages" in v:
        return v.whitened_advantages
    return v.advantages[:, None] * v.response_mask if v.ratio.ndim == 2 else v.advantages


def bounds(v: Values) -> tuple[float, float]:
    """Distances that a ratio may go below and above 1."""
    low = v.cliprange if "cliprange" in v else v.epsilon
    return low, v.epsilon_high if "epsilon_high" in v else low


def is_clipped(v: Values) -> Array:
    return surrogate(v, lambda plain, clipped: np.real(clipped) > np.real(plain))


RATIO_MISTAKES: dict[str, Formula] = {
    "not clipped": lambda v: -spread(v) * v.ratio,
    "the smaller of the two, not the larger": lambda v: surrogate(v, minimum),
    "the clipped one alone": lambda v: surrogate(v, lambda plain, clipped: clipped),
}
MASK = Quantity(
    "response_mask", TOKENS, "1 at each response's tokens, its EOS included, 0 at pads",
    lambda v: v.batch.mask, at_pads=True,
)  # fmt: skip
OLD = reading("old_logprobs", "row", "batch", "old_weights", "the policy that sampled")
REFERENCE = reading("ref_logprobs", "row", "batch", "reference_weights", "the reference")
K1 = Quantity(
    "kl", TOKENS, "k1: old_logprobs − ref_logprobs", lambda v: (v.old_logprobs - v.ref_logprobs) * v.response_mask
)
SHARE = "share of response tokens whose clipped loss is the larger"
CLIP_FRACTION = Quantity("clip_fraction", (), SHARE, lambda v: by_token(is_clipped(v), v.response_mask))
LEARNED = [reading(name, "row", "batch", "weights", "the policy that learns") for name in ("logprobs", "entropy")]


# --------------------------------------------------------------------------------------------------------------- PPO


def episode_mask(v: Values) -> Array:
    """1 at an episode's states; with episode_end "after" a shorter response has one behind its end."""
    columns, lengths = np.arange(v.response_mask.shape[1]), v.response_mask.sum(-1, keepdims=True)
    return (columns < lengths + (v.episode_end == "after")).astype(float)


def ppo_scores(v: Values) -> Array:
    ended = np.array([v.eos_token_id in response for response in v.responses])
    return np.array(v.reward_model_scores) - v.missing_eos_penalty * ~ended


def ppo_rewards(v: Values) -> Array:
    last = np.arange(v.kl.shape[1]) == episode_mask(v).sum(-1, keepdims=True) - 1
    return -v.kl_coef * v.kl + np.array(v.scores)[:, None] * last


def gae(v: Values) -> Array:
    following = np.concatenate([v.old_values[:, 1:], np.zeros((len(v.old_values), 1))], 1)
    deltas = v.rewards + v.gamma * following - v.old_values
    result, carried = np.zeros_like(deltas), np.zeros(len(deltas))
    for t in reversed(range(deltas.shape[1])):
        result[:, t] = carried = deltas[:, t] + v.gamma * v.lam * carried
    return result


def whiten(v: Values, axis: int | None = None) -> Array:
    mask, count = v.response_mask, v.response_mask.sum(axis, keepdims=True)
    centred = (v.advantages - (v.advantages * mask).sum(axis, keepdims=True) / count) * mask
    return centred / np.sqrt((centred**2).sum(axis, keepdims=True) / (count - v.whiten_ddof) + 1e-8)


def value_losses(v: Values) -> Array:
    near = clip(v.new_values, v.old_values - v.cliprange_value, v.old_values + v.cliprange_value)
    return maximum((v.new_values - v.returns) ** 2, (near - v.returns) ** 2)


PPO = Method("ppo", "PPO with a value model and a KL in the reward (Schulman et al. 2017; Stiennon et al. 2020)", [
    MASK,
    OLD,
    REFERENCE,
    Quantity(
        "old_values", TOKENS, "value of the state before each token, of the value model when it was sampled",
        lambda v: token_values(v.old_value_weights, v.batch, v.own_place) * episode_mask(v),
    ),
    K1,
    Quantity("scores", ROWS, "reward_model_scores, less missing_eos_penalty for a response without EOS", ppo_scores),
    Quantity("rewards", TOKENS, "−kl_coef · kl, and at a response's last token the score", ppo_rewards, mistakes={
        "the score is paid at the last column": lambda v: -v.kl_coef * v.kl
        + np.array(v.scores)[:, None] * (np.arange(v.kl.shape[1]) == v.kl.shape[1] - 1),
        "the score is paid at every token": lambda v: -v.kl_coef * v.kl + np.array(v.scores)[:, None],
    }),
    Quantity(
        "advantages", TOKENS, "GAE: the sum over later tokens of (gamma · lam)ᵏ · delta, delta = reward + gamma · next "
        "value − value; the value after the end is 0", gae,
    ),
    Quantity("returns", TOKENS, "advantages (not whitened) + old_values", lambda v: v.advantages + v.old_values),
    Quantity(
        "whitened_advantages", TOKENS, "(advantages − mean) / √(variance + 1e-8) over all response tokens, by number",
        whiten, mistakes={
            "whitened within each response": lambda v: whiten(v, -1),
            "scaled, and the mean added again": lambda v: whiten(v) + by_token(v.advantages, v.response_mask),
        },
    ),
], [
    *(reading(n, "row", "batch", "weights", "the policy that learns", "policy") for n in ("logprobs", "entropy")),
    Quantity("ratio", TOKENS, "exp(logprobs − old_logprobs)", lambda v: np.exp(v.logprobs - v.old_logprobs)),
    Quantity(
        "policy_losses", TOKENS, "max(−A · ratio, −A · clip(ratio, 1 ± cliprange)), A the whitened advantage",
        surrogate, mistakes=RATIO_MISTAKES,
    ),
    Quantity("policy_loss", (), "mean of policy_losses by token", lambda v: by_token(v.policy_losses, v.response_mask)),
    CLIP_FRACTION,
    Quantity(
        "new_values", TOKENS, "value of the state before each token, of the value model that learns",
        lambda v: token_values(part(v.weights, "value"), v.batch, v.own_place) * episode_mask(v),
    ),
    Quantity("value_losses", TOKENS, "max((V − R)², (clip(V, old ± cliprange_value) − R)²), R a return", value_losses),
    Quantity("value_loss", (), "½ · mean by token", lambda v: by_token(v.value_losses, episode_mask(v)) / 2),
    Quantity("loss", (), "policy_loss + vf_coef · value_loss", lambda v: v.policy_loss + v.vf_coef * v.value_loss),
], BATCH, {"trl": {"episode_end": "after", "whiten_ddof": 1}})  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- GRPO


def by_group(v: Values, reduce: Formula) -> Array:
    """A number of each group's rewards, for each of its responses."""
    return np.repeat(reduce(np.array(v.rewards).reshape(-1, v.num_generations)), v.num_generations)


def group_advantages(v: Values) -> Array:
    scale = {"group": v.group_stds, "batch": np.std(v.rewards, ddof=1), "none": 1 - 1e-4}[v.scale_rewards]
    return (np.array(v.rewards) - v.group_means) / (scale + 1e-4)


def grpo_ratio(v: Values) -> Array:
    log_ratio = (v.logprobs - v.old_logprobs) * v.response_mask
    if v.importance_sampling_level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdims=True) / v.response_mask.sum(-1, keepdims=True)
    return np.exp(log_ratio) * v.response_mask


def k3(v: Values) -> Array:
    x = v.ref_logprobs - v.logprobs
    return (np.exp(x) - x - 1) * v.response_mask


def grpo_policy_losses(v: Values) -> Array:
    if v.loss_type == "cispo":
        return -np.minimum(v.ratio.real, 1 + v.epsilon_high) * spread(v) * v.logprobs
    return surrogate(v)


def grpo_loss(v: Values) -> Array:
    if v.loss_type == "grpo":
        return by_row(v.token_losses, v.response_mask)
    if v.loss_type == "dr_grpo":
        return (v.token_losses * v.response_mask).sum() / (len(v.token_losses) * v.max_completion_length)
    return by_token(v.token_losses, v.response_mask)


GRPO = Method("grpo", "GRPO with k3 in the loss (Shao et al. 2024)", [
    MASK,
    OLD,
    REFERENCE,
    Quantity(
        "group_means", ROWS, "mean reward of the group that each response is in",
        lambda v: by_group(v, lambda g: g.mean(1)), mistakes={
            "the mean over groups of each place in them": lambda v: np.tile(
                np.reshape(v.rewards, (-1, v.num_generations)).mean(0), len(v.rewards) // v.num_generations
            ),
        },
    ),
    Quantity(
        "group_stds", ROWS, "standard deviation of the group's rewards, the variance divided by the group's size − 1",
        lambda v: by_group(v, lambda g: g.std(1, ddof=1)), mistakes={
            "the variance is divided by the group's size": lambda v: by_group(v, lambda g: g.std(1)),
            "the deviation of the whole batch": lambda v: np.full(len(v.rewards), np.std(v.rewards, ddof=1)),
        },
    ),
    Quantity(
        "advantages", ROWS, "(reward − group mean) / (deviation + 1e-4), one for all tokens of a response; by "
        "scale_rewards the deviation is the group's, the batch's or not there", group_advantages, mistakes={
            "not divided by the deviation": lambda v: np.array(v.rewards) - v.group_means,
            "no 1e-4 beside the deviation": lambda v: (np.array(v.rewards) - v.group_means)
            / np.where(v.group_stds == 0, 1, v.group_stds),
        },
    ),
], [
    *LEARNED,
    Quantity(
        "ratio", TOKENS, "exp(logprobs − old_logprobs); at importance_sampling_level sequence of the response's mean",
        grpo_ratio,
    ),
    Quantity("kl", TOKENS, "k3: exp(x) − x − 1, x = ref_logprobs − logprobs", k3, mistakes={
        "k2, half the square": lambda v: (v.logprobs - v.ref_logprobs) ** 2 / 2 * v.response_mask,
        "k1, logprobs − ref_logprobs": lambda v: (v.logprobs - v.ref_logprobs) * v.response_mask,
    }),
    Quantity(
        "policy_losses", TOKENS, "max(−A · ratio, −A · clip(ratio, 1 − epsilon, 1 + epsilon_high)); for loss_type "
        "cispo −A · logprobs · the ratio, at most 1 + epsilon_high and held constant", grpo_policy_losses,
        mistakes=RATIO_MISTAKES,
    ),
    Quantity(
        "token_losses", TOKENS, "policy_losses + beta · kl; with use_bias_correction_kl the kl times the ratio",
        lambda v: v.policy_losses + v.beta * v.kl * (v.ratio if v.use_bias_correction_kl else 1),
    ),
    Quantity(
        "loss", (), "of token_losses, by loss_type. grpo: mean over each response, then over responses; dapo, cispo: "
        "mean over all response tokens; dr_grpo: sum / (responses · max_completion_length)", grpo_loss,
    ),
    CLIP_FRACTION,
], BATCH, {
    "bias_corrected_kl": {"use_bias_correction_kl": True},
    "batch_scaled": {"scale_rewards": "batch"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.0},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none", "beta": 0.0},
    "gspo": {"importance_sampling_level": "sequence", "epsilon": 0.1, "epsilon_high": 0.15, "beta": 0.0},
    "cispo": {"loss_type": "cispo", "epsilon_high": 0.1, "beta": 0.0},
})  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- RLOO


def leave_one_out(v: Values) -> Array:
    return (by_group(v, lambda g: g.sum(1)) - v.rewards) / (v.num_generations - 1)


def rloo_advantages(v: Values) -> Array:
    relative = v.rewards - v.baselines
    return (relative - relative.mean()) / (relative.std(ddof=1) + 1e-4) if v.normalize_advantages else relative


def rloo_losses(v: Values) -> Array:
    return -v.advantages * v.sequence_logprobs if v.loss_type == "reinforce" else surrogate(v)


RLOO = Method("rloo", "RLOO (Ahmadian et al. 2024), the ratio of whole responses clipped as in TRL", [
    MASK,
    OLD,
    REFERENCE,
    K1,
    Quantity("sequence_kl", ROWS, "sum of kl over each response", lambda v: (v.kl * v.response_mask).sum(-1)),
    Quantity("rewards", ROWS, "score − beta · sequence_kl", lambda v: np.array(v.scores) - v.beta * v.sequence_kl),
    Quantity("baselines", ROWS, "mean reward of the other responses of the group", leave_one_out, mistakes={
        "the mean of the group, the response itself included": lambda v: by_group(v, lambda g: g.mean(1)),
        "the mean of all others of the batch": lambda v: (sum(v.rewards) - v.rewards) / (len(v.rewards) - 1),
    }),
    Quantity("advantages", ROWS, "rewards − baselines; with normalize_advantages standardised", rloo_advantages),
], [
    *LEARNED,
    Quantity("sequence_logprobs", ROWS, "sum of logprobs", lambda v: (v.logprobs * v.response_mask).sum(-1)),
    Quantity(
        "ratio", ROWS, "exp(sequence_logprobs − the sum of old_logprobs)",
        lambda v: np.exp(v.sequence_logprobs - (v.old_logprobs * v.response_mask).sum(-1)),
    ),
    Quantity(
        "losses", ROWS, "max(−A · ratio, −A · clip(ratio, 1 ± epsilon)); for loss_type reinforce −A · "
        "sequence_logprobs", rloo_losses, mistakes=RATIO_MISTAKES,
    ),
    Quantity("loss", (), "mean of losses over responses", lambda v: v.losses.mean()),
    Quantity("clip_fraction", (), "share of responses that are clipped", lambda v: is_clipped(v).mean()),
], BATCH, {"normalized": {"normalize_advantages": True}, "reinforce": {"loss_type": "reinforce"}})  # fmt: skip
