"""The settings of the judges here."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from pydantic import field_validator

from afarm import Capabilities, Config, did_you_mean, setting


class RoleNoise(Config):
    """Errors of the offline judge in one family role; calibrated in docs/notes/toy-world.md."""

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
    rating_thresholds: list[float] = setting(
        [-1.5, 0.0, 1.2, 2.5, 4.5, 6.5],
        "the utilities, with noise, from which an output that is rated alone gets a 2, 3 … 7; below the first, a 1",
        min_length=6,
        max_length=6,
    )
    unparsed_rate: float = setting(0.0, "share of comparisons answered with nothing that can be parsed", ge=0, le=1)


class LocalConfig(Config):
    """A language model of your own as the judge."""

    answer: Literal["text", "probabilities"] = setting(
        "text",
        "text, written in the prompt's format; or probabilities, read off the two labels where the answer would start, "
        "for annotators that judge one pair with a label",
    )
    per_device_batch_size: int = setting(
        16,
        "requests answered at once: memory and speed. With 1 not even the last bits of an answer depend on the others",
        ge=1,
        changes_result=False,
    )


class VendorConfig(Config):
    """A judge behind a vendor's API, or a server that speaks it."""

    base_url: str = setting("", "where the API is; empty takes the vendor's own")
    key_variable: str = setting("", "the environment variable that holds the key", changes_result=False)
    max_retries: int = setting(
        6,
        "times a request is sent again after 5xx, a dropped connection, a timeout or nonsense (429 is waited for)",
        ge=0,
        changes_result=False,
    )
    timeout: float = setting(
        120.0, "seconds that one attempt may take, to the last byte of its answer", gt=0, changes_result=False
    )
    effort: str = setting("", "how hard a reasoning model thinks (none, low, medium, high …); empty leaves its default")
    thinking_tokens: int = setting(
        4096, "added to the token limit of models that think first: vendors count thoughts as output", ge=0
    )
    capabilities: dict[str, bool] = setting(
        {}, "what the model takes where its name does not tell: temperature, logit_bias, logprobs, schema, tool …"
    )

    @field_validator("base_url")
    @classmethod
    def _refuse_keys(cls, url: str) -> str:
        if set(url) & set("@?#"):
            raise ValueError("a key goes into the environment variable that key_variable names, never into a URL")
        return url

    @field_validator("capabilities")
    @classmethod
    def _refuse_unknown_capabilities(cls, given: dict[str, bool]) -> dict[str, bool]:
        known = [field.name for field in fields(Capabilities)]
        unknown = [f"unknown capability {name!r}.{did_you_mean(name, known)}" for name in sorted(given.keys() - known)]
        if unknown:
            raise ValueError("; ".join(unknown))
        return given


class ReplayConfig(Config):
    """Answers from a file of stored annotations, without a call."""

    missing: Literal["error", "unparsed"] = setting(
        "error", "what a comparison that the file does not hold is: an error, or an answer that cannot be read"
    )
    seed: int = setting(
        0,
        "the seed of the alpaca_eval run that wrote the file: it tells in which order a stored raw completion saw the "
        "outputs",
        ge=0,
    )
