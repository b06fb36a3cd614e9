"""Studies: the questions of the AlpacaFarm paper, and any setting over values. See docs/studies."""

from afarm import Config, Register, hookimpl, setting


class SweepConfig(Config):
    """Any setting over values and seeds, every combination."""

    method: str = setting("", "the method that is trained; the recipe's unless named")
    values: list[str] = setting(
        list, "a setting and its values, as NAME=A,B,C; of several settings every combination is a run"
    )


class RankingsConfig(Config):
    """Systems ranked by people and by simulated annotators."""

    humans: str = setting(
        "", "a file of pairs with people's labels (annotator1 …) and the names of both systems; nothing is trained"
    )
    judged: list[str] = setting(list, "a file of a judge on the same pairs, as FILE or NAME=FILE")
    methods: str = setting(
        "ppo,dpo,best_of_n,expert_iteration,feedme,quark,reward_conditioning,base",
        "without such files: the methods that are trained and ranked, with commas between",
    )
    people: str = setting("crowd", "without such files: the annotator that stands for people")


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
