"""Prompts, responses, scores and a moved policy, as TRL's trainers and ours are given them."""

from __future__ import annotations

from typing import Any

import torch

PERTURBED = 0.02
"""The standard deviation of what is added to the policy's weights."""
LONGEST = 6


def prompts_of() -> list[str]:
    return [" ".join(f"w{(5 * row + k) % 40}" for k in range(1 + row % 3)) for row in range(5)]


def _draw(seed: int) -> list[list[int]]:
    """Five responses: the end of all but the second is sampled."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [3, LONGEST, 2, 5, 4]
    rows = [torch.randint(5, 45, (length,), generator=generator).tolist() for length in lengths]
    return [[*row[:-1], 1] if len(row) < LONGEST else row for row in rows]


RESPONSES = _draw(1), _draw(2)[::-1]
"""The policy's, and those that it meets: of the policy too, of its start or of the mixture."""
SCORES = [0.5, -1.0, 2.0, 0.25, -0.75], [-0.5, 0.5, 1.0, 1.5, -1.0]
"""The better responses are the first, the other, the first, the other, the first."""


def move(model: Any, scale: float) -> None:
    """Add numbers to the weights, the same in each call."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight += scale * torch.randn(weight.shape, generator=generator)


def describe_gradient(model: Any) -> dict[str, list[float]]:
    """Describe each weight's gradient as its norm and its product with a fixed direction."""
    found = {}
    for name, weight in model.named_parameters():
        direction = torch.arange(weight.numel(), dtype=torch.float64).cos().view(weight.shape)
        gradient = weight.grad.double()
        found[name] = [float(gradient.norm()), float((gradient * direction).sum())]
    return found
