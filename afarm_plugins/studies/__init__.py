"""Studies: the questions of the AlpacaFarm paper, and any setting over values. See docs/studies."""

from afarm import Config, Register, hookimpl, setting


class SweepConfig(Config):
    """Any setting over values and seeds, every combination."""

    method: str = setting("", "the method that is trained; the recipe's unless named")
    values: list[str] = setting(
        list, "a setting and its values, as NAME=A,B,C; of several settings every combination is a run"
    )


@hookimpl
def register_studies(register: Register) -> None:
    register(
        "sweep",
        "afarm_plugins.studies.sweep:Sweep",
        config=SweepConfig,
        summary="any setting over values and seeds: win rate, KL and all other figures by value",
    )
