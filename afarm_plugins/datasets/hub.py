"""AlpacaFarm's data from the Hugging Face Hub (facts: arXiv 2305.14387, section 3.1 and appendix B)."""

from __future__ import annotations

from pathlib import Path

from afarm.errors import DataError
from afarm.interfaces import Dataset
from afarm.records import Output
from afarm_plugins.datasets import HubConfig

PATIENCE = 5.0
"""Seconds to wait for the Hub's first answer."""

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
        """See `Dataset.load`. Raises `DataError` where the Hub cannot be reached."""
        import datasets

        if split not in HUB_SPLITS:
            raise DataError(f"data set 'alpaca_farm' has no split {split!r}; it has {', '.join(HUB_SPLITS)}")
        name, hub_split = HUB_SPLITS[split]
        repository = self.config.evaluation_repository if split == "evaluation" else self.config.repository
        _require_reachable(repository)
        try:
            rows = datasets.load_dataset(repository, name, split=hub_split, revision=self.config.revision)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise DataError(
                f"{repository} ({name}, {hub_split}) cannot be loaded: {error}; "
                "without the Hub, name your own files: --data FILE"
            ) from error
        distinct: dict[str, Output] = {}
        for number, row in enumerate(rows):
            output = Output.from_row(row, f"{repository} {name}/{hub_split}: row {number}")
            # Alpaca-52k repeats some instructions; the first of each stands.
            distinct.setdefault(output.instruction.id, output)
        if split != "evaluation":  # and what is evaluated is never trained on
            for row in self.load("evaluation"):
                distinct.pop(row.instruction.id, None)
        return list(distinct.values())


def _require_reachable(repository: str) -> None:
    """Loading would try to reach the Hub for half a minute first, and then look at what it has kept.

    Raises `DataError` where the Hub cannot be reached and nothing of `repository` is kept.
    """
    import datasets
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    kept = Path(datasets.config.HF_DATASETS_CACHE) / repository.replace("/", "___")
    if Path(repository).exists() or kept.exists():
        return
    try:
        HfApi().dataset_info(repository, timeout=PATIENCE)
    except (HfHubHTTPError, ValueError):  # an answer, or no name that the Hub could have: loading says more
        return
    except Exception as error:  # each HTTP library under the Hub's client has exceptions of its own
        raise DataError(
            f"{repository}: the Hub cannot be reached ({error}); without it, name your own files: --data FILE"
        ) from error
