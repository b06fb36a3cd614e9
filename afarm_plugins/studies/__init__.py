"""Studies: the questions of the AlpacaFarm paper, and any setting over values. See docs/studies."""

from functools import partial

from afarm import Config, Register, hookimpl, setting

option = partial(setting, changes_result=False)
"""Declares a setting of a study, which is in no artifact's key: it says which runs there are."""


def split_names(text: str) -> list[str]:
    """Split a setting that lists names with commas between, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


class SweepConfig(Config):
    """Any setting over values and seeds, every combination."""

    method: str = option("", "the method that is trained; the recipe's unless named")
    values: list[str] = option(
        list,
        "a setting and its values, as NAME=A,B,C; of several settings every combination is a run",
    )


class RankingsConfig(Config):
    """Systems ranked by people and by simulated annotators."""

    humans: str = option(
        "",
        "a file of pairs with people's labels (annotator1 …) and the names of both systems; nothing is trained",
    )
    judged: list[str] = option(list, "a file of a judge on the same pairs, as FILE or NAME=FILE")
    methods: str = option(
        "ppo,dpo,best_of_n,expert_iteration,feedme,quark,reward_conditioning,base",
        "without such files: the methods that are trained and ranked, with commas between",
    )
    people: str = option("crowd", "without such files: the annotator that stands for people")


class ReachConfig(Config):
    """Methods that go further and further."""

    methods: str = option(
        "best_of_n,ppo",
        "the methods, with commas between: best_of_n, expert_iteration and ppo go further by a setting",
    )
    n: str = option("1,4,16,64,256", "samples of best-of-n, with commas between")
    iteration_n: str = option("4,16,64", "samples of expert iteration, with commas between")
    steps: str = option("20,40,80,200", "steps of PPO, with commas between")


class OverOptimizationConfig(ReachConfig):
    """Over-optimisation of a reward model, by the labels that it learned from."""

    labelled_by: str = option(
        "crowd,pool+0.25,greedy_gpt4",
        "annotators of training labels and of the final win rate, with commas between, as NAME or NAME+SHARE flipped",
    )


class LabelNoiseConfig(ReachConfig):
    """Over-optimisation under shares of flipped labels."""

    noise: str = option("0,0.175,0.25,0.35", "shares of training labels that are flipped, with commas between")
    annotators: str = option("pool,greedy_gpt4", "annotators of training labels and of the final win rate")


class TransferConfig(Config):
    """Methods trained on several kinds of labels, all judged by people."""

    methods: str = option("ppo,best_of_n", "the methods, with commas between")
    labelled_by: str = option(
        "crowd,pool+0.25,greedy_gpt4",
        "annotators of training labels, as NAME or NAME+SHARE flipped, one of them people",
    )
    people: str = option("crowd", "the annotator that stands for people, and judges all")


@hookimpl
def register_studies(register: Register) -> None:
    register(
        "sweep",
        "afarm_plugins.studies.sweep:Sweep",
        config=SweepConfig,
        summary="any setting over values and seeds: win rate, KL and all other figures by value",
    )
    register(
        "rankings",
        "afarm_plugins.studies.rankings:Rankings",
        config=RankingsConfig,
        summary="systems ranked by people and by simulated annotators: do the rankings agree?",
    )
    register(
        "overoptimization",
        "afarm_plugins.studies.over_optimization:OverOptimization",
        config=OverOptimizationConfig,
        summary="win rate against proxy reward and KL as methods go further, by the labels learned from",
    )
    register(
        "label-noise",
        "afarm_plugins.studies.over_optimization:LabelNoise",
        config=LabelNoiseConfig,
        summary="over-optimisation by the share of flipped labels, for each annotator",
    )
    register(
        "transfer",
        "afarm_plugins.studies.transfer:Transfer",
        config=TransferConfig,
        summary="what is learned from people, from the pool and from a single annotator, all judged by people",
    )
    register(
        "kl",
        "afarm_plugins.studies.sweep:Sweep",
        config=SweepConfig,
        defaults={"method": "ppo", "values": ["ppo.kl_coef=0.002,0.02,0.2,2"]},
        summary="the sweep over PPO's KL coefficient",
    )
    register(
        "data-size",
        "afarm_plugins.studies.sweep:Sweep",
        config=SweepConfig,
        defaults={"values": ["rows.preference=250,500,1000,2000"]},
        summary="the sweep over the number of preference pairs: does the gain flatten?",
    )
