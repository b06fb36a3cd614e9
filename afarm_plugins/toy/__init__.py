"""The toy world: a small language with a gold reward, its data, crowd, reward model and evaluator."""

from __future__ import annotations

from typing import Literal

from afarm import Config, Register, hookimpl, setting


class ToyConfig(Config):
    """The toy data set: the world's edition, and how many instructions each split has."""

    world: Literal[2] = setting(2, "edition of the toy world; the toy recipe takes the base model that goes with it")
    world_seed: int = setting(0, "which instructions are drawn from the world, and which authors answer them")
    sft: int = setting(4000, "instructions with a demonstration", ge=0)
    preference: int = setting(4000, "instructions to sample pairs for", ge=0)
    unlabeled: int = setting(4000, "instructions for methods that learn from rewards", ge=0)
    validation: int = setting(500, "instructions to watch training on", ge=0)
    evaluation: int = setting(805, "instructions for the win rate, as many as AlpacaFarm's", ge=0)


class CrowdConfig(Config):
    """The simulated crowd."""

    votes: int = setting(
        1, "different members asked about each pair; p2 is the share that prefers output_2", ge=1, le=16
    )


@hookimpl
def register_datasets(register: Register) -> None:
    register(
        "toy",
        "afarm_plugins.toy.dataset:ToyDataset",
        config=ToyConfig,
        summary="a templated language with a known gold reward",
    )


@hookimpl
def register_reward_models(register: Register) -> None:
    register("gold", "afarm_plugins.toy.gold:GoldReward", summary="the toy world's true reward")


@hookimpl
def register_evaluators(register: Register) -> None:
    register(
        "gold", "afarm_plugins.toy.gold:GoldEvaluator", summary="mean gold reward, and the difference to the reference"
    )


@hookimpl
def register_annotators(register: Register) -> None:
    register(
        "crowd",
        "afarm_plugins.toy.crowd:Crowd",
        config=CrowdConfig,
        summary="16 simulated people with different tastes (toy world only)",
    )
