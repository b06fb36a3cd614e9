"""The Hugging Face Hub: its data sets, through the `datasets` library, and whether it can be reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from afarm.core.errors import DataError
from afarm.core.records import Row
from afarm.storage.user_files import why_closed

SCHEME = "hf:"
FORM = "hf:OWNER/NAME[/CONFIGURATION][:SPLIT]"

PATIENCE = 5.0
"""Seconds to wait for the Hub. Loading would try again for a minute, and huggingface_hub has no setting for that."""


def is_on_hub(source: object) -> bool:
    """Tell a data set of the Hub, `hf:owner/name`, from a file."""
    return str(source).startswith(SCHEME)


def hub_rows(source: str) -> Iterator[Row]:
    """Yield the rows of `hf:owner/name[/configuration][:split]`. Raises `DataError`."""
    name, _, split = source.removeprefix(SCHEME).partition(":")
    owner, _, rest = name.partition("/")
    repository, _, configuration = rest.partition("/")
    if not owner or not repository:
        raise DataError(f"{source}: name a data set of the Hub as {FORM}")
    rows = load_from_hub(f"{owner}/{repository}", configuration or None, split or None, remedy="name a file instead")
    if isinstance(rows, Mapping):
        if len(rows) > 1:
            names = ", ".join(rows)
            raise DataError(f"{source} has several splits ({names}): name one, such as {source}:{next(iter(rows))}")
        rows = next(iter(rows.values()))
    for row in rows:
        yield dict(row)


def load_from_hub(
    repository: str, configuration: str | None, split: str | None, *, remedy: str, revision: str = "main"
) -> Any:
    """Load a data set of the Hub, as `datasets.load_dataset` returns it.

    Raises `DataError` if `datasets` is not installed, the Hub cannot be reached, or the data set is not there or gated.

    Args:
        repository: the data set's name, `owner/name`.
        configuration: one of its configurations; None for its default.
        split: one of its splits; None for a mapping of all.
        remedy: says in the error what else the user can do.
        revision: branch, tag or commit.
    """
    if problem := why_closed(repository):
        raise DataError(f"{repository}: {problem}")
    try:
        import datasets
        from huggingface_hub.errors import GatedRepoError
    except ModuleNotFoundError as error:
        raise DataError(f"{repository}: reading from the Hub needs datasets: pip install 'afarm[train]'") from error
    _require_reachable(repository, remedy)
    try:
        return datasets.load_dataset(repository, configuration, split=split, revision=revision)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        which = ", ".join(filter(None, (configuration, split)))
        gated = isinstance(error.__cause__, GatedRepoError)
        login = " Accept its terms on its page, and run `hf auth login`" if gated else ""
        raise DataError(
            f"{repository}{f' ({which})' if which else ''} cannot be loaded: {error}{login}; without the Hub, {remedy}"
        ) from error


def _require_reachable(repository: str, remedy: str) -> None:
    """Raise `DataError` if the Hub is away and nothing is cached: loading would retry for half a minute."""
    import datasets

    kept = Path(datasets.config.HF_DATASETS_CACHE) / repository.replace("/", "___")
    if Path(repository).exists() or kept.exists():
        return
    try:
        look_up("dataset", repository)  # loading says what is wrong with it, better than this could
    except ConnectionError as error:
        raise DataError(f"{repository}: the Hub cannot be reached ({error}); without it, {remedy}") from error


def look_up(kind: Literal["model", "dataset"], repository: str) -> Literal["there", "missing", "no name", "unclear"]:
    """Ask the Hub for a repository.

    "unclear" means that it answers with an error, "no name" that it could have no such repository. Raises
    `ConnectionError` if it cannot be reached within `PATIENCE` seconds, and `ImportError` without its client.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi().repo_info(repository, repo_type=kind, timeout=PATIENCE)
    except HFValidationError:
        return "no name"
    except RepositoryNotFoundError:
        return "missing"
    except HfHubHTTPError:
        return "unclear"
    except Exception as error:  # each HTTP library under the Hub's client has exceptions of its own
        raise ConnectionError(str(error)) from error
    return "there"


def require_token(repository: str) -> None:
    """Check that files can be pushed to `repository`. Raises `DataError` without a token or a proper name."""
    try:
        from huggingface_hub import get_token
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id
    except ModuleNotFoundError as error:
        raise DataError(
            f"{repository}: pushing to the Hub needs huggingface_hub: pip install 'afarm[train]'"
        ) from error
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise DataError(f"{repository!r} is no name of a repository: write OWNER/NAME ({error})") from error
    if not get_token():
        raise DataError(f"{repository}: the Hub takes files with a token only: run `hf auth login`, or set HF_TOKEN")


def push_folder(directory: Path, repository: str, *, private: bool = False) -> str:
    """Upload a folder to a model repository, made if missing; return its address. Raises `DataError`."""
    require_token(repository)
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=directory, commit_message="Policy exported by afarm")
    except Exception as error:  # each HTTP library under the Hub's client has exceptions of its own
        raise DataError(
            f"{repository}: the Hub did not take the files ({error}); try again, "
            f"or upload an exported folder with `hf upload {repository} FOLDER`"
        ) from error
    return f"{api.endpoint}/{repository}"
