"""Make the traces: `python make_traces.py`. Inputs and weights are drawn from a seed, and rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from afarm_golden_traces.model import Array, Weights
from afarm_golden_traces.quantities import PASSES, Method, Values, adamw, norm_of
from afarm_golden_traces.traces import METHODS

DATA = Path(__file__).parent / "src" / "afarm_golden_traces" / "data"

WIDTH, INNER, VOCABULARY = 4, 6, 12
SHAPES = {
    "model.embed_tokens": (VOCABULARY, WIDTH),
    "model.layers.0.input_layernorm": (WIDTH,),
    **{f"model.layers.0.self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"},
    "model.layers.0.post_attention_layernorm": (WIDTH,),
    "model.layers.0.mlp.gate_proj": (INNER, WIDTH),
    "model.layers.0.mlp.up_proj": (INNER, WIDTH),
    "model.layers.0.mlp.down_proj": (WIDTH, INNER),
    "model.norm": (WIDTH,),
}
MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
OPTIMISER = {
    "learning_rate": 0.01, "adam_beta1": 0.9, "adam_beta2": 0.99, "adam_epsilon": 1e-3, "weight_decay": 0.1,
    "max_grad_norm": 0.25,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "eos_token_id": 1}


def draw(seed: int, head: str) -> dict[str, Any]:
    """Weights of a policy (head "lm_head") or of a model with one output ("score")."""
    random = np.random.RandomState(seed)
    shapes = {**SHAPES, head: (VOCABULARY if head == "lm_head" else 1, WIDTH)}
    return {
        f"{name}.weight": np.round(
            random.normal(1.0 if len(shape) == 1 else 0.0, 0.2 if len(shape) == 1 else 0.6, shape), 3
        )
        for name, shape in shapes.items()
    }


def move(weights: dict[str, Any], seed: int, scale: float) -> dict[str, Any]:
    """The weights some steps later."""
    random = np.random.RandomState(seed)
    return {name: np.round(w + scale * random.normal(size=w.shape), 3) for name, w in weights.items()}


POLICY = draw(1, "lm_head")
REFERENCE, OLD = move(POLICY, 2, 0.06), move(POLICY, 3, 0.035)
VALUE = draw(4, "score")

# Three prompts, the second with an EOS in it; three responses to each, of one to six tokens, the longest without EOS
PROMPTS = [[2, 5], [2, 7, 1, 4], [2, 9, 6]]
RESPONSES = [
    [5, 8, 3, 1], [10, 1], [4, 4, 9, 7, 11, 6],
    [6, 3, 1], [11, 8, 5, 3, 1], [1],
    [7, 10, 4, 9, 3, 8], [9, 1], [3, 6, 11, 1],
]  # fmt: skip
SAMPLED: dict[str, Any] = {"prompts": [p for p in PROMPTS for _ in range(3)], "responses": RESPONSES}

PAIRS: dict[str, Any] = {
    "prompts": [[2, 5], [2, 7, 1, 4], [2, 9, 6], [2, 8], [2, 4, 10, 3, 6]],
    "chosen_responses": [[5, 8, 3, 1], [10, 1], [4, 9, 7, 11, 6], [6, 3, 1], [1]],
    "rejected_responses": [[11, 1], [7, 10, 4, 9, 3, 8], [3, 1], [5, 4, 7, 11, 1], [9, 6, 1]],
}
THUMBS: dict[str, Any] = {
    "prompts": [[2, 5], [2, 7, 1, 4], [2, 9, 6], [2, 8], [2, 4, 10, 3, 6], [2, 11, 7]],
    "responses": [[5, 8, 3, 1], [10, 1], [4, 9, 7, 11, 6], [6, 3, 1], [1], [7, 10, 4, 9, 3, 8]],
    "labels": [True, False, True, True, False, True],
    "mismatched_responses": [[10, 1], [4, 9, 7, 11, 6], [6, 3, 1], [1], [7, 10, 4, 9, 3, 8], [5, 8, 3, 1]],
}

Made = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


def of_ppo() -> Made:
    inputs = {**SAMPLED, "reward_model_scores": [1.2, -0.4, 0.3, -1.0, 0.7, 0.1, 0.5, 0.9, -0.6]}
    settings = {
        "temperature": 0.8, "missing_eos_penalty": 1.0, "kl_coef": 0.1, "gamma": 0.95, "lam": 0.9, "cliprange": 0.2,
        "cliprange_value": 0.2, "vf_coef": 0.5, "episode_end": "last", "whiten_ddof": 0,
    }  # fmt: skip
    value = move(VALUE, 5, 0.05)
    learned = {**{f"policy.{n}": w for n, w in POLICY.items()}, **{f"value.{n}": w for n, w in value.items()}}
    return inputs, settings, {"learned": learned, "reference": REFERENCE, "old": OLD, "old_value": VALUE}


def of_grpo() -> Made:
    inputs = {**SAMPLED, "rewards": [1.2, -0.4, 0.3, -1.0, 0.7, 0.1, 0.5, 0.5, 0.5]}  # the last group's are equal
    settings = {
        "temperature": 0.8, "num_generations": 3, "beta": 0.1, "epsilon": 0.2, "epsilon_high": 0.2, "loss_type": "grpo",
        "scale_rewards": "group", "importance_sampling_level": "token", "use_bias_correction_kl": False,
        "max_completion_length": 8,
    }  # fmt: skip
    return inputs, settings, {"learned": POLICY, "reference": REFERENCE, "old": OLD}


def of_rloo() -> Made:
    inputs = {**SAMPLED, "scores": [1.2, -0.4, 0.3, -1.0, 0.7, 0.1, 0.5, 0.5, 0.5]}
    settings = {
        "temperature": 0.8, "num_generations": 3, "beta": 0.1, "epsilon": 0.2, "loss_type": "clipped",
        "normalize_advantages": False,
    }  # fmt: skip
    return inputs, settings, {"learned": POLICY, "reference": REFERENCE, "old": OLD}


def of_dpo() -> Made:
    settings = {"beta": 0.5, "loss_type": "sigmoid", "label_smoothing": 0.0}
    return PAIRS, settings, {"learned": POLICY, "reference": REFERENCE}


def of_kto() -> Made:
    settings = {"beta": 0.5, "desirable_weight": 1.0, "undesirable_weight": 1.5, "loss_type": "kto"}
    return THUMBS, settings, {"learned": POLICY, "reference": REFERENCE}


def of_reward() -> Made:
    inputs = {**PAIRS, "pair_margins": [0.5, 0.0, 1.0, 0.25, 0.0]}
    return inputs, {"use_margins": False, "center_rewards_coefficient": 0.0}, {"learned": VALUE}


TINY = 1e-30


def gradient(method: Method, values: Values, weights: Weights) -> dict[str, Array]:
    """Differentiate the loss by each weight with a complex step (Squire and Trapp 1998).

    `values` are what `before` has made: it is constant.
    """
    quantities = [q for q in method.each_pass if q.name not in ("entropy", "clip_fraction", "accuracy")]
    gradients = {name: np.zeros(weight.shape) for name, weight in weights.items()}
    for name, weight in weights.items():
        for place in np.ndindex(weight.shape):
            moved = weight.astype(complex)
            moved[place] += 1j * TINY
            step = Values(values, weights={**weights, name: moved})
            for quantity in quantities:
                step[quantity.name] = quantity.formula(step)
            gradients[name][place] = np.imag(step["loss"]) / TINY
    return gradients


def evaluate(method: Method, inputs: Any, settings: dict[str, Any], weights: dict[str, Weights]) -> dict[str, Any]:
    """Compute every quantity of a trace, in order."""
    values = method.start(inputs, {**settings, **{f"{name}_weights": w for name, w in weights.items()}})
    quantities: dict[str, Any] = {}
    for quantity in method.before:
        quantities[quantity.name] = values[quantity.name] = quantity.formula(values)
    learned, history = dict(weights["learned"]), []
    for prefix in PASSES:
        step = Values(values, weights=learned)
        for quantity in method.each_pass:
            quantities[prefix + quantity.name] = step[quantity.name] = quantity.formula(step)
        history.append(gradient(method, values, learned))
        learned = adamw(learned, history, settings)
        quantities[f"{prefix}gradients"] = history[-1]
        quantities[f"{prefix}gradient_norm"] = norm_of(history[-1])
        quantities[f"{prefix}parameters"] = learned
    return quantities


def plain(value: Any) -> Any:
    """Lists and numbers, to twelve digits, of a value with arrays in it."""
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    return np.round(np.asarray(value, dtype=float), 12).tolist()


def make(name: str) -> dict[str, Any]:
    """Make what a method's file holds; a variant has what differs."""
    method, (inputs, settings, weights) = METHODS[name], globals()[f"of_{name}"]()
    settings = {**TOKENS, **settings, **OPTIMISER}
    quantities, variants = plain(evaluate(method, inputs, settings, weights)), {}
    for variant, changes in method.variants.items():
        others = plain(evaluate(method, inputs, {**settings, **changes}, weights))
        variants[variant] = {n: value for n, value in others.items() if value != quantities[n]}
    return {
        "method": name, "title": method.title, "definitions": method.definitions(),
        "model": {**MODEL, "num_labels": 1} if name == "reward" else MODEL,
        "inputs": inputs, "hyperparameters": settings, "weights": plain(weights), "quantities": quantities,
        "variants": variants,
    }  # fmt: skip


def write(trace: dict[str, Any], path: Path) -> None:
    """Write a trace with a line for each input, network and quantity."""
    parts = []
    for name, value in trace.items():
        lines = (
            [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items()]
            if isinstance(value, dict)
            else []
        )
        text = "{\n  " + ",\n  ".join(lines) + "\n}" if lines else json.dumps(value, ensure_ascii=False)
        parts.append(f"{json.dumps(name)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    for name in METHODS:
        write(make(name), DATA / f"{name}.json")
