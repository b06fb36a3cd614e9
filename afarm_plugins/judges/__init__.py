"""Judges: the language models behind prompt annotators. `offline` simulates one, with no key and no network."""

from __future__ import annotations

from afarm.config import Config, setting
from afarm.hookspecs import Register, hookimpl


class RoleNoise(Config):
    """How the offline judge errs in one family role; calibrated in the toy world, see docs/toy-world.md."""

    noise: float = setting(1.0, "temperature of the logistic noise, in units of the utility", gt=0)
    length_bias: float = setting(0.0, "utility added for each natural log of the ratio of the outputs' word counts")
    position_bias: float = setting(0.0, "log-odds in favour of the output shown first")


class OfflineConfig(Config):
    """The offline judge: a stated utility and noise that depends on the family role."""

    utility: str = setting(
        "text_utility", "name of the reward model that is the judge's utility; `--judge offline:NAME` overrides it"
    )
    strong: RoleNoise = setting(
        lambda: RoleNoise(noise=0.3, length_bias=0.5, position_bias=0.05), "errs as a strong chat model"
    )
    light: RoleNoise = setting(
        lambda: RoleNoise(noise=1.4, length_bias=1.2, position_bias=0.2), "errs as a light chat model"
    )
    completion: RoleNoise = setting(
        lambda: RoleNoise(noise=2.7, length_bias=2.0, position_bias=0.3), "errs as a completion model"
    )
    other: RoleNoise = setting(
        lambda: RoleNoise(noise=1.4, length_bias=1.2, position_bias=0.2), "errs in any other role"
    )
    unparsed_rate: float = setting(0.0, "share of comparisons answered with nothing that can be parsed", ge=0, le=1)


@hookimpl
def register_judges(register: Register) -> None:
    register(
        "offline",
        "afarm_plugins.judges.offline:OfflineJudge",
        config=OfflineConfig,
        summary="simulated: a stated utility plus noise; offline:NAME takes the reward model NAME as its utility",
    )


@hookimpl
def register_reward_models(register: Register) -> None:
    register(
        "text_utility",
        "afarm_plugins.judges.text_utility:TextUtility",
        summary="a stated formula on real text (length, overlap, repetition, completeness); not quality",
    )
