"""The settings of the studies, and the table that names them."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from afarm import Config, ConfigError, setting

option = partial(setting, changes_result=False)
"""Declares a setting of a study, which is in no artifact's key: it says which runs there are."""


METHODS = "ppo,dpo,best_of_n,expert_iteration,feedme,quark,reward_conditioning,base"
"""The methods that the paper ranks, and those that it starts from."""

MEMBERS = (
    "gpt4_1,gpt4_2,gpt4_3,gpt4_4,gpt4_5,chatgpt_1,chatgpt_2,chatgpt_3,chatgpt_4,davinci003_1,davinci003_2,davinci003_3,"
    "davinci003_4"
)
"""The members of the paper's pool."""


PEOPLE = (
    "the annotator that stands for people, and judges; left out: crowd or, with people's own preferences, the recipe's"
)
PREFERENCES = "people's own preferences to train on, as FILE, or METHOD=FILE for one method; repeatable"
"""The descriptions of two settings of studies that train on labels of people."""


def split_names(text: str) -> list[str]:
    """Split a setting that lists names with commas between, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def whole_numbers(setting: str, text: str) -> list[int]:
    """Read whole numbers from 1 with commas between, in order. Raises `ConfigError`."""
    parts = [part.strip() for part in text.split(",")]
    if wrong := [part for part in parts if not (part.isascii() and part.isdigit() and int(part))]:
        raise ConfigError([f"{setting}: {wrong[0]!r}: whole numbers from 1, with commas between, such as 1,4,16"])
    return sorted({int(part) for part in parts})


class SweepConfig(Config):
    """Any setting over values and seeds: win rate, KL and all other figures by value."""

    method: str = option("", "the method that is trained; the recipe's unless named")
    values: list[str] = option(
        list,
        "a setting and its values, as NAME=A,B,C; of several settings every combination is a run",
    )


class RankingsConfig(Config):
    """Systems ranked by people and by simulated annotators: do the rankings agree?"""

    humans: str = option(
        "",
        "a file of pairs with people's labels (annotator1 …) and the names of both systems; nothing is trained",
    )
    judged: list[str] = option(list, "a file of a judge on the same pairs, as FILE or NAME=FILE")
    methods: str = option(
        METHODS,
        "without such files: the methods that are trained and ranked, with commas between",
    )
    people: str = option("", PEOPLE)
    people_preferences: list[str] = option(list, PREFERENCES)


class ReachConfig(Config):
    """Methods that go further and further."""

    methods: str = option(
        "best_of_n,ppo",
        "the methods, with commas between: best_of_n, expert_iteration and ppo go further by a setting",
    )
    n: str = option("1,4,16,64,256", "samples of best-of-n, with commas between")
    iteration_n: str = option("4,16,64", "samples of expert iteration, with commas between")
    steps: str = option("20,40,80,200", "steps of PPO, with commas between")
    along: Literal["runs", "checkpoints"] = option(
        "runs", "PPO's reaches are runs of their own, or checkpoints of one run, judged on the validation split"
    )


class OverOptimizationConfig(ReachConfig):
    """Win rate against proxy reward and KL as methods go further, by the labels learned from."""

    labelled_by: str = option(
        "crowd,pool+0.25,greedy_gpt4",
        "annotators of training labels and of the final win rate, with commas between, as NAME or NAME+SHARE flipped",
    )


class LabelNoiseConfig(ReachConfig):
    """Over-optimisation by the share of flipped labels, for each annotator."""

    noise: str = option("0,0.175,0.25,0.35", "shares of training labels that are flipped, with commas between")
    annotators: str = option("pool,greedy_gpt4", "annotators of training labels and of the final win rate")


class TransferConfig(Config):
    """Methods that learn from people, from the pool and from a single annotator, all judged by people."""

    methods: str = option("ppo,best_of_n", "the methods, with commas between")
    labelled_by: str = option(
        "crowd,pool+0.25,greedy_gpt4",
        "annotators of training labels, as NAME or NAME+SHARE flipped, one of them people",
    )
    people: str = option("", PEOPLE)
    people_preferences: list[str] = option(list, PREFERENCES)


class SystemsConfig(Config):
    """Systems of files, or methods."""

    annotations: list[str] = option(
        list, "a file of annotations, whose output_2 is the system's; nothing is trained; repeatable"
    )
    methods: str = option(
        METHODS,
        "without such files: the methods that are trained, with commas between",
    )


class EvalSetsConfig(SystemsConfig):
    """Systems ranked on each evaluation data set, without it, and on a set of one's own."""

    own: list[str] = option(list, "further instructions that methods are evaluated on, as NAME=FILE; repeatable")
    by: str = option(
        "dataset",
        "the sets: dataset (named in each row), first-word, or a file of instructions with the `dataset` of each",
    )
    fewest: int = option(20, "the fewest instructions of a set; smaller ones are put together", ge=1)


class AnnotatorsConfig(Config):
    """Annotators beside people: price, agreement, bias, variance, preferences, and who agrees with whom."""

    humans: str = option("", "a file of pairs with people's labels: nothing is trained or asked")
    judged: list[str] = option(list, "a file of a judge on the same pairs, as FILE or NAME=FILE")
    annotators: str = option(
        f"pool,pool+0.25,greedy_gpt4,{MEMBERS}",
        "without such files: the annotators, with commas between, as NAME or NAME+SHARE flipped",
    )
    people: str = option("crowd", "without such files: the annotator that stands for people")
    draws: int = option(4, "labels of each pair by each annotator, with independent draws", ge=1)
    method: str = option("sft", "the method whose outputs are compared with its reference's")
    family: list[str] = option(list, "the family of an annotator, as NAME=FAMILY, if its name does not say; repeatable")


class PoolSizeConfig(Config):
    """Pools of one annotator and of many: agreement with people, bias, variance and what is learned."""

    sizes: str = option("1,2,4,8,13", "numbers of members, with commas between")
    pools: int = option(4, "pools of each size, with other members", ge=1)
    members: str = option(MEMBERS, "the annotators that members are drawn from, with commas between")
    draws: int = option(4, "labels of each pair by each pool, with independent draws", ge=3)
    people: str = option("crowd", "the annotator that stands for people")
    method: str = option("sft", "the method whose outputs are compared with its reference's")
    methods: str = option("", "methods that also learn from each pool's labels, with commas between; people judge them")
    noise: float = option(0.25, "for these: the share of a pool's labels that is flipped", ge=0, le=0.5)


class ModelSizeConfig(Config):
    """Methods on base models of several sizes: win rates, and gains over SFT."""

    models: str = option("", "the base models, with commas between: Hub ids, directories or .gguf files")
    methods: str = option("best_of_n,dpo", "the methods, with commas between, which are compared with SFT")


class LengthsConfig(SystemsConfig):
    """Lengths of outputs before and after each method, and win rate by length."""

    difference: int = option(
        30, "characters by which two outputs must differ for one to be the longer; the paper's", ge=0
    )


STUDIES: Mapping[str, tuple[str, type[Config]]] = {
    "sweep": ("sweep:Sweep", SweepConfig),
    "rankings": ("rankings:Rankings", RankingsConfig),
    "overoptimization": ("over_optimization:OverOptimization", OverOptimizationConfig),
    "label-noise": ("over_optimization:LabelNoise", LabelNoiseConfig),
    "transfer": ("transfer:Transfer", TransferConfig),
    "eval-sets": ("eval_sets:EvalSets", EvalSetsConfig),
    "annotators": ("annotators:Annotators", AnnotatorsConfig),
    "pool-size": ("pool_size:PoolSize", PoolSizeConfig),
    "lengths": ("lengths:Lengths", LengthsConfig),
    "model-size": ("model_size:ModelSize", ModelSizeConfig),
}
"""The studies by name: module and class, and settings, whose docstring is the line about the study."""

SWEEPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "kl": (
        "the sweep over PPO's KL coefficient",
        {"method": "ppo", "values": ["ppo.kl_coef=0.002,0.02,0.2,2"]},
    ),
    "data-size": (
        "the sweep over the number of preference pairs: does the gain flatten?",
        {"values": ["rows.preference=250,500,1000,2000"]},
    ),
}
"""The sweeps over values of their own: a line about each, and its settings."""
