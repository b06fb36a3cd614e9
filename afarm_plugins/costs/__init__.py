"""Costs: what stored runs took in time, memory and dollars, and what a budget buys."""

from __future__ import annotations

from afarm import Register, hookimpl


@hookimpl
def register_studies(register: Register) -> None:
    from afarm_plugins.costs.settings import CostsConfig  # the help needs no settings

    register(
        "costs",
        "afarm_plugins.costs.study:Costs",
        config=CostsConfig,
        summary="time, memory and dollars of stored runs by method and stage, and a plan for a budget",
    )
