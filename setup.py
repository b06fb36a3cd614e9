"""Fill in what only the host of a release knows; everything else is in `pyproject.toml`.

`AFARM_REPOSITORY` is the repository's address. With it the addresses of the project are in the metadata, and README's
links and pictures are absolute, so that they hold on the index's page too. Without it README stays as it is.
"""

import os
import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def absolute_links(readme: str, repository: str, tag: str) -> str:
    """Prefix relative targets of Markdown links with the address of their file at `tag`."""

    def with_address(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}({repository}/{kind}/{tag}/{link[2]})"

    return re.sub(r"(!?\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)", with_address, readme)


def main() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    urls = {}
    if repository := os.environ.get("AFARM_REPOSITORY", "").rstrip("/"):
        tag = "v" + tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
        readme = absolute_links(readme, repository, tag)
        urls = {
            "Repository": repository,
            "Documentation": f"{repository}/blob/{tag}/docs/README.md",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }
    setup(long_description=readme, long_description_content_type="text/markdown", project_urls=urls)


main()
