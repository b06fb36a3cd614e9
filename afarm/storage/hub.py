"""Data sets of the Hugging Face Hub, through the `datasets` library, and errors that say what to do without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from afarm.core.errors import DataError
from afarm.core.records import Row

SCHEME = "hf:"
FORM = "hf:OWNER/NAME[/CONFIGURATION][:SPLIT]"

PATIENCE = 5.0
"""Seconds to wait for the Hub's first answer."""


def is_on_hub(source: object) -> bool:
    """Whether `source` names a data set of the Hub, as `hf:owner/name`, instead of a file."""
    return str(source).startswith(SCHEME)


def hub_rows(source: str) -> Iterator[Row]:
    """The rows of a data set named as `hf:owner/name[/configuration][:split]`.

    Raises `DataError` where it cannot be loaded, or has several splits and none is named.
    """
    name, _, split = source.removeprefix(SCHEME).partition(":")
    owner, _, rest = name.partition("/")
    repository, _, configuration = rest.partition("/")
    if not owner or not repository:
        raise DataError(f"{source}: name a data set of the Hub as {FORM}")
    found = load_from_hub(f"{owner}/{repository}", configuration or None, split or None, mend="name a file instead")
    if isinstance(found, Mapping):
        if len(found) > 1:
            names = ", ".join(found)
            raise DataError(f"{source} has several splits ({names}): name one, such as {source}:{next(iter(found))}")
        found = next(iter(found.values()))
    for row in found:
        yield dict(row)


def load_from_hub(
    repository: str, configuration: str | None, split: str | None, *, mend: str, revision: str = "main"
) -> Any:
    """What `datasets` loads. Raises `DataError` where it is not installed, the Hub cannot be reached or the data set
    is not there; `mend` says what else can be done."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise DataError(f"{repository}: reading from the Hub needs datasets: pip install 'afarm[train]'") from error
    _require_reachable(repository, mend)
    try:
        return datasets.load_dataset(repository, configuration, split=split, revision=revision)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        which = ", ".join(filter(None, (configuration, split)))
        raise DataError(
            f"{repository}{f' ({which})' if which else ''} cannot be loaded: {error}; without the Hub, {mend}"
        ) from error


def _require_reachable(repository: str, mend: str) -> None:
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
        raise DataError(f"{repository}: the Hub cannot be reached ({error}); without it, {mend}") from error
