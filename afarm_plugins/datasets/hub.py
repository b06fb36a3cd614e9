"""AlpacaFarm's data from the Hugging Face Hub (arXiv 2305.14387, section 3.1 and appendix B)."""

from __future__ import annotations

from afarm import DataError, Dataset, Output, Tasks, load_from_hub
from afarm_plugins.datasets import HubConfig

HUB_SPLITS = {
    "sft": ("alpaca_instructions", "sft"),
    "preference": ("alpaca_instructions", "preference"),
    "unlabeled": ("alpaca_instructions", "unlabeled"),
    "validation": ("alpaca_instructions", "val"),
    "evaluation": ("alpaca_farm_evaluation", "eval"),
}
"""afarm's splits as (configuration, split) of the Hub's data set."""


class AlpacaFarm(Dataset):
    """The paper's splits: 10k SFT, 10k preference, 20k unlabeled, 2k validation, 805 for evaluation."""

    remote = True

    def __init__(self, config: HubConfig):
        self.config = config

    def load(self, split: str) -> list[Output]:
        """See `Dataset.load`. Raises `DataError` if the Hub cannot be reached."""
        if split not in HUB_SPLITS:
            raise DataError(f"data set 'alpaca_farm' has no split {split!r}; it has {', '.join(HUB_SPLITS)}")
        name, hub_split = HUB_SPLITS[split]
        repository = self.config.evaluation_repository if split == "evaluation" else self.config.repository
        remedy = "name your own files: --data FILE"
        rows = load_from_hub(repository, name, hub_split, remedy=remedy, revision=self.config.revision)
        distinct: dict[str, Output] = {}
        for number, row in enumerate(rows):
            output = Output.from_row(row, f"{repository} {name}/{hub_split}: row {number}")
            # Alpaca-52k repeats some instructions: keep the first.
            distinct.setdefault(output.instruction.id, output)
        if split != "evaluation":  # never train on what is evaluated
            evaluated = Tasks(row.instruction for row in self.load("evaluation"))
            return [row for row in distinct.values() if row.instruction not in evaluated]
        return list(distinct.values())
